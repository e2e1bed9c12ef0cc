"""What annotations of kernel arguments stand for, and how types given by users are read."""

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
