"""NVIDIA GPUs: entry points as PTX, and the driver. Read `codegen.py` first."""
