"""Numbers that Python reads from a field while a tape records.

They are plain floats, and constants, but for one use: with a value that the tape follows, as in
`field[i] += value`, the gradient flows to the element too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffsim.runtime.context import session

if TYPE_CHECKING:
    from diffsim.runtime.field import Field


class Read(float):
    """The number, and where it came from.

    Attributes:
        field, index: the element.
        tape: what recorded.
        since: the clock's reading then.
    """

    __slots__ = ("field", "index", "since", "tape")
    field: Field
    index: tuple[int, ...]
    since: int
    tape: Any

    @classmethod
    def of(cls, field: Field, index: tuple[int, ...]) -> Read:
        """Read an element of a field of scalars."""
        made = cls(field._flat[field._place(index)])
        made.field, made.index, made.tape, made.since = field, index, session.tape, session.clock
        return made
