"""Draws a picture as PNG or PDF by matplotlib, where there is no GraphViz."""

from __future__ import annotations

import importlib
import io
from typing import Any

from diffsim.ad.pictures.dot import OVERWRITES, WITH_GRADIENT, WITHOUT
from diffsim.ad.pictures.geometry import ALONG, box, curve, extent, frame_box
from diffsim.ad.pictures.graph import Graph
from diffsim.ad.pictures.layout import Arrow, Frame, Key, Layout, place

_BOW = (0.5, 0.9)  # of arrows that go back; boxes are wide, so it is larger in an upright picture
_MOST_INCHES = 300.0  # matplotlib's limit is 2**16 pixels


def draw(graph: Graph, form: str) -> bytes:
    """Return the picture as a file of this format: "png" or "pdf"."""
    figures = importlib.import_module("matplotlib.figure")
    layout = place(graph)
    left, top, right, bottom = extent(layout)
    width, height = min(right - left, _MOST_INCHES), min(bottom - top, _MOST_INCHES)
    figure = figures.Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()
    for frame in layout.frames:
        _draw_frame(axes, layout, frame)
    shapes = {
        key: _draw_node(axes, layout, graph, key, label) for key, label in layout.labels.items()
    }
    for arrow in layout.arrows:
        _draw_arrow(axes, layout, arrow, shapes, ALONG[graph.direction])
    if any(arrow.overwrites for arrow in layout.arrows):
        axes.text(left, bottom, "dashed: overwrites", fontsize=9, color=OVERWRITES)
    file = io.BytesIO()
    figure.savefig(file, format=form, dpi=110, bbox_inches="tight")
    return file.getvalue()


def _draw_node(axes: Any, layout: Layout, graph: Graph, key: Key, label: str) -> Any:
    """Draw a step or a field; return its shape."""
    patches = importlib.import_module("matplotlib.patches")
    left, top, right, bottom = box(layout, key)
    if key[0] == "s":
        dashed = "-" if layout.steps[key[1]].kind == "kernel" else "--"
        shape = patches.Rectangle(
            (left, top), right - left, bottom - top, fc="white", ec="black", ls=dashed, zorder=3
        )
    else:
        node = graph.fields[key[1]]
        color = WITH_GRADIENT if node.has_grad else WITHOUT
        width = 2.2 if node.role else 0.8
        size = right - left, bottom - top
        shape = patches.Ellipse(layout.center[key], *size, fc=color, ec="black", lw=width, zorder=3)
    axes.add_patch(shape)
    axes.text(*layout.center[key], label, ha="center", va="center", fontsize=10, zorder=4)
    return shape


def _draw_arrow(
    axes: Any, layout: Layout, arrow: Arrow, shapes: dict[Key, Any], along: tuple[int, int]
) -> None:
    patches = importlib.import_module("matplotlib.patches")
    first, last = arrow.path[0], arrow.path[-1]
    if arrow.goes_back:
        # A wide bow, round what is between.
        made = patches.FancyArrowPatch(
            layout.center[first],
            layout.center[last],
            connectionstyle=f"arc3,rad={_BOW[along[0] == 0] * -sum(along)}",
            patchA=shapes[first],
            patchB=shapes[last],
        )
    else:
        made = patches.FancyArrowPatch(path=_curve(layout, arrow.path, along))
    made.set(arrowstyle="-|>", mutation_scale=11, linewidth=1.0, zorder=1)
    made.set(color=OVERWRITES if arrow.overwrites else "black")
    made.set_linestyle("--" if arrow.overwrites else "-")
    axes.add_patch(made)


def _curve(layout: Layout, path: list[Key], along: tuple[int, int]) -> Any:
    paths = importlib.import_module("matplotlib.path")
    corners = curve(layout, path, along)
    codes = [paths.Path.MOVETO] + [paths.Path.CURVE4] * (len(corners) - 1)
    return paths.Path(corners, codes)


def _draw_frame(axes: Any, layout: Layout, frame: Frame) -> None:
    patches = importlib.import_module("matplotlib.patches")
    left, top, right, bottom = frame_box(layout, frame)
    shape = patches.FancyBboxPatch(
        (left, top),
        right - left,
        bottom - top,
        boxstyle="round,pad=0,rounding_size=0.12",
        fc="none",
        ec="dimgray",
        zorder=0,
    )
    axes.add_patch(shape)
    axes.text(left + 0.08, top + 0.06, frame.label, va="top", fontsize=9, color="dimgray", zorder=4)
