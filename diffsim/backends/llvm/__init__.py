"""Scalar IR to LLVM text, for every target. Read `lowering.py` first, then `module.py`."""
