"""Loops that the lanes of a vector run one after the other, on the CPU.

In a task whose lanes run as vectors a loop may still make better vectors of its own iterations: its elements
are neighbours along the loop, and far apart between lanes (`passes/vectors/vectorize.py` decides). The
rows of a matrix in the adjoint of a product of matrices are an example. Such a loop is written once, with
scalars, in a loop over the active lanes; LLVM makes the vectors.

    %d: <W x float>                          spill %d
    for %k in 0..n {                ->       for each active lane {
      %t = mul %d, x[%i, %k]                   %d.lane = d[lane]
      add g[%i, %k], %t                        for %k in 0..n { ... }     (scalars; vectors along %k)
    }                                        }

A value that differs between lanes is read from the stack, an integer in its exact 64-bit form. What the loop
adds up goes back there.
"""

from __future__ import annotations

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.llvm.module import memory_type
from diffsim.backends.simd.simd_values import Index, SimdValues
from diffsim.ir.nodes import Block, For, Value
from diffsim.ir.traversal import free_values


def lower(body: SimdValues, s: For) -> None:
    """Lower a loop for each active lane in turn."""
    arrays: list[tuple[str, str]] = []
    inside = [v for v in free_values(Block((s,))) if v in body.divergent]
    indices = {v: _spilled_index(body, v, arrays) for v in inside if v.type.is_int}
    others = {v: _spilled(body, v, arrays) for v in inside if not v.type.is_int}
    sums = {
        out: _result_array(body, out, arrays)
        for out, p, y in zip(s.outs, s.params, s.body.yields, strict=True)
        if y is not p and out in body.divergent
    }

    def one(lane: str) -> None:
        own = {v: _lane_index(body, at, lane) for v, at in indices.items()}
        alone = _scalar_lowering(body)
        alone.int64_names.append(own)
        for v in indices:
            if v.type.scalar.bits == 64:
                alone.names[v] = alone.int64_names[-1][v]
        for v, array in others.items():
            alone.names[v] = _load(alone, v, array, lane)
        alone.loop(s)
        for out, array in sums.items():
            at = alone.assign(f"getelementptr {out.type.scalar.llvm}, ptr {array}, i64 {lane}")
            alone.emit(f"store {out.type.scalar.llvm} {alone.names[out]}, ptr {at}")
        body.names.update((o, alone.names[o]) for o in s.outs if o not in body.divergent)
        body.count, body.label = alone.count, alone.label
        body.counts_work |= alone.counts_work

    body.each_lane(one)
    for out, array in sums.items():
        kind = body.vector(out.type.scalar.llvm)
        body.names[out] = body.assign(f"load {kind}, ptr {array}, align 64")
    for out, p, y, init in zip(s.outs, s.params, s.body.yields, s.inits, strict=True):
        if y is p and out in body.divergent:
            body.names[out] = body.name_for(out, init)
    for kind, array in arrays:
        body.free_array(kind, array)


def _scalar_lowering(body: SimdValues) -> FunctionLowering:
    """Return a lowering of one lane at this place of the function."""
    alone = FunctionLowering(body.module, body.lines)
    alone.count, alone.label = body.count, body.label
    alone.names = {v: name for v, name in body.names.items() if v not in body.divergent}
    alone.int64_names = list(body.int64_names)
    alone.made_by, alone.pointers, alone.strides = body.made_by, body.pointers, body.strides
    alone.exit_branch, alone.scope = body.exit_branch, body.scope
    alone.single_threaded, alone.has_safepoints = body.single_threaded, body.has_safepoints
    alone.private_copies, alone.update_logs = body.private_copies, body.update_logs
    return alone


def _spilled(body: SimdValues, v: Value, arrays: list[tuple[str, str]]) -> str:
    """Emit the vector of a value to the stack, booleans as bytes; return the array."""
    t = v.type.scalar
    kind, name = memory_type(t), body.name(v)
    if t.is_bool:
        name = body.assign(f"zext {body.vector('i1')} {name} to {body.vector(kind)}")
    array = body.spill(kind, name)
    arrays.append((kind, array))
    return array


def _spilled_index(body: SimdValues, v: Value, arrays: list[tuple[str, str]]) -> Index:
    """Return an integer's index, whose vector, if it has one, is an array on the stack."""
    at = body.index(v)
    if not at.vector:
        return at
    array = body.spill("i64", at.vector)
    arrays.append(("i64", array))
    return Index(at.base, at.step, array)


def _result_array(body: SimdValues, out: Value, arrays: list[tuple[str, str]]) -> str:
    """Emit an array of zeros, which idle lanes keep, for what each lane adds up."""
    kind = out.type.scalar.llvm
    array = body.spill(kind, "zeroinitializer")
    arrays.append((kind, array))
    return array


def _load(alone: FunctionLowering, v: Value, array: str, lane: str) -> str:
    kind = memory_type(v.type.scalar)
    at = alone.assign(f"getelementptr {kind}, ptr {array}, i64 {lane}")
    raw = alone.assign(f"load {kind}, ptr {at}")
    return alone.assign(f"trunc i8 {raw} to i1") if v.type.scalar.is_bool else raw


def _lane_index(body: SimdValues, at: Index, lane: str) -> str:
    """Emit a lane's own integer in 64 bits."""
    total = at.base
    if at.step:
        steps = lane if at.step == 1 else body.assign(f"mul nsw i64 {lane}, {at.step}")
        total = steps if total == "0" else body.assign(f"add nsw i64 {total}, {steps}")
    if at.vector:
        part = body.load_lane(at.vector, "i64", lane)
        total = part if total == "0" else body.assign(f"add nsw i64 {total}, {part}")
    return total
