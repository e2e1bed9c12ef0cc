"""Vectors and matrices in Python: `ds.Vector([1, 2])`, `ds.Matrix([[1, 0], [0, 1]])`.

Outside of kernels their numbers live in a NumPy array and every method is the same formula that kernels
use (`linalg.py`). Inside of kernels the translator recognises the constructors and makes tensor values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import FieldError, KernelTypeError, Span
from diffsim.ir._row import Op, Operand, Traced
from diffsim.ir.types import ScalarType, TensorType, an, converted
from diffsim.lang import linalg
from diffsim.lang.absent import refuse_duals
from diffsim.lang.annotations import scalar_type
from diffsim.lang.ports import ports


class Matrix(Operand):
    """A small vector or matrix of numbers.

    Args:
        rows: the elements: a list, a list of rows, or an array with one or two axes.
        dt: scalar type of the elements; NumPy's choice if left out.

    Attributes:
        taken: what it was read from while a tape records (`runtime.read.Source`).
    """

    __slots__ = ("entries", "owner", "taken", "typed")
    __array_priority__ = 100
    entries: np.ndarray

    def __init__(self, rows: Any, dt: Any = None, *, owner: str = "") -> None:
        self.taken = source_of(rows)
        rows = rows.entries if isinstance(rows, Matrix) else rows
        if isinstance(rows, (list, tuple)):
            rows = [r.entries if isinstance(r, Matrix) else r for r in rows]
        try:
            entries = np.array(rows)
        except ValueError:
            entries = np.array(None)
        if entries.dtype.kind not in "biuf" or entries.ndim not in (1, 2) or entries.size == 0:
            raise FieldError(
                f"a vector or matrix is made of a list of numbers or of rows of equal length, not {rows!r}",
                Span.of_caller(),
                hint="write ds.Vector([x, y]) or ds.Matrix([[a, b], [c, d]])",
            )
        t = None if dt is None else scalar_type(dt)
        self.entries = entries if t is None or entries.dtype == t.numpy else converted(entries, t)
        self.owner = owner
        self.typed = dt is not None

    # ---- constructors, with Taichi's names

    @staticmethod
    def field(
        n: int,
        m: int,
        dtype: Any = None,
        shape: Any = None,
        *,
        name: str = "",
        needs_grad: bool = False,
        layout: Any = None,
        needs_dual: bool = False,
    ) -> Any:
        """A field of n x m matrices; see `ds.field` for the other arguments."""
        refuse_duals(needs_dual)
        return ports.make_field((n, m), dtype, shape, name, needs_grad, layout)

    @staticmethod
    def ndarray(n: int, m: int, dtype: Any, shape: Any, *, needs_grad: bool = False) -> Any:
        """An array of n x m matrices; see `ds.ndarray`."""
        return ports.make_ndarray((n, m), dtype, shape, needs_grad)

    @staticmethod
    def zero(dt: Any, n: int, m: int | None = None) -> Matrix:
        """All zeros: n elements, or n x m."""
        return _filled(0, dt, n, m)

    @staticmethod
    def one(dt: Any, n: int, m: int | None = None) -> Matrix:
        """All ones: n elements, or n x m."""
        return _filled(1, dt, n, m)

    @staticmethod
    def identity(dt: Any, n: int) -> Matrix:
        """The n x n identity."""
        return Matrix(np.eye(n), dt)

    @staticmethod
    def unit(n: int, i: int, dt: Any = float) -> Matrix:
        """The i-th unit vector of n elements."""
        return Matrix(np.eye(n)[i], dt)

    @staticmethod
    def diag(n: int, value: Any) -> Matrix:
        """The n x n matrix with `value` on the diagonal."""
        return marked(Matrix(np.eye(n) * value), value)

    @staticmethod
    def rows(rows: Any) -> Matrix:
        """The matrix with these vectors as rows."""
        return Matrix(rows)

    @staticmethod
    def cols(cols: Any) -> Matrix:
        """The matrix with these vectors as columns."""
        rows = Matrix(cols)
        return marked(Matrix(rows.entries.T), rows)

    # ---- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entries.shape

    @property
    def n(self) -> int:
        """Number of rows (of elements, for a vector)."""
        return self.entries.shape[0]

    @property
    def m(self) -> int:
        """Number of columns (1 for a vector)."""
        return self.entries.shape[1] if self.entries.ndim == 2 else 1

    def to_numpy(self) -> np.ndarray:
        """A copy as a NumPy array."""
        return self.entries.copy()

    def to_list(self) -> list[Any]:
        """The elements as (nested) lists of Python numbers."""
        return self.entries.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.entries, dtype=dtype)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Any:
        return iter([marked(_python(e), self) for e in self.entries])

    def __getitem__(self, index: Any) -> Any:
        try:
            return marked(_python(self.entries[index]), self)
        except IndexError:
            raise FieldError(
                f"index {index} is outside of {self}, which has shape {self.shape}",
                Span.of_caller(),
                hint="indices start at 0",
            ) from None

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.owner:
            raise FieldError(
                f"this vector is a copy of an element of {self.owner}; changing it would not change "
                "the field",
                Span.of_caller(),
                hint=f"assign the whole element: {self.owner}[...] = [...]",
            )
        try:
            self.entries[index] = value.entries if isinstance(value, Matrix) else value
        except (IndexError, TypeError, ValueError):
            raise FieldError(
                f"element {index} of {self} can not be set to {value!r}",
                Span.of_caller(),
                hint=f"its shape is {self.shape}, and indices start at 0",
            ) from None
        marked(self, self, value)

    def fill(self, number: Any) -> None:
        """Set all elements."""
        self[...] = number

    def __repr__(self) -> str:
        return repr(self.entries.tolist())

    # ---- arithmetic

    def apply(self, op: Op, args: Sequence[Any]) -> Any:
        """An op of the table, element by element: `ds.sin(v)`."""
        for a in args:
            if isinstance(a, Traced) and not isinstance(a, float):
                return a.apply(op, args)
        plain = [_plain(a) for a in args]
        same_shape(op.sign, plain)
        made = wrap(op(*plain))
        return made if op.name == "stop_grad" else marked(made, *args)

    def converted(self, to: ScalarType) -> Matrix:
        """Its numbers in another type."""
        return Matrix(self, to)

    def _apply(self, other: Any, function: Any) -> Any:
        origins = (self, other)
        if isinstance(other, Matrix):
            other = other.entries
        elif isinstance(other, (list, tuple, np.ndarray)):
            other = np.asarray(other)
        elif not isinstance(other, (int, float, np.generic)):
            return NotImplemented
        if np.ndim(other) and np.shape(other) != self.entries.shape:
            raise KernelTypeError(
                f"shapes do not fit together: {self.entries.shape} and {np.shape(other)}",
                Span.of_caller(),
                hint="+, -, *, / work element by element; matrices are multiplied with @",
            )
        return marked(wrap(function(self.entries, other)), *origins)

    def __add__(self, o: Any) -> Any:
        return self._apply(o, np.add)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Any:
        return self._apply(o, np.subtract)

    def __rsub__(self, o: Any) -> Any:
        return self._apply(o, lambda a, b: b - a)

    def __mul__(self, o: Any) -> Any:
        return self._apply(o, np.multiply)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Any:
        return self._apply(o, np.divide)

    def __rtruediv__(self, o: Any) -> Any:
        return self._apply(o, lambda a, b: b / a)

    def __floordiv__(self, o: Any) -> Any:
        return self._apply(o, np.floor_divide)

    def __mod__(self, o: Any) -> Any:
        return self._apply(o, np.mod)

    def __pow__(self, o: Any) -> Any:
        return self._apply(o, np.power)

    def __neg__(self) -> Matrix:
        return marked(Matrix(-self.entries), self)

    def __abs__(self) -> Matrix:
        return marked(Matrix(np.abs(self.entries)), self)

    def __matmul__(self, o: Any) -> Any:
        axes = self.entries.ndim + np.ndim(o)
        if np.ndim(o) == 0 or axes == 2 or self.shape[-1] != np.shape(o)[0]:
            raise KernelTypeError(
                f"shapes do not fit together: {self.shape} @ {np.shape(o)}",
                Span.of_caller(),
                hint="as many rows are needed on the right as there are columns on the left",
            )
        return in_python("matmul", linalg.multiply, self, o)

    def __eq__(self, o: object) -> Any:
        return self._apply(o, np.equal)

    def __ne__(self, o: object) -> Any:
        return self._apply(o, np.not_equal)

    def __lt__(self, o: Any) -> Any:
        return self._apply(o, np.less)

    def __gt__(self, o: Any) -> Any:
        return self._apply(o, np.greater)

    def __le__(self, o: Any) -> Any:
        return self._apply(o, np.less_equal)

    def __ge__(self, o: Any) -> Any:
        return self._apply(o, np.greater_equal)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise KernelTypeError(
            "a vector or matrix is neither true nor false",
            Span.of_caller(),
            hint="compare elements, or a norm; all of them: (a == b).all()",
        )

    def __getattr__(self, name: str) -> Any:
        if name in linalg.METHODS:
            return lambda *args: in_python(name, linalg.METHODS[name], self, *args)
        chosen = linalg.several(name)
        if chosen is not None and self.entries.ndim == 1 and max(chosen) < len(self.entries):
            return marked(Matrix(self.entries[chosen]), self)
        raise AttributeError(f"{self} has no attribute {name!r}", name=name, obj=self)

    def __copy__(self) -> Matrix:
        made = Matrix(self.entries)
        made.typed, made.taken = self.typed, self.taken
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Matrix:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return _again, (self.entries, self.typed)


def _again(entries: np.ndarray, typed: bool) -> Matrix:
    """A vector or matrix that was pickled."""
    made = Matrix(entries)
    made.typed = typed
    return made


def _component(k: int) -> property:
    def get(self: Matrix) -> Any:
        if k >= len(self.entries):
            raise AttributeError("not so many elements")  # __getattr__ says it in full
        return marked(_python(self.entries[k]), self)

    def put(self: Matrix, value: Any) -> None:
        self[k] = value

    return property(get, put, doc=f"Element {k}.")


for _name, _k in linalg.COMPONENTS.items():
    setattr(Matrix, _name, _component(_k))


def same_shape(name: str, args: Sequence[Any]) -> None:
    """Refuse vectors and matrices of different shapes, which NumPy may combine."""
    shapes = {np.shape(a): None for a in args if isinstance(a, np.ndarray) and a.ndim}
    if len(shapes) > 1:
        raise KernelTypeError(
            f"{name} can not combine the shapes {' and '.join(map(str, shapes))}",
            Span.of_caller(),
            hint="it works element by element: all need the same shape",
        )


def in_python(name: str, function: Any, *args: Any) -> Any:
    """A formula of numbers, vectors and matrices, in NumPy; the result remembers what they were read from.

    Raises:
        KernelTypeError: they do not fit together.
    """
    try:
        return marked(wrap(function(*map(_plain, args))), *args)
    except (ValueError, TypeError) as problem:
        about = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        raise KernelTypeError(str(problem), Span.of_caller(), f"{name}: {about}") from None


def _plain(a: Any) -> Any:
    """What NumPy computes with; a number that a tape follows stays one."""
    if isinstance(a, (list, tuple)):
        a = Matrix(a)
    if isinstance(a, Traced) and isinstance(a, float):
        return a.value
    return a.entries if isinstance(a, Matrix) else a


def _python(e: Any) -> Any:
    return e.item() if isinstance(e, np.generic) else wrap(e)


def wrap(x: Any) -> Any:
    """What NumPy computed as a number, vector or matrix of ours."""
    if isinstance(x, np.ndarray):
        return Matrix(x) if x.ndim else x.item()
    return x.item() if isinstance(x, np.generic) else x


_BARE = frozenset((float, int, bool, str, np.ndarray))


def source_of(thing: Any) -> Any:
    """What a number, a vector, or one in a list was read from on the tape that records now, or None."""
    if thing.__class__ in _BARE:
        return None
    if isinstance(thing, (float, Matrix)):
        found = getattr(thing, "taken", None)
        return found if found is not None and found.live else None
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        for t in thing:
            if t.__class__ not in _BARE and (found := source_of(t)) is not None:
                return found
    return None


def marked(made: Any, *origins: Any) -> Any:
    """The result, which remembers what the operands were read from."""
    for origin in origins:
        if origin.__class__ not in _BARE and (source := source_of(origin)) is not None:
            return source.mark(made)
    return made


def _filled(number: int, dt: Any, n: int, m: int | None) -> Matrix:
    return Matrix(np.full((n,) if m is None else (n, m), number), dt)


class Vector:
    """`ds.Vector([x, y, z])` makes a vector (a `ds.Matrix` of one axis)."""

    def __new__(cls, elements: Any, dt: Any = None) -> Matrix:  # type: ignore[misc]
        made = Matrix(elements, dt)
        if made.entries.ndim != 1:
            raise FieldError(
                "a vector has one axis", Span.of_caller(), hint="for rows and columns use ds.Matrix"
            )
        return made

    @staticmethod
    def field(
        n: int,
        dtype: Any = None,
        shape: Any = None,
        *,
        name: str = "",
        needs_grad: bool = False,
        layout: Any = None,
        needs_dual: bool = False,
    ) -> Any:
        """A field of vectors of n elements; see `ds.field` for the other arguments."""
        refuse_duals(needs_dual)
        return ports.make_field((n,), dtype, shape, name, needs_grad, layout)

    @staticmethod
    def ndarray(n: int, dtype: Any, shape: Any, *, needs_grad: bool = False) -> Any:
        """An array of vectors of n elements; see `ds.ndarray`."""
        return ports.make_ndarray((n,), dtype, shape, needs_grad)

    @staticmethod
    def zero(dt: Any, n: int) -> Matrix:
        """n zeros."""
        return _filled(0, dt, n, None)

    @staticmethod
    def one(dt: Any, n: int) -> Matrix:
        """n ones."""
        return _filled(1, dt, n, None)

    @staticmethod
    def unit(n: int, i: int, dt: Any = float) -> Matrix:
        """The i-th unit vector of n elements."""
        return Matrix.unit(n, i, dt)


class _Maker:
    """What calling `ds.types.vector(3, ds.f32)` and its like outside of kernels comes to."""

    @staticmethod
    def make(t: TensorType, elements: tuple[Any, ...]) -> Matrix:
        """`vec3(1, 2, 3)`, `vec3(0)`, `vec3(v2, 1)`, `mat2([1, 2], [3, 4])`."""
        try:
            parts = [np.ravel(e.entries if isinstance(e, Matrix) else e) for e in elements]
            flat = np.concatenate(parts) if parts else np.zeros(0)
        except ValueError:  # rows of different lengths
            flat = np.zeros(0)
        if len(flat) == 1:
            flat = np.repeat(flat, t.size)
        if len(flat) != t.size or flat.dtype.kind not in "biuf":
            raise KernelTypeError(
                f"{an(t)} can not be made of {', '.join(map(repr, elements)) or 'nothing'}",
                Span.of_caller(),
                hint=f"give {t.size} numbers, vectors of so many together, or one number for all",
            )
        made = Matrix(flat.reshape(t.shape), t.scalar)
        made.taken = source_of(elements)
        return made

    @staticmethod
    def field(
        t: TensorType,
        shape: Any,
        *,
        name: str = "",
        needs_grad: bool = False,
        layout: Any = None,
        needs_dual: bool = False,
    ) -> Any:
        refuse_duals(needs_dual)
        return ports.make_field(t.shape, t.scalar, shape, name, needs_grad, layout)

    @staticmethod
    def ndarray(t: TensorType, shape: Any, needs_grad: bool) -> Any:
        return ports.make_ndarray(t.shape, t.scalar, shape, needs_grad)


TensorType.maker = _Maker
