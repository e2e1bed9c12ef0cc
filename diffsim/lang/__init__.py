"""The language: what users write in kernels, and its translation from Python source to IR.

`host/` is the Python side (source, annotations, captured values), `types/` vectors, matrices and structs,
`frontend/` the translation, `builtins/` the functions that a kernel can call. Read `frontend/translate.py`
first.

The modules of the front end refer to one another; beginning with `statements` they load in an order that
works.
"""

from diffsim.lang.frontend import statements as statements
