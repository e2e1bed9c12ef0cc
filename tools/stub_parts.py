"""The parts of stubs that the running package lacks: types that exist for type checkers alone."""

from __future__ import annotations

_COMMON = """\
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self

import numpy as np
"""
_OF_OTHERS = """
from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
"""
HEADER = {
    "": _COMMON.replace(
        "Literal, TypeAlias",
        "Concatenate, Generic, Literal, ParamSpec, TypeAlias, dataclass_transform, overload",
    ).replace("import Self", "import Self, TypeVar")
    + """

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
N = TypeVar("N", covariant=True, default=Any)
M = TypeVar("M", covariant=True, default=Any)
D = TypeVar("D", covariant=True, default=Any)

# Scalar types are those of Python for a checker: `t: ds.i32` is an int, and `ds.f32` a class.
DType: TypeAlias = type[float] | type[int] | type[bool] | type[_Tensor] | _Tensor
_Arch: TypeAlias = Arch
""",
    "ad": _COMMON.replace(
        "Literal, TypeAlias", "Concatenate, Generic, Literal, ParamSpec, TypeAlias, overload"
    ).replace("import Self", "import Self, TypeVar")
    + _OF_OTHERS
    + """
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
""",
    "*": _COMMON.replace("import Self", "import Self, TypeVar") + _OF_OTHERS,
    "tools": "import argparse\n"
    + _COMMON.replace("import Self", "import Self, TypeVar")
    + _OF_OTHERS,
    "types": _COMMON.replace("Literal, TypeAlias", "Literal, Protocol, TypeAlias").replace(
        "import Self", "import Self, TypeVar"
    )
    + """
from diffsim import DType, Matrix, Vector

D = TypeVar("D", covariant=True, default=Any)
N = TypeVar("N", covariant=True, default=Any)
""",
}
HEADER["ui"] = HEADER["*"].replace("from os import", "from enum import IntEnum\nfrom os import")

# Names of annotations in the sources, and what stubs say instead; those of neither are Any.
NAMES = {"Root": "Node", "NodeLike": "Node", "StructType": "Any"}

# Classes that fields are instances of, without being derived from them.
OF_FIELDS = {"MatrixField", "Ndarray", "ScalarField"}

_KERNEL = """
class Kernel(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: Kernel[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> Kernel[Q, R]: ...
    @property
    def grad(self) -> _Derivative[P]: ...
    @property
    def jvp(self) -> _Derivative[P]: ...
    def ir(self, after: str = ..., args: tuple[Any, ...] = ...) -> str: ...
    def llvm(self, args: tuple[Any, ...] = ...) -> str: ...
    def ptx(self, sm: int = ..., args: tuple[Any, ...] = ...) -> str: ...
    def show(self, path: Any = ..., args: tuple[Any, ...] = ...) -> None: ...
    def specialize(self, args: tuple[Any, ...], *, by_field: bool = ...) -> Any: ...

class _Derivative(Generic[P]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def ir(self, after: str = ..., args: tuple[Any, ...] = ...) -> str: ...
    def llvm(self, args: tuple[Any, ...] = ...) -> str: ...
    def ptx(self, sm: int = ..., args: tuple[Any, ...] = ...) -> str: ...
"""
_DECORATE_KERNEL = """
@overload
def kernel(fn: Callable[P, R]) -> Kernel[P, R]: ...
@overload
def kernel(fn: None = ..., *, simplicity: str | None = ...) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...
"""
_OPTIONS = "order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ..."
_VECTOR = f"""
class Vector(_Tensor, Generic[N, D]):
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, dtype: DType | None = ..., shape: Any = ..., {_OPTIONS}) -> Field: ...
    @overload
    @staticmethod
    def field(*, shape: Any = ..., {_OPTIONS}) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, dtype: DType, shape: Any, **options: Any) -> Field: ...
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...
"""
_MAKERS = """
    @staticmethod
    def zero(dt: DType, n: int{m}) -> {cls}[Any, Any{any}]: ...
    @staticmethod
    def one(dt: DType, n: int{m}) -> {cls}[Any, Any{any}]: ...
"""
_VECTOR += (
    _MAKERS.format(m="", cls="Vector", any="")
    + """
    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]: ...
"""
)
_MATRIX = f"""
class Matrix(_Tensor, Generic[N, M, D]):
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, m: int, dtype: DType | None = ..., shape: Any = ..., {_OPTIONS}) -> Field: ...
    @overload
    @staticmethod
    def field(*, shape: Any = ..., {_OPTIONS}) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, m: int, dtype: DType, shape: Any, **options: Any) -> Field: ...
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...
    @staticmethod
    def identity(dt: DType, n: int) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def diag(dim: int, val: Any) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def rows(rows: Iterable[Any]) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def cols(cols: Iterable[Any]) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]: ...
""" + _MAKERS.format(m=", m: int | None = ...", cls="Matrix", any=", Any")
_STRUCT = """
@dataclass_transform()
class Struct:
    def __init__(self, members: Mapping[str, Any] = ..., **more: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    @overload
    @classmethod
    def field(cls, members: Mapping[str, Any], methods: Any = ..., shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...
    @overload
    @classmethod
    def field(cls, *, shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...
"""

_FIELD = f"""
@overload
def field(dtype: DType | None = ..., shape: Any = ..., {_OPTIONS}) -> Field: ...
@overload
def field(dtype: type[Any], shape: Any = ..., {_OPTIONS}) -> StructField: ...
"""
_DATACLASS = """
@dataclass_transform()
def dataclass(cls: type[T]) -> type[T]: ...
"""
_NDARRAY = """
class ndarray(Protocol[D, N]):
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Any: ...
"""
_STATIC = """
@overload
def static(x: T, /) -> T: ...
@overload
def static(x: Any, *xs: Any) -> tuple[Any, ...]: ...
"""

_GRAD_REPLACED = """
class _GradReplaced(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: _GradReplaced[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> _GradReplaced[Q, R]: ...
    def grad(self, *args: P.args, **kwargs: P.kwargs) -> None: ...

def grad_replaced(func: Callable[P, R]) -> _GradReplaced[P, R]: ...
"""
REPLACED = {
    ("", "Kernel"): _KERNEL,
    ("", "Matrix"): _MATRIX,
    ("", "Struct"): _STRUCT,
    ("", "Vector"): _VECTOR,
    ("", "dataclass"): _DATACLASS,
    ("", "data_oriented"): "def data_oriented(cls: C) -> C: ...",
    ("", "field"): _FIELD,
    ("", "kernel"): _DECORATE_KERNEL,
    ("", "static"): _STATIC,
    ("", "stop_grad"): "def stop_grad(x: T) -> T: ...",
    # Bare, in an annotation: whatever the caller passes.
    ("", "template"): "template: TypeAlias = Any",
    (
        "ui",
        "ProjectionMode",
    ): "class ProjectionMode(IntEnum):\n    Perspective = 0\n    Orthogonal = 1",
    ("types", "sparse_matrix_builder"): "sparse_matrix_builder: TypeAlias = Any",
    ("types", "template"): "template: TypeAlias = Any",
    ("types", "ndarray"): _NDARRAY,
    # `vector(3, ds.f32)` is the type, `vector[Literal[3], ds.f32]` too: as an annotation, a vector.
    ("types", "vector"): "vector: TypeAlias = Vector[N, D]",
    (
        "types",
        "matrix",
    ): "M = TypeVar('M', covariant=True, default=Any)\nmatrix: TypeAlias = Matrix[N, M, D]",
    ("ad", "no_grad"): "no_grad: Any",
    ("ad", "grad_replaced"): _GRAD_REPLACED,
    **{("", name): f"def {name}(fn: F) -> F: ..." for name in ("func", "pyfunc", "real_func")},
}

_GETATTR = "def __getattr__(self, name: str) -> Any: ..."
METHODS = {
    ("Field", "grad"): "@property\ndef grad(self) -> Field: ...",
    ("Field", "dual"): "@property\ndef dual(self) -> Field: ...",
    ("Field", "dtype"): "dtype: Any",
    ("Field", "get_scalar_field"): "def get_scalar_field(self, *indices: int) -> Field:\n"
    '    """Return a component of the elements as a field of numbers that shares their memory."""',
    ("Field", "__init__"): "",
    ("_Tensor", "__init__"): "",
    ("_Tensor", "__call__"): "",
    # What `ds.types.vector(3, ds.f32)` returns is a type, which is called.
    ("_Tensor", "__getattr__"): _GETATTR + "\ndef __call__(self, *elements: Any) -> Any: ...",
    ("_Tensor", "cast"): "def cast(self, dtype: DType) -> Any: ...",
    **{
        ("_Tensor", name): ""
        for name in "cols diag field identity ndarray one rows unit zero".split()
    },
    ("StructField", "__init__"): _GETATTR,
    ("StructField", "grad"): "@property\ndef grad(self) -> Any: ...",
    ("Node", "__init__"): "",
    ("Arch", "__init__"): "name: str",
    ("Axes", "__init__"): "def __init__(self, *numbers: int) -> None: ...",
    ("Tape", "__enter__"): "def __enter__(self) -> Self: ...",
}
