"""One recording of a line whose turns are alike, or take turns: what it takes to write over it.

A loop with steps of its own choosing (adaptive time steps, a search that ends early) records one of a few
programs in each turn. The steady tape of its line (`steady.py`) has a variant for each of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.arguments import frozen
from diffsim.ad.record.entries import Launched, Wrote
from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.record import Record, fields_among
from diffsim.ad.repeat.known import Known
from diffsim.ad.repeat.past import COPIED, MOST, NUMBERS, Past
from diffsim.ad.repeat.repetition import is_same
from diffsim.ad.reverse.inputs import inputs_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization

Form = tuple[Any, ...] | None
"""The thing at a place of a record: a kernel and the fields it was given, or a write; None: its end."""

FEW = 10
"""Launches from which on a pass on the CPU has a native program."""

MOST_BYTES = MOST >> 5
"""Bytes of a recording, and of all variants of a line."""


class Variant:
    """A recording whose pass needs no check, to be written over.

    Attributes:
        past: the recording.
        record: its record.
        known: what was found out about it.
        count: the number of its entries.
        kernels, things, times, specials: the columns of its record.
        fields: the numbers of the fields among arguments, by the numbers of kernels.
        forms: of each entry.
        inputs: what its writes set as inputs.
        adjoints: weak references to the gradients of the fields on it.
        follows: which variant went on where this one did not, by the place and what came there.
        is_long: whether its pass should have a native program.
        passes: how many there were.
        is_held: whether what it needs is kept alive.
        held: what that is.
    """

    __slots__ = (
        "_kernel_refs",
        "_refs",
        "_stored",
        "_with_fields",
        "adjoints",
        "count",
        "fields",
        "follows",
        "forms",
        "held",
        "inputs",
        "is_held",
        "is_long",
        "kernels",
        "known",
        "passes",
        "past",
        "record",
        "specials",
        "things",
        "times",
    )

    def __init__(
        self, past: Past, record: Record, known: Known, *, is_worth_a_program: bool
    ) -> None:
        self.past = past
        self.record = record
        self.known = known
        self.count = len(record)
        self.is_long = past.is_native or is_worth_a_program
        self.passes = 0
        self.is_held = True
        self.held: Sequence[Any] = ()
        self.follows: dict[tuple[int, Form], Variant] = {}
        self.kernels, self.things, self.times, self.specials = record.columns()
        self.fields = record.fields_by_number()
        self._refs = [weakref.ref(special) for special, _ in self.specials]
        self._kernel_refs = [*zip(self._refs, [single for _, single in self.specials], strict=True)]
        rows = enumerate(self.kernels)
        self._with_fields = [k for k, number in rows if number >= 0 and self.fields[number]]
        self._stored = [k for k, number in enumerate(self.kernels) if number < 0]
        self.forms = [self._form(k) for k in range(self.count)]
        self.inputs = inputs_of(record) if known.writes else []
        found = fields_of(record.firsts())
        gradients = (f.adjoint for f in found if f.kind != "argument")
        self.adjoints = [weakref.ref(g) for g in gradients if g is not None]

    @classmethod
    def of(cls, past: Past, loss: Field | None) -> Variant | None:
        """Return the recording as a variant; None: it wants more than that.

        `loss`: of its tape; None: `tape.backward` is given it.
        """
        record, known = past.record, past.known
        if record is None or past.bytes > MOST_BYTES or not isinstance(known, Known):
            return None
        if not known.suffices_for_others(record):
            return None
        if past.is_native and (loss is None or not past.is_plain):
            return None
        if loss is not None and not known.leads_to(loss):
            return None
        # Of copies of arrays nobody asks whether they are the same.
        copied = any(isinstance(e, Launched) for e in record.stored())
        if known.by_arguments and (past.is_native or copied):
            return None
        made: Variant | None = past.variant
        if made is None or not made.is_of(record, known):
            plain = loss is not None and record.is_plain and not known.by_arguments
            worth = plain and len(record) >= FEW and session.backend.name == "cpu"
            made = past.variant = cls(past, record, known, is_worth_a_program=worth)
        made.is_held = True
        return made

    def is_of(self, record: Record, known: Known) -> bool:
        """Return whether it was made of a record, and of what is known of that."""
        return self.known is known and self.record is record and self.things is record.columns()[1]

    # ---- what keeps alive

    def hold(self) -> bool:
        """Keep kernels and fields alive; returns whether all of them are still there."""
        if self.is_held:
            return True
        past = self.past
        held = past.found()
        if held is None:
            return False
        self.held, self.is_held = held, True
        specials: list[Any] = self.specials
        specials.clear()
        for ref, single in self._kernel_refs:
            specials.append((ref(), single))
        if self._stored:
            past.hold_stored()
        if past.native is not None:
            past.native.strengthen(self.record)
        return True

    def release(self) -> None:
        """Keep no kernel and no field alive."""
        self.held, self.is_held = (), False
        if self._stored:
            self.past.release_stored()
        self.specials.clear()
        # Fields among the arguments are those that the forms say, also in a native program.
        for k in self._with_fields:
            self.things[k] = None
        if self.past.native is not None:
            self.past.native.weaken()
            self.record.forget_firsts()

    # ---- the same events

    def _form(self, k: int) -> Form:
        number, thing = self.kernels[k], self.things[k]
        if number >= 0:
            return self._refs[number], self.fields[number]
        if isinstance(thing, Launched):
            return weakref.ref(thing.special), tuple(map(_field_number, thing.args))
        assert isinstance(thing, Wrote)
        assert isinstance(thing.value, np.ndarray)
        return form_of_write(thing.field, thing.index, thing.value)

    def take_over(self, other: Variant, count: int) -> bool:
        """Take over the first entries of another variant, of the same forms; False: arguments decide."""
        if self.known.by_arguments:
            for k in range(count):
                if self.kernels[k] >= 0 and not same_arguments(self.things[k], other.things[k]):
                    return False
        for k in range(count):
            if self.kernels[k] >= 0:
                self.things[k] = other.things[k]
            else:
                _take_over(self.things[k], other.things[k])
        self.times[:count] = other.times[:count]
        return True


def _take_over(mine: Launched | Wrote, other: Launched | Wrote) -> None:
    if isinstance(mine, Launched):
        assert isinstance(other, Launched)
        mine.given, mine.args, mine.now = other.given, other.args, other.now
        mine.returned = other.returned
        return
    assert isinstance(other, Wrote)
    mine.value, mine.writer = other.value, other.writer


def _field_number(a: object) -> int:
    return a.number if a.__class__ is Field else -1


def form_of_launch(special: Specialization, args: tuple[Any, ...]) -> Form:
    """Return the form of a launch."""
    if any(a.__class__ in COPIED for a in args):
        return weakref.ref(special), tuple(map(_field_number, args))
    return weakref.ref(special), fields_among(args)


def copies_of(args: tuple[Any, ...], known: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the arguments of a launch, with copies of arrays; None: other fields than the known ones.

    Raises:
        AutodiffError: as `frozen`.
    """
    made = []
    for a, b in zip(args, known, strict=True):
        if a.__class__ in NUMBERS:
            made.append(a)
        elif a.__class__ is Field:
            if a is not b:
                return None
            made.append(a)
        elif a.__class__ in COPIED and b.__class__ is not Field:
            made.append(frozen(a))
        else:
            return None
    return tuple(made)


def same_arguments(some: Any, others: Any) -> bool:
    """Return whether the arguments of two launches, as records have them, are equal to the last bit."""
    if some.__class__ is tuple and others.__class__ is tuple:
        return all(a is b or is_same(a, b) for a, b in zip(some, others, strict=True))
    return some is others or is_same(some, others)


def form_of_write(field: Field, index: Any, value: np.ndarray) -> Form:
    """Return the form of a write; whether a value is 0 decides whether Python may have computed it."""
    return field.number, index, value.item() != 0 if value.size == 1 else bool(value.any())


def is_current(variant: Variant) -> bool:
    """Return whether fields have the gradients that they had."""
    return variant.known.changes == session.with_grad.changes
