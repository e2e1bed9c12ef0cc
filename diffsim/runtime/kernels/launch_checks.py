"""Asks a launch for the conditions under which its adjoint is right (`passes/autodiff/launch_conditions.py`).

A condition with a test of the arguments is asked by that, in nanoseconds. Where the test fails, or none is
there, the elements that the launch accesses are written down by a kernel of their own and compared. They
depend on a few arguments and on fields, such as an index field; as long as those have not changed, what was
found is not asked again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import GlobalDataAccessError, together
from diffsim.ir.layout import shown_index
from diffsim.ir.nodes import Arg, Const, Dim, Mem, Value
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import Type, i64, size_of
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.launch_tests import LaunchTest, Polynomial
from diffsim.passes.autodiff.index_trace import IndexTrace, index_trace
from diffsim.passes.autodiff.launch_conditions import LaunchCondition, Meeting, Sites
from diffsim.passes.autodiff.reverse import Adjoint
from diffsim.runtime.binding.arguments import flatten
from diffsim.runtime.executable import BoundArray, Executable
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import LaunchArguments
from diffsim.runtime.kernels.instrumentation import compiled
from diffsim.runtime.launch_text import Writer
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.passes.analysis.regions import RegionAccess
    from diffsim.runtime.kernels.specialization import Specialization

_SPARSE = 8
"""Elements that lie further apart are sorted; a table of all between them would take too much memory."""
_MOST_KNOWN = 1 << 12
"""Launches whose answer is remembered."""


class LaunchChecks:
    """The conditions of one adjoint, asked of launches of its kernel.

    Attributes:
        conditions: what must be so.
        reads: the loads that indices are computed from: they must be as they were at the launch.
    """

    def __init__(self, special: Specialization, adjoint: Adjoint) -> None:
        self.special = special
        self.conditions = adjoint.conditions
        sites: dict[int, dict[Access, None]] = {}
        for c in adjoint.conditions:
            for s in (c.one, c.other):
                sites.setdefault(s.number, {}).update(dict.fromkeys(s.accesses))
        self._traces = {
            number: _TraceRun(
                special, index_trace(adjoint.primal, number, list(found), assume=True)
            )
            for number, found in sites.items()
        }
        self.reads = [a for run in self._traces.values() for a in run.reads]
        self._known: dict[Any, None] = {}

    # ---- tests of the arguments

    @locked_cached_property
    def tested(self) -> dict[str, None]:
        """The names of the arguments that the tests need as numbers."""
        leaves = (v for c in self.conditions if c.test is not None for v in c.test.leaves())
        return dict.fromkeys(v.hint for v in leaves if isinstance(v, Arg))

    def test_text(self) -> str | None:
        """Return the tests as an expression of the arguments' names; None if they decide nothing."""
        tests = [c.test for c in self.conditions]
        if any(t is None for t in tests):
            return None
        name_of = self.special.arguments.array_name
        return " and ".join(dict.fromkeys(_test_text(t, name_of) for t in tests if t is not None))

    def failing(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[int]:
        """Return the numbers of the launches, given by their arguments, whose tests do not hold."""
        test = self.test_text()
        return range(len(rows)) if test is None else self._filter(rows)

    @locked_cached_property
    def _filter(self) -> Callable[[Sequence[tuple[Any, ...]]], list[int]]:
        names = [p.name for p in self.special.arguments.parameters]
        test = self.test_text() or ""
        # NumPy's integers may wrap around in sums and products.
        if "+" in test or "*" in test:
            for name in self.tested:
                test = re.sub(rf"\b{name}\b", f"int({name})", test)
        w = Writer(f"{self.special.name}_tests", ["$rows"])
        row = "".join(f"{name}, " for name in names)
        w.emit(f"return [$k for $k, ({row}) in enumerate($rows) if not ({test})]")
        w.reserved += names
        return w.finish()

    # ---- one launch

    def refuse(self, args: tuple[Any, ...]) -> None:
        """Raise one error for all conditions that a launch does not meet."""
        if errors := list(self.errors(args)):
            raise together(errors)

    def fail(self, args: tuple[Any, ...]) -> bool:
        """Whether a launch with these arguments does not meet one of the conditions."""
        return any(True for _ in self.failures(args))

    def errors(self, args: tuple[Any, ...]) -> Iterator[GlobalDataAccessError]:
        """Yield an error for each condition that a launch with these arguments does not meet."""
        return (error for _, error in self.failures(args))

    def failures(
        self, args: tuple[Any, ...], known: Collection[int] = ()
    ) -> Iterator[tuple[int, GlobalDataAccessError]]:
        """Yield the numbers of the conditions that a launch does not meet, with their errors.

        Args:
            args: the arguments of the launch.
            known: the numbers of conditions that are not asked.
        """
        values = _Values(self.special.arguments, args)
        numbered = ((k, c) for k, c in enumerate(self.conditions) if k not in known)
        asked = [(k, c) for k, c in numbered if c.test is None or not c.test.holds(values)]
        if not asked:
            return
        # What is remembered is that all of them held.
        key = None if known else self._key(args, values)
        if key is not None and key in self._known:
            return
        found = {number: run.accesses(args) for number, run in self._traces.items()}
        failed = False
        for k, c in asked:
            meeting = self._meeting(c, found, values)
            if meeting is not None:
                failed = True
                yield k, c.error(meeting)
        if key is not None and not failed:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = None

    def may_be_asked(self, args: tuple[Any, ...], since: int) -> bool:
        """Whether what indices are computed from is as it was at a launch."""
        return _unchanged(self.special, self.reads, args, since)

    def _key(self, args: tuple[Any, ...], values: _Values) -> Any:
        """Return what the accessed elements depend on; None if it cannot be told."""
        leaves = {v for run in self._traces.values() for v in run.leaves}
        key: list[Any] = [values.whole(v) for v in sorted(leaves, key=lambda v: v.hint)]
        for a in self.reads:
            box = self.special.box(a, args)
            if box is None:
                return None
            f, row = box
            key += (f.number, row, _contents(f, row))
        # An assumption that a test made for other arguments is none about these.
        key += (c.test is None or not c.test.holds(values) for c in self.conditions)
        return tuple(key)

    def _meeting(
        self, c: LaunchCondition, found: dict[int, _Accesses], values: _Values
    ) -> Meeting | None:
        """Return two accesses that break a condition, if there are any."""
        at = _first_meeting(found[c.one.number], c.one, found[c.other.number], c.other, c.same_lane)
        if at is None:
            return None
        (k, one), (j, other) = at
        runs = self._traces[c.one.number], self._traces[c.other.number]
        lanes = found[c.one.number], found[c.other.number]
        arguments = {
            v.hint: values.whole(v)
            for run in runs
            for v in run.leaves
            if isinstance(v, Arg) and not v.type.shape
        }
        given = ", ".join(f"{name} = {value}" for name, value in sorted(arguments.items()))
        return Meeting(
            one,
            other,
            (lanes[0].lane_text(k), lanes[1].lane_text(j)),
            _element_text(one.mem, values, int(lanes[0].elements[k])),
            f"{given}: " if given else "",
        )


class _Values(Mapping[Value, int]):
    """The launch-wide values of a launch."""

    def __init__(self, arguments: LaunchArguments, args: tuple[Any, ...]) -> None:
        self._arguments = arguments
        self._args = args
        self._named = arguments.named(args)

    def whole(self, v: Value) -> Any:
        """Return a value as it is passed: a number, or a tuple of numbers."""
        if isinstance(v, Dim):
            return self[v]
        given = self._named[v.hint]
        if not v.type.shape:
            return np.asarray(given).item()
        p = next(p for p in self._arguments.parameters if p.name == v.hint)
        return tuple(flatten(p, given, self._arguments.kernel))

    def __getitem__(self, v: Value) -> int:
        if isinstance(v, Dim):
            return int(self._arguments.object_of(v.mem, self._args).shape[v.axis])
        return int(self._named[v.hint])

    def __iter__(self) -> Iterator[Value]:
        return iter(())

    def __len__(self) -> int:
        return len(self._named)


def _contents(f: Field, row: int | None) -> Any:
    """Return what tells the present contents of a field (or a row) from all others that it had."""
    versions = f.versions
    if row is not None:
        return versions.whole, versions.row(row)
    # A tape that restores a row sets its version back, so that `latest` alone does not tell.
    rows = np.asarray(versions.rows)
    return versions.whole, hashlib.blake2b(rows.tobytes(), digest_size=16).digest() if len(
        rows
    ) else b""


# ---- the tests as text, and for columns of arguments


def _test_text(test: LaunchTest, array_name: Any) -> str:
    """Return `t > u or u > t` for the test that t - u, or u - t, is positive."""
    clauses = []
    for clause in test.clauses:
        sides = (
            [
                _sum_text({p: sign * n for p, n in f.items() if sign * n > 0}, array_name)
                for f in clause
            ]
            for sign in (1, -1)
        )
        clauses.append(" and ".join(f"{x} > {y}" for x, y in zip(*sides, strict=True)))
    return f"({' or '.join(clauses)})"


def _sum_text(form: Polynomial, array_name: Any) -> str:
    terms = []
    for product, n in form.items():
        names = [
            f"{array_name(v.mem)}.shape[{v.axis}]" if isinstance(v, Dim) else v.hint
            for v in product
        ]
        terms.append("*".join(names if n == 1 and names else [str(n), *names]))
    return " + ".join(terms) or "0"


# ---- the elements that a launch accesses


@dataclass(frozen=True, slots=True)
class _Accesses:
    """The accesses of one task of a launch: arrays with an entry for each access, lanes in order.

    Attributes:
        sites: the traced accesses; `site`: the number of one.
        lane: the number of the lane.
        elements: the number of the element (and component).
        first, size: the first iteration of each axis, and how many there are.
        written: as that of the task.
    """

    sites: tuple[Access, ...]
    site: np.ndarray
    lane: np.ndarray
    elements: np.ndarray
    first: tuple[int, ...]
    size: tuple[int, ...]
    written: tuple[int, ...]

    def of(self, sites: Sites) -> np.ndarray:
        """Return the places of these accesses in the arrays."""
        numbers = [self.sites.index(a) for a in sites.accesses]
        if len(numbers) == len(self.sites):
            return np.arange(len(self.site))
        wanted = np.zeros(len(self.sites), bool)
        wanted[numbers] = True
        return np.flatnonzero(wanted[self.site])

    def lane_text(self, k: int) -> str:
        """Return the iteration of an entry as text."""
        at = np.unravel_index(int(self.lane[k]), self.size) if self.size else ()
        numbers = [str(int(i) + lo) for i, lo in zip(at, self.first, strict=True)]
        if len(self.written) == len(numbers):
            numbers = [numbers[k] for k in self.written]
        return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"


class _TraceRun:
    """Runs the trace of one task.

    Attributes:
        trace: the kernels.
        leaves: the arguments and dimensions that they use.
        reads: what they load from fields and arrays.
    """

    def __init__(self, special: Specialization, trace: IndexTrace | None) -> None:
        assert trace is not None  # each access was traced alone
        self.special = special
        self.trace = trace
        self.leaves = trace.leaves()
        self.reads = [
            a
            for ir in (trace.ir, trace.bounds_ir)
            for a in regions.reads(ir)
            if a.mem not in trace.own
        ]

    @locked_cached_property
    def _notes_code(self) -> Executable:
        return compiled(self.trace.ir, self.special.backend)

    @locked_cached_property
    def _bounds_code(self) -> Executable:
        return compiled(self.trace.bounds_ir, self.special.backend)

    def accesses(self, args: tuple[Any, ...]) -> _Accesses:
        """Return what a launch with these arguments accesses."""
        trace = self.trace
        limits = self._bounds(args)
        first = tuple(limits[::2])
        size = tuple(max(hi - lo, 0) for lo, hi in zip(limits[::2], limits[1::2], strict=True))
        lanes = int(np.prod(size, dtype=np.int64)) if size else 1
        counts = np.zeros(lanes, np.int64)
        notes = counts[:0]
        if lanes:
            # No room at first: the cursors then have moved by the number of notes of each lane.
            counts = self._run(args, counts, 0)[0]
            ends = np.cumsum(counts)
            notes = self._run(args, ends - counts, int(ends[-1]))[1]
        site, elements = notes % len(trace.sites), notes // len(trace.sites)
        lane = np.repeat(np.arange(lanes), counts)
        return _Accesses(trace.sites, site, lane, elements, first, size, trace.written)

    def _bounds(self, args: tuple[Any, ...]) -> list[int]:
        yields = self.trace.limits
        if all(isinstance(v, Const) for v in yields):
            return [int(v.value) for v in yields if isinstance(v, Const)]
        found = _array(np.zeros(len(yields), np.int64))
        self._launch(self._bounds_code, args, [(self.trace.bounds, found)])
        return _numbers(found).tolist()

    def _run(
        self, args: tuple[Any, ...], starts: np.ndarray, room: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the trace; returns the cursors after it, and the notes."""
        trace = self.trace
        cursor, limit, notes = map(
            _array, (starts, np.array(room, np.int64), np.zeros(room + 1, np.int64))
        )
        mems = (trace.cursor, cursor), (trace.limit, limit), (trace.notes, notes)
        self._launch(self._notes_code, args, list(mems))
        return _numbers(cursor), _numbers(notes)[:room]

    def _launch(
        self, executable: Executable, args: tuple[Any, ...], made: list[tuple[Mem, Field]]
    ) -> None:
        arrays: list[BoundArray] = [(mem, f.address, f.shape) for mem, f in made]
        arguments = self.special.arguments
        copies = []
        for name, ref in arguments.arrays.items():
            mem, given = ref._mem, arguments.named(args)[name]
            if isinstance(given, np.ndarray):
                # A command list takes addresses of memory where the code runs.
                given = _array(given, mem.dtype, mem.rank)
                copies.append(given)
            arrays.append((mem, given.address, given.shape[: mem.rank]))
        commands = session.backend.new_command_list()
        commands.add_launch(executable, arguments.scalars(args), 0, arrays)
        commands.run()


def accessed_elements(
    special: Specialization,
    args: tuple[Any, ...],
    sites: Sequence[Access],
    since: int | None,
) -> np.ndarray | None:
    """Return the numbers of the elements that statements of a launch access; None: they are unknown.

    Args:
        special: the launched kernel.
        args: its arguments.
        sites: the statements, all of one field.
        since: the clock's reading at the launch; None where what the indices are computed from is as it was.
    """
    found = [np.zeros(0, np.int64)]
    for number, task in enumerate(special.ir.tasks):
        inside = set(task_statements(task))
        here = [s for s in sites if s in inside]
        trace = index_trace(special.ir, number, here) if here else None
        if here and trace is None:
            return None
        if trace is not None:
            run = _TraceRun(special, trace)
            if since is not None and not _unchanged(special, run.reads, args, since):
                return None
            found.append(run.accesses(args).elements // size_of(here[0].mem.dtype))
    return np.concatenate(found)


def _unchanged(
    special: Specialization, reads: Iterable[RegionAccess], args: tuple[Any, ...], since: int
) -> bool:
    """Return whether what a launch has read was not written after a reading of the clock."""
    boxes = (special.box(a, args) for a in reads)
    return not any(box is not None and box[0].versions.changed(box[1], since) for box in boxes)


def _array(values: np.ndarray, dtype: Type = i64, rank: int | None = None) -> Field:
    """Return memory where kernels run with these values; axes after the rank are those of elements."""
    made = Field(dtype.scalar, dtype.shape, kind="array")
    made.place(values.shape[:rank])
    made.storage.from_numpy(np.ascontiguousarray(values).reshape(*made.shape, size_of(dtype)))
    return made


def _numbers(f: Field) -> np.ndarray:
    found: np.ndarray = f.storage.to_numpy().reshape(f.shape)
    return found


def _first_meeting(
    one: _Accesses, mine: Sites, other: _Accesses, theirs: Sites, same_lane: bool
) -> tuple[tuple[int, Access], tuple[int, Access]] | None:
    """Return the first access of the one that meets one of the other, and that."""
    a, b = one.of(mine), other.of(theirs)
    x, y = one.elements[a], other.elements[b]
    # A whole element meets all of its components.
    mem = mine.accesses[0].mem
    if any(len(s.index) == mem.rank for s in (*mine.accesses, *theirs.accesses)):
        x, y = x // size_of(mem.dtype), y // size_of(mem.dtype)
    if not _may_meet(x, y) or (mine == theirs and _all_different(y)):
        return None
    first, last = _places(x, y)
    met = first >= 0
    if same_lane:
        here = one.lane[a]
        met &= (other.lane[b[first]] != here) | (other.lane[b[last]] != here)
    if not met.any():
        return None
    # The first access that meets another one, and the first one that it meets.
    k = int(np.flatnonzero(met)[0])
    i = int(a[k])
    same = y == x[k]
    j = int(b[np.flatnonzero(same & (other.lane[b] != one.lane[i]) if same_lane else same)[0]])
    return (i, one.sites[one.site[i]]), (j, other.sites[other.site[j]])


def _may_meet(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a number of x may be in y. In most launches none is, which is told sooner than where."""
    if not len(x) or not len(y):
        return False
    least, most = max(x.min(), y.min()), min(x.max(), y.max())
    if most - least > _SPARSE * (len(x) + len(y)):
        return True
    if most < least:
        return False
    there = np.zeros(int(most - least) + 1, bool)
    there[y[(y >= least) & (y <= most)] - least] = True
    return bool(there[x[(x >= least) & (x <= most)] - least].any())


def _all_different(y: np.ndarray) -> bool:
    """Whether no number is there twice, where that is quick to tell."""
    least = int(y.min())
    size = int(y.max()) - least + 1
    if size > 2 * _SPARSE * len(y):
        return False
    places = np.arange(len(y))
    table = np.empty(size, np.int64)
    # Of two places assigned to one number only one is found there again.
    at = y - least
    table[at] = places
    return bool((table[at] == places).all())


def _places(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each number of x the first and the last place in y where it is, or -1."""
    least, most = int(y.min()), int(y.max())
    if most - least > _SPARSE * (len(x) + len(y)):
        order = np.argsort(y, kind="stable")
        found = y[order]
        low, high = np.searchsorted(found, x, "left"), np.searchsorted(found, x, "right")
        there = low < high
        first, last = order[np.minimum(low, len(y) - 1)], order[np.maximum(high, 1) - 1]
        return np.where(there, first, -1), np.where(there, last, -1)
    # A table by number: of places assigned to one number the last one stays.
    places = np.arange(len(y))
    table = np.full(most - least + 2, -1)
    inside = np.where((x >= least) & (x <= most), x - least, most - least + 1)
    table[(y - least)[::-1]] = places[::-1]
    first = table[inside]
    table[y - least] = places
    return first, table[inside]


def _element_text(mem: Mem, values: _Values, number: int) -> str:
    """Return an element as a user would write it."""
    number //= size_of(mem.dtype)
    shape = (
        mem.shape if mem.shape is not None else [values[Dim(i64, mem, k)] for k in range(mem.rank)]
    )
    at: list[int] = []
    for n in reversed(shape):
        at.insert(0, number % n if n else 0)
        number //= max(n, 1)
    return f"{mem.name}[{shown_index(mem.origin, at)}]"
