"""How fields are shown: `repr` in a line, `print` with their elements, notebooks as a table or an image."""

from __future__ import annotations

import base64
import html
import importlib
import io
from typing import TYPE_CHECKING

import numpy as np

from diffsim.ir.types import tensor
from diffsim.runtime.memory.storage import HostStorage

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field

_MOST_PRINTED = 2**20  # bytes that `print` copies from a GPU to show their first and last numbers
_MOST_ROWS = 10  # of a table: this many first and last ones
_MOST_COLUMNS = 8
_IMAGE_INCHES = (4.0, 3.0)


def summary(field: Field, name: str = "") -> str:
    """Describe a field in one line, without its elements."""
    kind = "ndarray" if field.kind == "array" else "field"
    name = name or field.given_name
    what = f"{kind} {f'{name}: ' if name else ''}{tensor(field.dtype, field.element)}"
    if not field.placed:
        return f"<{what}, not placed>"
    grad = ", needs_grad=True" if field.needs_grad else ""
    dual = ", needs_dual=True" if field.needs_dual else ""
    return f"<{what}, shape {field.shape}{_layout(field)}{grad}{dual}>"


def _layout(field: Field) -> str:
    """Describe how elements lie in memory, where that is not as in C."""
    found = ", layout SOA" if field.soa else ""
    if field._order != tuple(sorted(field._order)):
        found += f", axes in memory {field._order}"
    return found


def text(field: Field) -> str:
    """Describe a field, with its elements (the first and last of many)."""
    storage = field._storage if field.placed else None
    if storage is None or (
        not isinstance(storage, HostStorage) and storage.layout.nbytes > _MOST_PRINTED
    ):
        return summary(field, field._found_name)
    return f"{summary(field, field._found_name)}\n{_values(field)}"


def _values(field: Field) -> np.ndarray:
    """Return the elements, which no tape follows; those in the host's memory without a copy."""
    storage = field._storage
    made = storage.array if isinstance(storage, HostStorage) else storage.to_numpy(None)
    return made.reshape(field.shape + field.element)


def page(field: Field) -> str:
    """Return the field for a notebook: a 2-D field of numbers as an image, all others as a table."""
    head = f"<div><code>{html.escape(summary(field, field._found_name))}</code>"
    if not field.placed:
        return head + "</div>"
    values = _values(field)
    if values.size == 0:
        return head + "</div>"
    shown = _image(values) if len(field.shape) == 2 and not field.element else ""
    shown = shown or _table(values.reshape((*field.shape, -1) if field.element else field.shape))
    return f"{head}<br>{_extent(values)}<br>{shown}</div>"


def _extent(values: np.ndarray) -> str:
    """Describe the least and the largest number, and how many are none."""
    with np.errstate(all="ignore"):
        numbers = values[np.isfinite(values)]
    none, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    parts = [f"min {numbers.min():.6g}, max {numbers.max():.6g}"] if numbers.size else []
    return ", ".join([*parts, f"{none} NaN", *([f"{infinite} infinite"] if infinite else [])])


def _image(values: np.ndarray) -> str:
    """Draw a 2-D array, as `plt.imshow` does; "" where there is no matplotlib."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        return ""
    # Not pyplot, whose current figure is the program's.
    figure = figures.Figure(figsize=_IMAGE_INCHES, layout="tight")
    axes = figure.add_subplot()
    # Infinities have no colour, and would leave none for the other numbers.
    drawn = np.where(np.isfinite(values), values.astype(float), np.nan)
    picture = axes.imshow(drawn, interpolation="nearest")
    axes.set_xlabel("axis 1")
    axes.set_ylabel("axis 0")
    figure.colorbar(picture)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return f'<img src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _table(values: np.ndarray) -> str:
    """Write an array as a table: a row for each index of the first axis, the first and last of many."""
    rows = values.reshape(values.shape[0], -1) if values.ndim else values.reshape(1, 1)
    lines = []
    for k in _ends(len(rows), _MOST_ROWS):
        cells = (
            [] if k is None else [_cell(rows[k], c) for c in _ends(rows.shape[1], _MOST_COLUMNS)]
        )
        head = "" if not values.ndim else f"<th>{'…' if k is None else k}</th>"
        lines.append(f"<tr>{head}{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(row: np.ndarray, column: int | None) -> str:
    return "…" if column is None else f"{row[column]:.6g}"


def _ends(n: int, most: int) -> list[int | None]:
    """Return the first and last numbers below n, None for those between if there are too many."""
    if n <= 2 * most:
        return list(range(n))
    return [*range(most), None, *range(n - most, n)]
