"""Additions that all threads of a warp make to the same element at the same time.

The gradient of what all lanes read in turn (the bodies of an N-body sum, the weights of a network) is such
a sum: its index follows from the counters of loops that are the same in all lanes. A warp folds the values
with shuffles, and one thread adds the result: 32 times fewer atomics, and none that wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.ir.nodes import LEAVES, Atomic, Block, For, If, Let, Load, Mem, Task, Value

_FOLDED = ("add", "min", "max")


def uniform_atomics(task: Task, written: set[Mem]) -> frozenset[Atomic]:
    """The atomics of a task that every lane runs the same number of times, with the same indices.

    Args:
        task: a parallel task.
        written: memories that it writes.
    """
    arrays = any(mem.kind == "array" for mem in written)

    def steady(mem: Mem) -> bool:
        return mem not in written and mem.kind != "scratch" and not (mem.kind == "array" and arrays)

    def walk(block: Block, same: set[Value]) -> Iterator[Atomic]:
        def known(*values: Value) -> bool:
            return all(isinstance(v, LEAVES) or v in same for v in values)

        for s in block.stmts:
            if isinstance(s, Let):
                if known(*s.args):
                    same.add(s.out)
            elif isinstance(s, Load):
                if known(*s.index) and steady(s.mem):
                    same.add(s.out)
            elif isinstance(s, Atomic):
                if s.out is None and not s.exclusive and known(*s.index):
                    yield s
            elif isinstance(s, For):
                if known(s.lo, s.hi):
                    yield from walk(s.body, same | {s.index})
            elif isinstance(s, If) and known(s.cond):
                yield from walk(s.then, set(same))
                yield from walk(s.orelse, set(same))

    found = walk(task.body, set())
    return frozenset(s for s in found if s.op in _FOLDED and not s.mem.dtype.is_bool)
