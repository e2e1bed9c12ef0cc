"""Hoists reductions: takes sums, minima and maxima out of loops.

Assumes scalar IR. Atomic updates may happen in any order, so a loop that updates one element in every
iteration may as well carry a partial result and update once at its end; and a parallel loop that does so
becomes a reduction, whose partial results the launch combines in a fixed order.

    for %j in 0..n {                     %e.1 = for %j in 0..n carry (%e: f32 = 0.0) {
      atomic_add e[%i], %t        ->       %e.2: f32 = accumulate %e, %t
    }                                      yield %e.2
                                         }
                                         atomic_add e[%i], %e.1

Indices that are the same in each iteration move in front of the loop (docs/adr/0151).

An element with an index from the launch or the lane may exist only where a branch updates it. Then the loop
carries, besides, whether it did:

    for %j in 0..n {                     %e.1, %any.1 = for %j in 0..n carry (%e = 0.0, %any = false) {
      if %c {                              %t.1, %s = if %c { yield %t, true } else { yield 0.0, false }
        atomic_add e[%i], %t      ->       %e.2: f32 = accumulate %e, %t.1
      }                                    %any.2: bool = or %any, %s
    }                                      yield %e.2, %any.2
                                         }
                                         if %any.1 { atomic_add e[%i], %e.1 }
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import blocks, bound_in, statements
from diffsim.ir.types import ScalarType, bool_
from diffsim.passes.analysis.affine import affine_forms

Key = tuple[str, Mem, tuple[object, ...]]
_MOST_ACCUMULATORS = 64  # of one loop
_FEWEST_LANES = 1024  # that are left where others become loops
_SUMMED = (Let, Load, If, Atomic)
_INDEX_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "cast"})
_COMBINE = {"add": "accumulate", "min": "min", "max": "max"}


def hoist_reductions(kernel: Kernel, *, in_lanes: bool = False) -> Kernel:
    """Return the kernel whose loops carry what they add up; parallel loops become reductions.

    Args:
        kernel: scalar IR.
        in_lanes: whether an axis that only sums run along becomes a loop of each lane.
    """
    if in_lanes:
        kernel = kernel.replace(tasks=tuple([_sums_in_lanes(t) for t in kernel.tasks]))
    work = _Hoister(kernel)
    return kernel.replace(tasks=tuple(work.task(t) for t in kernel.tasks))


def identity(op: str, t: ScalarType) -> Const:
    """Return the neutral element of an operation."""
    if op == "add":
        return Const(t, 0.0 if t.is_float else 0)
    if t.is_float:
        return Const(t, float("inf") if op == "min" else float("-inf"))
    lowest, highest = (
        (0, 2**t.bits - 1) if t.kind == "u" else (-(2 ** (t.bits - 1)), 2 ** (t.bits - 1) - 1)
    )
    return Const(t, highest if op == "min" else lowest)


class _Carried(NamedTuple):
    """A value that a loop carries in place of updates: a partial result, or whether there was one."""

    type: ScalarType
    combine: str
    start: Const


_WHETHER = _Carried(bool_, "or", Const(bool_, False))
_TRUE = Const(bool_, True)
_OTHERS: dict[Key, Value] = {("", Mem("", bool_, 0, ()), ()): _TRUE}


def _partial(a: Atomic) -> _Carried:
    t = _carried_in(a)
    return _Carried(t, _COMBINE[a.op], identity(a.op, t))


def element_key(s: Atomic) -> Key:
    """Return what updates of one element with one operation have in common."""
    # Constants compare by identity in the IR; here equal numbers mean the same element.
    index = tuple((i.type, i.value) if isinstance(i, Const) else i for i in s.index)
    return s.op, s.mem, index


class Extraction:
    """Takes updates out of blocks and their branches."""

    def __init__(self, kernel: Kernel) -> None:
        self.builder = Builder(kernel.span)
        self.results: dict[If, dict[Key, Value]] = {}
        """The branches that update elements behind loops, and with what."""

    def merged(self, stmts: list[Stmt], found: dict[Key, Atomic]) -> list[Stmt]:
        """Return statements that update each of these elements once, at their end.

        `found`: one update of each element, which always runs.
        """
        block, sums = self.extract(Block(stmts), {k: _partial(a) for k, a in found.items()}, {})
        return [*block.stmts, *(s for k, a in found.items() for s in self.update(a, sums[k]))]

    def update(self, a: Atomic, total: Value) -> list[Stmt]:
        """Return an update like `a`, with what several amount to."""
        b = self.builder
        b.span = a.span
        # Still an atomic: other lanes may update the element. `demote_atomics` decides about that next.
        with b, b.block() as made:
            value = b.cast(total, a.value.type.scalar)
        made.append(Atomic(None, a.op, a.mem, a.index, value, a.span, False, a.origin))
        return made

    def extract(
        self, block: Block, carried: dict[Key, _Carried], whether: dict[Key, Key]
    ) -> tuple[Block, dict[Key, Value]]:
        """Return the block without these atomics, and for each what its updates amount to.

        Args:
            block: with the loops inside done.
            carried: what is carried for each element, and for each condition.
            whether: the conditions that are asked for of elements.
        """
        sums: dict[Key, Value] = {}
        b = self.builder
        outer = b.stmts
        done: list[Stmt] = []
        b.stmts = done

        def collect(key: Key, v: Value) -> None:
            # Two updates of one element in an iteration are combined first: one carried value for each
            # element.
            sums[key] = v if key not in sums else b.named(carried[key].combine, sums[key], v)

        for s in block.stmts:
            if isinstance(s, Atomic) and s.out is None and element_key(s) in carried:
                b.span = s.span
                collect(element_key(s), b.cast(s.value, carried[element_key(s)].type))
                if element_key(s) in whether:
                    sums[whether[element_key(s)]] = _TRUE
            elif isinstance(s, If) and carried.keys() >= self.results.get(s, _OTHERS).keys():
                # A loop that made no update has found the neutral element.
                b.span = s.span
                results = self.results[s]
                for k, v in results.items():
                    collect(k, b.cast(v, carried[k].type))
                for k in dict.fromkeys(whether[k] for k in results if k in whether):
                    collect(k, s.cond)
            elif isinstance(s, If):
                then, then_sums = self.extract(s.then, carried, whether)
                orelse, else_sums = self.extract(s.orelse, carried, whether)
                # A branch hands out what it would have added, and the other side the neutral element.
                keys = [k for k in carried if k in then_sums or k in else_sums]
                made = [Value(carried[k].type) for k in keys]
                then, orelse = (
                    Block(
                        side.stmts,
                        (*side.yields, *(have.get(k) or carried[k].start for k in keys)),
                    )
                    for side, have in ((then, then_sums), (orelse, else_sums))
                )
                done.append(If(s.cond, then, orelse, (*s.outs, *made), s.span))
                b.span = s.span
                for k, v in zip(keys, made, strict=True):
                    collect(k, v)
            else:
                done.append(s)
        b.stmts = outer
        return Block(done, block.yields), sums


class _Hoister(Extraction):
    """Hoists reductions in the tasks of one kernel, innermost loops first."""

    def task(self, task: Task) -> Task:
        """Return a task with its loops' reductions hoisted, and its own made out of what all lanes update."""
        body = self.block(task.body)
        if not task.axes:
            return task.replace(body=body)
        inside = bound_in(body) | set(task.axes)
        # The total is updated once for the whole launch, so its element must be known before any lane
        # starts: indices made of arguments and constants.
        found = {
            k: s
            for k, s in _candidates(body, inside, branches=False).items()
            if all(isinstance(i, LEAVES) for i in s.index)
        }
        if not found:
            return task.replace(body=body)
        body, sums = self.extract(body, {k: _partial(a) for k, a in found.items()}, {})
        values = tuple(sums.get(k) or _partial(a).start for k, a in found.items())
        reductions = tuple((s.op, s.mem, s.index) for s in found.values())
        return task.replace(body=Block(body.stmts, values), reductions=reductions)

    def block(self, block: Block) -> Block:
        """Hoist out of the loops inside a block, innermost first."""
        done: list[Stmt] = []
        for s in block.stmts:
            if isinstance(s, If):
                s = s.replace(then=self.block(s.then), orelse=self.block(s.orelse))
            if isinstance(s, (For, While)):
                done.extend(self.loop(s))
            else:
                done.append(s)
        return Block(done, block.yields)

    def loop(self, s: For | While) -> list[Stmt]:
        """Return a loop that carries its reductions, followed by one update for each.

        Before it the invariant indices of its updates.
        """
        body = self.block(s.body)
        inside = bound_in(body) | set(s.params)
        if isinstance(s, For):
            inside.add(s.index)
        else:
            inside |= bound_in(s.cond)
        body, before = _without_invariant_indices(body, inside)
        inside.difference_update(let.out for let in before)
        found = _candidates(body, inside)
        if isinstance(s, While):  # whose condition must not read what the body still carries
            used = {x.mem for x in statements(s.cond) if isinstance(x, Load)}
            found = {k: a for k, a in found.items() if a.mem not in used}
        whether = _conditions(body, found, enters=isinstance(s, For))
        carried = {k: _partial(a) for k, a in found.items()}
        carried |= dict.fromkeys(whether.values(), _WHETHER)
        # Partial results are carried from the neutral element on, and memory is updated once, after
        # the loop. Atomic updates have no order, so this is one of the orders that the program allows.
        params = {k: Value(c.type, _name(k)) for k, c in carried.items()}
        results = {k: Value(c.type, _name(k)) for k, c in carried.items()}
        yields: list[Value] = []
        if found:
            body, sums = self.extract(body, carried, whether)
            with self.builder, self.builder.block() as last:
                for k, c in carried.items():
                    self.builder.span = found[k].span if k in found else s.span
                    yields.append(self.builder.named(c.combine, params[k], sums.get(k) or c.start))
            body = Block([*body.stmts, *last], body.yields)
        loop = s.replace(
            params=(*s.params, *params.values()),
            inits=(*s.inits, *(c.start for c in carried.values())),
            body=Block(body.stmts, (*body.yields, *yields)),
            outs=(*s.outs, *results.values()),
        )
        return [*before, loop, *self.updates(s, found, whether, results)]

    def updates(
        self,
        s: For | While,
        found: dict[Key, Atomic],
        whether: dict[Key, Key],
        results: dict[Key, Value],
    ) -> list[Stmt]:
        """Return the updates behind a loop: if it made any, or has iterations, or in any case."""
        b, sure = self.builder, list[Stmt]()
        guarded: dict[Key | None, tuple[list[Stmt], dict[Key, Value]]] = {}
        for k, a in found.items():
            stored = self.update(a, results[k])
            if _always_exists(a):
                sure += stored
            else:
                stmts, totals = guarded.setdefault(whether.get(k), ([], {}))
                stmts += stored
                totals[k] = results[k]
        for key, (stmts, totals) in guarded.items():
            if key is not None:
                cond: Value = results[key]
            else:  # a loop without iterations must not touch the element
                assert isinstance(s, For)
                with b, b.block() as test:
                    cond = b.named("lt", s.lo, s.hi)
                sure += test
            if isinstance(cond, Const):
                sure += stmts
                continue
            branch = If(cond, Block(stmts), Block([]), (), s.span)
            self.results[branch] = totals
            sure.append(branch)
        return sure


def _without_invariant_indices(body: Block, inside: set[Value]) -> tuple[Block, list[Let]]:
    """Return the body of a loop without what computes invariant indices of its updates, and that.

    `inside`: the values that the loop binds.
    """
    # Not by recursion: indices are chains as long as programs write them.
    found: dict[Value, Let] = {}
    needed: set[Value] = set()
    for s, _, _ in _outside_loops(body):
        if isinstance(s, Let) and _is_index_arithmetic(s):
            if all(v in found or v not in inside for v in s.args):
                found[s.out] = s
        elif isinstance(s, Atomic) and s.op in _COMBINE:
            needed.update(i for i in s.index if i in found)
    if not needed:
        return body, []
    for v, let in reversed(found.items()):
        if v in needed:
            needed.update(let.args)
    # In the order of the program, in which what they are computed of comes first.
    return _without(body, needed), [let for v, let in found.items() if v in needed]


def _is_index_arithmetic(let: Let) -> bool:
    """Whether an op on whole numbers may as well run where the program would not have come to it."""
    return let.out.type.scalar.is_int and let.op.name in _INDEX_ARITHMETIC


def _without(block: Block, out: set[Value]) -> Block:
    """Return a block, with its branches, that does not compute these values; itself, if it never did."""
    kept: list[Stmt] = []
    for s in block.stmts:
        if isinstance(s, Let) and s.out in out:
            continue
        if isinstance(s, If):
            then, orelse = _without(s.then, out), _without(s.orelse, out)
            # A branch that stays is still known as one that updates elements behind a loop.
            if then is not s.then or orelse is not s.orelse:
                s = s.replace(then=then, orelse=orelse)
        kept.append(s)
    same = len(kept) == len(block.stmts) and all(map(operator.is_, kept, block.stmts))
    return block if same else Block(kept, block.yields)


def _conditions(body: Block, found: dict[Key, Atomic], *, enters: bool) -> dict[Key, Key]:
    """Return for each element that may not exist what stands for whether it was updated.

    Elements that are updated in the same branches have one in common. Where each iteration updates an
    element, a loop that can say whether it `enters` needs none.
    """
    branches: dict[Key, list[int]] = {}
    for s, _, number in _outside_loops(body):
        if isinstance(s, Atomic) and s.out is None and element_key(s) in found:
            branches.setdefault(element_key(s), []).append(number)
    names = {tuple(numbers): k for k, numbers in branches.items()}
    return {
        k: ("or", a.mem, names[tuple(branches[k])])
        for k, a in found.items()
        if not (_always_exists(a) or (enters and 0 in branches[k]))
    }


def _name(k: Key) -> str:
    return "any" if k[0] == "or" else k[1].name


def _carried_in(a: Atomic) -> ScalarType:
    """Return the type of partial results: a type of storage would lose what is small beside the sum."""
    return a.value.type.scalar.arithmetic


def _sums_in_lanes(task: Task) -> Task:
    """Return a task whose lanes run through the last axes, which no update's index follows.

    `for i, j in box: y[i] += A[i, j] * x[j]` is a sum over j of each i, which no two lanes share then.
    """
    ends = task.bounds.yields
    if task.active is not None or task.reductions or not all(isinstance(v, Const) for v in ends):
        return task
    found = list(statements(task.body))
    updates = [s for s in found if isinstance(s, Atomic)]
    if not updates or not all(isinstance(s, _SUMMED) for s in found):
        return task
    loaded = {s.mem for s in found if isinstance(s, Load)}
    if any(s.out is not None or s.op not in _COMBINE or s.mem in loaded for s in updates):
        return task
    followed = _followed(task, updates)
    if followed is None:
        return task
    # The last ones alone, so that memory is gone through in the order of the program.
    kept = max([k + 1 for k, a in enumerate(task.axes) if a in followed], default=0)
    extents = [
        max(0, int(hi.value) - int(lo.value))  # type: ignore[attr-defined]
        for lo, hi in zip(ends[::2], ends[1::2], strict=True)
    ]
    if kept == len(task.axes) or math.prod(extents[:kept]) < _FEWEST_LANES:
        return task
    body = task.body
    for k in reversed(range(kept, len(task.axes))):
        loop = For(task.axes[k], ends[2 * k], ends[2 * k + 1], (), (), body, (), task.span)
        body = Block([loop])
    bounds = Block(task.bounds.stmts, ends[: 2 * kept])
    return task.replace(axes=task.axes[:kept], bounds=bounds, body=body)


def _followed(task: Task, updates: Iterable[Atomic]) -> set[Value] | None:
    """Return the axes that the indices of updates follow; None: that is not known."""
    forms = affine_forms(task)
    found: set[Value] = set()
    for s in updates:
        for i in s.index:
            form = forms.form(i)
            if form is None or any(v in forms.ranges and v not in task.axes for v in form):
                return None
            found.update(v for v in form if v in task.axes and v is not None)
    return found


def _outside_loops(block: Block) -> Iterator[tuple[Stmt, bool, int]]:
    """Yield the statements of a block and its branches: whether each always runs, and its branch's number."""
    numbers = itertools.count()

    def visit(block: Block, number: int) -> Iterator[tuple[Stmt, bool, int]]:
        for s in block.stmts:
            yield s, number == 0, number
            if isinstance(s, If):
                for inner in blocks(s):
                    yield from visit(inner, next(numbers))

    return visit(block, next(numbers))


def _always_exists(a: Atomic) -> bool:
    """Whether the element exists whatever happens at run time: its index is made of constants."""
    return all(isinstance(i, Const) for i in a.index)


def _candidates(body: Block, inside: set[Value], *, branches: bool = True) -> dict[Key, Atomic]:
    """Return atomics whose element is loop-invariant, on memory that the loop uses for nothing else.

    `branches`: also those under a branch whose element has a run-time index, and may not exist elsewhere.
    """
    found: dict[Key, Atomic] = {}
    for s, always, _ in _outside_loops(body):
        if (
            isinstance(s, Atomic)
            and s.out is None
            and s.op in _COMBINE
            and not any(i in inside for i in s.index)
            and (always or branches or _always_exists(s))
        ):
            found.setdefault(element_key(s), s)
    if not found:
        return found
    # A load, a store or another kind of update of the memory might see the element before the loop's
    # end, so it must find every update made: such memories stay as they are, whatever their indices.
    other: set[Mem] = set()
    ops: dict[Mem, str] = {a.mem: a.op for a in found.values()}
    for s in statements(body):
        if isinstance(s, (Load, Store)) or (
            isinstance(s, Atomic) and (s.out is not None or s.op != ops.get(s.mem, s.op))
        ):
            other.add(s.mem)
    kept = {k: a for k, a in found.items() if a.mem not in other}
    return dict(list(kept.items())[:_MOST_ACCUMULATORS])
