"""Prediction and metrics: class maps, the confusion matrix, IoU by class and group, forgetting."""
