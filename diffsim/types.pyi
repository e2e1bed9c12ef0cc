"""Types, and annotations for arguments; the scalar types are also names of diffsim itself."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Matrix, Vector

D = TypeVar("D", covariant=True, default=Any)
N = TypeVar("N", covariant=True, default=Any)

from diffsim import f16 as f16
from diffsim import f32 as f32
from diffsim import f64 as f64
from diffsim import float16 as float16
from diffsim import float32 as float32
from diffsim import float64 as float64
from diffsim import i16 as i16
from diffsim import i32 as i32
from diffsim import i64 as i64
from diffsim import i8 as i8
from diffsim import int16 as int16
from diffsim import int32 as int32
from diffsim import int64 as int64
from diffsim import int8 as int8
M = TypeVar('M', covariant=True, default=Any)
matrix: TypeAlias = Matrix[N, M, D]

class ndarray(Protocol[D, N]):
    """Annotate a NumPy array or `ds.ndarray`: bare, or `ndarray[ds.f32, Literal[1]]` with type and axes."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Any: ...

sparse_matrix_builder: TypeAlias = Any
def struct(**members: Any) -> Any:
    """Return a struct type: `ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)`."""
template: TypeAlias = Any
from diffsim import u1 as u1
from diffsim import u16 as u16
from diffsim import u32 as u32
from diffsim import u64 as u64
from diffsim import u8 as u8
from diffsim import uint16 as uint16
from diffsim import uint32 as uint32
from diffsim import uint64 as uint64
from diffsim import uint8 as uint8
vector: TypeAlias = Vector[N, D]

__all__ = [
    "f16",
    "f32",
    "f64",
    "float16",
    "float32",
    "float64",
    "i8",
    "i16",
    "i32",
    "i64",
    "int8",
    "int16",
    "int32",
    "int64",
    "matrix",
    "ndarray",
    "sparse_matrix_builder",
    "struct",
    "template",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "vector",
]
