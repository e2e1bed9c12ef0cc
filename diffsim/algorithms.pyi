"""Sorting and prefix sums of fields, under Taichi's names."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class PrefixSumExecutor:
    """Inclusive prefix sums, in place: `x[i]` becomes `x[0] + ... + x[i]`."""
    def __init__(self, length: int) -> None: ...
    def run(self, input_arr: Field) -> None:
        """Replace the numbers of a field by their prefix sums."""
def parallel_sort(keys: Field, values: Field | None = ...) -> None:
    """Sort a field with one axis in place, from small to large; equal keys keep their order."""

__all__ = [
    "PrefixSumExecutor",
    "parallel_sort",
]
