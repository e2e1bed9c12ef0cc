"""Packed copies on the CPU: memories in another order, that the lanes of a task load from as vectors.

`passes/vectors/packing.py` finds them. The launching thread makes them before the task's lanes start, in
its arena; a slot of the parameter block says where each is.
"""

from __future__ import annotations

from diffsim.backends.cpu.chunks import alloc
from diffsim.backends.cpu.target import ARENA
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.llvm.parameter_block import POOL
from diffsim.backends.llvm.private_copy import PrivateCopy, prefix_index
from diffsim.backends.simd.simd_values import SimdValues
from diffsim.ir.layout import packed_strides, strides_of
from diffsim.ir.nodes import Task
from diffsim.ir.schedules import Packed, scalars_within
from diffsim.ir.types import size_of


def make(body: FunctionLowering, k: int, task: Task) -> str:
    """Emit the copies of a task; return the statement that gives their memory back ("": there are none)."""
    if not task.packed:
        return ""
    for name, text in ARENA.items():
        body.module.declare(name, text)
    pool = body.load_slot(POOL, "ptr")
    mark = body.assign(f"call i64 @ds_arena_mark(ptr {pool}, i64 0)")
    for j, p in enumerate(task.packed):
        bytes_ = scalars_within(p.mem, len(p.prefix)) * p.mem.dtype.scalar.bytes
        copy = alloc(body, pool, str(bytes_))
        body.store_task_slot(body.module.layout.packed[k, j], "ptr", copy)
        _copy(body, p, copy)
    return f"call void @ds_arena_release(ptr {pool}, i64 0, i64 {mark})"


def find(body: SimdValues, k: int, task: Task) -> None:
    """Emit where the copies of a task are, at the entry of its function."""
    for j, p in enumerate(task.packed):
        place = body.load_task_slot(body.module.layout.packed[k, j], "ptr", constant=False)
        *strides, component = _strides(p)
        made = PrivateCopy(place, len(p.prefix), strides, component)
        body.packed.update(dict.fromkeys(p.loads, made))


def _axes(p: Packed) -> list[tuple[int, int]]:
    """Return extent and stride in memory of each axis of the copied part, the components' last."""
    mem = p.mem
    assert mem.shape is not None
    axes = list(zip(mem.shape, strides_of(mem), strict=True))[len(p.prefix) :]
    return [*axes, (size_of(mem.dtype), mem.component_stride)]


def _order(p: Packed) -> list[int]:
    """Return the axes of the copied part from slowest to fastest: as in memory, but one of them last."""
    last, axes = p.axis - len(p.prefix), _axes(p)
    order = sorted(range(len(axes)), key=lambda a: -axes[a][1])
    order.remove(last)
    return [*order, last]


def _strides(p: Packed) -> tuple[int, ...]:
    return packed_strides([extent for extent, _ in _axes(p)], order=_order(p))


def _copy(body: FunctionLowering, p: Packed, copy: str) -> None:
    """Emit the loops that fill a copy: in the order of the memory, which is read in long lines."""
    axes, strides = _axes(p), _strides(p)
    nest = [(*axes[a], strides[a]) for a in (_order(p)[-1], *_order(p)[:-1])]
    t = memory_type(p.mem.dtype.scalar)

    def run(loops: list[tuple[int, int, int]], source: str, target: str) -> None:
        if not loops:
            raw = body.assign(f"load {t}, ptr {source}{body.module.alias(p.mem)}")
            # No alias scope: the lanes load what is stored here by the name of the memory.
            body.emit(f"store {t} {raw}, ptr {target}")
            return
        extent, there, here = loops[0]

        def iteration(i: str) -> None:
            places = []
            for base, stride in ((source, there), (target, here)):
                at = i if stride == 1 else body.assign(f"mul nsw i64 {i}, {stride}")
                places.append(body.assign(f"getelementptr inbounds {t}, ptr {base}, i64 {at}"))
            run(loops[1:], *places)

        body.count_up("0", str(extent), iteration)

    run([loop for loop in nest if loop[0] > 1], _first(body, p), copy)


def _first(body: FunctionLowering, p: Packed) -> str:
    """Emit the address of the first scalar of the copied part."""
    assert p.mem.shape is not None
    first, t = body.pointers[p.mem], memory_type(p.mem.dtype.scalar)
    strides = body.element_strides(p.mem)
    for (base, shift), extent, stride in zip(p.prefix, p.mem.shape, strides, strict=False):
        # Where there is no such element, a test stands around the loads, and none of them uses the copy.
        if base is None:
            index = str(shift if 0 <= shift < extent else 0)
        else:
            index = prefix_index(body, base, shift)
            inside = body.assign(f"icmp ult i64 {index}, {extent}")
            index = body.assign(f"select i1 {inside}, i64 {index}, i64 0")
        offset = body.assign(f"mul nsw i64 {index}, {stride}")
        first = body.assign(f"getelementptr inbounds {t}, ptr {first}, i64 {offset}")
    return first
