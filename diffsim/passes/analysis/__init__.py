"""Analyses: affine indices, regions of memory, dependence, access order, ownership."""
