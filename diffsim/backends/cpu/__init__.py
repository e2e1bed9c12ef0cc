"""Entry points of kernels on the CPU: tasks spread over threads, SIMD lanes. Read `codegen.py` first."""
