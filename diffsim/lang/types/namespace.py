"""`ds.types`: the names by which users reach types."""

from __future__ import annotations

from typing import Any

from diffsim.errors import FieldError, Span, shown
from diffsim.ir.types import TensorType
from diffsim.lang.host.annotations import ArrayAnnotation, DefaultTensor, matrix_type, scalar_type
from diffsim.lang.host.signatures import checked_methods
from diffsim.lang.types.structs import StructType, struct_type


@checked_methods("ndarray vector matrix")
class types:  # noqa: N801 - a namespace: ds.types.vector(...)
    """Types that are not scalars, and annotations for arguments."""

    @staticmethod
    def ndarray(dtype: Any = None, ndim: int | None = None) -> ArrayAnnotation:
        """Annotate a NumPy array or `ds.ndarray`, passed without a copy.

        Args:
            dtype: element type (a scalar type, or `ds.types.vector/matrix`); any if left out.
            ndim: number of axes (without those of the element); any if left out.
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
        return ArrayAnnotation(dtype, ndim)

    @staticmethod
    def vector(n: int, dtype: Any) -> TensorType:
        """Return the type of a vector of n scalars."""
        return matrix_type((n,), dtype)

    @staticmethod
    def matrix(n: int, m: int, dtype: Any) -> TensorType:
        """Return the type of a matrix of n rows and m columns."""
        return matrix_type((n, m), dtype)

    @staticmethod
    def struct(**members: Any) -> StructType:
        """Return a struct type: `ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)`.

        Args:
            members: the type of each member: scalar, vector, matrix or struct.
        """
        return struct_type("struct", members)
