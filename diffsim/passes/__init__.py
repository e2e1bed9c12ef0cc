"""Passes: pure functions from Kernel to Kernel, listed in the order they run by `pipeline.py`."""
