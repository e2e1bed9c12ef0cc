"""The actions that a checkpointed rollout will take: `ds.ad.checkpoint_plan`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

from diffsim.ad.schedules.actions import Action, Holdings, backward, forward
from diffsim.errors import ArgumentError, OptionError, Span, shown
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.unsupported import Explained


class CheckpointPlan(Explained):
    """The schedule of a checkpointed rollout, made by `ds.ad.checkpoint_plan` step by step as it is iterated.

    Attributes:
        n_steps: the number of steps.
        steps_run: how often a step is run, forward and backward together.
        runs_per_step: that divided by the number of steps.

    Example:
        plan = ds.ad.checkpoint_plan(10, snapshots=10)
        print(plan.n_steps, plan.steps_run, plan.runs_per_step)  # prints: 10 10 1.0
    """

    _words = "a plan of checkpoints"

    def __init__(self, n_steps: int, options: dict[str, Any], *, disk: bool) -> None:
        self.n_steps = n_steps
        self._options = options
        self._disk = disk
        self.steps_run = int(self._holdings().planned(n_steps))
        self.runs_per_step = self.steps_run / max(1, n_steps)

    def _holdings(self) -> Holdings:
        """Return what is held at the start: the first state."""
        held = Holdings(**self._options)
        if self._disk:
            held.spacing = held.lengths(0)[0]
        held.add_state(0, None, 0 if self._disk else held.state_bytes)
        return held

    def __iter__(self) -> Iterator[Action]:
        return self._actions(self._holdings())

    def _actions(self, held: Holdings) -> Iterator[Action]:
        """Yield all actions; `held` is what is held after each."""
        yield Action("store" if self._disk else "hold", 0)
        yield from held.follow(forward(0, self.n_steps, held))
        yield from held.follow(backward(self.n_steps, held))

    def __repr__(self) -> str:
        return (
            f"<checkpoint plan: {self.n_steps} steps, {self.steps_run} runs, "
            f"{self.runs_per_step:.3f} of each step>"
        )

    def __str__(self) -> str:
        first = [str(a) for a in itertools.islice(self, 13)]
        more = ["..."] if len(first) > 12 else []
        return "\n".join([repr(self), *(f"  {a}" for a in first[:12]), *more])

    def plot(self, ax: Any = None) -> Any:
        """Draw what is run from left to right, steps downward, and below it the memory that is held.

        Args:
            ax: matplotlib's axes, for the steps alone; None: a new figure with both.

        Returns:
            The axes of the steps.

        Example:
            ax = ds.ad.checkpoint_plan(10, snapshots=3).plot()
            ax.figure.savefig("plan.png")
            print(len(ax.figure.axes))  # prints: 2
        """
        from matplotlib import pyplot as plt

        below = None
        if ax is None:
            figure = plt.figure(figsize=(8, 5.5), layout="constrained")
            ax, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        held = self._holdings()
        runs = _Runs(self._actions(held), held)
        for kind, (color, label) in _KINDS.items():
            x, y = runs.lines[kind]
            ax.plot(x, y, color, label=label, linewidth=1.4)
        for step, begin, end in runs.held:
            ax.plot([begin, end], [step, step], "k:", linewidth=0.8)
        ax.plot([], [], "k:", linewidth=0.8, label="state held")
        ax.set(ylabel="step", title=repr(self)[1:-1])
        ax.invert_yaxis()
        ax.legend(loc="lower left", frameon=False)
        if below is not None:
            at, states, tapes = zip(*runs.memory, strict=True)
            colors = ["0.75", "tab:blue"]
            below.stackplot(
                at, states, tapes, labels=["states", "tapes"], colors=colors, step="post"
            )
            below.set(ylabel="bytes" if self._options["state_bytes"] > 1 else "held")
            below.invert_yaxis()
            below.legend(loc="lower left", frameon=False)
        (ax if below is None else below).set(xlabel="runs and adjoints of steps")
        return ax


_KINDS = {
    "run": ("tab:gray", "run"),
    "tape": ("tab:blue", "run on a tape"),
    "reverse": ("tab:red", "adjoint"),
}


class _Runs:
    """The actions of a schedule, as lines to draw.

    Attributes:
        lines: for each kind the points of its lines, with NaN between them.
        held: the step of each state, and from when to when it is held.
        memory: when, and how much states and tapes take from then on.
    """

    def __init__(self, actions: Iterator[Action], held: Holdings) -> None:
        self.lines: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in _KINDS}
        self.held: list[tuple[int, int, int]] = []
        self.memory: list[tuple[int, int, int]] = []
        at, since = 0, {}
        for a in actions:
            self._add_memory(at, held)
            if a.kind in ("hold", "store"):
                since[a.step] = at
            elif a.kind == "drop":
                self.held.append((a.step, since.pop(a.step), at))
            elif a.kind in _KINDS:
                steps = a.end - a.step if a.kind == "run" else 1
                ends = a.step, a.step + steps
                self._add(a.kind, at, steps, ends[::-1] if a.kind == "reverse" else ends)
                at += steps
        self._add_memory(at, held)
        self.held += [(step, begin, at) for step, begin in since.items()]

    def _add_memory(self, at: int, held: Holdings) -> None:
        states = sum(size for _, size in held.states.values())
        self.memory.append((at, states, held.used - states))

    def _add(self, kind: str, at: int, steps: int, ends: tuple[int, ...]) -> None:
        x, y = self.lines[kind]
        x += [at, at + steps, math.nan]
        y += [*ends, math.nan]


@checked
def checkpoint_plan(
    n_steps: int,
    snapshots: int | None = None,
    *,
    memory: int | None = None,
    state_bytes: int = 1,
    tape_bytes: int | None = None,
    schedule: Literal["mixed", "binomial"] = "mixed",
    disk: bool = False,
) -> CheckpointPlan:
    """Return the schedule of `ds.ad.checkpoint`, without running anything: print it, iterate it, plot it.

    Args:
        n_steps: number of steps.
        snapshots: memory of so many states; about sqrt(n_steps) if left out.
        memory: or so many bytes for states and tapes.
        state_bytes: bytes of a state.
        tape_bytes: bytes that the tape of one step saves; as many as a state if left out.
        schedule: "mixed" or "binomial".
        disk: whether states are written to a disk.

    Raises:
        ArgumentError: arguments that make no sense; too little memory.

    Example:
        print(ds.ad.checkpoint_plan(1000, snapshots=10).runs_per_step < 4.0)  # prints: True
        for action in list(ds.ad.checkpoint_plan(3, snapshots=3))[:2]:
            print(action)
        # prints: hold 0
        # prints: tape 0
    """
    where = Span.of_caller()
    tape = state_bytes if tape_bytes is None else tape_bytes
    numbers = {"snapshots": snapshots, "memory": memory, "state_bytes": state_bytes}
    for name, number in {"n_steps": n_steps, **numbers, "tape_bytes": tape}.items():
        if number is None and name in ("snapshots", "memory"):
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ArgumentError(
                f"{name} is a whole number from 1 on, not {shown(number)}", where, hint="give one"
            )
    if snapshots is not None and memory is not None:
        raise OptionError(
            "snapshots and memory are both given, and each says how much is held",
            where,
            hint="leave one of them out",
        )
    if schedule not in ("mixed", "binomial"):
        raise OptionError(
            f"{shown(schedule)} has no plan", where, hint='it is "mixed" or "binomial"'
        )
    least = tape + (0 if disk else state_bytes)
    if memory is not None and memory < least:
        raise ArgumentError(
            f"memory={memory} is too little for a state and the tape of one step",
            where,
            hint=f"give at least {least}",
        )
    options = {
        "state_bytes": state_bytes,
        "tape_bytes": tape,
        "states": snapshots or math.isqrt(n_steps) + 1,
        "memory": memory,
        "holds_tapes": schedule == "mixed",
    }
    return CheckpointPlan(n_steps, options, disk=disk)
