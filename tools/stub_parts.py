"""The parts of stubs that the running package lacks: types that exist for type checkers alone."""

from __future__ import annotations

_COMMON = """\
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

_KERNEL = '''
class Kernel(Generic[P, R]):
    """A compiled function over fields; made by `@ds.kernel`."""
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: Kernel[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> Kernel[Q, R]: ...
    @property
    def grad(self) -> _GradKernel[P]:
        """The adjoint: `kernel.grad(...)`, with the arguments of the launch it belongs to."""
    def ir(self, *, after: str | None = ...) -> str: ...
    def llvm(self) -> str: ...
    def ptx(self, arch: str = ...) -> str: ...
    def jvp(self, *args: Any, **kwargs: Any) -> Any: ...
    def show(self, *args: Any, **kwargs: Any) -> Any: ...
    def specialize(self, *args: Any, **kwargs: Any) -> Any: ...

class _GradKernel(Generic[P]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def ir(self, *, after: str | None = ...) -> str: ...
    def llvm(self) -> str: ...
    def ptx(self, arch: str = ...) -> str: ...
'''
_DECORATE_KERNEL = '''
@overload
def kernel(fn: Callable[P, R]) -> Kernel[P, R]:
    """Decorate a function so that it is compiled and run over fields."""
@overload
def kernel(fn: None = ..., *, simplicity: str | None = ...) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...
'''
_OPTIONS = "order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ..."
_VECTOR = f'''
class Vector(_Tensor, Generic[N, D]):
    """`ds.Vector([x, y, z])` makes a vector (a `ds.Matrix` of one axis)."""
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
'''
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
_MATRIX = f'''
class Matrix(_Tensor, Generic[N, M, D]):
    """`ds.Matrix([[a, b], [c, d]])` makes a matrix of numbers, `ds.Matrix([x, y])` a vector."""
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
''' + _MAKERS.format(m=", m: int | None = ...", cls="Matrix", any=", Any")
_STRUCT = '''
@dataclass_transform()
class Struct:
    """`ds.Struct(pos=p, mass=1.0)` makes a struct, `ds.Struct.field({"mass": ds.f32}, shape=n)` a field."""
    def __init__(self, members: Mapping[str, Any] = ..., **more: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    @overload
    @classmethod
    def field(cls, members: Mapping[str, Any], methods: Any = ..., shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...
    @overload
    @classmethod
    def field(cls, *, shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...
'''

_DECORATOR = '''
def {name}(fn: F) -> F:
    """{doc}"""
'''
_FIELD = f'''
@overload
def field(dtype: DType | None = ..., shape: Any = ..., {_OPTIONS}) -> Field:
    """Make a field of numbers, vectors or matrices."""
@overload
def field(dtype: type[Any], shape: Any = ..., {_OPTIONS}) -> StructField: ...
'''
_DATACLASS = '''
@dataclass_transform()
def dataclass(cls: type[T]) -> type[T]:
    """Decorate a class whose annotations are the members of a struct, and its functions methods."""
'''
_NDARRAY = '''
class ndarray(Protocol[D, N]):
    """Annotate a NumPy array or `ds.ndarray`: bare, or `ndarray[ds.f32, Literal[1]]` with type and axes."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Any: ...
'''
_STATIC = '''
@overload
def static(x: T, /) -> T:
    """Evaluate while compiling: unrolls `for i in ds.static(range(3))`, decides `if ds.static(flag)`."""
@overload
def static(x: Any, *xs: Any) -> tuple[Any, ...]: ...
'''

REPLACED = {
    ("", "Kernel"): _KERNEL,
    ("", "Matrix"): _MATRIX,
    ("", "Struct"): _STRUCT,
    ("", "Vector"): _VECTOR,
    ("", "dataclass"): _DATACLASS,
    ("", "data_oriented"): "def data_oriented(cls: C) -> C:\n"
    '    """Decorate a class whose methods are kernels or funcs."""',
    ("", "field"): _FIELD,
    ("", "kernel"): _DECORATE_KERNEL,
    ("", "static"): _STATIC,
    ("", "stop_grad"): 'def stop_grad(x: T) -> T:\n    """The value itself, with derivative 0."""',
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
    ("ad", "grad_replaced"): "def grad_replaced(func: F) -> F:\n"
    '    """Decorate a Python function that launches kernels and has a gradient of its own."""',
    **{
        ("", name): _DECORATOR.format(name=name, doc=doc)
        for name, doc in {
            "func": "Decorate a function so that kernels (and other funcs) can call it.",
            "pyfunc": "Decorate a function that kernels call, and Python as well.",
            "real_func": "Decorate a function for kernels whose parameters and result all have types.",
        }.items()
    },
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
