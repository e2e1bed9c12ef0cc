"""Tasks: the parallel loops of a kernel, and the serial code between them.

Tasks are compiled as separate functions, so a local that one task binds and another reads moves into a
temporary, a 0-D memory that lives for one launch. In a parallel loop such a local can only be accumulated
into (`s += x[i]`, atomically); assigning it would be a race between the lanes, and is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import KernelSyntaxError
from diffsim.ir.nodes import Arg, Atomic, Block, Const, Dim, Let, Load, Mem, Stmt, Task, Value
from diffsim.ir.traversal import Rewriter, has_effects, outs, statements, uses
from diffsim.ir.types import Type, an, u64
from diffsim.lang.frontend import iteration_spaces, loop_carried
from diffsim.lang.frontend.context import (
    BREAK,
    CONTINUE,
    DRAWS,
    LoopOptions,
    TranslationContext,
    with_members,
)
from diffsim.lang.frontend.expressions import expr
from diffsim.lang.frontend.functions import by_reference, structs
from diffsim.lang.frontend.narrowing import keep_type, narrowed, refuse_fraction
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.regions import note_range
from diffsim.lang.frontend.values import (
    Evaluated,
    KernelContainer,
    KernelDict,
    KernelLocal,
    Undefined,
    holds_value,
    of_parts,
    parts_of,
)
from diffsim.lang.host.source import SyntaxNode

# Operators that are associative and commutative up to rounding: a subtraction adds the negative. For the
# others the result would depend on the order of lanes.
ATOMIC: dict[type[ast.operator], str] = dict(
    zip(loop_carried.REDUCING, ("add", "add", "and", "or", "xor"), strict=True)
)


def temp(cx: TranslationContext, name: str, t: Type) -> Mem:
    """Make a temporary."""
    return cx.use(Mem(name, t, 0, (), "temp"))


def start_random_stream(cx: TranslationContext) -> None:
    """Let each task draw random numbers from a stream of its own.

    The streams are 2**32 draws apart.
    """
    # The number of the next draw is a constant here, so the
    # first draws of a lane need no counter in a register.
    cx.env[DRAWS] = Const(u64, len(cx.tasks) << 32)


def spill_locals(cx: TranslationContext, changed: set[str]) -> None:
    """End the serial task under construction, and move locals into temporaries for later tasks.

    Whether a later task reads a local is not known yet; unused temporaries are removed as dead code.
    """
    b = cx.builder
    changed = set(with_members(cx.env, changed))
    for name, thing in list(cx.env.items()):
        # Control flags and the count of random draws belong to one task.
        if name[0] == "%":
            continue
        if isinstance(thing, (list, tuple, KernelDict)) and holds_value(thing):
            if isinstance(thing, KernelDict) or not _scalars(thing):
                cx.env[name] = KernelContainer(_spilled(cx, name, thing))
                continue
            thing = b.tensor_of(list(thing), (len(thing),))
        if isinstance(thing, (bool, int, float, np.generic)) and name in changed:
            thing = b.literal(thing)
        if not isinstance(thing, Value):
            continue
        # These are the same in all tasks, so they need no memory.
        if isinstance(thing, (Const, Arg, Dim)) and name not in changed:
            continue
        mem = temp(cx, name, thing.type)
        # Stored by the serial task that ends here: it runs before the loop.
        b.store(mem, (), thing)
        cx.env[name] = KernelLocal(mem)
    close_serial_task(cx)


def _scalars(things: Any) -> bool:
    return all(
        isinstance(e, folding.Number) or (isinstance(e, Value) and not e.type.shape) for e in things
    )


def _spilled(cx: TranslationContext, name: str, thing: Evaluated) -> Evaluated:
    """Move the run-time values of a container into temporaries."""
    parts = parts_of(thing)
    if parts is not None:
        return of_parts(thing, [_spilled(cx, name, part) for part in parts])
    if not isinstance(thing, Value) or isinstance(thing, (Const, Arg, Dim)):
        return thing
    mem = temp(cx, name, thing.type)
    cx.builder.store(mem, (), thing)
    return KernelLocal(mem)


def close_serial_task(cx: TranslationContext) -> None:
    """Make a task of the serial statements so far."""
    b = cx.builder
    # Between two loops there may be no code at all.
    if b.stmts:
        cx.tasks.append(Task((), Block([]), Block(b.stmts), b.stmts[0].span))
        b.stmts = []
    start_random_stream(cx)


def loop_options(cx: TranslationContext, node: ast.For, *, is_static: bool) -> LoopOptions:
    """Return what `ds.loop_config` said of this loop, if it is the next one of the kernel itself."""
    options = cx.next_loop
    # `ds.loop_config` is for loops of the kernel itself, not of inlined funcs.
    if options is None or cx.running or cx.in_task:
        return LoopOptions(node)
    cx.next_loop = None
    # There is no loop left that the options could apply to.
    if is_static:
        raise cx.syntax(
            options.node,
            "the loop after this ds.loop_config is unrolled, so it has no options",
            "put ds.loop_config before the outermost loop that runs in parallel",
        )
    if not cx.is_outside and options.block_dim is not None:
        raise block_dim_error(cx, options.node)
    return options


def block_dim_error(cx: TranslationContext, node: SyntaxNode) -> KernelSyntaxError:
    """Return the error for block_dim before a loop that is none of the kernel's outermost ones."""
    return cx.syntax(
        node,
        "block_dim is for loops that run in parallel, and the next one runs in order in one thread",
        "put it before an outermost loop of the kernel: one in no func, branch or other loop, and not after "
        "a return",
    )


def parallel_for(
    cx: TranslationContext,
    node: ast.For,
    translate: Callable[[TranslationContext, list[ast.stmt]], None],
    options: LoopOptions,
    private: list[str],
) -> None:
    """Translate a loop at kernel level to a task, one lane per iteration; `private`: see `loop_carried`."""
    b, span = cx.builder, cx.span(node)
    # 1. Locals that the loop changes need memory even if
    # they are constant so far: `s = 0.0` before `s += x[i]`.
    changed = by_reference.changed(cx, node.body)
    spill_locals(cx, changed)
    # 2. The bounds, in a block of their own: the launch evaluates them to find the number of lanes.
    entered = cx.env.copy()
    with b.block() as bounds:
        space = iteration_spaces.iteration_space(cx, node.iter)
    # They are evaluated apart from the body, and again for the adjoint, so they must have no effect.
    if has_effects(Block(bounds)) or cx.has_changed(entered):
        raise cx.syntax(
            node.iter,
            "the iterations of this parallel loop run at the same time, and finding out how many there are "
            "changes something",
            "do it in a line before the loop: n = ..., then for i in range(n)",
        )
    yields = tuple(v for axis in space.axes for v in axis)
    # Each axis is a value of the body: the lane's index along it.
    axes = tuple(Value(lo.type, space.hint(node.target, k)) for k, (lo, _) in enumerate(space.axes))
    for axis, (lo, hi) in zip(axes, space.axes, strict=True):
        note_range(cx, axis, lo, hi)
    # 3. The body. What it binds is local to a lane, so the bindings from before are restored afterwards.
    before = dict(cx.env)
    cx.in_task = True
    cx.lane_axes = axes
    for name in with_members(cx.env, private):
        cx.env.pop(name, None)
    cx.env[CONTINUE] = False
    # Without BREAK in the environment, `break` is refused.
    cx.env.pop(BREAK, None)
    with b.block() as stmts, cx.loop_body(stmts):
        if space.start is not None:
            space.start = _again(cx, node, bounds, space.start)
        iteration_spaces.bind_target(cx, node.target, space.item(cx, list(axes)))
        by_reference.loop_body(cx, node, (), translate)
    cx.in_task = False
    cx.lane_axes = ()
    for name in with_members(before, private):
        before[name] = Undefined(
            "is another one for each iteration of the parallel loop above, and has no value after it"
        )
    cx.frame.env = before
    b.span = span
    with b.block() as whole:
        space.only_active(cx, axes, stmts)
    body = Block(whole)
    _refuse_reading_reductions(body)
    cx.tasks.append(
        Task(
            axes,
            Block(bounds, yields),
            body,
            span,
            block_dim=options.block_dim,
            independent=options.independent,
            active=space.active,
            written=space.written,
        )
    )
    start_random_stream(cx)


def _again(cx: TranslationContext, node: ast.For, bounds: list[Stmt], v: Value) -> Value:
    """Emit a value of a loop's bounds again, in its body, which does not see them."""
    needed = {v}
    for s in reversed(bounds):
        if needed.isdisjoint(outs(s)):
            continue
        # What another lane has changed meanwhile is another number.
        if not (isinstance(s, Let) or (isinstance(s, Load) and s.mem.kind == "temp")):
            raise cx.syntax(
                node.iter,
                "where a range with a step begins is not known before the loop",
                "give it a name in a line before: first = ..., then for i in range(first, end, step)",
            )
        needed.update(uses(s))
    copier = Rewriter()
    for s in bounds:
        if not needed.isdisjoint(outs(s)):
            for copy in copier.stmt(s):
                cx.builder.add(copy)
    return copier.value(v)


def _refuse_reading_reductions(body: Block) -> None:
    """Refuse a lane that reads a local which other lanes add to: what it reads would depend on timing."""
    found = list(statements(body))
    # For fields the user is responsible, as their elements
    # may belong to a lane; a 0-D local is shared by all.
    sums = {s.mem for s in found if isinstance(s, Atomic) and s.mem.kind == "temp"}
    for s in found:
        if isinstance(s, Load) and s.mem in sums:
            raise KernelSyntaxError(
                f"{s.mem.name} is read in the parallel loop that adds to it: its iterations run at "
                "the same time",
                s.span,
                hint=f"read {s.mem.name} after the loop, or, where each iteration continues the one before, "
                "put ds.loop_config(serialize=True) before the loop",
            )


def race_error(cx: TranslationContext, name: str, node: SyntaxNode) -> KernelSyntaxError:
    """Return the error for assigning a kernel-level local, or a part of one, in a parallel loop."""
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        add = f"to sum add to all of {name} at a time, {name} += ..."
    else:
        add = (
            f"to sum write {name} += ...; for the largest or smallest ds.atomic_max({name}, ...) or "
            "ds.atomic_min"
        )
    return cx.syntax(
        node,
        f"{name} belongs to the kernel, and the iterations of this parallel loop run at the same time",
        f"{add}; for a local of the loop take another name; to run the iterations in order put "
        "ds.loop_config(serialize=True) before the loop",
    )


def accumulate(
    cx: TranslationContext, mem: Mem, kind: type[ast.operator], v: Value, node: Any
) -> None:
    """Translate `s += v` in a parallel loop, where s is a local of the kernel."""
    # `s *= v` in parallel depends on the order of lanes, and has no atomic update.
    if kind not in ATOMIC:
        raise race_error(cx, mem.name, node)
    # A number is added to each element of a vector, as `v + 1` does.
    if mem.dtype.shape and not v.type.shape:
        v = cx.builder.broadcast(v, mem.dtype)
    v = keep_type(cx, v, mem.dtype, mem.name, node.target)
    cx.builder.atomic(ATOMIC[kind], cx.use(mem), (), -v if kind is ast.Sub else v)


def kernel_return(cx: TranslationContext, node: ast.Return) -> None:
    """Translate `return value` of a kernel: the value is stored where the launch picks it up."""
    if node.value is None:
        if cx.result is not None:
            raise cx.syntax(
                node,
                f"the kernel says that it returns {an(cx.result.dtype)}, and this return gives nothing",
                "give the value here too",
            )
        return
    if cx.result is None:
        raise cx.syntax(
            node,
            "the kernel returns a value, and its def does not say of which type",
            f"write def {cx.frame.source.name}(...) -> ds.f32:",
        )
    found = expr(cx, node.value)
    if cx.result_form is not None:
        typed = structs.as_typed(cx, found, cx.result_form.type, "the result", node.value)
        row = structs.as_row(cx, typed)
        cx.builder.store(cx.use(cx.result), (), cx.builder.tensor_of(row, (len(row),)))
        return
    thing = cx.value(found, node.value, "the result")
    t = cx.result.dtype
    problem = f"the kernel says that it returns {an(t)}, this is {an(thing.type)}"
    hint = (
        "write the right type behind -> in its def: ds.f32, ds.types.vector(n, ds.f32), ..."
        if thing.type.shape or t.shape
        else f"write -> ds.{thing.type} in its def, or convert: ds.cast(..., ds.{t.scalar})"
    )
    if thing.type.shape != t.shape:
        raise cx.type_error(node.value, problem, hint)
    refuse_fraction(cx, thing, t.scalar, node.value, problem, hint)
    cx.builder.store(cx.use(cx.result), (), narrowed(cx, thing, t.scalar, "the result"))
