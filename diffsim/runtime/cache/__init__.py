"""The cache on disk: its folder, and kernels as bytes."""
