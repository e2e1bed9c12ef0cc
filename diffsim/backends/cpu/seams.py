"""A task whose chunks share elements with their neighbours alone, without atomics, on the CPU.

Lanes that update one element are at most `Task.reach` rows apart (`passes/transforms/seams.py`). So chunks
are cut between rows, and each leaves its first rows to a seam:

    rows     0 0 0 0 0 | s s 1 1 1 | s s 2 2 2 |     0, 1, 2: chunks; s: seams, here with a reach of 2

No two chunks meet, nor do two seams. A seam runs when the chunks on both sides are done, on the thread of
the later one: a word for each border counts them. All updates are plain. The order of the updates of an
element follows from the chunks alone.
"""

from __future__ import annotations

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import Module

# Words of a launch: the number of chunks, the lanes of a row, and one counter for each border from here on,
# but for border 0, which is none.
_CHUNKS = 0
_ROW = 1
_FIRST = 1


def reach(task_reach: int, width: int, axes: int) -> int:
    """Return the reach in units that chunks are made of: rows, or, of one axis, blocks of `width` lanes."""
    return task_reach if axes > 1 else (task_reach + width - 1) // width


def units_of_chunk(reach: int) -> int:
    """Return the fewest units of a chunk such that neither seams nor chunks meet."""
    return 2 * reach + 1


def bytes_of(body: FunctionLowering, chunks: str) -> str:
    """Emit the size of the words of a launch."""
    return body.assign(f"mul i64 {body.assign(f'add i64 {chunks}, {_FIRST}')}, 8")


def begin(body: FunctionLowering, words: str, chunks: str, row: str) -> None:
    """Emit the start of a launch: no chunk is done."""
    body.module.declare("@llvm.memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    size = bytes_of(body, chunks)
    body.emit(f"call void @llvm.memset.p0.i64(ptr align 8 {words}, i8 0, i64 {size}, i1 false)")
    for at, v in ((_CHUNKS, chunks), (_ROW, row)):
        body.emit(f"store i64 {v}, ptr {_word(body, words, str(at))}")


def chunk(module: Module, k: int, reach: int) -> list[str]:
    """Write the function of a chunk of rows of task k, and of the seams that become free with it."""
    lines = ["entry:"]
    body = FunctionLowering(module, lines)
    words = body.load_task_slot(module.layout.borders[k], "ptr", constant=False)
    chunks, row = (
        body.assign(f"load i64, ptr {_word(body, words, str(at))}") for at in (_CHUNKS, _ROW)
    )

    def run(first: str, behind: str, number: str) -> None:
        a, b = (body.assign(f"mul nsw i64 {x}, {row}") for x in (first, behind))
        body.emit(f"call void @alone{k}(ptr %params, i64 {a}, i64 {b}, i64 {number}, i64 %worker)")

    is_first = body.assign("icmp eq i64 %chunk, 0")
    later_rows = body.assign(f"add nsw i64 %begin, {reach}")
    run(body.assign(f"select i1 {is_first}, i64 %begin, i64 {later_rows}"), "%end", "%chunk")
    following = body.assign("add nsw i64 %chunk, 1")
    is_last = body.assign(f"icmp eq i64 {following}, {chunks}")
    borders = (("%begin", "%chunk", is_first), ("%end", following, is_last))
    for at, border, is_end in borders if reach else ():
        count, later, after = (body.new_label(w) for w in ("border", "seam", "after"))
        body.emit(f"br i1 {is_end}, label %{after}, label %{count}")
        body.start_block(count)
        # acq_rel: the later chunk must see all updates of the earlier one, and publishes its own.
        word = _word(body, words, body.assign(f"add i64 {border}, {_FIRST}"))
        done = body.assign(f"atomicrmw add ptr {word}, i64 1 acq_rel")
        both = body.assign(f"icmp eq i64 {done}, 1")
        body.emit(f"br i1 {both}, label %{later}, label %{after}")
        body.start_block(later)
        # Partial sums of seams are behind those of chunks.
        number = body.assign(f"add i64 {chunks}, {body.assign(f'sub i64 {border}, 1')}")
        run(at, body.assign(f"add nsw i64 {at}, {reach}"), number)
        body.jump(after)
        body.start_block(after)
    body.emit("ret void")
    lines.append("}")
    return lines


def _word(body: FunctionLowering, words: str, at: str) -> str:
    return body.assign(f"getelementptr i64, ptr {words}, i64 {at}")
