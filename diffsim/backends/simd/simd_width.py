"""How many lanes of a task run at once on the CPU: what the registers have room for."""

from __future__ import annotations

from collections.abc import Container

from diffsim.backends.native.jit import Jit
from diffsim.backends.simd.lookups import only_lookups
from diffsim.backends.simd.neighbours import MOST_LANES, WIDEST_STEP
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    For,
    If,
    Let,
    Load,
    Task,
    Value,
    While,
)
from diffsim.ir.op import Math
from diffsim.ir.schedules import Neighbours
from diffsim.ir.traversal import blocks, free_values, outs, statements, uses

_LONG = 100
"""Statements of a lane."""
_SPILLS = 4
"""Vectors for each of 16 registers in loops with branches: wider blocks ask less often which lanes work."""
_ROW = 8
"""Accesses of a long row."""
_IN_FLIGHT = 8
"""Operations that a processor has under way: two begin in a cycle, and take four."""
_READ_AGAIN = 4
"""Values that were loaded before a loop and take no registers in it: so few are operands in memory there."""
_FUNCTION = 20
"""Operations that a function such as exp takes."""
_SUM = 10
"""Operations that a sum over the lanes of a block takes."""
_FEW_ALONE = 6
"""Accesses of single lanes in a task that runs as many lanes as may make them."""
_MOST_ALONE = 48
"""More of them take LLVM longer than they are worth."""
_MANY = 16
"""Iterations of a loop, where nobody knows."""
_MOST_SPILLED = 4
"""How many times the registers that there are lanes may need, where they wait for chains of operations."""


def choose_simd_width(task: Task, jit: Jit) -> int:
    """Return W: as many registers per value, up to 4, as the register pressure of the busiest loop allows.

    Several registers hide the latency of an operation: iterations that depend on each other would wait. Where
    they do, spilling costs less.
    """
    assert task.simd is not None
    bits = 32
    for s in statements(task.body):
        for v in outs(s):
            if v.type.scalar.is_float:
                bits = max(bits, v.type.scalar.bits)
    lanes = jit.vector_bits // bits
    spills = 1 if jit.vector_registers >= 32 else _SPILLS
    loaded = {s.out for s in statements(task.body) if isinstance(s, Load)}
    fit = jit.vector_registers // _register_pressure(task.body, task.simd, loaded, spills)
    looks_up = bits == 32 and only_lookups(task, jit)
    if looks_up:
        fit = 4
    elif _has_work_enough(task):
        fit = 1
    elif not task.by_lane and all(g.step is not None for g in task.neighbours):
        pressure = _register_pressure(task.body, task.simd, loaded, 1)
        room = _MOST_SPILLED * jit.vector_registers // pressure
        fit = max(fit, min(room, _chains_at_once(task.body, task.simd)))
    lanes *= 4 if fit >= 4 else 2 if fit >= 2 else 1
    if lanes > MOST_LANES and not looks_up:
        lanes = _fewer_lanes(task, lanes)
    extent = _extent(task)
    # A short constant axis: no more lanes than it has, rounded up to a power of two; idle ones
    # would compute for nothing.
    while extent is not None and lanes > 1 and lanes // 2 >= extent:
        lanes //= 2
    return lanes


def _fewer_lanes(task: Task, lanes: int) -> int:
    """Return how many lanes run at once where loops go along rows, one for each lane.

    More than `MOST_LANES` would gather and scatter, which takes two to three times as long. The accesses take
    most of the time however many lanes there are, and LLVM's time for them grows as their square.
    """
    innermost = [
        s
        for s in statements(task.body)
        if isinstance(s, (For, While)) and s not in task.by_lane and not _has_loop(s.body)
    ]
    inside = {x for s in innermost for x in statements(s.body)}
    inside.difference_update(*(p.loads for p in task.packed))
    alone = sum(s in inside for g in task.neighbours if _is_apart(g) for s in g.accesses)
    if not 0 < alone <= _MOST_ALONE:
        return lanes
    return MOST_LANES if alone <= _FEW_ALONE else MOST_LANES // 2


def _is_apart(group: Neighbours) -> bool:
    """Whether lanes' elements are far apart by a constant, or are neighbours that lie anywhere."""
    if group.step is None:
        return len(group.accesses) > 1
    return abs(group.step) > WIDEST_STEP


def _chains_at_once(block: Block, wide: frozenset[Value]) -> int:
    """Return how many registers for each value keep the processor busy in all innermost loops of a block.

    What a loop carries is a chain of operations, each of which waits for the one before. Meanwhile the others
    of the iteration can run, and those of other lanes.
    """
    found = []
    for s in statements(block):
        if isinstance(s, (For, While)) and not _has_loop(s.body):
            work = [x for x in statements(s.body) if not wide.isdisjoint((*uses(x), *outs(x)))]
            longest = _longest_chain(s)
            chains = -(-_IN_FLIGHT * longest // max(len(work), 1))
            found.append(max(chains, _share(s.body, wide)))
    return min(found, default=1)


def _share(body: Block, wide: frozenset[Value]) -> int:
    """Return how many registers for each value make what all lanes share a third of the work in a loop."""
    shared = own = 0
    for x in statements(body):
        cost = _FUNCTION if isinstance(x, Let) and isinstance(x.op.lowering, Math) else 1
        if isinstance(x, Atomic) and wide.isdisjoint(x.index):
            shared += _SUM
        elif wide.isdisjoint((*uses(x), *outs(x))):
            shared += cost
        else:
            own += cost
    return 2 * shared // max(own, 1)


def _longest_chain(s: For | While) -> int:
    """Return how many operations are between what a loop carries and what it yields, at most."""
    depth = dict.fromkeys(s.params, 0)
    _follow(s.body, depth, 0)
    return max((depth.get(v, 0) for v in s.body.yields), default=0)


def _follow(block: Block, depth: dict[Value, int], least: int) -> None:
    """Note how many operations are before each value that depends on one noted, or on such a branch."""
    for x in block.stmts:
        before = [depth[v] for v in uses(x) if v in depth]
        if isinstance(x, If):
            # Its results wait for the condition, and for both sides.
            after = max([least, *before])
            for side in (x.then, x.orelse):
                _follow(side, depth, after)
            for k, out in enumerate(x.outs):
                sides = [depth.get(side.yields[k], 0) for side in (x.then, x.orelse)]
                depth[out] = max([after, *sides]) + 1
        elif before and isinstance(x, Let):
            depth[x.out] = max(before) + 1


def _has_work_enough(task: Task) -> bool:
    """Whether one register for each value will do: accesses of single lanes depend on nothing.

    In long lanes the registers that shuffles need would be missing, too.
    """
    if _has_lists(task) or any(g.step is None and _is_row(g) for g in task.neighbours):
        return True
    if all(g.step == 1 for g in task.neighbours) or _has_loop(task.body):
        return False
    anywhere = any(group.step is None for group in task.neighbours)
    return anywhere or sum(1 for _ in statements(task.body)) > _LONG


def _is_row(group: Neighbours) -> bool:
    """Whether a group is a long row of neighbours, whose shuffles need the registers."""
    return len(group.accesses) >= _ROW and len({s[:-1] for s in group.shifts}) == 1


def _has_lists(task: Task) -> bool:
    """Whether lanes go through lists, of different lengths, of elements anywhere: more would wait longer."""
    assert task.simd is not None
    anywhere = {s for g in task.neighbours if g.step is None for s in g.accesses}
    return any(
        isinstance(s, For)
        and not task.simd.isdisjoint((s.lo, s.hi))
        and not anywhere.isdisjoint(s.body.stmts)
        for s in statements(task.body)
    )


def _register_pressure(
    block: Block, wide: frozenset[Value], loaded: Container[Value], spills: int
) -> int:
    """Return the most vectors live at once in any innermost loop of a block, or in a block without loops.

    Spills there cost the most: what is live across a loop without being used in it may be spilled around it.
    A loop around loops that are shorter than the rest of its body counts like an innermost one. A loop with
    branches may have `spills` times as many live.
    """
    most = 1
    if not any(blocks(s) for s in block.stmts):
        most = _most_live(block, set(), wide)
    for s in block.stmts:
        most = max(
            [
                most,
                *(_register_pressure(b, wide, loaded, spills) for b in blocks(s) if _has_loop(b)),
            ]
        )
        if isinstance(s, (For, While)) and _is_mostly_own(s.body):
            used = [v for v in free_values(s.body) if v in wide]
            few = sum(v in loaded for v in used) <= _READ_AGAIN
            around = {v for v in used if not (few and v in loaded)}.union(s.params)
            branches = any(blocks(x) for x in s.body.stmts)
            most = max(most, _most_live(s.body, around, wide) // (spills if branches else 1))
    return most


def _is_mostly_own(body: Block) -> bool:
    """Whether a loop's body spends less time in loops inside than outside them."""
    own = inside = 0
    rest = list(body.stmts)
    while rest:
        s = rest.pop()
        own += 1
        if isinstance(s, (For, While)):
            inside += _iterations(s) * sum(1 for b in blocks(s) for _ in statements(b))
        else:
            rest += [x for b in blocks(s) for x in b.stmts]
    return own >= inside


def _iterations(s: For | While) -> int:
    """Return how many iterations a loop has; a guess where it is not constant."""
    if isinstance(s, For) and isinstance(s.lo, Const) and isinstance(s.hi, Const):
        return max(0, int(s.hi.value) - int(s.lo.value))
    return _MANY


def _has_loop(block: Block) -> bool:
    return any(isinstance(s, (For, While)) for s in statements(block))


def _most_live(block: Block, around: set[Value], wide: frozenset[Value]) -> int:
    """Return the most vectors live at once in a block, `around` being live throughout it.

    A forward scan with the last use of each value: linear in the number of operands.
    """
    last: dict[Value, int] = {}
    read = [(*uses(x), *(v for b in blocks(x) for v in free_values(b))) for x in block.stmts]
    for k, values in enumerate(read):
        last.update(dict.fromkeys(values, k))
    live = set(around)
    last.update(dict.fromkeys((*block.yields, *live), len(block.stmts)))
    most = 1
    for k, x in enumerate(block.stmts):
        within = (_most_live(b, live, wide) for b in blocks(x))
        live.update(v for v in outs(x) if v in wide)
        most = max(most, len(live), *within)
        live -= {v for v in read[k] if last[v] == k}
    return most


def _extent(task: Task) -> int | None:
    """Return the length of the last axis, where it is a constant."""
    lo, hi = task.bounds.yields[-2:]
    if isinstance(lo, Const) and isinstance(hi, Const):
        return max(0, int(hi.value) - int(lo.value))
    return None
