"""Long rollouts in bounded memory: `ds.ad.checkpoint`.

A simulator that overwrites its state in every step can not be differentiated after the fact: the backward
pass needs each step's state, and only the last one is left. `checkpoint` keeps snapshots of the state while
it runs forward, and in the backward pass runs parts of the way again from them, one step at a time on a
tape of its own. With s snapshots and up to r runs of any step, binomial checkpointing reaches
(s + r)! / (s! r!) steps, and no schedule reaches more (A. Griewank, A. Walther, "Algorithm 799: revolve",
ACM Transactions on Mathematical Software 26(1), 2000, section 2).
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.ad.entries import Index, held
from diffsim.ad.saves import Saved
from diffsim.ad.tape import Tape
from diffsim.errors import AutodiffError, FieldError, Span
from diffsim.ir.nodes import Atomic
from diffsim.passes.access import Access, overwritten
from diffsim.runtime.context import session
from diffsim.runtime.field import Field
from diffsim.runtime.foreign import DeviceArray
from diffsim.runtime.recorded import Recorded
from diffsim.runtime.storage import Copy


class CheckpointStats:
    """What a checkpointed rollout took.

    Attributes:
        snapshots: most snapshots that were held at once.
        snapshot_bytes: bytes of one snapshot.
        peak_bytes: most bytes of snapshots held at once.
        steps_run: how often a step was run, forward and backward together.
    """

    def __init__(self, snapshot_bytes: int) -> None:
        self.snapshots = 0
        self.snapshot_bytes = snapshot_bytes
        self.steps_run = 0

    @property
    def peak_bytes(self) -> int:
        return self.snapshots * self.snapshot_bytes

    def __repr__(self) -> str:
        return (
            f"<checkpoint: {self.snapshots} snapshots of {self.snapshot_bytes} bytes, "
            f"{self.steps_run} steps run>"
        )


def checkpoint(
    step: Callable[[int], Any],
    n_steps: int,
    state: Sequence[Field],
    *,
    snapshots: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> CheckpointStats:
    """Run `step(t)` for t = 0 .. n_steps - 1; on a tape, differentiate it within a memory budget.

    Args:
        step: launches the kernels of one step. It may overwrite its state in place. It is run
            several times for each t, and must depend on t and the state alone.
        n_steps: number of steps.
        state: the fields that carry information from one step to the next.
        snapshots: how many copies of the state may be held; about sqrt(n_steps) if left out.
        memory: or how many bytes these copies may take.
        progress: whether the backward pass shows a bar on stderr.

    Returns:
        What it took; counts go on during the backward pass.

    Raises:
        AutodiffError: on a tape, a field that is not in `state` carries something from step to step;
            in the backward pass, a step does something else when it is run again.
        FieldError: arguments that make no sense; a budget below one snapshot.
    """
    rollout = _Rollout(step, n_steps, state, snapshots, memory, progress)
    tape = session.tape
    if tape is None:
        for t in range(n_steps):
            rollout.run(t)
        return rollout.stats
    rollout.forward(tape)
    return rollout.stats


class _Trace:
    """What a step did, as one number: launches with their arguments, and writes from Python.

    Run again, a step must do the same. It may not if its Python code looks at something that is not in
    the state, such as a sum so far or a counter of its own.
    """

    in_place = False
    records = True

    def __init__(self) -> None:
        self.number = 0
        self.entries: list[Any] = []

    def returned(self, result: Any) -> Recorded:
        return Recorded(result, self)

    def computed(self, made: Recorded, parts: Any) -> None:
        pass

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        if field.kind != "argument":
            self.wrote(field, index, value.array)

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.number = hash((self.number, id(special.kernel), *map(_mark, args)))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.number = hash((self.number, id(field), index, _mark(held(field, index))))

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.number = hash((self.number, id(target), id(source), to, at))

    def stopped(self, field: Field) -> None:
        self.number = hash((self.number, id(field)))


def _mark(a: Any) -> Any:
    if isinstance(a, Field) and a.kind == "argument":
        a = a.storage.to_numpy()
    if isinstance(a, DeviceArray):
        assert session.device is not None
        a = a.to_numpy(session.device)
    if isinstance(a, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(a).tobytes())
    return a if isinstance(a, (int, float)) else id(a) if isinstance(a, Field) else repr(a)


class _Repeat(Tape):
    """The tape of one step that is run again, with its trace."""

    def __init__(self) -> None:
        super().__init__(in_place="save")
        self.trace = _Trace()

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.trace.launched(special, args, now, seed)
        super().launched(special, args, now, seed)

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.trace.wrote(field, index, value)
        super().wrote(field, index, value)

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        self.trace.stored(field, index, value)
        super().stored(field, index, value)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.trace.copied(target, source, to, at)
        super().copied(target, source, to, at)

    def stopped(self, field: Field) -> None:
        self.trace.stopped(field)
        super().stopped(field)


class _Watch(Tape):
    """Notes what a step reads and writes, to find fields that are missing from the state."""

    def __init__(self, outer: Tape, state: set[Field]) -> None:
        super().__init__()
        self.in_place = outer.in_place
        self.outer = outer
        self.state = state
        self.written: dict[Field, None] = {}
        self.fresh: set[Field] = set()

    def launching(self, special: Any, args: tuple[Any, ...]) -> None:
        self.outer.save_before(special, args)

    def save_before(self, special: Any, args: tuple[Any, ...]) -> None:
        self.outer.save_before(special, args)

    def writing(self, field: Field, row: int | None) -> None:
        self.outer.writing(field, row)

    def returned(self, result: Any) -> Recorded:
        return Recorded(result, self)

    def computed(self, made: Recorded, parts: Any) -> None:
        pass

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        if field.kind != "argument":
            self.wrote(field, index, value.array)

    def next_step(self) -> None:
        """A new step begins: nothing was overwritten in it yet."""
        self.fresh = set()
        self.entries = []  # values that are returned in it belong to this step alone
        self.trace = _Trace()

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.trace.launched(special, args, now, seed)
        for a in special.read:
            f = special.object_of(a.mem, args)
            if isinstance(f, Field) and f in self.written and f not in self.fresh:
                raise _missing(f, a.stmt.span)
        self.kept.setdefault(special, special.fields())
        whole = overwritten(special.ir)
        for a in special.written:
            f = special.object_of(a.mem, args)
            if (
                _is_extreme(a)
                and f not in self.state
                and f not in self.fresh
                and a.mem not in whole
            ):
                raise _missing(f, a.stmt.span)
            if isinstance(f, Field) and f not in self.state:
                self.written[f] = None
                if a.mem in whole:
                    self.fresh.add(f)

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.trace.wrote(field, index, value)
        self._written_whole(field, index)

    def _written_whole(self, field: Field, index: Index) -> None:
        if field not in self.state:
            self.written[field] = None
            if index is None:
                self.fresh.add(field)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if source in self.written and source not in self.fresh:
            raise _missing(source, Span.of_caller())
        self.trace.copied(target, source, to, at)
        self._written_whole(target, to)

    def stopped(self, field: Field) -> None:
        self.trace.stopped(field)

    def replaced(self, backward: Callable[[], Any], inside: Tape) -> None:
        raise AutodiffError(
            "a function with a gradient of its own can not be part of a checkpointed step yet",
            Span.of_caller(),
            hint="call ds.ad.checkpoint inside of that function instead",
        )


def _is_extreme(a: Access) -> bool:
    """Whether it is an update whose adjoint looks at what was there before (a minimum or maximum)."""
    return isinstance(a.stmt, Atomic) and a.stmt.op in ("min", "max") and a.mem.grad is not None


def _missing(f: Field, span: Span | None) -> AutodiffError:
    return AutodiffError(
        f"{f.name} may carry something from one step to the next, and is not in the state of the "
        "checkpointed rollout",
        span,
        hint=f"add {f.name} to state=[...], or set all of it at the start of each step "
        f"({f.name}.fill(0), or a loop that stores every element)",
    )


Snapshot = list[Copy]


class _Rollout:
    def __init__(
        self,
        step: Callable[[int], Any],
        n_steps: int,
        state: Sequence[Field],
        snapshots: int | None,
        memory: int | None,
        progress: bool,
    ) -> None:
        where = Span.of_caller()
        if not callable(step):
            raise FieldError(f"the step is a function of t, not {step!r}", where)
        if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 0:
            raise FieldError(f"n_steps is a whole number from 0 on, not {n_steps!r}", where)
        fields: list[Any] = list(state) if isinstance(state, (list, tuple)) else [state]
        if not fields or any(not isinstance(f, Field) for f in fields):
            raise FieldError(
                "state is a list of fields", where, hint="ds.ad.checkpoint(step, n, state=[x, v])"
            )
        self.step = step
        self.n = n_steps
        self.state: list[Field] = list(dict.fromkeys(fields))
        size = sum(f.storage.form.nbytes for f in self.state)
        if snapshots is not None and memory is not None:
            raise FieldError("give snapshots or memory, not both", where)
        if memory is not None:
            if memory < size:
                raise FieldError(
                    f"a snapshot takes {size} bytes, and memory={memory} is less", where
                )
            snapshots = memory // size
        if snapshots is None:
            snapshots = math.isqrt(max(n_steps, 1)) + 1
        if isinstance(snapshots, bool) or not isinstance(snapshots, int) or snapshots < 1:
            raise FieldError(f"snapshots is a whole number from 1 on, not {snapshots!r}", where)
        self.snapshots = snapshots
        self.progress = progress
        self.stats = CheckpointStats(size)
        self.held = 0
        self.launches = [0] * n_steps
        self.traces = [0] * n_steps
        self.kept: dict[int, Snapshot] = {}
        self.written: list[Field] = []

    # ---- forward

    def run(self, t: int) -> None:
        """Run a step; again with the random numbers of the first time."""
        self.stats.steps_run += 1
        self.step(t)

    def forward(self, tape: Any) -> None:
        """Run all steps, keeping the snapshots that the backward pass starts from."""
        positions = set(self.plan(0, self.n, self.snapshots))
        watch = _Watch(tape, set(self.state))
        session.tape = watch
        try:
            for t in range(self.n):
                if t in positions:
                    self.kept[t] = self.take()
                self.launches[t] = session.launches
                watch.next_step()
                self.run(t)
                if session.tape is not watch:
                    raise AutodiffError("the step changed the tape", Span.of_caller())
                self.traces[t] = watch.trace.number
        finally:
            if session.tape is watch:
                session.tape = tape
        self.written = list(watch.written)
        tape.rolled_out(self.backward, [*self.state, *self.written], watch.kept, self.all_of_it)

    def all_of_it(self) -> None:
        """Run all steps."""
        for t in range(self.n):
            session.launches = self.launches[t]
            self.step(t)

    def plan(self, lo: int, hi: int, free: int) -> list[int]:
        """Where the snapshots of a first forward run through lo..hi stand."""
        made = []
        while free > 0 and hi > lo:
            made.append(lo)
            free -= 1
            if free == 0:
                break
            lo = self.split(lo, hi, free)
        return made

    @staticmethod
    def split(lo: int, hi: int, free: int) -> int:
        """Where to take the next snapshot between lo and hi, with `free` of them left."""
        n = hi - lo
        if n <= free + 1:
            return lo + 1
        runs = 1
        while math.comb(free + 1 + runs, runs) < n:
            runs += 1
        # As much as the rest, with one snapshot less, manages in `runs`: at least one step each.
        rest = math.comb(free + runs, runs)
        return max(lo + 1, hi - rest)

    def take(self) -> Snapshot:
        self.held += 1
        self.stats.snapshots = max(self.stats.snapshots, self.held)
        return [f.storage.take() for f in self.state]

    def restore(self, snapshot: Snapshot) -> None:
        for f, values in zip(self.state, snapshot, strict=True):
            f.storage.put(values)
            f._touch()

    # ---- backward

    def backward(self) -> None:
        """The adjoint of the rollout: gradients of the state go from its end to its start."""
        fields = [*self.state, *self.written]
        final = [Saved((f, None)) for f in fields]
        launches = session.launches
        kept = dict(sorted(self.kept.items()))
        self.held = len(kept)
        hi = self.n
        try:
            for lo in reversed(kept):
                self.sweep(lo, hi, kept[lo], self.snapshots - self.held)
                self.held -= 1
                hi = lo
        finally:
            for saved in final:
                saved.swap()
            session.launches = launches
        if self.progress:
            sys.stderr.write("\n")

    def sweep(self, lo: int, hi: int, start: Snapshot, free: int) -> None:
        """The adjoints of the steps lo..hi, given the state at lo and `free` more snapshots."""
        while hi - lo > 1:
            middle = self.split(lo, hi, free) if free else hi - 1
            self.restore(start)
            for t in range(lo, middle):
                self.again(t)
            if free:
                here = self.take()
                self.sweep(middle, hi, here, free - 1)
                self.held -= 1
            else:
                self.adjoint(middle)
            hi = middle
        self.restore(start)
        self.adjoint(lo)

    def again(self, t: int) -> None:
        """Run a step once more, only to get to the next one."""
        session.launches = self.launches[t]
        session.tape = trace = _Trace()
        try:
            self.run(t)
        finally:
            session.tape = None
        self.compare(t, trace)

    def compare(self, t: int, trace: _Trace) -> None:
        if trace.number != self.traces[t]:
            raise AutodiffError(
                f"step {t} of the checkpointed rollout did something else when it was run again",
                Span.of_caller(),
                hint="let it depend on t and on the fields in state alone: Python code in it must not look "
                "at sums so far, counters of its own or other fields",
            )

    def adjoint(self, t: int) -> None:
        """The adjoint of one step, from the state as it is now."""
        tape = _Repeat()
        session.launches = self.launches[t]
        with tape:
            self.run(t)
        self.compare(t, tape.trace)
        tape.sweep()
        if self.progress:
            done = self.n - t
            bar = "#" * (30 * done // self.n)
            sys.stderr.write(f"\rbackward [{bar:<30}] {done}/{self.n}")
