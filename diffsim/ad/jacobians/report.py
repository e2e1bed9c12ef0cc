"""The table of a comparison: as text in terminals, as HTML in notebooks."""

from __future__ import annotations

import html
import shutil
from dataclasses import dataclass

HEADS = ("launch", "input", "output", "compared", "abs. error", "rel. error", "worst at", "")
_NUMBERS = frozenset(("compared", "abs. error", "rel. error"))
_LEAST = 8  # characters that a column keeps in a narrow terminal


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of an input and an output.

    Attributes:
        launch: of a tape: number and text; empty for a function.
        compared: how many derivatives (or directions) were compared.
        absolute, relative: the largest errors; `where` is the place of the worst one.
    """

    launch: str
    input: str
    output: str
    compared: int
    absolute: float
    relative: float
    where: str
    passed: bool

    def cells(self) -> tuple[str, ...]:
        return (
            self.launch,
            self.input,
            self.output,
            str(self.compared),
            f"{self.absolute:.2e}",
            f"{self.relative:.2e}",
            self.where,
            "ok" if self.passed else "no",
        )


class Table:
    """The rows of a comparison."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def _columns(self) -> list[int]:
        # A function has no launches to name.
        return [k for k, head in enumerate(HEADS) if k or any(r.launch for r in self.rows)]

    def text(self, width: int) -> str:
        """Return it as lines of at most that many characters, as far as that is possible."""
        chosen = self._columns()
        cells = [[row[k] for k in chosen] for row in (HEADS, *(r.cells() for r in self.rows))]
        heads = cells[0]
        wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
        # What is too wide is taken from the widest texts; numbers stay whole.
        while sum(wide) + 2 * (len(wide) - 1) > width:
            texts = [k for k, head in enumerate(heads) if head not in _NUMBERS and wide[k] > _LEAST]
            if not texts:
                break
            wide[max(texts, key=wide.__getitem__)] -= 1
        lines = []
        for line in cells:
            fitted = [_fit(c, w, h in _NUMBERS) for c, w, h in zip(line, wide, heads, strict=True)]
            lines.append("  ".join(fitted).rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text(shutil.get_terminal_size((100, 24)).columns)

    def _repr_html_(self) -> str:
        """Return it for notebooks; rows that differ are red."""
        chosen = self._columns()
        parts = ["<table><thead><tr>"]
        parts += [f"<th>{html.escape(HEADS[k])}</th>" for k in chosen]
        parts.append("</tr></thead><tbody>")
        for row in self.rows:
            cells = row.cells()
            parts.append("<tr>" if row.passed else '<tr style="background:#f8d7da;color:#58151c">')
            parts += [f"<td>{html.escape(cells[k])}</td>" for k in chosen]
            parts.append("</tr>")
        return "".join([*parts, "</tbody></table>"])


def _fit(text: str, width: int, right: bool) -> str:
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.rjust(width) if right else text.ljust(width)
