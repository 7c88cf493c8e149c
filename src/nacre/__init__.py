"""nacre teaches a segmentation network new classes step by step, and keeps what it knew."""

__version__ = "0.1.0"
