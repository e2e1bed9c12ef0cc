"""Loops within a function as LLVM text: `for`, in strips where it may take long, and `while`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends import looks
from diffsim.ir.nodes import For, While

if TYPE_CHECKING:
    from diffsim.backends.llvm import Body


def lower_for(body: Body, s: For) -> None:
    """A loop over a range, and what it carries."""
    lo, hi = body.index64(s.lo), body.index64(s.hi)
    inits = [body.name_as(p, v) for p, v in zip(s.params, s.inits, strict=True)]
    last = None
    if s.reverse:
        last = body.let(f"sub i64 {body.let(f'add i64 {lo}, {hi}')}, 1")
    long = body.looks and looks.is_long(s)
    length = looks.strip(s) if long else 0
    if length:
        outs = _strips(body, s, (lo, hi), last, inits, length)
    else:
        work = looks.cost(s.body) if long else 0
        _, outs = _turns(body, s, (lo, hi), last, inits, work)
    body.names.update(zip(s.outs, outs, strict=True))


def _turns(
    body: Body, s: For, bounds: tuple[str, str], last: str | None, inits: list[str], work: int
) -> tuple[str, list[str]]:
    """A loop within bounds, `work` counted in each iteration; returns index and values at its end."""
    lo, hi = bounds
    before = body.label
    head, do, after = (body.new_label(w) for w in ("for", "do", "done"))
    body.jump(head)
    body.start(head)
    k, latch_label, latch = body.fresh(), body.new_label("latch"), body.fresh()
    body.put(f"{k} = phi i64 [ {lo}, %{before} ], [ {latch}, %{latch_label} ]")
    at = len(body.lines)
    params = [body.bind(p) for p in s.params]
    inside = body.let(f"icmp slt i64 {k}, {hi}")
    body.put(f"br i1 {inside}, label %{do}, label %{after}")
    body.start(do)
    body.wide.append({s.index: body.let(f"sub i64 {last}, {k}") if last else k})
    if s.index.type.scalar.bits == 64:
        body.names[s.index] = body.wide[-1][s.index]
    calls = body.module.scalar_calls
    body.block(s.body)
    nexts = [body.name_as(p, v) for p, v in zip(s.params, s.body.yields, strict=True)]
    body.wide.pop()
    if work:
        looks.count(body, work)
    body.jump(latch_label)
    body.start(latch_label)
    body.put(f"{latch} = add nsw i64 {k}, 1")
    body.put(f"br label %{head}{body.loop_hint(s) or body.module.as_scalars(calls)}")
    body.lines[at:at] = [
        f"  {p} = phi {body.type_of(v)} [ {i}, %{before} ], [ {n}, %{latch_label} ]"
        for p, v, i, n in zip(params, s.params, inits, nexts, strict=True)
    ]
    body.start(after)
    return k, params


def _strips(
    body: Body, s: For, bounds: tuple[str, str], last: str | None, inits: list[str], length: int
) -> list[str]:
    """The same, as a loop over strips of so many iterations."""
    lo, hi = bounds
    before = body.label
    head, more, after = (body.new_label(w) for w in ("strips", "strip", "over"))
    body.jump(head)
    body.start(head)
    at = len(body.lines)
    first = body.fresh()
    carried = [body.fresh() for _ in s.params]
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    end = body.let(f"add nsw i64 {first}, {length}")
    stop = body.let(f"call i64 @llvm.smin.i64(i64 {end}, i64 {hi})")
    k, params = _turns(body, s, (first, stop), last, carried, 0)
    left = body.let(f"icmp slt i64 {k}, {hi}")
    body.put(f"br i1 {left}, label %{more}, label %{after}, {looks.RARE}")
    body.start(more)
    looks.count_strip(body)
    latch = body.label
    body.jump(head)
    body.lines[at:at] = [
        f"  {p} = phi {t} [ {i}, %{before} ], [ {n}, %{latch} ]"
        for p, t, i, n in zip(
            [first, *carried],
            ["i64", *map(body.type_of, s.params)],
            [lo, *inits],
            [k, *params],
            strict=True,
        )
    ]
    body.start(after)
    return params


def lower_while(body: Body, s: While) -> None:
    """A loop that runs while its condition holds."""
    inits = [body.name_as(p, v) for p, v in zip(s.params, s.inits, strict=True)]
    before = body.label
    head, do, after = (body.new_label(w) for w in ("while", "do", "done"))
    body.jump(head)
    body.start(head)
    at = len(body.lines)
    params = [body.bind(p) for p in s.params]
    body.block(s.cond)
    body.put(f"br i1 {body.name(s.cond.yields[0])}, label %{do}, label %{after}")
    body.start(do)
    body.block(s.body)
    nexts = [body.name_as(p, v) for p, v in zip(s.params, s.body.yields, strict=True)]
    if body.looks:
        looks.count(body, looks.cost(s.body))
    latch = body.label
    body.jump(head)
    body.lines[at:at] = [
        f"  {p} = phi {body.type_of(v)} [ {i}, %{before} ], [ {n}, %{latch} ]"
        for p, v, i, n in zip(params, s.params, inits, nexts, strict=True)
    ]
    body.start(after)
    body.names.update(zip(s.outs, params, strict=True))
