"""What a label is and which channel it becomes."""
