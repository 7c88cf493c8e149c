"""Reports of finished runs: results, tables, charts, images and the HTML page."""
