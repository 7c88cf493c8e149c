"""Scenarios: the classes and the images of each step."""
