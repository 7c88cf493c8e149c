"""Runs: the folder, the events, the loop over steps."""
