"""Label spaces, class tables, tasks and setups: which class is which channel when, which images a step gets."""
