"""Choosing a method's weight without old data, as the paper's supplement does."""
