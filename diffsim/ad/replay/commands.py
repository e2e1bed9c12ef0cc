"""The commands of a replayed tape: command lists of the backend, with steps in Python between them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diffsim.runtime.backend import CommandList
from diffsim.runtime.executable import BoundArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import StridedSpan, matching_spans
from diffsim.runtime.memory.versions import Stamp
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ad.record.replaced import Replaced
    from diffsim.ad.replay.copies_in_place import CopiesInPlace
    from diffsim.runtime.kernels.specialization import Specialization

Place = tuple[int, int]
"""A command of a program: the number of its part, and the command in that part."""


class Program:
    """Command lists of the backend, with steps in Python between them.

    Attributes:
        parts: in order; a callable is a step in Python.
        kept: memory that the commands refer to by address, which must stay alive as long.
        reached: after a run, the first command that was not done.
    """

    def __init__(self) -> None:
        self.parts: list[CommandList | Callable[[], Any]] = []
        self.kept: list[Any] = []
        self.reached: Place = (0, 0)

    def native(self) -> CommandList:
        """Return the command list to add to; a new one after a step in Python."""
        last = self.parts[-1] if self.parts else None
        # As few lists as possible: each change between native code and Python costs microseconds, and
        # on a GPU each list is a graph of its own.
        if last is None or callable(last):
            last = session.backend.new_command_list()
            self.parts.append(last)
        return last

    def launch(
        self,
        special: Specialization,
        compiled: Any,
        args: tuple[Any, ...],
        seed: int,
        copies: CopiesInPlace | None = None,
    ) -> None:
        """Add a launch of the executable of a kernel, or of its adjoint, which loads from these copies."""
        arrays: list[BoundArray] = []
        moved = {} if copies is None else copies.of_arrays()
        arguments = special.arguments
        given = zip(arguments.parameters, args, strict=True)
        # Arrays are bound by address now, not at each run: their memory belongs to fields that the
        # record keeps.
        for p, a in given if arguments.arrays else ():
            if p.kind == "array":
                mem = arguments.arrays[p.name]._mem
                arrays.append((mem, moved[a].address if a in moved else a.address, a.shape))
                if mem.grad is not None and a.grad is not None:
                    arrays.append((mem.grad, a.grad.address, a.shape))
        for _, mem, place in [] if copies is None else copies.bound(special):
            arrays.append((mem, place.address, ()))
        self.native().add_launch(compiled, arguments.scalars(args), seed, arrays)
        if compiled.prints:
            self.parts.append(compiled.show)

    def copy(self, target: StridedSpan, source: StridedSpan, *kept: Any) -> None:
        """Add a copy between memories that `kept`, or the record, keep alive."""
        self.kept += kept
        self.native().add_copy(target, source)

    def copy_all(self, target: Field, source: Field) -> None:
        """Add a copy of a whole field; in Python where layouts or types differ."""
        to, of = target.storage, source.storage
        found = matching_spans(to, of)
        # Different layouts or types: an element-wise conversion in Python, and a new list after it.
        if found is None:
            self.parts.append(functools.partial(to.copy_from, of))
        else:
            self.copy(*found, to, of)

    def clear(self, target: StridedSpan) -> None:
        """Add setting memory to 0."""
        self.native().add_clear(target)

    def add(self, target: Field, source: Field) -> None:
        """Add the addition of a whole field to another."""
        to, of = target.storage, source.storage
        found = matching_spans(to, of)
        if found is None:
            self.parts.append(functools.partial(to.add, of))
        else:
            self.native().add_sum(*found, target.dtype)

    def solve(self, step: Callable[[], Any], entry: Replaced) -> None:
        """Add a solve, or its adjoint, which run in Python."""
        self.parts.append(step)

    def last(self) -> Place:
        """Return the command added last."""
        part = self.parts[-1]
        return len(self.parts) - 1, 0 if callable(part) else len(part) - 1

    def run(self) -> None:
        """Run all commands; `reached` tells how far it got if one fails."""
        for number, part in enumerate(self.parts):
            self.reached = number, 0
            if callable(part):
                part()
                continue
            # The exact command matters after a failure: only what was put aside is put back.
            try:
                part.run()
            finally:
                self.reached = number, part.done
        self.reached = len(self.parts), 0

    def run_one(self, place: Place) -> None:
        """Run a single command."""
        number, operation = place
        part = self.parts[number]
        if callable(part):
            part()
        else:
            part.run(operation, operation + 1)


def note_writes(stamps: list[Stamp]) -> None:
    """Let code in Python know of the native writes before it: gradients may no longer be 0."""
    for stamp in stamps:
        stamp.versions.may_be_nonzero()


def elements_of(field: Field, index: tuple[int, ...] | None) -> StridedSpan:
    """Return the memory of an element of a field (None: of all)."""
    storage = field.storage
    if index is None:
        return storage.layout.part(storage.address)
    return storage.layout.element(storage.address, field._place(index))
