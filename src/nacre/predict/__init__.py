"""Predictions for images, videos and maps, and the files of their results."""
