"""Evaluation: one trained network at many widths, as tidy rows."""
