"""Forms of a kernel: kernels that compute the same, and whose adjoints need less."""
