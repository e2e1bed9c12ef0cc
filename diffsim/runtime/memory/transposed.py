"""Copies between arrays whose axes are in different orders in memory, at the speed of the memory.

NumPy walks in the order of one of the two arrays, and fetches a cache line of the other for each element.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

Casting = Literal["same_kind", "unsafe"]

_SMALL = 1 << 17
"""Bytes that are in the cache whatever the order."""
_LONG = 64
"""The longest item [bytes]: NumPy copies longer runs as fast."""

_loader: list[Callable[[], int]] = []
_loaded: list[Callable[..., None]] = []


def install(loader: Callable[[], int]) -> None:
    """Set what returns the address of `ds_transpose` (`transpose.ll`): sessions, which compile, are above."""
    _loader[:] = [loader]


def copy_elements(target: np.ndarray, source: np.ndarray, casting: Casting) -> None:
    """Copy an array to another one of the same shape."""
    walk = _walk(target, source) if source.nbytes >= _SMALL and _loader else None
    if walk is None or np.may_share_memory(target, source):
        np.copyto(target, source, casting=casting)
    elif target.dtype == source.dtype:
        _transpose(target, source, walk)
    elif source.flags.c_contiguous:  # converted first, in sequence
        copy_elements(target, source.astype(target.dtype, casting=casting), casting)
    else:
        in_order = np.empty(source.shape, source.dtype)
        copy_elements(in_order, source, casting)
        copy_elements(target, in_order, casting)


class _Axis(NamedTuple):
    """An axis, or several that are one in both arrays, with the steps in target and source [bytes]."""

    length: int
    to: int
    of: int


class _Walk(NamedTuple):
    """The axes along which target and source are in sequence, those around, and the bytes of an item."""

    in_target: _Axis
    in_source: _Axis
    around: list[_Axis]
    item: int


def _walk(target: np.ndarray, source: np.ndarray) -> _Walk | None:
    """Return how to copy slices whose axes are swapped; None where NumPy's own copy is as good."""
    item = source.itemsize
    axes = _merged(target, source)
    if axes and axes[0].to == target.itemsize and axes[0].of == item:
        item *= axes.pop(0).length
    if len(axes) < 2 or item > _LONG or any(a.to <= 0 or a.of <= 0 for a in axes):
        return None
    in_source = min(axes, key=lambda a: a.of)
    in_target, *others = axes
    width = item * target.itemsize // source.itemsize
    if in_target is in_source:
        return None
    sequences = (in_target.to, in_source.of) == (width, item)
    # Along few components NumPy is as fast; and a list of the places of small slices would be long.
    if not sequences or in_source.length < 8 or in_target.length * in_source.length < 64:
        return None
    return _Walk(in_target, in_source, [a for a in others if a is not in_source], item)


def _merged(target: np.ndarray, source: np.ndarray) -> list[_Axis]:
    """Return the axes in the order of the target's memory, fastest first; neighbours in both are one axis."""
    found: list[_Axis] = []
    every = zip(target.shape, target.strides, source.strides, strict=True)
    for count, to, of in sorted((a for a in every if a[0] > 1), key=lambda a: a[1]):
        last = found[-1] if found else None
        if last is not None and (to, of) == (last.to * last.length, last.of * last.length):
            found[-1] = last._replace(length=last.length * count)
        else:
            found.append(_Axis(count, to, of))
    return found


def _transpose(target: np.ndarray, source: np.ndarray, walk: _Walk) -> None:
    """Copy slice by slice in native code."""
    if not _loaded:
        i64, ptr = ctypes.c_int64, ctypes.c_void_p
        _loaded.append(
            ctypes.CFUNCTYPE(None, ptr, ptr, i64, i64, i64, i64, i64, i64, ptr, ptr)(_loader[0]())
        )
    to, of = (_places(walk.around, k) for k in (1, 2))
    rows, items = walk.in_target, walk.in_source
    _loaded[0](
        *(target.ctypes.data, source.ctypes.data),
        *(items.to, rows.of, rows.length, items.length, walk.item),
        *(len(to), to.ctypes.data, of.ctypes.data),
    )


def _places(axes: list[_Axis], k: int) -> np.ndarray:
    """Return where each slice begins [bytes], from the array's first element on."""
    made = np.zeros(1, np.int64)
    for axis in axes:  # fastest first
        made = (np.arange(axis.length, dtype=np.int64)[:, None] * axis[k] + made).reshape(-1)
    return made
