"""Conditions on a launch without which an adjoint would not be right.

Where the analysis cannot show that two accesses are apart, as that depends on arguments, on numbers in
fields or on arithmetic that it does not follow, the adjoint is made under the condition that they are.
Whoever launches it checks the condition first (`runtime/kernels/launch_checks.py`): by a test of the
arguments where there is one, else on the elements that the launch accesses, which an `IndexTrace` tells
(docs/adr/0030).
"""

from __future__ import annotations

from dataclasses import dataclass

from diffsim.errors import KEEP, GlobalDataAccessError
from diffsim.ir.nodes import LEAVES, Const, Kernel, Load, Mem, Store, Task, Value
from diffsim.ir.traversal import outs, task_statements
from diffsim.passes.analysis.affine import Element, element_of, task_definitions
from diffsim.passes.analysis.dependence import Access, accesses_of
from diffsim.passes.analysis.index_forms import index_forms
from diffsim.passes.analysis.launch_tests import LaunchTest, apart_test
from diffsim.passes.autodiff.custom_calls import notes_of
from diffsim.passes.autodiff.index_trace import IndexTrace, index_trace

_MOST = 256
"""Conditions of one kernel: unrolled loops make thousands of accesses."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Accesses of one task (`number` in its kernel) to one memory, at one place of the index."""

    number: int
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class LaunchCondition:
    """The accesses of `one` and those of `other` never touch the same element in a launch.

    One of the two writes. Where the condition fails, the adjoint of the launch is wrong.

    Attributes:
        same_lane: whether they may do so in the same lane.
        test: holds only for arguments with which they are apart; None: no argument decides that.
        on_saving_tape: whether the tape keeps what was there, which does not suffice.
        perhaps: the error where they may meet, as far as a launch can tell; None: it tells exactly.
    """

    one: Sites
    other: Sites
    same_lane: bool
    test: LaunchTest | None
    on_saving_tape: bool = False
    perhaps: GlobalDataAccessError | None = None

    def error(self, meeting: Meeting) -> GlobalDataAccessError:
        """Return the error for a launch in which they meet."""
        if self.perhaps is not None:
            return self.perhaps
        if not self.same_lane:
            return _stale(meeting, on_saving_tape=self.on_saving_tape)
        return _racing(meeting) if isinstance(meeting.one, Load) else _colliding(meeting)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two accesses of a launch that touch the same element.

    Attributes:
        one, other: the accesses.
        lanes: the iterations of the parallel loop, as text.
        element: the element, as text.
        given: the arguments that this depends on, as text.
    """

    one: Access
    other: Access
    lanes: tuple[str, str]
    element: str
    given: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A condition, the memories that deciding it loads, and the error where that cannot be done."""

    condition: LaunchCondition
    loaded: set[Mem]
    otherwise: GlobalDataAccessError


class ConditionFinder:
    """Collects the conditions under which a kernel's adjoint is right."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._found: list[_Found] = []
        self._traces: dict[Sites, IndexTrace | None] = {}

    def add(
        self,
        one: tuple[Task, list[Access]],
        other: tuple[Task, list[Access]],
        *,
        same_lane: bool,
        otherwise: GlobalDataAccessError,
    ) -> None:
        """Add the condition that accesses do not meet, but perhaps in the same lane.

        Raises:
            GlobalDataAccessError: `otherwise`, as no launch can decide it.
        """
        is_kept = one[1][0].mem.kind in ("field", "array")
        many = len(self._found) >= _MOST
        if many or not is_kept or (not same_lane and _surely_meet(one, other)):
            raise otherwise
        sites = []
        for task, accesses in (one, other):
            number = next(k for k, t in enumerate(self.kernel.tasks) if t is task)
            sites.append(Sites(number, tuple(accesses)))
        # The user's word, which `debug=True` checks (`passes/instrument/independence.py`).
        if same_lane and one[0].independent and not _one_for_all(one[0], one[1][0]):
            return
        if same_lane and one[0] is other[0] and _take_places(one[0], [*one[1], *other[1]]):
            return
        traces = [self._trace(s) for s in sites]
        known = [t for t in traces if t is not None]
        if len(known) < 2:
            raise otherwise
        test = apart_test(one[1][0], one[0], other[1][0], other[0])
        # An empty clause: they are apart, whatever the arguments.
        if test is None or () not in test.clauses:
            loaded = {mem for t in known for mem in t.loaded()}
            perhaps = otherwise if any(t.assumed for t in known) else None
            condition = LaunchCondition(sites[0], sites[1], same_lane, test, perhaps=perhaps)
            self._found.append(_Found(condition, loaded, otherwise))

    def _trace(self, sites: Sites) -> IndexTrace | None:
        # One write meets many loads.
        if sites not in self._traces:
            trace = index_trace(self.kernel, sites.number, sites.accesses, assume=True)
            self._traces[sites] = trace
        return self._traces[sites]

    def conditions(self, restored: set[Mem]) -> tuple[LaunchCondition, ...]:
        """Return the conditions, asked where these memories are not as the launch left them.

        Raises:
            GlobalDataAccessError: one of them needs such a memory as the launch left it.
        """
        for f in self._found:
            if f.loaded & restored:
                raise f.otherwise
        return tuple(f.condition for f in self._found)


def _surely_meet(one: tuple[Task, list[Access]], other: tuple[Task, list[Access]]) -> bool:
    """Whether each lane touches the same element with both accesses, in every launch."""
    task, access = one[0], one[1][0]
    if task is not other[0]:
        return False
    if _element(task, access) == _element(task, other[1][0]):
        return True
    return index_forms(task).are_equal(access.index, other[1][0].index)


def _one_for_all(task: Task, access: Access) -> bool:
    """Whether an access touches the same element in all lanes: nothing in its index belongs to one."""
    return all(base is None or isinstance(base, LEAVES) for base, _ in _element(task, access))


def _take_places(task: Task, accesses: list[Access]) -> bool:
    """Whether each lane accesses an element at a number that an atomic gave to no other lane.

    All accesses have the number, plus the same constant, at the same place of the index.
    """
    elements = [_element(task, a) for a in accesses]
    for axis, (base, _) in enumerate(elements[0][: accesses[0].mem.rank]):
        same = all(e[axis] == elements[0][axis] for e in elements)
        if same and base is not None and _is_counted(task, base):
            return True
    return False


def _is_counted(task: Task, number: Value) -> bool:
    """Whether a number is what adding a positive constant to one element returned, different each time."""
    for s in task_statements(task):
        noted = notes_of(s)
        if noted is None or number not in outs(s):
            continue
        atomic = noted[0]
        # A count that other statements change may come to the same number again.
        others = (a for a in accesses_of(task) if a.mem is atomic.mem and a is not atomic)
        return (
            atomic.op == "add"
            and isinstance(atomic.value, Const)
            and atomic.value.value > 0
            and _one_for_all(task, atomic)
            and all(isinstance(a, Load) for a in others)
        )
    return False


def _element(task: Task, access: Access) -> Element:
    return element_of(access.index, task_definitions(task))


def _stale(m: Meeting, *, on_saving_tape: bool) -> GlobalDataAccessError:
    hint = "give the launch indices that are apart"
    if on_saving_tape:
        hint += ", or split the kernel in two"
    return GlobalDataAccessError(
        f"{m.given}{m.element} is read and written in one launch, and the gradient needs it as it was read: "
        f"global data access rule 1\n  changed here:\n{m.other.span.text()}\n  read here:",
        m.one.span,
        hint=hint,
        narrower="" if on_saving_tape else KEEP,
    )


def _racing(m: Meeting) -> GlobalDataAccessError:
    return GlobalDataAccessError(
        f"{m.given}iteration {m.lanes[0]} of this parallel loop reads {m.element}, and iteration "
        f"{m.lanes[1]} writes it, so there is no defined gradient\n"
        f"  written here:\n{m.other.span.text()}\n  read here:",
        m.one.span,
        hint="read and write different fields, or split the loop in two; where iterations have an order: "
        "ds.loop_config(serialize=True) before the loop",
    )


def _colliding(m: Meeting) -> GlobalDataAccessError:
    name = m.one.mem.name
    verb = "store" if isinstance(m.other, Store) else "write"
    place = (
        ""
        if m.other is m.one
        else f"\n  and also written here:\n{m.other.span.text()}\n  stored here:"
    )
    return GlobalDataAccessError(
        f"{m.given}iterations {m.lanes[0]} and {m.lanes[1]} of this parallel loop both {verb} {m.element}, "
        f"so which value it ends with is not defined, and there is no gradient{place}",
        m.one.span,
        hint=f"let the index tell all iterations apart, or add: {name}[...] += value, after "
        f"setting {name} to 0 in another loop",
    )
