"""Checks put into kernels: bounds of indices, and shadow memory for the global data access rules."""
