"""Fields: memory that kernels and Python share.

A field owns a NumPy buffer, freed with it. Elements are scalars, vectors or matrices; `x[i]` reads or
writes one from Python, `to_numpy`/`from_numpy` all of them. A gradient is a field too (`x.grad`), and
`ds.ndarray` is the same thing passed to kernels as an argument.
"""

from __future__ import annotations

import operator
import sys
import weakref
from typing import Any

import numpy as np

from diffsim.errors import FieldError, MissingGradientError, Span
from diffsim.ir._row import Traced
from diffsim.ir.nodes import Mem
from diffsim.ir.types import ScalarType, TensorType, Type, an, size_of, tensor
from diffsim.lang.annotations import scalar_type
from diffsim.lang.matrix import Matrix
from diffsim.lang.ports import ports
from diffsim.lang.scope import describe
from diffsim.runtime.context import session
from diffsim.runtime.read import Read
from diffsim.runtime.versions import Versions


class Layout:
    """How the components of a vector field lie in memory."""

    AOS = "aos"
    """All components of an element side by side (default)."""
    SOA = "soa"
    """One block for each component."""


class Field:
    """A field; made by `ds.field`, `ds.Vector.field` and `ds.Matrix.field`.

    Attributes:
        shape: number of elements along each axis; () for a single one.
        dtype: scalar type of its elements (of their components).
        grad: the field of its gradient, or None.
    """

    def __init__(
        self,
        dtype: ScalarType,
        element: tuple[int, ...] = (),
        *,
        name: str = "",
        soa: bool = False,
        kind: str = "field",
        is_grad: bool = False,
    ) -> None:
        self.dtype = dtype
        self.element = element
        self.soa = soa and bool(element)
        self.kind = kind
        self.is_grad = is_grad
        self.grad: Field | None = None
        self.versions = Versions()
        self.given_name = name
        self._shape: tuple[int, ...] | None = None
        self._order: tuple[int, ...] = ()

    # ---- storage

    def place(self, shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> None:
        """Allocate memory, all zeros. `order`: the axes from slowest to fastest (None: as in C)."""
        if self._shape is not None:
            raise FieldError(
                f"{self.name} already has its place", Span.of_caller(), hint="place each field once"
            )
        self._shape = shape
        self._order = tuple(range(len(shape))) if order is None else order
        t: Type = tensor(self.dtype, self.element)
        n = size_of(t)
        count = 1
        for d in shape:
            count *= d
        try:
            raw = np.zeros(count * n * self.dtype.bytes + 64, np.uint8)
        except (MemoryError, ValueError):
            gib = count * n * self.dtype.bytes / 2**30
            raise FieldError(
                f"there is no memory for {self.name} of shape {shape}: it takes {gib:.3g} GiB",
                Span.of_caller(),
                hint="use fewer elements, or ds.f32 in place of ds.f64",
            ) from None
        start = -raw.ctypes.data % 64
        self._raw = raw
        flat = raw[start : start + count * n * self.dtype.bytes].view(self.dtype.numpy)
        self._flat = memoryview(flat)
        sizes = [shape[a] for a in self._order]
        permuted = [self._order.index(a) for a in range(len(shape))]
        soa = self.soa
        dense = np.moveaxis(flat.reshape((n, *sizes)), 0, -1) if soa else flat.reshape((*sizes, n))
        axes = [*permuted, len(shape)]
        self._array = dense.transpose(axes)
        strides = tuple(s // self.dtype.bytes for s in self._array.strides)
        self._strides = strides[:-1]
        self._mem = Mem(
            self.name,
            t,
            len(shape),
            shape,
            "field",
            strides=self._strides,
            component_stride=strides[-1] if n > 1 else 1,
            handle=weakref.ref(self),
            is_grad=self.is_grad,
        )
        self._step = self._strides[0] if len(shape) == 1 else 0
        if self.grad is not None:
            self.grad.place(shape, order)
            self._mem.grad = self.grad._mem
            session.with_grad.add(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("_mem", "_flat", "_array", "_strides", "_raw", "_step") and not name.startswith(
            "__"
        ):
            raise FieldError(
                f"{self.name} has no place in memory yet",
                Span.of_caller(),
                hint="place it: ds.root.dense(ds.i, n).place(x), or give ds.field a shape",
            )
        raise AttributeError(f"a field has no attribute {name!r}", name=name, obj=self)

    @property
    def name(self) -> str:
        """The name given, or the variable it was first seen under."""
        return self.given_name or ("grad" if self.is_grad else "a field")

    def in_words(self) -> str:
        """The field in messages: "the field x"."""
        return f"the field {self.name}" if self.given_name else self.name

    def __iter__(self) -> Any:
        raise FieldError(
            f"{self.in_words()} can not be looped over in Python",
            Span.of_caller(),
            hint="loop over to_numpy(), or in a kernel: for i in x",
        )

    def call_it(self, name: str) -> None:
        """Adopt a name for messages and printed IR, unless it has one."""
        if not self.given_name:
            self.given_name = name
            self._mem.name = name
            if self.grad is not None and not self.grad.given_name:
                self.grad.call_it(f"{name}.grad")

    @property
    def shape(self) -> tuple[int, ...]:
        if self._shape is None:
            self._mem  # noqa: B018 - raises: it has no place yet
            return ()
        return self._shape

    @property
    def n(self) -> int:
        """Rows of an element (1 for scalars)."""
        return self.element[0] if self.element else 1

    @property
    def m(self) -> int:
        """Columns of an element (1 for scalars and vectors)."""
        return self.element[1] if len(self.element) == 2 else 1

    @property
    def address(self) -> int:
        """Address of the first scalar."""
        return int(self._array.ctypes.data)

    @property
    def placed(self) -> bool:
        """Whether it has its place in memory."""
        return self._shape is not None

    @property
    def needs_grad(self) -> bool:
        return self.grad is not None

    def __repr__(self) -> str:
        if self._shape is None:
            return f"<field {self.name}, not placed>"
        return f"<field {self.name}: {tensor(self.dtype, self.element)}, shape {self._shape}>"

    def add_grad(self) -> None:
        """Give the field a gradient of its own shape and type."""
        if self.grad is not None or not self.dtype.is_float:
            return
        name = f"{self.given_name}.grad" if self.given_name else ""
        self.grad = Field(
            self.dtype, self.element, name=name, soa=self.soa, kind=self.kind, is_grad=True
        )
        if self._shape is not None:
            self.grad.place(self._shape, self._order)
            self._mem.grad = self.grad._mem
            session.with_grad.add(self)
            for forget in session.at_new_grad:
                forget()

    # ---- writes from Python

    def _touch(self, row: int | None = None) -> None:
        """Note that Python wrote; on a recording tape, that what stood there had no effect later."""
        versions = self.versions
        session.clock = now = session.clock + 1
        versions.latest = now
        if row is None:
            versions.whole = now
        else:
            versions.rows[row] = now
        versions.dirty = True
        frame = sys._getframe(2)
        if row is None:
            versions.writer = (frame.f_code, frame.f_lasti)
        else:
            versions.writers[row] = (frame.f_code, frame.f_lasti)

    def _before(self, index: tuple[int, ...] | None = None) -> None:
        """Tell a tape that saves what is overwritten that Python is about to write."""
        if session.tape is not None and session.tape.in_place:
            axis = self.versions.axis
            session.tape.writing(self, None if index is None or axis is None else index[axis])

    def __getitem__(self, key: Any) -> Any:
        if not self.element:
            if self.grad is not None and session.tape is not None and session.tape.records:
                return Read.of(self, self._index(key))
            if key.__class__ is int and self._step and 0 <= key < self._shape[0]:  # type: ignore[index]
                return self._flat[key * self._step]
            if key is None and not self._shape:
                return self._flat[0]
            return self._array[self._index(key)].item()
        return Matrix(
            self._array[self._index(key)].reshape(self.element), self.dtype, owner=self.name
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        followed = None
        if session.tape is not None:
            if isinstance(value, Traced):
                followed, value = self._follow(value), value.value
            self._before(self._index(key))
        if not self.element:
            try:
                if key is None and not self._shape:
                    self._flat[0] = value
                elif key.__class__ is int and self._step and 0 <= key < self._shape[0]:  # type: ignore[index]
                    self._flat[key * self._step] = value
                else:
                    self._array[self._index(key)] = self._scalar(value)
            except (TypeError, ValueError, OverflowError):
                self._array[self._index(key)] = self._scalar(value)
        else:
            self._array[self._index(key)] = self._element(value)
        axis = self.versions.axis
        if axis is None:
            self._touch()
        else:
            self._touch(key if key.__class__ is int else self._index(key)[axis])
        if followed is not None:
            session.tape.stored(self, self._index(key), followed)
        elif session.tape is not None:
            index = self._index(key)
            session.tape.wrote(self, index, self._array[index].copy())

    def _follow(self, value: Traced) -> Traced | None:
        """The value, if the tape is to follow it into this field."""
        if not value.follows():
            return None
        if self.grad is None and self.dtype.is_float:
            raise MissingGradientError(
                f"{self.name} is given a value that depends on something with a gradient, and has none "
                "itself: the chain of derivatives would break here without a word",
                Span.of_caller(),
                hint=f"declare {self.given_name or 'it'} with needs_grad=True, or store a constant: "
                "value.value",
            )
        return value

    def _index(self, key: Any) -> tuple[int, ...]:
        if key is None:
            key = ()
        if isinstance(key, Matrix):
            key = tuple(key.entries.tolist())
        if not isinstance(key, (tuple, list)):
            key = (key,)
        shape = self.shape
        if len(key) != len(shape):
            axes = f"{len(shape)} ax{'i' if len(shape) == 1 else 'e'}s"
            given = f"{len(key)} ind{'ex is' if len(key) == 1 else 'ices are'} given"
            names = ", ".join("ijklmnop"[: len(shape)]) or "None"
            raise FieldError(
                f"{self.name} has {axes}, {given}",
                Span.of_caller(),
                hint=f"write {self.given_name or 'x'}[{names}] for an element",
            )
        index = []
        for k, n in zip(key, shape, strict=True):
            try:
                k = operator.index(k)
            except TypeError:
                raise FieldError(
                    f"an index is a whole number, not {'a slice' if isinstance(k, slice) else repr(k)}",
                    Span.of_caller(),
                    hint="for parts of a field use to_numpy() and from_numpy()"
                    if isinstance(k, slice)
                    else "divide with //, or convert it: int(index)",
                ) from None
            if not 0 <= k < n:
                raise FieldError(
                    f"index {key if len(key) > 1 else key[0]} is outside of {self.name}, "
                    f"which has shape {shape}",
                    Span.of_caller(),
                    hint="indices start at 0, and none counts from the end",
                )
            index.append(k)
        return tuple(index)

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        if isinstance(value, Traced):
            value = float(value)  # type: ignore[arg-type]
        if not isinstance(value, (bool, int, float, np.generic)):
            raise FieldError(
                f"an element of {self.name} is {an(self.dtype)}, not {describe(value)}",
                Span.of_caller(),
                hint="give one number; all elements are set by from_numpy",
            )
        if self.dtype.is_int and isinstance(value, (float, np.floating)):
            raise FieldError(
                f"an element of {self.name} is {an(self.dtype)}, {value!r} would lose its fraction",
                Span.of_caller(),
                hint="convert it: int(value)",
            )
        if self.dtype.is_int and not self.dtype.holds(int(value)):
            raise FieldError(
                f"an element of {self.name} is {an(self.dtype)}, and {value} does not fit into it",
                Span.of_caller(),
                hint="declare the field with a wider type, such as ds.i64",
            )
        return value

    def _element(self, value: Any) -> Any:
        made = array_of(value)
        t = an(tensor(self.dtype, self.element))
        if made.dtype.kind not in "biuf" or made.shape not in ((), self.element):
            raise FieldError(
                f"an element of {self.name} is {t}, not {value!r}",
                Span.of_caller(),
                hint="give a list of that shape, or one number for all components",
            )
        if self.dtype.is_int and made.dtype.kind == "f":
            raise FieldError(
                f"an element of {self.name} is {t}, {value} would lose its fractions",
                Span.of_caller(),
                hint="convert it: int(value)",
            )
        self._check_range(made)
        return np.broadcast_to(made, self.element).reshape(-1)

    def _check_range(self, given: np.ndarray) -> None:
        """Refuse integers that would be cut to the field's type."""
        if self.dtype.is_int and given.dtype.itemsize >= self.dtype.bytes and given.size:
            for number in (int(given.min()), int(given.max())):
                if not self.dtype.holds(number):
                    raise FieldError(
                        f"an element of {self.name} is {an(self.dtype)}, and {number} does not fit",
                        Span.of_caller(),
                        hint="declare the field with a wider type, such as ds.i64",
                    )

    def fill(self, value: Any) -> None:
        """Set every element (of a vector field: to a number, or to a vector)."""
        self._before()
        if self.dtype.is_float and value.__class__ in (int, float) and abs(value) < 2**53:
            self._array.fill(value)
            dirty = value != 0
        else:
            if self.element:
                self._array[...] = self._element(value)
            else:
                self._array[...] = self._scalar(value)
            dirty = bool(np.any(np.asarray(value.entries if isinstance(value, Matrix) else value)))
        self._touch()
        self.versions.dirty = dirty
        if session.tape is not None:
            session.tape.wrote(self, None, self._array[(0,) * len(self.shape)].copy())

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        """A copy: an array of shape `field.shape` + shape of one element."""
        return np.array(self._array.reshape(self.shape + self.element), dtype=dtype, order="C")

    def from_numpy(self, array: Any) -> None:
        """Copy an array of shape `field.shape` + shape of one element into the field."""
        if isinstance(array, Field):
            raise FieldError(
                "from_numpy takes an array, this is a field",
                Span.of_caller(),
                hint=f"write {self.given_name or 'x'}.copy_from(field)",
            )
        given = array_of(array)
        want = self.shape + self.element
        if given.shape != want:
            raise FieldError(
                f"{self.name} needs an array of shape {want}, this one has {given.shape}",
                Span.of_caller(),
                hint="its axes are those of the field, then those of an element"
                if self.element
                else f"reshape the array, or declare {self.name} with its shape",
            )
        if not np.can_cast(given.dtype, self.dtype.numpy, "same_kind"):
            raise FieldError(
                f"an element of {self.name} is {an(self.dtype)}, "
                f"an array of {given.dtype} can not be copied into it",
                Span.of_caller(),
                hint=f"convert it: array.astype(np.{self.dtype.numpy})",
            )
        self._check_range(given)
        self._before()
        np.copyto(self._array, given.reshape(self._array.shape), casting="same_kind")
        self._touch()
        if session.tape is not None:
            session.tape.wrote(self, None, self._array.copy("K"))

    def copy_from(self, other: Field) -> None:
        """Copy another field of the same shape and element shape."""
        if not isinstance(other, Field) or (other.shape, other.element) != (
            self.shape,
            self.element,
        ):
            raise FieldError(
                f"{self.name} can only be copied from a field of shape {self.shape} whose elements are "
                f"{'numbers' if not self.element else f'of shape {self.element}'}",
                Span.of_caller(),
                hint="arrays are copied by from_numpy",
            )
        if not np.can_cast(other.dtype.numpy, self.dtype.numpy, "same_kind"):
            raise FieldError(
                f"an element of {self.name} is {an(self.dtype)}, one of {other.name} {an(other.dtype)}",
                Span.of_caller(),
                hint="convert in a kernel with ds.cast",
            )
        self._before()
        np.copyto(self._array, other._array, casting="same_kind")
        self._touch()
        if session.tape is not None:
            session.tape.copied(self, other)

    def clear(self) -> None:
        """Set all elements to 0 where they may be anything else."""
        versions = self.versions
        if versions.dirty:
            if self._shape:
                self._array.fill(0)
            elif not self.element:
                self._flat[0] = 0
            else:
                self._array.fill(0)
            session.clock = now = session.clock + 1
            versions.latest = versions.whole = now
            versions.writer = None
            versions.dirty = False

    def assign(self, source: Any) -> None:
        """Copy a field (differentiated on a tape) or an array of the same shape."""
        (self.copy_from if isinstance(source, Field) else self.from_numpy)(source)
        self.versions.by_caller()


def array_of(value: Any) -> np.ndarray:
    """A value as an array; of dtype object if it can not be one."""
    if isinstance(value, Traced) and not value.follows():
        value = value.value
    try:
        return np.asarray(value.entries if isinstance(value, Matrix) else value)
    except ValueError:  # rows of different lengths
        return np.asarray(None)


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of positive ints."""
    if shape is None:
        shape = ()
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    made = []
    for d in dims:
        try:
            n = operator.index(d)
        except TypeError:
            n = 0
        if n < 1 or isinstance(d, bool):
            raise FieldError(
                f"a shape is made of whole numbers from 1 on, not {shape!r}",
                Span.of_caller(),
                hint="write shape=n, shape=(n, m), or shape=() for a single element",
            )
        made.append(n)
    return tuple(made)


def make_field(
    element: tuple[int, ...],
    dtype: Any,
    shape: Any,
    name: str,
    needs_grad: bool,
    layout: Any,
) -> Field:
    """Make a field; without a shape it waits for a place in a layout tree."""
    for n in element:
        if not isinstance(n, int) or n < 1:
            raise FieldError(
                f"an element has at least one component, not {n!r}",
                Span.of_caller(),
                hint="write ds.Vector.field(3, ds.f32, shape=n)",
            )
    if layout not in (None, Layout.AOS, Layout.SOA):
        raise FieldError(
            f"{layout!r} is not a layout",
            Span.of_caller(),
            hint="use ds.Layout.AOS or ds.Layout.SOA",
        )
    if not isinstance(needs_grad, (bool, np.bool_)):
        raise FieldError(
            f"needs_grad is True or False, not {needs_grad!r}",
            Span.of_caller(),
            "write needs_grad=True",
        )
    made = Field(
        scalar_type(float if dtype is None else dtype), element, name=name, soa=layout == Layout.SOA
    )
    if needs_grad:
        if not made.dtype.is_float:
            raise FieldError(
                f"a field of {made.dtype} can not have a gradient",
                Span.of_caller(),
                hint="only floats have derivatives: use ds.f32 or ds.f64",
            )
        made.add_grad()
    if shape is not None:
        made.place(checked_shape(shape))
    return made


def make_ndarray(element: tuple[int, ...], dtype: Any, shape: Any, needs_grad: bool) -> Field:
    """Make an array: a field that kernels get as an argument, for any shape."""
    made = make_field(element, dtype, None, "", needs_grad, None)
    made.kind = "array"
    made.place(checked_shape(shape))
    return made


ports.make_field = make_field
ports.make_ndarray = make_ndarray


def field(
    dtype: Any = None,
    shape: Any = None,
    *,
    name: str = "",
    needs_grad: bool = False,
    layout: Any = None,
) -> Field:
    """A field of scalars.

    Args:
        dtype: scalar type; the default float if left out.
        shape: number of elements along each axis, () for a single one. Without a shape the field waits
            to be placed: `ds.root.dense(ds.i, n).place(x)`.
        name: for messages; else the variable's name in the first kernel that uses it.
        needs_grad: whether gradients with respect to it are wanted (`x.grad`).
        layout: for vector fields, `ds.Layout.AOS` or `ds.Layout.SOA`.

    Raises:
        FieldError: a shape, type or option that makes no sense; no memory.
    """
    return make_field((), dtype, shape, name, needs_grad, layout)


def ndarray(dtype: Any, shape: Any, *, needs_grad: bool = False) -> Field:
    """An array for arguments annotated `ds.types.ndarray()`; indexed, filled and copied like a field.

    Args:
        dtype: scalar type, or `ds.types.vector/matrix`.
        shape: number of elements along each axis.
        needs_grad: whether gradients with respect to it are wanted.
    """
    if isinstance(dtype, TensorType):
        return make_ndarray(dtype.shape, dtype.scalar, shape, needs_grad)
    return make_ndarray((), dtype, shape, needs_grad)
