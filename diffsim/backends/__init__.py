"""From scalar IR to code: LLVM text for the CPU and for NVIDIA GPUs, and an interpreter for tests."""
