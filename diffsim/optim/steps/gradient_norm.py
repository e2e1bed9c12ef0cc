"""The length of the gradients of all parameters together, in one launch; and where one is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, Span
from diffsim.ir.layout import shown_index
from diffsim.ir.types import f64
from diffsim.lang.builtins.intrinsics import cast, grouped, static
from diffsim.lang.host.func import func
from diffsim.runtime.fields.constructors import make_field
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import kernel


@func
def _add_square(total, grad, at):
    g = cast(grad[at], f64)
    if static(len(grad.element) == 0):
        total[None] += g * g
    else:
        total[None] += (g * g).sum()


def norm_kernel(fields: Sequence[Field]) -> Callable[[], float]:
    """Make the kernel that returns the sum of the squares of all gradients, in f64."""
    grads = [f.grad for f in fields]
    total: Any = make_field((), f64, (), "total", False, None)

    @kernel
    def sum_of_squares() -> f64:  # type: ignore[valid-type]
        total[None] = 0.0
        for k in static(range(len(grads))):
            if static(len(grads[k].shape) == 0):
                _add_square(total, grads[k], None)
            else:
                for at in grouped(grads[k]):
                    _add_square(total, grads[k], at)
        return total[None]

    made: Callable[[], float] = sum_of_squares
    return made


def length_of(squares: float, fields: Mapping[str, Field]) -> float:
    """Return the length of all gradients from the sum of their squares; NaN if one is not finite."""
    if math.isfinite(squares):
        return math.sqrt(squares)
    # Squares of finite numbers of f64 can be infinite.
    arrays = [_gradient(f).to_numpy(dtype=np.float64) for f in fields.values()]
    if not all(np.isfinite(a).all() for a in arrays):
        return math.nan
    largest = max(float(np.abs(a).max()) for a in arrays)
    return largest * math.sqrt(sum(float(((a / largest) ** 2).sum()) for a in arrays))


def not_finite(fields: Mapping[str, Field], step: int) -> AutodiffError:
    """Return the error for a gradient that holds NaN or an infinity: which field, and where."""
    for f in fields.values():
        values = _gradient(f).to_numpy()
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            at = shown_index(f.origin, wrong[0][: len(f.shape)])
            component = "".join(f", {c}" for c in wrong[0][len(f.shape) :])
            at += f"][{component[2:]}" if component else ""
            value = values[tuple(wrong[0])]
            return AutodiffError(
                f"{f.name}.grad[{at}] is {value} before step {step + 1}: no parameter was changed "
                f"({len(wrong)} of {values.size} numbers of {f.name}.grad are not finite)",
                Span.of_caller(),
                hint="ds.Tape(check_nan=True) names the operation that made the first one",
            )
    raise AssertionError("all gradients are finite")


def _gradient(f: Field) -> Field:
    assert f.grad is not None
    return f.grad
