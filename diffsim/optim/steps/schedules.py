"""Learning rates that change: functions from the number of the step, from 0 on, to the rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from diffsim.errors import ArgumentError, Span
from diffsim.lang.host.signatures import checked, need_number, need_whole
from diffsim.lang.host.source import check_runs

Schedule = Callable[[int], float]
"""From the number of a step, 0 for the first one, to its learning rate."""


@checked
def constant(lr: float) -> Schedule:
    """Use the same learning rate in all steps.

    Example:
        print(ds.optim.constant(0.1)(1000))  # prints: 0.1
    """
    _need_rate(lr, "lr")
    return lambda step: lr


@checked
def warm_up(lr: float | Schedule, steps: int) -> Schedule:
    """Let the learning rate grow in proportion to the number of the step, until it is what it would be.

    Args:
        lr: a learning rate, or another schedule.
        steps: the first one has the share 1/`steps` of the rate, and number `steps` the whole one.

    Example:
        rate = ds.optim.warm_up(0.5, steps=4)
        print(rate(0), rate(3), rate(100))  # prints: 0.125 0.5 0.5
    """
    _need_steps(steps, "steps")
    rate = schedule_of(lr)
    return lambda step: rate(step) * min(1.0, (step + 1) / steps)


@checked
def cosine(lr: float, steps: int, least: float = 0.0) -> Schedule:
    """Let the learning rate fall from `lr` to `least` along half a wave of a cosine.

    Args:
        lr: of the first step.
        steps: how many steps the fall takes; afterwards the rate stays at `least`.
        least: the last rate.

    Example:
        rate = ds.optim.cosine(1.0, steps=10)
        print(rate(0), round(rate(5), 6), rate(10))  # prints: 1.0 0.5 0.0
    """
    _need_rate(lr, "lr")
    _need_steps(steps, "steps")
    _need_rate(least, "least")
    return lambda step: least + (lr - least) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


@checked
def exponential(lr: float, factor: float) -> Schedule:
    """Multiply the learning rate by a factor after each step.

    Example:
        rate = ds.optim.exponential(1.0, factor=0.5)
        print(rate(0), rate(1), rate(2))  # prints: 1.0 0.5 0.25
    """
    _need_rate(lr, "lr")
    _need_rate(factor, "factor")
    return lambda step: lr * factor**step


@checked
def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """Multiply the learning rate by a factor after each so many steps.

    Example:
        rate = ds.optim.step_decay(1.0, every=10, factor=0.5)
        print(rate(9), rate(10), rate(20))  # prints: 1.0 0.5 0.25
    """
    _need_rate(lr, "lr")
    _need_steps(every, "every")
    _need_rate(factor, "factor")
    return lambda step: lr * factor ** (step // every)


def schedule_of(lr: float | Schedule) -> Schedule:
    """Return a learning rate as a schedule."""
    if callable(lr):
        check_runs(lr, "the learning rate", ("step",))
        return lr
    _need_rate(lr, "lr")
    return lambda step: lr


def rate_at(schedule: Schedule, step: int) -> float:
    """Return the learning rate of a step.

    Raises:
        ArgumentError: the schedule gives something that is no rate.
    """
    rate = schedule(step)
    _need_rate(rate, f"the learning rate of step {step}")
    return float(rate)


def _need_rate(rate: float, what: str) -> None:
    hint = "give a number from 0 on, such as 0.01"
    need_number(rate, what, hint)
    if rate is None or rate < 0:
        raise ArgumentError(f"{what} is a number from 0 on, not {rate}", Span.of_caller(), hint)


def _need_steps(steps: int, what: str) -> None:
    need_whole(steps, what)
    if steps is None or steps < 1:
        raise ArgumentError(
            f"{what} is a whole number from 1 on, not {steps}",
            Span.of_caller(),
            hint=f"write {what}=100",
        )
