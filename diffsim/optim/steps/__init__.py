"""Optimisers: parameters, learning rates, and the kernels that move fields."""
