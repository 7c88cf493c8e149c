"""Everything that is shown on a terminal with rich."""
