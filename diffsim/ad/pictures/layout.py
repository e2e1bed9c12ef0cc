"""Places the nodes of a picture in columns, where there is no GraphViz to do it.

The order is that of the tape: a step comes to the right of what it reads and of who wrote that, a field to
the right of the step that writes it first. An arrow to a field that stands further left already goes back.
Groups have columns of their own, so a frame holds its own steps. Arrows over several columns pass through a
place of their own in each; within a column places are ordered by the mean of their neighbours' (barycenter
method).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from diffsim.ad.pictures.graph import Graph, Group, Step

Key = tuple[str, int]
"""A field ("f") or step ("s") by its number, or a place that an arrow passes ("p")."""
_LETTER, _LINE = 0.11, 0.2  # inches
_PADDING, _GAP, _COLUMN_GAP = 0.22, 0.22, 0.55
_SWEEPS = 6


@dataclass(slots=True)
class Arrow:
    """An arrow: the nodes that it passes, first and last included; whether it goes back."""

    path: list[Key]
    overwrites: bool = False
    goes_back: bool = False


@dataclass(slots=True)
class Frame:
    """A group: its label, the steps in it, how deep it is nested."""

    label: str
    steps: list[Key]
    depth: int


@dataclass(slots=True)
class Layout:
    """Where everything is: centers and sizes [inches], y downwards."""

    labels: dict[Key, str] = field(default_factory=dict)
    center: dict[Key, tuple[float, float]] = field(default_factory=dict)
    size: dict[Key, tuple[float, float]] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class _Columns:
    """Gives each step and field a column, in the order of the tape."""

    def __init__(self, graph: Graph) -> None:
        self.layout = Layout()
        self.column: dict[Key, int] = {}
        self._writer: dict[int, int] = {}
        self._first = 1  # the first column of a step here
        self._last = 0
        self._items(graph.items, 0)
        for number in graph.fields:
            self.column.setdefault(("f", number), 0)

    def _items(self, items: Iterable[Step | Group], depth: int) -> list[Key]:
        made: list[Key] = []
        for item in items:
            if isinstance(item, Step):
                made.append(self._step(item))
                continue
            self._first = self._last + 1 + self._last % 2
            inside = self._items(item.items, depth + 1) or self._nothing()
            self._first = self._last + 1 + self._last % 2
            texts = [item.label, *(f"{key}: {value}" for key, value in item.metadata)]
            self.layout.frames.append(Frame("\n".join(texts), inside, depth))
            made += inside
        return made

    def _nothing(self) -> list[Key]:
        """Return a place for a frame round nothing."""
        key: Key = "p", -1 - len(self.layout.frames)
        self.column[key] = self._last = self._first
        return [key]

    def _step(self, step: Step) -> Key:
        key: Key = "s", len(self.layout.steps)
        self.layout.steps.append(step)
        behind = [self._first]
        for link in step.reads:
            behind.append(self.column.get(("f", link.node), -1) + 1)
            behind.append(self._writer.get(link.node, -1) + 2)
        for link in step.writes:
            if link.overwrites:
                behind.append(self._writer.get(link.node, -1) + 2)
        column = self.column[key] = max(behind)
        for link in step.reads:
            self.column.setdefault(("f", link.node), column - 1)
            self.layout.arrows.append(Arrow([("f", link.node), key]))
        for link in step.writes:
            self.column.setdefault(("f", link.node), column + 1)
            self._writer[link.node] = max(column, self._writer.get(link.node, -1))
            self.layout.arrows.append(Arrow([key, ("f", link.node)], link.overwrites))
            self._last = max(self._last, self.column["f", link.node])
        self._last = max(self._last, column)
        return key


def place(graph: Graph) -> Layout:
    """Return where the nodes of a graph are, from left to right (or as its direction says)."""
    columns = _Columns(graph)
    layout, column = columns.layout, columns.column
    layout.labels = {("f", n): f.label for n, f in graph.fields.items()}
    layout.labels |= {("s", k): s.label for k, s in enumerate(layout.steps)}
    _add_places(layout, column)
    rows = _order(layout, column)
    _set_places(layout, rows, graph.direction)
    return layout


def _add_places(layout: Layout, column: dict[Key, int]) -> None:
    """Give each arrow to the right a place in each column that it passes."""
    count = 0
    for arrow in layout.arrows:
        start, end = arrow.path
        arrow.goes_back = column[end] < column[start]
        for k in range(column[start] + 1, column[end]):
            key: Key = "p", count
            count += 1
            column[key] = k
            arrow.path.insert(-1, key)


def _order(layout: Layout, column: dict[Key, int]) -> list[list[Key]]:
    """Return the nodes of each column in their order."""
    rows: dict[int, list[Key]] = {}
    for key, k in column.items():
        rows.setdefault(k, []).append(key)
    ordered = [rows[k] for k in sorted(rows)]
    neighbours: dict[Key, list[Key]] = {key: [] for key in column}
    for arrow in layout.arrows:
        for a, b in itertools.pairwise(arrow.path):
            neighbours[a].append(b)
            neighbours[b].append(a)
    at = {key: float(k) for row in ordered for k, key in enumerate(row)}

    def mean(key: Key) -> float:
        beside = neighbours[key]
        return sum(at[n] for n in beside) / len(beside) if beside else at[key]

    for sweep in range(_SWEEPS):
        for row in ordered if sweep % 2 == 0 else reversed(ordered):
            row.sort(key=mean)
            middle = (len(row) - 1) / 2
            at.update({key: k - middle for k, key in enumerate(row)})
    return ordered


def _set_places(layout: Layout, rows: list[list[Key]], direction: str) -> None:
    """Set centers and sizes."""
    upright = direction in ("TB", "BT")
    for row in rows:
        for key in row:
            lines = layout.labels.get(key, "").split("\n")
            width = max(map(len, lines)) * _LETTER + 2 * _PADDING if key[0] != "p" else 0.1
            height = len(lines) * _LINE + _PADDING if key[0] != "p" else 0.1
            layout.size[key] = width, height
    along, across = (1, 0) if upright else (0, 1)
    at = 0.0
    for row in rows:
        extent = max(layout.size[key][along] for key in row)
        total = sum(layout.size[key][across] for key in row) + _GAP * (len(row) - 1)
        beside = -total / 2
        for key in row:
            step = layout.size[key][across]
            x, y = at + extent / 2, beside + step / 2
            x = -x if direction in ("RL", "BT") else x
            layout.center[key] = (y, x) if upright else (x, y)
            beside += step + _GAP
        at += extent + _COLUMN_GAP
