"""Learning: the config of a run, one step, all steps, and the files that they leave."""
