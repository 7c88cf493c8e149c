"""The console and progress bars, with rich."""
