"""The lanes of a parallel task, as LLVM text: what the entry points of all backends share.

The lanes are the points of the box that a task's bounds span, numbered 0, 1, ... in row-major order. Here
is how many there are, which point a number denotes, and how the values they yield are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import number
from diffsim.ir.nodes import Const, Task, Value
from diffsim.ir.simple_tasks import box_sizes
from diffsim.ir.types import ScalarType


def bound(body: FunctionLowering, k: int, task: Task, j: int) -> str:
    """Return bound j of task k (lo and hi of the first axis, then of the next, ...), as the lanes see it.

    A constant is folded into the text, any other was stored by `store_bounds` before the task began.
    """
    v, slot = task.bounds.yields[j], body.module.layout.bounds.get((k, j))
    # Constant bounds let LLVM know trip counts and drop remainder loops.
    if isinstance(v, Const) and slot is None:
        return str(int(v.value))
    assert slot is not None
    # A slot that several tasks share changes in between, which LLVM sees where it inlines their function.
    return body.load_task_slot(slot, "i64", constant=k not in body.module.sharing)


def size(body: FunctionLowering, lo: str, hi: str) -> str:
    """Emit the number of points of lo..hi; not positive where it is empty."""
    if _is_number(lo) and _is_number(hi):
        # Constants are clamped here, run-time sizes by the caller.
        return str(max(0, int(hi) - int(lo)))
    return hi if lo == "0" else body.assign(f"sub nsw i64 {hi}, {lo}")


def sizes_of(body: FunctionLowering, k: int, task: Task, lows: Sequence[str]) -> list[str]:
    """Return the number of points along each axis of task k, whose first ones these are."""
    found = []
    for a, lo in enumerate(lows):
        same = body.module.same_sizes.get((k, a))
        hi = str(same) if same is not None else bound(body, k, task, 2 * a + 1)
        found.append(hi if same is not None else size(body, lo, hi))
    return found


def groups(body: FunctionLowering, extent: str, width: int) -> str:
    """Emit the number of groups of at most `together` neighbours in a row of `extent` lanes."""
    if width == 1:
        return extent
    if extent.isdigit():
        return str(-(-int(extent) // width))
    return body.assign(f"udiv i64 {body.assign(f'add nsw i64 {extent}, {width - 1}')}, {width}")


def store_bounds(body: FunctionLowering, k: int, task: Task, width: int = 1) -> str:
    """Evaluate the bounds of task k into their slots; return the number of lanes.

    `together`: lanes along the last axis that count as one.
    """
    module = body.module
    body.int64_names.append({})
    for s in task.bounds.stmts:
        body.stmt(s)
    lanes = "1"
    for a in range(len(task.axes)):
        lo, hi = (body.index64(task.bounds.yields[2 * a + j]) for j in range(2))
        for j, v in ((2 * a, lo), (2 * a + 1, hi)):
            if (k, j) in module.layout.bounds:
                body.store_task_slot(module.layout.bounds[k, j], "i64", v)
        n = size(body, lo, hi)
        if not n.isdigit():
            # Each axis is clamped to 0 before the product: two empty axes of negative extent would
            # otherwise give a positive number of lanes.
            module.declare("@llvm.smax.i64", "declare i64 @llvm.smax.i64(i64, i64)")
            n = body.assign(f"call i64 @llvm.smax.i64(i64 {n}, i64 0)")
        # Blocks of lanes are cut from rows, so that the lanes of one are neighbours in memory.
        if a == len(task.axes) - 1:
            n = groups(body, n, width)
        lanes = _times(body, lanes, n)
    body.int64_names.pop()
    return lanes


def count(task: Task) -> int | None:
    """Return the number of lanes, where the bounds are constants."""
    sizes = box_sizes(task)
    return None if sizes is None else math.prod(sizes)


def point(
    body: FunctionLowering,
    axes: Sequence[Value],
    lows: Sequence[str],
    sizes: Sequence[str],
    flat: str,
    *,
    narrow: bool = False,
) -> dict[Value, str]:
    """Emit the values of the axes, in 64 bits, at the flat-th point of their box (row-major).

    `narrow`: divide in 32 bits, which GPUs do several times faster; all numbers must fit.
    """
    wide: dict[Value, str] = {}
    rest = flat
    if narrow:
        short = body.assign(f"trunc i64 {flat} to i32")
        for a in range(len(axes) - 1, -1, -1):
            at = short
            if a:
                at = body.assign(f"urem i32 {short}, {sizes[a]}")
                short = body.assign(f"udiv i32 {short}, {sizes[a]}")
            at = body.assign(f"zext i32 {at} to i64")
            wide[axes[a]] = at if lows[a] == "0" else body.assign(f"add nsw i64 {at}, {lows[a]}")
        return wide
    # Mixed-radix digits, the last axis first; the outermost needs no division.
    for a in range(len(axes) - 1, -1, -1):
        at = rest
        if a:
            at = body.assign(f"urem i64 {rest}, {sizes[a]}")
            rest = body.assign(f"udiv i64 {rest}, {sizes[a]}")
        wide[axes[a]] = at if lows[a] == "0" else body.assign(f"add nsw i64 {at}, {lows[a]}")
    return wide


def enter_lane(body: FunctionLowering, task: Task, wide: dict[Value, str]) -> None:
    """Bind the axes for what is lowered next; the caller pops `body.int64_names` afterwards."""
    body.int64_names.append(wide)
    for axis in task.axes:
        # A 64-bit axis is its own index; a narrow one is truncated where its value is used.
        if axis.type.scalar.bits == 64:
            body.names[axis] = wide[axis]


def accumulate(body: FunctionLowering, op: str, v: Value, carried: str) -> str:
    """Emit a partial result combined with one lane's value; the order of sums over lanes is free."""
    t = v.type.scalar
    if op == "add" and t.is_float:
        flags = body.module.flags
        # LLVM vectorizes a float reduction only if it may reassociate it. nsz lets it begin the
        # partial sums with +0.0.
        if "reassoc" not in flags:
            flags += " reassoc nsz"
        return body.assign(f"fadd {flags} {t.llvm} {carried}, {body.name(v)}")
    return body.combine(op, t, carried, body.name(v))


def identity(op: str, t: ScalarType) -> str:
    """Return the identity element of a reduction, as LLVM text."""
    if op == "add":
        return "0x0000000000000000" if t.is_float else "0"
    if t.is_float:
        # Infinity, not the largest number: a minimum over lanes that are all infinite is infinite.
        return number(Const(t, float("inf") if op == "min" else float("-inf")))
    # Integers have no infinities: the ends of the range are neutral for min and max.
    if t.kind == "u":
        least, most = 0, 2**t.bits - 1
    else:
        least, most = -(2 ** (t.bits - 1)), 2 ** (t.bits - 1) - 1
    return str(most if op == "min" else least)


def _times(body: FunctionLowering, a: str, b: str) -> str:
    if _is_number(a) and _is_number(b):
        return str(int(a) * int(b))
    if "1" in (a, b):
        return b if a == "1" else a
    return body.assign(f"mul nsw i64 {a}, {b}")


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()
