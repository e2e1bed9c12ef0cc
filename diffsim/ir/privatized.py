"""Memories that a parallel task may add up in copies first: what a task says of them."""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Mem, Value
from diffsim.ir.types import size_of

_NEAR = 1 << 21  # bytes of a copy with slots: about a processor's share of the caches
_FEWEST_SLOTS = 4


class Privatized:
    """Additions of a parallel task to one memory, which may be made in a copy of it first.

    All of them stay within the part of `mem` whose first indices are `lead`, each a leaf plus a
    constant (leaf None: the constant); a lane makes about `count` of them. Of these, `meeting` go to an
    element that is the same for all lanes along the last axis.
    """

    __slots__ = ("atomics", "count", "lead", "meeting", "mem")

    def __init__(
        self,
        mem: Mem,
        lead: tuple[tuple[Value | None, int], ...],
        atomics: frozenset[Atomic],
        count: int,
        meeting: int,
    ) -> None:
        self.mem = mem
        self.lead = lead
        self.atomics = atomics
        self.count = count
        self.meeting = meeting

    @property
    def scalars(self) -> int:
        """Scalars in one copy."""
        return scalars_within(self.mem, len(self.lead))

    def slots(self, most: int) -> int:
        """How many numbers a copy has for each scalar where lanes run together.

        Where lanes mostly meet, each adds to a slot of its own: to fold them every time would cost more
        than all the rest.
        """
        if self.meeting <= 8 * (self.count - self.meeting):
            return 1
        width = self.scalars * self.mem.dtype.scalar.bytes
        while most >= _FEWEST_SLOTS and most * width > _NEAR:
            most //= 2
        return most if most >= _FEWEST_SLOTS else 1


def scalars_within(mem: Mem, lead: int) -> int:
    """Scalars in the part of a memory of known shape whose first `lead` indices are given."""
    assert mem.shape is not None
    n = size_of(mem.dtype)
    for d in mem.shape[lead:]:
        n *= d
    return n
