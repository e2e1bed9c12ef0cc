"""How the lanes of a task are scheduled: private copies, a fixed order, what is uniform.

Passes write these onto a `Task`; a backend carries them out and decides nothing that they settle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from diffsim.ir.nodes import Atomic, For, Let, Load, Mem, Stmt, Store, Value
from diffsim.ir.types import size_of

EMPTY: Mapping[Any, Any] = MappingProxyType({})
_CACHED_BYTES = 1 << 21  # of a copy with slots: about one core's share of the caches
_AT_ONCE = 128  # bits that a lane accesses at once
_FEWEST_SLOTS = 4  # with fewer, folding a vector into one scalar is as fast


class AlignedRows(NamedTuple):
    """Rows of lanes that begin with idle ones, so that vectors of lanes are aligned in memory.

    Attributes:
        lead: idle lanes in front of a row.
        lanes: lanes of a row, idle ones at both ends included: a multiple of those of a vector.
        once: statements of the body that are the same for all lanes of a row.
    """

    lead: int
    lanes: int
    once: frozenset[Stmt]


class Privatized:
    """Additions of a parallel task to one memory that threads may make in private copies of it.

    Invariant: the task touches the part of `mem` that `prefix` selects by these additions alone.

    Attributes:
        mem: the memory.
        prefix: the first indices, equal in all of the additions: each a leaf plus a constant (leaf None:
            the constant).
        atomics: the additions.
        count: about how many of them a lane makes.
        meeting: how many of these go to an element that is the same for all lanes along the last axis.
        axis: the axis of the memory that is the last one in a copy; None: it has the memory's order of axes.
    """

    __slots__ = ("atomics", "axis", "count", "meeting", "mem", "prefix")

    def __init__(
        self,
        mem: Mem,
        prefix: tuple[tuple[Value | None, int], ...],
        atomics: frozenset[Atomic],
        count: int,
        meeting: int,
        axis: int | None = None,
    ) -> None:
        self.mem = mem
        self.prefix = prefix
        self.atomics = atomics
        self.count = count
        self.meeting = meeting
        self.axis = axis

    @property
    def scalars(self) -> int:
        """Scalars in one copy."""
        return scalars_within(self.mem, len(self.prefix))

    def slots(self, most: int) -> int:
        """Return how many numbers a copy has for each scalar where lanes run as vectors.

        Where the lanes of a vector mostly add to the same element, each of them adds to a slot of its own:
        folding the vector in every iteration would cost more than all the rest of the loop.
        """
        # Slots pay where nearly all additions meet; each other one would have to choose a slot by its
        # lane.
        if self.meeting <= 8 * (self.count - self.meeting):
            return 1
        # Halved until it fits into the cache: a copy that falls out of it costs more than folding
        # vectors.
        width = self.scalars * self.mem.dtype.scalar.bytes
        while most >= _FEWEST_SLOTS and most * width > _CACHED_BYTES:
            most //= 2
        return most if most >= _FEWEST_SLOTS else 1


class Packed:
    """Loads of a parallel task from a memory that it does not write, made from a copy in another order.

    Attributes:
        mem: the memory.
        prefix: the first indices, equal in all of the loads, as of `Privatized`: the copy has none of them.
        axis: the axis of the memory that is the last one in the copy, where neighbours are side by side.
        loads: the loads.
    """

    __slots__ = ("axis", "loads", "mem", "prefix")

    def __init__(
        self,
        mem: Mem,
        prefix: tuple[tuple[Value | None, int], ...],
        axis: int,
        loads: frozenset[Load],
    ) -> None:
        self.mem = mem
        self.prefix = prefix
        self.axis = axis
        self.loads = loads


Access = Load | Store | Atomic


class Neighbours:
    """Accesses of one kind and memory whose indices differ by constants, and which a lane makes at once.

    Attributes:
        accesses: loads, made where the first one stands, or stores or additions, where the last one does.
        shifts: of each access, the constants in its indices; all else in them is the same.
        step: how many scalars apart two lanes' elements are; None: anywhere. 1: additions, some of them
            to elements of lanes beside.
    """

    __slots__ = ("accesses", "shifts", "step")

    def __init__(
        self,
        accesses: tuple[Access, ...],
        shifts: tuple[tuple[int, ...], ...],
        step: int | None = None,
    ) -> None:
        self.accesses = accesses
        self.shifts = shifts
        self.step = step

    def offsets(self, strides: Sequence[int | None]) -> list[int]:
        """Return how many scalars each access is behind the first; empty where that is not known.

        Args:
            strides: of the last indices, in scalars; None: known at the launch only.
        """
        found, skip = [], len(self.shifts[0]) - len(strides)
        for shifts in self.shifts:
            away = [a - b for a, b in zip(shifts[skip:], self.shifts[0][skip:], strict=True)]
            if any(d and n is None for d, n in zip(away, strides, strict=True)):
                return []
            found.append(sum(d * n for d, n in zip(away, strides, strict=True) if n is not None))
        return found

    def pieces(self, offsets: Sequence[int]) -> list[list[int]]:
        """Return the runs of neighbours that a lane accesses at once."""
        most = _AT_ONCE // self.accesses[0].mem.dtype.scalar.bits
        runs: list[list[int]] = []
        for o in sorted(set(offsets)):
            if runs and runs[-1][-1] == o - 1 and len(runs[-1]) < most:
                runs[-1].append(o)
            else:
                runs.append([o])
        return runs


class Appends:
    """Serial loops, innermost ones of scalar lanes, whose iterations run as vectors but for counters.

    A counter is a value that a loop carries: how much it has stored. It grows by one in the iterations that
    take a branch, and is used only for the places of what these store, and for tests against bounds.

    Attributes:
        loops: the loops.
        counter_of: values that hold a counter inside, or behind the loop, and which one.
        steps: the statements that count, and what.
        tests: comparisons of a counter, an operand, with what is the same for the whole loop.
        stores: of what is kept, and which index follows the counter.
        divergent: the values that may differ between iterations.
        neighbours: accesses that an iteration makes together.
    """

    __slots__ = (
        "counter_of",
        "divergent",
        "loops",
        "neighbours",
        "steps",
        "stores",
        "tests",
    )

    def __init__(
        self,
        loops: frozenset[For] = frozenset(),
        counter_of: Mapping[Value, Value] = EMPTY,
        steps: Mapping[Let, Value] = EMPTY,
        tests: Mapping[Let, Value] = EMPTY,
        stores: Mapping[Store, int] = EMPTY,
        divergent: frozenset[Value] = frozenset(),
        neighbours: tuple[Neighbours, ...] = (),
    ) -> None:
        self.loops = loops
        self.counter_of = counter_of
        self.steps = steps
        self.tests = tests
        self.stores = stores
        self.divergent = divergent
        self.neighbours = neighbours


class FixedOrder:
    """How the lanes of a parallel task give the same bits whichever thread runs them.

    Attributes:
        logged: updates that each chunk notes, and that are made later in the order of the lanes.
        serial: whether all lanes run one after the other, on one thread, instead.
    """

    __slots__ = ("logged", "serial")

    def __init__(self, logged: frozenset[Atomic | Store], *, serial: bool) -> None:
        self.logged = logged
        self.serial = serial


class Uniform:
    """Values that all lanes of a task agree on, at any point of the program.

    Attributes:
        atomics: updates that every lane runs the same number of times, each time on one element.
        counts: sizes of scratch that can be computed before the first lane starts.
    """

    __slots__ = ("atomics", "counts")

    def __init__(self, atomics: frozenset[Atomic], counts: frozenset[Value]) -> None:
        self.atomics = atomics
        self.counts = counts


def scalars_within(mem: Mem, given: int) -> int:
    """Count the scalars in the part of a memory of known shape whose first `given` indices are given."""
    assert mem.shape is not None
    n = size_of(mem.dtype)
    for d in mem.shape[given:]:
        n *= d
    return n
