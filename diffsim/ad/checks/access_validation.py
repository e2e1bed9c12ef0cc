"""The global data access rules, checked element by element: `ds.Tape(validation=True)`.

Each launch runs a variant of its kernel that notes what it reads and checks what it writes, element by
element (`passes/instrument/shadow_memory.py`), one iteration of a loop after the other, so that the first
violation is always the same one. The ordinary check, which knows what each gradient really needs and costs
next to nothing, stays on beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ad.record.elements import Index, numpy_index, values_of
from diffsim.errors import AutodiffError, DiffsimError, GlobalDataAccessError, Span
from diffsim.ir import types
from diffsim.ir.layout import shown_index
from diffsim.ir.nodes import Alloca, Atomic, Check, Load, Mem, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.instrument.shadow_memory import (
    OVERWRITTEN,
    RACING,
    REWRITTEN,
    Shadow,
    instrument,
)
from diffsim.passes.transforms.serialize import serialize
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.instrumentation import Instrumentation, independence_checks
from diffsim.runtime.kernels.specialization import Specialization

_HINT = (
    "write into another field, or another row (x[t + 1, i] = f(x[t, i])); from the second write on, add: "
    "x[i] += value"
)


class Watched:
    """A kernel that notes what it reads and checks what it writes.

    Attributes:
        specialization: the kernel, instrumented.
        shadows: the notes beside each memory.
        start: the number of the first note of a launch.
        statements: the statements, by the number of their note.
        claims: the checks of loops that claim to be independent; None: there are none.
        validator: whoever launched it last.
    """

    def __init__(self, plain: Specialization) -> None:
        self.validator: Callable[[], Validator | None] = lambda: None
        self.start = Mem("start", types.i64, 0, None, "array")
        # Temporaries end with the launch, and gradients are results of the backward pass.
        watched = [m for m in plain.ir.mems if m.kind in ("field", "array") and not m.is_grad]
        self.shadows = {m: Shadow.of(m) for m in watched}
        self.claims = independence_checks(plain.ir)
        checked = plain.ir if self.claims is None else self.claims.transform(plain.ir)
        instrumented, self.statements = instrument(checked, self.shadows, self.start, _noted(plain))
        self.specialization = plain.variant(
            instrumentation=Instrumentation(
                # Serial, so that the first violation in program order is reported, whatever the threads
                # would do.
                lambda _: serialize(instrumented),
                self._explain,
                checks_each_launch=True,
            )
        )

    def _explain(
        self, error: DiffsimError, check: Check | Alloca, values: list[int]
    ) -> DiffsimError:
        if self.claims is not None:
            error = self.claims.explain(error, check, values)
        # Weak: the kernel's variant outlives the tape, and must not keep its shadow memory.
        validator = self.validator()
        if validator is None or not error.message.endswith((OVERWRITTEN, REWRITTEN, RACING)):
            return error
        return validator.error(error.message, values[len(check.values) - 1], error.span)  # type: ignore[union-attr]


def _noted(special: Specialization) -> set[Load | Store | Atomic]:
    """Return the accesses to check.

    Loads of fields with a gradient, and those that the adjoint repeats; writes of values with a derivative to
    fields with a gradient.
    """
    if special.mode.is_detached:
        return set()
    try:
        reads = special.derivative.accesses.reads
        again = {a.stmt.origin for a in reads if isinstance(a.stmt, Load)}
        active = special.derivative.activity.values
    except AutodiffError:
        # What cannot be differentiated has no adjoint that would repeat loads.
        again, active = set(), frozenset()
    found: set[Load | Store | Atomic] = set()
    for s in (s for t in special.ir.tasks for s in task_statements(t)):
        if isinstance(s, Load):
            if s in again or (s.mem.grad is not None and s.mem.kind in ("field", "array")):
                found.add(s)
        elif isinstance(s, (Store, Atomic)) and s.mem.grad is not None and s.value in active:
            found.add(s)
    return found


class Validator:
    """The shadow memory of one tape: for each field element, the statements that read and wrote it last."""

    def __init__(self) -> None:
        self.count = 0
        self.launches: list[tuple[int, Watched]] = []
        self.notes: dict[Field, dict[str, Field]] = {}
        self.once: dict[str, Field] = {}

    def instead(self, special: Specialization, args: tuple[Any, ...]) -> Specialization:
        """Return the instrumented variant to launch in place of a kernel."""
        made: Watched | None = special.variants.get(Watched)
        if made is None:
            made = special.variants[Watched] = Watched(special)
        # Notes are numbered through all launches, so a note tells the launch by a search, and then the
        # statement.
        self.launches.append((self.count, made))
        executable = made.specialization.executable
        made.validator = weakref.ref(self)
        start = _array(types.i64, (), ())
        start.storage.fill(self.count)
        self.start = start  # kept alive
        self.count += len(made.statements)
        # An array of one element: a compiled-in number would need a new kernel for each launch.
        executable.bind_array(made.start, start.address, ())
        for mem, shadow in made.shadows.items():
            thing = special.object_of(mem, args)
            for what in Shadow.__slots__:
                note = self._note(mem, thing, what)
                executable.bind_array(getattr(shadow, what), note.address, note.shape)
        return made.specialization

    def _note(self, mem: Mem, thing: Any, what: str) -> Field:
        """Return a shadow field; that of a NumPy array, which tapes copy, is for this launch only."""
        new = not isinstance(thing, Field)
        beside = self.once if new else self.notes.setdefault(thing, {})
        if new or what not in beside:
            shape = thing.shape[: mem.rank]
            beside[f"{mem.name} {what}" if new else what] = made = _array(
                types.i64, mem.dtype.shape, shape
            )
            return made
        return beside[what]

    def wrote(self, field: Field, index: Index) -> None:
        """Check a write from Python."""
        beside = self.notes.get(field)
        # No kernel on this tape has read the field, so nothing can have been overwritten.
        if beside is None or field.is_grad:
            return
        read = values_of(beside["read"])
        notes = read[numpy_index(field, index)]
        if notes.any():
            where = _first(field, index, read != 0)
            message = f"{field.name}[{where or 'None'}] {OVERWRITTEN}"
            raise self.error(message, int(notes[notes != 0].flat[0]), Span.of_caller())
        # A constant of Python's begins anew: a kernel may then store to the element once.
        written = values_of(beside["written"]).copy()
        written[numpy_index(field, index)] = 0
        beside["written"].storage.from_numpy(written.reshape((*field.shape, -1)))

    def error(self, message: str, note: int, span: Span | None) -> GlobalDataAccessError:
        """Return the error for a violation, with both statements that take part in it."""
        # Note numbers start at 1, since 0 in the shadow means "none".
        start, watched = next(s for s in reversed(self.launches) if s[0] < note)
        other = watched.statements[note - start - 1]
        assert isinstance(other, (Load, Store, Atomic))
        verb = "read" if isinstance(other, Load) else "written"
        shown = f"{message}\n  {verb} by {watched.specialization.name}:\n{other.span.text()}"
        here = "read" if message.endswith(RACING) else "written"
        return GlobalDataAccessError(f"{shown}\n  {here} here:", span, hint=_HINT)


def _array(dtype: types.ScalarType, element: tuple[int, ...], shape: tuple[int, ...]) -> Field:
    made = Field(dtype, element, kind="array")
    made.place(shape)
    return made


def _first(field: Field, index: Index, found: np.ndarray) -> str:
    """Return the index of the first of these elements where something was found, as text."""
    inside = np.zeros(found.shape, bool)
    inside[numpy_index(field, index)] = True
    at = np.argwhere((found & inside).reshape(*field.shape, -1).any(axis=-1))[0]
    return shown_index(field.origin, at)
