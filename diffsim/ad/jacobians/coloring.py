"""Sparse patterns, and colours: rows of one colour share no column, so that one pass computes them all.

(Curtis, Powell and Reid, On the estimation of sparse Jacobian matrices, 1974; Gebremedhin, Manne and Pothen,
What color is your Jacobian?, 2005.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pattern(NamedTuple):
    """The places of a matrix that may differ from 0, row by row: columns[starts[r] : starts[r + 1]]."""

    starts: np.ndarray
    columns: np.ndarray
    width: int

    @property
    def rows(self) -> np.ndarray:
        """The row of each place."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def transposed(self) -> Pattern:
        """Return the pattern of the transposed matrix."""
        return pattern_of(self.columns, self.rows, (self.width, len(self.starts) - 1))


def pattern_of(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Pattern:
    """Return the pattern of these places, in any order, some perhaps twice."""
    flat = np.unique(rows.astype(np.int64) * shape[1] + columns)
    rows, columns = flat // max(shape[1], 1), flat % max(shape[1], 1)
    starts = np.searchsorted(rows, np.arange(shape[0] + 1))
    return Pattern(starts, columns, shape[1])


def colours_of(pattern: Pattern) -> np.ndarray:
    """Return a colour for each row: two that share a column differ; -1 for rows without places.

    Greedy in the order of the rows: each row takes the first colour that none of its columns has yet.
    """
    taken = [0] * pattern.width  # by column, a bit for each colour
    found = np.full(len(pattern.starts) - 1, -1, np.int64)
    columns = pattern.columns.tolist()
    starts = pattern.starts.tolist()
    for row in range(len(found)):
        inside = columns[starts[row] : starts[row + 1]]
        if not inside:
            continue
        used = 0
        for c in inside:
            used |= taken[c]
        free = ~used & (used + 1)  # the lowest bit that is 0
        for c in inside:
            taken[c] |= free
        found[row] = free.bit_length() - 1
    return found
