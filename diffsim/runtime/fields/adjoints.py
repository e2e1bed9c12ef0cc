"""Where derivatives of fields go: adjoints that tapes lend, duals, and values from Python without either.

A field that is stored to on the way from the inputs to the loss needs memory for its gradient. Where the
program has not declared any, a tape makes it with `ds.init(rules="lifted")`, for itself: `x.grad` stays None,
as the sum in it leaves out the launches before the first such store. Kernels add to a lent adjoint and use it
up as they do with any other one (docs/adr/0029).

The tangent of a field in forward mode is in its dual, a field too (docs/adr/0039). Where several tangents are
computed at once there is another dual for that many, with one more axis. Fields on the way that have none are
lent one.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffsim.backends.native.pool import closed, wait
from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    FieldError,
    MissingGradientError,
    Span,
)
from diffsim.ir.op import Tracked
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.signatures import checked
from diffsim.runtime.fields.read_values import Provenance
from diffsim.runtime.memory.storage import HostStorage
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field
    from diffsim.runtime.fields.struct_field import StructField
    from diffsim.runtime.memory.versions import Versions

_borrowers: weakref.WeakSet[Field] = weakref.WeakSet()


def lend_adjoint(f: Field) -> bool:
    """Give a float field without gradient an adjoint; returns whether it is a new one."""
    if f.adjoint is not None or f.is_grad or not f.dtype.is_float:
        return False
    _borrowers.add(f)
    f.add_grad(declared=False)
    return True


def asked_grad(f: Field) -> Field | None:
    """Return `f.grad` of a field made without one: it gets one as long as its layout is open."""
    # Taichi's programs place it beside its field, .place(x, x.grad), or after it, in a node of its own.
    if is_open(f) and not f.is_grad and not f.is_dual:
        f.add_grad()
    return f.adjoint if f.declares_grad else None


def is_open(f: Field) -> bool:
    """Return whether a program that asks for a derivative of the field may be about to place it.

    From the first launch or write on, a derivative made now would lack what went before.
    """
    return not f.placed or (f.node is not None and f.placed_at == session.clock)


def make_grad(f: Field, declared: bool) -> None:
    """Give a field a gradient of its own shape (`declared`: that the program may read)."""
    if f.declares_grad or not f.dtype.is_float:  # integers have no derivative
        return
    f.declares_grad = declared
    if f.adjoint is None:
        f.adjoint = f.new_derivative("grad")
        if f.placed:
            f.adjoint.place(f.shape, f._order, tree=f.tree, origin=f.origin)
            f._mem.grad = f.adjoint._mem
    if f.placed:
        session.with_grad.add(f)  # a change also where it was lent before
        # Kernels that use the field are compiled without a gradient: all are compiled anew.
        for forget in session.at_new_grad:
            forget()


def is_lent(f: Field) -> bool:
    """Return whether the field's gradient is one that the program did not declare."""
    return f.adjoint is not None and not f.declares_grad


def take_back() -> None:
    """Take all that was lent away: the next session may enforce the rules."""
    for f in members(_borrowers):
        if is_lent(f):
            f.adjoint = f._mem.grad = None
            session.with_grad.discard(f)
    _borrowers.clear()
    for f in members(session.with_dual):
        f.duals = {1: f.duals[1]} if f.declares_dual else NO_DUALS
        if not f.duals:
            session.with_dual.discard(f)
    session.duals += 1


session.at_reset.append(take_back)


# ---- duals

NO_DUALS: dict[int, Any] = {}


def make_dual(f: Field, width: int) -> Field | None:
    """Return the dual of a field for that many tangents, made now if need be; None: it can have none."""
    found = f.duals.get(width)
    if found is not None or not f.dtype.is_float or f.is_dual:
        return found
    dual = f.new_derivative("dual")
    if f.placed:
        place_dual(f, dual, width)
    f.duals = {**f.duals, width: dual}
    session.with_dual.add(f)
    session.duals += 1  # launches in forward mode look again which fields have one
    return dual


def place_dual(f: Field, dual: Field, width: int) -> None:
    """Allocate a dual in the layout of its field; of several tangents each is a block in that layout."""
    if width == 1:
        dual.place(f.shape, f._order, tree=f.tree, origin=f.origin)
    else:
        # Tangents are there wherever they are read: what several of them are in has no cells of its own.
        dual.place(
            (*f.shape, width), (len(f.shape), *f._order), in_blocks=True, sparse=f.tree is not None
        )


def narrow_dual(f: Field) -> Field:
    """Return `f.dual`.

    Raises:
        ArgumentError: it has none, or was in a block with several tangents since.
    """
    if not f.declares_dual and is_open(f):
        f.add_dual()  # Taichi's programs place it beside its field: .place(x, x.dual)
    if not f.declares_dual:
        raise no_dual(f)
    made = f.duals[1]
    for wide in f.duals.values():
        if wide.versions.dirty and wide.versions.latest > made.versions.latest:
            name = f._found_name or "x"
            raise FieldError(
                f"{f.name} has tangents for several seeds at once, and {name}.dual is the tangent for one",
                Span.of_caller(),
                hint=f"with ds.ad.FwdMode(...) as forward: ..., then forward.tangents({name}); "
                "ds.clear_all_dual() sets them to 0",
            )
    return made


def no_dual(f: Field | StructField) -> ArgumentError:
    """Return the error for reading the dual of a field that has none."""
    name = f._found_name or "x"
    has_floats = any(m.dtype.is_float and not m.is_dual for m in f.fields())
    return FieldError(
        f"{f.name} has no dual",
        Span.of_caller(),
        hint=f"declare {name} with needs_dual=True, or give it to ds.ad.FwdMode as loss or param; "
        f"forward.tangents({name}) reads what a block has computed for any field"
        if has_floats
        else "only floats have tangents: use ds.f32 or ds.f64",
    )


def is_plain_number(f: Field) -> bool:
    """Return whether `f.storage.flat[0]` is all of a field, and nobody else sees it."""
    storage = f.storage
    if not isinstance(storage, HostStorage) or f._exported:
        return False
    return storage.is_number and f.tree is None


_ZEROS = memoryview(bytes(1 << 15))


def _bytes_of(f: Field) -> memoryview | None:
    """Return all bytes of a small field that is one piece of memory, and that nobody else sees; else None."""
    storage = f.storage
    if not isinstance(storage, HostStorage) or f._exported:
        return None
    array = storage.array
    if not 0 < array.nbytes <= len(_ZEROS) or not array.flags.c_contiguous:
        return None
    return array.data.cast("B")


class _Known(NamedTuple):
    """The gradients of all fields, as they are to be cleared.

    Versions, and small memory, are objects of their own: they keep no field alive.

    Attributes:
        changes: as of how many changes of gradients.
        numbers: single numbers: versions and memory.
        small: short arrays: versions, all bytes, as many zeros, and the number of the field.
        others: versions and the gradient.
    """

    changes: int
    numbers: list[tuple[Versions, Any]]
    small: list[tuple[Versions, memoryview, memoryview, int]]
    others: list[tuple[Versions, weakref.ref[Field]]]


class _Gradients:
    """The gradients of all fields."""

    def __init__(self) -> None:
        # One tuple, replaced as a whole, as other threads ask at any time.
        self._known = _Known(-1, [], [], [])

    def clear(self) -> None:
        """Set those to 0 that may hold anything else."""
        # Before the fields are listed: one that comes meanwhile is listed the next time.
        changes, known = session.with_grad.changes, self._known
        if changes != known.changes:
            known = self._known = self._listed(changes)
        _, numbers, small, others = known
        for v, flat in numbers:
            if v.dirty:  # as `Field.clear`, without calls
                flat[0] = 0
                session.clock = v.latest = v.whole = session.clock + 1
                v.writer, v.cuts, v.dirty = None, None, False
        for v, memory, zeros, number in small:
            if v.dirty:
                if closed[0]:
                    wait()
                memory[:] = zeros
                session.clock = v.latest = v.whole = now = session.clock + 1
                v.writer, v.cuts, v.dirty = None, None, False
                session.written.append((now, number, None, ..., 0.0, None))
        for v, ref in others:
            if v.dirty and (g := ref()) is not None:
                g.clear()

    def _listed(self, changes: int) -> _Known:
        known = _Known(changes, [], [], [])
        for g in (f.adjoint for f in members(session.with_grad)):
            if g is None:
                continue
            if is_plain_number(g):
                known.numbers.append((g.versions, g.storage.flat))
            elif (memory := _bytes_of(g)) is not None:
                known.small.append((g.versions, memory, _ZEROS[: len(memory)], g.number))
            else:
                known.others.append((g.versions, weakref.ref(g)))
        return known


_gradients = _Gradients()


clear_gradients = _gradients.clear


@checked
def clear_all_gradients() -> None:
    """Set the gradients of all fields to 0.

    Example:
        x = ds.field(ds.f32, shape=3, needs_grad=True)
        x.grad.fill(2.0)
        ds.clear_all_gradients()
        print(x.grad[0])  # prints: 0.0
    """
    clear_gradients()


@checked
def clear_all_dual() -> None:
    """Set the duals of all fields to 0: the tangents that forward mode computes (`ds.ad.FwdMode`).

    Example:
        x = ds.field(ds.f32, shape=3, needs_dual=True)
        x.dual.fill(2.0)
        ds.clear_all_dual()
        print(x.dual[0])  # prints: 0.0
    """
    for f in members(session.with_dual):
        for dual in f.duals.values():
            if dual.placed:
                dual.clear()


def derivative_of(f: Field) -> Field | None:
    """Return where this thread's recorder has a derivative of a field that may flow on; None: it has none.

    A tape has it in the adjoint, whatever that holds before the backward pass. In forward mode it is the
    dual, and one that is 0 throughout has nothing that could get lost.
    """
    if f.adjoint is None and not f.duals:
        return None
    tape = session.front
    if tape is None or not tape.follows_values:
        return None
    if not tape.tangents:
        return f.adjoint
    dual = f.duals.get(tape.tangents)
    return dual if dual is not None and dual.versions.dirty else None


def is_followed(f: Field) -> bool:
    """Return whether the recorder of this thread follows what Python reads of a field."""
    return derivative_of(f) is not None


# ---- values that Python reads and writes


def followed_by_tape(f: Field, value: Tracked) -> Tracked | None:
    """Return a value that is written to a field, if a tape is to follow it there."""
    if not value.follows():
        return None
    tape = session.tape
    if tape is not None and tape.tangents:
        if f.is_dual:
            raise AutodiffError(
                f"{f.name} is given a value that has a tangent itself, and duals have none",
                Span.of_caller(),
                hint="store a constant: value.value",
            )
        return value
    if session.options.lifts_rules:
        lend_adjoint(f)
    if f.adjoint is None and f.dtype.is_float:  # the derivative would have nowhere to go
        raise MissingGradientError(
            f"{f.name} is given a value that depends on something with a gradient, and has none "
            "itself: the chain of derivatives would break here silently",
            Span.of_caller(),
            hint=f"declare {f._found_name or 'it'} with needs_grad=True, or store a constant: value.value",
        ).advising()
    return value


def lost_source(f: Field, value: Any) -> Provenance | None:
    """Return the field with a gradient that Python made a value of; None: there is none.

    Numbers are refused where the field has one too. Of arrays the tape is told: the user may record how their
    gradient flows (`tape.record_func`).
    """
    source: Provenance | None = source_of(value)
    if source is None or not f.dtype.is_float or f.is_grad or f.is_dual:
        return None
    forward = session.tape is not None and session.tape.tangents
    if forward or (f.adjoint is not None and not isinstance(value, np.ndarray)):
        source.refuse(f.name, "do this in a kernel (a copy: ds.copy)")
    return source
