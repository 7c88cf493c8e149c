"""What every room may use: files, the machine."""
