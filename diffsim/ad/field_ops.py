"""Copies of fields from Python, which tapes record and differentiate."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from diffsim.ad.record.elements import Run, read_elements, write_elements
from diffsim.errors import ArgumentError, DtypeError, FieldError, Span, shown
from diffsim.ir.op import Tracked
from diffsim.ir.types import an
from diffsim.lang.host.signatures import checked, need_bool
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.component_field import ComponentField
from diffsim.runtime.fields.constructors import check_float
from diffsim.runtime.fields.contents import refuse_sparse_field
from diffsim.runtime.fields.copies import like
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.session import session


@checked
def copy(
    dst: Any, src: Any, *, dest_offset: int = 0, src_offset: int = 0, count: int | None = None
) -> None:
    """Copy the elements of one field (or array) into another; differentiated on a tape.

    Args:
        dst: where to; a field, an array, or a field of structs.
        src: where from; it may be `dst` itself.
        dest_offset: the first element of `dst` that is written, counted in the order of its indices.
        src_offset: the first element of `src` that is read.
        count: how many elements. Without these three all of them, and the shapes are the same.

    Raises:
        ArgumentError: shapes or types that do not fit, elements that do not exist.

    Example:
        x, y = ds.field(ds.f32, shape=4), ds.field(ds.f32, shape=4)
        x.fill(1.5)
        ds.copy(y, x, dest_offset=1, count=2)
        print(y.to_numpy().tolist())  # prints: [0.0, 1.5, 1.5, 0.0]
    """
    # A field of structs has no memory of its own: its members are fields.
    if isinstance(dst, StructField) and isinstance(src, StructField) and dst.keys == src.keys:
        for member in dst.keys:
            copy(
                getattr(dst, member),
                getattr(src, member),
                dest_offset=dest_offset,
                src_offset=src_offset,
                count=count,
            )
        return
    for f in (dst, src):
        if not isinstance(f, Field):
            raise FieldError(
                f"ds.copy copies fields, not {describe(f)}",
                Span.of_caller(),
                hint="arrays are copied by x.from_numpy(array)",
            )
    row = None
    # All of it: one memory copy where layouts agree, and the form that replays can run natively.
    if count is None and all(isinstance(o, int) and o == 0 for o in (dest_offset, src_offset)):
        dst.copy_from(src)
    else:
        refuse_sparse_field(dst, "a part of it cannot be set by ds.copy")
        row = _copy_part(dst, src, dest_offset, src_offset, count)
    # Errors about this write then name the line that called `ds.copy`.
    dst.versions.by_caller(row)


def _copy_part(dst: Field, src: Field, to: int, at: int, count: int | None) -> int | None:
    """Copy a run of elements; returns the only row that it wrote (None: any)."""
    runs = [_run(f, start, count) for f, start in ((dst, to), (src, at))]
    if dst.element != src.element or runs[0].size != runs[1].size:
        raise FieldError(
            f"{runs[1].size} elements of {src.name} of shape {src.element} cannot be copied into "
            f"{runs[0].size} of {dst.name} of shape {dst.element}",
            Span.of_caller(),
            hint="give count, the number of elements",
        )
    # NumPy's rule: f64 to f32 is fine, floats to integers would lose fractions silently.
    if not np.can_cast(src.dtype.numpy, dst.dtype.numpy, "same_kind"):
        raise DtypeError(
            f"an element of {dst.name} is {an(dst.dtype)}, one of {src.name} {an(src.dtype)}",
            Span.of_caller(),
            hint="convert in a kernel with ds.cast",
        )
    row = _row(dst, runs[0])
    tape = session.listener
    # Before the write: the tape copies what it overwrites.
    if tape is not None and tape.intercepts:
        tape.writing(dst, row)
    # `read_elements` returns a copy, so runs that overlap in one field are copied as if at once.
    write_elements(dst, runs[0], read_elements(src, runs[1]))
    dst._touch(row)
    if tape is not None:
        tape.copied(dst, src, *runs)
    return row


def _run(f: Field, start: Any, count: Any) -> Run:
    """Validate an offset and a count."""
    size = 1
    for n in f.shape:
        size *= n
    try:
        start = operator.index(start)
        count = size - start if count is None else operator.index(count)
    except TypeError:
        raise ArgumentError(
            f"offsets and count are whole numbers, not {shown(start)} and {shown(count)}",
            Span.of_caller(),
            hint="write int(...) around what may be a float",
        ) from None
    if start < 0 or count < 1 or start + count > size:
        raise ArgumentError(
            f"{f.name} has {size} elements, and not {shown(count)} from number {shown(start)} on",
            Span.of_caller(),
            hint="offsets count elements from 0, in the order of the indices",
        )
    return Run(start, count)


def _row(f: Field, run: Run) -> int | None:
    """Return the only row of the time axis that a run of elements reaches, if that is the first axis."""
    # A run is contiguous in row-major order, so it can stay within one index of the first axis only.
    if f.versions.axis != 0:
        return None
    size = 1
    for n in f.shape[1:]:
        size *= n
    return f.versions.row_within(run.start // size, (run.start + run.size - 1) // size)


@checked
def clone(x: Any, needs_grad: bool | None = None) -> Any:
    """Make a new field of the same shape, type and values; on a tape a copy that is differentiated.

    Args:
        x: a field, array or field of structs.
        needs_grad: whether the new one has a gradient; as `x` if left out. With False it is cut off
            from `x`: what it holds counts as a constant.

    Example:
        x = ds.field(ds.f32, shape=3)
        y = ds.clone(x)
        x[0] = 1.0
        print(x[0], y[0])  # prints: 1.0 0.0
    """
    if isinstance(x, StructField):
        return StructField(x.type, {k: _clone_member(getattr(x, k), needs_grad) for k in x.keys})
    if not isinstance(x, Field):
        raise FieldError(
            f"ds.clone takes a field, not {describe(x)}",
            Span.of_caller(),
            hint="make a field and fill it: x.from_numpy(array)",
        )
    has = x.grad is not None if needs_grad is None else needs_grad
    _ = x.shape  # refuses a field without a place
    need_bool(has, "needs_grad")
    if has:
        check_float(x.dtype, "gradient")
    made = like(x, needs_grad=has, needs_dual=x.needs_dual)
    tape = session.tape
    if needs_grad is False:
        # Without the tape, so that no copy with a gradient goes onto the record.
        session.tape = None
    try:
        made.copy_from(x)
    finally:
        session.tape = tape
    made.versions.by_caller()
    if tape is not None and needs_grad is False:
        tape.wrote(made, None, x)  # for a replay: no gradient flows
    return made


def _clone_member(x: Field | StructField, needs_grad: bool | None) -> Field | StructField:
    """Clone one member, with a gradient only if its numbers are floats."""
    # Integers have no gradients, whatever is asked for the struct as a whole.
    whole = isinstance(x, Field) and not x.dtype.is_float
    made: Field | StructField = clone(x, None if whole else needs_grad)
    return made


def stop_grad_outside(x: Any) -> Any:
    """Implement `ds.stop_grad` in Python: present values of a field, or a number, become constants."""
    if session.tape is not None:
        session.tape.declared_constant()
    try:
        return _as_constant(x)
    except RecursionError:
        raise FieldError(
            f"{shown(x)} holds itself",
            Span.of_caller(),
            hint="give a number, a vector, or a list of such",
        ) from None


def _as_constant(x: Any) -> Any:
    """Return a number or container without provenance; declare a field constant."""
    # Plain numbers and arrays without provenance: the checks for lost gradients no longer see them.
    if isinstance(x, Tracked):
        return x.value
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if isinstance(x, (list, tuple)):
        constants = [_as_constant(e) for e in x]
        return constants if isinstance(x, list) else tuple(constants)
    if isinstance(x, Matrix) and x.provenance is not None:
        made = Matrix(x.entries)
        made.typed = x.typed
        return made
    if isinstance(x, ComponentField):
        raise FieldError(
            f"{x.in_words()} cannot be made a constant by itself: a tape knows whole elements",
            Span.of_caller(),
            hint="name the field, or in a kernel the value: ds.stop_grad(v[i])",
        )
    if session.tape is not None:
        for f in x.fields() if isinstance(x, StructField) else [x]:
            if isinstance(f, Field):
                session.tape.stopped(f)
    return x
