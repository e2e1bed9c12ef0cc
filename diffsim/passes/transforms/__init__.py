"""Transformations that keep what a kernel computes. `passes/pipeline.py` says in which order they run."""
