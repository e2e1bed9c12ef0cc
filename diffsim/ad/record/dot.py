"""A picture of a tape: its launches and the fields between them, in GraphViz's DOT language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffsim.ad.record.entries import Copied, Entry, Launched, Replaced, Scope, Stopped, Wrote
from diffsim.runtime.fields.field import Field

_WITH_GRADIENT, _WITHOUT = "palegreen", "lightgray"


class _Picture:
    def __init__(self, labels: Mapping[Field, str]) -> None:
        self.labels = labels
        self.nodes: dict[int, str] = {}
        self.lines: list[str] = []
        self.edges: list[str] = []
        self.count = 0

    def step(self, text: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """A box, with arrows from what it reads and to what it writes."""
        name = f"step{self.count}"
        self.count += 1
        self.lines.append(f"{name} [shape=box, label={_quoted(text)}];")
        self.edges += [f"{f} -> {name};" for f in dict.fromkeys(map(self.field, reads))]
        self.edges += [f"{name} -> {f};" for f in dict.fromkeys(map(self.field, writes))]

    def field(self, f: Any) -> str:
        name = f"field{len(self.nodes)}"
        if id(f) in self.nodes:
            return self.nodes[id(f)].partition(" ")[0]
        is_field = isinstance(f, Field)
        label = self.labels.get(f, f.name) if is_field else "array"
        color = _WITH_GRADIENT if is_field and f.grad is not None else _WITHOUT
        self.nodes[id(f)] = f"{name} [label={_quoted(label)}, style=filled, fillcolor={color}];"
        return name


def draw(entries: Sequence[Entry], labels: Mapping[Field, str]) -> str:
    """The DOT text: launches as boxes, fields as ellipses, green if they have a gradient."""
    picture = _Picture(labels)
    depth = 0
    for e in entries:
        if isinstance(e, Launched):
            read, written = (
                [e.special.object_of(a.mem, e.given) for a in group]
                for group in (e.special.accesses.reads, e.special.accesses.writes)
            )
            picture.step(e.text(), read, written)
        elif isinstance(e, Copied):
            picture.step("copy", [e.source], [e.target])
        elif isinstance(e, Wrote):
            stopped = isinstance(e, Stopped)
            picture.step("stop_grad" if stopped else "written in Python", [], [e.field])
        elif isinstance(e, Replaced):
            name = getattr(getattr(e.backward, "func", e.backward), "__name__", "function")
            picture.step(name, e.arrays, e.written)
        elif isinstance(e, Scope) and e.name is not None:
            depth += 1
            head = f"subgraph cluster{len(picture.lines)} {{"
            picture.lines.append(f"{head} label={_quoted(e.name)};")
        elif isinstance(e, Scope) and depth:
            depth -= 1
            picture.lines.append("}")
    picture.lines += ["}"] * depth
    body = [*picture.nodes.values(), *picture.lines, *picture.edges]
    return "digraph tape {\nrankdir=LR;\n" + "\n".join(body) + "\n}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
