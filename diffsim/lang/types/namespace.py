"""`ds.types`: the names by which users reach types."""

from __future__ import annotations

from typing import NoReturn

from diffsim.errors import FieldError, Span, shown
from diffsim.ir import types as ir_types
from diffsim.ir.types import TensorType
from diffsim.lang.host.annotations import (
    ArrayAnnotation,
    DefaultTensor,
    matrix_type,
    scalar_type,
    template,
)
from diffsim.lang.host.signatures import checked_methods
from diffsim.lang.host.unsupported import absent
from diffsim.lang.types.structs import StructType, struct_type
from diffsim.tracebacks import entries


class _Namespace(type):
    def __getattr__(cls, name: str) -> NoReturn:
        raise absent("diffsim.types", name, [n for n in vars(cls) if not n.startswith("_")])


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
        *,
        needs_grad: bool | None = None,
        boundary: str = "unsafe",
    ) -> ArrayAnnotation:
        """Annotate a NumPy array or `ds.ndarray`, passed without a copy.

        Args:
            dtype: element type (a scalar type, or `ds.types.vector/matrix`); any if left out.
            ndim: number of axes (without those of the element); any if left out.
            element_dim: 0 for numbers, 1 for vectors, 2 for matrices; any if left out.
            needs_grad: changes nothing, since arrays know whether they have a gradient.
            boundary: "unsafe": indices are inside the array, which `debug=True` checks.
        """
        # A default type is resolved when the kernel is compiled, not here.
        if dtype is not None and not isinstance(dtype, (TensorType, DefaultTensor)):
            dtype = scalar_type(dtype)
        # Checked here, as the annotation is evaluated at the user's own line.
        if ndim is not None and (not isinstance(ndim, int) or ndim < 0):
            raise FieldError(
                f"ndim is a number of axes, not {shown(ndim)}",
                Span.of_caller(),
                hint="write ndim=1, 2, ...",
            )
        if element_dim not in (None, 0, 1, 2) or isinstance(element_dim, bool):
            raise FieldError(
                f"element_dim is 0, 1 or 2, not {shown(element_dim)}",
                Span.of_caller(),
                hint="0 for numbers, 1 for vectors, 2 for matrices",
            )
        if boundary != "unsafe":
            raise FieldError(
                f"boundary={shown(boundary)} is not there: indices are not clamped",
                Span.of_caller(),
                hint="clamp them in the kernel, a[ds.max(0, ds.min(i, a.shape[0] - 1))]; "
                "ds.init(debug=True) reports those outside",
            )
        return ArrayAnnotation(dtype, ndim, element_dim)

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
            members: the type of each member: scalar, vector, matrix or struct.
        """
        return struct_type("struct", members)
