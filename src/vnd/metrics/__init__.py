"""Measures of predictions: pure functions of tensors that import nothing of the library."""
