"""Reverse-mode differentiation of kernels. Read `reverse.py` first, then `region_adjoint.py`."""
