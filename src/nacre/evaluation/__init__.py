"""Testing: the confusion matrix, IoU by class and group, and what was forgotten."""
