"""Arguments of a launch as a record keeps them: as they were, whatever happens to them later."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, Span
from diffsim.lang.host.provenance import source_of
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import TrackedFloat
from diffsim.runtime.kernels.aliasing import shares
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

IMMUTABLE = frozenset((int, float, bool, np.float32, np.float64, np.int32, np.int64, Field))
"""Kinds of arguments that stay what they are."""


def frozen(a: Any) -> Any:
    """An argument as it is now, whatever happens to it later.

    Raises:
        AutodiffError: Python made it of what has a gradient; it is the memory of such a field.
    """
    source = source_of(a)
    if source is not None:
        if isinstance(a, np.ndarray):
            source.refuse("a kernel", "give the kernel the field", "an array")
        source.refuse("a kernel", "give the kernel a 0-D field in place of the number")
    if isinstance(a, TrackedFloat):
        return float(a)
    if isinstance(a, np.ndarray):
        _check_alone(a)
        return a.copy()
    if isinstance(a, DeviceArray):
        _check_alone(a)
        return a.copy()
    if isinstance(a, Matrix):
        return a.entries.copy()
    return np.array(a) if isinstance(a, (list, tuple)) else a


def _check_alone(array: np.ndarray | DeviceArray) -> None:
    """Refuse an array that is the memory of a field with a gradient, which would not see it."""
    for f in members(session.exported):
        if f.grad is not None and shares(array, f):
            raise AutodiffError(
                f"this array is the memory of {f.name}, and no gradient would flow to or from {f.name}",
                Span.of_caller(),
                hint="give the kernel the field itself; if constants are meant, a copy: array.copy()",
            )
