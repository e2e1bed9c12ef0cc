"""Prints the lines that a kernel left in its buffer, after the launch (docs/adr/0015)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from diffsim.backends.llvm.diagnostics import HEAD, ROOM
from diffsim.errors import warn
from diffsim.ir.nodes import Print
from diffsim.ir.print_format import Shown, fill

WORDS = HEAD + ROOM


def used(head: np.ndarray) -> int:
    """Return how many words hold lines, given the first ones of the buffer."""
    # Word 0 counts what was asked for, which is more than there is room for if lines were lost.
    return min(int(head[0]), ROOM)


def text(pieces: Sequence[str | Shown], words: Sequence[int]) -> str:
    """Return a text, given the words of the values in it."""
    # The types of the values in the order of the format: a vector has one for each component.
    types = [p.type.scalar for p in pieces if isinstance(p, Shown) for _ in range(p.scalars)]
    read = [
        # Each scalar is in the low bytes of its word: reinterpreted, not converted.
        struct.unpack_from(t.code, struct.pack("=q", word))[0]
        for t, word in zip(types, words, strict=True)
    ]
    return fill(pieces, read)


def show(name: str, prints: Sequence[Print], lost: int, lines: np.ndarray) -> None:
    """Print the lines of a launch in the order of tasks, of lanes, and of execution within a lane.

    Args:
        name: the kernel.
        prints: its statements, by their numbers.
        lost: how many lines there was no room for.
        lines: the words of the others; a 0 where there is none any more.
    """
    found: list[tuple[tuple[int, ...], str]] = []
    words, at = lines.tolist(), 0
    # Records follow each other; each begins with its statement's number, counted from 1.
    while at < len(words) and words[at]:
        s = prints[words[at] - 1]
        order = at + 1
        values = order + len(s.order)
        at = values + len(s.values)
        found.append((tuple(words[order:values]), text(s.pieces, words[values:at])))
    # The sort is stable, so the lines of one lane keep their order, whatever thread ran it.
    found.sort(key=lambda line: line[0])
    print("".join(line for _, line in found), end="")
    if lost:
        message = (
            f"{name} printed {lost} more lines in one launch than there is room for: they are lost"
        )
        warn(message, RuntimeWarning)
