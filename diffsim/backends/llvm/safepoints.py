"""Safepoints of long loops, on the CPU: Ctrl-C ends the launch, and other Python threads may run.

Each function counts down as its loops iterate, and polls at zero (`@ds_poll` in `gate.ll`) whether to go on.
The count is an estimate of the work, so that the cost of polling is negligible:

    loops of known trip count, with little work     do not count: the loop around them does
    innermost loops, which LLVM may vectorize       run in strips, and count what each has done at its end
    loops with such loops inside                    count in each iteration what these do not

Lanes without long loops do not count at all: chunks are short enough (`backends/cpu/codegen.py`). Where a
launch is to stop, a function returns from where it is: code after the loop may rely on its final values, for
instance as indices within bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffsim.backends.llvm.parameter_block import STOP
from diffsim.ir.nodes import Atomic, Block, Check, Const, For, If, Let, Load, Stmt, Value, While
from diffsim.ir.traversal import blocks, statements

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering

_POLL_INTERVAL = 1 << 19
"""Estimated operations between two polls: some 0.4 ms, and 0.2 s if all are as slow as `pow`. A poll reads
the clock, which takes 0.03 us, but 1 us on virtual machines that ask the system for it."""
STRIP = 1 << 14
"""Estimated operations of a strip; a loop known to have no more is short."""
_SHORTEST_STRIP = 8
"""Iterations: a loop with more work in each counts them one by one."""
_UNKNOWN_TRIP_COUNT = 128  # of a loop: a guess that keeps heavy lanes in chunks of their own
RARE = "!prof !3"
_POLL = (
    "declare i64 @ds_poll(ptr nocapture, i64) cold nounwind willreturn "
    "memory(argmem: readwrite, inaccessiblemem: readwrite)"
)
METADATA = '!3 = !{!"branch_weights", i32 1, i32 100000}'


@dataclass(frozen=True)
class Count:
    """An induction variable with step 1 or -1 (a parameter of the loop), and the value where it ends."""

    param: int
    end: Value
    up: bool


def cost(block: Block, shared: int = 0) -> int:
    """Estimate the operations of one run of a block, with `shared` more for each update that is atomic."""
    total = len(block.stmts)
    for s in block.stmts:
        if isinstance(s, (Let, Load)):
            continue  # most statements, in blocks of thousands
        if isinstance(s, Atomic) and not s.exclusive:
            total += shared
        inner = sum(cost(b, shared) for b in blocks(s))
        # Nested loops multiply; an unknown trip count is guessed on the high side, as a chunk that
        # is too short costs little.
        if isinstance(s, For):
            trips = _trip_count(s)
            inner *= _UNKNOWN_TRIP_COUNT if trips is None else trips
        elif isinstance(s, While):
            inner *= _UNKNOWN_TRIP_COUNT
        elif isinstance(s, If):
            # Half of both sides: the mean of a branch that goes either way equally often.
            inner = (inner + 1) // 2
        total += inner
    return total


def _trip_count(s: For) -> int | None:
    """Return the trip count of a loop, where it is constant."""
    if isinstance(s.lo, Const) and isinstance(s.hi, Const):
        return max(0, int(s.hi.value) - int(s.lo.value))
    return None


def is_long(s: For | While) -> bool:
    """Return whether a loop may take long: false only if its work is known to be small."""
    if isinstance(s, While) or has_long(s.body):
        return True
    trips = _trip_count(s)
    return trips is None or trips * cost(s.body) > STRIP


def own_cost(block: Block) -> int:
    """Estimate the number of operations of one run of a block that no loop in it counts by itself."""
    # A guess of trip counts here would poll after every few pairs of particles in neighbouring cells.
    total = 0
    for s in block.stmts:
        if isinstance(s, If):
            total += (own_cost(s.then) + own_cost(s.orelse) + 1) // 2
        elif isinstance(s, (For, While)) and not is_long(s):
            total += cost(Block([s]))
        total += 1
    return total


def has_long(block: Block) -> bool:
    """Return whether a block has a loop that may take long."""
    return any(isinstance(s, (For, While)) and is_long(s) for s in statements(block))


def strip(s: For | While) -> int:
    """Return the iterations of a strip, a power of 2; 0 where each iteration is counted."""
    # A loop around long ones need not be fast itself. A condition with effects must not be
    # evaluated twice.
    if has_long(s.body) or (isinstance(s, While) and not all(map(_may_repeat, s.cond.stmts))):
        return 0
    length = STRIP // max(1, iteration_cost(s))
    # A power of 2 is a multiple of the vector width: full strips leave no remainder loop.
    return 1 << length.bit_length() - 1 if length >= _SHORTEST_STRIP else 0


def iteration_cost(s: For | While) -> int:
    """Return what one iteration counts."""
    return own_cost(s.body) + (own_cost(s.cond) if isinstance(s, While) else 0)


def _may_repeat(s: Stmt) -> bool:
    """Return whether a statement of a condition may be repeated: each strip evaluates the condition anew.

    Atomics, stores and prints may not.
    """
    if isinstance(s, If):
        return all(_may_repeat(inner) for b in blocks(s) for inner in b.stmts)
    return isinstance(s, (Let, Load, Check))


def counts_to(s: While) -> Count | None:
    """Return the induction variable of `while k < n: ...; k += 1` and the like; None for other loops."""
    last = s.cond.stmts[-1] if s.cond.stmts else None
    if not isinstance(last, Let) or last.out is not s.cond.yields[0]:
        return None
    if last.op.name not in ("lt", "gt"):
        return None
    a, b = last.args
    less = last.op.name == "lt"
    # Top-level statements only: a step inside a branch is not taken in each iteration.
    steps = {x.out: x for x in s.body.stmts if isinstance(x, Let)}
    for k, end, up in ((a, b, less), (b, a, not less)):
        # The iterations of a strip may not fit into a narrower counter.
        if k in s.params and k.type.is_int and k.type.scalar.bits >= 32:
            place = s.params.index(k)
            step = steps.get(s.body.yields[place])
            if step is not None and is_step(step, k, up):
                return Count(place, end, up)
    return None


def is_step(s: Let, k: Value, up: bool) -> bool:
    """Return whether a statement adds 1 to k (`up`), or subtracts 1."""
    if s.op.name not in ("add", "sub"):
        return False
    a, b = s.args
    if s.op.name == "add" and b is k:
        a, b = b, a
    one = 1 if up == (s.op.name == "add") else -1
    return a is k and isinstance(b, Const) and b.value == one


def spend(body: FunctionLowering, iterations: str, work: int) -> None:
    """Emit a count of iterations that have been made, without a poll."""
    body.counts_work = True
    done = body.assign(f"mul nsw i64 {iterations}, {max(1, work)}")
    left = body.assign("load i64, ptr %work")
    body.emit(f"store i64 {body.assign(f'sub nsw i64 {left}, {done}')}, ptr %work")


def count(body: FunctionLowering, work: int) -> None:
    """Emit a count of work and a poll when enough is counted; the function returns here on a stop request."""
    body.counts_work = True
    body.module.declare("@ds_poll", _POLL)
    # A stack slot, which mem2reg makes a register; a counter in memory shared by functions would be
    # loaded and stored in each iteration.
    left = body.assign("load i64, ptr %work")
    less = body.assign(f"sub nsw i64 {left}, {max(1, work)}")
    body.emit(f"store i64 {less}, ptr %work")
    # RARE: the poll is cold, so LLVM places it and its spills off the hot path.
    poll, on = body.new_label("poll"), body.new_label("on")
    body.emit(f"br i1 {body.assign(f'icmp slt i64 {less}, 0')}, label %{poll}, label %{on}, {RARE}")
    body.start_block(poll)
    body.emit(f"store i64 {_POLL_INTERVAL}, ptr %work")
    answer = body.assign("call i64 @ds_poll(ptr %params, i64 %worker)")
    _return_if(body, answer, on)


def return_if_stopped(body: FunctionLowering) -> None:
    """Emit a return, after a call of a function with safepoints, if that one stopped early."""
    # Atomic, as another thread may store the request while this one runs; monotonic, as nothing
    # else is read on the strength of it.
    answer = body.assign(f"load atomic i64, ptr {body.slot_address(STOP)} monotonic, align 8")
    _return_if(body, answer, body.new_label("on"))


def _return_if(body: FunctionLowering, answer: str, on: str) -> None:
    stop = body.new_label("stop")
    body.emit(
        f"br i1 {body.assign(f'icmp ne i64 {answer}, 0')}, label %{stop}, label %{on}, {RARE}"
    )
    body.start_block(stop)
    body.emit(body.exit_branch)
    body.start_block(on)


def finish(body: FunctionLowering, at: int) -> bool:
    """Insert the counter at a function's entry, if it has safepoints; return whether it has."""
    if body.counts_work:
        body.lines[at:at] = ["  %work = alloca i64", f"  store i64 {_POLL_INTERVAL}, ptr %work"]
    return body.counts_work
