"""Annotations of kernel arguments: `ds.template()`, `ds.types.ndarray()`, `ds.types.vector(3, ds.f32)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffsim.errors import FieldError, Span
from diffsim.ir.types import ScalarType, TensorType, bool_, tensor
from diffsim.lang.ports import ports


@dataclass(frozen=True, slots=True)
class Template:
    """An argument that the kernel is compiled for: a field, a number, a function, any object."""


@dataclass(frozen=True, slots=True)
class ArrayAnnotation:
    """A NumPy array or `ds.ndarray` of any size; `dtype` and `ndim` are checked where given."""

    dtype: ScalarType | TensorType | None = None
    ndim: int | None = None


def template() -> Template:
    """Annotation of an argument that the kernel is compiled for (a field, a constant, a function)."""
    return Template()


class types:  # noqa: N801 - a namespace: ds.types.vector(...)
    """Annotations for arguments that are not scalars."""

    @staticmethod
    def ndarray(dtype: Any = None, ndim: int | None = None) -> ArrayAnnotation:
        """A NumPy array or `ds.ndarray`, passed without a copy.

        Args:
            dtype: element type (a scalar type, or `ds.types.vector/matrix`); any if left out.
            ndim: number of axes (without those of the element); any if left out.
        """
        if dtype is not None and not isinstance(dtype, TensorType):
            dtype = scalar_type(dtype)
        if ndim is not None and (not isinstance(ndim, int) or ndim < 0):
            raise FieldError(
                f"ndim is a number of axes, not {ndim!r}",
                Span.of_caller(),
                hint="write ndim=1, 2, ...",
            )
        return ArrayAnnotation(dtype, ndim)

    @staticmethod
    def vector(n: int, dtype: Any) -> TensorType:
        """The type of a vector of n scalars."""
        return matrix_type((n,), dtype)

    @staticmethod
    def matrix(n: int, m: int, dtype: Any) -> TensorType:
        """The type of a matrix of n rows and m columns."""
        return matrix_type((n, m), dtype)


def matrix_type(shape: tuple[int, ...], dtype: Any) -> TensorType:
    """A tensor type, its shape and dtype checked."""
    if any(not isinstance(n, int) or n < 1 for n in shape):
        raise FieldError(
            f"a vector or matrix has at least one element along each axis, not {shape}",
            Span.of_caller(),
            hint="write ds.types.vector(3, ds.f32) or ds.types.matrix(2, 3, ds.f32)",
        )
    t = tensor(scalar_type(dtype), shape)
    assert isinstance(t, TensorType)
    return t


def scalar_type(dtype: Any) -> ScalarType:
    """The scalar type meant by `ds.f32`, `float` (default_fp), `int` (default_ip) or `bool`."""
    if isinstance(dtype, ScalarType):
        return dtype
    if dtype is float:
        return ports.default_fp()
    if dtype is int:
        return ports.default_ip()
    if dtype is bool:
        return bool_
    shown = f"the class {dtype.__name__}" if isinstance(dtype, type) else repr(dtype)
    raise FieldError(
        f"{shown} is not a type of numbers",
        Span.of_caller(),
        hint="use ds.f32, ds.f64, ds.i32, ..., without quotes",
    )
