"""The systems of the paper, one file each: how a method builds its model, its loss, how it predicts."""
