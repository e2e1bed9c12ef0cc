"""Annotations and types that users make: the functions of `ds.types`."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from diffsim.errors import ArgumentError, OptionError, Span, shown
from diffsim.ir.types import TensorType, f32
from diffsim.lang.host.annotations import (
    ArrayAnnotation,
    DefaultTensor,
    UsableBare,
    matrix_type,
    scalar_type,
)
from diffsim.lang.host.signatures import checked, checked_methods, is_one_of, need_bool, need_whole
from diffsim.lang.types.structs import StructType, struct_type
from diffsim.public_names import PublicNames


def _element_shape(given: object, dtype: object, element_dim: int | None) -> tuple[int, ...] | None:
    """Return the shape of an array's elements as an annotation gives it; None: any."""
    if given is None:
        return None
    shape = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(shape) > 2 or not all(n.__class__ is int and 1 <= n < 2**16 for n in shape):
        raise ArgumentError(
            f"element_shape is the shape of a vector or matrix, not {shown(given)}",
            Span.of_caller(),
            hint="write (3,) for vectors of 3, (2, 2) for matrices, () for numbers",
        )
    of_type = dtype.now if isinstance(dtype, DefaultTensor) else dtype
    wrong_type = isinstance(of_type, TensorType) and of_type.shape != shape
    if wrong_type or element_dim not in (None, len(shape)):
        other = f"dtype={of_type}" if wrong_type else f"element_dim={element_dim}"
        raise ArgumentError(
            f"element_shape={shown(given)} and {other} mean different elements",
            Span.of_caller(),
            hint="give one of them",
        )
    return shape


@checked_methods("__new__")
class ndarray(UsableBare, metaclass=PublicNames):  # noqa: N801 - its name in programs
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

    _public = ""

    def __new__(  # type: ignore[misc]
        cls,
        dtype: object = None,
        ndim: int | None = None,
        element_dim: int | None = None,
        element_shape: object = None,
        field_dim: None = None,
        needs_grad: bool | None = None,
        boundary: str = "unsafe",
    ) -> ArrayAnnotation:
        if field_dim is not None:
            raise ArgumentError(
                "field_dim is an earlier name of ndim", Span.of_caller(), hint="write ndim=1"
            )
        # A default type is resolved when the kernel is compiled, not here.
        if dtype is not None and not isinstance(dtype, (TensorType, DefaultTensor)):
            dtype = scalar_type(dtype)
        # Checked here, as the annotation is evaluated at the user's own line.
        if ndim is not None and (not isinstance(ndim, int) or ndim < 0):
            raise ArgumentError(
                f"ndim is a number of axes, not {shown(ndim)}",
                Span.of_caller(),
                hint="write ndim=1, 2, ...",
            )
        need_whole(element_dim, "element_dim")
        if element_dim not in (None, 0, 1, 2):
            raise ArgumentError(
                f"element_dim is 0, 1 or 2, not {shown(element_dim)}",
                Span.of_caller(),
                hint="0 for numbers, 1 for vectors, 2 for matrices",
            )
        if needs_grad is not None:
            need_bool(needs_grad, "needs_grad")
        if not is_one_of(boundary, "unsafe", "clamp"):
            raise OptionError(
                f'boundary is "unsafe" or "clamp", not {shown(boundary)}',
                Span.of_caller(),
                hint='write boundary="clamp" for the nearest index inside the array; '
                "ds.init(debug=True) reports indices outside",
            )
        shape = _element_shape(element_shape, dtype, element_dim)
        return ArrayAnnotation(
            dtype, ndim, element_dim, shape, needs_grad=bool(needs_grad), clamp=boundary == "clamp"
        )

    def __class_getitem__(cls, key: Any) -> ArrayAnnotation:
        return _subscripted(cls, key)


@checked_methods("__new__")
class vector(metaclass=PublicNames):  # noqa: N801
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

    _public = ""

    def __new__(cls, n: int | None = None, dtype: object = None) -> Any:
        return _of_size((n,), dtype)

    def __class_getitem__(cls, key: Any) -> TensorType:
        return _subscripted(cls, key)


@checked_methods("__new__")
class matrix(metaclass=PublicNames):  # noqa: N801
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

    _public = ""

    def __new__(cls, n: int | None = None, m: int | None = None, dtype: object = None) -> Any:
        return _of_size((n, m), dtype)

    def __class_getitem__(cls, key: Any) -> TensorType:
        return _subscripted(cls, key)


def _of_size(shape: tuple[int | None, ...], dtype: object) -> TensorType | DefaultTensor:
    """Make a type of vectors or matrices; without `dtype` it follows the default float."""
    name = "vector" if len(shape) == 1 else "matrix"
    if any(n is None for n in shape):
        raise ArgumentError(
            f"ds.types.{name} needs the sizes of the type",
            Span.of_caller(),
            hint="write ds.types.vector(3, ds.f32) or ds.types.matrix(2, 3, ds.f32); a parameter of a "
            "@ds.func for vectors of any size has no annotation",
        )
    sizes = tuple(n for n in shape if n is not None)
    made = matrix_type(sizes, f32 if dtype is None else dtype)  # which checks the sizes
    if dtype is not None:
        return made
    return DefaultTensor(repr(made).split()[0], "f", made.shape)


def _subscripted(make: Callable[..., Any], key: Any) -> Any:
    """Make what a call with these arguments makes; numbers may be written Literal[3]."""
    arguments: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    literal: Any = typing.Literal
    plain = [typing.get_args(a)[0] if typing.get_origin(a) is literal else a for a in arguments]
    return make(*plain)


@checked
def struct(**members: object) -> StructType:
    """Return a struct type: `ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)`.

    Args:
        members: the type of each member: scalar, vector, matrix or struct; `__struct_methods` is a
            dictionary of functions that are its methods.

    Example:
        ball = ds.types.struct(pos=ds.types.vector(2, ds.f32), radius=ds.f32)
        print(ball(radius=2.0).radius)  # prints: 2.0
    """
    # Under this name as in Taichi: every other one may be that of a member.
    methods = members.pop("__struct_methods", None)
    return struct_type("struct", members, methods)  # type: ignore[arg-type]
