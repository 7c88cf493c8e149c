"""From a picture and its labels to a mask."""
