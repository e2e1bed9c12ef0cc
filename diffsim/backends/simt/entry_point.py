"""One GPU launch, as data: which function, of how many threads, for how many lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_DIM = 256


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One GPU launch of a function whose parameter is the block (or, `not layout.by_value`, its address).

    A "parallel" entry is right with any number of blocks. Where `fills` is set, as many as the GPU runs
    at the same time are best (fewer for few lanes), because each of them leaves something to be added up
    or has memory of its own. Otherwise the best is one for each `block_dim * per_thread` lanes.

    Attributes:
        name: the function's name.
        kind: "serial" runs on one thread, "combine" on one block, "parallel" on as many as there are.
        task: number of the (first) task of the kernel that it runs.
        lanes: number of lanes if it is a constant; None: the threads find out. Of several tasks: the
            number of threads that they take.
        block_dim: threads in a block: exactly so many.
        per_thread: lanes that a thread runs at the same time.
        blocks: the most blocks there may be; None: any number.
        fills: whether a grid that fills the GPU once is best.
    """

    name: str
    kind: Literal["serial", "parallel", "combine"]
    task: int
    lanes: int | None = None
    block_dim: int = BLOCK_DIM
    per_thread: int = 1
    blocks: int | None = None
    fills: bool = False
