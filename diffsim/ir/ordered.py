"""What must happen in a fixed order for the same bits in every run: what a task says of it."""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Store


class FixedOrder:
    """How the lanes of a parallel task come to the same bits whichever thread runs them.

    The updates in `logged` are noted by each chunk, and made later in the order of the lanes. If `serial`,
    all lanes run one after the other, on one thread.
    """

    __slots__ = ("logged", "serial")

    def __init__(self, logged: frozenset[Atomic | Store], *, serial: bool) -> None:
        self.logged = logged
        self.serial = serial
