"""A picture of a tape: its launches and the fields between them, in GraphViz's DOT language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from diffsim.ad.record.entry import Entry
from diffsim.runtime.fields.field import Field

_WITH_GRADIENT, _WITHOUT = "palegreen", "lightgray"


class _Picture:
    """Collects nodes, edges and nested groups (`Picture` of `entry.py`)."""

    def __init__(self, labels: Mapping[Field, str]) -> None:
        self.labels = labels
        self.nodes: dict[int, str] = {}
        self.lines: list[str] = []
        self.edges: list[str] = []
        self.count = 0
        self.depth = 0

    def step(self, text: str, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Draw a box, with arrows from what it reads and to what it writes."""
        name = f"step{self.count}"
        self.count += 1
        self.lines.append(f"{name} [shape=box, label={_quoted(text)}];")
        # One arrow for each field, though a kernel may read it in many places.
        self.edges += [f"{f} -> {name};" for f in dict.fromkeys(map(self.field, reads))]
        self.edges += [f"{name} -> {f};" for f in dict.fromkeys(map(self.field, writes))]

    def begin_group(self, name: str) -> None:
        """Draw what follows within a frame."""
        self.depth += 1
        head = f"subgraph cluster{len(self.lines)} {{"
        self.lines.append(f"{head} label={_quoted(name)};")

    def end_group(self) -> None:
        """End the group begun last, if there is one."""
        if self.depth:
            self.depth -= 1
            self.lines.append("}")

    def field(self, f: Any) -> str:
        """Return the node of a field, made at its first use."""
        name = f"field{len(self.nodes)}"
        # By identity: NumPy arrays are not hashable. The record keeps all of them alive, so ids are
        # unique.
        if id(f) in self.nodes:
            return self.nodes[id(f)].partition(" ")[0]
        is_field = isinstance(f, Field)
        label = self.labels.get(f, f.name) if is_field else "array"
        color = _WITH_GRADIENT if is_field and f.grad is not None else _WITHOUT
        self.nodes[id(f)] = f"{name} [label={_quoted(label)}, style=filled, fillcolor={color}];"
        return name


def draw(entries: Iterable[Entry], labels: Mapping[Field, str]) -> str:
    """Return the DOT text: launches as boxes, fields as ellipses, green if they have a gradient."""
    picture = _Picture(labels)
    for entry in entries:
        entry.draw(picture)
    # Groups that the program did not end are closed here, or the text would be no valid DOT.
    while picture.depth:
        picture.end_group()
    body = [*picture.nodes.values(), *picture.lines, *picture.edges]
    return "digraph tape {\nrankdir=LR;\n" + "\n".join(body) + "\n}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
