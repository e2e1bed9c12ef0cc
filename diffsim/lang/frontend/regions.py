"""Branches and loops as structured SSA: merges the bindings of branches, carries locals that a loop changes.

The results of an If take the place of phi functions at its join, and the carried values of a loop of those at
its header (R. Cytron et al., 1991). The syntax shows which names a loop changes, so no dominance frontiers
are needed. The callers pass functions that translate a branch or a body; this module keeps track of names.
`break`, `continue` and early `return` are boolean locals (BREAK, CONTINUE, RETURN), so that they are merged
and carried like any other local; `statements.py` guards the statements after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, Const, For, If, Stmt, Value, While, zero
from diffsim.ir.traversal import free_values, has_effects
from diffsim.ir.types import Type, an, bool_, promote, tensor
from diffsim.lang.frontend.context import (
    BREAK,
    CONTINUE,
    DRAWS,
    RESULT,
    RETURN,
    Frame,
    TranslationContext,
    load_local,
    with_members,
)
from diffsim.lang.frontend.narrowing import keep_type, note_merged_range
from diffsim.lang.frontend.values import (
    Environment,
    Evaluated,
    KernelDict,
    KernelLocal,
    StructValue,
    StructVar,
    Undefined,
    count,
    flatten,
    holds_fields,
    of_parts,
    parts_of,
    structure,
    unflatten,
)
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

_FLAGS = (BREAK, CONTINUE, RETURN)


def if_region(
    cx: TranslationContext,
    cond: Value,
    then: Callable[[], Any],
    orelse: Callable[[], Any],
    node: SyntaxNode,
) -> Any:
    """Translate both branches, merge the names they bind, and return the merged results."""
    # 1. Translate each branch into a list of statements of its own, from the same bindings.
    b, span, before, ended = cx.builder, cx.builder.span, cx.frame.env, cx.frame.ended
    sides: list[tuple[list[Stmt], dict[str, Any], Any]] = []
    cx.level += 1
    for branch in (then, orelse):
        cx.frame.env, cx.frame.ended = dict(before), ended
        with b.block() as stmts:
            result = branch()
        sides.append((stmts, cx.frame.env, result))
    cx.level -= 1
    b.span = span
    (then_stmts, then_env, then_result), (else_stmts, else_env, else_result) = sides
    # 2. Merge the bindings. Conversions to the common type are appended to the branches themselves.
    after = then_env | else_env
    new = end_scope(cx.frame, before, ended, after)
    merge = _BranchMerge(cx, cond, then_stmts, else_stmts, node, new)
    # Compared by identity: long functions have many names, and branches change few.
    for name in after:
        if name not in then_env or name not in else_env:
            after[name] = merge.bound_on_one_path(name, then_env, else_env)
        elif then_env[name] is not else_env[name]:
            after[name] = merge.names(name, then_env[name], else_env[name])
    result = merge.pair(then_result, else_result, "the result of this expression", promoted=True)
    cx.frame.env = after
    # 3. Emit the If, which defines the merged values.
    merge.finish(span)
    return result


def end_scope(
    frame: Frame, before: Environment, ended: frozenset[str], after: Environment
) -> frozenset[str]:
    """Note, and return, the names whose type a later assignment may choose anew.

    They are those that got their first value in a branch or an unrolled iteration, which ends here, and those
    in `ended` before it. So a type lasts as long as the block that the first assignment is in.
    """
    lasting = {n for n, thing in before.items() if not isinstance(thing, Undefined)}
    frame.ended = ended.union(after.keys() - lasting)
    return frame.ended


class _BranchMerge:
    """Collects the values that the two branches of an If yield.

    Invariant: `yields` holds (value of the first branch, value of the second, merged value), all of one type.

    Attributes:
        new: the names that had no value, or none that lasts, before the If.
    """

    def __init__(
        self,
        cx: TranslationContext,
        cond: Value,
        then: list[Stmt],
        orelse: list[Stmt],
        node: SyntaxNode,
        new: frozenset[str],
    ) -> None:
        self.cx = cx
        self.cond = cond
        self.then = then
        self.orelse = orelse
        self.node = node
        self.new = new
        self.yields: list[tuple[Value, Value, Value]] = []

    def names(self, name: str, a: Evaluated, b: Evaluated) -> Any:
        """Merge what the branches bind a name to."""
        # An error only where the name is used: many names assigned in a branch are used there alone.
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return Undefined("has a value on one path only")
        # The members have names of their own, which are merged one by one.
        if isinstance(a, StructVar) and a == b:
            return a
        with _emit_into(self.cx.builder, self.then):
            a = load_local(self.cx, a)
        with _emit_into(self.cx.builder, self.orelse):
            b = load_local(self.cx, b)
        if name in _FLAGS:
            return self.flag(a, b)
        if name == RESULT:
            return self.pair(a, b, "what the function returns")
        try:
            return self.pair(a, b, name)
        except KernelTypeError as error:
            if name not in self.new:
                raise
            # Two variables of one name, unless it is read after the branches.
            return Undefined("has values of two types", error)

    def bound_on_one_path(
        self, name: str, a: Mapping[str, object], b: Mapping[str, object]
    ) -> Evaluated:
        """Merge a name that one branch alone binds."""
        if name in _FLAGS:
            # A flag that a branch does not set is False.
            return self.flag(a.get(name, False), b.get(name, False))
        if name == RESULT:  # what is returned matters only where RETURN is set
            known = a.get(name) if name in a else b.get(name)
            x, y = (known, _zeros_like(known)) if name in a else (_zeros_like(known), known)
            return self.pair(x, y, "the result")
        return Undefined("has a value on one path only")

    def flag(self, a: Evaluated, b: Evaluated) -> Evaluated:
        """Merge a control flag without emitting anything where both sides are known."""
        # `if c: break`: the flag is the condition itself, and an If without other results disappears.
        if isinstance(a, bool) and isinstance(b, bool):
            if a == b:
                return a
            return self.cond if a else self.cx.builder.named("not", self.cond)
        return self.pair(a, b, "a condition")

    def pair(self, a: Evaluated, b: Evaluated, what: str, *, promoted: bool = False) -> Evaluated:
        """Merge two operands: structs and lists part by part, equal constants as one, others as values.

        `promoted`: values of two types become their common one, as operands do.
        """
        # Also true of a name that no branch assigns, and of a constant known at compile time.
        if a is b:
            return a
        if isinstance(a, StructValue) and isinstance(b, StructValue) and a.type is b.type:
            merged = {
                m: self.pair(a.members[m], b.members[m], f"{what}, member {m},") for m in a.members
            }
            return StructValue(a.type, merged)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
            return type(a)(
                self.pair(x, y, what, promoted=promoted) for x, y in zip(a, b, strict=True)
            )
        if isinstance(a, KernelDict) or isinstance(b, KernelDict):
            return self.dictionaries(a, b, what)
        # Equal objects remain known at compile time. `==` is
        # code of the program, which may fail or give an array.
        if not isinstance(a, Value) and not isinstance(b, Value):
            try:
                if type(a) is type(b) and bool(a == b):
                    return a
            except Exception:
                pass
        cx, builder = self.cx, self.cx.builder
        # Two literals: in `0 if c else 0.5` the 0 is meant as a float.
        if {type(a), type(b)} == {int, float}:
            a, b = float(a), float(b)  # type: ignore[arg-type]  # one is an int, one a float
        # Each conversion is emitted at the end of its own branch.
        # A constant adopts the type of the other branch's value.
        with _emit_into(builder, self.then):
            x = cx.value(a, self.node, what, b.type if isinstance(b, Value) else None)
        with _emit_into(builder, self.orelse):
            y = cx.value(b, self.node, what, x.type)
        t = common_type(cx, x, y, what, self.node, promoted=promoted)
        with _emit_into(builder, self.then):
            x = fit(builder, x, t)
        with _emit_into(builder, self.orelse):
            y = fit(builder, y, t)
        out = Value(t, x.hint or y.hint)
        note_merged_range(cx, out, x, y)
        self.yields.append((x, y, out))
        return out

    def dictionaries(self, a: Evaluated, b: Evaluated, what: str) -> KernelDict:
        """Merge two dictionaries with the same keys."""
        if not isinstance(a, dict) or not isinstance(b, dict) or a.keys() != b.keys():
            raise self.cx.type_error(
                self.node,
                f"{what} is a dictionary on one path and another one, or none, on the other",
                "give it the same keys on both",
            )
        return KernelDict((k, self.pair(x, b[k], f"{what}[{k!r}]")) for k, x in a.items())

    def finish(self, span: Span) -> None:
        """Emit the If, unless both branches are empty."""
        xs, ys, outs = zip(*self.yields, strict=True) if self.yields else ((), (), ())
        # A condition has no effect of its own: without statements and results the If is dead.
        if self.then or self.orelse or outs:
            self.cx.builder.add(
                If(self.cond, Block(self.then, xs), Block(self.orelse, ys), outs, span)
            )


class _emit_into:  # noqa: N801 - used like a function: with _emit_into(...)
    """Emit into an existing list of statements, inside a `with`."""

    def __init__(self, builder: Builder, stmts: list[Stmt]) -> None:
        self.builder = builder
        self.stmts = stmts

    def __enter__(self) -> None:
        self.outer, self.builder.stmts = self.builder.stmts, self.stmts

    def __exit__(self, *exc: object) -> None:
        self.builder.stmts = self.outer


def common_type(
    cx: TranslationContext,
    a: Value,
    b: Value,
    what: str,
    node: SyntaxNode,
    *,
    promoted: bool = False,
) -> Type:
    """Return the type of a merged value: the shapes must be equal, the scalar types of one kind.

    `promoted`: or of any kinds, whose common type is that of operands.
    """
    # Types are interned: equal types are one object.
    if a.type is b.type:
        return a.type
    if a.type.shape != b.type.shape and a.type.shape and b.type.shape:
        hint = "both sides need the same number of elements"
        raise cx.type_error(node, _two_types(what, a, b), hint)
    if a.type.shape != b.type.shape:
        raise cx.type_error(
            node, _two_types(what, a, b), hint="make both a number, or both a vector"
        )
    if promoted:
        return tensor(promote(a.type.scalar, b.type.scalar), a.type.shape)
    # An integer on one path and a float on the other is usually a mistake (`s = 0`): converting it silently
    # would hide that, while a wider type of the same kind holds both exactly.
    if a.type.scalar.kind != b.type.scalar.kind:
        raise cx.type_error(
            node,
            _two_types(what, a, b),
            hint="give it one type on both: write 0.0 for a float, or use ds.cast",
        )
    return a.type if a.type.scalar.bits >= b.type.scalar.bits else b.type


def _two_types(what: str, a: Value, b: Value) -> str:
    return f"{what} is {an(a.type)} on one path and {an(b.type)} on the other"


def fit(builder: Builder, v: Value, t: Type) -> Value:
    """Cast the scalars of a value to those of a type."""
    return builder.cast(v, t.scalar)


def _zeros_like(thing: Evaluated) -> Evaluated:
    """Return an operand of the same structure and types, for a path on which it is never read."""
    if isinstance(thing, Value):
        return zero(thing.type)
    parts = parts_of(thing)
    return thing if parts is None else of_parts(thing, map(_zeros_like, parts))


class CarriedValues:
    """The values that a loop carries: names are bound to parameters in the body, and to results after it.

    Invariant: `names`, flattened, correspond one to one to `inits` and `params`, which have equal types.

    Attributes:
        before: the bindings at the loop.
        forms: the structure of results that consist of several values (RESULT), to rebuild them.
        invariant_objects: names bound to Python objects, which the body must not rebind: such an object
            cannot be carried from one iteration to the next.
        ended: the names whose type the body may choose anew, if it assigns them before it reads them.
        cond: the condition of a While, once it is translated.
        undefined: the names of `ended` that are something else in the body: without a value after the loop.
    """

    def __init__(self, cx: TranslationContext, names: Iterable[str], node: SyntaxNode) -> None:
        self.cx = cx
        self.node = node
        self.before = dict(cx.env)
        self.ended = cx.frame.ended
        self.cond: Block | None = None
        self.undefined: dict[str, Undefined] = {}
        self.names: list[str] = []
        self.inits: list[Value] = []
        self.forms: dict[str, Any] = {}
        self.invariant_objects: dict[str, Any] = {}
        for name in with_members(cx.env, names):
            if name not in cx.env:  # assigned in the body for the first time: local to an iteration
                continue
            if isinstance(cx.env[name], Undefined):
                continue
            thing = cx.env[name]
            if isinstance(thing, StructVar):
                self.invariant_objects[name] = thing
                continue
            # In a parallel loop it lives in memory, which needs no carrying: `tasks.accumulate` updates it.
            if isinstance(thing, KernelLocal) and cx.in_task:
                continue
            thing = load_local(cx, thing)
            if name == RESULT:
                self.names.append(name)
                self.inits += flatten(cx, thing, node)
                self.forms[name] = thing
            # `fields[0][i] = v` changes a field. A constant that the loop changes becomes a run-time value.
            elif holds_fields(thing):
                self.invariant_objects[name] = thing
            elif isinstance(thing, (bool, int, float, np.generic, Value, Matrix)) or (
                isinstance(thing, (list, tuple)) and thing
            ):
                self.names.append(name)
                self.inits.append(cx.value(thing, node, name))
            else:
                self.invariant_objects[name] = thing
        # The front end's own names, such as %break, are not shown in printed IR.
        hints = ["" if n[0] == "%" else n for n in self.names for _ in range(self._width(n))]
        self.params = tuple(Value(v.type, n) for n, v in zip(hints, self.inits, strict=True))

    def _width(self, name: str) -> int:
        """Return how many values are carried for a name: several for a result of several."""
        return count(self.forms[name]) if name in self.forms else 1

    def _bound(self, values: Iterable[Value]) -> dict[str, Any]:
        """Bind the names to these values, in order."""
        left = iter(values)
        return {
            n: unflatten(self.forms[n], left) if n in self.forms else next(left) for n in self.names
        }

    def enter_body(self, extra: dict[str, Any] | None = None) -> None:
        """Bind the names to the loop's parameters, for the translation of the body."""
        # Only names bound before the loop, plus those of a single iteration (`extra`), such as CONTINUE.
        env = dict(self.before)
        env.update(self._bound(self.params))
        # Bindings of a single iteration, such as CONTINUE, which each iteration starts with.
        env.update(extra or {})
        self.cx.frame.env, self.cx.frame.ended = env, self.ended

    def end_body(self) -> tuple[Value, ...]:
        """Return what the body yields: the values of the carried names at its end."""
        made: list[Value] = []
        for name in self.names:
            thing = self.cx.env[name]
            what = {DRAWS: "the number of random draws", RESULT: "the result"}.get(name, name)
            if isinstance(thing, Undefined):
                param = self.params[len(made)]
                # As where a loop inside took the name of an index around, which no iteration reads.
                if thing.error is None and self._is_unread(name, param):
                    self.undefined[name] = thing
                    made.append(param)
                    continue
                raise thing.error or self.cx.type_error(
                    self.node, f"{name} {thing.why} in this loop", "assign it on every path"
                )
            form = self.forms.get(name)
            # All returns in the loop share one set of carried values.
            if form is not None and structure(form) != structure(thing):
                raise self.cx.type_error(
                    self.node,
                    "a return in this loop gives something else than another return",
                    "give as many values of the same kinds everywhere",
                )
            if name in self.ended and self._is_another(name, thing, self.params[len(made)]):
                made.append(self.params[len(made)])
                continue
            found = [thing] if form is None else flatten(self.cx, thing, self.node)
            for one in found:
                v, t = self.cx.value(one, self.node, what), self.params[len(made)].type
                # The type of a carried value is that before the loop, in each iteration.
                made.append(keep_type(self.cx, v, t, what, self.node))
        # By identity: `==` of objects of the program may be anything. Local structs are compared by type,
        # as their members are carried themselves.
        for name, thing in self.invariant_objects.items():
            after = self.cx.env.get(name)
            if after is not thing and not (isinstance(thing, StructVar) and after == thing):
                raise self.cx.type_error(
                    self.node,
                    f"{name} is {describe(thing)} before the loop and something else after an iteration",
                    "use another name inside the loop",
                )
        return tuple(made)

    def _is_another(self, name: str, thing: Evaluated, param: Value) -> bool:
        """Return whether the body has a variable of this name of its own, and note it.

        It has if its type is another one and no iteration reads what was there before.
        """
        if not isinstance(thing, Value) or thing.type is param.type:
            return False
        if not self._is_unread(name, param):
            return False
        self.undefined[name] = Undefined(
            f"is {an(param.type)} before this loop and {an(thing.type)} in it"
        )
        return True

    def _is_unread(self, name: str, param: Value) -> bool:
        """Return whether no iteration reads what a name was before it."""
        body = Block(self.cx.builder.stmts, ())
        if any(param in free_values(block) for block in (body, self.cond) if block is not None):
            return False
        return all(self.cx.env.get(n) is not param for n in self.names if n != name)

    def exit(self) -> tuple[Value, ...]:
        """Bind the names to the loop's results, for what follows, and return the results."""
        outs = tuple(Value(p.type, p.hint) for p in self.params)
        # Bindings made in the body end with it; only carried names keep a value.
        env = dict(self.before)
        env.update(self._bound(outs), **self.undefined)
        self.cx.frame.env, self.cx.frame.ended = env, self.ended
        return outs


def note_range(cx: TranslationContext, index: Value, lo: Value, hi: Value) -> None:
    """Record the range of a loop's index, where its bounds are constants; `narrowing.py` uses it."""
    # An empty loop has no index; the maximum below keeps the interval from being empty.
    least = lo.value if isinstance(lo, Const) else lo.type.scalar.limits[0]
    last = hi.value if isinstance(hi, Const) else hi.type.scalar.limits[1]
    cx.builder.ranges[index] = int(least), max(int(least), int(last) - 1)


def for_region(
    cx: TranslationContext,
    lo: Value,
    hi: Value,
    names: Iterable[str],
    body: Callable[[Value], None],
    node: SyntaxNode,
    hint: str,
) -> None:
    """Emit a counted loop without break; `body` translates one iteration, given the index."""
    b, span = cx.builder, cx.builder.span
    # The number of random draws is carried too: each iteration draws other numbers.
    carried = CarriedValues(cx, (*names, DRAWS), node)
    index = Value(lo.type, hint)
    note_range(cx, index, lo, hi)
    carried.enter_body({CONTINUE: False})
    cx.level += 1
    with b.block() as stmts, cx.loop_body(stmts):
        body(index)
        b.span = span
        yields = carried.end_body()
    cx.level -= 1
    outs = carried.exit()
    inits = tuple(carried.inits)
    b.add(For(index, lo, hi, carried.params, inits, Block(stmts, yields), outs, span))


def _declare_result(
    cx: TranslationContext, names: Iterable[str], body: Callable[[], None], node: SyntaxNode
) -> None:
    """Bind RESULT to zeros of the type that a return inside the loop gives it.

    The loop carries RESULT from its first iteration on, before any return has run. Its type is found by
    translating the body once and discarding what that emits.
    """
    env = dict(cx.env)
    cx.level += 1
    # The statements go into a block that is dropped.
    with cx.builder.block():
        CarriedValues(cx, (*names, BREAK, RETURN, DRAWS), node).enter_body({CONTINUE: False})
        body()
        found = cx.env.get(RESULT)
    cx.level -= 1
    cx.frame.env = env
    if found is not None:
        blanks = [zero(part.type) for part in flatten(cx, found, node)]
        cx.env[RESULT] = unflatten(found, iter(blanks))


def while_region(
    cx: TranslationContext,
    names: Iterable[str],
    test: Callable[[], Value | bool],
    body: Callable[[], None],
    node: SyntaxNode,
    *,
    flags: tuple[str, ...],
) -> bool:
    """Emit a loop that continues while `test` holds and none of `flags` (BREAK, RETURN) is set.

    Returns:
        False, with nothing emitted, if the test has effects or binds names: the condition of a While computes
        a value only, so the caller moves the test into the body.
    """
    b, span = cx.builder, cx.builder.span
    before, outer_break = cx.frame.env.copy(), cx.env.get(BREAK)
    # 1. The flags that can end the loop are carried, so they
    # need a value before it. RETURN may already be set.
    if flags:
        cx.env[BREAK] = False
    if RETURN in flags:
        cx.env.setdefault(RETURN, False)
        if RESULT not in cx.env:
            _declare_result(cx, names, body, node)
        flags = (*flags, RESULT) if RESULT in cx.env else flags
    carried = CarriedValues(cx, (*names, *flags, DRAWS), node)
    # 2. The condition: no flag is set and the test holds. The test is evaluated only if no flag is set, as in
    # Python: after a break it may be out of bounds.
    cx.level += 1
    carried.enter_body({CONTINUE: False})
    entered = cx.frame.env.copy()
    with b.block() as cond_stmts:
        go: Any
        if flags:
            stopped = b.named("or", cx.env.get(BREAK, False), cx.env.get(RETURN, False))

            def evaluate() -> Value:
                found = test()
                return found if isinstance(found, Value) else b.const(found, bool_)

            never = Const(bool_, False)
            go = if_region(cx, b.named("not", stopped), evaluate, lambda: never, node)
        else:
            go = test()
        b.span = span
    go = go if isinstance(go, Value) else b.const(go, bool_)
    cond = carried.cond = Block(cond_stmts, (go,))
    # The statements of this attempt are dropped, and the bindings restored.
    if has_effects(cond) or cx.has_changed(entered):
        cx.level -= 1
        cx.frame.env = before
        return False
    # 3. The body, from the bindings at its start: where it runs, no flag is set.
    unset = {flag: False for flag in flags if flag != RESULT}
    carried.enter_body({CONTINUE: False, **unset})
    with b.block() as stmts, cx.loop_body(stmts):
        body()
        b.span = span
        yields = carried.end_body()
    cx.level -= 1
    outs = carried.exit()
    cx.env.pop(BREAK, None)
    # A break of this loop must not end the loop around it.
    if outer_break is not None:
        cx.env[BREAK] = outer_break
    b.add(
        While(
            carried.params,
            tuple(carried.inits),
            cond,
            Block(stmts, yields),
            outs,
            span,
        )
    )
    return True
