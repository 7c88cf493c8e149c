"""Helpers of all packages: files, the machine."""
