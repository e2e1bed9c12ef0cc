"""Programs that the rules of gradients refuse."""

import pytest

import diffsim as ds
from diffsim.errors import AutodiffError


def refused(program, loss, kind=AutodiffError):
    """The error of a program under a tape."""
    with pytest.raises(kind) as caught:
        with ds.Tape(loss):
            program()
    assert caught.value.span is not None
    return caught.value


def summed(y, loss):
    """A kernel that adds up a field."""

    @ds.kernel
    def total():
        for I in ds.grouped(y):
            loss[None] += y[I]

    return total
