"""Scalar replacement: repeated accesses of a lane to one element become values.

Code without loops, unrolled layers above all, loads the same element again and again, and its adjoint adds to
the same element once for each load (Callahan, Carr and Kennedy 1990). LLVM finds that, but only after each
access has become many instructions, or not at all where lanes are vectors.

    %a = load x[%i, 0]                        %a = load x[%i, 0]
    %b = load x[%i, 0]                        %s = load g[%i, 0]
    exclusive_add g[%i, 0], %c          ->    %t = add %s, %c
    exclusive_add g[%i, 0], %d                %u = add %t, %d
                                              store g[%i, 0], %u

Additions to a gradient that other lanes may touch, too, are summed, and made by one where the last one was:

    atomic_add g[%k], %c                      %s = add %c, %d
    atomic_add g[%k], %d                ->    atomic_add g[%k], %s

An element that a task does not change is loaded once for all of a lane: blocks inside know what the blocks
around them have loaded, and an element that a loop does not choose is loaded before the loop. LLVM does not
find these where lanes are vectors, whose loads in branches and loops are under masks.

Assumes scalar IR with exclusive atomics marked. Promises: the same operations in the same order on each
element; no element is loaded that may not exist; time linear in the size of the kernel, times the depth of
its loops.
"""

from __future__ import annotations

from collections.abc import Set

from diffsim.ir.nodes import (
    Atomic,
    Block,
    For,
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
from diffsim.ir.ops.table import add
from diffsim.ir.traversal import Rewriter, TouchedMemories, bound_in, statements
from diffsim.passes.analysis.affine import element_of, task_definitions
from diffsim.passes.analysis.ownership import Element, SteadyElements

Access = Load | Store | Atomic
Bases = tuple[Value | None, ...]
Shifts = tuple[int, ...]
Place = tuple[Bases, Shifts]
"""An element's index, values plus constants: with the same values and other constants it is another one."""


def replace_by_values(kernel: Kernel) -> Kernel:
    """Return the kernel whose lanes load and update each element once, where nothing is in between."""
    gradients = {m.grad for m in kernel.mems if m.grad is not None}
    return kernel.replace(tasks=tuple([_task(t, gradients) for t in kernel.tasks]))


def _task(task: Task, gradients: Set[Mem]) -> Task:
    places = _places(task) if task.axes else {}
    accessed = {(type(s), s.mem, place) for s, place in places.items()}
    loops = any(isinstance(s, (For, While)) for s in statements(task.body))
    if len(accessed) == len(places) and not loops:
        return task  # no element is accessed twice
    return task.replace(body=_Replacement(task, places, gradients).block(task.body))


def _places(task: Task) -> dict[Access, Place]:
    """Return the index of each access of the body to a memory that others may see."""
    defs, found = task_definitions(task), {}
    for s in statements(task.body):
        if isinstance(s, (Load, Store, Atomic)) and s.mem.kind in ("field", "array"):
            element = element_of(s.index, defs)
            found[s] = tuple([base for base, _ in element]), tuple([shift for _, shift in element])
    return found


def _is_sum(s: Atomic, gradients: Set[Mem]) -> bool:
    """Whether additions to an element may go on in values.

    Those of gradients, whose sums have no order that a program tells, and to elements that no other lane
    touches: these are added up in their order.
    """
    if s.op != "add" or s.out is not None or not (s.exclusive or s.mem in gradients):
        return False
    t = s.mem.dtype.scalar
    # Narrow types are rounded at each update.
    return t.arithmetic is t and not t.is_bool and s.value.type is t


class _Sums:
    """Additions to one memory, with no other access of it in between; some of them are to one element.

    Attributes:
        bases: of the elements, where a load before any of them is one before all.
        exclusive: whether no other lane touches the elements.
        last: the last addition to each element.
        now: in the copy, index of each element, and what was loaded or added up.
    """

    def __init__(self, bases: Bases, exclusive: bool) -> None:
        self.bases, self.exclusive = bases, exclusive
        self.additions: list[Atomic] = []
        self.last: dict[Place, Atomic] = {}
        self.now: dict[Place, tuple[tuple[Value, ...], Value]] = {}

    def takes(self, s: Atomic, bases: Bases) -> bool:
        """Whether an addition to the same memory may belong to these.

        Those that are made by atomic ones change places freely. A plain one is a load and a store.
        """
        same = s.exclusive == self.exclusive
        return same and (not s.exclusive or bases == self.bases)


def _sums(
    block: Block, places: dict[Access, Place], gradients: Set[Mem], touched: TouchedMemories
) -> dict[Atomic, _Sums]:
    """Return the additions of a block itself that can go on in values, each with those it belongs to."""
    every: list[_Sums] = []
    last: dict[Mem, _Sums] = {}
    for s in block.stmts:
        if isinstance(s, Atomic) and s in places and _is_sum(s, gradients):
            bases, _ = places[s]
            if s.mem not in last or not last[s.mem].takes(s, bases):
                last[s.mem] = _Sums(bases, s.exclusive)
                every.append(last[s.mem])
            last[s.mem].additions.append(s)
            last[s.mem].last[places[s]] = s
        else:
            for mem in touched.of(s):
                last.pop(mem, None)
    return {
        s: sums for sums in every if len(sums.last) < len(sums.additions) for s in sums.additions
    }


class _Replacement(Rewriter):
    """Copies a task's body, with what is known of memory at each place."""

    def __init__(self, task: Task, places: dict[Access, Place], gradients: Set[Mem]) -> None:
        super().__init__()
        self.gradients = gradients
        self.task = task
        self.defs = task_definitions(task)
        self.elements = SteadyElements(task)
        self.places = places
        self.known: dict[Mem, tuple[Bases, dict[Shifts, Value]]] = {}
        """Values that loads of each memory have found since its last write, for the latest bases."""
        self.steady: dict[tuple[Mem, Element], Value] = {}
        """Elements, in this block and those around it, that the task does not write."""
        self.sums: dict[Atomic, _Sums] = {}
        self.touched = TouchedMemories(lambda x: isinstance(x, Load))

    def block(self, b: Block) -> Block:
        # Nothing else that is known is taken into a block, or out of it: a loop's body may have changed it
        # before, and a branch may not run.
        around, self.known = self.known, {}
        outside, extents = len(self.steady), self.elements.enter(b)
        self.sums |= _sums(b, self.places, self.gradients, self.touched)
        copy = super().block(b)
        self.known, self.elements.extents = around, extents
        while len(self.steady) > outside:
            self.steady.popitem()
        return copy

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Let):
            return [self.copy(s)]  # touches no memory
        if isinstance(s, Load) and s in self.places:
            return self.load(s)
        first = self.invariant_loads(s) if isinstance(s, (For, While)) else []
        is_sum = isinstance(s, Atomic) and s in self.sums
        copy = self.add(s) if is_sum else [*first, self.copy(s)]  # type: ignore[arg-type]
        for mem, only_loads in self.touched.of(s).items():
            if not only_loads:
                self.known.pop(mem, None)
        return copy

    def invariant_loads(self, s: For | While) -> list[Stmt]:
        """Return loads, before a loop, of the elements that each of its iterations would load."""
        loop = Block([s])
        found = [x for x in statements(loop) if isinstance(x, Load) and self.is_steady(x)]
        inside = bound_in(loop) if found else set()
        made: list[Stmt] = []
        for x in found:
            element = self.elements.element(x)
            fixed = all(
                isinstance(i, frozenset) and inside.isdisjoint(v for v, _ in i) for i in element
            )
            if fixed and (x.mem, element) not in self.steady and self.elements.exists(x):
                index = tuple([self.before(i, inside, made) for i in x.index])
                loaded = self.steady[x.mem, element] = Value(x.out.type, x.out.hint)
                made.append(Load(loaded, x.mem, index, x.span, x.origin))
        return made

    def before(self, v: Value, inside: set[Value], made: list[Stmt]) -> Value:
        """Return an index that a loop computes from values that it does not, computed before the loop."""
        if v not in inside:
            return self.value(v)
        let = self.defs[v]
        args = tuple([self.before(a, inside, made) for a in let.args])
        copy = Value(v.type, v.hint)
        made.append(Let(copy, let.op, args, let.span))
        return copy

    def is_steady(self, s: Load) -> bool:
        return s in self.places and self.elements.is_steady(s)

    def load(self, s: Load) -> list[Stmt]:
        """Return the copy of a load; nothing where the element is known."""
        if self.is_steady(s):
            key = s.mem, self.elements.element(s)
            if key in self.steady:
                self.env[s.out] = self.steady[key]
                return []
            copy = self.copy(s)
            self.steady[key] = self.env[s.out]
            return [copy]
        bases, shifts = self.places[s]
        group = self.known.get(s.mem)
        if group is None or group[0] != bases:
            group = self.known[s.mem] = bases, {}
        found = group[1].get(shifts)
        if found is not None:
            self.env[s.out] = found
            return []
        copy = self.copy(s)
        group[1][shifts] = self.env[s.out]
        return [copy]

    def add(self, s: Atomic) -> list[Stmt]:
        """Return what takes the place of an addition."""
        sums, place = self.sums[s], self.places[s]
        if not sums.exclusive:
            return self.add_up(s, sums, place)
        made: list[Stmt] = []
        t, mem = s.mem.dtype.scalar, self.mem(s.mem)
        if place not in sums.now:
            sums.now[place] = self.values(s.index), Value(t)
            made.append(Load(sums.now[place][1], mem, sums.now[place][0], s.span))
        index, old = sums.now[place]
        new = Value(t)
        made.append(Let(new, add, (old, self.value(s.value)), s.span))
        sums.now[place] = index, new
        # All elements are stored where the last one was.
        if s is sums.additions[-1]:
            made += [Store(mem, index, value, s.span) for index, value in sums.now.values()]
        return made

    def add_up(self, s: Atomic, sums: _Sums, place: Place) -> list[Stmt]:
        """Return the sum with earlier additions to the element, and the addition of it if none follows."""
        made: list[Stmt] = []
        index, value = self.values(s.index), self.value(s.value)
        if place in sums.now:
            index, before = sums.now[place]
            total = Value(s.mem.dtype.scalar)
            made.append(Let(total, add, (before, value), s.span))
            value = total
        sums.now[place] = index, value
        if s is sums.last[place]:
            one = s.replace(mem=self.mem(s.mem), index=index, value=value)
            made.append(one)
        return made
