"""Texts of kernels: how they format the values that they print, and messages of checks in every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.ir.types import Type, f32, size_of

# Two parts share each of these messages: the one that emits the `Check`, and the runtime, which finds the
# advice for a failed check by its message.
DIVIDED_BY_0 = "an integer is divided by 0"
NEGATIVE_POWER = "an integer to the power {} is no integer"
OVERFLOWS = "overflows"  # how the message of a check of a sum or product ends
DOES_NOT_FIT = "does not fit"  # how the message of a check of an assignment ends
LIST_IS_FULL = "a list of a dynamic is full"
NO_LOG = "no memory to note the updates of this loop, which are made in order (deterministic=True)"


class Shown:
    """The place of a value in a text: its type, and the format specification for each of its scalars."""

    __slots__ = ("spec", "type")

    def __init__(self, type: Type, spec: str = "") -> None:
        self.type = type
        self.spec = spec

    @property
    def scalars(self) -> int:
        """The number of scalars of the value."""
        return size_of(self.type)

    def text(self, scalars: Sequence[Any]) -> str:
        """Return the text of a value, given its scalars in order; tensors are written as lists."""
        return _nested(list(map(self.scalar, scalars)), self.type.shape)

    def scalar(self, x: Any) -> str:
        """Return the text of one scalar; without a format: the shortest that is unique to it.

        Raises:
            ValueError: there is no such format for its type.
        """
        t = self.type.scalar
        if t.is_float:
            # NumPy prints the shortest decimal that rounds to the same number of its own type: 0.1 for
            # an f32, where Python's float would show 0.10000000149011612.
            return format(float(x), self.spec) if self.spec else str(_FLOATS[t is f32](x))
        return format(bool(x) if t.is_bool else int(x), self.spec)

    def __str__(self) -> str:
        return f"{{:{self.spec}}}" if self.spec else "{}"


_FLOATS = (np.float64, np.float32)


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return texts[0]
    # Row order: each row is a run of equally many scalars.
    n = len(texts) // shape[0]
    return (
        "[" + ", ".join(_nested(texts[k : k + n], shape[1:]) for k in range(0, len(texts), n)) + "]"
    )


def fill(pieces: Sequence[str | Shown], scalars: Sequence[Any]) -> str:
    """Return the text whose places are filled with these scalars, in order."""
    made, at = [], 0
    for p in pieces:
        if isinstance(p, Shown):
            made.append(p.text(scalars[at : at + p.scalars]))
            at += p.scalars
        else:
            made.append(p)
    return "".join(made)


class Listing(str):
    """A text of many lines, which the interactive interpreter and notebooks show as it is, not quoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
