"""Draws a picture as SVG, without any other program: what notebooks show of a tape."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from diffsim.ad.pictures.dot import OVERWRITES, WITH_GRADIENT, WITHOUT
from diffsim.ad.pictures.geometry import ALONG, Box, Point, bow, box, curve, extent, frame_box
from diffsim.ad.pictures.graph import Graph, Link, Step
from diffsim.ad.pictures.layout import Arrow, Frame, Key, Layout, place

_INCH = 72  # units of the picture
_HEAD, _HALF = 8.0, 3.2  # length and half the width of an arrow's head
_NOT_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = (
    "text{font:13px system-ui,sans-serif;text-anchor:middle;dominant-baseline:central;fill:#000}"
    ".frame{fill:none;stroke:#888}.label{font-size:11px;text-anchor:start}"
    "path{fill:none;stroke-width:1.2}"
)


def draw_svg(graph: Graph) -> str:
    """Return the picture as the text of an SVG file."""
    layout = place(graph)
    along = ALONG[graph.direction]
    body = [_frame(layout, frame) for frame in layout.frames]
    body += [_arrow(layout, arrow, along) for arrow in layout.arrows]
    body += [_node(layout, graph, key, label) for key, label in layout.labels.items()]
    left, top, right, bottom = _with_bows(layout, along)
    if any(arrow.overwrites for arrow in layout.arrows):
        bottom += 0.2
        body.append(_label(left + 0.1, bottom - 0.15, "dashed: overwrites", OVERWRITES))
    if not layout.labels:
        body.append(_label(left + 0.2, (top + bottom) / 2, "nothing was recorded"))
    x, y, width, height = (
        f"{_INCH * part:.1f}" for part in (left, top, right - left, bottom - top)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="{x} {y} {width} {height}" style="max-width:none">'
    )
    paper = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#fff"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", paper, *body, "</svg>\n"])


def _with_bows(layout: Layout, along: tuple[int, int]) -> Box:
    """Return what holds everything, arrows that go back included."""
    left, top, right, bottom = extent(layout)
    for arrow in layout.arrows:
        if arrow.goes_back:
            for x, y in bow(layout, arrow, along):
                left, top = min(left, x), min(top, y)
                right, bottom = max(right, x), max(bottom, y)
    return left, top, right, bottom


def _node(layout: Layout, graph: Graph, key: Key, label: str) -> str:
    """Draw a step or a field, with what it is as its tooltip."""
    left, top, right, bottom = (_INCH * side for side in box(layout, key))
    x, y = (left + right) / 2, (top + bottom) / 2
    if key[0] == "s":
        step = layout.steps[key[1]]
        dashes = "" if step.kind == "kernel" else ' stroke-dasharray="5 3"'
        shape = (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
            f'rx="2" fill="#fff" stroke="#000"{dashes}/>'
        )
        tip = _tip(graph, step)
    else:
        field = graph.fields[key[1]]
        colour = WITH_GRADIENT if field.has_grad else WITHOUT
        shape = (
            f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{(right - left) / 2:.1f}" ry="{(bottom - top) / 2:.1f}" '
            f'fill="{colour}" stroke="#000" stroke-width="{2.2 if field.role else 0.8}"/>'
        )
        tip = "a field with a gradient" if field.has_grad else "a field without a gradient"
    lines = label.split("\n")
    first = y - 7.5 * (len(lines) - 1)
    texts = [
        f'<text x="{x:.1f}" y="{first + 15 * k:.1f}">{_text(line)}</text>'
        for k, line in enumerate(lines)
    ]
    return f"<g><title>{_text(tip)}</title>{shape}{''.join(texts)}</g>"


def _tip(graph: Graph, step: Step) -> str:
    """Say what a step reads and writes."""

    def names(links: Sequence[Link]) -> str:
        return ", ".join(graph.fields[link.node].label for link in links) or "nothing"

    return f"{step.label}: reads {names(step.reads)}; writes {names(step.writes)}"


def _arrow(layout: Layout, arrow: Arrow, along: tuple[int, int]) -> str:
    made = bow(layout, arrow, along) if arrow.goes_back else curve(layout, arrow.path, along)
    points = [(_INCH * x, _INCH * y) for x, y in made]
    colour = OVERWRITES if arrow.overwrites else "#000"
    head, end = _head(points[-2], points[-1])
    curves = [*points[1:-1], end]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in curves)
    dashes = ' stroke-dasharray="5 3"' if arrow.overwrites else ""
    x, y = points[0]
    return f'<path d="M{x:.1f},{y:.1f} C{text}" stroke="{colour}"{dashes}/>{head.format(colour)}'


def _head(before: Point, tip: Point) -> tuple[str, Point]:
    """Return the head of an arrow, with a place for its colour, and where its line ends."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = math.hypot(dx, dy) or 1.0
    dx, dy = dx / length, dy / length
    base = tip[0] - _HEAD * dx, tip[1] - _HEAD * dy
    corners = [
        tip,
        (base[0] - _HALF * dy, base[1] + _HALF * dx),
        (base[0] + _HALF * dy, base[1] - _HALF * dx),
    ]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polygon points="{text}" fill="{{}}"/>', base


def _frame(layout: Layout, frame: Frame) -> str:
    left, top, right, bottom = (_INCH * side for side in frame_box(layout, frame))
    shape = (
        f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{bottom - top:.1f}" rx="8"/>'
    )
    lines = frame.label.split("\n")
    where = frame_box(layout, frame)
    texts = [
        _label(where[0] + 0.08, where[1] + 0.14 + 0.18 * k, text) for k, text in enumerate(lines)
    ]
    return shape + "".join(texts)


def _label(x: float, y: float, text: str, colour: str = "#666") -> str:
    place_of_text = f'x="{_INCH * x:.1f}" y="{_INCH * y:.1f}"'
    return f'<text class="label" {place_of_text} style="fill:{colour}">{_text(text)}</text>'


def _text(text: str) -> str:
    """Return a text as XML has it; names from anywhere may hold what it cannot."""
    return html.escape(_NOT_XML.sub("\ufffd", text))
