"""Native code in this process: the JIT compiler, the thread pool, and their run-time library in LLVM text."""
