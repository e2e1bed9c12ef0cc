"""Automatic differentiation from Python: tapes, gradients written by hand, code without gradients."""

from diffsim.ad.checkpoint import CheckpointStats, checkpoint
from diffsim.ad.custom import grad_for, grad_replaced, no_grad
from diffsim.ad.tape import Tape

__all__ = ["CheckpointStats", "Tape", "checkpoint", "grad_for", "grad_replaced", "no_grad"]
