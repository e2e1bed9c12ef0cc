"""How many iterations a loop has at most, and while loops that count them.

`for k in range(n)` with a `break` is a loop that tests:

    k = first
    while k < end and ...:          k < end is part of the condition, and the body yields k + 1
        ...

Such a loop has a bounded number of iterations, and its counter is a number like the index of a `For`. An
iteration that is the last one, as it has come to a `break`, may leave the counter as it was.

How many there are at most may be told by the numbers of lanes and of loops around, too (docs/adr/0150):

    for i in range(n):             n is 512: at most 512 iterations, the last lane's
        for j in range(i + 1):

Each end is a sum of indices times constants, or the least or the greatest of such sums, as those of windows
are. What is subtracted are sums, not intervals: `range(i - 3, i + 4)` has 7 iterations, wherever i is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from diffsim.ir.nodes import Block, Const, For, If, Kernel, Let, Task, Value, While
from diffsim.ir.traversal import entered, outs, statements
from diffsim.passes.analysis.affine import (
    ANY,
    ZERO,
    AffineForm,
    AffineForms,
    Interval,
    affine_forms,
    plus,
    task_definitions,
    times,
)
from diffsim.passes.analysis.once import once

_MOST_SUMS = 4
"""Sums that an end is the least or the greatest of."""


@dataclass(frozen=True, slots=True)
class Counter:
    """The parameter of a while loop that counts its iterations (`position` among its parameters)."""

    position: int
    param: Value
    first: Value
    end: Value


def counter_of(s: While) -> Counter | None:
    """Return the counter of a loop, if it has one."""
    going_on: _GoingOn | None = None
    for k, p in enumerate(s.params):
        if p.type.scalar.kind != "i" or p.type.shape:
            continue
        going_on = going_on or _GoingOn(s)
        if not going_on.adds_one(s.body.yields[k], p):
            continue
        inside = {
            v for b in (s.cond, s.body) for x in statements(b) for v in (*outs(x), *entered(x))
        }
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


def _step(let: Let) -> tuple[int, Value]:
    """Return a number that an op adds to a value, and the value; 0: it does something else."""
    a, b = let.args if let.op.name == "add" and not let.out.type.shape else (let.out, let.out)
    a, b = (b, a) if isinstance(a, Const) else (a, b)
    return (int(b.value), a) if isinstance(b, Const) and b.type.scalar.is_int else (0, a)


_Known = dict[Value, bool]


class _GoingOn:
    """The conditions of an iteration that another one follows.

    Attributes:
        made: the op that computes each value of the body; `chosen`: the branch that it comes from.
        known: conditions whose value is known.
    """

    def __init__(self, s: While) -> None:
        self.made, self.chosen = _definitions(s.body)
        self.known: _Known = {}
        yields = dict(zip(s.params, s.body.yields, strict=True))
        # The next condition is about what this iteration yields.
        for v, holds in _facts(s.cond.yields[0], *_definitions(s.cond), holds=True):
            if v in yields:
                self.known.update(self._facts(yields[v], holds))

    def adds_one(self, v: Value, p: Value) -> bool:
        """Whether a value is p + 1."""
        return self._adds(1, v, p, self.known)

    def _adds(self, n: int, v: Value, p: Value, known: _Known) -> bool:
        """Whether a value is p + n, where these conditions are known."""
        if v in self.made:
            step, x = _step(self.made[v])
            return 0 < step <= n and self._adds(n - step, x, p, known)
        if v not in self.chosen:
            return v is p and n == 0
        s, k = self.chosen[v]
        results = [(j, known[out]) for j, out in enumerate(s.outs) if out in known]
        for side, holds in ((s.then, True), (s.orelse, False)):
            here = {**known, **self._facts(s.cond, holds)}
            # A side that would yield something else than what is known is not taken.
            if self._holds(s.cond, known) is (not holds) or any(
                self._holds(side.yields[j], here) is (not result) for j, result in results
            ):
                continue
            for j, result in results:
                here.update(self._facts(side.yields[j], result))
            if not self._adds(n, side.yields[k], p, here):
                return False
        return True

    def _facts(self, cond: Value, holds: bool) -> _Known:
        """Return what is so where a condition holds, or does not."""
        return dict(_facts(cond, self.made, self.chosen, holds=holds))

    def _holds(self, cond: Value, known: _Known) -> bool | None:
        """Return the value of a condition, or None if it is not known."""
        if isinstance(cond, Const):
            return bool(cond.value)
        if cond in known:
            return known[cond]
        if cond in self.chosen:
            s, k = self.chosen[cond]
            taken = self._holds(s.cond, known)
            if taken is None:
                return None
            return self._holds((s.then if taken else s.orelse).yields[k], known)
        let = self.made.get(cond)
        inner = self._holds(let.args[0], known) if let and let.op.name == "not" else None
        return None if inner is None else not inner


def _definitions(block: Block) -> tuple[dict[Value, Let], dict[Value, tuple[If, int]]]:
    """Return the ops of a block by what they compute, and branches, with a number, by their results."""
    made: dict[Value, Let] = {}
    chosen: dict[Value, tuple[If, int]] = {}
    for s in statements(block):
        if isinstance(s, Let):
            made[s.out] = s
        elif isinstance(s, If):
            chosen.update((v, (s, k)) for k, v in enumerate(s.outs))
    return made, chosen


def _upper_bounds(p: Value, cond: Block) -> Iterator[Value]:
    """Yield the numbers that p is below wherever the condition holds."""
    made, chosen = _definitions(cond)
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
    for v, truth in _facts(cond, made, chosen, holds=holds):
        if v in made and made[v].op.name not in ("not", "and" if truth else "or"):
            yield v, truth


def _facts(
    cond: Value, made: dict[Value, Let], chosen: dict[Value, tuple[If, int]], *, holds: bool
) -> Iterator[tuple[Value, bool]]:
    """Yield all that must be so for a condition to hold (or not), itself first."""
    yield cond, holds
    let = made.get(cond)
    if cond in chosen:
        # `a and b` is b if a, else False.
        s, k = chosen[cond]
        then, orelse = s.then.yields[k], s.orelse.yields[k]
        for taken, other, side in ((then, orelse, True), (orelse, then, False)):
            if isinstance(other, Const) and bool(other.value) != holds:
                yield from _facts(s.cond, made, chosen, holds=side)
                yield from _facts(taken, made, chosen, holds=holds)
    elif let is not None and let.op.name == "not":
        yield from _facts(let.args[0], made, chosen, holds=not holds)
    elif let is not None and let.op.name == ("and" if holds else "or"):
        for a in let.args:
            yield from _facts(a, made, chosen, holds=holds)


@once
def longest_runs(kernel: Kernel) -> dict[For | While, int]:
    """Return the most iterations of a run of each loop of a kernel for which it is known.

    As far as nothing wraps around. Whoever relies on it must compute right if there are more.
    """
    found: dict[For | While, int] = {}
    for task in kernel.tasks:
        if any(isinstance(s, (For, While)) for s in statements(task.body, given=True)):
            found.update(_Lengths(task).found)
    return found


class _Lengths:
    """The loops of a task, from the outside to the inside.

    Attributes:
        found: the most iterations of each loop for which that is known.
    """

    def __init__(self, task: Task) -> None:
        self.found: dict[For | While, int] = {}
        self._forms: AffineForms = affine_forms(task)
        self._definitions = task_definitions(task)
        self._ranges: dict[Value, Interval] = {}
        ends = task.bounds.yields
        for axis, lo, hi in zip(task.axes, ends[::2], ends[1::2], strict=True):
            self._ranges[axis] = self._indices(lo, hi)
        # A loop comes before those inside it.
        for s in statements(task.body, given=True):
            if isinstance(s, For):
                self._ranges[s.index] = self._indices(s.lo, s.hi)
                self._note(s, s.lo, s.hi)
            elif isinstance(s, While):
                counter = counter_of(s)
                if counter is not None:
                    self._note(s, counter.first, counter.end)

    def _note(self, s: For | While, lo: Value, hi: Value) -> None:
        most = min(
            (
                self._interval(_difference(a, b))[1]
                for a in self._sums(hi, "min")
                for b in self._sums(lo, "max")
            ),
            default=math.inf,
        )
        if most < math.inf:
            self.found[s] = max(0, int(most))

    def _indices(self, lo: Value, hi: Value) -> Interval:
        """Return the least and the greatest index of a loop with these ends."""
        least = max((self._interval(f)[0] for f in self._sums(lo, "max")), default=-math.inf)
        most = min((self._interval(f)[1] for f in self._sums(hi, "min")), default=math.inf)
        return least, most - 1

    def _interval(self, form: AffineForm) -> Interval:
        total = ZERO
        for v, n in form.items():
            total = plus(total, (n, n) if v is None else times(n, self._ranges.get(v, ANY)))
        return total

    def _sums(self, end: Value, op: str) -> list[AffineForm]:
        """Return the sums that an end is one of, by the op that chooses among them."""
        return list(self._each_sum(end, op, _MOST_SUMS))

    def _each_sum(self, end: Value, op: str, most: int) -> Iterator[AffineForm]:
        form = self._forms.form(end)
        if form is not None:
            yield form
            return
        let = self._definitions.get(end)
        if let is None or let.op.name != op or most == 1:
            return
        for v in let.args:
            yield from self._each_sum(v, op, most // 2)


def _difference(a: AffineForm, b: AffineForm) -> AffineForm:
    return {v: a.get(v, 0) - b.get(v, 0) for v in (*a, *(v for v in b if v not in a))}
