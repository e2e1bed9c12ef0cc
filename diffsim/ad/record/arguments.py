"""Copies of launch arguments that later changes by the program do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, Span
from diffsim.lang.host.provenance import source_of
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.binding.array_memory import shares
from diffsim.runtime.fields.adjoints import is_followed
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import TrackedFloat
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

IMMUTABLE = frozenset((int, float, bool, np.float32, np.float64, np.int32, np.int64, Field))
"""Types of arguments that are kept without a copy; a field is kept by reference, checked by its versions."""


def check_given(a: Any) -> None:
    """Refuse an argument that Python made of a field with a derivative, or that is the memory of one."""
    source = source_of(a)
    if source is not None:
        if isinstance(a, np.ndarray):
            source.refuse("a kernel", "give the kernel the field", "an array")
        source.refuse("a kernel", "give the kernel a 0-D field in place of the number")
    if isinstance(a, (np.ndarray, DeviceArray)):
        _check_alone(a)


def frozen(a: Any) -> Any:
    """Copy an argument if the program may change it later.

    Raises:
        AutodiffError: it was computed in Python from a field with a gradient, or is the memory of one.
    """
    check_given(a)
    if isinstance(a, TrackedFloat):
        return float(a)
    # The adjoint runs later, and must see what the launch saw; arrays have no versions to check.
    if isinstance(a, (np.ndarray, DeviceArray)):
        return a.copy()
    if isinstance(a, Matrix):
        return a.entries.copy()
    return np.array(a) if isinstance(a, (list, tuple)) else a


def _check_alone(array: np.ndarray | DeviceArray) -> None:
    """Refuse an array that shares the memory of a field with a derivative: none would flow to the field."""
    for f in members(session.exported):
        if is_followed(f) and shares(array, f):
            what = "tangent" if session.tape and session.tape.tangents else "gradient"
            raise AutodiffError(
                f"this array is the memory of {f.name}, and no {what} would flow to or from {f.name}",
                Span.of_caller(),
                hint="give the kernel the field itself; if constants are meant, a copy: array.copy()",
            )
