"""Lanes as vectors on a CPU: values, accesses, loops, functions."""
