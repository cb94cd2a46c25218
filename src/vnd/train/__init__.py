"""Training: the loop, schedules, optimisers, checkpoints, and the folder of a run."""
