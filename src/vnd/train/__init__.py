"""Training: the loop, recipes, checkpoints, sweeps, and the folder of a run."""
