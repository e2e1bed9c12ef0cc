"""Forward mode: from a kernel to one that runs the same lanes and computes their tangents along with them.

Read `region_tangents.py` next. Questions that depend on the order of lanes are decided here (docs/adr/0038).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diffsim.errors import AutodiffError, together
from diffsim.ir.nodes import (
    LEAVES,
    Arg,
    Atomic,
    Block,
    CustomCall,
    Kernel,
    Mem,
    Print,
    Store,
    Task,
    Value,
)
from diffsim.ir.ops.shapes import position
from diffsim.ir.traversal import statements, task_statements
from diffsim.ir.types import derivative_type, size_of, tensor
from diffsim.passes.analysis.affine import element_of, task_definitions
from diffsim.passes.analysis.ownership import written_by_others
from diffsim.passes.autodiff.activity import Activity, check_bits
from diffsim.passes.autodiff.custom_calls import inline_bodies
from diffsim.passes.tangent.op_tangents import TangentBuilder
from diffsim.passes.tangent.region_tangents import TangentEmitter
from diffsim.passes.transforms.dce import eliminate_dead_code
from diffsim.passes.transforms.serialize import serialize_task


class Tangent(NamedTuple):
    """A kernel with its tangents.

    Attributes:
        ir: the kernel. If its result depends on a dual, it returns a vector: the scalars of the result,
            then those of each tangent of it.
        leaks: stores of values with a tangent into float memories that have no dual.
        returns_active: whether the result has tangents.
    """

    ir: Kernel
    leaks: tuple[Store | Atomic, ...]
    returns_active: bool


def differentiate(
    kernel: Kernel,
    *,
    width: int = 1,
    detached: bool = False,
    varying: tuple[Arg, ...] = (),
) -> Tangent:
    """Return a prepared kernel that computes tangents besides.

    Args:
        kernel: the kernel; those of its memories that have a `dual` have tangents.
        width: the number of tangents; if there are several, a dual has one more axis, the last one.
        detached: whether everything is constant: the duals of what is stored become 0 (`ds.ad.no_grad`).
        varying: arguments that have tangents, which follow the kernel's own arguments: all of the first, all
            of the second, ... (the seed of an adjoint is one).

    Raises:
        AutodiffError: with the user's line, where something has no tangent.
    """
    sources = frozenset(m for m in kernel.mems if m.dual is not None and not detached)
    if any(isinstance(s, CustomCall) for t in kernel.tasks for s in task_statements(t)):
        _refuse_given(kernel, Activity(kernel, sources, varying))
        kernel = inline_bodies(kernel, but_linear=True)
    activity = Activity(kernel, sources, varying)
    check_bits(kernel, activity)
    work = _Forward(kernel, activity, width, varying)
    ir = eliminate_dead_code(work.kernel())
    return Tangent(ir, tuple(activity.leaks), kernel.result in work.emitter.hidden)


class _Forward:
    """Emits a kernel with its tangents, task by task."""

    def __init__(
        self, kernel: Kernel, activity: Activity, width: int, varying: tuple[Arg, ...]
    ) -> None:
        self.primal = kernel
        self.activity = activity
        self.width = width
        self.builder = TangentBuilder(kernel.span)
        self.emitter = TangentEmitter(self.builder, activity, width)
        self.args = list(kernel.args)
        for a in varying:
            first = len(self.args)
            made_args = [
                Arg(derivative_type(a.type), f"{a.hint}.dual", first + k) for k in range(width)
            ]
            self.args += made_args
            self.emitter.bind(a, tuple(made_args))
        for m in kernel.mems:
            if m.kind == "temp" and m in activity.temps:
                t = derivative_type(m.dtype)
                made = tuple(Mem(f"{m.name}.dual", t, 0, (), "temp") for _ in range(width))
                self.emitter.hidden[m] = made

    def kernel(self) -> Kernel:
        """Return the kernel with its tangents."""
        k = self.primal
        with self.builder:
            tasks = [self._task(t) for t in k.tasks]
            result = k.result
            if result is not None and result in self.emitter.hidden:
                result, task = self._gather_result(result)
                tasks.append(task)
        mems = dict.fromkeys(k.mems)
        mems.update(dict.fromkeys(m.dual for m in k.mems if m.dual is not None))
        mems.update(dict.fromkeys(m for duals in self.emitter.hidden.values() for m in duals))
        if result is not None:
            mems[result] = None
        found = tuple(m for m in mems if m.kind != "scratch")
        return k.replace(
            name=f"{k.name}_tangent",
            args=tuple(self.args),
            mems=found,
            tasks=tuple(tasks),
            result=result,
        )

    def _task(self, task: Task) -> Task:
        assert not task.reductions
        shared = list(_shared(task, self.activity, self.emitter))
        if shared:
            # Last lane first: of several that reach an extreme, the first lane is the last that does. Lanes
            # that print or ask for an old value run in the order that the user expects.
            plain = all(s.out is None for s in shared)
            prints = any(isinstance(s, Print) for s in task_statements(task))
            task = serialize_task(task, reverse=plain and not prints)
        with self.builder.block() as stmts:
            self.emitter.block(task.body)
        return task.replace(body=Block(stmts))

    def _gather_result(self, result: Mem) -> tuple[Mem, Task]:
        """Return memory for the result and its tangents in a row, and the task that fills it."""
        b, t = self.builder, result.dtype
        row = tensor(t.scalar.arithmetic, ((1 + self.width) * size_of(t),))
        whole = Mem(result.name, row, 0, (), "temp")
        with b.block() as stmts:
            parts: list[Value] = []
            for mem in (result, *self.emitter.hidden[result]):
                value = b.cast(b.load(mem, ()), row.scalar)
                if t.shape:
                    places = [position(t, j) for j in range(size_of(t))]
                    parts += [b.named("extract", value, *at) for at in places]
                else:
                    parts.append(value)
            b.store(whole, (), b.build(parts, whole.dtype))
        return whole, Task((), Block([]), Block(stmts), self.primal.span)


def _shared(task: Task, activity: Activity, emitter: TangentEmitter) -> Iterator[Atomic]:
    """Yield the updates whose tangents depend on the order of lanes.

    Which of several lanes holds the extreme, and what an element was before an update, is decided by one
    atomic; the tangents that belong to it are in other memory.
    """
    if not task.axes:
        return
    for s in task_statements(task):
        if not isinstance(s, Atomic) or not emitter.has_dual(s.mem):
            continue
        wants_old = s.out is not None and s.out in activity.values
        if s.op == "add" and not wants_old:
            continue
        # Of lanes that could exchange one and the same gradient, the adjoint has chosen one before.
        if s.op == "xchg" and _is_launch_wide(s, task):
            continue
        if not written_by_others(task).is_own(s):
            yield s


def _is_launch_wide(s: Atomic, task: Task) -> bool:
    """Whether all lanes mean the same element."""
    element = element_of(s.index, task_definitions(task))
    return all(base is None or isinstance(base, LEAVES) for base, _ in element)


def _refuse_given(kernel: Kernel, activity: Activity) -> None:
    """Refuse calls with a gradient of their own that a tangent would go through."""
    refused = [
        AutodiffError(
            s.refusal
            or f"{s.name} has a gradient of its own, which is for reverse mode: it gives no tangent",
            s.span,
            hint="take this gradient in reverse mode, with ds.Tape; or cut the tangent on purpose: "
            "ds.stop_grad(...) around the arguments",
        )
        for t in kernel.tasks
        for s in task_statements(t)
        if isinstance(s, CustomCall)
        and s.is_given
        and not s.is_linear
        and _has_tangents(s, activity)
    ]
    if refused:
        raise together(refused)


def _has_tangents(call: CustomCall, activity: Activity) -> bool:
    """Whether a call returns something that has tangents, or writes it to memory."""
    stores = (s for s in statements(call.body) if isinstance(s, (Store, Atomic)))
    return any(v in activity.values for v in (*call.outs, *(s.value for s in stores)))
