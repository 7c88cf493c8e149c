"""The index: for each image, which label values its mask holds."""
