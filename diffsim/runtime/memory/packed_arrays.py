"""Arrays of NumPy that kernels cannot take as they lie in memory: packed for a launch, copied back after it.

A kernel computes addresses from the shape alone: elements one after the other, the last axis fastest, in the
machine's own byte order. A slice with steps, a transposed or Fortran-ordered array, or one from a file of
another byte order is copied to such memory first. Afterwards what the kernel wrote is copied back, also where
it failed half way, as it would be in place.

Whoever asks which memory an argument is (aliasing, chains of derivatives, versions of exported fields) asks
about the array that was given: `given_of`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_WORK: Any = 100_000  # NumPy's own annotation has been too narrow for it
"""Steps of NumPy's exact test whether two arrays share elements; it takes some 10 ns a step."""


class PackedArray(np.ndarray):
    """A packed copy of the array `given` to a launch; None of a copy that later code makes of it."""

    given: np.ndarray | None = None

    @property
    def provenance(self) -> Any:
        """Where its numbers come from, as far as the tape follows them."""
        return getattr(self.given, "provenance", None)


def is_direct(array: np.ndarray) -> bool:
    """Return whether a kernel can take an array as it lies in memory."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned and array.dtype.isnative


def is_plain(array: object) -> bool:
    """Return whether an argument needs no care: it is direct and writeable, or no array of NumPy."""
    # All flags in one: this is asked at each launch.
    return not isinstance(array, np.ndarray) or (array.flags.carray and array.dtype.isnative)


def packed(array: np.ndarray) -> PackedArray:
    """Return a packed copy of an array."""
    made = np.empty(array.shape, array.dtype.newbyteorder("=")).view(PackedArray)
    np.copyto(made, array)
    made.given = array
    return made


def given_of(array: Any) -> Any:
    """Return the array that was given to a launch, of which this may be a packed copy."""
    if array.__class__ is PackedArray and array.given is not None:
        return array.given
    return array


class PackedArguments(tuple[Any, ...]):
    """The arguments of a launch, packed copies among them.

    Attributes:
        written: the copies that the kernel writes to.
    """

    written: list[PackedArray]

    def copy_back(self) -> None:
        """Copy what the kernel wrote to the arrays that were given."""
        for array in self.written:
            np.copyto(given_of(array), array)


def memory_key(array: np.ndarray) -> tuple[Any, ...]:
    """Return what tells an array's elements from those of all others that exist now."""
    # Identity does not do: `a[:]` is another object for the same elements.
    return array.ctypes.data, array.shape, array.strides, array.dtype


def share_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays have elements in common; also True where that takes too long to tell."""
    if not np.may_share_memory(one, other):
        return False
    # The test of bounds is exact for contiguous memory. Columns of one table are apart all the same.
    if one.flags.c_contiguous and other.flags.c_contiguous:
        return True
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def may_overlap_itself(array: np.ndarray) -> bool:
    """Return whether two indices of an array may be one element, as in `np.broadcast_to`."""
    if array.flags.c_contiguous or not array.size:
        return False
    reach = array.itemsize
    # Slices and transposed arrays pass: each stride leads beyond all that the smaller ones reach.
    for stride, n in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if n > 1:
            if stride < reach:
                return True
            reach += stride * (n - 1)
    return False
