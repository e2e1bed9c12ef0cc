"""`ds.types`: the names by which users reach types."""

from __future__ import annotations

from typing import NoReturn

from diffsim.errors import ArgumentError, OptionError, Span, shown
from diffsim.ir import types as ir_types
from diffsim.ir.types import TensorType
from diffsim.lang.host.annotations import (
    ArrayAnnotation,
    DefaultTensor,
    matrix_type,
    scalar_type,
    template,
)
from diffsim.lang.host.signatures import checked_methods, is_one_of, need_bool
from diffsim.lang.host.unsupported import absent
from diffsim.lang.types.structs import StructType, struct_type
from diffsim.tracebacks import entries


class _Namespace(type):
    def __getattr__(cls, name: str) -> NoReturn:
        raise absent("diffsim.types", name, [n for n in vars(cls) if not n.startswith("_")])


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


@entries("struct")
@checked_methods("ndarray vector matrix")
class types(metaclass=_Namespace):  # noqa: N801 - a namespace: ds.types.vector(...)
    """Types, and annotations for arguments; the scalar types are also names of diffsim itself."""

    f32 = float32 = ir_types.f32
    f64 = float64 = ir_types.f64
    i8 = int8 = ir_types.i8
    i16 = int16 = ir_types.i16
    i32 = int32 = ir_types.i32
    i64 = int64 = ir_types.i64
    u1 = ir_types.bool_
    u8 = uint8 = ir_types.u8
    u16 = uint16 = ir_types.u16
    u32 = uint32 = ir_types.u32
    u64 = uint64 = ir_types.u64
    template = staticmethod(template)
    sparse_matrix_builder = staticmethod(template)

    @staticmethod
    def ndarray(
        dtype: object = None,
        ndim: int | None = None,
        element_dim: int | None = None,
        element_shape: object = None,
        *,
        needs_grad: bool | None = None,
        boundary: str = "unsafe",
    ) -> ArrayAnnotation:
        """Annotate a NumPy array or `ds.ndarray`, passed without a copy.

        An array of NumPy has no vectors: its last axes are those of an element.

        Args:
            dtype: element type (a scalar type, or `ds.types.vector/matrix`); any if left out.
            ndim: number of axes (without those of the element); any if left out.
            element_dim: 0 for numbers, 1 for vectors, 2 for matrices; any if left out.
            element_shape: (n,) for vectors, (n, m) for matrices; any if left out.
            needs_grad: True refuses arrays without a gradient.
            boundary: "unsafe": indices are inside the array, which `debug=True` checks; "clamp": an index
                outside it means the nearest one inside.
        """
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
        if element_dim not in (None, 0, 1, 2) or isinstance(element_dim, bool):
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

    @staticmethod
    def vector(n: int, dtype: object) -> TensorType:
        """Return the type of a vector of n scalars."""
        return matrix_type((n,), dtype)

    @staticmethod
    def matrix(n: int, m: int, dtype: object) -> TensorType:
        """Return the type of a matrix of n rows and m columns."""
        return matrix_type((n, m), dtype)

    @staticmethod
    def struct(**members: object) -> StructType:
        """Return a struct type: `ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)`.

        Args:
            members: the type of each member: scalar, vector, matrix or struct; `__struct_methods` is a
                dictionary of functions that are its methods.
        """
        # Under this name as in Taichi: every other one may be that of a member.
        methods = members.pop("__struct_methods", None)
        return struct_type("struct", members, methods)  # type: ignore[arg-type]
