"""Single scalars of an array, read and written as Python numbers.

A memoryview does so several times as fast as NumPy's indexing, but does not know all of NumPy's types.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def scalars_of(array: np.ndarray) -> Any:
    """Return a view of a row of numbers whose elements are Python numbers."""
    view = array.data
    return Scalars(array) if view.format == "e" else view


class Scalars:
    """The elements of a row of floats, with the checks of a memoryview."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, k: int) -> float:
        found: float = self.array.item(k)
        return found

    def __setitem__(self, k: int, value: Any) -> None:
        # NumPy would take texts, too.
        if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise TypeError(f"no number: {value!r}")
        # Beyond the largest number it is infinite, as in a kernel.
        with np.errstate(over="ignore"):
            self.array[k] = float(value)

    def __len__(self) -> int:
        return len(self.array)
