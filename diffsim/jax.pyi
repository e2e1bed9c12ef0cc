"""Functions of fields as functions of JAX: `ds.jax.wrap` (docs/bridges.md)."""

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

def wrap(function: Callable[..., Any] | None = ..., *, inputs: Any = ..., outputs: Any = ..., mode: str = ...) -> Any:
    """Make a function of JAX, with derivatives, of a function of fields; also a decorator."""

__all__ = [
    "wrap",
]
