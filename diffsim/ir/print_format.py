"""Texts of kernels: how they format the values that they print, and what a failed check says."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from diffsim.errors import (
    AccessError,
    DiffsimError,
    KernelArithmeticError,
    KernelAssertionError,
    KernelOverflowError,
    KernelZeroDivisionError,
    OutOfMemoryError,
    Span,
)
from diffsim.ir.types import Type, size_of


class CheckKind(Enum):
    """The kind of a `Check`: the class of the error where it fails, and the advice."""

    INDEX = (
        AccessError,
        "indices start at 0 and none counts from the end: look at where this one comes from",
    )
    ASSERTION = (
        KernelAssertionError,
        "the condition did not hold in at least one iteration: look at the values it compares",
    )
    DIVISION = (
        KernelZeroDivisionError,
        "without debug=True the result is 0: if that is meant, say so with an if",
    )
    NEGATIVE_POWER = (KernelArithmeticError, "make the base a float: ds.cast(a, ds.f32) ** n")
    NARROWING = (
        KernelOverflowError,
        "without debug=True it wraps around: if that is meant, convert it with ds.cast; otherwise give "
        "the place a wider type",
    )
    OVERFLOW = (
        KernelOverflowError,
        "without debug=True it wraps around: compute in ds.i64, or where that is meant without a sign, "
        "in ds.u32",
    )
    FULL_LIST = (
        AccessError,
        "give the dynamic more elements, or ask for its length before: x[i].length()",
    )
    UPDATE_LOG = (
        OutOfMemoryError,
        "divide the loop over several launches, or leave deterministic=True off",
    )

    def error(self, message: str, span: Span) -> DiffsimError:
        """Return the error for a check of this kind that failed."""
        made: type[DiffsimError]
        made, advice = self.value
        return made(message, span, hint=advice)


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
            return format(float(x), self.spec) if self.spec else str(t.numpy.type(x))
        return format(bool(x) if t.is_bool else int(x), self.spec)

    def __str__(self) -> str:
        return f"{{:{self.spec}}}" if self.spec else "{}"


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
