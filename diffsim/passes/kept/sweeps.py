"""Keeps functions, quotients and roots that a loop's forward sweep computes for its sweep backwards.

An adjoint runs a loop forward, to save what its iterations start from, and computes each iteration again on
the way back. What the saved values depend on is computed twice. A sine takes longer than to keep its result
for the few iterations of a short loop, and so does a quotient:

    scratch p.saved[7]: f32                   scratch p.saved[7]: f32, c.saved[7]: f32
    for %k in 0..7 carry (%p) {               for %k in 0..7 carry (%p) {
      store p.saved[%k], %p                     store p.saved[%k], %p
      %c = cos %p                               %c = cos %p
      ...                            ->         store c.saved[%k], %c
    }                                           ...
    for %k.1 in 0..7 backwards {              for %k.1 in 0..7 backwards {
      %p.1 = load p.saved[%k.1]                 %c.1 = load c.saved[%k.1]
      %c.1 = cos %p.1                           ...
      ...

Functions come first, as they take longest. A quotient that is the same in all iterations is left: LLVM
computes it once.

Legal as values with one number are equal (`equal_values.py`), where the indices of both loops are the same, a
value that is loaded is the one that was saved, and so is an element of memory that the task only reads.

Assumes scalar IR. Promises: the same numbers in all effects. Leaves dead code in the second loop.
"""

from __future__ import annotations

from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.op import Math
from diffsim.ir.traversal import Rewriter, blocks, entered, outs, statements, task_statements
from diffsim.ir.types import i64
from diffsim.passes.forms.equal_values import ValueNumbering

_MOST_KEPT = (
    4096  # bytes of a lane: 16 lanes that run together have a part of the second-level cache
)
_QUOTIENTS = frozenset(("div", "sqrt"))
_Place = tuple[object, ...]
"""A memory, and the numbers of the indices of an element."""


def keep_for_sweeps_back(kernel: Kernel) -> Kernel:
    """Return the kernel whose loops keep functions that loops backwards would compute again."""
    return kernel.replace(tasks=tuple([_task(t) for t in kernel.tasks]))


def _task(task: Task) -> Task:
    if sum(1 for s in statements(task.body) if isinstance(s, For) and _iterations(s)) < 2:
        return task
    found = _Search(task)
    found.block(task.body)
    found.choose()
    return task.replace(body=_Keeping(found).block(task.body)) if found.kept else task


class _Sweep:
    """A loop that has run: what it has saved, and what it has computed that takes long.

    Attributes:
        saved: the number of the value that each iteration has stored at a place.
        functions: the first operation of each number.
        own: values that differ from iteration to iteration, as far as the body itself computes them.
    """

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.saved: dict[_Place, object] = {}
        self.functions: dict[object, Let] = {}
        self.own: set[Value] = set(entered(loop))


class _Search:
    """Finds functions in loops that an earlier sweep has computed for the same iteration.

    Attributes:
        kept: for each of them, the operation of the earlier sweep.
        kept_in: for these, the loop they are in.
    """

    def __init__(self, task: Task) -> None:
        self.kept: dict[Let, Let] = {}
        self.kept_in: dict[Let, For] = {}
        self._again: dict[Let, tuple[For, list[Let]]] = {}
        self._values = ValueNumbering()
        self._stores: dict[Mem, list[Store | Atomic]] = {}
        for s in task_statements(task):
            if isinstance(s, (Store, Atomic)):
                self._stores.setdefault(s.mem, []).append(s)
        self._sweeps: dict[Mem, _Sweep] = {}

    def choose(self) -> None:
        """Keep what there is room for, functions first."""
        left = _MOST_KEPT
        for first in sorted(self._again, key=lambda s: s.op.name in _QUOTIENTS):
            loop, again = self._again[first]
            size = first.out.type.scalar.bytes * _iterations(loop)
            if size <= left:
                left -= size
                self.kept_in[first] = loop
                self.kept.update(dict.fromkeys(again, first))

    def block(self, block: Block, sweep: _Sweep | None = None, now: _Sweep | None = None) -> None:
        """Search a block; the sweeps in it end with it.

        `now`: the loop whose body it is; `sweep`: the earlier one with the same iterations.
        """
        before = len(self._sweeps)
        for s in block.stmts:
            if isinstance(s, Let):
                self._let(s, sweep, now)
            elif isinstance(s, Load):
                self._load(s, sweep, now)
            elif isinstance(s, For) and _iterations(s):
                self._loop(s)
            else:
                for inner in blocks(s):
                    self.block(inner)
            if now is not None and not isinstance(s, (Let, Load)):
                now.own.update(outs(s))
        while len(self._sweeps) > before:
            self._sweeps.popitem()

    def _loop(self, s: For) -> None:
        sweep, now = self._sweep_of(s), _Sweep(s)
        root = s if sweep is None else sweep.loop
        self._values.computed(s.index, "iteration", root)
        self.block(s.body, sweep, now)
        for mem in self._saves(s):
            for x in self._stores[mem]:
                assert isinstance(x, Store)
                place = (mem, *map(self._values.number, x.index))
                now.saved[place] = self._values.number(x.value)
            self._sweeps[mem] = now

    def _sweep_of(self, s: For) -> _Sweep | None:
        """Return the earlier loop that has saved for each iteration of this one."""
        for x in s.body.stmts:
            if isinstance(x, Load) and x.mem in self._sweeps and x.index[0] is s.index:
                sweep = self._sweeps[x.mem]
                same = (
                    _iterations(sweep.loop) == _iterations(s)
                    and sweep.loop.index.type is s.index.type
                )
                return sweep if same else None
        return None

    def _saves(self, s: For) -> list[Mem]:
        """Return the scratch that this loop alone stores to, an iteration at its place, each element once."""
        own = {x for x in s.body.stmts if isinstance(x, Store) and x.index[:1] == (s.index,)}
        found = []
        for mem in dict.fromkeys(x.mem for x in own if x.mem.kind == "scratch"):
            stores = self._stores[mem]
            places = {tuple(map(self._values.number, x.index[1:])) for x in stores}
            if all(x in own for x in stores) and len(places) == len(stores):
                found.append(mem)
        return found

    def _let(self, s: Let, sweep: _Sweep | None, now: _Sweep | None) -> None:
        number = self._values.let(s)
        if now is None:
            return
        differs = any(a in now.own for a in s.args)
        if differs:
            now.own.add(s.out)
        if not isinstance(s.op.lowering, Math) and not (differs and s.op.name in _QUOTIENTS):
            return
        now.functions.setdefault(number, s)
        first = None if sweep is None else sweep.functions.get(number)
        if sweep is not None and first is not None:
            self._again.setdefault(first, (sweep.loop, []))[1].append(s)

    def _load(self, s: Load, sweep: _Sweep | None, now: _Sweep | None) -> None:
        place = (s.mem, *map(self._values.number, s.index))
        if now is not None and any(i in now.own for i in s.index):
            now.own.add(s.out)
        if s.mem not in self._stores:
            self._values.computed(s.out, *place)
        elif sweep is not None and now is not None and place in sweep.saved:
            self._values.equal(s.out, sweep.saved[place])


class _Keeping(Rewriter):
    """Copies a body whose loops keep functions for later ones."""

    def __init__(self, found: _Search) -> None:
        super().__init__()
        self._found = found
        self._memory = {
            s: Mem(f"{s.out.hint or s.op.name}.saved", s.out.type, 1, None, "scratch")
            for s in found.kept_in
        }
        self._loops: list[For] = []
        self._loaded: dict[tuple[Let, For], Value] = {}

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Let) and s in self._found.kept:
            return self._load(s, self._found.kept[s])
        if isinstance(s, For):
            self._loops.append(s)
            copy = super().stmt(s)
            self._loops.pop()
            mems = [self._memory[x] for x, loop in self._found.kept_in.items() if loop is s]
            count = Const(i64, _iterations(s))
            return [*(Alloca(mem, count, s.span) for mem in mems), *copy]
        copy = super().stmt(s)
        if isinstance(s, Let) and s in self._memory:
            index = self.value(self._loops[-1].index)
            copy.append(Store(self._memory[s], (index,), self.value(s.out), s.span))
        return copy

    def _load(self, s: Let, first: Let) -> list[Stmt]:
        loop = self._loops[-1]
        if (known := self._loaded.get((first, loop))) is not None:
            self.env[s.out] = known
            return []
        out = Value(s.out.type, s.out.hint)
        self.env[s.out] = self._loaded[first, loop] = out
        return [Load(out, self._memory[first], (self.value(loop.index),), s.span)]


def _iterations(s: For) -> int:
    """Return how many iterations a loop from 0 on has; 0: none, or it is not known."""
    if not isinstance(s.lo, Const) or not isinstance(s.hi, Const) or int(s.lo.value) != 0:
        return 0
    return max(0, int(s.hi.value))
