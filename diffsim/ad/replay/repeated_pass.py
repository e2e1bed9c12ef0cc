"""The native backward pass of launches that are recorded again and again, with other numbers as arguments.

Which adjoint finds what its launch saw is decided by whole numbers alone: times, indices. Where these are the
same, the program of the last pass is run, with the other arguments written into its stream of launches
(docs/adr/0070).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.entries import all_written
from diffsim.ad.record.record import Record
from diffsim.ad.repeat.repetition import is_same as is_same_number
from diffsim.ad.replay.program import Replay
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.binding.arguments import Parameter
    from diffsim.runtime.kernels.specialization import Specialization


class RepeatedPass:
    """The adjoints of a record of plain launches as a native program.

    Attributes:
        is_possible: whether there is such a program; else the adjoints are launched one by one.
    """

    def __init__(self, record: Record) -> None:
        self._replay = Replay(record, session.generation, all_written(record.firsts()))
        self.is_possible = True
        self._packed: list[Any] = []  # the arguments of each row as they are in the program
        self._rows: list[_Row] = []
        # If its arguments cannot be changed: those that are no fields, by rows and places in these.
        self._fixed: list[tuple[int, list[int], list[Any]]] | None = None
        self._has_zeros: bool | None = None  # whether a float among them is 0, if that was asked

    def weaken(self) -> None:
        """Keep no kernels and fields alive."""
        self.is_possible = self.is_possible and self._replay.weaken()

    def strengthen(self, record: Record) -> None:
        """Undo `weaken`."""
        self.is_possible = self.is_possible and self._replay.strengthen(record)

    def run(self, record: Record, start: int, end: int) -> bool:
        """Run the adjoints, for launches between these readings of the clock.

        Returns:
            Whether it did; if not, each adjoint has to ask for itself whether it finds what its launch saw.
        """
        # A reading too many tells of a write that is not on the record.
        if not self.is_possible or not record.is_gapless:
            return False
        made = self._packed or self._fixed is not None
        if made and not self._pack(record):
            return False
        for v in self._replay.zeros:
            if v.dirty:
                return False
        self._replay.repeated(record, start, end)
        if not self._replay.backward():
            return False
        if not made:
            self._find_places(record)
        return True

    def _pack(self, record: Record) -> bool:
        """Write the arguments that are others into the program; False: whole numbers among them are."""
        _, things, _, _ = record.columns()
        if self._fixed is not None:
            return all(_are_same(things[k], places, args) for k, places, args in self._fixed)
        packed = self._packed
        # Nearly all recordings are the last one again: one comparison in place of one for each row. What is
        # equal is the same to the last bit, but for zeros.
        if self._has_zeros is False and things == packed:
            return True
        changed = False
        for k, (a, b, row) in enumerate(zip(things, packed, self._rows, strict=True)):
            if a is b or (a == b and not (0 in a if a.__class__ is tuple else a == 0)):
                continue
            if row.whole is not None and row.whole(a) != row.whole(b):
                return False
            row.write(a)
            changed = changed or a != b  # not for zeros that stay
            packed[k] = a
        if changed:
            self._has_zeros = None
        elif self._has_zeros is None:
            self._note_zeros()
        return True

    def _note_zeros(self) -> None:
        """Note whether a float among the packed arguments is 0."""
        rows = zip(self._packed, self._rows, strict=True)
        self._has_zeros = any(row.has_zero(a) for a, row in rows)

    def _find_places(self, record: Record) -> None:
        """Find where the arguments of each row are in the program."""
        kernels, things, _, specials = record.columns()
        places = self._replay.argument_places()
        left_out = self._replay.left_out
        rows = (k for k in range(len(things)) if k not in left_out)
        with_adjoint = [k for k in rows if specials[kernels[k]][0].differentiable]
        # A graph of a GPU, launches with other commands between them, or with fields as arguments. Which
        # fields these are is known where the record is written over, and nothing here may keep them alive.
        if places is None or len(places) != len(with_adjoint):
            given = ((k, *_without_fields(thing)) for k, thing in enumerate(things))
            self._fixed = [row for row in given if row[1]]
            return
        self._packed = list(things)
        of_row = dict(zip(reversed(with_adjoint), places, strict=True))
        forms = [_Form(special, single=single) for special, single in specials]
        self._rows = [_Row(forms[number], of_row.get(k)) for k, number in enumerate(kernels)]


class _Form:
    """The arguments of a kernel, as rows of a record have them.

    Attributes:
        floats: the places of those that are floats.
        whole: takes the others, which decide elements and branches; None: there are none.
        scalars: converts arguments that `struct` does not take as they are.
        is_plain: whether `struct` takes them: it would take anything for a boolean.
    """

    def __init__(self, special: Specialization, *, single: bool) -> None:
        self.single = single
        parameters = special.arguments.parameters
        whole = [k for k, p in enumerate(parameters) if not _is_float(p)]
        self.floats = [k for k, p in enumerate(parameters) if _is_float(p)]
        self.whole: Callable[[Any], Any] | None = itemgetter(*whole) if whole else None
        if whole and single:
            self.whole = _itself
        self.scalars = special.arguments.scalars
        self.is_plain = not any(p.type is None or p.type.is_bool for p in parameters)


class _Row:
    """The place of a launch's arguments in a program; None: its kernel has no adjoint."""

    __slots__ = ("_form", "_place", "whole")

    def __init__(self, form: _Form, place: tuple[Any, int, Any] | None) -> None:
        self._form = form
        self._place = place
        self.whole = form.whole

    def has_zero(self, given: Any) -> bool:
        """Return whether a float among the arguments is 0."""
        args = (given,) if self._form.single else given
        return any(args[k] == 0 for k in self._form.floats)

    def write(self, given: Any) -> None:
        """Write arguments to the place, as launch functions do."""
        if self._place is None:
            return
        stream, at, packing = self._place
        args = (given,) if self._form.single else given
        if self._form.is_plain:
            try:
                packing.pack_into(stream, at, *args)
                return
            except Exception:  # converted, as what `struct` does not take
                pass
        packing.pack_into(stream, at, *self._form.scalars(args))


def _is_float(p: Parameter) -> bool:
    return p.type is not None and p.type.is_float and not p.type.shape


def _without_fields(given: Any) -> tuple[list[int], list[Any]]:
    """Return the arguments of a row that are no fields: their places and themselves."""
    args = given if given.__class__ is tuple else (given,)
    places = [k for k, a in enumerate(args) if a.__class__ is not Field]
    return places, [args[k] for k in places]


def _are_same(given: Any, places: list[int], others: list[Any]) -> bool:
    """Return whether the arguments at some places of a row are equal to these, to the last bit."""
    args = given if given.__class__ is tuple else (given,)
    pairs = ((args[k], b) for k, b in zip(places, others, strict=True))
    return all(a is b or is_same_number(a, b) for a, b in pairs)


def _itself(number: Any) -> Any:
    return number
