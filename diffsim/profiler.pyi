"""How long kernels take and how much memory fields: `ds.init(kernel_profiler=True)` measures each launch."""

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

def clear_kernel_profiler_info() -> None:
    """Forget all launches that were measured.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.clear_kernel_profiler_info()
        print(ds.profiler.get_kernel_profiler_total_time())  # prints: 0.0
    """
def clear_scoped_profiler_info() -> None:
    """Forget how long compilations took.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.clear_scoped_profiler_info()
        ds.profiler.print_scoped_profiler_info()
        # prints: ...
    """
def get_kernel_profiler_total_time() -> float:
    """Return the time of all launches that were measured [s].

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        print(ds.profiler.get_kernel_profiler_total_time() > 0.0)  # prints: True
    """
def print_kernel_profiler_info(mode: str = ...) -> None:
    """Print the times of all kernels.

    Args:
        mode: "count": a line for each kernel; "trace": one for each launch, in their order.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.print_kernel_profiler_info()
        # prints: ...
        # prints: double...
        # prints: ...
    """
def print_memory_profiler_info() -> None:
    """Print the memory of each field, gradients included, the largest first.

    It needs no option of `ds.init`. What a tape keeps besides is in `tape.stats()`.

    Example:
        heat = ds.field(ds.f64, shape=(64, 64), needs_grad=True, name="heat")
        ds.profiler.print_memory_profiler_info()
        # prints: field...memory
        # prints: heat...(64, 64)...32 KiB
        # prints: heat.grad...(64, 64)...32 KiB
        # prints: ...
    """
def print_scoped_profiler_info() -> None:
    """Print how long the compilation of each kernel took.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.print_scoped_profiler_info()
        # prints: ...
        # prints: ...double...
        # prints: ...
    """
def query_kernel_profiler_info(name: Any) -> Any:
    """Return the times of the kernel of this name: `counter`, `min`, `max`, `avg` [ms].

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        found = ds.profiler.query_kernel_profiler_info("double")
        print(found.counter, found.min <= found.avg <= found.max)  # prints: 2 True
    """
def table() -> Any:
    """Return the times of all kernels so far: it prints as a table, and has `plot()`.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        print("double" in str(ds.profiler.table()))  # prints: True
    """

__all__ = [
    "clear_kernel_profiler_info",
    "clear_scoped_profiler_info",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "print_memory_profiler_info",
    "print_scoped_profiler_info",
    "query_kernel_profiler_info",
    "table",
]
