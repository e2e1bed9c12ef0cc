"""Warp aggregation: updates that all threads of a warp make to the same element at the same time.

The gradient of what all lanes read one after the other (the bodies of an N-body sum, the weights of a
network) is such a sum: its index follows from the counters of loops that are the same in all lanes. A warp
folds the values with shuffles, and one thread adds the result: 32 times fewer atomics, and none that wait
for each other.
"""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Task

_FOLDED = ("add", "min", "max")


def folded_atomics(task: Task) -> frozenset[Atomic]:
    """Return the atomics of a task whose operands a warp combines before one thread updates memory."""
    # Uniform index and control flow are required: a shuffle is undefined unless all threads of its
    # mask take part. Nobody may need the old value, as a lane's own is never formed.
    if task.uniform is None:
        return frozenset()
    return frozenset(
        [
            s
            for s in task.uniform.atomics
            if s.op in _FOLDED and s.out is None and not s.exclusive and not s.mem.dtype.is_bool
        ]
    )
