"""Loops within a function as LLVM text: `for`, in strips where it may take long, and `while`.

A strip is a run of iterations without a safepoint (strip mining): LLVM optimizes the inner loop as if there
were none, and the loop over strips polls. Read `safepoints.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.backends.llvm import safepoints
from diffsim.ir.nodes import For, While

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering

_MANY_ACCESSES = 48
_NO_INSTRUCTION = 'call void asm sideeffect "", ""() nounwind memory(inaccessiblemem: readwrite)'
_NO_CODE = "@llvm.var.annotation.p0.p0"


def lower_for(body: FunctionLowering, s: For) -> None:
    """Lower a loop over a range with the values that it carries."""
    # Counted in 64 bits whatever the type of the index is: the counter never wraps around.
    lo, hi = body.index64(s.lo), body.index64(s.hi)
    inits = [body.name_for(p, v) for p, v in zip(s.params, s.inits, strict=True)]
    last = None
    if s.reverse:
        # A reversed loop counts up as well, its index being lo + hi - 1 - k: LLVM sees one
        # canonical form, and the bounds are compared in one direction. No nsw here: an empty range
        # may have any bounds.
        last = body.assign(f"sub i64 {body.assign(f'add i64 {lo}, {hi}')}, 1")
    # Short loops stay as they are: polling is the duty of a loop around them.
    long = body.has_safepoints and safepoints.is_long(s)
    length = safepoints.strip(s) if long else 0
    if length:
        outs = _strips(body, s, (lo, hi), last, inits, length)
    else:
        work = safepoints.iteration_cost(s) if long else 0
        _, outs = _iterations(body, s, (lo, hi), last, inits, work)
    body.names.update(zip(s.outs, outs, strict=True))


def _iterations(
    body: FunctionLowering,
    s: For,
    bounds: tuple[str, str],
    last: str | None,
    inits: list[str],
    work: int,
) -> tuple[str, list[str]]:
    """Emit a loop within bounds, `work` counted in each iteration; return index and values at its end."""
    lo, hi = bounds
    before = body.label
    head, do, after = (body.new_label(w) for w in ("for", "do", "done"))
    body.jump(head)
    body.start_block(head)
    k, latch_label, latch = body.fresh(), body.new_label("latch"), body.fresh()
    body.emit(f"{k} = phi i64 [ {lo}, %{before} ], [ {latch}, %{latch_label} ]")
    # Phis come first in their block, but their incoming values from the latch are not known yet:
    # the lines are inserted here afterwards.
    at = len(body.lines)
    params = [body.bind(p) for p in s.params]
    inside = body.assign(f"icmp slt i64 {k}, {hi}")
    body.emit(f"br i1 {inside}, label %{do}, label %{after}")
    body.start_block(do)
    body.int64_names.append({s.index: body.assign(f"sub i64 {last}, {k}") if last else k})
    if s.index.type.scalar.bits == 64:
        body.names[s.index] = body.int64_names[-1][s.index]
    # The body may call functions without vector forms: the loop is then marked to stay scalar.
    calls = body.module.scalar_calls
    body.block(s.body)
    nexts = [body.name_for(p, v) for p, v in zip(s.params, s.body.yields, strict=True)]
    body.int64_names.pop()
    if work:
        safepoints.count(body, work)
    body.end_loop(at)
    # A latch of its own, so that the back edge has one fixed predecessor, however many blocks the
    # body has.
    body.jump(latch_label)
    body.start_block(latch_label)
    body.emit(f"{latch} = add nsw i64 {k}, 1")
    body.emit(f"br label %{head}{body.loop_hint(s) or body.module.as_scalars(calls)}")
    body.lines[at:at] = [
        f"  {p} = phi {body.type_of(v)} [ {i}, %{before} ], [ {n}, %{latch_label} ]"
        for p, v, i, n in zip(params, s.params, inits, nexts, strict=True)
    ]
    body.start_block(after)
    return k, params


def _strips(
    body: FunctionLowering,
    s: For,
    bounds: tuple[str, str],
    last: str | None,
    inits: list[str],
    length: int,
) -> list[str]:
    """Emit the same loop as a loop over strips of `length` iterations."""
    lo, hi = bounds
    strips = Strips(body, ["i64", *map(body.type_of, s.params)], [lo, *inits])
    first, *carried = strips.first
    k, params = _iterations(body, s, (first, strip_end(body, first, hi, length)), last, carried, 0)
    safepoints.spend(body, body.assign(f"sub nsw i64 {k}, {first}"), safepoints.iteration_cost(s))
    strips.finish(body.assign(f"icmp slt i64 {k}, {hi}"), [k, *params])
    return params


def strip_end(body: FunctionLowering, first: str, hi: str, length: int) -> str:
    """Emit the end of a strip: the loop's end at the latest."""
    body.module.declare("@llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")
    end = body.assign(f"add nsw i64 {first}, {length}")
    return body.assign(f"call i64 @llvm.smin.i64(i64 {end}, i64 {hi})")


class Strips:
    """The loop over the strips of a loop, from its header on; `first`: the values carried into a strip.

    All values that the inner loop carries pass through this loop too, the counter included: a strip resumes
    exactly where the one before it stopped.
    """

    def __init__(self, body: FunctionLowering, types: list[str], inits: list[str]) -> None:
        self.body, self.types, self.inits = body, types, inits
        self.before, self.head = body.label, body.new_label("strips")
        body.jump(self.head)
        body.start_block(self.head)
        self.at = len(body.lines)
        self.first = [body.fresh() for _ in types]

    def finish(self, left: str, nexts: list[str]) -> None:
        """Emit the end of a strip: poll and begin the next one, if iterations are left."""
        body = self.body
        more, after = body.new_label("strip"), body.new_label("over")
        # RARE: taken once per strip, so its code belongs off the hot path.
        body.emit(f"br i1 {left}, label %{more}, label %{after}, {safepoints.RARE}")
        body.start_block(more)
        safepoints.count(body, 1)
        latch = body.label
        body.jump(self.head)
        body.lines[self.at : self.at] = [
            f"  {p} = phi {t} [ {i}, %{self.before} ], [ {n}, %{latch} ]"
            for p, t, i, n in zip(self.first, self.types, self.inits, nexts, strict=True)
        ]
        body.start_block(after)


def lower_while(body: FunctionLowering, s: While) -> None:
    """Lower a loop that runs while its condition holds."""
    inits = [body.name_for(p, v) for p, v in zip(s.params, s.inits, strict=True)]
    length = safepoints.strip(s) if body.has_safepoints else 0
    strips = Strips(body, [body.type_of(p) for p in s.params], inits) if length else None
    firsts = strips.first if strips else inits
    limit = Limit(body, firsts, length, safepoints.counts_to(s)) if length else None
    before = body.label
    head, do, after = (body.new_label(w) for w in ("while", "do", "done"))
    body.jump(head)
    body.start_block(head)
    at = len(body.lines)
    # The condition is part of the header, which runs once more than the body: results of the loop
    # are the parameters as the condition last saw them.
    params = [body.bind(p) for p in s.params]
    body.block(s.cond)
    goes_on = body.name(s.cond.yields[0])
    inside = limit.inside(goes_on, params) if limit else goes_on
    body.emit(f"br i1 {inside}, label %{do}, label %{after}")
    body.start_block(do)
    body.block(s.body)
    nexts = [body.name_for(p, v) for p, v in zip(s.params, s.body.yields, strict=True)]
    # Only one of the two: the limit ends the strip, after which `Strips.finish` counts.
    if limit:
        limit.count()
    elif body.has_safepoints:
        safepoints.count(body, safepoints.iteration_cost(s))
    latch = body.label
    body.jump(head)
    body.lines[at:at] = [
        f"  {p} = phi {body.type_of(v)} [ {i}, %{before} ], [ {n}, %{latch} ]"
        for p, v, i, n in zip(params, s.params, firsts, nexts, strict=True)
    ]
    if limit:
        limit.finish(at, before, latch)
    body.start_block(after)
    if limit and strips:
        safepoints.spend(body, limit.iterations(params), safepoints.iteration_cost(s))
        strips.finish(goes_on, params)
    body.names.update(zip(s.outs, params, strict=True))


class Limit:
    """Ends a `while` after the iterations of a strip, such that LLVM still knows how many there are.

    A loop that counts by ones has a nearer end in each strip: `k < min(n, first + length)`. This is as good
    as the loop itself for vectorizing and unrolling. Of others the iterations are counted: `c and j < length`
    in one branch, as LLVM computes trip counts of loops with a single exit.
    """

    def __init__(
        self,
        body: FunctionLowering,
        firsts: list[str],
        length: int,
        counter: safepoints.Count | None,
    ) -> None:
        self.body, self.firsts, self.length, self.counter = body, firsts, length, counter
        self.iteration, self.next = body.fresh(), body.fresh()
        if self.counter:
            op = "add" if self.counter.up else "sub"
            # Saturating: near the end of the type's range first + length would wrap around and end
            # the strip before it begins, for ever.
            self.near = self._call(f"{op}.sat", firsts[self.counter.param], str(length))

    def _call(self, what: str, a: str, b: str) -> str:
        """Emit an intrinsic of two integers of the counter's type."""
        assert self.counter
        t = self.counter.end.type.scalar
        name = f"@llvm.{'s' if t.kind == 'i' else 'u'}{what}.{t.llvm}"
        self.body.module.declare(name, f"declare {t.llvm} {name}({t.llvm}, {t.llvm})")
        return self.body.assign(f"call {t.llvm} {name}({t.llvm} {a}, {t.llvm} {b})")

    def inside(self, goes_on: str, params: list[str]) -> str:
        """Emit whether another iteration of this strip follows."""
        counter, body = self.counter, self.body
        if not counter:
            few = body.assign(f"icmp ult i64 {self.iteration}, {self.length}")
            return body.assign(f"and i1 {goes_on}, {few}")
        # In the type of the counter itself, signed or not: the comparison is that of the source.
        t = counter.end.type.scalar
        end = self._call("min" if counter.up else "max", body.name(counter.end), self.near)
        word = ("s" if t.kind == "i" else "u") + ("lt" if counter.up else "gt")
        return body.assign(f"icmp {word} {t.llvm} {params[counter.param]}, {end}")

    def count(self) -> None:
        """Emit the count at the end of an iteration."""
        if not self.counter:
            self.body.emit(f"{self.next} = add nuw nsw i64 {self.iteration}, 1")

    def iterations(self, params: list[str]) -> str:
        """Emit how many iterations this strip has made, at its end."""
        if not self.counter:
            return self.iteration
        place, t = self.counter.param, self.counter.end.type.scalar
        ends = (
            (params[place], self.firsts[place])
            if self.counter.up
            else (self.firsts[place], params[place])
        )
        # No more than a strip has, so nothing wraps around.
        made = self.body.assign(f"sub {t.llvm} {ends[0]}, {ends[1]}")
        return made if t.bits == 64 else self.body.assign(f"zext {t.llvm} {made} to i64")

    def finish(self, at: int, before: str, latch: str) -> None:
        """Insert the phi of the count at the loop's header, once the loop is written."""
        if not self.counter:
            phi = f"  {self.iteration} = phi i64 [ 0, %{before} ], [ {self.next}, %{latch} ]"
            self.body.lines.insert(at, phi)


# ---- loops over vectors: their accesses need not be compared


def compare_no_accesses(body: FunctionLowering, at: int, *, in_block: bool) -> None:
    """Spare a loop over vectors, whose lines begin at `at`, LLVM's pass LoopLoadElimination, if it is long.

    It compares each access of an innermost loop with each other one, to find loads of what the iteration
    before has stored. That was half of the time to compile 27 neighbours of a particle, or the joints of an
    arm. At a call that may read memory and is no function it knows, it gives up. LLVM unrolls no loop with
    such a call, unless it is of an intrinsic, as within a block of lanes.
    """
    lines = body.lines[at:]
    if sum(" load " in line or "  store " in line for line in lines) < _MANY_ACCESSES:
        return
    if in_block:
        body.module.declare(_NO_CODE, f"declare void {_NO_CODE}(ptr, ptr, ptr, i32, ptr)")
        body.emit(f"call void {_NO_CODE}(ptr null, ptr null, ptr null, i32 0, ptr null)")
    else:
        body.emit(_NO_INSTRUCTION)
