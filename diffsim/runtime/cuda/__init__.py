"""Running on NVIDIA GPUs: the device, executables, command lists as CUDA graphs."""
