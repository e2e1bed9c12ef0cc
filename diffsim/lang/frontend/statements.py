"""Statements: each kind of syntax node has one function that translates it.

A loop at kernel level becomes a parallel task; the statements between such loops are serial. Locals that
several tasks access move into temporaries (`tasks.py`).

IR has no jumps. `break`, `continue` and `return` set a flag, and the statements after one are translated
under the condition that no flag is set (`_guard_rest`); loops test the flags where they go on.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from typing import Any

from diffsim.ir.nodes import Check, Const, Value
from diffsim.ir.print_format import CheckKind
from diffsim.ir.types import bool_, i64, size_of
from diffsim.lang.frontend import (
    assignments,
    iteration_spaces,
    loop_carried,
    partial_assignments,
    tasks,
)
from diffsim.lang.frontend.context import (
    BREAK,
    CONTINUE,
    RESULT,
    RETURN,
    TranslationContext,
    with_members,
)
from diffsim.lang.frontend.expressions import condition, expr
from diffsim.lang.frontend.functions import by_reference, printing
from diffsim.lang.frontend.narrowing import keep_type
from diffsim.lang.frontend.regions import end_scope, for_region, if_region, while_region
from diffsim.lang.frontend.values import Evaluated, Undefined
from diffsim.lang.host.source import returns, walk


def block(cx: TranslationContext, statements: list[ast.stmt]) -> None:
    """Translate statements in order, guarding those after a possible break, continue or return."""
    for k, statement in enumerate(statements):
        outer = cx.builder.span
        cx.builder.span = cx.span(statement)
        try:
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise _unsupported(cx, statement)
            # Whatever a handler emits gets the place of its statement.
            handler(cx, statement)
        finally:
            cx.builder.span = outer
        stop = _skip_condition(cx)
        if stop is False:
            continue
        rest = statements[k + 1 :]
        # What follows an unconditional return or break is dead code.
        if stop is True or not rest:
            return
        _guard_rest(cx, stop, functools.partial(block, cx, rest), rest[0])
        return


def _skip_condition(cx: TranslationContext) -> Value | bool:
    """Return whether the rest of a block is skipped: a bool if that is known, else a condition."""
    found: Value | None = None
    for flag in (BREAK, CONTINUE, RETURN):
        state = cx.env.get(flag, False)
        # Folding may have made a constant of a condition.
        if isinstance(state, Const):
            state = bool(state.value)
        if state is True:
            return True
        if isinstance(state, Value):
            found = state if found is None else cx.builder.named("or", found, state)
    return False if found is None else found


def _guard_rest(
    cx: TranslationContext, stop: Value, rest: Callable[[], None], node: ast.stmt
) -> None:
    """Translate the rest of a block under the condition that no flag is set."""
    # The flags are False where the rest runs, so nested statements need not test them again. Those that the
    # rest does not set get back their former values, so that merging them adds no results to the If.
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
    ast.ClassDef: ("a class definition", "define it outside the kernel"),
    ast.FunctionDef: ("a function definition", "define it outside the kernel with @ds.func"),
    ast.AsyncFunctionDef: (
        "a function definition",
        "define it outside the kernel with @ds.func",
    ),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.Global: ("global", "kernels cannot rebind Python variables; use a 0-D field"),
    ast.Nonlocal: ("nonlocal", "kernels cannot rebind Python variables; use a 0-D field"),
    ast.Delete: ("del", "leave it out: a local ends with the kernel"),
    ast.Match: ("a pattern that looks into its subject", "compare values, or write if and elif"),
}
if sys.version_info >= (3, 12):
    _UNSUPPORTED[ast.TypeAlias] = ("a type alias", "define it outside the kernel")


def _unsupported(cx: TranslationContext, node: ast.stmt) -> Exception:
    word, hint = _UNSUPPORTED.get(type(node), ("this statement", "move it out of the kernel"))
    if isinstance(node, ast.Delete) and not all(isinstance(t, ast.Name) for t in node.targets):
        hint = "the elements of a field or a vector stay: assign 0 to them"
    return cx.syntax(node, f"{word} cannot be used in a kernel", hint)


# ---- control flow


def _if(cx: TranslationContext, node: ast.If) -> None:
    """Translate `if`; if its test is known at compile time, only the branch that is executed."""
    test = condition(cx, node.test)
    if not isinstance(test, Value):
        before, ended = dict(cx.env), cx.frame.ended
        block(cx, node.body if test else node.orelse)
        end_scope(cx.frame, before, ended, cx.env)
        return
    if_region(cx, test, lambda: block(cx, node.body), lambda: block(cx, node.orelse), node)


def _while(cx: TranslationContext, node: ast.While) -> None:
    """Translate `while`, its test as the condition of the loop, or in the body if it has effects."""

    def translate(loop: ast.While) -> bool:
        # Sorted, as a set has another order in each process:
        # the IR must be the same, or no cache would find it.
        names = sorted(by_reference.changed(cx, loop.body))
        return while_region(
            cx,
            names,
            lambda: condition(cx, loop.test),
            lambda: by_reference.loop_body(cx, loop, names, block),
            loop,
            flags=_exits(loop.body),
        )

    # If the test has effects, they have to happen once per iteration, in the body.
    assigns = any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test))
    if assigns or not translate(node):
        translate(_with_test_in_body(node))


def _with_test_in_body(node: ast.While) -> ast.While:
    """Return the same loop as `while True:` that begins with `if test: pass` and `else: break`."""
    # A break is what the false test means; `while_region` then needs no condition with effects.
    go, leave, always = ast.Pass(), ast.Break(), ast.Constant(True)
    test = ast.If(node.test, [go], [leave])
    loop = ast.While(always, [test, *node.body], [])
    for made in (go, leave, always, test):
        ast.copy_location(made, node.test)
    return ast.copy_location(loop, node)


def find(statements: list[ast.stmt], kind: type[ast.stmt]) -> ast.stmt | None:
    """Return the first break or continue that belongs to this loop, not to a loop inside it."""
    for s in statements:
        if isinstance(s, kind):
            return s
        if isinstance(s, (ast.For, ast.While)):  # its breaks are its own
            continue
        for inner in ("body", "orelse"):
            found = find(getattr(s, inner, []), kind)
            if found is not None:
                return found
    return None


def _exits(body: list[ast.stmt]) -> tuple[str, ...]:
    """Return the flags that can end a loop early."""
    flags = (BREAK,) if find(body, ast.Break) else ()
    return (*flags, RETURN) if any(returns(body)) else flags


def _for(cx: TranslationContext, node: ast.For) -> None:
    """Translate `for`: parallel at kernel level, unrolled over lists, serial otherwise."""
    # Found from the syntax alone: whether the loop is parallel
    # has to be known before its bounds are translated.
    is_static = cx.is_outside and iteration_spaces.is_static(cx, node.iter)
    options = tasks.loop_options(cx, node, is_static=is_static)
    known = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name) and n.id in cx.env]
    # Outermost loops are parallel unless they end early or carry a value, and no others: a rule that users
    # see in the source.
    is_parallel = cx.is_outside and not is_static and not options.serialize
    changed = loop_carried.locals_changed(cx, node) if is_parallel else None
    if changed and not _early_end(cx, node) and not _is_carried(cx, changed, options):
        tasks.parallel_for(cx, node, block, options, changed.private)
    else:
        space = iteration_spaces.iteration_space(cx, node.iter)
        # Unrolled: there is no loop in the IR.
        if space.static is not None:
            _static_for(cx, node, space.static)
            return
        _serial_for(cx, node, space)
    # In Python the target keeps its last value. The binding from before the loop would be wrong, and the last
    # value is not carried, so the name has none.
    for name in known:
        cx.env[name] = Undefined("is the index of a loop above, and has no value after it")


def _early_end(cx: TranslationContext, node: ast.For) -> bool:
    """Return whether a loop at kernel level has what only a loop in order can obey: a break, a return ..."""
    ends = find(node.body, ast.Break) or next(returns(node.body), None)
    product = None if ends else _product(node.body)
    at = ends or product
    if at is None or cx.strict:
        return False
    word = "break" if isinstance(ends, ast.Break) else "return"
    what = f"this {word} ends the loop early" if ends else "no memory has an atomic product"
    cx.warn_once(
        f"{what}, so its iterations run in order, in one thread; if that is meant: "
        "ds.loop_config(serialize=True) before the loop",
        UserWarning,
        cx.span(at),
    )
    return True


def _product(body: list[ast.stmt]) -> ast.Call | None:
    """Return the first `ds.atomic_mul` in a loop."""
    calls = (n for n in walk(body) if isinstance(n, ast.Call))
    return next(
        (n for n in calls if getattr(n.func, "attr", getattr(n.func, "id", "")) == "atomic_mul"),
        None,
    )


def _is_carried(
    cx: TranslationContext, changed: loop_carried.Locals, options: tasks.LoopOptions
) -> bool:
    """Return whether a local keeps its value from iteration to iteration, which only a loop in order does."""
    # Where the program says that the loop is parallel, assigning such a local is an error.
    if not changed.carried or cx.strict or options.independent or options.block_dim is not None:
        return False
    name, node = next(iter(changed.carried.items()))
    cx.warn_once(
        f"{name} keeps its value from one iteration to the next, so the iterations run in order, in one "
        f"thread; a sum, {name} += ... alone, or ds.atomic_max({name}, ...) needs no order; if it is meant: "
        "ds.loop_config(serialize=True) before the loop",
        UserWarning,
        cx.span(node),
    )
    return True


def _static_for(cx: TranslationContext, node: ast.For, items: Any) -> None:
    """Unroll `for ... in ds.static(...)`: translate the body once per item."""
    # The flags of the loop around are set aside: a break here leaves this loop only.
    saved = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)]
    before = (*with_members(cx.env, saved), BREAK, CONTINUE)
    outer = {n: cx.env[n] for n in before if n in cx.env}
    cx.env.update({BREAK: False, CONTINUE: False})

    def iteration(item: Evaluated) -> None:
        first, ended = dict(cx.env), cx.frame.ended
        iteration_spaces.bind_target(cx, node.target, item)
        block(cx, node.body)
        end_scope(cx.frame, first, ended, cx.env)

    items = list(items)
    if not cx.unrolled:
        cx.unrolled_iterations = 0
    cx.unrolled.append((node, len(items)))
    # An iteration after a possible break is translated under the condition that there was none.
    for item in items:
        iteration_spaces.count_unrolled(cx)
        cx.env[CONTINUE] = False
        stop = _skip_condition(cx)
        if stop is True:
            break
        if stop is False:
            iteration(item)
        else:
            _guard_rest(cx, stop, functools.partial(iteration, item), node)
    cx.unrolled.pop()
    for n in (*with_members(cx.env, saved), BREAK, CONTINUE):
        cx.env.pop(n, None)
    cx.env.update(outer)


def _serial_for(cx: TranslationContext, node: ast.For, space: iteration_spaces.Space) -> None:
    """Translate a serial loop, one For per axis."""
    # The locals that change are carried through every axis of the nest; each iteration has its own target,
    # also where a loop inside takes the name for another one: `for _ in ...: for _ in ...`.
    targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    names = sorted(by_reference.changed(cx, node.body) - targets)
    # A For has a fixed number of iterations, which adjoints rely on: with an early exit it becomes a While.
    if _exits(node.body):
        _breakable_for(cx, node, space, names)
        return

    def body() -> None:
        by_reference.loop_body(cx, node, names, block)
        cx.env[CONTINUE] = False

    def nest(k: int, indices: list[Value]) -> None:
        if k == len(space.axes):
            _iteration(cx, node, space, indices, body)
            return
        lo, hi = space.axes[k]
        hint = space.hint(node.target, k)
        for_region(cx, lo, hi, names, lambda i: nest(k + 1, [*indices, i]), node, hint)

    nest(0, [])


def _iteration(
    cx: TranslationContext,
    node: ast.For,
    space: iteration_spaces.Space,
    indices: list[Value],
    body: Callable[[], None],
) -> None:
    """Translate an iteration of a loop in order, which does nothing at an element that is not active."""
    iteration_spaces.bind_target(cx, node.target, space.item(cx, indices))
    if space.active is None:
        body()
        return
    cx.use(space.active.level.mask)
    cond = space.active.is_active(cx.builder, indices)
    if_region(cx, cond, body, lambda: None, node)


def _breakable_for(
    cx: TranslationContext, node: ast.For, space: iteration_spaces.Space, names: list[str]
) -> None:
    """Translate a counted loop that can end early: a While that carries the number of the iteration."""
    first, end, indices = _numbered(cx, space)
    counter = "%index"
    # The loop around may be breakable as well, with a counter of the same name.
    outer = cx.env.get(counter)
    cx.env[counter] = first

    def body() -> None:
        number = cx.env[counter]
        _iteration(
            cx,
            node,
            space,
            indices(number),
            lambda: by_reference.loop_body(cx, node, names, block),
        )
        cx.env[counter] = number + 1

    while_region(
        cx,
        [*names, counter],
        lambda: cx.env[counter] < end,
        body,
        node,
        flags=_exits(node.body),
    )
    if outer is None:
        cx.env.pop(counter, None)
    else:
        cx.env[counter] = outer


def _numbered(
    cx: TranslationContext, space: iteration_spaces.Space
) -> tuple[Value, Value, Callable[[Value], list[Value]]]:
    """Return the first number of an iteration, their end, and the indices that a number stands for."""
    if len(space.axes) == 1:
        return *space.axes[0], lambda number: [number]
    b = cx.builder
    # In 64 bits: a box has more elements than its axes have numbers.
    sizes = [b.named("max", b.cast(hi, i64) - b.cast(lo, i64), 0) for lo, hi in space.axes]
    total = functools.reduce(lambda a, n: a * n, sizes)

    def indices(number: Value) -> list[Value]:
        found: list[Value] = []
        for (lo, _), n in zip(reversed(space.axes), reversed(sizes), strict=True):
            found.append(lo + b.cast(b.named("mod", number, n), lo.type.scalar))
            number = b.named("floordiv", number, n)
        return found[::-1]

    return b.const(0, i64), total, indices


def _break(cx: TranslationContext, node: ast.Break) -> None:
    if BREAK not in cx.env:
        raise cx.syntax(
            node,
            "break cannot leave a parallel loop: its iterations run at the same time",
            "put ds.loop_config(serialize=True) before the loop, or test a condition in every iteration",
        )
    cx.env[BREAK] = True


def _continue(cx: TranslationContext, node: ast.Continue) -> None:
    cx.env[CONTINUE] = True


def _return(cx: TranslationContext, node: ast.Return) -> None:
    """Translate `return`: a kernel's result is stored into memory, a func's is merged as the local RESULT."""
    if not cx.running:
        if cx.in_task:
            raise cx.syntax(
                node,
                "return cannot leave a parallel loop: its iterations run at the same time",
                "store the result into a 0-D field, or return after the loop",
            )
        tasks.kernel_return(cx, node)
    elif node.value is not None:
        thing = expr(cx, node.value)
        # RESULT is bound already if a loop carries it; then its type is fixed.
        old = cx.env.get(RESULT)
        if isinstance(thing, (bool, int, float)) and isinstance(old, Value):
            thing = cx.value(thing, node)
        if isinstance(thing, Value) and isinstance(old, Value):
            thing = keep_type(cx, thing, old.type, "the result", node)
        cx.env[RESULT] = thing
    cx.env[RETURN] = True


def _pass(cx: TranslationContext, node: ast.stmt) -> None:
    """Translate `pass`."""
    return


def _expression(cx: TranslationContext, node: ast.Expr) -> None:
    """Translate an expression statement; refuse those without an effect."""
    if isinstance(node.value, ast.Constant):  # a docstring, or `...`
        return
    # `v.fill(0)` rebinds a local, so it is a statement and no call of a function.
    if partial_assignments.fill(cx, node.value):
        return
    expr(cx, node.value)
    # After the operand is translated, as an error in it is more to the point.
    if isinstance(node.value, ast.Compare):
        raise cx.syntax(
            node, "this comparison has no effect", "to store a value write = instead of =="
        )
    if not isinstance(node.value, (ast.Call, ast.NamedExpr)):
        raise cx.syntax(node, "this expression has no effect", "assign it, or leave it out")


def _assert(cx: TranslationContext, node: ast.Assert) -> None:
    """Translate `assert`: decided now if its test is known, else checked with `debug=True`."""
    test = condition(cx, node.test)
    pieces: tuple[Any, ...] = ("assertion failed",)
    values: tuple[Value, ...] = ()
    if node.msg is not None:
        # Translated although it may never be shown: a mistake in it is reported now.
        with cx.builder.block():
            pieces, values = printing.message(cx, node.msg)
    if sum(size_of(v.type) for v in values) > _MOST_SHOWN:
        raise cx.syntax(node.msg or node, "this text shows too many numbers", "show some of them")
    # Reported without debug=True as well, since it costs nothing at run time.
    if test is False:
        raise cx.type_error(
            node,
            f"{''.join(map(str, pieces))} (this is known before the kernel runs)",
            "see what the condition tests",
        )
    if not cx.debug or not isinstance(test, Value):
        return
    if not values:
        text, span = "".join(map(str, pieces)), cx.builder.span
        cx.builder.add(Check(test, text, (), span, kind=CheckKind.ASSERTION))
        return

    def fail() -> None:
        # What is shown is computed only then, as in Python: an index in it may be out of bounds otherwise.
        shown, found = printing.message(cx, node.msg or node.test)
        never = cx.builder.const(False, bool_)
        text, span = "assertion failed", cx.builder.span
        cx.builder.add(Check(never, text, found, span, shown, CheckKind.ASSERTION))

    if_region(cx, test, lambda: None, fail, node)


_MOST_SHOWN = 20  # what the error buffer has room for


_STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: assignments.assign,
    ast.AnnAssign: assignments.annotated,
    ast.AugAssign: assignments.augmented,
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
