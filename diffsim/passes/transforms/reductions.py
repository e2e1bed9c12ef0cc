"""Hoists reductions: takes sums, minima and maxima out of loops.

Assumes scalar IR. Atomic updates may happen in any order, so a loop that updates one element in every
iteration may as well carry a partial result and update once at its end; and a parallel loop that does so
becomes a reduction, whose partial results the launch combines in a fixed order.

    for %j in 0..n {                     %e.1 = for %j in 0..n carry (%e: f32 = 0.0) {
      atomic_add e[%i], %t        ->       %e.2: f32 = accumulate %e, %t
    }                                      yield %e.2
                                         }
                                         atomic_add e[%i], %e.1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

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
from diffsim.ir.traversal import blocks, outs, statements
from diffsim.ir.types import ScalarType
from diffsim.passes.analysis.affine import affine_forms

Key = tuple[str, Mem, tuple[object, ...]]
_MOST_ACCUMULATORS = 64  # of one loop
_FEWEST_LANES = 1024  # that are left where others become loops
_SUMMED = (Let, Load, If, Atomic)
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


def _key(s: Atomic) -> Key:
    # Constants compare by identity in the IR; here equal numbers mean the same element.
    index = tuple((i.type, i.value) if isinstance(i, Const) else i for i in s.index)
    return s.op, s.mem, index


class _Hoister:
    """Hoists reductions in the tasks of one kernel, innermost loops first."""

    def __init__(self, kernel: Kernel) -> None:
        self.builder = Builder(kernel.span)

    def task(self, task: Task) -> Task:
        """Return a task with its loops' reductions hoisted, and its own made out of what all lanes update."""
        body = self.block(task.body)
        if not task.axes:
            return task.replace(body=body)
        inside = _bound_in(body) | set(task.axes)
        # The total is updated once for the whole launch, so its element must be known before any lane
        # starts: indices made of arguments and constants.
        found = {
            k: s
            for k, s in _candidates(body, inside).items()
            if all(isinstance(i, LEAVES) for i in s.index)
        }
        if not found:
            return task.replace(body=body)
        body, sums = self.extract(body, found)
        values = tuple(sums.get(k) or self.nothing(a) for k, a in found.items())
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
        """Return a loop that carries its reductions, followed by one update for each."""
        body = self.block(s.body)
        inside = _bound_in(body) | set(s.params)
        if isinstance(s, For):
            inside.add(s.index)
        else:
            inside |= _bound_in(s.cond)
        found = _candidates(body, inside)
        # A while loop cannot be asked beforehand whether it enters, so an update after it must not
        # depend on that; and its condition must not read what the body still carries.
        if isinstance(s, While):
            used = {x.mem for x in statements(s.cond) if isinstance(x, Load)}
            found = {k: a for k, a in found.items() if a.mem not in used and _always_exists(a)}
        # The partial result is carried from the neutral element on, and memory is updated once, after
        # the loop. Atomic updates have no order, so this is one of the orders that the program allows.
        params, inits, results = s.params, s.inits, s.outs
        after: list[tuple[Atomic, list[Stmt]]] = []
        if found:
            body, sums = self.extract(body, found)
            yields = list(body.yields)
            stmts = list(body.stmts)
            self.builder.stmts = stmts
            for k, a in found.items():
                t = _carried_in(a)
                carried, result = Value(t, a.mem.name), Value(t, a.mem.name)
                self.builder.span = a.span
                new = sums.get(k) or self.nothing(a)
                yields.append(self.builder.named(_COMBINE[a.op], carried, new))
                params, inits = (*params, carried), (*inits, identity(a.op, t))
                results = (*results, result)
                # Still an atomic: other lanes may update the element. `demote_atomics` decides about
                # that next.
                with self.builder.block() as stored:
                    total = self.builder.cast(result, a.value.type.scalar)
                last = Atomic(None, a.op, a.mem, a.index, total, a.span, False, a.origin)
                after.append((last, stored))
            body = Block(stmts, tuple(yields))
        loop = s.replace(params=params, inits=inits, body=body, outs=results)
        sure: list[Stmt] = []
        unsure: list[Stmt] = []
        for a, stored in after:
            (sure if _always_exists(a) else unsure).extend([*stored, a])
        if unsure and isinstance(s, For):  # a loop without iterations must not touch the element
            with self.builder.block() as test:
                enters = self.builder.named("lt", s.lo, s.hi)
            if not isinstance(enters, Const):
                unsure = [*test, If(enters, Block(unsure), Block([]), (), s.span)]
        return [loop, *sure, *unsure]

    def extract(self, block: Block, found: dict[Key, Atomic]) -> tuple[Block, dict[Key, Value]]:
        """Return the block without these atomics, and for each what its updates amount to."""
        sums: dict[Key, Value] = {}
        b = self.builder
        outer = b.stmts
        done: list[Stmt] = []
        b.stmts = done

        def collect(key: Key, v: Value) -> None:
            # Two updates of one element in an iteration are combined first: one carried value for each
            # element.
            sums[key] = v if key not in sums else b.named(_COMBINE[key[0]], sums[key], v)

        for s in block.stmts:
            if isinstance(s, Atomic) and s.out is None and _key(s) in found:
                b.span = s.span
                collect(_key(s), b.cast(s.value, _carried_in(s)))
            elif isinstance(s, If):
                then, then_sums = self.extract(s.then, found)
                orelse, else_sums = self.extract(s.orelse, found)
                # A branch hands out what it would have added, and the other side the neutral element.
                keys = [k for k in found if k in then_sums or k in else_sums]
                made = [Value(_carried_in(found[k])) for k in keys]
                then, orelse = (
                    Block(
                        side.stmts,
                        (*side.yields, *(have.get(k) or self.nothing(found[k]) for k in keys)),
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

    def nothing(self, a: Atomic) -> Const:
        return identity(a.op, _carried_in(a))


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


def _bound_in(block: Block) -> set[Value]:
    found: set[Value] = set()
    for s in statements(block):
        found.update(outs(s))
        if isinstance(s, (For, While)):
            found.update(s.params)
            if isinstance(s, For):
                found.add(s.index)
    return found


def _outside_loops(block: Block, *, always: bool = True) -> Iterator[tuple[Stmt, bool]]:
    """Yield the statements of a block and its branches, and whether each runs in every iteration."""
    for s in block.stmts:
        yield s, always
        if isinstance(s, If):
            for inner in blocks(s):
                yield from _outside_loops(inner, always=False)


def _always_exists(a: Atomic) -> bool:
    """Whether the element exists whatever happens at run time: its index is made of constants."""
    return all(isinstance(i, Const) for i in a.index)


def _candidates(body: Block, inside: set[Value]) -> dict[Key, Atomic]:
    """Return atomics whose element is loop-invariant, on memory that the loop uses for nothing else.

    An element with a run-time index may exist only where a branch says so, and stays in its branch.
    """
    found: dict[Key, Atomic] = {}
    for s, always in _outside_loops(body):
        if (
            isinstance(s, Atomic)
            and s.out is None
            and s.op in _COMBINE
            and not any(i in inside for i in s.index)
            and (always or _always_exists(s))
        ):
            found.setdefault(_key(s), s)
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
