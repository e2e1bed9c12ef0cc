"""Sparse Jacobians: a pattern, coloured passes, and a test that the pattern lacks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.ad.jacobians.arguments import limit, offsets
from diffsim.ad.jacobians.coloring import Pattern, colours_of, pattern_of
from diffsim.ad.jacobians.comparison import component
from diffsim.ad.jacobians.differences import differences, steps
from diffsim.ad.jacobians.program import Program, precision, size
from diffsim.errors import ArgumentError, AutodiffError, MissingPackageError, Span, shown
from diffsim.runtime.fields.field import Field

_RELATIVE = {4: 1e-3, 8: 1e-9}  # by bytes: rounding of sums over rows
_BY_DIFFERENCES = {4: 0.1, 8: 1e-3}  # what curvature and rounding leave of differences


class SparseMatrix:
    """The Jacobian of all outputs by all inputs: a pattern, and the numbers in its places."""

    def __init__(self, program: Program, pattern: Pattern, rows: np.ndarray) -> None:
        self.program = program
        self.pattern = pattern
        self.wanted = rows  # whether each row is to be computed
        self.numbers = np.full(len(pattern.columns), np.nan)

    def compute(self, mode: str) -> None:
        """Run one pass for each colour, and one more that tests the result."""
        if mode == "forward":
            self._by_columns()
        else:
            self._by_rows()

    def colours(self, mode: str) -> np.ndarray:
        """Return the colours of the rows, or in forward mode those of the columns."""
        keep = self.wanted[self.pattern.rows]
        shape = len(self.wanted), self.pattern.width
        wanted = pattern_of(self.pattern.rows[keep], self.pattern.columns[keep], shape)
        # Of all rows, as a tangent reaches those too that are not wanted.
        return colours_of(self.pattern.transposed() if mode == "forward" else wanted)

    def _by_rows(self) -> None:
        colours, row_of = self.colours("reverse"), self.pattern.rows
        for colour in range(int(colours.max(initial=-1)) + 1):
            gradient = self._pull((colours == colour).astype(float))
            # Of the rows in this pass one at most has the column in its pattern.
            here = colours[row_of] == colour
            self.numbers[here] = gradient[self.pattern.columns[here]]
        if self.wanted.any():
            rng = np.random.default_rng(0)
            weights = np.where(self.wanted, rng.standard_normal(len(self.wanted)), 0.0)
            keep = self.wanted[row_of]
            terms = np.where(keep, weights[row_of] * np.where(keep, self.numbers, 0), 0)
            self._test(self._pull(weights), self.pattern.columns, terms, self.program.inputs)

    def _by_columns(self) -> None:
        colours, columns = self.colours("forward"), self.pattern.columns
        most = int(colours.max(initial=-1)) + 1
        along = np.random.default_rng(0).standard_normal((1, self.pattern.width))
        directions = colours[None, :] == np.arange(most)[:, None]
        pushed = self.program.push_forward(np.concatenate([directions, along]))
        rows = self.pattern.rows
        self.numbers = pushed[colours[columns], rows]
        self._test(pushed[-1], rows, along[0, columns] * self.numbers, self.program.outputs)
        self.numbers = np.where(self.wanted[rows], self.numbers, np.nan)

    def by_differences(self, eps: float | None, most: int | None) -> None:
        """Move the inputs of one colour together, two runs for each colour and two that test the result.

        `most`: how many components of each input are moved at most.
        """
        inputs, columns, rows = self.program.inputs, self.pattern.columns, self.pattern.rows
        moved = np.concatenate([np.arange(size(i)) < limit(i, most) for i in inputs])
        keep = moved[columns]
        shape = self.pattern.width, len(self.wanted)
        colours = colours_of(pattern_of(columns[keep], rows[keep], shape))
        step = steps(self.program, eps)
        for colour in range(int(colours.max(initial=-1)) + 1):
            here = colours[columns] == colour
            change, made = differences(self.program, np.where(colours == colour, step, 0.0))
            self.numbers[here] = change[rows[here]] / made[columns[here]]
        along = np.where(moved, step * np.random.default_rng(0).standard_normal(len(step)), 0.0)
        change, made = differences(self.program, along)
        least = precision((*inputs, *self.program.outputs))
        terms = np.where(keep, made[columns] * np.where(keep, self.numbers, 0), 0)
        self._test(change, rows, terms, self.program.outputs, relative=_BY_DIFFERENCES[least])

    def _pull(self, weights: np.ndarray) -> np.ndarray:
        """Return the gradient of all inputs for these weights of all outputs."""
        starts = offsets(self.program.outputs)
        seeds = {o: weights[starts[o] : starts[o] + size(o)] for o in self.program.outputs}
        found = self.program.pull_back({o: w for o, w in seeds.items() if w.any()})
        return np.concatenate([found[i] for i in self.program.inputs])

    def _test(
        self,
        by_pass: np.ndarray,
        places: np.ndarray,
        terms: np.ndarray,
        fields: list[Field],
        relative: float | None = None,
    ) -> None:
        """Raise AutodiffError if derivatives are outside the pattern.

        A pass with random weights must give what the matrix gives. A derivative that is missing shows in its
        column (or row, in forward mode) with probability 1.
        """
        sums = np.bincount(places, terms, len(by_pass))
        sizes = np.bincount(places, np.abs(terms), len(by_pass))
        least = precision((*self.program.inputs, *self.program.outputs))
        with np.errstate(invalid="ignore"):
            largest = np.nanmax(np.abs(by_pass), initial=0)
            relative = _RELATIVE[least] if relative is None else relative
            same = np.abs(by_pass - sums) <= relative * np.maximum(sizes, largest * 1e-6)
        # Infinities and NaN are in both.
        wrong = np.flatnonzero(~same & (np.isfinite(by_pass) | np.isfinite(sums)))
        if len(wrong):
            side = "with respect to" if fields is self.program.inputs else "of"
            raise AutodiffError(
                f"the sparsity pattern lacks derivatives {side} {_component(fields, int(wrong[0]))}",
                Span.of_caller(),
                hint='let it be found: sparsity="auto"; a pattern has all places that may differ from 0',
            )

    # ---- one pair

    def _part(self, i: Field, o: Field) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and numbers of the places of one pair."""
        top = offsets(self.program.outputs)[o]
        left = offsets(self.program.inputs)[i]
        rows, columns = self.pattern.rows - top, self.pattern.columns - left
        here = (rows >= 0) & (rows < size(o)) & (columns >= 0) & (columns < size(i))
        return rows[here], columns[here], self.numbers[here]

    def dense(self, i: Field, o: Field) -> np.ndarray:
        """Return the matrix of a pair; NaN in rows that were left out."""
        made = np.zeros((size(o), size(i)))
        rows, columns, numbers = self._part(i, o)
        made[rows, columns] = numbers
        top = offsets(self.program.outputs)[o]
        made[~self.wanted[top : top + size(o)]] = np.nan
        return made

    def scipy(self, i: Field, o: Field) -> Any:
        """Return the matrix of a pair for SciPy; NaN in the places of rows that were left out."""
        rows, columns, numbers = self._part(i, o)
        return scipy_sparse().csr_array((numbers, (rows, columns)), shape=(size(o), size(i)))


def _component(fields: list[Field], number: int) -> str:
    starts = offsets(fields)
    f = max((f for f in fields if starts[f] <= number and size(f)), key=starts.__getitem__)
    return component(f, number - starts[f])


def scipy_sparse() -> Any:
    """Return SciPy's module of sparse matrices; MissingPackageError if there is none."""
    try:
        import scipy.sparse as module  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise MissingPackageError(
            "sparse=True gives matrices of SciPy, which is not installed",
            Span.of_caller(),
            hint='pip install "diffsim-lang[sparse]", or leave sparse=True out for arrays of NumPy',
        ) from None
    return module


def wanted_rows(program: Program, most: int | None) -> np.ndarray:
    """Return for each component of the outputs whether it is to be differentiated."""
    parts = [np.arange(size(o)) < limit(o, most) for o in program.outputs]
    return np.concatenate(parts)


# ---- given patterns


def given_pattern(program: Program, sparsity: Any) -> Pattern:
    """Return a pattern that the user gave: a matrix for each pair, or one for the only pair."""
    pairs = [(i, o) for i in program.inputs for o in program.outputs]
    if not isinstance(sparsity, Mapping):
        if len(pairs) > 1:
            raise ArgumentError(
                f"there are {len(pairs)} pairs of inputs and outputs, and one pattern",
                Span.of_caller(),
                hint="write sparsity={(x, y): pattern}; pairs without one are 0",
            )
        sparsity = {pairs[0]: sparsity}
    top, left = offsets(program.outputs), offsets(program.inputs)
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for pair, matrix in sparsity.items():
        if pair not in pairs:
            raise ArgumentError(
                f"{shown(pair)} is no pair (input, output) of this Jacobian",
                Span.of_caller(),
                hint="write sparsity={(x, y): pattern} with the fields themselves",
            )
        i, o = pair
        r, c = _places(matrix, (size(o), size(i)))
        rows.append(r + top[o])
        columns.append(c + left[i])
    shape = sum(map(size, program.outputs)), sum(map(size, program.inputs))
    return pattern_of(np.concatenate(rows), np.concatenate(columns), shape)


def _places(matrix: Any, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    found = matrix if hasattr(matrix, "nonzero") else None
    if found is None or tuple(found.shape) != shape:
        what = f"has the shape {tuple(found.shape)}" if found is not None else shown(matrix)
        raise ArgumentError(
            f"a pattern is a matrix of shape {shape}, not 0 where a derivative may be; this one {what}"
            if found is not None
            else f"a pattern is a matrix of shape {shape}, not {what}",
            Span.of_caller(),
            hint="a row for each component of the output, a column for each of the input",
        )
    rows, columns = found.nonzero()
    return np.asarray(rows, np.int64), np.asarray(columns, np.int64)
