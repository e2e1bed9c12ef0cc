"""Gradients of intermediate fields: `ds.Tape(retain_grad=...)`.

The adjoint of a store uses the gradient of the element and clears it, so that a field that is stored into
twice is differentiated right. A retainer accumulates what is cleared in fields of its own, and adds it to the
gradients at the end of the backward pass. That is only well defined if a single value of the element has an
effect; where two have, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from diffsim.ad.record.elements import Elements, editing, numpy_index, values_of
from diffsim.ad.record.entry import flat
from diffsim.ad.record.replaced import Replaced
from diffsim.errors import (
    AutodiffError,
    DiffsimError,
    MissingGradientError,
    OptionError,
    Span,
    shown,
)
from diffsim.ir.layout import shown_index
from diffsim.ir.nodes import Alloca, Atomic, Check, Kernel, Mem, Store
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import derivative_type
from diffsim.passes.instrument.retain_grad import TWO_VALUES, retain_gradients
from diffsim.passes.transforms.serialize import serialize
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.kernels.derivative import Derivative
from diffsim.runtime.kernels.instrumentation import Instrumentation

_HINT = (
    "give each value its own element (x[t + 1, i] = f(x[t, i])), or leave this field out: "
    "retain_grad=[the fields to look at]"
)


def parse_retain_grad(option: Any) -> bool | frozenset[Field]:
    """Validate the argument `retain_grad`: the fields whose gradients are kept (True: all)."""
    if isinstance(option, bool):
        return option
    given = [option] if isinstance(option, (Field, StructField)) else option
    fields: list[Any] = []
    for f in given if isinstance(given, Sequence) else [None]:
        fields += (
            [m for m in f.fields() if m.grad is not None] if isinstance(f, StructField) else [f]
        )
    if any(not isinstance(f, Field) for f in fields):
        raise OptionError(
            f"retain_grad cannot be {shown(option)}",
            Span.of_caller(),
            hint="give it True, or a list of fields",
        )
    for f in fields:
        if f.grad is None:
            raise MissingGradientError(
                f"{f.name} has no gradient to keep",
                Span.of_caller(),
                hint="declare it with needs_grad=True",
            )
    return frozenset(fields)


class RetainingDerivative:
    """A derivative that also adds the gradients that its kernel's stores clear to retained ones.

    Attributes:
        derivative: the derivative, instrumented.
        retained: the memory of the retained gradient beside each memory.
    """

    def __init__(self, plain: Derivative, mems: Iterable[Mem]) -> None:
        self._plain = plain
        self.retained = {
            # Arrays without a fixed shape: bound at each launch to the field that retains.
            m: Mem(f"{m.name}.kept", derivative_type(m.dtype), m.rank, None, "array", is_grad=True)
            for m in mems
        }
        self.derivative = plain.instrumented(Instrumentation(self._retain, _explain))

    def _retain(self, adjoint: Kernel) -> Kernel:
        """Return the instrumented adjoint, serial where constants may collide."""
        kept = {m.grad: copy for m, copy in self.retained.items() if m.grad is not None}
        adjoint = retain_gradients(adjoint, kept)
        stores = [s for s in _writes(self._plain) if isinstance(s, Store)]
        # `access_rules` refuses active stores of several lanes into one element, so only constants can
        # collide.
        if any(s.value not in self._plain.activity.values for s in stores):
            # In parallel, both would find the retained gradient still 0, and the second value would go
            # unnoticed.
            adjoint = serialize(adjoint)  # several lanes may store one constant into one element
        return adjoint


def _writes(plain: Derivative) -> Sequence[Store | Atomic]:
    """Return all statements of the kernel that write: an addition may hide a store in the access summary."""
    # Found once: a retaining pass asks at every launch.
    found: Sequence[Store | Atomic] | None = plain.variants.get(_writes)
    if found is None:
        tasks = plain.specialization.ir.tasks
        inside = (s for t in tasks for s in task_statements(t))
        found = plain.variants[_writes] = [s for s in inside if isinstance(s, (Store, Atomic))]
    return found


def _explain(error: DiffsimError, check: Check | Alloca, values: list[int]) -> DiffsimError:
    if error.message.endswith(TWO_VALUES):
        return AutodiffError(error.message, error.span, hint=_HINT)
    return error


class GradientRetainer:
    """Accumulates retained gradients during one backward pass.

    Attributes:
        kept: for each field, the gradient cleared so far.
        spans: for each field, the last statement whose gradient was cleared.
    """

    def __init__(self, wanted: bool | frozenset[Field]) -> None:
        self.wanted = wanted
        self.kept: dict[Field, Field] = {}
        self.spans: dict[Field, Span | None] = {}

    def wants(self, f: Any) -> bool:
        if not isinstance(f, Field) or f.grad is None:
            return False
        return self.wanted if isinstance(self.wanted, bool) else f in self.wanted

    def _of(self, f: Field, span: Span | None) -> Field:
        # Made at the first use, and as large as the field; most fields of a tape are never stored to.
        if f not in self.kept:
            self.kept[f] = made = Field(f.dtype.arithmetic, f.element, kind="array", is_grad=True)
            made.place(f.shape)
        self.spans[f] = span
        return self.kept[f]

    def instead(self, plain: Derivative, args: tuple[Any, ...]) -> Derivative:
        """Return the derivative to run in place of this one.

        Raises:
            AutodiffError: its minimum or maximum hands on a gradient that is to be kept, or states between
                its loops have gradients of their own.
        """
        special = plain.specialization
        wanted = [s for s in _writes(plain) if self.wants(special.object_of(s.mem, args))]
        for s in wanted:
            f = special.object_of(s.mem, args)
            assert isinstance(f, Field)
            # Its adjoint exchanges the gradient for 0, so there is no one value whose gradient it is.
            if isinstance(s, Atomic) and s.op in ("min", "max"):
                raise AutodiffError(
                    f"the gradient of {f.name} cannot be kept: ds.atomic_{s.op} hands it on to the "
                    "update that won",
                    s.span,
                    hint=f"name the fields to keep, and leave {f.name} out: retain_grad=[...]",
                )
            # What later loops of the kernel add for the value stored goes to the gradient of a state.
            if plain.has_versions(s.mem):
                raise AutodiffError(
                    f"the gradient of {f.name} cannot be kept: {special.name} needs {f.name} between its "
                    "loops",
                    s.span,
                    hint=f"split the kernel, or leave {f.name} out: retain_grad=[...]",
                )
        stored = {s.mem: s.span for s in wanted if isinstance(s, Store)}
        if not stored:
            return plain
        # Which fields are wanted changes the code of the adjoint, not only its arguments.
        key = (RetainingDerivative, frozenset(stored))
        made: RetainingDerivative | None = plain.variants.get(key)
        if made is None:
            made = plain.variants[key] = RetainingDerivative(plain, stored)
        for mem, copy in made.retained.items():
            f = special.object_of(mem, args)
            executable = made.derivative.executable
            executable.bind_array(copy, self._of(f, stored[mem]).address, f.shape)
        return made.derivative

    def clearing(self, f: Field, index: Elements, span: Span | None = None) -> None:
        """Retain the gradient of elements that the adjoint of a write from Python is about to clear."""
        if self.wants(f):
            assert f.grad is not None
            # The host copy of the gradient suffices: writes from Python are rare beside launches.
            there = numpy_index(f, index)
            self._add(f, there, values_of(f.grad)[there], span)

    def _add(self, f: Field, there: Any, taken: np.ndarray, span: Span | None) -> None:
        # Gradients of 0 leave no trace, so that a value without effect does not count as one of two.
        if not taken.any():
            return
        kept = self._of(f, span)
        with editing(kept) as array:
            both = np.zeros(array.shape, bool)
            both[there] = (array[there] != 0) & (taken != 0)
            self._refuse(f, both)
            array[there] += taken

    def _refuse(self, f: Field, both: np.ndarray) -> None:
        if both.any():
            at = np.argwhere(both)[0][: len(f.shape)]
            where = shown_index(f.origin, at)
            raise AutodiffError(f"{f.name}[{where}] {TWO_VALUES}", self.spans.get(f), hint=_HINT)

    def before(self, entry: Replaced) -> dict[Field, np.ndarray]:
        """Return the gradients that a function with a gradient of its own may clear."""
        fields = [f for e in flat([entry]) for f in e.writes()]
        return {
            f: np.array(values_of(f.grad)) for f in fields if self.wants(f) and f.grad is not None
        }

    def after(self, before: dict[Field, np.ndarray] | None) -> None:
        """Retain what it cleared."""
        for f, old in (before or {}).items():
            assert f.grad is not None
            now = values_of(f.grad)
            # What the function did is not known; an element whose gradient changed counts as cleared by
            # it.
            changed = now != old
            self._refuse(f, changed & (old != 0) & (now != 0))
            self._add(f, ..., np.where(changed, old, 0), None)

    def finish(self) -> None:
        """Add the retained gradients to the gradients of their fields."""
        for f, kept in self.kept.items():
            assert f.grad is not None
            # What is left in the gradient belongs to the value from before the program, which is one
            # more value.
            self._refuse(f, (values_of(kept) != 0) & (values_of(f.grad) != 0))
            f.grad.storage.add(kept.storage)
            f.grad._touch()
