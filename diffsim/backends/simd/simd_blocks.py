"""The loop over blocks of lanes that run at once on the CPU (`simd.py`), with its reductions."""

from __future__ import annotations

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.lanes import bound, groups, identity, point, sizes_of
from diffsim.backends.llvm.loops import compare_no_accesses
from diffsim.backends.simd import prefetch
from diffsim.backends.simd.simd import SimdLowering
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Let, Load, Task
from diffsim.ir.types import ScalarType


def run_blocks(body: SimdLowering, k: int, task: Task, work: int) -> list[str]:
    """Emit the loop over blocks begin..end, `work` counted in each; return the partial results."""
    lanes = body.lanes
    lows = [bound(body, k, task, 2 * a) for a in range(len(task.axes))]
    sizes = sizes_of(body, k, task, lows)
    per_row = groups(body, sizes[-1], lanes)
    before = body.label
    head, inside, after = (body.new_label(w) for w in ("blocks", "block", "end"))
    body.jump(head)
    body.start_block(head)
    block = body.fresh()
    at = len(body.lines)
    carried = [body.fresh() for _ in task.reductions]
    more = body.assign(f"icmp slt i64 {block}, %end")
    body.emit(f"br i1 {more}, label %{inside}, label %{after}")
    body.start_block(inside)
    rest, column, around = "0", block, {}
    if len(task.axes) > 1:
        rest = body.assign(f"udiv i64 {block}, {per_row}")
        column = body.assign(f"urem i64 {block}, {per_row}")
        around = point(body, task.axes[:-1], lows, sizes, rest)
    first = body.assign(f"mul nsw i64 {column}, {lanes}")
    base = first if lows[-1] == "0" else body.assign(f"add nsw i64 {first}, {lows[-1]}")
    body.int64_names.append(around)
    for axis in task.axes[:-1]:
        if axis.type.scalar.bits == 64:
            body.names[axis] = around[axis]
    extent = sizes[-1]
    left = ""
    # Rows that are a multiple of W need no mask, and LLVM gets plain loads and stores.
    if not extent.isdigit() or int(extent) % lanes:
        left = body.assign(f"sub nsw i64 {extent}, {first}")
    if left and (task.neighbours or _only_yields(task)):
        prefetch.open_block(body, first, extent, lows[-1])
        nexts = _whole_or_part(body, task, base, left, carried)
    else:
        body.mask = first_lanes(body, left) if left else ""
        if not left:
            prefetch.open_block(body, first, extent, lows[-1])
        nexts = _one_block(body, task, base, carried)
    body.int64_names.pop()
    if work:
        safepoints.count(body, work)
    compare_no_accesses(body, at, in_block=False)
    advanced = body.assign(f"add nsw i64 {block}, 1")
    latch = body.label
    body.jump(head)
    phis = [f"  {block} = phi i64 [ %begin, %{before} ], [ {advanced}, %{latch} ]"]
    for (op, _, _), v, c, new in zip(
        task.reductions, task.body.yields, carried, nexts, strict=True
    ):
        t = v.type.scalar
        nothing = body.splat(t.llvm, identity(op, t), hoist=True)
        phis.append(
            f"  {c} = phi {body.vector(t.llvm)} [ {nothing}, %{before} ], [ {new}, %{latch} ]"
        )
    body.lines[at:at] = phis
    body.start_block(after)
    body.mask = ""
    return [
        body.reduce(op, v.type.scalar, c)
        for (op, _, _), v, c in zip(task.reductions, task.body.yields, carried, strict=True)
    ]


def _one_block(body: SimdLowering, task: Task, base: str, carried: list[str]) -> list[str]:
    """Emit up to W lanes from `base` on; return the partial results after them."""
    body.indices.append({task.axes[-1]: Index(base, 1)})
    body.block(task.body)
    nexts = []
    for (op, _, _), v, c in zip(task.reductions, task.body.yields, carried, strict=True):
        t = v.type.scalar
        with body.vector_ops():
            extra = body.name(v)
            if body.mask:
                # Inactive lanes contribute the identity of the reduction.
                nothing = body.splat(t.llvm, identity(op, t), hoist=True)
                extra = body.choose(body.mask, v, extra, nothing)
            nexts.append(_accumulated(body, op, t, c, extra))
    body.indices.pop()
    return nexts


def _whole_or_part(
    body: SimdLowering, task: Task, base: str, left: str, carried: list[str]
) -> list[str]:
    """Emit a block of lanes twice: without a mask for a whole one.

    Loads under a mask are half as fast as plain ones where memory is all that a lane waits for, and in
    branches lanes access neighbours together in whole blocks alone. (A test for each group would keep them in
    the loops they are in.)
    """
    whole, part, joined = (body.new_label(w) for w in ("whole", "part", "joined"))
    full = body.assign(f"icmp sge i64 {left}, {body.lanes}")
    body.emit(f"br i1 {full}, label %{whole}, label %{part}")
    sides = []
    around = body.names
    for label in (whole, part):
        body.start_block(label)
        body.mask = first_lanes(body, left) if label == part else ""
        body.fewer_lanes = (body.mask, left) if label == part else ("", "")
        # Values that one side computes are unknown on the other.
        body.names = dict(around)
        body.lane_names.clear()
        sides.append((_one_block(body, task, base, carried), body.label))
        body.jump(joined)
    body.start_block(joined)
    body.names = around
    body.lane_names.clear()
    body.fewer_lanes = "", ""
    (xs, a), (ys, b) = sides
    return [
        body.assign(f"phi {body.vector(v.type.scalar.llvm)} [ {x}, %{a} ], [ {y}, %{b} ]")
        for v, x, y in zip(task.body.yields, xs, ys, strict=True)
    ]


def _only_yields(task: Task) -> bool:
    """Whether lanes have no effect but their partial results."""
    return all(isinstance(s, (Let, Load)) for s in task.body.stmts)


def first_lanes(body: SimdValues, count: str, *, or_none: bool = False) -> str:
    """Emit the mask of the first `count` lanes, at least one; there may be more than lanes.

    `or_none`: of fewer than 64 lanes none is allowed, too. Before AVX-512 a mask is a vector, which LLVM
    would make of a word bit by bit; so the numbers of the lanes are compared.
    """
    lanes = body.lanes
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    most = body.assign(f"call i64 @llvm.smin.i64(i64 {count}, i64 {lanes})")
    if body.jit.vector_bits < 512:
        few = body.assign(f"trunc i64 {most} to i32")
        numbers = ", ".join(f"i32 {k}" for k in range(lanes))
        return body.assign(f"icmp sgt {body.vector('i32')} {body.splat('i32', few)}, <{numbers}>")
    if or_none:
        # In 64 bits, as a shift by all lanes would be poison in a word of theirs.
        bits = body.assign(f"xor i64 {body.assign(f'shl i64 -1, {most}')}, -1")
    else:
        # A shift by 64 would be poison (LLVM LangRef), hence "at least one".
        bits = body.assign(f"lshr i64 -1, {body.assign(f'sub nsw i64 64, {most}')}")
    if lanes < 64:
        bits = body.assign(f"trunc i64 {bits} to i{lanes}")
    return body.assign(f"bitcast i{lanes} {bits} to {body.vector('i1')}")


def _accumulated(body: SimdLowering, op: str, t: ScalarType, carried: str, extra: str) -> str:
    """Combine the carried partial results with one more vector.

    A minimum or maximum begins with a number, so it never is NaN, and NaN does not compare: this is one
    instruction, where LLVM's own has to ask for NaN on both sides.
    """
    if op not in ("min", "max") or not t.is_float:
        return body.combine(op, t, carried, extra)
    kind, word = body.vector(t.llvm), "olt" if op == "min" else "ogt"
    better = body.assign(f"fcmp {word} {kind} {extra}, {carried}")
    return body.assign(f"select {body.vector('i1')} {better}, {kind} {extra}, {kind} {carried}")
