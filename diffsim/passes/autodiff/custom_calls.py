"""Calls with a custom derivative or replay: rules are checked, bodies inlined; and tasks without effects.

In the forward direction, such a call is its body:

    %y: f32 = custom f {              %t: f32 = sqrt %x
      %t: f32 = sqrt %x         ->
      yield %t
    } adjoint ...
"""

from __future__ import annotations

from diffsim.errors import AutodiffError
from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Check,
    CustomCall,
    Kernel,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, free_values, statements, task_statements
from diffsim.passes.autodiff.activity import Activity


def inline_bodies(kernel: Kernel, *, but_linear: bool = False) -> Kernel:
    """Return the kernel with the body of each call in its place, perhaps not of those with a tangent."""
    found = (s for t in kernel.tasks for s in task_statements(t) if isinstance(s, CustomCall))
    # Most kernels have no such call. An unchanged kernel keeps the analyses memoized on it, and an adjoint
    # its loads of gradients, which are told from repeated ones by identity.
    if all(but_linear and s.is_linear for s in found):
        return kernel
    work = Inliner()
    work.keeps_linear = but_linear
    tasks = tuple(
        t.replace(bounds=work.block(t.bounds), body=work.block(t.body)) for t in kernel.tasks
    )
    return kernel.replace(tasks=tasks)


def bind(env: dict[Value, Value], call: CustomCall, results: tuple[Value, ...]) -> None:
    """Substitute values for the results of a call, under the user's names for them."""
    for out, v in zip(call.outs, results, strict=True):
        env[out] = v
        v.hint = v.hint or ("" if isinstance(v, LEAVES) else out.hint)


class Inliner(Rewriter):
    """Copies statements, and inlines the bodies of calls.

    `replayed`: whether a call's replay takes the place of its body, where it has one.
    `keeps_linear`: whether calls with a linear adjoint stay.
    """

    replayed = keeps_linear = False

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, CustomCall) or (self.keeps_linear and s.is_linear):
            return [self.copy(s)]
        # A replay recomputes what the adjoint needs where the body cannot be run twice: what an atomic
        # returned the first time, for example, is lost.
        made = self.block(s.replay if self.replayed and s.replay is not None else s.body)
        bind(self.env, s, made.yields)
        return list(made.stmts)


def check_custom_rules(kernel: Kernel, activity: Activity) -> None:
    """Refuse custom derivatives that leave out something with a gradient.

    Raises:
        AutodiffError: with the line that reads or changes it.
    """
    for t in kernel.tasks:
        for s in task_statements(t):
            # A call with a replay alone is differentiated through its body, by the ordinary rules.
            if isinstance(s, CustomCall) and s.adjoint is not None:
                _check_arguments(s, activity)
                _check_writes(s, activity)
                _check_reads(s, activity)


def _check_arguments(call: CustomCall, activity: Activity) -> None:
    """Refuse a body that uses an active value which is not an argument of the call."""
    # The rule receives the adjoints of the results and returns those of the arguments. A value that the
    # body uses without being an argument has no place in it, and its gradient would silently be 0.
    hidden = [v for v in free_values(call.body) if v in activity.values and v not in call.args]
    if hidden:
        raise AutodiffError(
            f"the gradient given for {call.name} cannot name a value that it gets inside a struct or "
            "list, and that has a derivative",
            call.span,
            hint="pass the value as an argument of its own, or as a vector",
        )


def _check_writes(call: CustomCall, activity: Activity) -> None:
    """Refuse a body that writes to a memory with a gradient."""
    for s in statements(call.body):
        if isinstance(s, (Store, Atomic)) and activity.is_active(s.mem):
            raise AutodiffError(
                f"{call.name} has a gradient of its own and changes {s.mem.name}, which has one too",
                s.span,
                hint=f"return the value, and store it in the kernel that calls {call.name}",
            )


def _check_reads(call: CustomCall, activity: Activity) -> None:
    """Refuse a result that depends on a memory which is not among the targets."""
    seen: set[Mem] = set(call.targets)
    for s in statements(call.body):
        if not isinstance(s, Load) or s.mem in seen or not activity.is_active(s.mem):
            continue
        seen.add(s.mem)
        # Activity analysis with this memory as the only source: what a load reaches through integers or
        # comparisons alone, or not at all, needs no gradient.
        alone = Task((), Block([]), call.body, call.span)
        reached = Activity(Kernel("", (), (), (alone,), call.span), frozenset([s.mem])).values
        if any(y in reached for y in call.body.yields):
            name = s.mem.name
            raise AutodiffError(
                f"the result of {call.name} depends on {name}, and the gradient given for it adds "
                f"nothing to that of {name}",
                s.span,
                hint=f"add ds.adjoint[{name}][...] += ... there, or read ds.stop_grad({name}[...]) here",
            )


class AdjointCopier(Inliner):
    """Copies a custom adjoint into the adjoint of its caller; `is_inner`: for values alone."""

    def __init__(self, env: dict[Value, Value], *, is_inner: bool) -> None:
        super().__init__(env)
        self.is_inner = is_inner

    def stmt(self, s: Stmt) -> list[Stmt]:
        # Within `ds.grad(f)` only values count: additions to gradients of memory belong to no one
        # there.
        if isinstance(s, (Check, Print)) or (self.is_inner and isinstance(s, Atomic)):
            return []
        return [self.copy(s)] if self.is_inner else super().stmt(s)


def notes_of(call: Stmt) -> tuple[Atomic, Mem] | None:
    """Return the atomic of a call that notes what it returned, and the notes; None for all else.

    Such calls are made by `passes/instrument/returned_values.py`.
    """
    if not isinstance(call, CustomCall) or call.replay is None or len(call.body.stmts) != 2:
        return None
    atomic, store = call.body.stmts
    return (atomic, store.mem) if isinstance(atomic, Atomic) and isinstance(store, Store) else None


# ---- tasks again, without their effects on fields


def writes_temps(task: Task, versions: frozenset[Mem] = frozenset()) -> bool:
    """Whether a task writes a temporary, or one of these versions of memories."""
    return any(
        isinstance(s, (Store, Atomic)) and (s.mem.kind == "temp" or s.mem in versions)
        for s in task_statements(task)
    )


def replay(
    task: Task, versions: frozenset[Mem] = frozenset(), live: frozenset[Mem] = frozenset()
) -> Task:
    """Return the task without its effects on fields: it recomputes temporaries and versions of memories.

    `live`: memories whose loads find what the task itself has just written, if it is repeated: in versions.
    """
    work = Replayer()
    work.versions, work.live = versions, live & versions
    axes = work.fresh_all(task.axes)
    bounds = work.block(task.bounds)
    return task.replace(axes=axes, bounds=bounds, body=work.block(task.body))


class Replayer(Inliner):
    """Copies tasks without stores to fields, checks and prints."""

    replayed = True
    versions: frozenset[Mem] = frozenset()
    live: frozenset[Mem] = frozenset()

    def stmt(self, s: Stmt) -> list[Stmt]:
        # The primal launch has checked and printed already.
        if isinstance(s, (Check, Print)):
            return []
        if isinstance(s, (Store, Atomic)) and s.mem.kind not in ("temp", "scratch"):
            return self._write(s)
        if isinstance(s, Load) and s.mem in self.live:
            # No copy of the user's load, which the access rules would ask about: it finds the right value
            # at this point of the run, if not at the end of it.
            index = self.values(s.index)
            return [Load(self.fresh(s.out), self.mem(s.mem), index, s.span)]
        return super().stmt(s)

    def _write(self, s: Store | Atomic) -> list[Stmt]:
        """Return what is left of a write to a field."""
        again: list[Stmt] = []
        if s.mem in self.versions:
            alone = s.replace(out=None) if isinstance(s, Atomic) else s
            again += super().stmt(alone)
        if isinstance(s, Atomic) and s.out is not None:
            # A load from a memory of kind "lost" marks a value that cannot be recomputed. If dead-code
            # elimination leaves it, some derivative needs it (`reverse._lost_values`).
            lost = Mem(s.mem.name, s.out.type, 0, (), "lost")
            again.append(Load(self.fresh(s.out), lost, (), s.span))
        return again
