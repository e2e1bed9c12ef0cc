"""Store-to-load forwarding: elements that a lane reads and writes again become values in the adjoint.

The adjoint loads fields as they are after the launch. A value that a lane has read and changed is gone:

    %a = load x[%i]                          %a = load x[%i]
    store y[%i], %a                   ->     %c = max %a, 0.5
    %b = load y[%i]                          store y[%i], %c
    %c = max %b, 0.5
    store y[%i], %c

Only loads that a later write may change are replaced, and only of elements that no other lane writes: what
the element holds is followed through the lane in program order (memory SSA for such elements). Where branches
join it is a result of the branch, and a loop that changes it carries it. A write that may reach the element
under another index ends what is known of it. Components of vectors are followed one by one.

Promises: every element ends with the same value, and the lanes agree on which elements they write. The launch
itself is not made of this IR, only the adjoint is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    CustomCall,
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
    zero,
)
from diffsim.ir.traversal import Rewriter, entered, outs, statements
from diffsim.ir.types import i32
from diffsim.passes.analysis.access_order import Section, sections_of
from diffsim.passes.analysis.affine import Definitions, Element, definitions, element_of
from diffsim.passes.analysis.dependence import Access, distances
from diffsim.passes.analysis.path_conditions import NO_PATH, Truth, paths
from diffsim.passes.transforms.dce import eliminate_dead_code

Position = tuple[int, ...]
"""The indices of a component within an element; empty: the whole element."""
Place = tuple[Mem, Element]
"""An element, by the values that its index is made of: equal places are the same element."""


def forward_stores(kernel: Kernel) -> Kernel:
    """Return the kernel with values in place of loads that a later write of the same lane spoils.

    The kernel itself, if there are none.
    """
    kernel, given = kernel.replace(tasks=tuple(map(_number_values, kernel.tasks))), kernel
    sections = sections_of(kernel)
    defs = definitions(kernel)
    tasks = list(kernel.tasks)
    for k, task in enumerate(kernel.tasks):
        # Two sections for each task, its bounds and its body.
        stale = _stale_loads(sections, 2 * k + 1)
        if stale:
            tasks[k] = _Forwarder(task, sections[2 * k + 1], stale, defs).task()
    if all(a is b for a, b in zip(tasks, kernel.tasks, strict=True)):
        return given
    return eliminate_dead_code(kernel.replace(tasks=tuple(tasks)))


def _stale_loads(sections: list[Section], number: int) -> set[Load]:
    """Return the loads of a section whose element a later statement of the kernel may change."""
    section, later = sections[number], sections[number + 1 :]
    found: set[Load] = set()
    for loads in section.loads.values():
        for load in loads:
            assert isinstance(load.stmt, Load)
            if load.stmt.mem.is_grad:
                continue  # the adjoint itself changes gradients
            changes = any(not section.before(g.last, load) for g in section.overlapping(load))
            if changes or any(s.overlapping(load) for s in later):
                found.add(load.stmt)
    return found


class _Known:
    """The known contents of an element: a value for all of it, and values of components that are newer."""

    __slots__ = ("access", "parts", "whole")

    def __init__(self, access: Access, whole: Value | None, parts: dict[Position, Value]) -> None:
        self.access = access
        self.whole = whole
        self.parts = parts

    def is_like(self, other: _Known) -> bool:
        """Whether both are the same values."""
        return self.whole is other.whole and self.parts == other.parts


class _Forwarder(Rewriter):
    """Copies the body of a task, and follows what its elements hold.

    Args:
        task: the task.
        section: its body's accesses.
        stale: the loads that are to be replaced where that is possible.
        defs: the op that computes each value.
    """

    def __init__(self, task: Task, section: Section, stale: set[Load], defs: Definitions) -> None:
        super().__init__()
        self.old = task
        self.section = section
        self.stale = stale
        self.defs = defs
        self.mems = {s.mem for s in stale}
        self.builder = Builder(task.span)
        self.known: dict[Place, _Known] = {}
        # For each element, one of the user's loads that asks for it: what is loaded early is loaded for it.
        self.asking: dict[Place, Load] = {}
        for s in statements(task.body):
            if isinstance(s, Load) and s in stale:
                self.asking.setdefault(self.place(s), s)
        self.loops: list[Value] = []
        self.certain: list[set[Place]] = []
        """The elements that each block around accesses in any case: their indices are in bounds."""
        self.stored: dict[tuple[Place, Position], Store] = {}
        """Stores of the block at hand that nothing has read yet."""
        self._owned: dict[tuple[Place, tuple[Truth, ...]], bool] = {}
        self.plain = Rewriter(self.env)
        """Copies what stays as it is: the bodies of calls with a rule of their own."""
        self.plain.scratch = self.scratch

    def task(self) -> Task:
        """Return the task with its body rewritten."""
        t = self.old
        bounds, axes = Rewriter().block(t.bounds), self.fresh_all(t.axes)
        return t.replace(axes=axes, bounds=bounds, body=self.block(t.body))

    # ---- places

    def place(self, s: Access) -> Place:
        return s.mem, element_of(s.index[: s.mem.rank], self.defs)

    def is_own(self, s: Access) -> bool:
        """Whether no other lane writes the element."""
        key = self.place(s), paths(self.old).get(s, NO_PATH).truths
        if key not in self._owned:
            writes = self.section.groups.get(s.mem, [])
            self._owned[key] = all(
                distances(self.old, s, g.first.stmt).same(self.old.axes) for g in writes
            )
        return self._owned[key]

    def is_followed(self, s: Access) -> bool:
        """Whether what the element holds is kept track of."""
        return s.mem in self.mems and self.is_own(s) and _position(s) is not None

    def may_meet(self, one: Access, other: Access) -> bool:
        """Whether two accesses may touch one element in the same iteration of all loops around."""
        if one.mem is not other.mem:
            return False
        pairs = zip(self.place(one)[1], self.place(other)[1], strict=True)
        if any(a is b and m != n for (a, m), (b, n) in pairs):
            return False
        # What is known of an element outlasts the branch that has shown it.
        same = (*self.old.axes, *self.loops)
        return not distances(self.old, one, other, same, guarded=False).never

    # ---- what elements hold

    def forget(self, write: Access) -> None:
        """Forget what a write may change, but the element that it certainly writes."""
        here = self.place(write)
        for place, known in list(self.known.items()):
            if place != here and self.may_meet(known.access, write):
                del self.known[place]

    def component(self, place: Place, position: Position) -> Value:
        """Emit a component of a known element, or the whole of it."""
        b, known = self.builder, self.known[place]
        if position:
            found = known.parts.get(position)
            if found is None and known.whole is not None:
                found = b.named("extract", known.whole, *position)
            if found is None:
                found = known.parts[position] = self.load(place, position)
            return found
        if known.parts:
            whole = known.whole
            if whole is None:
                parts = [self.component(place, p) for p in _positions(place[0])]
                whole = b.build(parts, place[0].dtype)
            else:
                for position, v in known.parts.items():
                    whole = b.named("insert", whole, v, *position)
            known.whole, known.parts = whole, {}
        assert known.whole is not None
        return known.whole

    def load(self, place: Place, position: Position = ()) -> Value:
        """Emit a load of an element from the user's load that asks for it."""
        b, (mem, element), asking = self.builder, place, self.asking[place]
        self._read(asking)
        index: list[Value] = []
        for like, (base, shift) in zip(asking.index, element, strict=False):
            if base is None:
                index.append(b.const(shift, like.type))
                continue
            at = b.cast(self.value(base), like.type.scalar)
            index.append(b.named("add", at, b.const(shift, at.type)) if shift else at)
        index += [b.const(k, i32) for k in position]
        out = Value(mem.dtype.scalar if position else mem.dtype, "")
        b.add(Load(out, mem, tuple(index), asking.span, asking.origin))
        return out

    # ---- statements

    def block(self, b: Block, *, ends: Callable[[], tuple[Value, ...]] = tuple) -> Block:
        """Copy a block; `ends` emits what it yields besides."""
        stored, self.stored = self.stored, {}
        self.certain.append({self.place(s) for s in _run_in_any_case(b)})
        with self.builder.block() as stmts:
            for s in b.stmts:
                self.builder.span = s.span
                self.visit(s)
            more = ends()
        self.certain.pop()
        self.stored = stored
        return Block(stmts, (*self.values(b.yields), *more))

    def visit(self, s: Stmt) -> None:
        """Emit the copy of a statement."""
        if isinstance(s, Load):
            self._load(s)
        elif isinstance(s, Store):
            self._store(s)
        elif isinstance(s, Atomic):
            self._atomic(s)
        elif isinstance(s, If):
            self._branch(s)
        elif isinstance(s, (For, While)):
            self._loop(s)
        else:
            if isinstance(s, CustomCall):
                self._forget_written(s)
            self.builder.add(self.plain.copy(s))

    def _load(self, s: Load) -> None:
        """Put what is known in the place of a load, or note what it loads."""
        place, position = self.place(s), _position(s)
        followed = s in self.stale and self.is_followed(s)
        if followed and self._holds(place, position):
            self.env[s.out] = self.component(place, position)  # type: ignore[arg-type]
            return
        self._read(s)
        self.builder.add(self.copy(s))
        if followed:
            self._note(s, self.env[s.out])

    def _holds(self, place: Place, position: Position | None) -> bool:
        """Whether it is known what an element (or a component) holds, or most of it."""
        known = self.known.get(place)
        if known is None:
            return False
        # A whole element of which one component is known is made of that and loads of the others.
        return known.whole is not None or not position or position in known.parts

    def _note(self, s: Access, v: Value) -> None:
        """Note what an access has shown or made the element to hold."""
        place, position = self.place(s), _position(s)
        if not position:
            self.known[place] = _Known(s, v, {})
        else:
            known = self.known.setdefault(place, _Known(s, None, {}))
            known.parts[position] = v

    def _read(self, s: Access) -> None:
        """Keep the stores that an access which stays may read."""
        for key in [k for k in self.stored if k[0][0] is s.mem]:
            del self.stored[key]

    def _store(self, s: Store) -> None:
        """Copy a store; the one before it to the same element goes, if nothing has read it."""
        self.forget(s)
        copy = self.copy(s)
        assert isinstance(copy, Store)
        place, position = self.place(s), _position(s)
        if self.is_followed(s):
            assert position is not None
            covered = [k for k in self.stored if k[0] == place and position in ((), k[1])]
            for key in covered:
                self.builder.stmts.remove(self.stored.pop(key))
            self.stored[place, position] = copy
            if place in self.asking:
                self._note(s, copy.value)
        elif place in self.known:
            del self.known[place]
        self.builder.add(copy)

    def _atomic(self, s: Atomic) -> None:
        """Copy an update; a sum with what is known is known as well."""
        self.forget(s)
        self._read(s)
        place, position = self.place(s), _position(s)
        if not (s.op == "add" and self.is_followed(s) and place in self.asking):
            self.known.pop(place, None)
            self.builder.add(self.copy(s))
            return
        if place not in self.known:
            self.known[place] = _Known(s, self.load(place), {})
        old = self.component(place, position)  # type: ignore[arg-type]
        index, value = self.values(s.index), self.value(s.value)
        if s.out is not None:
            self.env[s.out] = old
        self.builder.add(Atomic(None, s.op, s.mem, index, value, s.span, s.exclusive, s.origin))
        self._note(s, self.builder.named("add", old, value))

    def _forget_written(self, s: CustomCall) -> None:
        """Forget what a func with a rule of its own may write, and keep stores whose gradient it adds to."""
        for key in [k for k in self.stored if k[0][0] in s.targets]:
            del self.stored[key]
        for w in self._writes_inside(s):
            self.forget(w)
            self.known.pop(self.place(w), None)

    # ---- branches and loops

    def _branch(self, s: If) -> None:
        """Copy a branch; what an element holds after it is one of its results."""
        cond, writes = self.value(s.cond), self._writes_inside(s)
        for place in self._askable(s, writes):
            if place not in self.known and self.is_certain(place):
                self.known[place] = _Known(self.asking[place], self.load(place), {})
        before, sides = self.known, []
        for side in (s.then, s.orelse):
            self.known = _copied(before)
            sides.append((self.block(side), self.known))
        self.known = {}
        outs = self.fresh_all(s.outs)
        ends: list[tuple[Value, ...]] = [block.yields for block, _ in sides]
        for place, one in sides[0][1].items():
            other = sides[1][1].get(place)
            if other is None:
                continue
            was = before.get(place)
            if was is not None and one.is_like(was) and other.is_like(was):
                self.known[place] = was
                continue
            out = Value(place[0].dtype, place[0].name)
            self.known[place] = _Known(one.access, out, {})
            outs = (*outs, out)
            ends = [(*v, self._at_end(*side, place)) for v, side in zip(ends, sides, strict=True)]
        then, orelse = (Block(side[0].stmts, v) for side, v in zip(sides, ends, strict=True))
        self.builder.add(If(cond, then, orelse, outs, s.span))

    def _at_end(self, block: Block, known: dict[Place, _Known], place: Place) -> Value:
        """Emit at the end of a branch what an element holds there."""
        b, here = self.builder, (self.builder.stmts, self.known)
        b.stmts, self.known = block.stmts, known  # type: ignore[assignment]
        found = self.component(place, ())
        b.stmts, self.known = here
        return found

    def _loop(self, s: For | While) -> None:
        """Copy a loop; what it changes of an element that is known is one of the values it carries."""
        bounds = (self.value(s.lo), self.value(s.hi)) if isinstance(s, For) else None
        inits, writes = self.values(s.inits), self._writes_inside(s)
        starts, guarded = self._starts(s, writes, bounds)
        for w in writes:
            self.forget(w)
            self.known.pop(self.place(w), None)
        around = self.known
        params = self.fresh_all(s.params)
        held = {place: Value(v.type, place[0].name) for place, v in starts.items()}
        if isinstance(s, For):
            index = self.fresh(s.index)
            self.loops.append(s.index)

        def entered() -> dict[Place, _Known]:
            return _copied(around) | {p: _Known(self.asking[p], v, {}) for p, v in held.items()}

        if isinstance(s, While):
            self.known = entered()
            cond = self.block(s.cond)
        self.known = entered()
        body = self.block(s.body, ends=lambda: tuple(self._last(p) for p in held))
        left = {place: Value(v.type, place[0].name) for place, v in starts.items()}
        outs = (*self.fresh_all(s.outs), *left.values())
        params, inits = (*params, *held.values()), (*inits, *starts.values())
        if isinstance(s, While):
            self.builder.add(While(params, inits, cond, body, outs, s.span))
        else:
            assert bounds is not None
            self.loops.pop()
            lo, hi = bounds
            self.builder.add(For(index, lo, hi, params, inits, body, outs, s.span, s.reverse))
        self.known = around
        for place, v in left.items():
            # A loop without iterations has not even loaded it.
            if place not in guarded:
                self.known[place] = _Known(self.asking[place], v, {})

    def _last(self, place: Place) -> Value:
        """Emit what an element holds at the end of an iteration."""
        return self.component(place, ()) if place in self.known else self.load(place)

    def _starts(
        self, s: For | While, writes: list[Access], bounds: tuple[Value, Value] | None
    ) -> tuple[dict[Place, Value], set[Place]]:
        """Emit what elements hold before a loop that changes them, and nothing else that may be them.

        Also returns those that are loaded only if the loop has iterations.
        """
        starts: dict[Place, Value] = {}
        asked: list[Place] = []
        for place in self._askable(s, writes):
            access = self.asking[place]
            others = (w for w in writes if self.place(w) != place or not _is_simple(w))
            if any(self.may_meet(access, w) for w in others):
                continue
            if place in self.known:
                starts[place] = self.component(place, ())
            elif self.is_certain(place):
                starts[place] = self.load(place)
            else:
                asked.append(place)
        # The condition of a while loop is evaluated once more than its body, also where nothing was loaded.
        early = set() if isinstance(s, For) else {self.place(x) for x in _accesses(s.cond)}
        direct = {self.place(x) for x in _run_in_any_case(s.body)} - early
        tested = [place for place in asked if place in direct]
        if tested:
            starts |= zip(tested, self._loaded_if_run(s, bounds, tested), strict=True)
        return starts, set(tested)

    def _loaded_if_run(
        self, s: For | While, bounds: tuple[Value, Value] | None, places: list[Place]
    ) -> tuple[Value, ...]:
        """Emit loads of elements that each iteration accesses, if the loop has one."""
        b = self.builder
        if bounds is not None:
            runs = b.named("lt", *bounds)
        else:
            assert isinstance(s, While)
            self.env.update(zip(s.params, self.values(s.inits), strict=True))
            for x in s.cond.stmts:
                self.visit(x)
            runs = self.value(s.cond.yields[0])
        with b.block() as stmts:
            loaded = tuple(self.load(p) for p in places)
        nothing = tuple(zero(v.type) for v in loaded)
        outs = tuple(Value(v.type, v.hint) for v in loaded)
        b.add(If(runs, Block(stmts, loaded), Block([], nothing), outs, s.span))
        return outs

    def _writes_inside(self, s: Stmt) -> list[Access]:
        """Return the writes in a statement, and keep what it may read of the stores before it."""
        inside = [x for x in _accesses(Block([s])) if x.mem in self.mems]
        for x in inside:
            self._read(x)
        return [x for x in inside if not isinstance(x, Load)]

    def _askable(self, s: Stmt, writes: list[Access]) -> list[Place]:
        """Return the elements that a statement writes and some load asks for, if they are named before it."""
        inside = {v for x in statements(Block([s]), given=True) for v in (*outs(x), *entered(x))}
        found = dict.fromkeys(self.place(w) for w in writes if self.is_own(w))
        return [
            place
            for place in found
            if place in self.asking and all(base not in inside for base, _ in place[1])
        ]

    def is_certain(self, place: Place) -> bool:
        """Whether a block around accesses the element in any case, so that its indices are in bounds."""
        return any(place in found for found in self.certain)


def _copied(known: dict[Place, _Known]) -> dict[Place, _Known]:
    return {p: _Known(k.access, k.whole, dict(k.parts)) for p, k in known.items()}


def _position(s: Access) -> Position | None:
    """Return which component an access is to (empty: all of them); None: known at run time only."""
    index = s.index[s.mem.rank :]
    if not all(isinstance(k, Const) for k in index):
        return None
    return tuple([int(k.value) for k in index])  # type: ignore[attr-defined]


def _is_simple(write: Access) -> bool:
    """Whether the value after a write is a simple function of the one before."""
    plain = isinstance(write, Store) or (isinstance(write, Atomic) and write.op == "add")
    return plain and _position(write) is not None


def _accesses(block: Block) -> Iterator[Access]:
    """Yield all accesses in a block, those of given adjoints included."""
    for s in statements(block, given=True):
        if isinstance(s, (Load, Store, Atomic)):
            yield s


def _run_in_any_case(block: Block) -> Iterator[Access]:
    """Yield the accesses of a block that are made whenever it is entered."""
    for s in block.stmts:
        if isinstance(s, (Load, Store, Atomic)):
            yield s
        elif isinstance(s, While):
            yield from _run_in_any_case(s.cond)
        elif isinstance(s, For) and _certainly_runs(s):
            yield from _run_in_any_case(s.body)


def _certainly_runs(s: For) -> bool:
    return isinstance(s.lo, Const) and isinstance(s.hi, Const) and s.lo.value < s.hi.value


def _positions(mem: Mem) -> Iterator[Position]:
    """Yield the components of an element, in row order."""
    return itertools.product(*map(range, mem.dtype.shape))


def _number_values(task: Task) -> Task:
    """Return the task with one value for whole numbers that are computed twice from the same values.

    `u[q // n, q % n]`, written twice, is then the same element by its indices.
    """
    work = _Numbering()
    # The bounds are computed elsewhere: their values are none of the body's.
    bounds, axes = Rewriter().block(task.bounds), work.fresh_all(task.axes)
    return task.replace(axes=axes, bounds=bounds, body=work.block(task.body))


class _Numbering(Rewriter):
    """Copies statements; `known` has the values of the block at hand and of those around it.

    Only these are used again, so that a value is computed wherever it is needed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[object, ...], Value] = {}

    def block(self, b: Block) -> Block:
        outer, self.known = self.known, dict(self.known)
        made = super().block(b)
        self.known = outer
        return made

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not (isinstance(s, Let) and s.out.type.is_int):
            return super().stmt(s)
        # Constants are equal by their numbers, other values by being one.
        args = tuple((a.type, a.value) if isinstance(a, Const) else a for a in self.values(s.args))
        key = (s.op, s.out.type, *args)
        if key in self.known:
            self.env[s.out] = self.known[key]
            return []
        made = super().stmt(s)
        self.known[key] = self.value(s.out)
        return made
