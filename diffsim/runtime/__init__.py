"""Running kernels: options, memory, fields, compiling, launching.

Read `session.py` (options and what they create), then `kernels/kernel.py`.
"""
