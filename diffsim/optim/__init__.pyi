"""Optimisers for the parameters of simulations, and what a training needs around them."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class Adam:
    """Adam: each number moves by about the learning rate, however large its gradient is."""
    def __init__(self, fields: Any, lr: Any = ..., betas: tuple[float, float] = ..., eps: float = ..., clip_norm: float | None = ...) -> None: ...
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite."""
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, with the same fields and options."""
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too."""
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step."""
    def reset(self) -> None:
        """Forget all earlier steps, and begin the schedule of the learning rate anew; `scale` stays."""
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays."""
    def step(self) -> None:
        """Move all parameters once, by the gradients that their fields hold now."""
class Minimum:
    """The result of a minimisation; made by `ds.optim.minimize`, whose callbacks get it while it runs."""
    def __init__(self, loss: float = ..., losses: list[float] = ..., evaluations: int = ..., converged: bool = ..., message: str = ..., interrupted: bool = ...) -> None: ...
    loss: float
    losses: Any
    evaluations: int
    converged: bool
    message: str
    interrupted: bool
class Optimizer:
    """Moves fields by their gradients; `Adam` and `SGD` say how."""
    def __init__(self, fields: Any, lr: Any, clip_norm: float | None, moments: tuple[str, ...]) -> None: ...
    fields: Any
    iteration: Any
    scale: Any
    moments: Any
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite."""
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, with the same fields and options."""
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too."""
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step."""
    def reset(self) -> None:
        """Forget all earlier steps, and begin the schedule of the learning rate anew; `scale` stays."""
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays."""
    def step(self) -> None:
        """Move all parameters once, by the gradients that their fields hold now."""
class Run:
    """The result of a training; made by `ds.optim.train`, whose callbacks get it while it runs."""
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
class SGD:
    """Gradient descent: velocity = momentum * velocity + gradient; x -= lr * velocity."""
    def __init__(self, fields: Any, lr: Any = ..., momentum: float = ..., nesterov: bool = ..., clip_norm: float | None = ...) -> None: ...
    def gradient_norm(self) -> float:
        """Return the length of the gradients of all parameters together; NaN if one is not finite."""
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, with the same fields and options."""
    @property
    def lr(self) -> Any:
        """The learning rate by the number of the step. It may be set at any time, to a number too."""
    @lr.setter
    def lr(self, value: Any) -> None: ...
    def rate(self) -> float:
        """Return the learning rate of the next step."""
    def reset(self) -> None:
        """Forget all earlier steps, and begin the schedule of the learning rate anew; `scale` stays."""
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on, beside parameters and gradients, as numbers and arrays."""
    def step(self) -> None:
        """Move all parameters once, by the gradients that their fields hold now."""
def constant(lr: float) -> Any:
    """Use the same learning rate in all steps."""
def cosine(lr: float, steps: int, least: float = ...) -> Any:
    """Let the learning rate fall from `lr` to `least` along half a wave of a cosine."""
def exponential(lr: float, factor: float) -> Any:
    """Multiply the learning rate by a factor after each step."""
def minimize(fields: Any, program: Callable[[], Any], method: str = ..., loss: Field | None = ..., iterations: int = ..., *, bounds: Any = ..., tolerance: float | None = ..., callback: Callable[[Any], Any] | None = ..., options: Mapping[str, Any] | None = ..., replay: bool | None = ..., progress: bool = ...) -> Any:
    """Find the values of fields at which a loss is lowest, by a method of SciPy."""
def step_decay(lr: float, every: int, factor: float = ...) -> Any:
    """Multiply the learning rate by a factor after each so many steps."""
def train(program: Callable[[], Any], opt: Any, iterations: int, loss: Field | None = ..., out: Any = ..., resume: bool = ..., patience: int | None = ..., callback: Callable[[Any], Any] | None = ..., *, state: Any = ..., generators: Any = ..., checkpoint_every: float = ..., replay: bool | None = ..., progress: bool = ...) -> Any:
    """Train parameters: run a program, follow its gradient, again and again."""
def warm_up(lr: Any, steps: int) -> Any:
    """Let the learning rate grow in proportion to the number of the step, until it is what it would be."""

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
