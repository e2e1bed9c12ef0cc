"""`animate`: a film of an array, as GIF, MP4 or a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.lang.host.signatures import checked
from diffsim.runtime.files import write_file
from diffsim.tools.page.player import Player
from diffsim.tools.pictures.arrays import path_of, refuse, stacked
from diffsim.tools.pictures.figures import film_of
from diffsim.tools.pictures.films import NO_FFMPEG, NO_FFMPEG_HERE, find_ffmpeg, gif, mp4
from diffsim.tools.pictures.panels import Frames, Points, make_frames, make_points

_MOST = {".gif": 100, ".mp4": 1200}  # frames
_PACE = {".gif": (0.03, 0.12), ".mp4": (1 / 60, 0.12)}  # between two frames [s]


@checked
def animate(
    array: Any,
    dt: float,
    path: Any,
    *,
    label: str = "",
    cmap: str = "viridis",
    vmin: float | None = None,
    vmax: float | None = None,
    colors: Any = None,
    lines: Any = None,
    line_colors: Any = None,
    radius: Any = None,
    bounds: Any = None,
    up: str = "z",
) -> None:
    """Write a film: a GIF, an MP4 (where there is ffmpeg), or a page that plays in any browser.

    It runs at the speed of life, where it is neither too short nor too long for that.

    Args:
        array: what changes: (T, width, height) numbers, (T, width, height, 3) colours, or (T, n, 2 or 3)
            positions of points. The first axis of images goes to the right, the second one up.
        dt: time from one frame to the next [s].
        path: of the file; its ending .gif, .mp4 or .html says what it is.
        label: what to write above.
        cmap: the colour map for numbers, one of matplotlib's.
        vmin: the number with its first colour; the smallest one if left out.
        vmax: the number with its last colour; the largest one if left out.
        colors: of points: one, such as 0x2166AC or "tab:blue"; one for each, (n, 3); numbers, (n,) or (T, n).
        lines: pairs of points that lines join, (m, 2).
        line_colors: the same as `colors`, for lines.
        radius: of the points, in the unit of the positions: one number, or (n,).
        bounds: the lower and the upper corner of what is seen, as ((0, 0), (2, 1)) or (0, 1).
        up: the upright axis of points in three dimensions, "y" or "z".

    Raises:
        ArgumentError: a shape or an option that makes no sense; no ffmpeg for an MP4; a file that cannot be
            written.

    Example:
        from pathlib import Path

        waves = np.random.default_rng(0).random((3, 8, 8))  # (T, width, height)
        ds.tools.animate(waves, dt=0.1, path="waves.gif", label="height [m]")
        print(Path("waves.gif").read_bytes()[:3])  # prints: b'GIF'
    """
    target = path_of(path, "the film", (".gif", ".mp4", ".html"))
    ending = target.suffix.lower()
    if ending == ".mp4" and find_ffmpeg() is None:  # said before the work is done
        raise refuse(NO_FFMPEG_HERE, NO_FFMPEG)
    found = stacked(array, "array")
    panel: Frames | Points
    if found.ndim == 3 and found.shape[2] in (2, 3):
        panel = make_points(
            found, dt, label, colors=colors, lines=lines, line_colors=line_colors, radius=radius,
            bounds=bounds, up=up, scaling=(cmap, vmin, vmax),
        )  # fmt: skip
    else:
        panel = make_frames(found, dt, label, cmap, vmin, vmax)
    if ending == ".html":
        player = Player(label or target.stem.replace("_", " "))
        player.add(panel)
        player.write(target)
        return
    shown, seconds = _pace(len(found), dt, ending)
    draw = film_of(panel)
    if ending == ".gif":
        write_file(target, gif(lambda k: draw(shown[k]), len(shown), seconds))
    else:
        write_file(target, mp4((draw(k) for k in shown), 1 / seconds))


def _pace(count: int, dt: float, ending: str) -> tuple[list[int], float]:
    """Return which frames to show, and the time from one to the next [s]."""
    shortest, longest = _PACE[ending]
    stride = max(1, -(-count // _MOST[ending]), int(shortest / dt) if dt < shortest else 1)
    # A film of a few milliseconds would show its last frame only: it is slowed down.
    stride = min(stride, max(1, count // 60))
    shown = [*range(0, count - 1, stride), count - 1]
    return shown, float(np.clip(stride * dt, shortest, longest))
