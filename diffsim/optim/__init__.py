"""Optimisers for the parameters of simulations, and what a training needs around them."""

from typing import TYPE_CHECKING, NoReturn

from diffsim.lang.host import peer_names
from diffsim.lang.host.unsupported import absent
from diffsim.optim.minimize import Minimum, minimize
from diffsim.optim.steps.adam import Adam
from diffsim.optim.steps.optimizer import Optimizer
from diffsim.optim.steps.schedules import constant, cosine, exponential, step_decay, warm_up
from diffsim.optim.steps.sgd import SGD
from diffsim.optim.training import Run, train
from diffsim.public_names import names_of_module

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, __all__, advice=peer_names.OF_OPTIM)


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

__dir__ = names_of_module(__all__)
