"""Running kernels: options, memory, fields, compiling, launching.

Read `compiler.py` (source to executable, top to bottom) and `session.py` (options and what they create), then
`kernels/kernel.py`. `backend.py` says what the CPU and GPUs have in common.
"""
