"""How long kernels take: `ds.init(kernel_profiler=True)` measures each launch, `ds.profiler` shows it."""

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

def clear_kernel_profiler_info() -> None:
    """Forget all launches that were measured."""
def clear_scoped_profiler_info() -> None:
    """Forget how long compilations took."""
def get_kernel_profiler_total_time() -> float:
    """Return the time of all launches that were measured [s]."""
def print_kernel_profiler_info(mode: str = ...) -> None:
    """Print the times of all kernels."""
def print_scoped_profiler_info() -> None:
    """Print how long the compilation of each kernel took."""
def query_kernel_profiler_info(name: Any) -> Any:
    """Return the times of the kernel of this name: `counter`, `min`, `max`, `avg` [ms]."""
def table() -> Any:
    """Return the times of all kernels so far: it prints as a table, and has `plot()`."""

__all__ = [
    "clear_kernel_profiler_info",
    "clear_scoped_profiler_info",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "print_scoped_profiler_info",
    "query_kernel_profiler_info",
    "table",
]
