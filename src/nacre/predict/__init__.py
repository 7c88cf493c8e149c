"""Images, videos and maps as a model sees them, and the files that are written of that."""
