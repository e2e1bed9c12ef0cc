"""Vectors, matrices and structs, in Python and as types of kernels. Read `matrix.py` first."""
