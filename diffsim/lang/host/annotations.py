"""Annotations of kernel arguments, and the interpretation of types given by users."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, DtypeError, Span, shown
from diffsim.ir.types import SCALARS, ScalarType, Sizes, TensorType, bool_, tensor
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.signatures import checked_methods
from diffsim.public_names import PublicNames, with_example


@dataclass(frozen=True, slots=True)
class Template:
    """Annotation of an argument that the kernel is compiled for: a field, a number, a function, an object."""


class UsableBare:
    """Base of classes whose calls make annotations, and which are annotations by themselves.

    Type checkers take no calls in annotations: `a: ds.types.ndarray` is for them, and means the call.
    """


@checked_methods("__new__")
class template(UsableBare, metaclass=PublicNames):  # noqa: N801 - its name in programs
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

    _public = ""

    def __new__(cls, tensor: object = None, dim: object = None) -> Template:  # type: ignore[misc]
        return Template()


@dataclass(frozen=True, slots=True)
class ArrayAnnotation:
    """Annotation of an array of any size; type, axes and gradient are checked where given.

    Attributes:
        clamp: whether an index outside the array means the nearest one inside.
    """

    dtype: Any = None
    ndim: int | None = None
    element_dim: int | None = None
    element_shape: tuple[int, ...] | None = None
    needs_grad: bool = False
    clamp: bool = False


@checked_methods("__call__ field ndarray")
class DefaultTensor(Sizes, metaclass=PublicNames):
    """A vector or matrix type of the default float or integer, resolved where it is used.

    Args:
        name: what users call it.
        kind: of its scalars: "f" the default float, "i" the default integer, "u" the unsigned one.
        shape: (n,) or (n, m).
    """

    _public = "dtype field get_shape m n ndarray ndim shape"

    __slots__ = ("__name__", "kind", "shape")

    def __init__(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        self.__name__ = name
        self.kind = kind
        self.shape = shape

    def __reduce__(self) -> Any:
        return DefaultTensor, (self.__name__, self.kind, self.shape)

    @property
    def now(self) -> TensorType:
        """The type under the present defaults of `ds.init`."""
        # Not stored: a later `ds.init` may choose another precision.
        scalar = runtime().default_fp() if self.kind == "f" else runtime().default_ip()
        made = tensor(SCALARS[f"u{scalar.bits}"] if self.kind == "u" else scalar, self.shape)
        assert isinstance(made, TensorType)
        return made

    @property
    def dtype(self) -> ScalarType:
        """The type of its scalars, under the present defaults of `ds.init`.

        Example:
            print(ds.math.ivec2.dtype)  # prints: i32
        """
        return self.now.scalar

    def __call__(self, *elements: object) -> Any:
        """Make a vector or matrix of these numbers, rows or vectors in order, or of one number throughout."""
        return self.now(*elements)

    def field(self, shape: object = None, **options: object) -> Any:
        """Make a field of elements of this type; see `ds.field` for the options."""
        return self.now.field(shape, **options)

    def ndarray(self, shape: object, *, needs_grad: bool = False, needs_dual: bool = False) -> Any:
        """Make an array of elements of this type; see `ds.ndarray`."""
        return self.now.ndarray(shape, needs_grad=needs_grad, needs_dual=needs_dual)

    def _description(self) -> str:
        """Say what `help(ds.math.vec3)` shows."""
        shape = " x ".join(map(str, self.shape))
        of = {
            "f": "the default float",
            "i": "the default integer",
            "u": "the default integer, unsigned",
        }
        kind = "vectors" if len(self.shape) == 1 else "matrices"
        text = f"""The type of {kind} of {shape} elements of {of[self.kind]} type, as `ds.init` chooses it.

Called, it makes one: `{self.__name__}(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `{self.__name__}.field(shape=8)` makes a field."""
        return with_example(
            text, f"print(ds.math.{self.__name__}(1).shape)  # prints: {self.shape}"
        )

    def __repr__(self) -> str:
        return self.__name__

    def in_words(self) -> str:
        return f"the type {self.__name__}"


def as_of_now(t: object) -> Any:
    """Return a type given by a user: what an alias means, and types that follow the defaults resolved."""
    t = unaliased(t)
    if isinstance(t, type) and issubclass(t, UsableBare):
        return t()
    # Resolved at each use: a kernel that is compiled after another `ds.init` has other types.
    if isinstance(t, ArrayAnnotation) and isinstance(t.dtype, DefaultTensor):
        return dataclasses.replace(t, dtype=t.dtype.now)
    return t.now if isinstance(t, DefaultTensor) else t


def unaliased(t: Any) -> Any:
    """Return what an alias means: `type Real = ds.f64`, or that of typing_extensions."""
    while type(t).__name__ == "TypeAliasType":
        t = t.__value__
    return t


def matrix_type(shape: tuple[int, ...], dtype: object) -> TensorType:
    """Make a tensor type; check its shape and dtype."""
    if any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**16 for n in shape):
        raise ArgumentError(
            f"a vector or matrix has at least one element along each axis, not {shown(shape)}",
            Span.of_caller(),
            hint="write ds.types.vector(3, ds.f32) or ds.types.matrix(2, 3, ds.f32)",
        )
    t = tensor(scalar_type(dtype), shape)
    assert isinstance(t, TensorType)
    return t


def scalar_type(dtype: object) -> ScalarType:
    """Return the scalar type meant by `ds.f32`, `float` (default_fp), `int` (default_ip) or `bool`."""
    # Python's types and ours only: NumPy's are refused with
    # the name of ours, so that programs use one set of names.
    dtype = unaliased(dtype)
    if isinstance(dtype, ScalarType):
        return dtype
    # Python's types mean the defaults of the session, as in NumPy they mean its widest types.
    if dtype is float:
        return runtime().default_fp()
    if dtype is int:
        return runtime().default_ip()
    if dtype is bool:
        return bool_
    raise DtypeError(
        f"{_in_words(dtype)} is not a type of numbers",
        Span.of_caller(),
        hint=_advice(dtype),
    )


def _in_words(thing: object) -> str:
    """Describe an object that was given in place of a type."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if thing is None or isinstance(thing, (str, int, float, list, tuple, np.dtype)):
        return shown(thing)
    words = getattr(type(thing), "in_words", None)
    if words is not None:
        return str(words(thing))
    return f"the function {thing.__name__}" if hasattr(thing, "__name__") else "this"


def _advice(thing: object) -> str:
    """Advise which type is meant: ds.f32 for "f32", np.float32 and "float32"."""
    # np.float32 is a class with a name, "float32" is one itself.
    name = getattr(thing, "__name__", thing)
    # Comparing any other object with a dtype may run its code.
    if not isinstance(thing, (str, type, np.dtype)):
        return "use ds.f32, ds.f64, ds.i32, ..., without quotes"
    # Also programs written for Taichi: ti.f32 is a type of another package.
    for t in SCALARS.values():
        if name in (t.name, f"ds.{t.name}", f"ti.{t.name}") or thing == t.numpy:
            return f"write ds.{'u1' if t is bool_ else t.name}"
    return "use ds.f32, ds.f64, ds.i32, ..., without quotes"
