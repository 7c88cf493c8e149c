"""Data sets, their index, and the way from a picture to a batch."""
