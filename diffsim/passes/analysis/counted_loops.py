"""Counted while loops: `for k in range(n)` with a `break`, which the IR has as a loop that tests.

    k = first
    while k < end and ...:          k < end is part of the condition, and the body yields k + 1
        ...

Such a loop has a bounded number of iterations, and its counter is a number like the index of a `For`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diffsim.ir.nodes import Block, Const, For, If, Let, Value, While
from diffsim.ir.traversal import entered, outs, statements


@dataclass(frozen=True, slots=True)
class Counter:
    """The parameter of a while loop that counts its iterations (`position` among its parameters)."""

    position: int
    param: Value
    first: Value
    end: Value


def counter_of(s: While) -> Counter | None:
    """Return the counter of a loop, if it has one."""
    made = {x.out: x for x in (*s.cond.stmts, *s.body.stmts) if isinstance(x, Let)}
    inside = {v for b in (s.cond, s.body) for x in statements(b) for v in (*outs(x), *entered(x))}
    for k, p in enumerate(s.params):
        step = made.get(s.body.yields[k])
        if p.type.scalar.kind != "i" or p.type.shape or step is None or not _adds_one(step, p):
            continue
        for end in _upper_bounds(p, s.cond):
            if end not in inside and end not in s.params:
                return Counter(k, p, s.inits[k], end)
    return None


def most_iterations(s: For | While) -> int | None:
    """Return the number of iterations that a loop has at most, if constants tell."""
    if isinstance(s, For):
        first, end = s.lo, s.hi
    else:
        counter = counter_of(s)
        if counter is None:
            return None
        first, end = counter.first, counter.end
    if not isinstance(first, Const) or not isinstance(end, Const):
        return None
    return max(0, int(end.value) - int(first.value))


def _adds_one(step: Let, p: Value) -> bool:
    """Whether an op is p + 1."""
    a, b = step.args if step.op.name == "add" else (None, None)
    one = b if a is p else a if b is p else None
    return isinstance(one, Const) and one.value == 1


def _upper_bounds(p: Value, cond: Block) -> Iterator[Value]:
    """Yield the numbers that p is below wherever the condition holds."""
    made: dict[Value, Let] = {}
    chosen: dict[Value, tuple[If, int]] = {}
    for s in statements(cond):
        if isinstance(s, Let):
            made[s.out] = s
        elif isinstance(s, If):
            chosen.update((v, (s, k)) for k, v in enumerate(s.outs))
    for v, holds in implied(cond.yields[0], made, chosen, holds=True):
        let = made.get(v)
        if let is not None and holds and let.op.name in ("lt", "gt"):
            less, more = let.args if let.op.name == "lt" else let.args[::-1]
            if less is p:
                yield more


def implied(
    cond: Value, made: dict[Value, Let], chosen: dict[Value, tuple[If, int]], *, holds: bool
) -> Iterator[tuple[Value, bool]]:
    """Yield the conditions that one is made of, as far as all of them must be as they are.

    Args:
        cond: the condition.
        made: the op that computes each value.
        chosen: the branch that each result of one comes from, and its number there.
        holds: whether the condition holds.
    """
    let = made.get(cond)
    if cond in chosen:
        # `a and b` is b if a, else False.
        s, k = chosen[cond]
        then, orelse = s.then.yields[k], s.orelse.yields[k]
        for taken, other, side in ((then, orelse, True), (orelse, then, False)):
            if isinstance(other, Const) and bool(other.value) != holds:
                yield from implied(s.cond, made, chosen, holds=side)
                yield from implied(taken, made, chosen, holds=holds)
    elif let is None:
        return
    elif let.op.name == "not":
        yield from implied(let.args[0], made, chosen, holds=not holds)
    elif let.op.name == ("and" if holds else "or"):
        for a in let.args:
            yield from implied(a, made, chosen, holds=holds)
    else:
        yield cond, holds
