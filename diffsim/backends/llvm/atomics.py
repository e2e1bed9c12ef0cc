"""Atomic updates of memory, as LLVM's `atomicrmw`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ir.nodes import Atomic

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering


def update_atomically(body: FunctionLowering, s: Atomic, at: str, v: str) -> None:
    """Emit an update of the element at `at` that other threads may update meanwhile."""
    t = s.mem.dtype.scalar
    alias = body.module.alias(s.mem)
    if t.is_bool:
        v = body.assign(f"zext i1 {v} to i8")
        old = body.assign(f"atomicrmw {s.op} ptr {at}, i8 {v}{body.scope} monotonic{alias}")
        if s.out is not None:
            body.names[s.out] = body.assign(f"trunc i8 {old} to i1")
        return
    # monotonic: the updates of one element are ordered among themselves, and nothing else is
    # published by them. fmin and fmax ignore NaN, as minnum and maxnum do in `combine`.
    word = {"add": "fadd" if t.is_float else "add", "min": "min", "max": "max"}.get(s.op, s.op)
    if word in ("min", "max"):
        word = ("f" if t.is_float else "u" if t.kind == "u" else "") + word
    update = f"atomicrmw {word} ptr {at}, {t.llvm} {v}{body.scope} monotonic{alias}"
    if word == "fadd" and s.out is None:
        _unless_zero(body, f"{t.llvm} {v}", update)
        return
    old = body.assign(update)
    if s.out is not None:
        body.names[s.out] = old


def _unless_zero(body: FunctionLowering, value: str, update: str) -> None:
    """Emit an addition of a float, without a trip to memory where it would add 0."""
    # Adjoints of branches, clamps and masks add 0 where nothing was used, often to one element from all
    # threads. NaN is unequal to 0, so it is added.
    some, after = body.new_label("some"), body.new_label("none")
    unequal = body.assign(f"fcmp une {value}, 0.0")
    body.emit(f"br i1 {unequal}, label %{some}, label %{after}")
    body.start_block(some)
    body.emit(update)
    body.jump(after)
    body.start_block(after)
