"""Analyses: affine indices, regions, dependence, access order, ownership, divergence.

Read `affine.py` first; the others build on it. `once.py` keeps their results.
"""
