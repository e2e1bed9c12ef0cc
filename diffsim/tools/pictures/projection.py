"""Points in three dimensions on a screen: seen from far away, so that lines which are parallel stay so."""

from __future__ import annotations

import numpy as np

from diffsim.tools.pictures.panels import Points

VIEW = (-60.0, 25.0)
"""Where pictures are seen from: the angle round the upright axis, and that above the ground [degrees]."""


def axes_of(view: tuple[float, float], up: int) -> np.ndarray:
    """Return the directions to the right, up and to the eye, as rows, (3, 3)."""
    around, above = np.radians(view)
    # With z upright; then the axes take turns until the right one is.
    eye = [np.cos(above) * np.cos(around), np.cos(above) * np.sin(around), np.sin(above)]
    right = [-np.sin(around), np.cos(around), 0.0]
    rows = np.array([right, np.cross(eye, right), eye])
    return np.roll(rows, up - 2, axis=1)


def on_screen(
    panel: Points, view: tuple[float, float], positions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return places on the screen, and the corners of what is seen there, (2, 2).

    Args:
        panel: the points.
        view: where they are seen from, for three dimensions [degrees].
        positions: others to put on the screen, (T, n, d).

    Returns:
        (T, n, 2), or (T, n, 3) with what is nearer to the eye larger.
    """
    found = panel.positions if positions is None else positions
    low, high = panel.bounds
    if found.shape[2] == 2:
        return found, panel.bounds
    rows = axes_of(view, panel.up)
    # Whatever the view, the box of the bounds is inside.
    half = np.abs(rows[:2]) @ (high - low) / 2
    return (found - (low + high) / 2) @ rows.T.astype(np.float32), np.stack([-half, half])
