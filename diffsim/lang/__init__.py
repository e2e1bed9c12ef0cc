"""What users write inside of kernels, and its translation from Python source to typed IR."""
