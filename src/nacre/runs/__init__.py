"""What is kept of a run: its folder, its events; the loop over a scenario's steps."""
