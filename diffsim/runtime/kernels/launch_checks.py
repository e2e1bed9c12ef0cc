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
from diffsim.passes.autodiff.launch_conditions import LaunchCondition, Meeting
from diffsim.passes.autodiff.reverse import Adjoint
from diffsim.runtime.backend import CommandList
from diffsim.runtime.binding.arguments import flatten
from diffsim.runtime.executable import BoundArray, Executable
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import LaunchArguments
from diffsim.runtime.kernels.instrumentation import compiled
from diffsim.runtime.launch_text import Writer
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.memory.storage import HOST
from diffsim.runtime.numbering.meetings import Memory, Notes, Places, Question
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.passes.analysis.regions import RegionAccess
    from diffsim.runtime.kernels.specialization import Specialization

_MOST_KNOWN = 1 << 12
"""Launches whose answer is remembered."""
_READY = 1 << 6
"""Launches of a trace that are kept ready."""
_KEPT = 1 << 20
"""The largest memory of notes that is kept [notes]."""
_WASTED = 4
"""Room for notes may be so many times as much as there were last time."""


_NOTHING = np.zeros(0, np.int64)
NATIVE_FROM = 2
"""How often launches are looked at before native code compares their accesses: it has to be loaded first."""


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
            number: TraceRun(special, trace)
            for number, found in sites.items()
            if (trace := index_trace(adjoint.primal, number, list(found), assume=True))
        }
        assert len(self._traces) == len(sites)  # each access was traced alone
        self._questions = [
            Question(
                c.one,
                self._traces[c.one.number].trace.sites,
                c.other,
                self._traces[c.other.number].trace.sites,
                same_lane=c.same_lane,
            )
            for c in adjoint.conditions
        ]
        self.reads = [a for run in self._traces.values() for a in run.reads]
        self._known: dict[Any, None] = {}
        self._looks = 0

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
        key = None if known else self._key(args, values, [k for k, _ in asked])
        if key is not None and key in self._known:
            return
        numbers = {s.number: None for _, c in asked for s in (c.one, c.other)}
        found = {number: self._traces[number].accesses(args) for number in numbers}
        self._looks += 1
        failed = False
        for k, c in asked:
            one, other = found[c.one.number], found[c.other.number]
            question = self._questions[k]
            if self._looks > NATIVE_FROM and question.surely_not(one, other):
                continue
            at = question.first_meeting(one, other)
            if at is not None:
                meeting = self._meeting(c, one, other, at, values)
                failed = True
                yield k, c.error(meeting)
        if failed:
            return
        for number, notes in found.items():
            self._traces[number].give_back(notes)
        if key is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = None

    def may_be_asked(self, args: tuple[Any, ...], since: int) -> bool:
        """Whether what indices are computed from is as it was at a launch."""
        return unchanged(self.special, self.reads, args, since)

    @locked_cached_property
    def _leaves(self) -> list[Value]:
        """The arguments and dimensions that the accessed elements depend on."""
        leaves = {v for run in self._traces.values() for v in run.leaves}
        return sorted(leaves, key=lambda v: v.hint)

    def _key(self, args: tuple[Any, ...], values: _Values, asked: list[int]) -> Any:
        """Return what the accessed elements depend on; None if it cannot be told.

        Args:
            args: the arguments of the launch.
            values: them by name.
            asked: the numbers of the conditions that no test of the arguments decides.
        """
        # An assumption that a test made for other arguments is none about these.
        key: list[Any] = [*(_told_apart(values.whole(v)) for v in self._leaves), *asked]
        for a in self.reads:
            box = self.special.box(a, args)
            if box is None:
                return None
            f, row = box
            contents = _contents(f, row)
            if contents is None:
                return None
            key += (f.number, row, contents)
        return tuple(key)

    def _meeting(
        self, c: LaunchCondition, one: Notes, other: Notes, at: Places, values: _Values
    ) -> Meeting:
        """Return two accesses that break a condition."""
        (k, first), (j, second) = at
        runs = self._traces[c.one.number], self._traces[c.other.number]
        arguments = {
            v.hint: values.whole(v)
            for run in runs
            for v in run.leaves
            if isinstance(v, Arg) and not v.type.shape
        }
        given = ", ".join(f"{name} = {value}" for name, value in sorted(arguments.items()))
        return Meeting(
            first,
            second,
            (one.lane_text(k), other.lane_text(j)),
            _element_text(first.mem, values, int(one.elements[k])),
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
        if given.__class__ is int or given.__class__ is float:
            return given
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


def _told_apart(given: Any) -> Any:
    """Return a key for a value: 0.0 equals -0.0, but an index may depend on 1 / a > 0."""
    if isinstance(given, tuple):
        return tuple(map(_told_apart, given))
    return given.hex() if isinstance(given, float) else given


def _contents(f: Field, row: int | None) -> Any:
    """Return what tells the present contents of a field (or a row) from all others that it had.

    None if that is not known: a tape that repeats its recording restores what was written anew before it,
    with the reading that this had in the first recording.
    """
    versions = f.versions
    written = versions.whole if row is None else max(versions.whole, versions.row(row))
    if versions.restored and written <= versions.restored:
        return None
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


# ---- the elements that a launch accesses


class TraceRun:
    """Runs the trace of one task.

    Attributes:
        trace: the kernels.
        leaves: the arguments and dimensions that they use.
        reads: what they load from fields and arrays.
    """

    def __init__(self, special: Specialization, trace: IndexTrace) -> None:
        self.special = special
        self.trace = trace
        self.leaves = trace.leaves()
        self.reads = [
            a
            for ir in (trace.ir, trace.bounds_ir)
            for a in regions.reads(ir)
            if a.mem not in trace.own
        ]
        # Of the last launch: the notes of the lane with the most, and those of all.
        self._longest = self._last = 0
        self._kept: list[Memory] = []  # one that is not in use: who takes it is alone with it
        self._ready: dict[Any, CommandList] = {}
        self._known_bounds: dict[bytes, list[int]] | None = None
        if not self.special.arguments.arrays and not list(regions.reads(trace.bounds_ir)):
            self._known_bounds = {}

    @locked_cached_property
    def _notes_code(self) -> Executable:
        return compiled(self.trace.ir, self.special.backend)

    @locked_cached_property
    def _bounds_code(self) -> Executable:
        return compiled(self.trace.bounds_ir, self.special.backend)

    def accesses(self, args: tuple[Any, ...]) -> Notes:
        """Return what a launch with these arguments accesses; `give_back` what is not needed any more."""
        memory = self._kept.pop() if self._kept else Memory()
        limits = self._bounds(args, memory)
        first = tuple(limits[::2])
        size = tuple(max(hi - lo, 0) for lo, hi in zip(limits[::2], limits[1::2], strict=True))
        lanes = int(np.prod(size, dtype=np.int64)) if size else 1
        starts, ends, notes = self._notes(args, memory, lanes)
        return Notes(self.trace.sites, starts, ends, notes, first, size, self.trace.written, memory)

    def elements(self, args: tuple[Any, ...]) -> np.ndarray:
        """Return the numbers of the elements that a launch accesses, of accesses to one memory."""
        notes = self.accesses(args)
        found: np.ndarray = notes.elements // size_of(self.trace.sites[0].mem.dtype)
        self.give_back(notes)
        return found

    def give_back(self, notes: Notes) -> None:
        """Let the next launch write to the memory of these notes."""
        if 0 < notes.memory.size <= _KEPT:
            self._kept[:] = [notes.memory]

    def _notes(
        self, args: tuple[Any, ...], memory: Memory, lanes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where the notes of each lane begin and end, and the notes."""
        if not lanes:
            return _NOTHING, _NOTHING, _NOTHING
        # On the host each lane has room for as many as the longest one had last time, if that is not much
        # more than all of them; a lane that has more writes where others do, which is seen afterwards.
        width = self._longest if session.device is HOST else 0
        if width * lanes > _WASTED * (self._last + lanes):
            width = 0
        starts = np.arange(lanes, dtype=np.int64) * width
        ends, notes = self._run(args, memory, starts, width * lanes)
        counts = ends - starts
        longest, total = int(counts.max()), int(counts.sum())
        if longest > width:
            # The cursors have moved by the number of notes of each lane, whatever room there was.
            starts = np.cumsum(counts) - counts
            ends, notes = self._run(args, memory, starts, total)
        self._longest, self._last = longest, total
        return starts, ends, notes

    def _bounds(self, args: tuple[Any, ...], memory: Memory) -> list[int]:
        yields = self.trace.limits
        if all(isinstance(v, Const) for v in yields):
            return [int(v.value) for v in yields if isinstance(v, Const)]
        known = self._known_bounds
        key = b"" if known is None else _packed(self._bounds_code, self.special, args)
        if known is not None and key in known:
            return known[key]
        found = memory.write(np.zeros(len(yields), np.int64), 0)[0]
        self._launch(self._bounds_code, args, [(self.trace.bounds, *found)])
        limits: list[int] = memory.read(len(yields), 0)[0].tolist()
        if known is not None:
            if len(known) >= _READY:
                known.clear()
            known[key] = limits
        return limits

    def _run(
        self, args: tuple[Any, ...], memory: Memory, starts: np.ndarray, room: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the trace; returns the cursors after it, and the notes."""
        trace = self.trace
        mems = (trace.cursor, trace.limit, trace.notes)
        places = memory.write(starts, room)
        made = [(mem, *place) for mem, place in zip(mems, places, strict=True)]
        self._launch(self._notes_code, args, made)
        return memory.read(len(starts), room)

    def _launch(
        self, executable: Executable, args: tuple[Any, ...], made: list[BoundArray]
    ) -> None:
        arguments = self.special.arguments
        scalars, arrays, copies = arguments.scalars(args), list(made), []
        if arguments.arrays:
            named = arguments.named(args)
            for name, ref in arguments.arrays.items():
                mem, given = ref._mem, named[name]
                if isinstance(given, np.ndarray):
                    # A command list takes addresses of memory where the code runs.
                    given = _array(given, mem.dtype, mem.rank)
                    copies.append(given)
                arrays.append((mem, given.address, given.shape[: mem.rank]))
        key = executable, executable.struct.pack(*scalars), *arrays
        commands = self._ready.get(key)
        if commands is None:
            commands = session.backend.new_command_list()
            commands.add_launch(executable, scalars, 0, arrays)
            if len(self._ready) >= _READY:
                self._ready.clear()
            if session.device is HOST and not copies:
                self._ready[key] = commands
        commands.run()


def _packed(executable: Executable, special: Specialization, args: tuple[Any, ...]) -> bytes:
    """Return the arguments that are passed by value, to the last bit."""
    return executable.struct.pack(*special.arguments.scalars(args))


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
    runs = element_traces(special, sites)
    if runs is None:
        return None
    found = [np.zeros(0, np.int64)]
    for run in runs:
        if since is not None and not unchanged(special, run.reads, args, since):
            return None
        found.append(run.elements(args))
    return np.concatenate(found)


def element_traces(special: Specialization, sites: Iterable[Access]) -> list[TraceRun] | None:
    """Return what tells the elements that statements of a kernel access; None: nothing does."""
    key = element_traces, tuple(sites)
    if key not in special.variants:
        special.variants[key] = _element_traces(special, key[1])
    found: list[TraceRun] | None = special.variants[key]
    return found


def _element_traces(special: Specialization, sites: tuple[Access, ...]) -> list[TraceRun] | None:
    left, made = set(sites), []
    for number, task in enumerate(special.ir.tasks):
        inside = left.intersection(task_statements(task))
        here = [s for s in sites if s in inside]
        trace = index_trace(special.ir, number, here) if here else None
        if here and trace is None:
            return None
        if trace is not None:
            made.append(TraceRun(special, trace))
        left -= inside
    # Sums over loops are written by no statement of a task.
    return None if left else made


def unchanged(
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
