"""Kernels: from the first call to the launch function. Read `kernel.py` first, then `specialization.py`."""
