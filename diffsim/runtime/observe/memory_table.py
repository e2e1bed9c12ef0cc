"""The memory of fields, as a table: what `ds.profiler.print_memory_profiler_info` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsim.errors import memory_size
from diffsim.ir.types import tensor
from diffsim.runtime.observe.time_table import aligned
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


def memory_of_fields() -> str:
    """Return a table of the fields that are alive, the largest first, and their sum.

    Fields of sparse trees take memory as cells become active: for them it says how much at most.
    """
    fields = sorted(session.placed, key=lambda f: (-f.storage.layout.nbytes, f.number))
    if not fields:
        return "there is no field"
    total = sum(f.storage.layout.nbytes for f in fields if f.tree is None)
    rows = [("field", "dtype", "shape", "memory"), *map(_row, fields)]
    return aligned([*rows, ("all", "", "", memory_size(total))])


def _row(f: Field) -> tuple[str, str, str, str]:
    size = memory_size(f.storage.layout.nbytes)
    dtype = tensor(f.dtype, f.element)
    return f.name, str(dtype), str(f.shape), size if f.tree is None else f"at most {size}"
