"""Equations F(x, p) = 0 that kernels compute, and what is asked of them at one x: values and products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from diffsim.ad.implicit.matrices import Matrix
from diffsim.ad.implicit.one_entry import components
from diffsim.ad.implicit.solvers import Krylov, Options, Solver, check_symmetry, sparse_module
from diffsim.ad.jacobians.arguments import Subject
from diffsim.ad.jacobians.coloring import Pattern
from diffsim.ad.jacobians.dependence import found_pattern
from diffsim.ad.jacobians.program import Program, by_rows
from diffsim.ad.jacobians.sparse import SparseMatrix
from diffsim.errors import AutodiffError
from diffsim.runtime.fields.field import Field

_SMALL = 8
"""Up to so many unknowns a row for each is as quick as the search for a pattern."""


class Equation:
    """F(x, p) = y(x, p) - c, where kernels compute y.

    Attributes:
        run: sets y to 0 and calls the user's function.
        x, y: the unknown, and what the function computes; they may be one field that it changes.
        minus: the field c; None: 0.
        pattern: where the Jacobian of y by x may differ from 0, once it was looked for.
        mode: how a sparse Jacobian is computed: "reverse" once there was no tangent.
    """

    def __init__(
        self, function: Callable[[], Any], x: Field, y: Field, minus: Field | None = None
    ) -> None:
        self.function = function
        self.x = x
        self.y = y
        self.minus = minus
        self.pattern: Pattern | None = None
        self.mode = "forward"  # eight colours share one run
        self._looked = False

    @property
    def single(self) -> bool:
        """Whether its numbers are f32."""
        return min(self.x.dtype.bytes, self.y.dtype.bytes) < 8

    def run(self) -> None:
        """Compute y."""
        # Additions to y begin at 0, however often it is computed.
        if self.y is not self.x:
            self.y.fill(0)
        self.function()

    def value(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return F of what the function made of x."""
        if self.minus is None:
            return y
        return np.asarray(y - (x if self.minus is self.x else components(self.minus)))

    @contextmanager
    def linearized(self) -> Iterator[Linearized]:
        """Give F at the present x; all fields are as before at the end."""
        made = Linearized(self)
        with made:
            yield made

    def pulled_back(
        self, seeds: Mapping[Field, np.ndarray], params: Sequence[Field]
    ) -> dict[Field, np.ndarray]:
        """Return what gradients of fields that the function writes give x and other fields."""
        inputs, outputs = [self.x, *params], list(seeds)
        pairs = [(self.x, o) for o in outputs]
        with Program(Subject(self.run, inputs, outputs, pairs, {})) as program:
            return program.pull_back(seeds)

    def known_pattern(self, program: Program) -> Pattern | None:
        """Return the pattern, which is looked for once."""
        if not self._looked and self.size > _SMALL:
            self.pattern = found_pattern(program, self.size)
        self._looked = True
        return self.pattern

    def forget_pattern(self) -> None:
        """Look for the pattern once more: a branch was taken that was not before."""
        self._looked, self.pattern = False, None

    @property
    def size(self) -> int:
        return int(self.x.storage.layout.count)


class Linearized(Program):
    """An equation at one x: an operator, its Jacobian, for Krylov methods and factorisations."""

    def __init__(self, equation: Equation) -> None:
        x, y = equation.x, equation.y
        self.equation = equation
        self.at = components(x)
        super().__init__(Subject(equation.run, [x], [y], [(x, y)], {}))
        self.size = equation.size
        self.has_identity = equation.minus is x

    def value(self) -> np.ndarray:
        """Return F."""
        return self.equation.value(self.unmoved()[0], self.at)

    def value_at(self, step: np.ndarray) -> np.ndarray:
        """Return F at x + step."""
        moved = self.outputs_at({self.equation.x: step})[0]
        return self.equation.value(moved, self.at + step)

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return J v."""
        found = self.push_forward(v[None])[0]
        return np.asarray(found - v if self.has_identity else found)

    def apply_transposed(self, w: np.ndarray) -> np.ndarray:
        """Return J^T w."""
        found = self.pull_back({self.equation.y: w})[self.equation.x]
        return found - w if self.has_identity else found

    def solver(self, options: Options) -> Solver:
        """Return what solves with the Jacobian."""
        if options.method in (None, "lu"):
            return self._matrix().solver(options, self.equation.single)
        if options.symmetric or options.method == "cg":
            check_symmetry(self, options, self.equation.single)
        return Krylov(self, options, single=self.equation.single)

    def _matrix(self) -> Matrix:
        """Return the Jacobian, by coloured passes where it is sparse."""
        rows, columns, numbers = self._entries()
        if self.has_identity:
            own = np.arange(self.size)
            rows, columns = np.concatenate([rows, own]), np.concatenate([columns, own])
            numbers = np.concatenate([numbers, np.full(self.size, -1.0)])
        if sparse_module() is not None and len(rows) < self.size**2 // 4:
            return Matrix(self.size, None, numbers, (rows, columns))
        dense = np.zeros((self.size, self.size))
        np.add.at(dense, (rows, columns), numbers)
        return Matrix(self.size, None, dense.reshape(-1), None)

    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, columns and numbers of the Jacobian of y by x."""
        equation = self.equation
        for _ in range(3):
            pattern = equation.known_pattern(self)
            if pattern is None:
                break
            matrix = SparseMatrix(self, pattern, np.ones(self.size, bool))
            try:
                matrix.compute(equation.mode)
            except AutodiffError:
                # Something has no tangent (a gradient given by hand), or the pattern lacks derivatives.
                if equation.mode == "forward":
                    equation.mode = "reverse"
                else:
                    equation.forget_pattern()
                continue
            return pattern.rows, pattern.columns, matrix.numbers
        dense = by_rows(self, None)[equation.x, equation.y]
        rows, columns = np.nonzero(dense)
        return rows, columns, dense[rows, columns]
