"""Tangents that go through Python, or by other threads, and would get lost: found at the end of a block.

Numbers and arrays that Python reads remember their field (`runtime/fields/read_values.py`), and are refused
where they enter the program again. Results of `math.sin` or of other libraries do not. So a block is refused
in which a field with a tangent was read out, and leads to the loss on no way, while a field that does was set
from Python later (docs/adr/0019).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field


class LostTangents:
    """Actions of a block that may have lost tangents.

    Attributes:
        is_off: whether the program says which of its values are constants.
    """

    def __init__(self) -> None:
        self.is_off = False
        self._leads_to: dict[Field, set[Field]] = {}
        self._read_out: dict[Field, int] = {}
        self._set: list[tuple[int, Field, Span | None]] = []
        self._elsewhere: dict[Any, tuple[str, Span | None]] = {}
        self._cut_short: tuple[str, Span | None] | None = None

    def launched(self, reads: set[Field], writes: set[Field]) -> None:
        """Note which fields a kernel computes from which."""
        for f in reads:
            self._leads_to.setdefault(f, set()).update(writes)

    def read_out(self, field: Field) -> int:
        """Note that Python reads a field that has tangents; return how many writes there were."""
        return self._read_out.setdefault(field, len(self._set))

    def wrote(self, field: Field, value: np.ndarray | Field) -> None:
        """Note a constant from Python, which may be made of what was read before."""
        # Zeros are resets, made of nothing.
        if self._read_out and isinstance(value, np.ndarray) and value.any() and not field.is_dual:
            self._set.append((len(self._set), field, Span.of_caller()))

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """Note a write by another thread, which computes no tangents."""
        self._elsewhere.setdefault(f, (who, span))

    def cut_short(self, what: str, span: Span | None) -> None:
        """Note a launch that failed half-way."""
        self._cut_short = self._cut_short or (what, span)

    def check(self, losses: Iterable[Field], width: int) -> None:
        """Raise AutodiffError if the tangents of these fields may lack something."""
        if self._cut_short is not None:
            what, span = self._cut_short
            raise AutodiffError(
                f"{what} began to write in this block of forward mode and failed: tangents are not right",
                span,
                hint="run the block again from its start",
            )
        for f, (who, span) in self._elsewhere.items():
            if isinstance(f, Field) and (f in self._leads_to or width in f.duals):
                raise AutodiffError(
                    f"{f.name} was written by {who} in another thread while forward mode computed its "
                    "tangents in this one",
                    span,
                    hint="launch in the thread of the block, or write other fields",
                )
        for loss in () if self.is_off else losses:
            self._check_read_outs(loss)

    def _check_read_outs(self, loss: Field) -> None:
        for f, since in self._read_out.items():
            later = [s for s in self._set if s[0] >= since and s[1] is not f]
            guilty = [s for s in later if s[1] is loss or loss in self._reach(s[1])]
            if guilty and f is not loss and loss not in self._reach(f):
                self._refuse(f, *guilty[-1][1:])

    def _reach(self, start: Field) -> set[Field]:
        """Return the fields that something of a field may have got to."""
        found: set[Field] = set()
        left = [start]
        while left:
            new = self._leads_to.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    def _refuse(self, f: Field, other: Field, span: Span | None) -> None:
        reader = f.source.reader.span() if f.source is not None else None
        shown = "" if reader is None else f"\n  {f.name} was read out here:\n{reader.text()}"
        raise AutodiffError(
            f"{f.name}, which has a tangent, was read out in Python, and {other.name}, which leads to the "
            f"loss, was set from Python later: if it was made of {f.name}, its tangent is lost{shown}\n"
            f"  {other.name} was set here:",
            span,
            hint="do what is in between in kernels; if the two have nothing to do with each other, say that "
            "a constant is meant: ds.stop_grad(value)",
        )
