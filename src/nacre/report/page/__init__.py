"""The page: what it says, its template."""
