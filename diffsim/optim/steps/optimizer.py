"""The common part of all optimisers: parameters, the learning rate, clipping, their state as arrays.

An optimiser makes two kernels for its parameters: one adds up the squares of all gradients, and the other
moves all parameters. So a step is two launches, however many fields there are (docs/adr/0050).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.ad.field_ops import clone
from diffsim.errors import ArgumentError, AutodiffError, Span, shown
from diffsim.lang.host import peer_names
from diffsim.lang.host.signatures import checked_methods, need_number
from diffsim.lang.host.unsupported import Explained, no_assignment
from diffsim.lang.types.descriptions import describe
from diffsim.optim.steps.gradient_norm import length_of, norm_kernel, not_finite
from diffsim.optim.steps.parameters import named_fields
from diffsim.optim.steps.schedules import Schedule, rate_at, schedule_of
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session


@checked_methods("__init__ step reset gradient_norm rate state_dict load_state_dict")
class Optimizer(Explained, metaclass=PublicNames):
    """Moves fields by their gradients; `Adam` and `SGD` say how.

    Args:
        fields: a field with a gradient, or a list or a dictionary of such fields.
        lr: the learning rate: a number, or a function from the number of the step, from 0 on.
        clip_norm: gradients whose length (of all together) is greater are shortened to it.
        moments: the names of what is kept for each parameter between steps.

    Attributes:
        fields: the parameters, by name: key of the dictionary, or place in the list.
        iteration: how many steps were made since the last `reset`.
        scale: a factor of all learning rates, 1.0 at first. It may be changed at any time.
        moments: what is kept, by the name of the moment and of the parameter.

    Example:
        x = ds.field(ds.f32, shape=2, needs_grad=True)
        x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
        opt = ds.optim.SGD(x, lr=0.5)
        print(isinstance(opt, ds.optim.Optimizer), opt.rate())  # prints: True 0.5
    """

    _public = (
        "fields gradient_norm iteration load_state_dict lr moments rate reset scale state_dict step"
    )
    _words = "an optimiser"
    _advice = peer_names.OF_OPTIMIZERS

    def __init__(
        self,
        fields: Any,
        lr: float | Schedule,
        clip_norm: float | None,
        moments: tuple[str, ...],
    ) -> None:
        self.fields = named_fields(fields)
        self.lr = lr
        need_number(clip_norm, "clip_norm")
        if clip_norm is not None and not clip_norm > 0:
            raise ArgumentError(
                f"clip_norm is greater than 0, not {clip_norm}",
                Span.of_caller(),
                hint="leave it out for no clipping",
            )
        self.clip_norm = clip_norm
        self.iteration = 0
        self.scale = 1.0
        self._squares = norm_kernel(list(self.fields.values()))
        self.moments = {m: self._zeros() for m in moments}

    def _zeros(self) -> dict[str, Field]:
        # Sums of gradients, and of the type of gradients.
        made: dict[str, Field] = {key: clone(f.grad, False) for key, f in self.fields.items()}
        for f in made.values():
            f.fill(0)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        # Kept, it would have no effect.
        if name in self._advice:
            raise no_assignment(self._words, name, (), self._advice[name])
        super().__setattr__(name, value)

    @property
    def lr(self) -> Schedule:
        """The learning rate by the number of the step. It may be set at any time, to a number too.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.lr = 0.25
            print(opt.lr(0), opt.rate())  # prints: 0.25 0.25
        """
        return self._schedule

    @lr.setter
    def lr(self, rate: float | Schedule) -> None:
        self._schedule = schedule_of(rate)

    def __repr__(self) -> str:
        count = sum(int(np.prod(f.shape + f.element)) for f in self.fields.values())
        name, fields = type(self).__name__, len(self.fields)
        return f"<{name} of {count} numbers in {fields} fields, {self.iteration} steps>"

    # ---- steps

    def step(self) -> None:
        """Move all parameters once, by the gradients that their fields hold now.

        Raises:
            AutodiffError: a gradient is not finite, and nothing was moved; or a tape records.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            print(x.to_numpy())  # prints: [-1.5 -2. ]
        """
        self.step_by(self.gradient_norm())

    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            print(opt.gradient_norm())  # prints: 5.0
        """
        if session.tape is not None:
            raise AutodiffError(
                f"{session.tape.work.words}, and a step of an optimiser is no part of the program",
                Span.of_caller(),
                hint=f"call step {session.tape.work.outside}",
            )
        return length_of(self._squares(), self.fields)

    def rate(self) -> float:
        """Return the learning rate of the next step.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            opt = ds.optim.SGD(x, lr=ds.optim.exponential(0.5, 0.1))
            opt.step()
            print(opt.rate())  # prints: 0.05
        """
        return self.scale * rate_at(self.lr, self.iteration)

    def step_by(self, norm: float) -> None:
        """Move all parameters, whose gradients have this length together."""
        if not math.isfinite(norm):
            raise not_finite(self.fields, self.iteration)
        rate = self.rate()
        # As PyTorch clips, with its guard against a division by 0.
        clip = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
        self._move(rate, clip)
        self.iteration += 1

    def _move(self, rate: float, clip: float) -> None:
        """Move all parameters by their gradients times `clip`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all earlier steps, and begin the schedule of the learning rate anew; `scale` stays.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            opt.reset()
            print(opt.iteration)  # prints: 0
        """
        self.iteration = 0
        for fields in self.moments.values():
            for f in fields.values():
                f.fill(0)

    # ---- the state

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            print(opt.state_dict()["iteration"])  # prints: 1
        """
        arrays = {
            f"{moment}/{key}": f.to_numpy()
            for moment, fields in self.moments.items()
            for key, f in fields.items()
        }
        kind = type(self).__name__
        return {"kind": kind, "iteration": self.iteration, "scale": self.scale, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, with the same fields and options.

        Raises:
            ArgumentError: the state is that of other fields or of another optimiser; nothing was changed.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            other = ds.optim.SGD(x, lr=0.5)
            other.load_state_dict(opt.state_dict())
            print(other.iteration)  # prints: 1
        """
        if not isinstance(state, Mapping):
            raise ArgumentError(
                f"the state of an optimiser is a dictionary, not {describe(state)}",
                Span.of_caller(),
                hint="give what state_dict() returned",
            )
        self.check_state(state)
        for moment, fields in self.moments.items():
            for key, f in fields.items():
                f.from_numpy(np.asarray(state[f"{moment}/{key}"]))
        self.iteration, self.scale = int(state["iteration"]), float(state["scale"])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that is not one of this optimiser."""
        own = self.state_dict()
        if str(state.get("kind", own["kind"])) != own["kind"]:
            kind = str(state["kind"])
            raise _other_state(
                f"it is that of {kind!r}",
                hint=f"make ds.optim.{kind}, or begin anew: without resume=True, or in another folder",
            )
        if missing := [key for key in own if key not in state]:
            raise _other_state(f"it has no {missing[0]!r}")
        if more := [key for key in state if key not in own]:
            raise _other_state(f"it has {shown(more[0])}, which this {own['kind']} has not")
        for key, mine in own.items():
            theirs = np.asarray(state[key])
            if theirs.shape != np.shape(mine):
                shapes = f"shape {theirs.shape} in the state, and {np.shape(mine)} here"
                raise _other_state(f"{key} has {shapes}")
            if isinstance(mine, np.ndarray) and theirs.dtype != mine.dtype:
                raise _other_state(f"{key} is {theirs.dtype} in the state, and {mine.dtype} here")


def _other_state(why: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError(
        f"this is not a state of this optimiser: {why}",
        Span.of_caller(),
        hint=hint
        or "make the optimiser of the same fields, in the same order, before load_state_dict",
    )
