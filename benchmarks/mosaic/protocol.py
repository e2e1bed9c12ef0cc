"""What Mosaic measures of any solver: the gradient against differences, and times."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Inputs = Mapping[str, Any]
Row = tuple[str, str, str]  # what, the best that is published, ours


class Solver(NamedTuple):
    """A module's functions, with the input by which is differentiated and the output that counts."""

    apply: Callable[[Inputs], dict[str, np.ndarray]]
    vjp: Callable[[Inputs, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
    control: str
    output: str

    def loss(self, inputs: Inputs, control: np.ndarray) -> float:
        """Mosaic's number to differentiate: the sum of the squares of the output."""
        return float(np.sum(self.apply({**inputs, self.control: control})[self.output] ** 2))

    def gradient(self, inputs: Inputs) -> np.ndarray:
        """Of `loss`, by the control."""
        outputs = self.apply(inputs)
        return self.vjp(inputs, {self.output: 2 * outputs[self.output]})[self.control]


def difference_error(
    solver: Solver, inputs: Inputs, steps: Sequence[float], directions: int, seed: int = 0
) -> tuple[float, float]:
    """The error of directional derivatives against central differences.

    The steps are in root mean squares of the control. As in Mosaic, the error is the median over
    directions of unit length, of the best step.

    Returns:
        The error, and the cosine of the two vectors of derivatives with that step.
    """
    control = np.asarray(inputs[solver.control], float)
    random = np.random.default_rng(seed)
    ways = [v / np.linalg.norm(v) for v in random.standard_normal((directions, *control.shape))]
    given = np.array([np.sum(solver.gradient(inputs) * v) for v in ways])
    found = []
    for step in steps:
        size = step * np.sqrt(np.mean(control**2))
        ahead = np.array([solver.loss(inputs, control + size * v) for v in ways])
        back = np.array([solver.loss(inputs, control - size * v) for v in ways])
        by_difference = (ahead - back) / (2 * size)
        largest = np.maximum(np.abs(by_difference), np.abs(given))
        error = np.median(np.abs(by_difference - given) / largest)
        lengths = np.linalg.norm(by_difference) * np.linalg.norm(given)
        found.append((float(error), float(by_difference @ given / lengths)))
    return min(found)


def seconds(call: Callable[[], Any], trials: int = 3, warm: bool = True) -> tuple[float, float]:
    """The least time of some runs, after one that is not counted, by the clock and of the processor."""
    if warm:
        call()
    found = []
    for _ in range(trials):
        clock, processor = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - clock, time.process_time() - processor))
    return min(clock for clock, _ in found), min(processor for _, processor in found)


def adam(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    rate: float,
    iterations: int,
    patience: int,
    limits: tuple[float, float],
) -> tuple[np.ndarray, list[float]]:
    """Mosaic's optimiser: Adam, values cut at the limits, an end when nothing gets better.

    Returns:
        The best values, and all losses.
    """
    x, best, losses = start.copy(), start, []
    mean, square = np.zeros_like(x), np.zeros_like(x)
    while len(losses) < iterations:
        value, gradient = loss(x)
        if value < min(losses, default=np.inf):
            best = x.copy()
        losses.append(value)
        if len(losses) - 1 - int(np.argmin(losses)) >= patience:
            break
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        t = len(losses)
        move = mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        x = np.clip(x - rate * move, *limits)
    return best, losses
