"""Stochastic gradient descent, with momentum (Polyak 1964) as PyTorch counts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffsim.errors import ArgumentError, Span
from diffsim.ir.types import f64
from diffsim.lang.builtins.intrinsics import cast, grouped, static
from diffsim.lang.host.func import func
from diffsim.lang.host.signatures import checked_methods, need_bool, need_number
from diffsim.optim.steps.optimizer import Optimizer
from diffsim.optim.steps.schedules import Schedule
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import kernel


@checked_methods("__init__")
class SGD(Optimizer):
    """Gradient descent: velocity = momentum * velocity + gradient; x -= lr * velocity.

    Args:
        fields: a field with a gradient, or a list or a dictionary of such fields.
        lr: the learning rate: a number, or a function from the number of the step, from 0 on.
        momentum: how much of its velocity a step keeps; 0: plain gradient descent.
        nesterov: move by gradient + momentum * velocity, as if the gradient were that of a step ahead.
        clip_norm: gradients whose length (of all together) is greater are shortened to it.

    Example:
        x = ds.field(ds.f32, shape=2, needs_grad=True)
        x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
        opt = ds.optim.SGD(x, lr=0.5)
        opt.step()
        print(x.to_numpy())  # prints: [-1.5 -2. ]
    """

    def __init__(
        self,
        fields: Any,
        lr: float | Schedule = 0.001,
        momentum: float = 0.0,
        nesterov: bool = False,
        clip_norm: float | None = None,
    ) -> None:
        need_number(momentum, "momentum")
        need_bool(nesterov, "nesterov")
        if momentum is None or not 0 <= momentum < 1:
            raise ArgumentError(
                f"momentum is a number from 0 to below 1, not {momentum}",
                Span.of_caller(),
                hint="write momentum=0.9",
            )
        if nesterov and not momentum:
            raise ArgumentError(
                "nesterov=True needs a momentum", Span.of_caller(), hint="write momentum=0.9"
            )
        super().__init__(fields, lr, clip_norm, ("velocity",) if momentum else ())
        self.momentum, self.nesterov = float(momentum), bool(nesterov)
        params = list(self.fields.values())
        if momentum:
            self._kernel = _momentum_kernel(
                params, list(self.moments["velocity"].values()), nesterov
            )
        else:
            self._kernel = _descent_kernel(params)

    def _move(self, rate: float, clip: float) -> None:
        if self.momentum:
            self._kernel(rate, self.momentum, clip)
        else:
            self._kernel(rate * clip)


@func
def _descend(p, at, step):
    p[at] = cast(p[at] - cast(step, p.grad.dtype) * p.grad[at], p.dtype)


@func
def _roll(p, velocity, at, ahead, step, momentum, clip):
    t = static(p.grad.dtype)
    g = p.grad[at] * cast(clip, t)
    velocity[at] = velocity[at] * cast(momentum, t) + g
    if static(ahead):
        p[at] = cast(p[at] - cast(step, t) * (g + velocity[at] * cast(momentum, t)), p.dtype)
    else:
        p[at] = cast(p[at] - cast(step, t) * velocity[at], p.dtype)


def _descent_kernel(fields: list[Field]) -> Callable[..., None]:
    """Make the kernel of plain gradient descent; its argument is the step."""

    @kernel
    def descend(step: f64):  # type: ignore[valid-type]
        for k in static(range(len(fields))):
            if static(len(fields[k].shape) == 0):
                _descend(fields[k], None, step)
            else:
                for at in grouped(fields[k]):
                    _descend(fields[k], at, step)

    made: Callable[..., None] = descend
    return made


def _momentum_kernel(
    fields: list[Field], velocities: list[Field], ahead: bool
) -> Callable[..., None]:
    """Make the kernel of descent with momentum: step, momentum, and a factor of the gradients."""

    @kernel
    def descend(step: f64, momentum: f64, clip: f64):  # type: ignore[valid-type]
        for k in static(range(len(fields))):
            p, velocity = static(fields[k], velocities[k])
            if static(len(p.shape) == 0):
                _roll(p, velocity, None, ahead, step, momentum, clip)
            else:
                for at in grouped(p):
                    _roll(p, velocity, at, ahead, step, momentum, clip)

    made: Callable[..., None] = descend
    return made
