"""Optimisers for the parameters of simulations, and what a training needs around them."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

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
    def __init__(self, fields: Any, lr: Any = ..., betas: tuple[float, float] = ..., eps: float = ..., clip_norm: float | None = ...) -> None: ...
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            print(opt.gradient_norm())  # prints: 5.0
        """
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
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.lr = 0.25
            print(opt.lr(0), opt.rate())  # prints: 0.25 0.25
        """
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            opt = ds.optim.SGD(x, lr=ds.optim.exponential(0.5, 0.1))
            opt.step()
            print(opt.rate())  # prints: 0.05
        """
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
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            print(opt.state_dict()["iteration"])  # prints: 1
        """
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
class Minimum:
    """The result of a minimisation; made by `ds.optim.minimize`, whose callbacks get it while it runs.

    Attributes:
        loss: the lowest one, at the values that the fields have now.
        losses: after each iteration.
        evaluations: how often the loss and its gradient were computed.
        converged: whether the method ended by itself, as nothing was left to gain.
        message: why it ended, in its own words.
        interrupted: whether Ctrl-C ended it.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        found = ds.optim.minimize(x, compute, loss=loss, progress=False)
        print(found.loss < 1e-9, found.evaluations >= len(found.losses))  # prints: True True
    """
    def __init__(self, loss: float = ..., losses: list[float] = ..., evaluations: int = ..., converged: bool = ..., message: str = ..., interrupted: bool = ...) -> None: ...
    loss: float
    losses: Any
    evaluations: int
    converged: bool
    message: str
    interrupted: bool
class Optimizer:
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
    def __init__(self, fields: Any, lr: Any, clip_norm: float | None, moments: tuple[str, ...]) -> None: ...
    fields: Any
    iteration: Any
    scale: Any
    moments: Any
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            print(opt.gradient_norm())  # prints: 5.0
        """
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
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.lr = 0.25
            print(opt.lr(0), opt.rate())  # prints: 0.25 0.25
        """
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            opt = ds.optim.SGD(x, lr=ds.optim.exponential(0.5, 0.1))
            opt.step()
            print(opt.rate())  # prints: 0.05
        """
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
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            print(opt.state_dict()["iteration"])  # prints: 1
        """
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
class Run:
    """The result of a training; made by `ds.optim.train`, whose callbacks get it while it runs.

    Attributes:
        losses: of each iteration, those before a resume too.
        best_loss: the lowest one.
        best_iteration: its number, from 1 on; 0: there is none yet.
        seconds: how long the training took, with those before a resume.
        interrupted: whether Ctrl-C ended it.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        opt = ds.optim.SGD(x, lr=0.25)
        run = ds.optim.train(compute, opt, iterations=3, loss=loss, progress=False)
        print(run.losses, run.best_iteration)  # prints: [9.0, 2.25, 0.5625] 3
        print(run.loss, run.iteration)  # prints: 0.5625 3
    """
    def __init__(self, losses: list[float] = ..., best_loss: float = ..., best_iteration: int = ..., seconds: float = ..., interrupted: bool = ...) -> None: ...
    losses: Any
    best_loss: float
    best_iteration: int
    seconds: float
    interrupted: bool
    @property
    def iteration(self) -> int:
        """The number of the last iteration, from 1 on."""
    @property
    def loss(self) -> float:
        """The loss of the last iteration."""
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
    def __init__(self, fields: Any, lr: Any = ..., momentum: float = ..., nesterov: bool = ..., clip_norm: float | None = ...) -> None: ...
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            print(opt.gradient_norm())  # prints: 5.0
        """
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
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.lr = 0.25
            print(opt.lr(0), opt.rate())  # prints: 0.25 0.25
        """
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            opt = ds.optim.SGD(x, lr=ds.optim.exponential(0.5, 0.1))
            opt.step()
            print(opt.rate())  # prints: 0.05
        """
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
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays.

        Example:
            x = ds.field(ds.f32, shape=2, needs_grad=True)
            x.grad.from_numpy(np.array([3.0, 4.0], np.float32))
            opt = ds.optim.SGD(x, lr=0.5)
            opt.step()
            print(opt.state_dict()["iteration"])  # prints: 1
        """
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
def constant(lr: float) -> Any:
    """Use the same learning rate in all steps.

    Example:
        print(ds.optim.constant(0.1)(1000))  # prints: 0.1
    """
def cosine(lr: float, steps: int, least: float = ...) -> Any:
    """Let the learning rate fall from `lr` to `least` along half a wave of a cosine.

    Args:
        lr: of the first step.
        steps: how many steps the fall takes; afterwards the rate stays at `least`.
        least: the last rate.

    Example:
        rate = ds.optim.cosine(1.0, steps=10)
        print(rate(0), round(rate(5), 6), rate(10))  # prints: 1.0 0.5 0.0
    """
def exponential(lr: float, factor: float) -> Any:
    """Multiply the learning rate by a factor after each step.

    Example:
        rate = ds.optim.exponential(1.0, factor=0.5)
        print(rate(0), rate(1), rate(2))  # prints: 1.0 0.5 0.25
    """
def minimize(fields: Any, program: Callable[[], Any], method: str = ..., loss: Field | None = ..., iterations: int = ..., *, bounds: Any = ..., tolerance: float | None = ..., callback: Callable[[Any], Any] | None = ..., options: Mapping[str, Any] | None = ..., replay: bool | None = ..., progress: bool = ...) -> Any:
    """Find the values of fields at which a loss is lowest, by a method of SciPy.

        found = ds.optim.minimize([w, b], simulate, bounds=(-1, 1))

    The fields hold the best values at the end. Numbers are handed to SciPy in f64: fields of f32 end where
    their rounding hides what is left to gain.

    Args:
        fields: a field with a gradient, or a list or a dictionary of such fields.
        program: launches kernels, and returns the field of the loss: a function of the fields alone.
        method: L-BFGS-B, BFGS, CG, TNC or SLSQP, which use gradients; Newton-CG, trust-ncg, trust-krylov or
            trust-constr, which use products with the matrix of second derivatives too (`ds.ad.hvp`).
        loss: a field of a single element, if the program does not return it. It is set to 0 before each run.
        iterations: how many at most.
        bounds: the least and the greatest value, None for no bound: a pair for all fields, or a list or
            dictionary as `fields` is, with a pair for each. Arrays bound each number by its own.
        tolerance: where to end; what it means is up to the method (`tol` of `scipy.optimize.minimize`).
        callback: called after each iteration, with what was found so far; True ends the search.
        options: further options of the method, by SciPy's names.
        replay: whether to run the first call's launches again in place of calling the program, which is
            faster. True: the program launches the same each time. If left out, where that is proved.
        progress: whether to show a progress bar.

    Raises:
        ArgumentError: arguments that do not fit.
        MissingPackageError: SciPy is not installed.
        AutodiffError: and its kind: a gradient cannot be given; the loss or a gradient is not finite.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        found = ds.optim.minimize(x, compute, loss=loss, progress=False)
        print(round(x[None], 6), found.converged)  # prints: 3.0 True
    """
def step_decay(lr: float, every: int, factor: float = ...) -> Any:
    """Multiply the learning rate by a factor after each so many steps.

    Example:
        rate = ds.optim.step_decay(1.0, every=10, factor=0.5)
        print(rate(9), rate(10), rate(20))  # prints: 1.0 0.5 0.25
    """
def train(program: Callable[[], Any], opt: Any, iterations: int, loss: Field | None = ..., out: Any = ..., resume: bool = ..., patience: int | None = ..., callback: Callable[[Any], Any] | None = ..., *, state: Any = ..., generators: Any = ..., checkpoint_every: float = ..., replay: bool | None = ..., progress: bool = ...) -> Any:
    """Train parameters: run a program, follow its gradient, again and again.

        opt = ds.optim.Adam([w, b], lr=0.01)
        run = ds.optim.train(simulate, opt, iterations=300, out="out/walk", resume=True)

    At the end the parameters hold the values of the lowest loss. Ctrl-C ends the training after the
    iteration. A loss or gradient that is not finite is an error, which names the iteration and the operation
    that made it.

    Args:
        program: launches kernels, and returns the field of the loss.
        opt: moves the parameters.
        iterations: how many there are in all, those before a resume included.
        loss: a field of a single element, if the program does not return it. It is set to 0 before each run.
        out: a folder for `log.csv`, with a line for each iteration, and `checkpoint.npz`.
        resume: go on from the checkpoint in `out`, if there is one: to the same bits as without the break.
            A checkpoint of other parameters is refused; of another program, as far as its code and its
            numbers show that, or of more iterations, a warning says so.
        patience: after so many iterations without a new best loss go back to the best values, and on from
            there half as fast (`opt.scale`, and `opt.reset()`). Then a NaN ends nothing, but goes back too.
        callback: called with the run in each iteration, before the parameters move; True ends the training.
        state: other fields that go on from one iteration to the next, for the checkpoint.
        generators: of `numpy.random`, from which the program draws, for the checkpoint. The random numbers of
            kernels, of `random` and of `numpy.random` itself are in it anyway.
        checkpoint_every: seconds between two checkpoints; there is one at the end, too.
        replay: whether to run the first call's launches again in place of calling the program, which is
            faster. True: the program launches the same each time. If left out, where that is proved.
        progress: whether to show a progress bar.

    Raises:
        AutodiffError: and its kind: a gradient cannot be given; the loss or a gradient is not finite.
        ArgumentError: arguments that do not fit, a checkpoint of another training.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        opt = ds.optim.SGD(x, lr=0.25)
        run = ds.optim.train(compute, opt, iterations=40, loss=loss, progress=False)
        print(round(x[None], 6), run.iteration)  # prints: 3.0 40
    """
def warm_up(lr: Any, steps: int) -> Any:
    """Let the learning rate grow in proportion to the number of the step, until it is what it would be.

    Args:
        lr: a learning rate, or another schedule.
        steps: the first one has the share 1/`steps` of the rate, and number `steps` the whole one.

    Example:
        rate = ds.optim.warm_up(0.5, steps=4)
        print(rate(0), rate(3), rate(100))  # prints: 0.125 0.5 0.5
    """

__all__ = [
    "SGD",
    "Adam",
    "Minimum",
    "Optimizer",
    "Run",
    "constant",
    "cosine",
    "exponential",
    "minimize",
    "step_decay",
    "train",
    "warm_up",
]
