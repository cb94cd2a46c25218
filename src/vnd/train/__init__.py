"""Training: the loop, schedules, optimizers, checkpoints, and the folder of a run."""
