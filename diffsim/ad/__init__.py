"""Automatic differentiation from Python: tapes."""

from diffsim.ad.tape import Tape

__all__ = ["Tape"]
