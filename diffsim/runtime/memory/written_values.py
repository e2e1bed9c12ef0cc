"""Values in the notes of Python's writes (`Session.written`): enough to tell equal ones.

A number is its own note. Of an array the note has the bytes, or their hash, as the array may change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_FEW_BYTES = 256


class Contents(NamedTuple):
    """The numbers of an array: equal contents are equal numbers."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | int


class CopyOf(NamedTuple):
    """All that a field held when it was copied."""

    field: int


class _Hashable(np.ndarray):
    # Python hashes the memory of an object only if the object itself has a hash.
    __hash__ = object.__hash__  # type: ignore[assignment]


def contents_of(array: np.ndarray) -> Contents:
    """Return the contents of an array."""
    data = np.ascontiguousarray(array)
    few = data.nbytes <= _FEW_BYTES
    memory: Any = data.view(_Hashable)
    # SipHash, with the process's secret key: 2 ** -64 for two different arrays to have one hash. It takes
    # less than half the time of SHA-1, and a quarter of that of BLAKE2.
    found = data.tobytes() if few else hash(memoryview(memory).cast("B").toreadonly())
    return Contents(data.dtype.str, array.shape, found)
