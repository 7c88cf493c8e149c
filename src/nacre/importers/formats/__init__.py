"""One reader for each format that annotation tools export."""
