"""The commands of a replayed tape: command lists of the backend, with steps in Python between them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diffsim.runtime.backend import CommandList
from diffsim.runtime.executable import BoundArray
from diffsim.runtime.fields.conversions import number_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import StridedSpan, matching_spans
from diffsim.runtime.memory.versions import Stamp
from diffsim.runtime.observe.profiler import ADJOINT, KernelTimer, timer_of
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
        timed: with `kernel_profiler=True`, kernel and direction of each launch, which is a part by itself.
    """

    def __init__(self) -> None:
        self.parts: list[CommandList | Callable[[], Any]] = []
        self.kept: list[Any] = []
        self.reached: Place = (0, 0)
        self.timed: dict[int, tuple[str, str]] = {}

    def native(self) -> CommandList:
        """Return the command list to add to; a new one after a step in Python."""
        last = self.parts[-1] if self.parts else None
        # As few lists as possible: each change between native code and Python costs microseconds, and
        # on a GPU each list is a graph of its own.
        if last is None or callable(last) or len(self.parts) - 1 in self.timed:
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
        direction = special.direction if compiled is special.executable else ADJOINT
        commands = self.for_launch(special.name, direction)
        commands.add_launch(compiled, arguments.scalars(args), seed, arrays)
        if compiled.prints:
            self.parts.append(compiled.show)

    def for_launch(self, name: str, direction: str) -> CommandList:
        """Return the command list to add a launch to; one of its own, if launches are measured."""
        if not session.options.kernel_profiler:
            return self.native()
        commands = session.backend.new_command_list()
        self.timed[len(self.parts)] = name, direction
        self.parts.append(commands)
        return commands

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
        timers = self._timers() if self.timed else {}
        now = session.clock
        for number, part in enumerate(self.parts):
            self.reached = number, 0
            if callable(part):
                part()
                continue
            timer = timers.get(number)
            start = None if timer is None else timer.mark()
            # The exact command matters after a failure: only what was put aside is put back.
            try:
                part.run()
            finally:
                self.reached = number, part.done
            if timer is not None:
                # The clock moves on when all has run; each launch has a reading of its own meanwhile.
                now += 1
                timer.add(now, start, timer.mark())
        self.reached = len(self.parts), 0

    def _timers(self) -> dict[int, KernelTimer]:
        """Return what measures the launches, by their parts."""
        timers = {key: timer_of(*key, session.backend.device) for key in set(self.timed.values())}
        both = ((number, timers[key]) for number, key in self.timed.items())
        return {number: timer for number, timer in both if timer is not None}

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
    return storage.layout.element(storage.address, number_of(field, index))
