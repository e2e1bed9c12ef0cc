"""Where these names stood before; imports are from tests.support."""

from tests.support.gradients import central, check, field, numbers
from tests.support.source import make

__all__ = ["central", "check", "field", "make", "numbers"]
