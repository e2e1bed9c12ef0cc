"""Shapes of a picture that was laid out: boxes, frames, curves of arrows; lengths in inches, y downwards."""

from __future__ import annotations

import itertools

from diffsim.ad.pictures.layout import Arrow, Frame, Key, Layout

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""

ALONG = {"LR": (1, 0), "RL": (-1, 0), "TB": (0, 1), "BT": (0, -1)}
"""The direction in which a picture goes, of unit length."""
_MARGIN, _FRAME_MARGIN, _LABEL = 0.2, 0.16, 0.19


def extent(layout: Layout) -> Box:
    """Return what holds everything but arrows that go back."""
    boxes = [box(layout, key) for key in layout.center] or [(0.0, 0.0, 1.8, 0.3)]
    boxes += [frame_box(layout, frame) for frame in layout.frames]
    left, top = (min(one[k] for one in boxes) - _MARGIN for k in (0, 1))
    right, bottom = (max(one[k] for one in boxes) + _MARGIN for k in (2, 3))
    return left, top, right, bottom


def box(layout: Layout, key: Key) -> Box:
    """Return what holds a node."""
    (x, y), (width, height) = layout.center[key], layout.size[key]
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def frame_box(layout: Layout, frame: Frame) -> Box:
    """Return the frame of a group, with room for its label at the top."""
    boxes = [box(layout, key) for key in frame.steps]
    left, top = (min(one[k] for one in boxes) - _FRAME_MARGIN for k in (0, 1))
    right, bottom = (max(one[k] for one in boxes) + _FRAME_MARGIN for k in (2, 3))
    return left, top - _LABEL * (frame.label.count("\n") + 1) - 0.05, right, bottom


def curve(layout: Layout, path: list[Key], along: tuple[int, int]) -> list[Point]:
    """Return cubic curves from the side of the first node to that of the last, level at each place.

    Returns:
        The start, and for each curve two control points and its end.
    """
    ends = []
    for key, side in ((path[0], 0.5), (path[-1], -0.5)):
        center, size = layout.center[key], layout.size[key]
        ends.append((center[0] + side * size[0] * along[0], center[1] + side * size[1] * along[1]))
    points = [ends[0], *(layout.center[key] for key in path[1:-1]), ends[1]]
    corners = [points[0]]
    for p, q in itertools.pairwise(points):
        half = ((q[0] - p[0]) * along[0] + (q[1] - p[1]) * along[1]) / 2
        corners.append((p[0] + half * along[0], p[1] + half * along[1]))
        corners.append((q[0] - half * along[0], q[1] - half * along[1]))
        corners.append(q)
    return corners


def bow(layout: Layout, arrow: Arrow, along: tuple[int, int]) -> list[Point]:
    """Return the cubic curve of an arrow that goes back, round what is between.

    In a picture that goes to the side it passes above the others or below them, in an upright one on the
    right or on the left: where fewer nodes are in its way.

    Returns:
        The start, two control points, and the end.
    """
    side = 0 if along[0] else 1  # the axis along which the picture goes
    across = 1 - side
    keys = arrow.path[0], arrow.path[-1]
    before = sum(_beside(layout, key, side, -1) for key in keys)
    after = sum(_beside(layout, key, side, 1) for key in keys)
    # Above or on the right, if it makes no difference.
    sign = -1 if before < after or (before == after and side == 0) else 1
    ends = []
    for key in keys:
        at = list(layout.center[key])
        at[across] += sign * layout.size[key][across] / 2
        ends.append(at)
    reach = sign * (0.3 + 0.12 * abs(ends[1][side] - ends[0][side]))
    points = [ends[0]]
    for end in ends:
        control = list(end)
        control[across] += reach
        points.append(control)
    return [(x, y) for x, y in [*points, ends[1]]]


def _beside(layout: Layout, key: Key, side: int, sign: int) -> int:
    """Return how many nodes of the same column stand before (-1) or after (1) a node."""
    here, across = layout.center[key], 1 - side
    return sum(
        abs(at[side] - here[side]) < layout.size[other][side] / 2
        and sign * (at[across] - here[across]) > 0
        for other, at in layout.center.items()
        if other[0] != "p" and other != key
    )
