"""How fields are shown: `repr`, `print`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.ir.types import tensor
from diffsim.runtime.memory.storage import HostStorage

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field

_MOST_PRINTED = 2**20  # bytes that `print` copies from a GPU to show their first and last numbers


def summary(field: Field) -> str:
    """Describe a field in one line, without its elements."""
    kind = "ndarray" if field.kind == "array" else "field"
    label = f"{field.given_name}: " if field.given_name else ""
    what = f"{kind} {label}{tensor(field.dtype, field.element)}"
    if not field.placed:
        return f"<{what}, not placed>"
    return f"<{what}, shape {field.shape}{', needs_grad=True' if field.needs_grad else ''}>"


def text(field: Field) -> str:
    """Describe a field, with its elements (the first and last of many)."""
    if not field.placed:
        return summary(field)
    storage = field._storage
    if isinstance(storage, HostStorage):
        values = storage.array
    elif storage.layout.nbytes <= _MOST_PRINTED:
        values = storage.to_numpy()
    else:
        return summary(field)
    return f"{field!r}\n{values.reshape(field.shape + field.element)}"
