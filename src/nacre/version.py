"""The version of nacre."""

__version__ = "0.1.0"
