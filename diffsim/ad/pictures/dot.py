"""Writes a picture in GraphViz's DOT language."""

from __future__ import annotations

import html

from diffsim.ad.pictures.graph import Graph, Group, Link, Step

WITH_GRADIENT, WITHOUT, OVERWRITES = "palegreen", "lightgray", "firebrick"
_DASHED = f' [color={OVERWRITES}, style=dashed, label="overwrites", fontcolor={OVERWRITES}]'


_SMALL = '<FONT POINT-SIZE="10">'


class _Writer:
    """Collects lines; steps are numbered in their order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.edges: list[str] = []
        self.steps = 0
        self.groups = 0

    def item(self, item: Step | Group) -> None:
        if isinstance(item, Step):
            self.step(item)
            return
        self.lines.append(f"subgraph cluster{self.groups} {{")
        self.groups += 1
        label = "\n".join([item.label, *(f"{key}: {value}" for key, value in item.metadata)])
        self.lines.append(f"label={quoted(label)}; style=rounded; color=gray40;")
        if not item.items:  # GraphViz draws no frame round nothing
            self.lines.append(f'empty{self.groups} [shape=point, style=invis, label=""];')
        for inner in item.items:
            self.item(inner)
        self.lines.append("}")

    def step(self, step: Step) -> None:
        name = f"step{self.steps}"
        self.steps += 1
        ports = any(link.port for link in (*step.reads, *step.writes))
        label = f"<{_table(step)}>" if ports else quoted(step.label)
        look = ", margin=0" if ports else ""
        dashed = "" if step.kind == "kernel" else ", style=dashed"
        self.lines.append(f"{name} [shape=box, label={label}{look}{dashed}];")
        for link in step.reads:
            port = f":in_{link.node}" if link.port else ""
            self.edges.append(f"field{link.node} -> {name}{port};")
        for link in step.writes:
            port = f":out_{link.node}" if link.port else ""
            look = _DASHED if link.overwrites else ""
            self.edges.append(f"{name}{port} -> field{link.node}{look};")


def _table(step: Step) -> str:
    """Write the label of a launch with arrays: its parameters are ports, on either side of its name."""

    def column(links: tuple[Link, ...], side: str) -> str:
        cells = "".join(
            f'<TR><TD PORT="{side}_{link.node}">{_SMALL}{html.escape(link.port)}</FONT></TD></TR>'
            for link in links
            if link.port
        )
        table = f'<TABLE BORDER="0" CELLSPACING="0">{cells}</TABLE>'
        return f"<TD>{table}</TD>" if cells else ""

    middle = f"<TD>{html.escape(step.label)}</TD>"
    row = f"{column(step.reads, 'in')}{middle}{column(step.writes, 'out')}"
    return f'<TABLE BORDER="0" CELLSPACING="0"><TR>{row}</TR></TABLE>'


def write_dot(graph: Graph) -> str:
    """Return the DOT text: launches as boxes, fields as ellipses, green if they have a gradient."""
    writer = _Writer()
    for item in graph.items:
        writer.item(item)
    nodes = []
    for number, f in graph.fields.items():
        color = WITH_GRADIENT if f.has_grad else WITHOUT
        role = ", peripheries=2" if f.role else ""
        nodes.append(
            f"field{number} [label={quoted(f.label)}, style=filled, fillcolor={color}{role}];"
        )
    for role, rank in (("input", "source"), ("output", "sink")):
        names = "; ".join(f"field{n}" for n, f in graph.fields.items() if f.role == role)
        if names:
            nodes.append(f"{{rank={rank}; {names};}}")
    body = [*nodes, *writer.lines, *writer.edges]
    head = f"digraph tape {{\nrankdir={graph.direction};"
    return head + "\n" + "\n".join(body) + "\n}\n"


def quoted(text: str) -> str:
    """Return a text as DOT writes it."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
