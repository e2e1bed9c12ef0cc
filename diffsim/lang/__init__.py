"""The language: what users write in kernels, and its translation from Python source to IR.

`host/` is the Python side (source, annotations, captured values), `types/` vectors, matrices and structs,
`frontend/` the translation, `builtins/` the functions that a kernel can call. Read `frontend/translate.py`
first.

The modules of the front end import one another in a cycle, as the syntax is recursive. Importing
`statements` first loads them in an order in which no module needs a name that is not yet defined.
"""

from diffsim.lang.frontend import statements as statements
