"""Derivatives without derivative rules, by differences or a complex step: what gradients are compared with.

A step moves inputs along a direction. Values are rounded to the type of the field, so what is divided by is
the step that was really made, not the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from diffsim.ad.jacobians.arguments import limit, offsets
from diffsim.ad.jacobians.complex_step import complex_step
from diffsim.ad.jacobians.program import Program, precision, size
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field

Slopes = list[np.ndarray]
"""For each output of a program the derivatives of its components."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The step, and the absolute and relative tolerance of a comparison."""

    eps: float
    atol: float
    rtol: float


@dataclass(frozen=True, slots=True)
class Scheme:
    """A formula for derivatives, with its tolerances by the bytes of the numbers.

    The steps are where the error is least: the rounding of the function grows as 1 / h, truncation as a power
    of h.
    """

    slopes: Callable[[Program, Mapping[Field, np.ndarray], float], Slopes]
    tolerances: Mapping[int, Tolerance]


def _central(program: Program, along: Mapping[Field, np.ndarray], h: float) -> Slopes:
    """Error O(h^2), one order better than that of a one-sided difference."""
    ahead, behind = (program.outputs_at({f: s * d for f, d in along.items()}) for s in (h, -h))
    made = 2 * h * _made(program, along, h)
    return [(a - b) / made for a, b in zip(ahead, behind, strict=True)]


def _made(program: Program, along: Mapping[Field, np.ndarray], h: float) -> float:
    """Return the ratio of the step that was made, between two rounded points, to the one wanted."""
    gone = wanted = 0.0
    for f, d in along.items():
        x = program.start.values(f).reshape(-1)
        ahead, behind = ((x + s * d).astype(f.dtype.numpy).astype(float) for s in (h, -h))
        gone += float((ahead - behind) @ d)
        wanted += 2 * h * float(d @ d)
    return gone / wanted


def _richardson(program: Program, along: Mapping[Field, np.ndarray], h: float) -> Slopes:
    """Error O(h^4): the errors of two steps, one half of the other, cancel in their h^2 terms."""
    coarse, fine = _central(program, along, h), _central(program, along, h / 2)
    return [(4 * b - a) / 3 for a, b in zip(coarse, fine, strict=True)]


_LEAST, _MOST = 4, 10


def _ridders(program: Program, along: Mapping[Field, np.ndarray], h: float) -> Slopes:
    """Extrapolate from steps that are halved, and take for each output the value whose error seems least.

    (C. J. F. Ridders, Accurate computation of F'(x) and F'(x) F''(x), 1982.) Steps may be large, so rounding
    is divided by much; one that leaves the domain of the function makes NaN, and is passed over.
    """
    allowed = tolerance("ridders", (*along, *program.outputs))
    above = [np.concatenate(_central(program, along, h))]
    best, least = above[0], np.full(above[0].shape, np.inf)
    for halvings in range(1, _MOST + 1):
        row = [np.concatenate(_central(program, along, h / 2**halvings))]
        with np.errstate(invalid="ignore"):
            for order, coarse in enumerate(above, 1):
                fine = row[-1]
                row.append(fine + (fine - coarse) / (4**order - 1))
                # How much the last step of the extrapolation has changed is an estimate of the error.
                error = np.maximum(np.abs(row[-1] - fine), np.abs(row[-1] - coarse))
                best = np.where(error < least, row[-1], best)
                least = np.where(error < least, error, least)
            sure = 10 * least <= allowed.atol + allowed.rtol * np.abs(best)
        if halvings >= _LEAST and sure.all():
            break
        above = row
    return np.split(best, np.cumsum([size(o) for o in program.outputs])[:-1])


SCHEMES = {
    "central": Scheme(_central, {4: Tolerance(1e-2, 1e-3, 1e-2), 8: Tolerance(1e-5, 1e-7, 1e-6)}),
    "richardson": Scheme(
        _richardson, {4: Tolerance(4e-2, 3e-4, 3e-3), 8: Tolerance(1e-3, 1e-9, 1e-8)}
    ),
    "ridders": Scheme(_ridders, {4: Tolerance(1e-1, 1e-4, 1e-3), 8: Tolerance(2e-2, 1e-11, 1e-10)}),
    # No difference, so no rounding of one: what is allowed is the rounding of the gradient.
    "complex": Scheme(
        complex_step,
        {
            2: Tolerance(1e-30, 1e-5, 1e-4),  # gradients of f16 are f32
            4: Tolerance(1e-30, 1e-5, 1e-4),
            8: Tolerance(1e-30, 1e-12, 1e-11),
        },
    ),
}


def tolerance(scheme: str, fields: Iterable[Field]) -> Tolerance:
    """Return the tolerance of comparisons between these fields."""
    return SCHEMES[scheme].tolerances[precision(list(fields))]


def step_of(program: Program, scheme: str, f: Field, eps: float | None) -> float:
    """Return the step for one input.

    Raises:
        AutodiffError: a number is rounded so much that no step is small enough and large enough.
    """
    coarse = next((g for g in (f, *program.start.saved) if not _has_steps(g, scheme)), None)
    if coarse is not None:
        raise AutodiffError(
            f"{coarse.name} is of {coarse.dtype}: the rounding of its numbers hides what a step changes, and "
            "differences tell nothing about a gradient",
            Span.of_caller(),
            hint='compare with differences="complex" (ds.ad.gradcheck), or check the program with fields of '
            "ds.f64",
        )
    return tolerance(scheme, (f, *program.outputs)).eps if eps is None else eps


def _has_steps(f: Field, scheme: str) -> bool:
    return not f.dtype.is_float or f.dtype.bytes in SCHEMES[scheme].tolerances


def column(program: Program, scheme: str, f: Field, number: int, eps: float | None) -> Slopes:
    """Return the derivatives of the outputs with respect to one component of an input."""
    h = step_of(program, scheme, f, eps)
    value = float(program.start.values(f).reshape(-1)[number])
    # A step that is lost in the rounding of a large number would be none.
    h = h * max(1.0, abs(value)) if eps is None else h
    by = np.zeros(size(f))
    by[number] = 1
    return SCHEMES[scheme].slopes(program, {f: by}, h)


def steps(program: Program, eps: float | None) -> np.ndarray:
    """Return the step of each component of the inputs in a row, for central differences."""
    found = []
    for f in program.inputs:
        h, values = step_of(program, "central", f, eps), program.start.values(f).reshape(-1)
        found.append(h * np.maximum(1.0, np.abs(values)) if eps is None else np.full(size(f), h))
    return np.concatenate(found)


def differences(program: Program, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of all outputs between two runs, a step ahead and behind, and the steps made."""
    parts = {f: step[at : at + size(f)] for f, at in offsets(program.inputs).items() if size(f)}
    made = []
    for f, part in parts.items():
        x = program.start.values(f).reshape(-1)
        ahead, behind = ((x + s).astype(f.dtype.numpy).astype(float) for s in (part, -part))
        made.append(ahead - behind)
    ends = [
        np.concatenate(program.outputs_at({f: sign * part for f, part in parts.items()}))
        for sign in (1, -1)
    ]
    return ends[0] - ends[1], np.concatenate(made)


def columns(
    program: Program, scheme: str, eps: float | None, most: int | None
) -> dict[tuple[Field, Field], np.ndarray]:
    """Return the Jacobian of each pair by differences, column by column; NaN in columns left out."""
    made = {(i, o): np.full((size(o), size(i)), np.nan) for i, o in program.pairs}
    for i in dict.fromkeys(i for i, _ in program.pairs):
        for number in range(limit(i, most)):
            slopes = column(program, scheme, i, number, eps)
            for o, slope in zip(program.outputs, slopes, strict=True):
                if (i, o) in made:
                    made[i, o][:, number] = slope
    return made
