"""Reverse mode: from a kernel to its adjoint kernel, task by task, on tensors.

Each task becomes one that runs the same lanes: first the forward code again, as far as the adjoint needs
it, on what the fields hold then; after it the adjoint of each statement, last statement first
(`region_adjoint.py`, which is to be read next).

`access_rules` after it refuses kernels whose adjoint would be wrong, and `simplicity` before it those of a
shape that the program does not want.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from diffsim.errors import AutodiffError, GlobalDataAccessError, together
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Arg,
    Atomic,
    Block,
    Const,
    Kernel,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    zero,
)
from diffsim.ir.traversal import Rewriter, task_statements
from diffsim.ir.types import derivative_type, i64
from diffsim.passes.analysis.affine import definitions, updated_element
from diffsim.passes.autodiff.access_rules import check_access
from diffsim.passes.autodiff.activity import Activity, check_bits, useful_values
from diffsim.passes.autodiff.custom_calls import check_custom_rules, replay, writes_temps
from diffsim.passes.autodiff.launch_conditions import LaunchCondition
from diffsim.passes.autodiff.load_log import Logged, TaskLog, log_loads
from diffsim.passes.autodiff.loop_checkpoints import choose_checkpoints
from diffsim.passes.autodiff.region_adjoint import Reverser
from diffsim.passes.autodiff.simplicity import refused_shapes
from diffsim.passes.forms.forward_stores import forward_stores
from diffsim.passes.forms.task_versions import (
    NewVersion,
    Versioned,
    can_have_versions,
    clear,
    targets_of_calls,
    with_versions,
)
from diffsim.passes.kept.stored_values import Loading, Recomputed, load_stored
from diffsim.passes.transforms.dce import eliminate_dead_code


class Adjoint(NamedTuple):
    """An adjoint, and when it is right.

    Attributes:
        ir: the adjoint.
        restored: the memories that it must find as they were before the launch.
        conditions: what must be so in a launch.
        primal: the kernel that these speak of.
        versions: memories of its own, which hold values only while it runs, and their gradients.
        loading: the same adjoint, which loads what it may of what the launch has stored; None: that is no
            gain.
    """

    ir: Kernel
    restored: frozenset[Mem]
    conditions: tuple[LaunchCondition, ...]
    primal: Kernel
    versions: frozenset[Mem]
    loading: Loading | None = None


def reverse(
    kernel: Kernel,
    *,
    strict: bool = False,
    detached: bool = False,
    in_place: bool = False,
    new_version: NewVersion | None = None,
    again: bool = False,
    many_lanes: bool = False,
) -> Adjoint:
    """Return the adjoint of a kernel.

    Args:
        kernel: a prepared kernel.
        strict: whether kernels outside the kernel simplicity rule are refused.
        detached: whether what the kernel stores counts as constant: its adjoint only clears the gradients
            of the elements it stored to.
        in_place: whether memories can be restored to what they were before the launch; without it
            none may need to be.
        new_version: allocates what is needed in several states (None: that is refused).
        again: whether the adjoint will be differentiated itself (`passes/tangent`): what a gradient of 0 adds
            may change with it then.
        many_lanes: whether lanes save as little as they can: loops are counted before, and no functions kept.

    Raises:
        KernelSimplicityError, GlobalDataAccessError, AutodiffError: with the user's line.
    """
    # A detached adjoint only clears gradients, so the rule has nothing to guard.
    refused: list[AutodiffError] = [*refused_shapes(kernel)] if strict and not detached else []
    try:
        how = _How(detached, in_place, again, many_lanes)
        made = _of_any_shape(kernel, how, new_version)
    except AutodiffError as error:
        refused += error.parts
    if refused:
        raise together(refused)
    return made


class _How(NamedTuple):
    """How an adjoint is made; see `reverse`."""

    detached: bool
    in_place: bool
    again: bool
    many_lanes: bool


def _of_any_shape(kernel: Kernel, how: _How, new_version: NewVersion | None) -> Adjoint:
    """Return the adjoint of a kernel of any shape."""
    refusal: AutodiffError | None = None
    lost: AutodiffError | None = None
    found: Adjoint | None = None
    for form, allocate, logs in _forms(kernel, how, new_version):
        try:
            made = _with_versions(form, allocate, how, logs=logs)
        except _LostValueError as error:
            lost = lost or error.refusal
            continue
        except GlobalDataAccessError as error:
            refusal = error
            continue
        # What a lane reads and changes may be under a condition that another form does without.
        if all(c.same_lane for c in made.conditions):
            return made
        found = found or made
    if found is None and how.in_place:
        found = _without_saves(kernel, how)
    if found is not None:
        return found
    problem = lost or refusal
    assert problem is not None
    raise problem


def _without_saves(kernel: Kernel, how: _How) -> Adjoint | None:
    """Return an adjoint that needs nothing saved in launches which find accesses apart, if there is one.

    The last resort of tapes that save: what must be there both as it was before the launch and as it was
    after it is the same where the launch does not change it.
    """
    try:
        found = _with_versions(kernel, None, how._replace(in_place=False))
    except (GlobalDataAccessError, _LostValueError):
        return None
    conditions = tuple(dataclasses.replace(c, on_saving_tape=True) for c in found.conditions)
    return found._replace(conditions=conditions)


def _forms(
    kernel: Kernel, how: _How, new_version: NewVersion | None
) -> Iterator[tuple[Kernel, NewVersion | None, bool]]:
    """Yield forms of a kernel that compute the same, those with the cheapest adjoints first.

    With each comes what allocates versions (None: it gets none), and whether loads may be logged.
    """
    yield kernel, None, False
    # Elements that a lane changes after it has read them become values. An adjoint of the kernel as it stands
    # loads a result where this one has to compute it again.
    forwarded = forward_stores(kernel)
    if forwarded is not kernel:
        yield forwarded, None, False
    if new_version is None or not how.in_place:
        return
    # Versions copy whole memories. A copy counts as a store to all of it, whose gradients a detached adjoint
    # would clear.
    if not how.detached:
        yield kernel, new_version, False
        if forwarded is not kernel:
            yield forwarded, new_version, False
    # Logs run the task once more. What is forwarded needs none.
    yield forwarded, new_version, True


def _with_versions(
    kernel: Kernel, new_version: NewVersion | None, how: _How, *, logs: bool = False
) -> Adjoint:
    """Return the adjoint of a kernel as it stands, or with versions of what it needs in several states.

    `logs`: whether loads that no version has the right state for are logged.
    """
    primal = Versioned(kernel)
    divided: dict[Mem, None] = {}
    logged: set[Load | Atomic] = set()
    # A gradient that the user gave for a func adds to that of the memory by its name, not of a version.
    named = targets_of_calls(kernel)

    def divisible(mem: Mem) -> bool:
        known = mem in divided or mem in primal.versions or mem in named
        return bool(new_version) and not how.detached and can_have_versions(mem) and not known

    def loggable(load: Load) -> bool:
        return logs and can_have_versions(load.mem) and load not in logged

    # Versions and logs are made by running tasks again, which repeats loads that the first adjoint has no use
    # for, of memories that may be overwritten, too: those get versions or logs in the next round.
    while True:
        made = _differentiated(primal, logged, new_version, how)
        lost = _lost_values(made, logged if logs else None)
        if lost:
            logged |= lost
            continue
        needed = check_access(
            made.kernel,
            made.adjoint,
            made.activity,
            in_place=how.in_place,
            divisible=divisible,
            loggable=loggable,
            versions=made.internal,
            races_of=None if new_version is None else kernel,
            logged=logged,
        )
        if not needed.between and not needed.logged:
            asked = made.kernel if new_version is None else kernel
            loading = None
            # Versions and logs are of the adjoint's own, and no launch stores to them.
            if made.kernel is asked and not (made.internal or how.again):
                loading = load_stored(asked, made.adjoint, made.recomputed, needed.before)
            return Adjoint(
                made.adjoint, needed.before, needed.conditions, asked, made.internal, loading
            )
        assert new_version is not None
        logged |= needed.logged
        divided |= dict.fromkeys(needed.between)
        primal = with_versions(kernel, divided, new_version) if divided else primal


class _Differentiated(NamedTuple):
    """A kernel as it was differentiated, its adjoint, and what derivatives flow through.

    Attributes:
        internal: memories of the adjoint's own.
        recomputed: what it computes again of what the kernel stores.
    """

    kernel: Kernel
    adjoint: Kernel
    activity: Activity
    internal: frozenset[Mem]
    recomputed: list[Recomputed]


def _differentiated(
    primal: Versioned, logged: set[Load | Atomic], new_copy: NewVersion | None, how: _How
) -> _Differentiated:
    """Return the adjoint of a kernel in which these loads are logged."""
    # 1. The adjoint of the primal, whole: all forward code and all saves are emitted, and dead-code
    # elimination removes what no derivative reads. Only then is it known how much each loop saves.
    logs = Logged(_rename_temps(primal.kernel))
    if logged and new_copy is not None:
        logs = log_loads(logs.kernel, logged, primal.before, new_copy)
    kernel, internal = logs.kernel, primal.versions | logs.copies
    activity = Activity(kernel, frozenset() if how.detached else None)
    work = _Reverser(logs, activity, internal, again=how.again)
    check_custom_rules(kernel, activity)
    check_bits(kernel, activity)
    adjoint = eliminate_dead_code(work.kernel(), internal)
    # 2. Loops that would save too much are reversed in segments, and loops in others save for all their
    # runs, by a second run of the same reversal. Most kernels have none, so the common case pays for one run.
    computed = {} if how.many_lanes else work.computed
    checkpoints = choose_checkpoints(kernel, adjoint, work.loop_of, work.swept, computed)
    if any(checkpoints):
        work = _Reverser(logs, activity, internal, again=how.again)
        work.checkpoints, work.many_lanes = checkpoints, how.many_lanes
        adjoint = eliminate_dead_code(work.kernel(), internal)
    # The checks look at the finished adjoint: what dead-code elimination removed cannot be a fault.
    return _Differentiated(kernel, adjoint, activity, internal, work.recomputed)


class _Reverser(Reverser):
    """Emits the adjoint of a whole kernel, task by task, with gradients for its temporaries."""

    def __init__(
        self, logs: Logged, activity: Activity, versions: frozenset[Mem], *, again: bool
    ) -> None:
        kernel = logs.kernel
        super().__init__(Builder(kernel.span), useful_values(kernel, activity.values))
        self.builder.is_inner = again
        self.logs = logs
        self.versions = versions
        self.defs = definitions(kernel)
        self.primal = kernel
        self.activity = activity
        self.temp_grads: dict[Mem, Mem] = {
            m: Mem(f"{m.name}.adj", derivative_type(m.dtype), 0, (), "temp", is_grad=True)
            for m in kernel.mems
            if m in self.activity.temps
        }
        self.new_mems.update(dict.fromkeys(kernel.mems))
        for m in kernel.mems:
            if m.grad is not None:
                self.new_mems[m.grad] = None
        self.new_mems.update(dict.fromkeys(self.temp_grads.values()))
        self.seed: Arg | None = None
        """The gradient of what the kernel returns: one more argument of the adjoint."""
        if kernel.result is not None and kernel.result in self.activity.temps:
            t = derivative_type(kernel.result.dtype)
            self.seed = Arg(t, f"{kernel.result.name}.adj", len(kernel.args))

    def kernel(self) -> Kernel:
        """Return the adjoint: the temporaries again, their gradients cleared, the tasks in reverse."""
        k = self.primal
        with self.builder:
            # Temporaries live for one launch only, so the adjoint first computes all of them again, and
            # then starts their gradients from 0 (or from the seed).
            copying = self.logs.copying
            again = [t for t in k.tasks if writes_temps(t, self.versions) and t not in copying]
            tasks = [replay(t, self.versions, self.logs.live(t)) for t in again]
            if self.temp_grads:
                tasks.append(self._clear_temps())
            made = [m.grad for m in k.mems if m in self.versions and m.grad is not None]
            tasks += [clear(m, k.span) for m in made]
            # Tasks run one after the other with a barrier between them, so their adjoints do in reverse
            # order.
            for t in reversed(k.tasks):
                if t not in copying:
                    tasks += self.task(t)
        args = k.args if self.seed is None else (*k.args, self.seed)
        own = frozenset(m.grad for m in k.mems if m.grad is not None and m.grad not in k.mems)
        passed = own.union(self.temp_grads.values())
        mems = tuple(self.new_mems)
        return Kernel(f"{k.name}_grad", args, mems, tuple(tasks), k.span, incoming=passed)

    def grad(self, mem: Mem) -> Mem | None:
        return self.temp_grads.get(mem) if mem.kind == "temp" else super().grad(mem)

    def _clear_temps(self) -> Task:
        with self.builder.block() as stmts:
            for mem, grad in self.temp_grads.items():
                seeded = self.seed is not None and mem is self.primal.result
                self.builder.store(grad, (), self.seed if seeded else zero(grad.dtype))  # type: ignore[arg-type]
        return Task((), Block([]), Block(stmts), self.primal.span)

    def task(self, task: Task) -> list[Task]:
        """Return the adjoint of a task, after those that find the winners it needs."""
        self.winners = self._winners(task)
        # Which lane won is known only when all have run, hence a task of its own before the adjoint.
        before = self._find_winners(task) if self.winners else []
        log = self.logs.logs.get(task)
        if log is not None:
            # Copies are filled where they are used, so that tasks share them.
            before += [replay(t, self.versions) for t in log.copies]
        bounds, axes = self._enter(task)
        self.axes = task.axes
        with self.builder.block() as stmts:
            self.lane = self._lane(task, axes)
            # Lanes of a parallel loop are independent (`access_rules` refuses others), so the adjoint
            # of the loop is the adjoint of each lane, in any order. Only sums into shared gradients
            # meet, and addition commutes.
            if log is not None:
                self._fill(log)
            self.forward(task.body, save=True)
            self.backward(task.body, {})
        return [*before, task.replace(axes=axes, bounds=bounds, body=Block(stmts))]

    def _fill(self, log: TaskLog) -> None:
        """Emit the code that logs what the loads of a lane find."""
        b = self.builder
        counting = Rewriter(dict(self.env)).block(log.counting)
        logging = Rewriter(dict(self.env)).block(log.logging)
        b.stmts += counting.stmts
        for mem, size in zip(log.logs, counting.yields, strict=True):
            b.add(Alloca(mem, size, b.span))
        b.stmts += logging.stmts
        self.logged = log.places

    def _enter(self, task: Task) -> tuple[Block, tuple[Value, ...]]:
        """Return bounds and axes for a task that runs the same lanes."""
        bounds = Rewriter().block(task.bounds)
        return bounds, self.fresh(task.axes)

    # ---- which lane wins an element that all lanes update

    def _winners(self, task: Task) -> dict[object, Mem]:
        """Return, for each element that all lanes may raise (or lower), memory for the number of a lane."""
        if not task.axes:
            return {}
        found = {
            updated_element(s, self.defs): s.mem
            for s in task_statements(task)
            if isinstance(s, Atomic)
            and s.op in ("min", "max")
            and (s.mem in self.temp_grads or s.mem.grad is not None)
        }
        return {
            one: Mem(f"{mem.name}.winner", i64, 0, (), "temp")
            for one, mem in found.items()
            # An element with a launch-wide index needs one lane number. An index that depends on the
            # lane would need one for every element of the memory; there the exchange in `_route`
            # decides.
            if all(base is None or isinstance(base, LEAVES) for base, _ in one[1])
        }

    def _find_winners(self, task: Task) -> list[Task]:
        """Return the tasks that find the first lane whose update reached the element."""
        b = self.builder
        self.new_mems.update(dict.fromkeys(self.winners.values()))
        with b.block() as init:
            for winner in self.winners.values():
                # The neutral element of the minimum over lane numbers.
                b.store(winner, (), Const(i64, 2**63 - 1))
        bounds, axes = self._enter(task)
        self.finding = True
        with b.block() as stmts:
            self.lane = self._lane(task, axes)
            self.forward(task.body)
        self.finding = False
        search = task.replace(axes=axes, bounds=bounds, body=Block(stmts))
        return [Task((), Block([]), Block(init), task.span), search]

    def _lane(self, task: Task, axes: tuple[Value, ...]) -> Value:
        """Emit the lane's number, counted along the flattened axes."""
        b = self.builder
        if not self.winners:
            return Const(i64, 0)
        lane = b.cast(axes[0], i64)
        if len(axes) > 1:
            ends = Rewriter().block(task.bounds)
            for s in ends.stmts:
                b.add(s)
            for k, axis in enumerate(axes[1:], 1):
                lo, hi = (b.cast(v, i64) for v in ends.yields[2 * k : 2 * k + 2])
                # Row-major, the order in which a serial loop nest would run, so ties go to the serial
                # program's first.
                lane = lane * (hi - lo) + (b.cast(axis, i64) - lo)
        return lane


# ---- temporaries, and values that are lost after the launch


def _rename_temps(kernel: Kernel) -> Kernel:
    """Return the kernel with a new temporary wherever one that was read is written again.

    The adjoint recomputes all temporaries before it starts, so each must keep its first value:

        for i in x: s += x[i]                     for i in x: s += x[i]
        for i in x: y[i] = s * x[i]        ->     for i in x: y[i] = s * x[i]
        for i in x: s += x[i] ** 2                s.1 = s
                                                  for i in x: s.1 += x[i] ** 2
    """
    work = _TempCopier()
    tasks: list[Task] = []
    for t in kernel.tasks:
        found = list(task_statements(t))
        # A dict keeps program order, and with it makes the adjoint the same in every run
        # (docs/adr/0001: printing is deterministic).
        written = dict.fromkeys(s.mem for s in found if isinstance(s, (Store, Atomic)))
        for m in [m for m in written if m in work.read]:
            old, new = work.mem(m), Mem(m.name, m.dtype, 0, (), "temp")
            v = Value(m.dtype, m.name)
            # The new temporary starts from the old value: the task may update it, or write it only in a
            # branch.
            copy: list[Stmt] = [Load(v, old, (), t.span), Store(new, (), v, t.span)]
            tasks.append(Task((), Block([]), Block(copy), t.span))
            work.now[m] = new
            work.made.append(new)
            # Later writes go on with the new temporary, until that one is read.
            work.read.remove(m)
        work.read.update(s.mem for s in found if isinstance(s, Load) and s.mem.kind == "temp")
        tasks.append(work.task(t) if work.now else t)
    if not work.made:
        return kernel
    mems = (*kernel.mems, *work.made)
    result = None if kernel.result is None else work.mem(kernel.result)
    return kernel.replace(mems=mems, tasks=tuple(tasks), result=result)


class _TempCopier(Rewriter):
    """Copies tasks; `now` maps each temporary to the one that has replaced it."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[Mem, Mem] = {}
        self.made: list[Mem] = []
        self.read: set[Mem] = set()

    def mem(self, m: Mem) -> Mem:
        return self.now.get(m) or super().mem(m)

    def task(self, t: Task) -> Task:
        bounds, axes = self.block(t.bounds), self.fresh_all(t.axes)
        return t.replace(axes=axes, bounds=bounds, body=self.block(t.body))


class _LostValueError(Exception):
    """No adjoint of this form finds what an atomic returned; `refusal` is the error for the user."""

    def __init__(self, refusal: AutodiffError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def _lost_values(made: _Differentiated, logged: set[Load | Atomic] | None) -> set[Atomic]:
    """Return the atomics whose old values an adjoint needs, which a log can have.

    Args:
        made: a kernel and its adjoint.
        logged: what is logged already; None: nothing may be.

    Raises:
        _LostValueError: a value cannot be recomputed.
    """
    # Statements in order return the same numbers again; lanes need not.
    serial = () if logged is None else [t for t in made.kernel.tasks if not t.axes]
    inside = [s for t in serial for s in task_statements(t) if isinstance(s, Atomic)]
    known = {s.origin for s in inside if can_have_versions(s.mem)}
    found: set[Atomic] = set()
    refused: list[AutodiffError] = []
    for s in (s for t in made.adjoint.tasks for s in task_statements(t)):
        if not isinstance(s, Load) or s.mem.kind != "lost":
            continue
        if isinstance(s.origin, Atomic) and s.origin in known - (logged or set()):
            found.add(s.origin)
        else:
            refused.append(_lost_value(s))
    if refused:
        raise _LostValueError(together(refused))
    return found


def _lost_value(s: Load) -> AutodiffError:
    return AutodiffError(
        f"the gradient needs the old value of {s.mem.name} that this atomic returned, which "
        "no longer exists",
        s.span,
        hint="store it into a field of its own, and read it there in a later launch",
    )
