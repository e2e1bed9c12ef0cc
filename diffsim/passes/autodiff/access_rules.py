"""The global data access rules inside one kernel.

The adjoint runs after the kernel and loads fields again. It must load the values of the forward code:
no statement of the kernel may write an element after a load that the adjoint repeats. The check looks at
exactly the loads that are left in the finished adjoint, and accepts what it can prove:

- writes and loads of different rows (x[t + 1, i] and x[t, i] with the argument t, or constants);
- writes by an earlier task, or by an earlier statement or iteration of the same lane on an element that no
  other lane reaches (`passes/analysis/dependence.py`);
- accesses whose value the adjoint does not load (sums, linear updates).

The adjoint of an atomic minimum or maximum loads its element as the kernel left it. So after it only updates
of the same kind may change the element, and no derivative may flow through a value that the element had
between two of them: that value had another winner.

In a parallel loop, an element that one lane writes and another may read or write is a race in the forward
program already; its gradient is refused too, unless all of these accesses are additions.

What depends on arguments or on numbers in fields, as with y[u, i] and y[t, i] or with out[slot[i]], is left
to each launch: the adjoint is made under conditions (`launch_conditions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from diffsim.errors import KEEP, AutodiffError, GlobalDataAccessError, together
from diffsim.ir.nodes import Atomic, Kernel, Load, Mem, Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.access_order import AccessSite, Section, WriteGroup, sections_of
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.regions import disjoint
from diffsim.passes.autodiff.activity import Activity
from diffsim.passes.autodiff.launch_conditions import ConditionFinder, LaunchCondition

Place = tuple[Section, Sequence[AccessSite]]
"""Accesses at one place of the index, and where they are."""


@dataclass(frozen=True)
class Needed:
    """The conditions for an adjoint to be right.

    Attributes:
        before: memories that it must find as they were before the launch; all others as they were after it.
        conditions: what must be so in a launch.
        between: memories that it needs in several states.
        logged: the user's loads that it needs to have logged; if there are any, or any `between`, it must
            not be run.
    """

    before: frozenset[Mem]
    conditions: tuple[LaunchCondition, ...]
    between: tuple[Mem, ...]
    logged: frozenset[Load]


def check_access(
    primal: Kernel,
    adjoint: Kernel,
    activity: Activity,
    *,
    in_place: bool = False,
    divisible: Callable[[Mem], bool] = lambda mem: False,
    loggable: Callable[[Load], bool] = lambda load: False,
    versions: frozenset[Mem] = frozenset(),
    races_of: Kernel | None = None,
    logged: Collection[Load | Atomic] = (),
) -> Needed:
    """Refuse a kernel whose adjoint would load elements that the kernel changed after reading them.

    Args:
        primal: the kernel.
        adjoint: its finished adjoint.
        activity: what derivatives flow through.
        in_place: whether memories can be restored to what they were before the launch.
        divisible: which memories may be needed in several states (with `in_place`); others are refused.
        loggable: which loads may be logged (with `in_place`).
        versions: memories that the adjoint computes again; there is no state of theirs to restore.
        races_of: the kernel before it got versions and logs, where races are looked for: lanes that meet in
            a memory may do so in two versions of it. None: `primal`.
        logged: the user's loads that are logged.

    Returns:
        In which states the adjoint must find memories, and the conditions on a launch under which it is
        right.

    Raises:
        GlobalDataAccessError: with the line that reads and the line that writes.
    """
    repeated = {
        s.origin
        for t in adjoint.tasks
        for s in task_statements(t)
        if isinstance(s, Load) and s.origin is not s
    }
    work = _Checker(primal, repeated, activity, in_place=in_place, divisible=divisible)
    work.versions, work.loggable = versions, loggable
    # Sections (bounds and bodies of tasks) run one after the other, lanes within a section in no order.
    # So later sections are compared as a whole, and only within a section does the order in a lane
    # matter.
    sections = sections_of(primal)
    writers: dict[Mem, list[int]] = {}
    for number, section in enumerate(sections):
        for mem in section.writes:
            writers.setdefault(mem, []).append(number)
    for number, section in enumerate(sections):
        for mem, loads in section.loads.items():
            for k in writers.get(mem, []):
                if k > number:
                    work.later(section, loads, sections[k])
            work.within(section, loads, races=races_of is None)
        if races_of is None:
            work.collisions(section)
    for number, section in enumerate(sections):
        # A memory has one state during the adjoint. What is restored to before the launch must not be
        # needed as of after an earlier write, which needs a second pass, since `before` is complete
        # only now.
        for mem in [m for m in section.loads if m in work.before]:
            for k in writers.get(mem, []):
                if k < number:
                    work.later(section, section.loads[mem], sections[k], final=True)
            work.unwritten(section, section.loads[mem])
    work.extremes(sections)
    lanes = work
    if races_of is not None:
        lanes = _check_lanes(races_of, repeated, logged, work)
    conditions = lanes.conditions_found(work.before | versions)
    refused = [*_gradients_read(adjoint), *work.refused]
    if refused:
        raise together(refused)
    return Needed(frozenset(work.before), conditions, tuple(work.between), frozenset(work.logged))


def _check_lanes(
    kernel: Kernel,
    repeated: set[Load | Atomic],
    logged: Collection[Load | Atomic],
    states: _Checker,
) -> _Checker:
    """Check the lanes of a kernel whose adjoint finds memories in these states for races."""
    activity = Activity(kernel, states.activity.sources)
    work = _Checker(kernel, repeated, activity, in_place=True, divisible=states.divisible)
    work.refused = states.refused
    for section in sections_of(kernel):
        for loads in section.loads.values():
            # A log is filled by a second run of the task, which all lanes must come out of the same.
            rerun = any(_origin(load) in logged for load in loads)
            work.races(section, loads, all_loads=rerun)
        work.collisions(section)
    return work


def _gradients_read(adjoint: Kernel) -> Iterator[GlobalDataAccessError]:
    """Yield an error for each gradient that the kernel reads (as a constant) and its own adjoint adds to."""
    written = {
        s.mem for t in adjoint.tasks for s in task_statements(t) if isinstance(s, (Store, Atomic))
    }
    for t in adjoint.tasks:
        for s in task_statements(t):
            # The adjoint may have added to it before it loads it; the primal read it without those
            # additions.
            if isinstance(s, Load) and s.origin is not s and s.mem.is_grad and s.mem in written:
                yield GlobalDataAccessError(
                    f"the gradient needs {s.mem.name} as it was read here, and changes it itself",
                    s.origin.span,
                    hint=f"copy {s.mem.name} into another field before, and read that one",
                )


class _Checker:
    """Checks loads and updates of one kernel against its writes.

    Attributes:
        before: memories that the adjoint must find as they were before the launch.
        between: memories that it needs in several states.
        versions: memories that it computes again.
        repeated: the primal's loads and updates that the finished adjoint repeats.
        extreme: memories whose final value some adjoint compares with.
        conditions: what each launch must be asked.
        refused: what no launch may do.
    """

    def __init__(
        self,
        primal: Kernel,
        repeated: set[Load | Atomic],
        activity: Activity,
        *,
        in_place: bool,
        divisible: Callable[[Mem], bool],
    ) -> None:
        self.conditions = ConditionFinder(primal)
        self.refused: list[AutodiffError] = []
        self.in_place = in_place
        self.divisible = divisible
        self.versions: frozenset[Mem] = frozenset()
        self.loggable: Callable[[Load], bool] = lambda load: False
        self.logged: set[Load] = set()
        self.before: set[Mem] = set()
        self.between: dict[Mem, None] = {}
        self.repeated = repeated
        self.extreme = {s.mem for s in repeated if isinstance(s, Atomic)}
        self.activity = activity

    def needed(self, load: AccessSite) -> bool:
        """Whether the adjoint loads it again."""
        # Which cells are active must be the same in the whole record, which each launch is asked (`sparse`).
        return load.stmt.mem.level is None and load.stmt.origin in self.repeated  # type: ignore[union-attr]

    def active(self, place: AccessSite) -> bool:
        """Whether a derivative flows through what is loaded or written."""
        s = place.stmt
        return (s.out if isinstance(s, Load) else s.value) in self.activity.values

    def stale(self, load: Place, writes: Place, *, final: bool = False) -> None:
        """Note a value that is lost after the launch as needed from before it, or refuse it.

        `final`: it is not what it was before the launch either.
        """
        mem = load[1][0].stmt.mem
        # Temporaries live within the launch: there is no state from before it to restore.
        kept = self.in_place and mem.kind in ("field", "array")
        if kept and not final and mem not in self.extreme and mem not in self.versions:
            self.before.add(mem)
            return
        if kept and load[0] is writes[0] and self.can_log(load[1][0], writes[1]):
            self.logged.add(_origin(load[1][0]))
            return
        if kept and self.can_divide(load[1][0], writes[1][0]):
            self.between[mem] = None
            return
        error = _stale(load[1][0].stmt, writes[1][0].stmt, kept)
        # A tape that keeps what was there can run the loops of the kernel one by one instead.
        if kept:
            raise error
        self.leave_to_launch(load, writes, error, same_lane=False)

    def can_divide(self, load: AccessSite, write: AccessSite) -> bool:
        """Whether the memory of a load may be needed in several states."""
        # The winner of a minimum is found by comparing bits, which would have to come out the same again.
        if self.extreme or not self.divisible(load.stmt.mem):
            return False
        # Rows that arguments tell, x[t, i] and x[u, i], are steps of time: a launch that finds them apart
        # needs no copies of all steps.
        return not any(
            r.axis == q.axis and (r.argument is not None or q.argument is not None)
            for r in load.region
            for q in write.region
        )

    def can_log(self, load: AccessSite, writes: Sequence[AccessSite]) -> bool:
        """Whether a load may be logged that writes of its own task spoil."""
        if self.extreme or not self.loggable(_origin(load)):
            return False
        # As in `can_divide`, but the same row of a time axis is one step to all.
        return not any(
            r.axis == q.axis and r.argument is not q.argument
            for r in load.region
            for write in writes
            for q in write.region
        )

    def leave_to_launch(
        self, one: Place, other: Place, error: GlobalDataAccessError, *, same_lane: bool
    ) -> bool:
        """Let each launch find out whether accesses meet, or refuse them where it cannot.

        Returns:
            Whether a launch can find out.
        """
        sites = [(section.task, [p.stmt for p in places]) for section, places in (one, other)]
        try:
            self.conditions.add(sites[0], sites[1], same_lane=same_lane, otherwise=error)
        except GlobalDataAccessError as refusal:
            self.refused.append(refusal)
            return False
        return True

    def conditions_found(self, restored: set[Mem]) -> tuple[LaunchCondition, ...]:
        """Return what each launch must be asked, while these memories are not as it left them."""
        try:
            return self.conditions.conditions(restored)
        except GlobalDataAccessError as refusal:
            self.refused.append(refusal)
            return ()

    def later(
        self, here: Section, loads: list[AccessSite], section: Section, *, final: bool = False
    ) -> None:
        """Check loads against the writes of a section that comes after them (`final`: or before them)."""
        for load in loads:
            for group in section.overlapping(load) if self.needed(load) else ():
                self.stale((here, [load]), (section, group.sites), final=final)
                if load.stmt.mem in self.before and not final:
                    return  # what it says of one load, it says of all

    def within(self, section: Section, loads: list[AccessSite], *, races: bool) -> None:
        """Check loads against writes of the same task; `races`: those of other lanes, too."""
        for load in loads:
            needed = self.needed(load)
            # A load that neither the adjoint repeats nor a derivative flows through cannot spoil a
            # gradient.
            if not needed and not self.active(load):
                continue
            for group in section.overlapping(load):
                if races and not self.is_own(section, load, group):
                    continue
                # Sound if the last write of the group precedes the load in every lane: the element is
                # final then.
                if needed and not section.before(group.last, load):
                    late = [p for p in group.sites if not section.before(p, load)]
                    self.stale((section, [load]), (section, late))

    def races(self, section: Section, loads: list[AccessSite], *, all_loads: bool) -> None:
        """Check loads (those that matter, or all) against writes of other lanes alone."""
        for load in loads:
            if all_loads or self.needed(load) or self.active(load):
                for group in section.overlapping(load):
                    self.is_own(section, load, group)

    def is_own(self, section: Section, load: AccessSite, group: WriteGroup) -> bool:
        """Whether only writes of its own lane may reach what is loaded, perhaps under a condition."""
        # One member of a group stands for all: they have the same element, loops and kind.
        if section.same_lane(load, group.first):
            return True
        error = _racing(load.stmt, group.first.stmt)
        here = (section, [load])
        return self.leave_to_launch(here, (section, group.sites), error, same_lane=True)

    def unwritten(self, section: Section, loads: list[AccessSite]) -> None:
        """Check loads of a memory that is restored to before the launch: no write may precede them."""
        for load in loads:
            for group in section.overlapping(load) if self.needed(load) else ():
                if not section.before(load, group.first):
                    self.stale((section, [load]), (section, group.sites), final=True)

    # ---- minima and maxima

    def extremes(self, sections: list[Section]) -> None:
        """Check atomic minima and maxima against all other accesses to their elements."""
        found = [
            (number, place)
            for number, section in enumerate(sections)
            for writes in section.writes.values()
            for place in writes
            if isinstance(place.stmt, Atomic) and place.stmt.origin in self.repeated
        ]
        if found:
            # The winner is found by comparing bits with the recomputed update. A float sum over lanes
            # adds in another order the second time (addition is not associative), and might match no
            # update at all.
            summed = _summed(sections)
            for number, place in found:
                for load in sections[number].loads_of(summed):
                    self.refused.append(_summed_up(place.stmt, load.stmt))
        for number, place in found:
            mem = place.stmt.mem
            for other, section in enumerate(sections):
                for write in section.writes.get(mem, []):
                    # Updates of one kind commute and leave the extreme of all of them; any other write
                    # makes the final element something that the update cannot be compared with.
                    if write.kind != place.kind:
                        self._check_other_write(section, number - other, place, write)
                for read in section.loads.get(mem, []):
                    self._check_read(sections, other, read, number, place, found)

    def _check_other_write(
        self, section: Section, ahead: int, place: AccessSite, write: AccessSite
    ) -> None:
        """Check an update against another kind of write, whose section is so many before it."""
        if ahead > 0 or disjoint(place.region, write.region):
            return
        if ahead == 0:
            if not section.same_lane(place, write):
                self.refused.append(_unordered(place.stmt, write.stmt))
                return
            if section.before(write, place):
                return
        self.refused.append(_changed(place.stmt, write.stmt))

    def _check_read(
        self,
        sections: list[Section],
        at: int,
        load: AccessSite,
        number: int,
        place: AccessSite,
        found: list[tuple[int, AccessSite]],
    ) -> None:
        """Check a load that may see the result of an update: no other update may come after the load."""
        if not self.needed(load) and not self.active(load):
            return
        # A load before the update has not seen its result.
        if at < number or disjoint(load.region, place.region):
            return
        if at == number and sections[at].before(load, place):
            return
        for later, other in found:
            if (
                other.stmt.mem is not load.stmt.mem
                or later < at
                or disjoint(load.region, other.region)
            ):
                continue
            if later > at or not sections[at].before(other, load):
                self.refused.append(_between(load.stmt, other.stmt))
                return

    def collisions(self, section: Section) -> None:
        """Check the writes of a task against each other."""
        for mem in section.writes:
            # Only memories with gradients: a race on others is the user's, and changes no derivative
            # rule.
            if mem.grad is not None and section.axes:
                self.stores(section, mem)

    def stores(self, section: Section, mem: Mem) -> None:
        """Check writes of different lanes to one element, which are unordered if one of them stores."""
        groups = section.groups[mem]
        active = {g: next((p for p in g.sites if self.active(p)), None) for g in groups}
        for one in groups:
            for two in section.overlapping(one.first) if one.first.kind == "store" else ():
                # An active write of the group is preferred, since it is what the message should point
                # at.
                store, other = active[one] or one.first, active[two] or two.first
                if not (active[one] or active[two]) or section.same_lane(store, other):
                    continue
                error = _colliding(store.stmt, other.stmt)
                here = (section, one.sites)
                self.leave_to_launch(here, (section, two.sites), error, same_lane=True)


def _origin(load: AccessSite) -> Load:
    """Return the user's load that one is a copy of."""
    assert isinstance(load.stmt, Load)
    return load.stmt.origin  # type: ignore[return-value]


def _summed(sections: list[Section]) -> set[Mem]:
    """Return temporaries that hold a float sum over the lanes of a parallel loop, or depend on one.

    The adjoint adds them up again, in another order.
    """
    found: set[Mem] = set()
    while True:
        before = len(found)
        for section in sections:
            # Coarse on purpose: whatever a section that reads such a sum writes counts as depending on
            # it.
            carried = next(section.loads_of(found), None) is not None
            for mem, writes in section.writes.items():
                if mem.kind == "temp" and mem.dtype.is_float:
                    adds = any(p.kind == "add" for p in writes)
                    if carried or (adds and section.axes):
                        found.add(mem)
        if before == len(found):
            return found


def _summed_up(update: Access, load: Access) -> GlobalDataAccessError:
    name = load.mem.name
    return GlobalDataAccessError(
        f"the gradient of this update needs its value again, to the last bit, and {name} is a sum over the "
        f"iterations of a loop, which comes out a little different each time\n  read "
        f"here:\n{load.span.text()}"
        "\n  updated here:",
        update.span,
        hint=f"sum {name} up in a kernel of its own, into a field",
    )


def _changed(update: Access, write: Access) -> GlobalDataAccessError:
    name = update.mem.name
    return GlobalDataAccessError(
        f"the gradient of this update needs {name} as the update left it, and the kernel changes it in "
        f"another way: global data access rule 1\n  changed here:\n{write.span.text()}\n  updated here:",
        update.span,
        hint="update it in a launch of its own, or into another field",
    )


def _unordered(update: Access, write: Access) -> GlobalDataAccessError:
    return GlobalDataAccessError(
        f"iterations of this parallel loop change the same element of {update.mem.name} "
        f"in two ways, in no order, "
        f"so there is no defined gradient\n  changed here:\n{write.span.text()}\n  updated here:",
        update.span,
        hint="split the loop in two",
    )


def _between(load: Access, update: Access) -> GlobalDataAccessError:
    name = load.mem.name
    return GlobalDataAccessError(
        f"the gradient needs to know which update {name} came from when it was read, and updates come after "
        f"it\n  updated here:\n{update.span.text()}\n  read here:",
        load.span,
        hint="read it in a launch after all updates, or keep the largest so far in a local variable",
    )


def _stale(load: Access, write: Access, kept: bool) -> GlobalDataAccessError:
    """Return the error for a load whose element changes later.

    `kept`: whether the tape keeps the values from before the launch, which does not suffice here.
    """
    name = load.mem.name
    if kept:
        why = "which is neither what it is before the launch nor what it is after it"
        hint = "compute in a local variable and store that once, or split the kernel in two"
    else:
        why = "and the kernel changes it later"
        hint = f"write into another field (or another row: {name}[t + 1, ...])"
    return GlobalDataAccessError(
        f"the gradient needs {name} as it was read, {why}: global data access rule 1\n"
        f"  changed here:\n{write.span.text()}\n  read here:",
        load.span,
        hint=hint,
        narrower="" if kept else KEEP,
    )


def _racing(load: Access, write: Access) -> GlobalDataAccessError:
    return GlobalDataAccessError(
        f"an iteration of this parallel loop may read an element of {load.mem.name} that "
        f"another one writes, so "
        f"there is no defined gradient\n  written here:\n{write.span.text()}\n  read here:",
        load.span,
        hint="read and write different fields, or split the loop in two; where iterations have an order: "
        "ds.loop_config(serialize=True) before the loop",
    )


def _colliding(store: Access, other: Access) -> GlobalDataAccessError:
    name = store.mem.name
    place = (
        "" if other is store else f"\n  and also written here:\n{other.span.text()}\n  stored here:"
    )
    return GlobalDataAccessError(
        f"two iterations of this parallel loop may write the same element of {name}, so which value it ends "
        f"with is not defined, and there is no gradient{place}",
        store.span,
        hint=f"let the index tell all iterations apart, or add: {name}[...] += value, after "
        f"setting {name} to 0 "
        "in another loop",
    )
