"""Updates in a fixed order, on the CPU: `deterministic=True` without atomics and without waiting.

Each chunk logs its updates of elements that others may update too, as records (offset of the scalar,
value), and they are applied afterwards, those of chunk 0 first. So every element gets its updates in the
order of the lanes, whichever thread ran them and however many threads there are. All threads apply them: a
scalar belongs to one of `BINS` bins (by its block of 2^8 scalars), a chunk has a log for each bin, and a bin
is merged by one thread.

    chunk 0    bin 0 [(5, 0.1), (3, 2.0), ...]  bin 1 [(262, 1.0), ...]  ...
    chunk 1    bin 0 [(5, 0.7), ...]            bin 1 [...]              ...
                     | x[5] += 0.1, then 0.7          |
                     v in order, on one thread        v on another one

A round has up to `CHUNKS` chunks; a long loop takes several, so that the logs stay small. Their memory is in
`pool.ll`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends.llvm import diagnostics
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.llvm.parameter_block import POOL
from diffsim.ir.layout import strides_of
from diffsim.ir.nodes import Atomic, Check, Const, Mem, Store, Task
from diffsim.ir.print_format import CheckKind
from diffsim.ir.traversal import statements
from diffsim.ir.types import bool_, size_of

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering

_NO_MEMORY = (
    "no memory to note the updates of this loop, which are made in order (deterministic=True)"
)
# Blocks of a fixed size go round the bins, so updates that cluster in one region still spread over
# the threads, and the size of the memory need not be known.
BINS = 32
CHUNKS = 64
"""Chunks of one round."""
CHUNK_BYTES = 1 << 19
"""Records of one chunk [byte], as far as they can be estimated."""
_BLOCK = 8  # log2 of the scalars in a block: two threads share a cache line at its ends only
_STATE = 32  # bytes of a log's state: see pool.ll
STATES, LANES, ALL, FIRST, USED = range(5)
"""A task's slots: the logs' states; lanes and chunks in all; the round's first chunk, and its chunks."""


def mems_of(task: Task) -> list[Mem]:
    """Return the memories whose updates are logged, in the order of the statements."""
    assert task.order is not None
    return list(dict.fromkeys(s.mem for s in statements(task.body) if s in task.order.logged))


def state_bytes(task: Task) -> int:
    """Return the size of the states of one chunk's logs [byte]."""
    return len(mems_of(task)) * BINS * _STATE


def record_bytes(mem: Mem) -> int:
    """Return the size of a record [byte]: an offset and a value of 4 bytes each where they fit, else of 8."""
    scalar = mem.dtype.scalar
    # An array of unknown shape may be larger than 2^32 scalars.
    if mem.shape is None or scalar.bytes > 4:
        return 16
    # The largest offset in scalars decides whether 32 bits hold it.
    last = sum((n - 1) * s for n, s in zip(mem.shape, strides_of(mem), strict=True))
    last += (size_of(mem.dtype) - 1) * mem.component_stride
    return 8 if last < 1 << 32 else 16


def find_logs(body: FunctionLowering, k: int, task: Task) -> None:
    """Emit the start of a chunk: locate its logs."""
    assert task.order is not None
    # Slots of the parameter block: `launch` writes them before each round.
    slot = body.module.layout.logs[k]
    states = body.load_task_slot(slot + STATES, "ptr", constant=False)
    first = body.load_task_slot(slot + FIRST, "i64", constant=False)
    mine = body.assign(f"sub nsw i64 %chunk, {first}")
    for j, mem in enumerate(mems_of(task)):
        # Layout of the states: chunk, memory, bin.
        skip = body.assign(f"mul nsw i64 {mine}, {state_bytes(task)}")
        at = body.assign(f"add nsw i64 {skip}, {j * BINS * _STATE}")
        log = body.assign(f"getelementptr i8, ptr {states}, i64 {at}")
        body.update_logs.update((s, log) for s in task.order.logged if s.mem is mem)


def log_update(body: FunctionLowering, s: Atomic | Store, at: str, v: str) -> None:
    """Emit a record of an update of the scalar at this address, applied when the round ends."""
    module, scalar = body.module, s.mem.dtype.scalar
    # An offset rather than an address: half the bytes in most memories, and its bits give the bin.
    here, base = (body.assign(f"ptrtoint ptr {p} to i64") for p in (at, body.pointers[s.mem]))
    offset = body.assign(f"sdiv exact i64 {body.assign(f'sub i64 {here}, {base}')}, {scalar.bytes}")
    word = f"i{4 * record_bytes(s.mem)}"
    # As bits, so that one function per width appends records of all types.
    if scalar.is_float:
        v = body.assign(f"bitcast {scalar.llvm} {v} to i{scalar.bits}")
    # Extended to the width of the record; `_apply` truncates it again.
    have = f"i{scalar.bits}" if scalar.is_float else scalar.llvm
    if have != word:
        v = body.assign(f"zext {have} {v} to {word}")
    # A function that is always inlined: the record is written by the chunk's own code, and only
    # growing is a call.
    module.declare(f"@note_{word}", _note_function(word, module.alias("scratch")))
    module.declare("@ds_log_grow", "declare i64 @ds_log_grow(ptr, i64, ptr)")
    pool = body.load_slot(POOL, "ptr")
    done = body.assign(
        f"call i1 @note_{word}(ptr {body.update_logs[s]}, i64 {offset}, {word} {v}, ptr {pool}, i64 %worker)"
    )
    check = Check(Const(bool_, False), _NO_MEMORY, (), s.span, kind=CheckKind.UPDATE_LOG)
    diagnostics.lower_check(body, check, done, [], exits=True)


def _note_function(word: str, alias: str) -> str:
    """Write the function that appends a record to the log of its bin; it returns whether memory sufficed."""
    bytes_ = 2 * int(word[1:]) // 8
    narrow = (
        f"%index = trunc i64 %offset to {word}" if word != "i64" else "%index = add i64 %offset, 0"
    )
    parameters = f"ptr %logs, i64 %offset, {word} %v, ptr %pool, i64 %worker"
    return f"""define internal i1 @note_{word}({parameters}) alwaysinline nounwind {{
entry:
  %block = lshr i64 %offset, {_BLOCK}
  %bin = and i64 %block, {BINS - 1}
  %state = getelementptr [4 x i64], ptr %logs, i64 %bin
  %end.p = getelementptr i64, ptr %state, i64 1
  %cursor = load i64, ptr %state{alias}
  %end = load i64, ptr %end.p{alias}
  %full = icmp eq i64 %cursor, %end
  br i1 %full, label %grow, label %put
grow:
  %new = call i64 @ds_log_grow(ptr %pool, i64 %worker, ptr %state)
  %none = icmp eq i64 %new, 0
  br i1 %none, label %out, label %put
put:
  %at = phi i64 [ %cursor, %entry ], [ %new, %grow ]
  %record = inttoptr i64 %at to ptr
  {narrow}
  store {word} %index, ptr %record{alias}
  %value.p = getelementptr {word}, ptr %record, i64 1
  store {word} %v, ptr %value.p{alias}
  %next = add i64 %at, {bytes_}
  store i64 %next, ptr %state{alias}
  ret i1 true
out:
  ret i1 false
}}"""


def chunk(body: FunctionLowering, k: int, task: Task) -> None:
    """Write the body of `logs<k>`: find the lanes of chunk %chunk of this round, and run them."""
    slot = body.module.layout.logs[k]
    lanes, chunks, first = (
        body.load_task_slot(slot + j, "i64", constant=False) for j in (LANES, ALL, FIRST)
    )
    # The split of `run_chunk` in pool.ll, over the chunks of all rounds: they are as long as if
    # there were one round.
    each, more = (body.assign(f"{op} i64 {lanes}, {chunks}") for op in ("udiv", "urem"))
    c = body.assign(f"add nsw i64 {first}, %chunk")

    def start(c: str) -> str:  # c * lanes / chunks, without overflow
        extra = body.assign(f"udiv i64 {body.assign(f'mul i64 {c}, {more}')}, {chunks}")
        return body.assign(f"add i64 {body.assign(f'mul i64 {c}, {each}')}, {extra}")

    begin, end = start(c), start(body.assign(f"add nsw i64 {c}, 1"))
    body.emit(f"call void @logged{k}(ptr %params, i64 {begin}, i64 {end}, i64 {c}, i64 %worker)")


def merge(body: FunctionLowering, k: int, task: Task) -> None:
    """Write the body of `merge<k>`: apply the updates of bins %begin..%end, chunk after chunk."""
    assert task.order is not None
    slot = body.module.layout.logs[k]
    states = body.load_task_slot(slot + STATES, "ptr", constant=False)
    used = body.load_task_slot(slot + USED, "i64", constant=False)
    for j, mem in enumerate(mems_of(task)):
        update = next(s for s in task.order.logged if s.mem is mem)

        # Chunk after chunk within a bin: this is the order of the lanes.
        def one(bin_: str, j: int = j, update: Atomic | Store = update) -> None:
            def of_chunk(c: str) -> None:
                skip = body.assign(f"mul nsw i64 {c}, {state_bytes(task)}")
                skip = body.assign(f"add nsw i64 {skip}, {j * BINS * _STATE}")
                own = body.assign(
                    f"add nsw i64 {skip}, {body.assign(f'mul nsw i64 {bin_}, {_STATE}')}"
                )
                _replay_log(body, update, body.assign(f"getelementptr i8, ptr {states}, i64 {own}"))

            body.count_up("0", used, of_chunk)

        body.count_up("%begin", "%end", one)


def _replay_log(body: FunctionLowering, update: Atomic | Store, state: str) -> None:
    """Emit the application of one log: a linked list of blocks of records."""

    def word(of: str, k: int, t: str) -> str:
        return body.assign(f"load {t}, ptr {body.offset(of, k)}{body.module.alias('scratch')}")

    cursor, first, last = word(state, 0, "i64"), word(state, 2, "ptr"), word(state, 3, "ptr")
    before = body.label
    head, inside, after = (body.new_label(w) for w in ("block", "records", "done"))
    body.jump(head)
    body.start_block(head)
    # Through the list of blocks, from the first to the one without a successor.
    block, following = body.fresh(), body.fresh()
    place = len(body.lines)
    body.emit(f"br i1 {body.assign(f'icmp eq ptr {block}, null')}, label %{after}, label %{inside}")
    body.start_block(inside)
    # Only the last block is filled up to the cursor; the others end where their header says.
    is_last = body.assign(f"icmp eq ptr {block}, {last}")
    stop = body.assign(f"select i1 {is_last}, i64 {cursor}, i64 {word(block, 1, 'i64')}")
    begin = body.assign(f"ptrtoint ptr {body.offset(block, 2)} to i64")
    bytes_ = record_bytes(update.mem)
    count = body.assign(f"sdiv exact i64 {body.assign(f'sub i64 {stop}, {begin}')}, {bytes_}")
    records = body.offset(block, 2)
    body.count_up("0", count, lambda i: _apply(body, update, records, i))
    body.emit(f"{following} = load ptr, ptr {block}{body.module.alias('scratch')}")
    body.lines.insert(
        place, f"  {block} = phi ptr [ {first}, %{before} ], [ {following}, %{body.label} ]"
    )
    body.jump(head)
    body.start_block(after)


def _apply(body: FunctionLowering, update: Atomic | Store, records: str, i: str) -> None:
    """Emit the update of record i."""
    mem, alias = update.mem, body.module.alias("scratch")
    scalar, kept = mem.dtype.scalar, memory_type(mem.dtype.scalar)
    word = f"i{4 * record_bytes(mem)}"
    pair = body.assign(f"getelementptr [2 x {word}], ptr {records}, i64 {i}")
    offset = body.assign(f"load {word}, ptr {pair}{alias}")
    if word != "i64":
        offset = body.assign(f"zext {word} {offset} to i64")
    value = body.assign(f"getelementptr {word}, ptr {pair}, i64 1")
    v = body.assign(f"load {word}, ptr {value}{alias}")
    bits = 8 * scalar.bytes
    if word != f"i{bits}":
        v = body.assign(f"trunc {word} {v} to i{bits}")
    if scalar.is_float:
        v = body.assign(f"bitcast i{bits} {v} to {kept}")
    at = body.element(body.pointers[mem], kept, offset)
    # An update reads the element and combines; a store overwrites, so the last lane wins.
    if isinstance(update, Atomic):
        body.update(update.op, mem, at, v)
    else:
        body.emit(f"store {kept} {v}, ptr {at}{body.module.alias(mem)}")
