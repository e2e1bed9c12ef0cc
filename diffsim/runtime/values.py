"""What Python hands over as an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import FieldError, Span
from diffsim.ir._row import Traced
from diffsim.lang.matrix import Matrix


def refuse_mask(array: Any, where: str) -> None:
    """Raise FieldError for an array of NumPy some of whose elements do not count."""
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):  # np.ma would be imported for it
        raise FieldError(
            f"{where}: this array has a mask, which would be ignored",
            Span.of_caller(),
            hint="pass array.filled(value), or array.data to use all elements",
        )


def array_of(value: Any) -> np.ndarray:
    """A value as an array; of dtype object if it can not be one."""
    if isinstance(value, Traced) and not value.follows():
        value = value.value
    try:
        return np.asarray(value.entries if isinstance(value, Matrix) else value)
    except ValueError:  # rows of different lengths
        return np.asarray(None)
