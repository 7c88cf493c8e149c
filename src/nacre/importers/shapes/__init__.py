"""Annotated shapes and the exact pixels that they cover."""
