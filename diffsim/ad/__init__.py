"""Automatic differentiation from Python: tapes, gradients written by hand, code without gradients."""

from diffsim.ad.checkpoint import CheckpointStats, checkpoint
from diffsim.ad.custom import grad_for, grad_replaced, no_grad
from diffsim.ad.tape import Tape
from diffsim.runtime.recorded import Recorded

__all__ = [
    "CheckpointStats",
    "Recorded",
    "Tape",
    "checkpoint",
    "grad_for",
    "grad_replaced",
    "no_grad",
]
