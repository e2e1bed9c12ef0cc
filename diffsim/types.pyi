"""Types, and annotations for arguments; the scalar types are also names of diffsim itself."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
"""Make the type of matrices of n rows and m columns.

For type checkers it is written `ds.types.matrix[Literal[2], Literal[3], ds.f32]`.

Args:
    n: number of rows.
    m: number of columns.
    dtype: the scalar type of the elements; the default float if left out.

Raises:
    FieldError: a size or a type that matrices cannot have.

Example:
    mat2 = ds.types.matrix(2, 2, ds.f32)
    rotation = mat2(0.0, -1.0, 1.0, 0.0)
    print(rotation @ ds.Vector([1.0, 0.0]))  # prints: [0.0, 1.0]
"""

class ndarray(Protocol[D, N]):
    """Annotate a NumPy array or `ds.ndarray`, passed without a copy.

    An array of NumPy has no vectors: its last axes are those of an element.

    Args:
        dtype: element type (a scalar type, or `ds.types.vector/matrix`); any if left out.
        ndim: number of axes (without those of the element); any if left out.
        element_dim: 0 for numbers, 1 for vectors, 2 for matrices; any if left out.
        element_shape: (n,) for vectors, (n, m) for matrices; any if left out.
        field_dim: as in Taichi, an earlier name of `ndim` that is refused.
        needs_grad: True refuses arrays without a gradient.
        boundary: "unsafe": indices are inside the array, which `debug=True` checks; "clamp": an index
            outside it means the nearest one inside.

    Example:
        @ds.kernel
        def total(a: ds.types.ndarray(ds.f32, ndim=1)) -> ds.f32:
            s = 0.0
            for i in range(a.shape[0]):
                s += a[i]
            return s

        print(total(np.arange(4, dtype=np.float32)))  # prints: 6.0
    """
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Any: ...

sparse_matrix_builder: TypeAlias = Any
"""Annotate an argument that the kernel is compiled for: a field, a constant, a function, an object.

Written `x: ds.template()`, or `x: ds.template`, as type checkers want it. The kernel is compiled anew for
each field or value that it gets. What a func does to a parameter `x: ds.template()` happens to the
caller's variable.

Args:
    tensor: taken and ignored, as by Taichi.
    dim: likewise.

Example:
    @ds.kernel
    def double(x: ds.template()):
        for i in x:
            x[i] *= 2.0

    a = ds.field(ds.f32, shape=3)
    a.fill(1.5)
    double(a)
    print(a[0])  # prints: 3.0
"""
def struct(**members: Any) -> Any:
    """Return a struct type: `ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)`.

    Args:
        members: the type of each member: scalar, vector, matrix or struct; `__struct_methods` is a
            dictionary of functions that are its methods.

    Example:
        ball = ds.types.struct(pos=ds.types.vector(2, ds.f32), radius=ds.f32)
        print(ball(radius=2.0).radius)  # prints: 2.0
    """
template: TypeAlias = Any
"""Annotate an argument that the kernel is compiled for: a field, a constant, a function, an object.

Written `x: ds.template()`, or `x: ds.template`, as type checkers want it. The kernel is compiled anew for
each field or value that it gets. What a func does to a parameter `x: ds.template()` happens to the
caller's variable.

Args:
    tensor: taken and ignored, as by Taichi.
    dim: likewise.

Example:
    @ds.kernel
    def double(x: ds.template()):
        for i in x:
            x[i] *= 2.0

    a = ds.field(ds.f32, shape=3)
    a.fill(1.5)
    double(a)
    print(a[0])  # prints: 3.0
"""
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
"""Make the type of vectors of n scalars.

The type makes vectors, `vec3(1, 2, 3)`, fields and arrays of them, and annotates arguments and members.
For type checkers it is written `ds.types.vector[Literal[3], ds.f32]`.

Args:
    n: number of elements.
    dtype: their scalar type; the default float if left out.

Raises:
    FieldError: a size or a type that vectors cannot have.

Example:
    vec3 = ds.types.vector(3, ds.f32)
    x = vec3.field(shape=8)
    x[0] = vec3(1.0, 2.0, 3.0)
    print(x[0].norm_sqr())  # prints: 14.0
"""

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
