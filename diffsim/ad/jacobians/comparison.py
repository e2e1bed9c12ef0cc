"""Gradients of one program compared with differences: every derivative, or random directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from diffsim.ad.jacobians import differences
from diffsim.ad.jacobians.arguments import limit
from diffsim.ad.jacobians.program import Program, by_rows, size
from diffsim.ad.jacobians.report import Row
from diffsim.errors import AutodiffError, Span
from diffsim.ir.layout import shown_index
from diffsim.runtime.fields.field import Field

_HINT = (
    "at a kink or jump the differences are wrong; else look at gradients written by hand, and at what the "
    "function reads besides its inputs"
)
_TINY = 1e-30
_HALVED = 0.1
"""The share of a difference between two numbers by which halving the step must change one of them."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a comparison; see `gradcheck`."""

    eps: float | None = None
    atol: float | None = None
    rtol: float | None = None
    max_inputs: int | None = None
    max_outputs: int | None = None
    directions: int = 0
    seed: int = 0
    differences: str = "central"


@dataclass(slots=True)
class Compared:
    """One pair: both matrices, which of their entries were compared, and which of those differ."""

    input: Field
    output: Field
    by_tape: np.ndarray
    by_steps: np.ndarray
    seen: np.ndarray
    bad: np.ndarray
    errors: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        # NaN of matrices, or infinities that are subtracted, are errors and no warnings.
        with np.errstate(invalid="ignore"):
            self.errors = np.abs(self.by_tape - self.by_steps)

    @property
    def relative(self) -> np.ndarray:
        """The errors as parts of what the differences say."""
        with np.errstate(invalid="ignore"):
            made: np.ndarray = self.errors / np.maximum(np.abs(self.by_steps), _TINY)
        return made

    @property
    def worst(self) -> tuple[int, int]:
        """The place of the largest error; of the first one that differs, if some do."""
        if self.bad.any():
            row, column = np.argwhere(self.bad)[0]
        else:
            errors = np.where(self.seen, self.errors, -1)
            row, column = np.unravel_index(int(errors.argmax()), errors.shape)
        return int(row), int(column)

    def row(self, launch: str, *, components: bool) -> Row:
        """Return the line of the table."""
        row, column = self.worst
        where = f"{component(self.output, row)}, {component(self.input, column)}"
        return Row(
            launch,
            self.input.name,
            self.output.name,
            int(self.seen.sum()),
            float(self.errors[self.seen].max(initial=0.0)),
            float(self.relative[self.seen].max(initial=0.0)),
            where if components else f"direction {column}",
            not self.bad.any(),
        )


def component(f: Field, number: int) -> str:
    """Return a component of a field as a user would write it."""
    at = np.unravel_index(number, f.shape + f.element) if f.shape + f.element else ()
    inside = shown_index(f.origin, at[: len(f.shape)])
    inner = ", ".join(str(int(k)) for k in at[len(f.shape) :])
    return f"{f.name}[{inside}]" + (f"[{inner}]" if inner else "")


# ---- every derivative


def compare(program: Program, options: Options) -> list[Compared]:
    """Compare all derivatives of each pair, within the limits."""
    by_tape = by_rows(program, options.max_outputs)
    by_steps = differences.columns(program, options.differences, options.eps, options.max_inputs)
    found = []
    for i, o in program.pairs:
        ad, fd = by_tape[i, o], by_steps[i, o]
        # Rows and columns beyond the limits are NaN in one of the two matrices.
        seen = np.zeros(ad.shape, bool)
        seen[: limit(o, options.max_outputs), : limit(i, options.max_inputs)] = True
        found.append(
            Compared(i, o, ad, fd, seen, seen & ~_agree(ad, fd, np.abs(fd), i, o, options))
        )
    return found


def _agree(
    ad: np.ndarray, fd: np.ndarray, scale: np.ndarray, i: Field, o: Field, options: Options
) -> np.ndarray:
    allowed = differences.tolerance(options.differences, (i, o))
    atol = allowed.atol if options.atol is None else options.atol
    rtol = allowed.rtol if options.rtol is None else options.rtol
    # Negated by the caller, so that a NaN on either side counts as a difference.
    with np.errstate(invalid="ignore"):
        made: np.ndarray = np.abs(ad - fd) <= atol + rtol * scale
    return made


def explain(program: Program, wrong: Compared, options: Options, launch: str) -> AutodiffError:
    """Return the error for a derivative that differs."""
    row, column = wrong.worst
    i, o = wrong.input, wrong.output
    ad, fd = wrong.by_tape[row, column], wrong.by_steps[row, column]
    where = f"in launch {launch}: " if launch else ""
    if options.directions:
        what = f"the derivative of {o.name} by {i.name} along random direction {column}"
        said = ""
    else:
        what = f"d {component(o, row)} / d {component(i, column)}"
        said = "" if options.differences == "complex" else _said_of_step(program, wrong, options)
    digits = 8 if f"{ad:.8g}" != f"{fd:.8g}" else 17  # the latter are all that a double has
    by_tape, by_steps = f"{ad:.{digits}g}", f"{fd:.{digits}g}"
    return AutodiffError(
        f"{where}{what} is {by_tape} by the tape and {by_steps} by {_NAMES[options.differences]}{said}",
        Span.of_caller(),
        hint=_HINT,
    )


_NAMES = {
    "central": "central differences",
    "richardson": "extrapolated differences",
    "ridders": "extrapolated differences",
    "complex": "a complex step",
}


def _said_of_step(program: Program, wrong: Compared, options: Options) -> str:
    """Tell whether the difference itself changes much with the step, as it does at a kink."""
    row, column = wrong.worst
    i, o = wrong.input, wrong.output
    h = differences.step_of(program, options.differences, i, options.eps) / 2
    again = differences.column(program, options.differences, i, column, h)
    half = float(again[program.outputs.index(o)][row])
    fd, ad = wrong.by_steps[row, column], wrong.by_tape[row, column]
    steady = abs(half - fd) <= _HALVED * abs(ad - fd) or np.isnan(half)
    # How much half the step changes is an estimate of the error.
    return f" (± {abs(half - fd):.0e})" if steady else f" ({half:.8g} with half the step)"


# ---- random directions


def at_a_component(program: Program, wrong: Compared, options: Options) -> Compared:
    """Find, by halving a field of many numbers, one number of those that make a direction's derivative wrong.

    Each half of a wrong sum is looked at by itself, and the one that is wrong by more halved again.
    """
    f, o = wrong.input, wrong.output
    by_tape = program.pull_back({o: np.ones(size(o))})[f]
    h = differences.step_of(program, options.differences, f, options.eps)
    slopes = differences.SCHEMES[options.differences].slopes
    along = np.random.default_rng(options.seed).standard_normal(size(f))
    numbers = np.arange(size(f))
    while len(numbers) > 1:
        halves = np.array_split(numbers, 2)
        errors = []
        for half in halves:
            part = np.zeros(size(f))
            part[half] = along[half]
            slope = float(slopes(program, {f: part}, h)[program.outputs.index(o)].sum())
            errors.append(abs(slope - float(by_tape @ part)))
        numbers = halves[int(np.argmax(errors))]
    column = int(numbers[0])
    found = differences.column(program, options.differences, f, column, options.eps)
    by_steps = np.full((1, size(f)), np.nan)
    by_steps[0, column] = found[program.outputs.index(o)].sum()
    seen = np.arange(size(f))[None] == column
    return Compared(f, o, by_tape[None], by_steps, seen, seen)


def compare_directions(program: Program, options: Options) -> list[Compared]:
    """Compare w . J v for random w and v: one backward pass and two runs decide about a whole matrix.

    A wrong entry of J is missed with probability 0; what is small beside the others may be hidden by them.
    """
    rng = np.random.default_rng(options.seed)
    found = {pair: np.empty((2, 1, options.directions)) for pair in program.pairs}
    scales = {pair: np.empty((1, options.directions)) for pair in program.pairs}
    for k in range(options.directions):
        for pair, numbers in _one_direction(program, rng, options):
            found[pair][:, 0, k] = numbers[:2]
            scales[pair][0, k] = numbers[2]
    made = []
    for (i, o), (ad, fd) in found.items():
        seen = np.ones(ad.shape, bool)
        made.append(Compared(i, o, ad, fd, seen, ~_agree(ad, fd, scales[i, o], i, o, options)))
    return made


def _one_direction(
    program: Program, rng: np.random.Generator, options: Options
) -> Iterator[tuple[tuple[Field, Field], tuple[float, float, float]]]:
    """Yield for each pair: w . J v by the tape and by differences, and the size of the terms of the sum."""
    along = {i: rng.standard_normal(size(i)) for i, _ in program.pairs}
    weights = {o: rng.standard_normal(size(o)) for _, o in program.pairs}
    for f, most in ((along, options.max_inputs), (weights, options.max_outputs)):
        for g in f:
            f[g][limit(g, most) :] = 0
    pulled = {o: program.pull_back({o: w}) for o, w in weights.items()}
    scheme = differences.SCHEMES[options.differences]
    for i, v in along.items():
        h = differences.step_of(program, options.differences, i, options.eps)
        slopes = scheme.slopes(program, {i: v}, h)
        for o, slope in zip(program.outputs, slopes, strict=True):
            if (i, o) in program.pairs:
                terms = weights[o] * slope
                # What cancels in the sum is rounded before it does.
                scale = max(abs(float(terms.sum())), float(np.sqrt((terms**2).sum())))
                yield (i, o), (float(pulled[o][i] @ v), float(terms.sum()), scale)
