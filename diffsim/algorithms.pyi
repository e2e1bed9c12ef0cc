"""Sorting and prefix sums of fields, under Taichi's names."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class PrefixSumExecutor:
    """Inclusive prefix sums, in place: `x[i]` becomes `x[0] + ... + x[i]`.

    Args:
        length: the number of elements of the fields that it is run on.

    Example:
        x = ds.field(ds.i32, shape=4)
        x.fill(2)
        ds.algorithms.PrefixSumExecutor(4).run(x)
        print(x.to_numpy())  # prints: [2 4 6 8]
    """
    def __init__(self, length: int) -> None: ...
    def run(self, input_arr: Field) -> None:
        """Replace the numbers of a field by their prefix sums."""
def parallel_sort(keys: Field, values: Field | None = ...) -> None:
    """Sort a field with one axis in place, from small to large; equal keys keep their order.

    On a tape the gradients of keys and values go to where their numbers came from: the order counts as
    constant.

    Args:
        keys: what is sorted.
        values: a field of the same length, which is brought into the same order.

    Example:
        keys = ds.field(ds.i32, shape=3)
        keys.from_numpy(np.array([3, 1, 2], np.int32))
        ds.algorithms.parallel_sort(keys)
        print(keys.to_numpy())  # prints: [1 2 3]
    """

__all__ = [
    "PrefixSumExecutor",
    "parallel_sort",
]
