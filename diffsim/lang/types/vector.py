"""`ds.Vector`, and what calling a type of vectors or matrices makes in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, KernelTypeError, Span, shown
from diffsim.ir.types import ScalarType, Sizes, TensorType, an
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.signatures import checked, checked_methods
from diffsim.lang.types.matrix import UNBOUND, Matrix, filled


@checked_methods("__new__ field ndarray zero one unit")
class Vector:
    """`ds.Vector([x, y, z])` makes a vector (a `ds.Matrix` of one axis).

    Example:
        v = ds.Vector([3.0, 4.0])
        print(v.norm(), v.x, v + 1.0)  # prints: 5.0 3.0 [4.0, 5.0]
    """

    # There is one class for vectors and matrices; `ds.Vector` is only a way to make them.
    def __new__(cls, arr: object, dt: object = None) -> Matrix:  # type: ignore[misc]
        made = Matrix(arr, dt)
        if made.entries.ndim != 1:
            raise ArgumentError(
                "a vector has one axis", Span.of_caller(), hint="for rows and columns use ds.Matrix"
            )
        return made

    @staticmethod
    def field(
        n: int,
        dtype: object = None,
        shape: object = None,
        order: object = None,
        name: str = "",
        offset: object = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: object = None,
    ) -> Any:
        """Make a field of vectors of n elements; see `ds.field` for the other arguments.

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            x[0] = [1.0, 2.0]
            print(x[0], x.to_numpy().shape)  # prints: [1.0, 2.0] (3, 2)
        """
        return runtime().make_field(
            (n,), dtype, shape, name, needs_grad, layout, needs_dual, offset, order
        )

    @staticmethod
    def ndarray(
        n: int,
        dtype: object,
        shape: object,
        *,
        needs_grad: bool = False,
        needs_dual: bool = False,
        offset: object = None,
        order: object = None,
    ) -> Any:
        """Make an array of vectors of n elements; see `ds.ndarray`.

        Example:
            a = ds.Vector.ndarray(2, ds.f32, shape=3)
            print(a[0], a.to_numpy().shape)  # prints: [0.0, 0.0] (3, 2)
        """
        return runtime().make_ndarray((n,), dtype, shape, needs_grad, needs_dual)

    @staticmethod
    def zero(dt: object, n: int, m: int | None = None) -> Matrix:
        """Return n zeros, or n x m.

        Example:
            print(ds.Vector.zero(ds.f32, 2))  # prints: [0.0, 0.0]
        """
        return filled(0, dt, n, m)

    @staticmethod
    def one(dt: object, n: int, m: int | None = None) -> Matrix:
        """Return n ones, or n x m.

        Example:
            print(ds.Vector.one(ds.i32, 3))  # prints: [1, 1, 1]
        """
        return filled(1, dt, n, m)

    @staticmethod
    def unit(n: int, i: int, dt: object = int) -> Matrix:
        """Return the i-th unit vector of n elements, of integers where `dt` does not say.

        Example:
            print(ds.Vector.unit(3, 1, ds.f32))  # prints: [0.0, 1.0, 0.0]
        """
        return Matrix.unit(n, i, dt)

    # Programs of Taichi, whose vectors are a class below that of matrices, find these here too.
    rows, cols = staticmethod(Matrix.rows), staticmethod(Matrix.cols)
    identity, diag = staticmethod(Matrix.identity), staticmethod(Matrix.diag)
    fill, cast, to_list, to_numpy = Matrix.fill, Matrix.cast, Matrix.to_list, Matrix.to_numpy


for _function, _name in UNBOUND.items():  # `ds.Vector.normalized(v)`
    setattr(Vector, _name, staticmethod(_function))


class _Maker:
    """The factory that `TensorType` delegates to: the IR's types know neither matrices nor fields."""

    @staticmethod
    def make(t: TensorType, elements: tuple[Any, ...]) -> Matrix:
        """Make `vec3(1, 2, 3)`, `vec3(0)`, `vec3(v2, 1)`, `mat2([1, 2], [3, 4])`."""
        try:
            # Row-major order, in which the elements of kernels' tensors are listed too.
            parts = [np.ravel(e.entries if isinstance(e, Matrix) else e) for e in elements]
            flat = np.concatenate(parts) if parts else np.zeros(0)
        except (ValueError, TypeError, RecursionError):  # rows of different lengths
            flat = np.zeros(0)
        if len(flat) == 1:
            # As in GLSL, one number fills all elements.
            flat = np.repeat(flat, t.size)
        # Numbers of any kind, but no complex numbers, texts or objects.
        if len(flat) != t.size or flat.dtype.kind not in "biuf":
            raise KernelTypeError(
                f"{an(t)} cannot be made of {', '.join(map(shown, elements)) or 'nothing'}",
                Span.of_caller(),
                hint=f"give {t.size} numbers, vectors of so many together, or one number for all",
            )
        made = Matrix(flat.reshape(t.shape), t.scalar)
        # The elements were copied into a new array, so the origin has to be found among the arguments.
        made.provenance = source_of(elements)
        return made

    @staticmethod
    @checked
    def field(
        self: TensorType,
        shape: object,
        *,
        name: str = "",
        needs_grad: bool = False,
        layout: object = None,
        needs_dual: bool = False,
        offset: object = None,
        order: object = None,
    ) -> Any:
        return runtime().make_field(
            self.shape, self.scalar, shape, name, needs_grad, layout, needs_dual, offset, order
        )

    @staticmethod
    def ndarray(t: TensorType, shape: object, needs_grad: bool, needs_dual: bool) -> Any:
        return runtime().make_ndarray(t.shape, t.scalar, shape, needs_grad, needs_dual)


# The type system is below the language and cannot import it: its types call this when users call them.
TensorType.maker = _Maker
checked_methods("__call__")(ScalarType)
checked_methods("__call__ field ndarray")(TensorType)
checked_methods("get_shape")(Sizes)
