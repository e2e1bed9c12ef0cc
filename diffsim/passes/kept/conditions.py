"""Conditions that a launch keeps, where its adjoint needs no more of what the launch overwrites.

A kernel that changes its state in place has an adjoint that needs the state from before. Often that is only
to find out again which way a branch, a select or a maximum went: swaps, clamps, contacts. Then the launch
stores these conditions, a byte for each lane, and its adjoint is that of a kernel which loads them:

    launched                                 differentiated
    %a: f32 = load y[%i]                     %a: f32 = load y[%i]
    %c: bool = gt %a, 0.0                    %b: u8 = load c[%i]
    store c[%i], %c                          %c: bool = ne %b, 0
    if %c {                                  if %c {
      ...                                      ...

The second kernel is never launched. No derivative flows through a condition, so its adjoint is that of both
as long as the bytes are those that the launch has stored (docs/adr/0115).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    Const,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.op import TABLE
from diffsim.ir.traversal import blocks, outs, statements, uses
from diffsim.ir.types import bool_, i32, u8

_CHOICES = {"max": "ge", "min": "le"}
"""Operations that return one of their operands; when it is the first, as their derivatives have it."""


class Condition(NamedTuple):
    """A condition that decides what the adjoint of a lane does.

    Attributes:
        value: the condition; or a maximum or minimum, which is one of its operands.
        shape: the number of lanes along each axis.
    """

    value: Value
    shape: tuple[int, ...]


class Forms(NamedTuple):
    """A kernel that stores conditions, and the same which loads them."""

    launched: Kernel
    differentiated: Kernel


def find_conditions(kernel: Kernel, overwritten: frozenset[Mem]) -> list[Condition]:
    """Return the conditions that depend on memories, as far as each lane meets them once.

    Args:
        kernel: a prepared kernel.
        overwritten: memories that its adjoint needs as they were before the launch.
    """
    return [
        Condition(v, shape)
        for task in kernel.tasks
        if (shape := _shape(task))
        for v in _Lane(task, overwritten).conditions()
    ]


def with_conditions(kernel: Kernel, memories: Mapping[Value, Mem]) -> Forms:
    """Return the kernel with these conditions in memories of bytes, stored and loaded."""
    mems = (*kernel.mems, *memories.values())
    both = []
    for change in (_stored, _loaded):
        tasks = tuple(_Changer(task, memories, change).task() for task in kernel.tasks)
        both.append(kernel.replace(mems=mems, tasks=tasks))
    return Forms(*both)


def _shape(task: Task) -> tuple[int, ...]:
    """Return the number of lanes along each axis; nothing where a launch decides it, or there are none."""
    ends = [int(v.value) for v in task.bounds.yields if isinstance(v, Const)]
    if not task.axes or len(ends) < len(task.bounds.yields):
        return ()
    sizes = [hi - lo for lo, hi in zip(ends[::2], ends[1::2], strict=True)]
    return tuple(sizes) if min(sizes) > 0 else ()


# ---- which conditions


class _Lane:
    """The dependences between the values of a lane.

    Only values outside all loops count as conditions: a lane comes by them once.
    """

    def __init__(self, task: Task, overwritten: frozenset[Mem]) -> None:
        self._overwritten = overwritten
        self._touched: set[Value] = set()
        self._exact: set[Value] = set(task.axes)
        self._around: dict[Value, tuple[Value, ...]] = {}  # the conditions around each value
        self._needed: set[Value] = set()
        self._visit(task.body, ())

    def conditions(self) -> Iterator[Value]:
        """Yield the conditions, in the order of the program."""
        needed = set(self._needed)
        # A lane that comes out of a comparison of floats on the other side, when that is made again, would
        # load what no launch has stored.
        for v in self._needed:
            needed.update(c for c in self._around[v] if not self._is_exact(c))
        if all(v in self._around for v in needed):
            yield from (v for v in self._around if v in needed)

    def _is_exact(self, v: Value) -> bool:
        """Whether a value is of whole numbers alone, so that computing it again gives the same."""
        return isinstance(v, LEAVES) or v in self._exact

    def _is_whole(self, s: Let | Load) -> bool:
        return not s.out.type.is_float and all(map(self._is_exact, uses(s)))

    def _visit(self, block: Block, around: tuple[Value, ...]) -> None:
        for s in block.stmts:
            self._around |= dict.fromkeys(outs(s), around)
            if isinstance(s, If):
                self._visit_branches(s, around)
                continue
            if self._depends(s):
                self._touched.update(outs(s))
            elif isinstance(s, (Let, Load)) and self._is_whole(s):
                self._exact.add(s.out)
            self._note_needs(s)

    def _visit_branches(self, s: If, around: tuple[Value, ...]) -> None:
        self._need(s.cond)
        for inner in blocks(s):
            self._visit(inner, (*around, s.cond))
        for v, a, b in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
            if self._touched & {s.cond, a, b}:
                self._touched.add(v)
            elif not v.type.is_float and all(map(self._is_exact, (s.cond, a, b))):
                self._exact.add(v)

    def _depends(self, s: Stmt) -> bool:
        """Whether a statement, or one inside it, has a value that depends on what is overwritten."""
        inner = [x for b in blocks(s) for x in statements(b)]
        return any(
            (isinstance(x, (Load, Atomic)) and x.mem in self._overwritten)
            or not self._touched.isdisjoint(uses(x))
            for x in (s, *inner)
        )

    def _note_needs(self, s: Stmt) -> None:
        if isinstance(s, Let) and s.out.type is bool_:
            return  # a part of another condition
        if isinstance(s, Let) and s.op.name in _CHOICES:
            if s.out in self._touched and s.out.type.is_float and not s.out.type.shape:
                self._needed.add(s.out)
        elif isinstance(s, Let) or blocks(s):
            inner = [x for b in blocks(s) for x in statements(b)]
            for v in (v for x in (s, *inner) for v in uses(x)):
                self._need(v)
            for v in (v for x in (s, *inner) for b in blocks(x) for v in b.yields):
                self._need(v)

    def _need(self, v: Value) -> None:
        if v.type is bool_ and v in self._touched and v in self._around:
            self._needed.add(v)


# ---- the two forms

Place = tuple[Mem, tuple[Value, ...]]
"""A memory, and an index."""


class _Changer:
    """Copies a task, with statements added where conditions are bound."""

    def __init__(
        self,
        task: Task,
        memories: Mapping[Value, Mem],
        change: Callable[[Stmt, dict[Value, Place]], list[Stmt]],
    ) -> None:
        self._task = task
        self._memories = memories
        self._change = change
        self._index: list[Value] = []
        self._before: list[Stmt] = []

    def task(self) -> Task:
        bound = {v for s in statements(self._task.body) for v in outs(s)}
        if bound.isdisjoint(self._memories):
            return self._task
        for axis, lo in zip(self._task.axes, self._task.bounds.yields[::2], strict=True):
            assert isinstance(lo, Const)
            place = axis
            if lo.value:
                place = Value(axis.type)
                self._before.append(Let(place, TABLE["sub"], (axis, lo), self._task.span))
            self._index.append(place)
        body = self._block(self._task.body)
        return self._task.replace(body=Block([*self._before, *body.stmts], body.yields))

    def _block(self, block: Block) -> Block:
        made: list[Stmt] = []
        for s in block.stmts:
            if isinstance(s, If):
                s = s.replace(then=self._block(s.then), orelse=self._block(s.orelse))
            places = {
                v: (self._memories[v], tuple(self._index)) for v in outs(s) if v in self._memories
            }
            made += self._change(s, places) if places else [s]
        return Block(made, block.yields)


def _stored(s: Stmt, places: dict[Value, Place]) -> list[Stmt]:
    """Return a statement, and the stores of conditions that it binds."""
    made = [s]
    for v, (mem, index) in places.items():
        if v.type is not bool_:
            assert isinstance(s, Let)
            v = Value(bool_)
            made.append(Let(v, TABLE[_CHOICES[s.op.name]], s.args, s.span))
        byte = Value(u8)
        made += [Let(byte, TABLE["cast"], (v,), s.span), Store(mem, index, byte, s.span)]
    return made


def _loaded(s: Stmt, places: dict[Value, Place]) -> list[Stmt]:
    """Return a statement without the conditions that it binds, and their loads."""
    made: list[Stmt] = []
    if isinstance(s, If):
        made.append(s.replace(outs=tuple(Value(v.type) if v in places else v for v in s.outs)))
    for v, (mem, index) in places.items():
        byte, number = Value(u8), Value(i32)
        made += [Load(byte, mem, index, s.span), Let(number, TABLE["cast"], (byte,), s.span)]
        found = v if v.type is bool_ else Value(bool_)
        made.append(Let(found, TABLE["ne"], (number, Const(i32, 0)), s.span))
        if found is not v:
            assert isinstance(s, Let)
            made.append(Let(v, TABLE["select"], (found, *s.args), s.span))
    return made
