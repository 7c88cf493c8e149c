"""Which class is which channel when, and which images a step gets."""
