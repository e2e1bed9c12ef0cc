"""Pictures of panels by matplotlib: axes with their units, drawn once, and what moves over copies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.tools.pictures.colours import Scale, Shades
from diffsim.tools.pictures.images import to_rows
from diffsim.tools.pictures.panels import Frames, Points
from diffsim.tools.pictures.projection import VIEW, on_screen

_SIDE = 4.8  # the longer side of what is shown [inch, of 100 pixels]


def new_figure(width: float, height: float) -> Any:
    """Make a figure of this size [inch] that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def film_of(panel: Frames | Points) -> Callable[[int], np.ndarray]:
    """Return a function that draws one frame: its rows, (height, width, 3), u8."""
    width, height = _extent(panel)
    longer = max(width, height)
    size = [max(1.2, _SIDE * side / longer) for side in (width, height)]
    figure = new_figure(size[0] + 0.9 + 0.9 * (scale_of(panel) is not None), size[1] + 0.8)
    axes = figure.add_subplot(aspect="equal")
    move = _draw_frames(axes, panel) if isinstance(panel, Frames) else _draw_points(axes, panel)
    if scale := scale_of(panel):
        _draw_scale(figure, axes, scale)
    title = axes.set_title(" ", fontsize=10, loc="left")
    canvas = figure.canvas
    canvas.draw()
    figure.set_layout_engine("none")  # the axes stay where they are
    still = canvas.copy_from_bbox(figure.bbox)

    def draw(k: int) -> np.ndarray:
        canvas.restore_region(still)
        title.set_text("   ".join(filter(None, (panel.label, time_text(k * panel.dt, panel.dt)))))
        for artist in (*move(k), title):
            artist.axes.draw_artist(artist)
        return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()

    return draw


def scale_of(panel: Frames | Points) -> Scale | None:
    """Return what the colours of a panel mean, or None."""
    if isinstance(panel, Frames):
        return panel.scale
    return panel.shades.scale or panel.line_shades.scale


def time_text(t: float, dt: float) -> str:
    """Write a time [s] with the digits that tell a frame from the next."""
    digits = int(np.clip(np.ceil(-np.log10(dt)) if dt < 1 else 0, 0, 9))
    return f"t = {t:.{digits}f} s"


def _extent(panel: Frames | Points) -> tuple[float, float]:
    """Return width and height of what is shown, in any unit."""
    if isinstance(panel, Frames):
        return panel.source.shape[1], panel.source.shape[2]
    low, high = on_screen(panel, VIEW)[1]
    width, height = high - low
    return float(width), float(height)


def _draw_frames(axes: Any, panel: Frames) -> Callable[[int], list[Any]]:
    width, height = panel.source.shape[1:3]
    shown = axes.imshow(
        to_rows(panel.frame(0)),
        extent=(0, width, 0, height),
        interpolation="nearest",
        animated=True,
    )
    axes.set(xlabel="x [cells]", ylabel="y [cells]")

    def move(k: int) -> list[Any]:
        shown.set_data(to_rows(panel.frame(k)))
        return [shown]

    return move


def _draw_points(axes: Any, panel: Points) -> Callable[[int], list[Any]]:
    from matplotlib.collections import EllipseCollection, LineCollection

    places, (low, high) = on_screen(panel, VIEW)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    if panel.positions.shape[2] == 3:
        axes.set_axis_off()
        _draw_box(axes, panel)
    else:
        axes.set(xlabel="x", ylabel="y")
    lines = axes.add_collection(LineCollection([], linewidths=1.5, animated=True))
    diameter = 2 * panel.radius
    dots = EllipseCollection(
        diameter, diameter, np.zeros(len(diameter)), units="xy", offsets=places[0, :, :2],
        offset_transform=axes.transData, linewidths=0, animated=True,
    )  # fmt: skip
    axes.add_collection(dots)

    def move(k: int) -> list[Any]:
        lines.set_segments(places[k][panel.lines][:, :, :2])
        lines.set_color(_colours(panel.line_shades, k))
        # From the back to the front.
        order = np.argsort(places[k, :, 2], kind="stable") if places.shape[2] == 3 else slice(None)
        dots.set_offsets(places[k][order, :2])
        dots.set_widths(diameter[order])
        dots.set_heights(diameter[order])
        dots.set_facecolor(_colours(panel.shades, k)[order])
        return [lines, dots]

    return move


def _colours(shades: Shades, k: int) -> Any:
    return shades.table[shades.index[min(k, len(shades.index) - 1)]] / 255


def _draw_box(axes: Any, panel: Points) -> None:
    """Draw the edges of the bounds, so that one sees where is up and what is near."""
    from matplotlib.collections import LineCollection

    corners = np.array([[(c >> a) & 1 for a in range(3)] for c in range(8)])
    edges = [(c, c | 1 << a) for c in range(8) for a in range(3) if not c >> a & 1]
    at = np.where(corners, panel.bounds[1], panel.bounds[0])
    flat = on_screen(panel, VIEW, at[None])[0][0]
    axes.add_collection(
        LineCollection(flat[np.array(edges)][:, :, :2], colors="#cccccc", linewidths=0.8)
    )


def _draw_scale(figure: Any, axes: Any, scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap(scale.table[:255] / 255)
    figure.colorbar(ScalarMappable(Normalize(scale.low, scale.high), colours), ax=axes, shrink=0.8)
