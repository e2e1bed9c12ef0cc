"""The times of kernels, as a table in terminals and notebooks, and as a plot."""

from __future__ import annotations

import html
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEAD = (
    "kernel",
    "",
    "launches",
    "total ms",
    "share",
    "min ms",
    "avg ms",
    "max ms",
    "compiled in ms",
)
_COLORS = {"forward": "tab:blue", "adjoint": "tab:orange", "tangent": "tab:green"}


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The times of one kernel.

    Attributes:
        name: of the kernel; `direction`: "forward", "adjoint" or "tangent".
        seconds: of each launch.
        compile_seconds: how long its compilations took.
    """

    name: str
    direction: str
    seconds: Sequence[float]
    compile_seconds: float

    @property
    def total(self) -> float:
        """The time of all launches [s]."""
        return sum(self.seconds, 0.0)

    @property
    def counter(self) -> int:
        """The number of launches."""
        return len(self.seconds)

    @property
    def min(self) -> float:
        """The time of the shortest launch [ms]."""
        return 1e3 * min(self.seconds, default=0.0)

    @property
    def max(self) -> float:
        """The time of the longest launch [ms]."""
        return 1e3 * max(self.seconds, default=0.0)

    @property
    def avg(self) -> float:
        """The mean time of a launch [ms]."""
        return 1e3 * self.total / max(1, self.counter)

    def __repr__(self) -> str:
        times = f"min {self.min:.6g} ms, avg {self.avg:.6g} ms, max {self.max:.6g} ms"
        return f"<{self.name}, {self.direction}: {self.counter} launches, {times}>"


class TimeTable:
    """The times of kernels, the one that took most first.

    Attributes:
        rows: one for each kernel and direction.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        table = ds.profiler.table()
        print(table.total > 0.0, [row.name for row in table.rows])  # prints: True ['double']
    """

    def __init__(self, rows: Sequence[KernelTime] = ()) -> None:
        self.rows = list(rows)

    @property
    def total(self) -> float:
        """The time of all launches [s]."""
        return sum((row.total for row in self.rows), 0.0)

    def _cells(self) -> list[tuple[str, ...]]:
        whole = self.total or 1.0
        return [
            (
                row.name,
                row.direction,
                str(row.counter),
                f"{1e3 * row.total:.3f}",
                f"{100 * row.total / whole:.1f} %",
                f"{row.min:.4f}",
                f"{row.avg:.4f}",
                f"{row.max:.4f}",
                f"{1e3 * row.compile_seconds:.1f}",
            )
            for row in self.rows
        ]

    def __repr__(self) -> str:
        if not self.rows:
            return "no launch was measured"
        return aligned([_HEAD, *self._cells()])

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        rows = [line(_HEAD, "th"), *(line(cells, "td") for cells in self._cells())]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def compilations(self) -> str:
        """Return a table of the times that compilations took.

        Example:
            ds.init(kernel_profiler=True)

            @ds.kernel
            def double(a: ds.f32) -> ds.f32:
                return 2.0 * a

            double(1.5)
            print("double" in ds.profiler.table().compilations())  # prints: True
        """
        rows = sorted(self.rows, key=lambda row: -row.compile_seconds)
        cells = [(r.name, r.direction, f"{1e3 * r.compile_seconds:.1f}") for r in rows]
        return aligned([("kernel", "", "compiled in ms"), *cells])

    def plot(self, ax: Any = None) -> Any:
        """Draw the times of the kernels as bars; returns matplotlib's axes.

        Args:
            ax: the axes to draw on; made anew if left out.

        Example:
            ds.init(kernel_profiler=True)

            @ds.kernel
            def double(a: ds.f32) -> ds.f32:
                return 2.0 * a

            double(1.5)
            ax = ds.profiler.table().plot()
            print(len(ax.patches) > 0)  # prints: True
        """
        if ax is None:
            height = 1.2 + 0.35 * max(1, len(self.rows))
            pyplot = importlib.import_module("matplotlib.pyplot")
            _, ax = pyplot.subplots(figsize=(7.0, height), layout="constrained")
        names = list(dict.fromkeys(row.name for row in self.rows))
        left = dict.fromkeys(names, 0.0)
        for direction, color in _COLORS.items():
            rows = [row for row in self.rows if row.direction == direction]
            if not rows:
                continue
            times = [1e3 * row.total for row in rows]
            starts = [left[row.name] for row in rows]
            ax.barh([row.name for row in rows], times, left=starts, color=color, label=direction)
            for row, t in zip(rows, times, strict=True):
                left[row.name] += t
        ax.invert_yaxis()
        ax.set_xlabel("time of all launches [ms]")
        if self.rows:
            ax.legend()
        return ax


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines, with columns of equal width: texts to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k < 2 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
