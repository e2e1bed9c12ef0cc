"""Compilers for processors with shorter vectors than this one has."""

import functools

from diffsim.backends.native.jit import Jit


@functools.cache
def narrow():
    """A compiler for vectors of 256 bits."""
    return Jit(vector_bits=256)
