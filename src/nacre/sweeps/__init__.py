"""Many runs: grids, tuning, the demo."""
