"""Long rollouts in bounded memory: `ds.ad.checkpoint`.

A simulator that overwrites its state in every step cannot be differentiated afterwards: the backward pass
needs the state of each step, and only the last one is left. `checkpoint` holds some states, and what tapes of
some steps save; the backward pass runs other steps again from them.

Three schedules decide what is held:

    mixed         States or tapes, whatever spares more runs of steps (`schedules/mixed.py`).
    binomial      States alone, and one step at a time on a tape. With s of them and up to r runs of any step
                  it reaches (s + r)! / (s! r!) steps, and no schedule of states reaches more (A. Griewank,
                  A. Walther, "Algorithm 799: revolve", ACM Transactions on Mathematical Software 26(1), 2000,
                  section 2).
    equidistant   States at equal distances, and all steps from one to the next on a tape: every step is run
                  just twice, and memory grows with the root of the number of steps.

`rollout.py` performs them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from diffsim.ad.enclosing_recorder import enclosing_recorder
from diffsim.ad.rollout import Budget, CheckpointStats, Rollout
from diffsim.ad.schedules.disk_states import DiskStates
from diffsim.errors import ArgumentError, FieldError, OptionError, Span, shown
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.source import check_runs
from diffsim.runtime.fields.field import Field

_SNAPSHOTS = 32
"""Memory of so many states where nobody says how much there is, nor how many steps."""


@checked
def checkpoint(
    step: Callable[[int], Any],
    n_steps: int | None = None,
    state: Sequence[Field] = (),
    *,
    while_: Callable[[int], Any] | None = None,
    schedule: Literal["mixed", "binomial", "equidistant"] = "mixed",
    snapshots: int | None = None,
    memory: int | None = None,
    disk: str | os.PathLike[str] | bool | None = None,
    progress: bool = False,
) -> CheckpointStats:
    """Run `step(t)` for t = 0 .. n_steps - 1; on a tape, differentiate it within a memory budget.

    Args:
        step: launches the kernels of one step. It may overwrite its state in place, call functions with
            gradients of their own, and checkpoint a rollout of substeps itself. It is run several times
            for each t, and must depend on t and the state alone.
        n_steps: number of steps; with `while_` the most, and may be left out.
        state: the fields that carry information from one step to the next.
        while_: where the number of steps is not known: `while_(t)` is asked before each step, once, and the
            first that is not true ends the rollout. It may read fields, and change none.
        schedule: "mixed" (states and tapes: fewest runs), "binomial" (states alone), or "equidistant" (each
            step is run twice, memory grows with the root of their number).
        snapshots: how many copies of the state fit into the memory for states and tapes; about
            sqrt(n_steps) if left out.
        memory: or how many bytes all copies together may take (`stats.peak_bytes`).
        disk: a folder for states, or True for the system's temporary one: each step is run twice at most. The
            files are removed when they are not needed any more.
        progress: whether the backward pass shows a bar on stderr.

    Returns:
        What it took.

    Raises:
        AutodiffError: on a tape, a field that is not in `state` carries something from step to step;
            in the backward pass, a step does something else when it is run again, or takes more memory
            than is there. The disk is full.
        ArgumentError: arguments that make no sense; a budget too small for one step.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 1.0

        @ds.kernel
        def step(t: ds.i32):
            x[None] = 2.0 * x[None]

        with ds.Tape() as tape:
            stats = ds.ad.checkpoint(step, 10, [x], snapshots=3)
        tape.backward(grads={x: 1.0})
        print(x.grad[None], stats.steps_run)  # prints: 1024.0 20
    """
    where = Span.of_caller()
    _check_step(step, n_steps, while_, where)
    _check_schedule(schedule, while_, disk, where)
    fields = _checked_state(state, where)
    _check_budget(snapshots, memory, where)
    # With s >= sqrt(n) snapshots the binomial schedule runs a step at most r = 3 times, since
    # (s + 3) (s + 2) (s + 1) / 6 >= n.
    default = _SNAPSHOTS if n_steps is None else math.isqrt(max(n_steps, 1)) + 1
    outer = enclosing_recorder()
    store = DiskStates(disk) if disk and outer is not None else None
    budget = Budget(schedule, snapshots or default, memory, store)
    line = (0, 0) if where is None else (hash(where.file), where.line)
    key = *line, -2 - fields[0].number  # none of a tape, whose last number is -1 or more
    rollout = Rollout(step, n_steps, while_, fields, budget, progress=progress, key=key)
    # Nobody will differentiate it: then it is a plain loop.
    if outer is None:
        rollout.run_plainly()
    else:
        rollout.forward(outer)
    return rollout.stats


def _checked_state(state: Any, where: Span | None) -> list[Field]:
    """Return the fields of the state; raise FieldError for anything else."""
    fields: list[Any] = list(state) if isinstance(state, (list, tuple)) else [state]
    if not fields or any(not isinstance(f, Field) for f in fields):
        raise FieldError(
            "state is a list of fields", where, hint="ds.ad.checkpoint(step, n, state=[x, v])"
        )
    return list(dict.fromkeys(fields))


def _check_step(step: Any, n_steps: Any, while_: Any, where: Span | None) -> None:
    """Raise ArgumentError for a step, a number of steps or a condition that makes no sense."""
    if not callable(step):
        raise ArgumentError(
            f"the step is a function of t, not {shown(step)}",
            where,
            hint="give a plain function that launches the kernels of one step: def step(t): ...",
        )
    check_runs(step, "the step", ("t",))
    if while_ is not None:
        if not callable(while_):
            raise ArgumentError(
                f"while_ is a function of t, not {shown(while_)}",
                where,
                hint="give a function that says whether step t is run: while_=lambda t: x[None] < 1.0",
            )
        check_runs(while_, "the condition", ("t",))
    if n_steps is None and while_ is not None:
        return
    # `bool` is an `int` in Python, and True a likely slip for a missing argument.
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or not 0 <= n_steps < 2**62:
        raise ArgumentError(
            f"n_steps is a whole number from 0 on, not {shown(n_steps)}",
            where,
            hint="write int(...) around what may be a float: ds.ad.checkpoint(step, int(n), state=[x]); "
            "where the number is not known: while_=lambda t: x[None] < 1.0",
        )


def _check_schedule(schedule: Any, while_: Any, disk: Any, where: Span | None) -> None:
    """Raise ArgumentError for a schedule that there is not, or that does not go with the other arguments."""
    if schedule not in ("mixed", "binomial", "equidistant"):
        raise OptionError(
            f"{shown(schedule)} is not a schedule",
            where,
            hint='it is "mixed", "binomial" or "equidistant"',
        )
    if while_ is not None and schedule == "equidistant":
        raise OptionError(
            "states at equal distances need the number of steps, and while_ leaves it open",
            where,
            hint='take schedule="mixed" or schedule="binomial"',
        )
    if disk and schedule != "mixed":
        raise OptionError(
            f"states on a disk go with the mixed schedule, not with {shown(schedule)}",
            where,
            hint='leave schedule= out, or write schedule="mixed"',
        )


def _check_budget(snapshots: Any, memory: Any, where: Span | None) -> None:
    """Raise ArgumentError for limits that make no sense."""
    if snapshots is not None and memory is not None:
        raise OptionError(
            "snapshots and memory are both given, and each says how many snapshots there are",
            where,
            hint="leave one of them out",
        )
    for name, number in (("snapshots", snapshots), ("memory", memory)):
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (whole and number >= 1):
            what = "bytes, such as 10**9" if name == "memory" else "copies of the state"
            raise ArgumentError(
                f"{name} is a whole number from 1 on, not {shown(number)}",
                where,
                hint=f"give a number of {what}; or leave it out",
            )
