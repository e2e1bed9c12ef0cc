"""Statements: each kind of syntax node has one function that translates it.

A loop at kernel level becomes a parallel task; what stands between is serial. Locals that several tasks
see move into temporaries (`task.py` does that).
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Callable
from typing import Any

from diffsim.ir.nodes import Check, Const, Mem, Value
from diffsim.ir.types import an
from diffsim.lang import (
    calls,
    components,
    elements,
    expressions,
    given,
    linalg,
    references,
    spaces,
    struct_code,
    struct_values,
    tasks,
)
from diffsim.lang.elements import place_of
from diffsim.lang.expressions import condition, expr, value
from diffsim.lang.matrix import Matrix
from diffsim.lang.regions import for_region, if_region, keep_type, while_region
from diffsim.lang.scope import (
    BREAK,
    CONTINUE,
    RESULT,
    RETURN,
    Context,
    StructValue,
    StructVar,
    TempVar,
    Undefined,
    describe,
    sample,
)


class PrecisionLoss(UserWarning):
    """A value is stored into a narrower type."""


def block(cx: Context, statements: list[ast.stmt]) -> None:
    """Translate statements in order; what follows a possible break, continue or return is guarded."""
    for k, statement in enumerate(statements):
        outer = cx.builder.span
        cx.builder.span = cx.span(statement)
        try:
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise _unsupported(cx, statement)
            handler(cx, statement)
        finally:
            cx.builder.span = outer
        stop = _stopped(cx)
        if stop is False:
            continue
        rest = statements[k + 1 :]
        if stop is True or not rest:
            return
        _unless(cx, stop, functools.partial(block, cx, rest), rest[0])
        return


def _stopped(cx: Context) -> Value | bool:
    """Whether the rest of the block is skipped: known now, or a run-time condition."""
    found: Value | None = None
    for flag in (BREAK, CONTINUE, RETURN):
        state = cx.env.get(flag, False)
        if isinstance(state, Const):
            state = bool(state.value)
        if state is True:
            return True
        if isinstance(state, Value):
            found = state if found is None else cx.builder.named("or", found, state)
    return False if found is None else found


def _unless(cx: Context, stop: Value, rest: Callable[[], None], node: ast.stmt) -> None:
    """Translate what is skipped where a break, continue or return was met."""
    was = {flag: cx.env[flag] for flag in (BREAK, CONTINUE, RETURN) if flag in cx.env}

    def go_on() -> None:
        cx.env.update(dict.fromkeys(was, False))
        rest()
        cx.env.update({flag: old for flag, old in was.items() if cx.env.get(flag) is False})

    if_region(cx, cx.builder.named("not", stop), go_on, lambda: None, node)


_UNSUPPORTED = {
    ast.Try: ("try", "kernels have no exceptions; test a condition with if"),
    ast.TryStar: ("try", "kernels have no exceptions; test a condition with if"),
    ast.With: ("with", "enter the context in Python, around the launch"),
    ast.Raise: ("raise", "kernels have no exceptions; use assert, which debug=True checks"),
    ast.ClassDef: ("a class definition", "define it outside of the kernel"),
    ast.FunctionDef: ("a function definition", "define it outside of the kernel with @ds.func"),
    ast.AsyncFunctionDef: (
        "a function definition",
        "define it outside of the kernel with @ds.func",
    ),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.Global: ("global", "kernels can not rebind Python variables; use a 0-D field"),
    ast.Nonlocal: ("nonlocal", "kernels can not rebind Python variables; use a 0-D field"),
    ast.Delete: ("del", "leave it out: a local ends with the kernel"),
    ast.Match: ("match", "write if and elif"),
}


def _unsupported(cx: Context, node: ast.stmt) -> Exception:
    word, hint = _UNSUPPORTED.get(type(node), ("this statement", "move it out of the kernel"))
    return cx.syntax(node, f"{word} can not be used in a kernel", hint)


# ---- assignment


def _assign(cx: Context, node: ast.Assign) -> None:
    thing = expr(cx, node.value)
    for target in node.targets:
        assign_to(cx, target, thing, node.value)


def _annotated(cx: Context, node: ast.AnnAssign) -> None:
    if node.value is None:
        raise cx.syntax(node, "a declaration without a value", "give it a value")
    t = expr(cx, node.annotation)
    assign_to(cx, node.target, calls.convert(cx, expr(cx, node.value), t, node))


def assign_to(cx: Context, target: ast.expr, thing: Any, source: ast.expr | None = None) -> None:
    """`target = thing` for a name, an element or component, or a tuple of targets.

    `source` is where the thing comes from, for errors about it.
    """
    source = source or target
    if isinstance(target, ast.Name):
        assign_local(cx, target.id, thing, target)
        return
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = thing
        if isinstance(thing, Value) and thing.type.shape:
            flat = parts = linalg.elements(thing)
            for n in thing.type.shape[1:]:  # the rows of a matrix
                starts = range(0, len(flat), n)
                parts = [cx.builder.tensor_of(flat[k : k + n], (n,)) for k in starts]
        elif isinstance(thing, (Matrix, spaces.Static)):
            parts = list(thing)
        if not isinstance(parts, (list, tuple)):
            raise cx.type_error(
                source, f"{describe(thing)} can not be unpacked", "only lists and vectors can"
            )
        _unpack(cx, target, list(parts), source)
        return
    with cx.once(target):
        _assign_part(cx, target, thing, source)


def _unpack(cx: Context, target: ast.Tuple | ast.List, parts: list[Any], source: ast.expr) -> None:
    """`a, b = parts`; of `a, *b = parts` b is the list of those that no other name takes."""
    targets = target.elts
    is_written = isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(parts)
    given: list[ast.expr] = source.elts if is_written else [source] * len(parts)  # type: ignore[attr-defined]
    stars = [k for k, one in enumerate(targets) if isinstance(one, ast.Starred)]
    if len(parts) < len(targets) - len(stars) or (not stars and len(parts) > len(targets)):
        raise cx.type_error(
            target,
            f"{len(targets) - len(stars)} names for {len(parts)} values",
            "write as many names as values",
        )
    for k in stars:  # Python allows one
        end = k + 1 + len(parts) - len(targets)
        parts[k:end], given = [parts[k:end]], [*given[:k], source, *given[end:]]
    for one, part, at in zip(targets, parts, given, strict=True):
        name = one.value if isinstance(one, ast.Starred) else one
        if not _is_thrown_away(cx, name):
            assign_to(cx, name, part, at)


def _is_thrown_away(cx: Context, target: ast.expr) -> bool:
    """Whether it is an underscore that nobody reads, which takes values of any type."""
    if not (isinstance(target, ast.Name) and target.id == "_"):
        return False
    names = (n for n in ast.walk(cx.frame.source.node) if isinstance(n, ast.Name))
    return not any(n.id == "_" and isinstance(n.ctx, ast.Load) for n in names)


def _assign_part(cx: Context, target: ast.expr, thing: Any, source: ast.expr) -> None:
    """`target = thing` for an element, or for several of a vector or matrix."""
    several = components.several_places(cx, target)
    if several:
        places, shape = several
        things = components.spread(cx, thing, shape, source)
        for (mem, index), one in zip(places, things, strict=True):
            cx.builder.store(mem, index, stored(cx, mem, index, one, source))
        return
    place = elements.any_place(cx, target)
    if isinstance(place, struct_values.StructPlace):
        new = struct_values.of_type(cx, thing, place.type, "the value", source)
        struct_code.store(cx, place, new, source)
        return
    if place is not None:
        mem, index = place
        cx.builder.store(mem, index, stored(cx, mem, index, thing, source))
        return
    components.assign(cx, target, thing, source)


def assign_local(cx: Context, name: str, thing: Any, target: ast.expr) -> None:
    """`name = thing`, where "p.pos" is the name of a member of the local p."""
    env = cx.env
    old = env.get(name)
    thing = struct_values.as_value(cx, thing, target)
    if isinstance(thing, StructValue):
        struct_code.assign(cx, name, thing, target)
        return
    if isinstance(old, StructVar):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and can not become {describe(thing)}",
            f"name a member: {', '.join(f'{name}.{m}' for m in old.type.members)}",
        )
    if "." in name and isinstance(old, (Value, TempVar)):
        want = old.mem.dtype if isinstance(old, TempVar) else old.type
        thing = cx.value(thing, target, name, want)
        if want.shape and not thing.type.shape:
            thing = cx.builder.broadcast(thing, want)
    if isinstance(old, TempVar) and cx.in_task:
        raise tasks.race(cx, name, target)
    if isinstance(thing, expressions.Number):
        have = old.mem.dtype if isinstance(old, TempVar) else getattr(old, "type", None)
        thing = cx.value(thing, target, like=have if isinstance(old, (Value, TempVar)) else None)
    elif isinstance(thing, list):
        thing = list(thing)
    elif hasattr(thing, "entries"):
        thing = cx.value(thing, target)
    if isinstance(thing, Value):
        if isinstance(old, TempVar):
            thing = keep_type(cx, thing, old.mem.dtype, name, target)
        elif isinstance(old, Value):
            thing = keep_type(cx, thing, old.type, name, target)
        if not thing.hint and not isinstance(thing, Const):
            thing.hint = name
    elif isinstance(old, Value):
        raise cx.type_error(
            target,
            f"{name} is {describe(old)} and can not become {describe(thing)}",
            f"use another name for {describe(thing)}"
            + ("; a vector is ds.Vector([...])" if isinstance(thing, (list, tuple)) else ""),
        )
    env[name] = thing


def stored(cx: Context, mem: Mem, index: tuple[Value, ...], thing: Any, node: Any) -> Value:
    """The value to store: of the memory's type, scalars spread over vectors, narrowing reported."""
    want = mem.dtype.scalar if len(index) > mem.rank else mem.dtype
    have = cx.value(thing, node, "the value", want)
    if have.type.shape != want.shape:
        if have.type.shape:
            raise cx.type_error(
                node,
                f"an element of {mem.name} is {an(mem.dtype)}, this is {an(have.type)}",
                f"store one number, or {an(mem.dtype)}" if mem.dtype.shape else "store one number",
            )
        have = cx.builder.broadcast(have, want)
    if have.type.is_float and not want.is_float:
        raise cx.type_error(
            node,
            f"an element of {mem.name} is {an(mem.dtype)}, {an(have.type)} would lose its fraction",
            hint=f"convert it: ds.cast(value, ds.{want.scalar})",
        )
    if (
        have.type.is_float
        and have.type.scalar.bits > want.scalar.bits
        and not isinstance(have, Const)
    ):
        span = cx.builder.span
        message = f"{mem.name} holds {want.scalar}: storing {have.type.scalar} loses precision"
        warnings.warn_explicit(message, PrecisionLoss, span.file, span.line)
    return cx.builder.cast(have, want.scalar)


def _augmented(cx: Context, node: ast.AugAssign) -> None:
    """`x[i] += v` is atomic on memory; on locals it is `a = a + v`."""
    if given.add_to_adjoint(cx, node):
        return
    with cx.once(node.target):
        _augment(cx, node)


def _augment(cx: Context, node: ast.AugAssign) -> None:
    target, kind = node.target, type(node.op)
    several = components.several_places(cx, target)
    if several:
        places, shape = several
        things = components.spread(cx, expr(cx, node.value), shape, node.value)
        for one, thing in zip(places, things, strict=True):
            _augment_place(cx, node, one, thing)
        return
    place = place_of(cx, target)
    if place is not None:
        _augment_place(cx, node, place, expr(cx, node.value))
        return
    name = struct_values.local_name(cx, target)
    if name is not None and isinstance(cx.env.get(name), TempVar) and cx.in_task:
        tasks.accumulate(cx, cx.env[name].mem, kind, value(cx, node.value), node)
        return
    old_thing = expr(cx, target)
    if hasattr(old_thing, "_mem"):
        raise cx.type_error(
            target,
            f"{describe(old_thing)} as a whole can not be changed",
            f"name an element: {sample(old_thing, ast.unparse(target))}",
        )
    new = expressions.binary(cx, kind, old_thing, expr(cx, node.value), node)
    assign_to(cx, target, new)


def _augment_place(
    cx: Context, node: ast.AugAssign, place: tuple[Mem, tuple[Value, ...]], thing: Any
) -> None:
    (mem, index), kind = place, type(node.op)
    if kind in tasks.ATOMIC:
        v = stored(cx, mem, index, thing, node.value)
        if kind is ast.Sub:
            v = -v
        elif kind in (ast.BitAnd, ast.BitOr, ast.BitXor) and not v.type.is_int:
            raise cx.type_error(
                node,
                f"bitwise operators need integers, an element of {mem.name} is {an(mem.dtype)}",
                f"declare {mem.name} with ds.i32",
            )
        cx.builder.atomic(tasks.ATOMIC[kind], mem, index, v)
        return
    old = cx.builder.load(mem, index)
    new = expressions.binary(cx, kind, old, thing, node)
    cx.builder.store(mem, index, stored(cx, mem, index, new, node.value))


# ---- control flow


def _if(cx: Context, node: ast.If) -> None:
    test = condition(cx, node.test)
    if not isinstance(test, Value):
        block(cx, node.body if test else node.orelse)
        return
    if_region(cx, test, lambda: block(cx, node.body), lambda: block(cx, node.orelse), node)


def _while(cx: Context, node: ast.While) -> None:
    _no_else(cx, node)

    def translate(loop: ast.While) -> bool:
        names = sorted(references.changed(cx, loop.body))
        return while_region(
            cx,
            names,
            lambda: condition(cx, loop.test),
            lambda: references.loop_body(cx, loop, names, block),
            loop,
            flags=_exits(loop.body),
        )

    if not translate(node):
        translate(_tested_inside(node))


def _tested_inside(node: ast.While) -> ast.While:
    """The same loop, tested in its body: `while True:`, then `if test: pass` with `else: break`."""
    go, leave, always = ast.Pass(), ast.Break(), ast.Constant(True)
    test = ast.If(node.test, [go], [leave])
    loop = ast.While(always, [test, *node.body], [])
    for made in (go, leave, always, test):
        ast.copy_location(made, node.test)
    return ast.copy_location(loop, node)


def _no_else(cx: Context, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise cx.syntax(
            node.orelse[0],
            "else after a loop can not be used in a kernel",
            "set a flag in the loop",
        )


def find(statements: list[ast.stmt], kind: type[ast.stmt]) -> ast.stmt | None:
    """The first break or continue of this loop (not of loops inside of it)."""
    for s in statements:
        if isinstance(s, kind):
            return s
        if isinstance(s, (ast.For, ast.While)):
            continue
        for inner in ("body", "orelse"):
            found = find(getattr(s, inner, []), kind)
            if found is not None:
                return found
    return None


def _exits(body: list[ast.stmt]) -> tuple[str, ...]:
    """The flags that can end a loop early."""
    flags = (BREAK,) if find(body, ast.Break) else ()
    return (*flags, RETURN) if _find_return(body) else flags


def _find_return(statements: list[ast.stmt]) -> ast.Return | None:
    every = (n for s in statements for n in ast.walk(s))
    return next((n for n in every if isinstance(n, ast.Return)), None)


def _for(cx: Context, node: ast.For) -> None:
    _no_else(cx, node)
    is_static = cx.is_outside and spaces.is_static(cx, node.iter)
    options = tasks.loop_options(cx, node, is_static=is_static)
    known = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name) and n.id in cx.env]
    if cx.is_outside and not is_static and not options.serialize:
        tasks.parallel_for(cx, node, block, options.block_dim)
    else:
        space = spaces.iteration_space(cx, node.iter)
        if space.static is not None:
            _static_for(cx, node, space.static)
            return
        _serial_for(cx, node, space)
    for name in known:  # Python would keep the last index, the value from before is neither
        cx.env[name] = Undefined("is the index of a loop above, and has no value after it")


def _static_for(cx: Context, node: ast.For, items: Any) -> None:
    """`for ... in ds.static(...)`: the body once for each item, while compiling."""
    saved = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)]
    outer = {n: cx.env[n] for n in (*saved, BREAK, CONTINUE) if n in cx.env}
    cx.env.update({BREAK: False, CONTINUE: False})

    def turn(item: Any) -> None:
        spaces.bind_target(cx, node.target, item)
        block(cx, node.body)

    for item in items:
        cx.env[CONTINUE] = False
        stop = _stopped(cx)
        if stop is True:
            break
        if stop is False:
            turn(item)
        else:
            _unless(cx, stop, functools.partial(turn, item), node)
    for n in (*saved, BREAK, CONTINUE):
        cx.env.pop(n, None)
    cx.env.update(outer)


def _serial_for(cx: Context, node: ast.For, space: spaces.Space) -> None:
    names = sorted(references.changed(cx, node.body))
    if _exits(node.body):
        if len(space.axes) != 1:
            raise cx.syntax(
                find(node.body, ast.Break) or _find_return(node.body) or node,
                "this can not leave a loop over several axes",
                "write one loop for each axis",
            )
        _breakable_for(cx, node, space, names)
        return

    def nest(k: int, indices: list[Value]) -> None:
        if k == len(space.axes):
            spaces.bind_target(cx, node.target, space.item(cx, indices))
            references.loop_body(cx, node, names, block)
            cx.env[CONTINUE] = False
            return
        lo, hi = space.axes[k]
        hint = space.hint(node.target, k)
        for_region(cx, lo, hi, names, lambda i: nest(k + 1, [*indices, i]), node, hint)

    nest(0, [])


def _breakable_for(cx: Context, node: ast.For, space: spaces.Space, names: list[str]) -> None:
    """A counted loop that can be left early: a while with the index carried."""
    (lo, hi) = space.axes[0]
    counter = "%index"
    outer = cx.env.get(counter)
    cx.env[counter] = lo

    def body() -> None:
        index = cx.env[counter]
        spaces.bind_target(cx, node.target, space.item(cx, [index]))
        references.loop_body(cx, node, names, block)
        cx.env[counter] = index + 1

    while_region(
        cx,
        [*names, counter],
        lambda: cx.env[counter] < hi,
        body,
        node,
        flags=_exits(node.body),
    )
    if outer is None:
        cx.env.pop(counter, None)
    else:
        cx.env[counter] = outer


def _break(cx: Context, node: ast.Break) -> None:
    if BREAK not in cx.env:
        raise cx.syntax(
            node,
            "break can not leave a parallel loop: its turns run at the same time",
            "put ds.loop_config(serialize=True) before the loop, or test a condition in every turn",
        )
    cx.env[BREAK] = True


def _continue(cx: Context, node: ast.Continue) -> None:
    cx.env[CONTINUE] = True


def _return(cx: Context, node: ast.Return) -> None:
    if cx.depth == 0:
        if cx.in_task:
            raise cx.syntax(
                node,
                "return can not leave a parallel loop: its turns run at the same time",
                "store the result into a 0-D field, or return after the loop",
            )
        tasks.kernel_return(cx, node)
    elif node.value is not None:
        thing = expr(cx, node.value)
        old = cx.env.get(RESULT)
        if isinstance(thing, (bool, int, float)) and isinstance(old, Value):
            thing = cx.value(thing, node)
        if isinstance(thing, Value) and isinstance(old, Value):
            thing = keep_type(cx, thing, old.type, "the result", node)
        cx.env[RESULT] = thing
    cx.env[RETURN] = True


def _pass(cx: Context, node: ast.stmt) -> None:
    return


def _expression(cx: Context, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant):
        return
    if components.fill(cx, node.value):
        return
    expr(cx, node.value)
    if isinstance(node.value, ast.Compare):
        raise cx.syntax(
            node, "this comparison has no effect", "to store a value write = instead of =="
        )
    if not isinstance(node.value, ast.Call):
        raise cx.syntax(node, "this expression has no effect", "assign it, or leave it out")


def _assert(cx: Context, node: ast.Assert) -> None:
    test = condition(cx, node.test)
    message = "assertion failed"
    if node.msg is not None:
        text = expr(cx, node.msg)
        if not isinstance(text, str):
            raise cx.syntax(
                node.msg,
                "the message of an assertion is a plain string",
                'write it in quotes: "..."',
            )
        message = text
    if test is False:
        raise cx.type_error(
            node,
            f"{message} (this is known before the kernel runs)",
            "see what the condition tests",
        )
    if cx.debug and isinstance(test, Value):
        cx.builder.add(Check(test, message, (), cx.builder.span))


_STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.While: _while,
    ast.For: _for,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Return: _return,
    ast.Pass: _pass,
    ast.Expr: _expression,
    ast.Assert: _assert,
}
