"""Scalar fields as colours."""

from __future__ import annotations

import numpy as np

from diffsim.tools.pictures.arrays import refuse


def contour_colors(values: np.ndarray, res: tuple[int, int], normalize: bool) -> np.ndarray:
    """Return the colours (x, y, 4) of numbers from 0 to 1, interpolated to `res` where sizes differ."""
    from matplotlib import colormaps

    if values.ndim != 2 or 0 in values.shape:
        raise refuse(
            f"a contour is drawn of numbers of shape (x, y), not {values.shape}",
            "of vectors, pass their lengths",
        )
    stretched = values.astype(np.float64)
    for axis, pixels in enumerate(res):
        stretched = _stretch(stretched, axis, pixels)
    if normalize:
        low, high = np.nanmin(stretched), np.nanmax(stretched)
        stretched = (stretched - low) / ((high - low) or 1)
    return colormaps["plasma"](stretched, bytes=True)


def _stretch(values: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Interpolate linearly along one axis."""
    have = values.shape[axis]
    if have == size:
        return values
    at = np.linspace(0, have - 1, size)
    low = at.astype(int)
    part = np.expand_dims(at - low, 1 - axis)
    lower = np.take(values, low, axis)
    upper = np.take(values, np.minimum(low + 1, have - 1), axis)
    return lower + part * (upper - lower)
