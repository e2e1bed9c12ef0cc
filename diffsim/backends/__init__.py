"""From scalar IR to code that runs.

`llvm/` is the lowering that all targets share, `native/` compiles and loads code in this process and holds
its run-time library (`*.ll`), `cpu/`, `simt/` and `cuda/` write entry points. `interpreter.py` runs IR in
NumPy, as the oracle of tests.
"""
