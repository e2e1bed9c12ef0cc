"""A task whose chunks trail those of the task before it, on the CPU (a form of loop fusion).

The adjoint of a stencil gathers from a gradient and then clears it
(`passes/neighbours/scatter_to_gather.py`). Done after all of the gathering, the clearing fetches the whole
field once more; here each chunk clears what it has just read:

    rows      . . . . . . . | . . . . . . . | . . . . . .
    gathered  0 0 0 0 0 0 0 | 1 1 1 1 1 1 1 | 2 2 2 2 2 2      reading `behind` rows on either side, too
    cleared   0 0 0 0 0 0 b   b b 1 1 1 1 b   b b 2 2 2 2      b: by the later one of the two neighbours

Only the rows at a border are read by two chunks. A word for each border counts the chunks that are done with
it. Rows are indices along the first axis, so a chunk clears whole rows, whatever part of its first and last
row it has. Chunks are long enough that no row is near two borders.
"""

from __future__ import annotations

import math

from diffsim.backends.cpu.scheduling import unit_lanes
from diffsim.backends.llvm.lanes import bound, groups, size
from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module
from diffsim.ir.nodes import Const, Store, Task
from diffsim.ir.traversal import statements

_LARGE = 8 << 20
"""Bytes to clear that are fetched once more from memory; fewer are in a cache still."""


def rows_of_chunk(behind: int) -> int:
    """Return the fewest rows of a chunk such that no row is near two borders."""
    return 2 * behind + 1


def fewest_lanes(second: Task) -> int:
    """Return the lanes from which on it pays: without chunks and borders a task is one call."""
    sizes = [s.mem.dtype.scalar.bytes for s in statements(second.body) if isinstance(s, Store)]
    return _LARGE // max(sizes, default=1)


def is_small(first: Task, second: Task) -> bool:
    """Return whether constant bounds tell that there are fewer lanes."""
    ends = first.bounds.yields
    if not all(isinstance(v, Const) for v in ends):
        return False
    at = [int(v.value) for v in ends if isinstance(v, Const)]
    lanes = math.prod(max(0, b - a) for a, b in zip(at[::2], at[1::2], strict=True))
    return lanes < fewest_lanes(second)


def chunk(module: Module, k: int) -> list[str]:
    """Write the function of a chunk of task k with task k + 1 trailing it."""
    first, second = module.kernel.tasks[k], module.kernel.tasks[k + 1]
    assert second.lag is not None
    reach = second.lag
    lines = ["entry:"]
    body = FunctionLowering(module, lines)
    body.emit(f"call void @task{k}(ptr %params, i64 %begin, i64 %end, i64 %chunk, i64 %worker)")
    # 1. Where this chunk lies, in rows of the second task, whose box may begin elsewhere (`away`).
    words = body.load_task_slot(module.layout.borders[k + 1], "ptr", constant=False)
    chunks = body.assign(f"zext i32 {body.assign(f'load i32, ptr {words}')} to i64")
    low, high = (bound(body, k + 1, second, j) for j in range(2))
    away = body.assign(f"sub nsw i64 {bound(body, k, first, 0)}, {low}")
    row, width = _row(body, k, first), _row(body, k + 1, second)

    def row_at(lane: str) -> str:
        return body.assign(f"add nsw i64 {body.assign(f'udiv i64 {lane}, {row}')}, {away}")

    def clear(begin: str, end: str) -> None:
        a, b = (body.assign(f"mul nsw i64 {x}, {width}") for x in (begin, end))
        body.emit(f"call void @task{k + 1}(ptr %params, i64 {a}, i64 {b}, i64 %chunk, i64 %worker)")

    def shifted(a: str, by: int) -> str:
        return body.assign(f"add nsw i64 {a}, {by}")

    here, there = row_at("%begin"), row_at("%end")
    following = shifted("%chunk", 1)
    # 2. Clear the rows that only this chunk has read: all but `reach` on either side of an inner
    # border. The first and last chunk go to the ends of the second box.
    is_first = body.assign("icmp eq i64 %chunk, 0")
    is_last = body.assign(f"icmp eq i64 {following}, {chunks}")
    begin = body.assign(f"select i1 {is_first}, i64 0, i64 {shifted(here, reach + 1)}")
    rows = body.assign(f"sub nsw i64 {high}, {low}")
    clear(begin, body.assign(f"select i1 {is_last}, i64 {rows}, i64 {shifted(there, -reach)}"))
    # 3. The rows at a border are cleared by whichever neighbour finishes later. acq_rel: the later
    # chunk must see all reads of the earlier one as done before it overwrites (a write after read
    # dependence), and so releases its own.
    for at, border, is_end in ((here, "%chunk", is_first), (there, following, is_last)):
        inner, later, after = (body.new_label(w) for w in ("border", "later", "after"))
        body.emit(f"br i1 {is_end}, label %{after}, label %{inner}")
        body.start_block(inner)
        word = body.assign(f"getelementptr i32, ptr {words}, i64 {border}")
        done = body.assign(f"atomicrmw add ptr {word}, i32 1 acq_rel")
        both = body.assign(f"icmp eq i32 {done}, 1")
        body.emit(f"br i1 {both}, label %{later}, label %{after}")
        body.start_block(later)
        clear(shifted(at, -reach), shifted(at, reach + 1))
        body.jump(after)
        body.start_block(after)
    body.emit("ret void")
    lines.append("}")
    return lines


def _row(body: FunctionLowering, k: int, task: Task) -> str:
    """Emit the number of lanes in a row."""
    lanes = "1"
    for a in range(1, len(task.axes)):
        n = size(body, *(bound(body, k, task, 2 * a + j) for j in range(2)))
        if a == len(task.axes) - 1:
            n = groups(body, n, unit_lanes(body.module, task))
        lanes = n if lanes == "1" else body.assign(f"mul nsw i64 {lanes}, {n}")
    return lanes
