"""Reading run folders: results, rows over seeds, published figures."""
