"""Results of analyses, computed once for each kernel or task.

Kernels and tasks are immutable, so what an analysis finds out about one holds as long as it exists. The
result is kept with the node (`memo`) and goes with it: there is no table to clear, and passes and the
runtime, which ask the same questions of the same kernel, share the answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from diffsim.ir.nodes import Kernel, Task

N = TypeVar("N", Kernel, Task)
T = TypeVar("T")


def once(analysis: Callable[[N], T]) -> Callable[[N], T]:
    """Return the analysis with its result kept on the node that it was asked about.

    Two threads that ask at the same time may both compute it; they find the same.
    """

    @functools.wraps(analysis)
    def cached(node: N) -> T:
        memo = node.memo
        # The function itself is the key: it is unique, and lives as long as the module.
        if analysis not in memo:
            memo[analysis] = analysis(node)
        result: T = memo[analysis]
        return result

    return cached
