"""Passes: pure functions from kernel to kernel. `pipeline.py` lists them in the order in which they run.

`analysis/` answers questions about a kernel, `transforms/` rewrites it, `autodiff/` makes adjoints of it,
`instrument/` adds checks to it.
"""
