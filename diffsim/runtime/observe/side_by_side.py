"""The output of `kernel.show()`: each line of a kernel, the IR that it became, and its part of the adjoint.

Lines of funcs that were inlined follow those of the kernel. Statements of the adjoint have the numbers in
which they run: it goes through the lines backwards.
"""

from __future__ import annotations

import html
import linecache
import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diffsim.errors import Span
from diffsim.ir.nodes import Kernel
from diffsim.ir.printer import printed_lines
from diffsim.lang.host.source import Source

_NARROWEST = 60  # columns of text, however narrow the terminal is
_STYLE = """
.ds-show table{border-collapse:collapse;font:12.5px/1.35 ui-monospace,Menlo,Consolas,monospace}
.ds-show td,.ds-show th{vertical-align:top;padding:1px 10px;background:none}
.ds-show :is(td,th){text-align:left!important}
.ds-show td{white-space:pre}
.ds-show td.ir{white-space:pre-wrap;max-width:66ch}
.ds-show tr{border-top:1px solid rgba(128,128,128,.25)}
.ds-show th{font:600 13px system-ui,sans-serif}
.ds-show .n{color:#888;text-align:right}
.ds-show .source{font-weight:600}
.ds-show caption{text-align:left;font:13px system-ui,sans-serif;color:#888;padding:4px 10px}
.ds-show .refused{white-space:normal;font-family:system-ui,sans-serif;max-width:40em}
"""
_PAGE_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px system-ui,sans-serif;margin:1rem}main{overflow-x:auto}"
)


@dataclass(slots=True)
class Line:
    """A line of the user's source, with the statements that were made of it."""

    number: int
    source: str
    ir: list[str] = field(default_factory=list)
    adjoint: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """The lines of one file: those of the kernel, or those of funcs that were inlined."""

    title: str
    lines: list[Line]


class SideBySide:
    """The source, the IR and the adjoint of a kernel, line by line; notebooks show a table.

    Args:
        source: of the kernel.
        ir: the kernel.
        adjoint: its adjoint, or a text that says why there is none.
    """

    def __init__(self, source: Source, ir: Kernel, adjoint: Kernel | str) -> None:
        self.title = f"kernel {source.name}"
        self.refusal = adjoint if isinstance(adjoint, str) else ""
        back = [] if isinstance(adjoint, str) else list(_placed(adjoint, source))
        self.parts = _parts(source, list(_placed(ir, source)), back)

    def __str__(self) -> str:
        width = max(_NARROWEST, shutil.get_terminal_size((120, 24)).columns - 1)
        lines = []
        for part in self.parts:
            lines.append(part.title)
            for line in part.lines:
                lines += _as_text(line, width)
        if self.refusal:
            lines += ["", *textwrap.wrap(f"no adjoint: {self.refusal}", width)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        has_adjoint = not self.refusal
        tables = "".join(_table(part, has_adjoint=has_adjoint) for part in self.parts)
        said = f'<p class="refused">no adjoint: {html.escape(self.refusal)}</p>' * bool(
            self.refusal
        )
        style = f"<style>{_STYLE}</style>"
        return f'<div class="ds-show" style="overflow-x:auto">{style}{tables}{said}</div>'

    def page(self) -> str:
        """Return a whole HTML page."""
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(self.title)}</title><style>{_PAGE_STYLE}</style>"
        )
        body = f"<h1>{html.escape(self.title)}</h1><main>{self._repr_html_()}</main>"
        return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


Row = tuple[Span, str]
"""The place of a statement, and its text."""


def _placed(kernel: Kernel, source: Source) -> Iterator[Row]:
    """Yield the statements of a kernel; braces that only close something are left out."""
    span = Span(source.file, source.node.lineno + source.shift)
    for text, own in printed_lines(kernel):
        span = own or span
        if text.strip() != "}":
            yield span, text.removeprefix("  ")


def _parts(source: Source, ir: Sequence[Row], adjoint: Sequence[Row]) -> list[Part]:
    """Return the lines of the kernel, and those of other functions from which there are statements."""
    own = range(source.first, source.node.end_lineno + source.shift + 1)
    known = {(source.file, k): Line(k, _source_line(source.file, k)) for k in own}

    def line(span: Span) -> Line:
        at = span.file, span.line
        return known.setdefault(at, Line(span.line, _source_line(*at)))

    for span, text in ir:
        line(span).ir.append(text)
    for k, (span, text) in enumerate(adjoint):
        line(span).adjoint.append((k, text))  # the first one is the head of the kernel
    parts = [Part(f"kernel {source.name}, {os.path.basename(source.file)}", [])]
    others: dict[str, Part] = {}
    for (file, number), made in sorted(known.items(), key=lambda item: item[0]):
        if file == source.file and number in own:
            parts[0].lines.append(made)
        else:
            title = f"functions it calls, {os.path.basename(file)}"
            others.setdefault(file, Part(title, [])).lines.append(made)
    return parts + list(others.values())


def _source_line(file: str, number: int) -> str:
    return linecache.getline(file, number).rstrip()


def _as_text(line: Line, width: int) -> list[str]:
    """Return a line of the source, and below it two columns: its IR, and its part of the adjoint."""
    half = (width - 11) // 2
    left = [piece for text in line.ir for piece in _wrapped(text, half)]
    right = []
    for number, text in line.adjoint:
        pieces = _wrapped(text, half - 5)
        right += [f"{number or '':4} {pieces[0]}", *(f"     {piece}" for piece in pieces[1:])]
    count = max(len(left), len(right))
    left += [""] * (count - len(left))
    right += [""] * (count - len(right))
    rows = [f"{'':7}{a:{half}} │ {b}".rstrip() for a, b in zip(left, right, strict=True)]
    return [f"{line.number:5}  {line.source}", *rows]


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return textwrap.wrap(text, width, subsequent_indent=indent, drop_whitespace=True) or [""]


def _table(part: Part, *, has_adjoint: bool) -> str:
    heads = [
        "",
        "source",
        "IR",
        *["", "adjoint, which runs in the order of the numbers"] * has_adjoint,
    ]
    rows = ["".join(f"<th>{head}</th>" for head in heads)]
    for line in part.lines:
        cells = [("n", str(line.number)), ("source", line.source), ("ir", "\n".join(line.ir))]
        if has_adjoint:
            # One statement a line, so that the numbers stay beside theirs.
            cells.append(("n", "\n".join(str(k or "") for k, _ in line.adjoint)))
            kind = "ir" if len(line.adjoint) == 1 else ""
            cells.append((kind, "\n".join(text for _, text in line.adjoint)))
        rows.append("".join(f'<td class="{c}">{html.escape(text)}</td>' for c, text in cells))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{html.escape(part.title)}</caption>{body}</table>"
