"""The reports of a kernel to the host: the first check that failed, and the lines that it prints.

Both go to buffers of 8-byte words. That of a check holds its number (from 1) and its values. That of printed
lines begins with HEAD words: how many words were asked for, and how many lines did not fit. Then comes for
each line the number of its `Print` (from 1), its order and its values, floats as their bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends.llvm.parameter_block import ERROR, PRINTED
from diffsim.ir.nodes import Alloca, Check, Print, Value

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering

HEAD = 2
ROOM = (1 << 20) - HEAD
"""Words for the lines of one launch: 8 MiB with the head."""


def lower_check(
    body: FunctionLowering, s: Check | Alloca, ok: str, values: list[str], *, exits: bool = False
) -> None:
    """Emit a check: unless `ok`, record its number and values, if no other check has failed before.

    `exits`: return from the function on failure, where the code that follows would be unsafe.
    """
    checks = body.module.checks
    checks.append(s)
    fail, first, after = (body.new_label(w) for w in ("fail", "first", "pass"))
    body.emit(f"br i1 {ok}, label %{after}, label %{fail}")
    body.start_block(fail)
    buffer = body.base(ERROR)
    order = f"{body.scope} monotonic monotonic"
    # Only one lane wins word 0 and writes the values: they are never a mixture of two failures.
    # Monotonic is enough, as the host reads after all lanes have ended.
    pair = body.assign(f"cmpxchg ptr {buffer}, i64 0, i64 {len(checks)}{order}")
    won = body.assign(f"extractvalue {{ i64, i1 }} {pair}, 1")
    rest = body.new_label("failed")
    body.emit(f"br i1 {won}, label %{first}, label %{rest}")
    body.start_block(first)
    for k, v in enumerate(values, 1):
        body.emit(f"store i64 {v}, ptr {body.offset(buffer, k)}")
    body.jump(rest)
    body.start_block(rest)
    body.emit(body.exit_branch if exits else f"br label %{after}")
    body.start_block(after)


def lower_print(body: FunctionLowering, s: Print) -> None:
    """Emit the append of one line to the printed ones, or its count as lost."""
    prints = body.module.prints
    # The number of a line's `Print` is its place in this list: the host finds format and types
    # there.
    prints.append(s)
    words = [str(len(prints)), *map(body.index64, s.order), *(bits(body, v) for v in s.values)]
    fits, lost, after = (body.new_label(w) for w in ("fits", "lost", "printed"))
    buffer = body.base(PRINTED)
    order = f"{body.scope} monotonic"
    # Reserves the words, so lines of different lanes never overlap. The count also grows where the
    # line does not fit: the host takes what lies within ROOM.
    at = body.assign(f"atomicrmw add ptr {buffer}, i64 {len(words)}{order}")
    inside = body.assign(f"icmp sle i64 {at}, {ROOM - len(words)}")
    body.emit(f"br i1 {inside}, label %{fits}, label %{lost}")
    body.start_block(fits)
    line = body.offset(buffer, body.assign(f"add i64 {at}, {HEAD}"))
    for k, word in enumerate(words):
        body.emit(f"store i64 {word}, ptr {body.offset(line, k)}")
    body.jump(after)
    body.start_block(lost)
    body.assign(f"atomicrmw add ptr {body.offset(buffer, 1)}, i64 1{order}")
    body.jump(after)
    body.start_block(after)


def bits(body: FunctionLowering, v: Value) -> str:
    """Return a scalar as a 64-bit word: the bits of a float, an integer extended by its signedness."""
    t, x = v.type.scalar, body.name(v)
    if t.is_float:
        x = body.assign(f"bitcast {t.llvm} {x} to i{8 * t.bytes}")
    if t.is_bool:
        return body.assign(f"zext i1 {x} to i64")
    if t.bytes == 8:
        return x
    return body.assign(
        f"{'zext' if t.is_float or t.kind == 'u' else 'sext'} i{8 * t.bytes} {x} to i64"
    )
