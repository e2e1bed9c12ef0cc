"""All elements of a field at once: filled, copied from and to arrays and fields, cleared.

Of a field in a sparse tree these are its active elements; an element that Python writes by itself activates
its cell. What is written to a gradient activates nothing: a gradient is there wherever it is read.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import FieldError, GlobalDataAccessError, OptionError, Span, shown
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.signatures import checked_methods, need_bool
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.adjoints import is_followed, lost_source
from diffsim.runtime.fields.conversions import (
    check_copy,
    checked_array,
    element_of,
    index_of,
    kept,
    scalar_of,
)
from diffsim.runtime.fields.read_values import Provenance
from diffsim.runtime.memory.nonzeros import Nonzeros, put
from diffsim.runtime.memory.storage import HOST, HostStorage
from diffsim.runtime.memory.written_values import CopyOf
from diffsim.runtime.session import session
from diffsim.tracebacks import IS_OWN

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


@checked_methods("fill to_numpy from_numpy copy_from assign mark_written")
class WholeContents:
    """The part of a field that reads and writes all of its elements."""

    def fill(self: Any, val: object) -> None:
        """Set every element (of a vector field: to a number, or to a vector).

        Raises:
            DtypeError: a value that is no element of the field.

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            x.fill([1.0, 2.0])
            print(x[2])  # prints: [1.0, 2.0]
        """
        # `listener`, not `tape`: other threads' tapes must hear of the write as well.
        tape = session.recorders and session.writes_to
        lost = tape and lost_source(self, val)
        if tape:
            self._before()
        # Integers up to 2**53 are exact as doubles; anything else takes the checks of an element.
        fill = self.storage.fill if self.tree is None else functools.partial(set_active, self)
        plain = self.dtype.kind == "f" and val.__class__ in (int, float)
        if plain and -(2**53) < val < 2**53:  # type: ignore[operator]
            fill(val)
            dirty = val != 0
            known: Any = val
        else:
            made = element_of(self, val) if self.element else scalar_of(self, val)
            fill(made)
            dirty = bool(np.any(np.asarray(val.entries if isinstance(val, Matrix) else val)))
            known = session.contents_of(made) if self.element else made
        self._touch(None, ..., known)
        # Zeros need no clearing by the next backward pass, unless others may write to them.
        self.versions.overwritten(dirty=dirty or self._exported)
        if tape:
            tape.wrote(self, None, self._written(val) if self.tree is None else kept(self))
            if lost:
                tape.lost(lost)

    def to_numpy(self: Any, dtype: Any = None, keep_dims: Any = False) -> np.ndarray:
        """Return a copy: an array of shape `field.shape` + shape of one element.

        Args:
            dtype: the type of the array, of NumPy; that of the field if left out.
            keep_dims: whether vectors and matrices of one column have the shape (n, 1), instead of (n,).

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            a = x.to_numpy()
            print(a.shape, a.dtype)  # prints: (3, 2) float32
        """
        # Taichi's fields of vectors and matrices have the parameters in the other order.
        if isinstance(dtype, bool) or not isinstance(keep_dims, (bool, np.bool_)):
            dtype, keep_dims = None if keep_dims is False else keep_dims, dtype
        if keep_dims is not None:
            need_bool(keep_dims, "keep_dims")
        if dtype is not None:
            try:
                dtype = np.empty(0, self.dtype.numpy).astype(dtype).dtype
            except Exception:  # whatever NumPy says of it, or the thing itself
                raise OptionError(
                    f"dtype={shown(dtype)} is not possible for {self.in_words()}",
                    Span.of_caller(),
                    hint="give a type of NumPy, such as np.float64",
                ) from None
        element = self.element
        if element:
            element = (self.n, self.m) if keep_dims or self.m > 1 else (self.n,)
        made = self._storage.to_numpy(dtype).reshape(self.shape + element)
        if session.recorders and is_followed(self):
            return Provenance.of(self).mark_array(made)
        return made

    def from_numpy(self: Any, arr: object) -> None:
        """Copy an array of shape `field.shape` + shape of one element into the field.

        Raises:
            FieldError: an array of another shape.
            DtypeError: numbers that the type of the field cannot hold.

        Example:
            x = ds.field(ds.f32, shape=3)
            x.from_numpy(np.array([1.0, 2.0, 3.0], dtype=np.float32))
            print(x[2])  # prints: 3.0
        """
        if is_field(arr):
            raise FieldError(
                "from_numpy takes an array, this is a field",
                Span.of_caller(),
                hint=f"write {self._called()}.copy_from(field)",
            )
        tape = session.recorders and session.writes_to
        lost = tape and lost_source(self, arr)  # before the conversion, which loses the provenance
        given = checked_array(self, arr, self.shape, lambda: self.name)
        self._before()
        elements = given.reshape((*self.shape, self._storage.layout.components))
        if self.tree is None:
            self.storage.from_numpy(elements)
        else:
            set_active(self, elements)
        self._touch(None, ..., None if self.is_grad else session.contents_of(given))
        if tape:
            tape.wrote(self, None, kept(self))  # a copy: the array may change before a replay
            if lost:
                tape.lost(lost)

    def copy_from(self: Any, other: Field) -> None:
        """Copy another field of the same shape and element shape; differentiated on a tape.

        Raises:
            FieldError: something else, or another shape.

        Example:
            x, y = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=3)
            x[0] = 1.5
            y.copy_from(x)
            print(y[0])  # prints: 1.5
        """
        check_copy(self, other)
        self._before()
        if self.tree is None:
            self.storage.copy_from(other.storage)
        else:
            copy_active(self, other)
        self._touch(None, ..., CopyOf(other.number))
        if session.recorders and (tape := session.listener):
            tape.copied(self, other)

    def clear(self: Any) -> None:
        """Set all elements to 0 where they may be anything else."""
        if self.versions.dirty:  # False means zeros for certain
            if self._shape or self.element or self._storage.device is not HOST:
                self.storage.fill(0)
            else:
                self._flat[0] = 0
            session.clock = now = session.clock + 1
            self.versions.cleared(now, dirty=self._exported)  # by no statement of the user's
            session.written.append((now, self.number, None, ..., 0.0, None))

    def spoil(self: Any) -> None:
        """Set all elements to NaN, without an entry on a tape."""
        self.storage.fill(float("nan"))
        self._touch()

    def assign(self: Any, source: Any) -> None:
        """Copy a field (differentiated on a tape) or an array of the same shape.

        Example:
            x = ds.field(ds.f32, shape=3)
            x.assign(np.array([1.0, 2.0, 3.0], dtype=np.float32))
            print(x[2])  # prints: 3.0
        """
        (self.copy_from if is_field(source) else self.from_numpy)(source)
        self.versions.by_caller()

    def mark_written(self: Any) -> None:
        """Tell that code outside diffsim has written to the field's memory, as Python's writes do.

        Example:
            x = ds.field(ds.f32, shape=3)
            np.from_dlpack(x)[0] = 2.0  # the same memory, behind diffsim's back
            x.mark_written()
            print(x[0])  # prints: 2.0
        """
        self._touch()
        if session.recorders and (tape := session.listener):
            tape.wrote(self, None, kept(self))  # a constant: nobody knows how it was made


# ---- in sparse trees


def caller() -> tuple[Any, int]:
    """Return the user's statement, as versions name who wrote."""
    frame: Any = sys._getframe(1)
    while IS_OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def active_set(f: Field) -> tuple[int, ...] | None:
    """Return what is another tuple after the active cells around a field's elements have changed."""
    return None if f.tree is None else tuple(cells.changes for cells in f.tree[0].chain())


def refuse_sparse_field(f: Field, what: str) -> None:
    """Refuse what reaches all elements of a field, and says nothing of which cells are active."""
    if f.tree is not None:
        raise FieldError(
            f"{f.name} is in a sparse tree, and {what}",
            Span.of_caller(),
            hint="take the values with x.to_numpy(), and write them back in a kernel, which activates cells",
        )


def check_active(f: Field, known: tuple[int, ...] | None) -> None:
    """Refuse to go on with values of a sparse field that were saved when other cells were active.

    Raises:
        GlobalDataAccessError: with the line that has changed them.
    """
    if f.tree is None or known == active_set(f):
        return
    latest = max(f.tree[0].chain(), key=lambda cells: cells.mask.versions.latest)
    who, place = latest.mask.versions.written_by(None)
    shown = "" if place is None else "\n" + place.text()
    raise GlobalDataAccessError(
        f"the gradient needs the cells that were active when {f.name} was saved as they were, and {who} has "
        f"changed them since{shown}",
        None,
        hint="activate all cells before the block of the tape: run the steps once without it",
    )


def activate_written(f: Field, key: object) -> int | None:
    """Activate the cell of an element that Python has written; return the row of the field it is in."""
    index = index_of(f, key)
    if f.tree is not None and not f.is_grad:
        cells, place = f.tree
        cells.activate(place, index, caller())
    return f.versions.row_at(index)


def set_active(f: Field, values: Any) -> None:
    """Set all active elements: to a number, to one for each component, or to those of an array of all."""
    if f.tree is None:
        return
    if not np.any(values):
        f.storage.fill(0)
        return
    cells, place = f.tree
    storage = f.storage
    array = storage.array if isinstance(storage, HostStorage) else storage.to_numpy()
    given = values if isinstance(values, np.ndarray) and values.ndim == array.ndim else None
    for block in cells.blocks(place):
        array[block] = values if given is None else given[block]
    if not isinstance(storage, HostStorage):
        storage.from_numpy(array)


def write_nonzeros(f: Field, found: Nonzeros) -> None:
    """Set these scalars of a field, and all others to 0, as Python's writes are."""
    tape = session.recorders and session.listener
    f._before()
    put(f.storage, found)
    f._touch()
    if tape:
        tape.wrote(f, None, kept(f))


def copy_active(f: Field, other: Field) -> None:
    """Set all active elements to those of another field."""
    assert f.tree is not None
    if other.tree is not None and other.tree[0] is f.tree[0]:
        f.storage.copy_from(other.storage)
        return
    if session.recorders and session.listener:
        raise FieldError(
            f"{f.name} is in a sparse tree that {other.name} is not in, so a tape cannot follow the copy",
            Span.of_caller(),
            hint="copy in a kernel: for I in ds.grouped(x): x[I] = y[I]",
        )
    set_active(f, other.storage.to_numpy())
