"""Adam (Kingma and Ba 2015): steps divided by the root of the mean square of past gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffsim.errors import ArgumentError, Span, shown
from diffsim.ir.ops import sqrt
from diffsim.ir.types import f64
from diffsim.lang.builtins.intrinsics import cast, grouped, static
from diffsim.lang.host.func import func
from diffsim.lang.host.signatures import checked_methods, need_number
from diffsim.optim.steps.optimizer import Optimizer
from diffsim.optim.steps.schedules import Schedule
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import kernel


@checked_methods("__init__")
class Adam(Optimizer):
    """Adam: each number moves by about the learning rate, however large its gradient is.

        opt = ds.optim.Adam([w, b], lr=0.01)
        for _ in range(100):
            with ds.Tape(loss):
                simulate()
            opt.step()

    Args:
        fields: a field with a gradient, or a list or a dictionary of such fields.
        lr: the learning rate: a number, or a function from the number of the step, from 0 on.
        betas: how much of the running means of gradients, and of their squares, a step keeps.
        eps: added to the root that the step is divided by.
        clip_norm: gradients whose length (of all together) is greater are shortened to it.

    Example:
        x = ds.field(ds.f32, shape=3, needs_grad=True)
        x.grad.fill(1.0)
        ds.optim.Adam([x], lr=0.1).step()
        print(ds.round(x[0] * 100))  # prints: -10.0
    """

    def __init__(
        self,
        fields: Any,
        lr: float | Schedule = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(fields, lr, clip_norm, ("mean", "square"))
        self.betas = _checked_betas(betas)
        need_number(eps, "eps")
        if eps is None or eps < 0:
            raise ArgumentError(
                f"eps is a number from 0 on, not {eps}", Span.of_caller(), "write 1e-8"
            )
        self.eps = float(eps)
        self._kernel = _adam_kernel(
            *(list(fs.values()) for fs in (self.fields, *self.moments.values()))
        )

    def _move(self, rate: float, clip: float) -> None:
        (beta1, beta2), age = self.betas, self.iteration + 1
        # The means start from 0: what they lack after so many steps is made up for. Dividing the mean square
        # by what it lacks would take a second division for each number: step and eps are multiplied instead.
        root = (1 - beta2**age) ** 0.5
        step = rate / (1 - beta1**age) * root
        self._kernel(step, 1 - beta1, beta2, self.eps * root, clip)


def _checked_betas(betas: Any) -> tuple[float, float]:
    right = isinstance(betas, (tuple, list)) and len(betas) == 2
    for beta in betas if right else ():
        need_number(beta, "each of betas")
        right = right and beta is not None and 0 <= beta < 1
    if not right:
        raise ArgumentError(
            f"betas are two numbers from 0 to below 1, not {shown(betas)}",
            Span.of_caller(),
            hint="write betas=(0.9, 0.999)",
        )
    return float(betas[0]), float(betas[1])


@func
def _move_element(p, mean, square, at, step, new, keep, eps, clip):
    t = static(p.grad.dtype)
    g = p.grad[at] * cast(clip, t)
    mean[at] += (g - mean[at]) * cast(new, t)
    square[at] = square[at] * cast(keep, t) + g * g * cast(1.0 - keep, t)
    move = cast(step, t) * (mean[at] / (sqrt(square[at]) + cast(eps, t)))
    p[at] = cast(p[at] - move, p.dtype)


def _adam_kernel(
    fields: list[Field], means: list[Field], squares: list[Field]
) -> Callable[..., None]:
    """Make the kernel that moves all parameters.

    Its arguments: the step, the weight of the new gradient in the mean, what of the mean square is kept, eps,
    and a factor of the gradients.
    """

    @kernel
    def adam(step: f64, new: f64, keep: f64, eps: f64, clip: f64):  # type: ignore[valid-type]
        for k in static(range(len(fields))):
            p, mean, square = static(fields[k], means[k], squares[k])
            if static(len(p.shape) == 0):
                _move_element(p, mean, square, None, step, new, keep, eps, clip)
            else:
                for at in grouped(p):
                    _move_element(p, mean, square, at, step, new, keep, eps, clip)

    made: Callable[..., None] = adam
    return made
