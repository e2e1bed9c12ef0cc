"""Jacobians row by row in reverse mode, and column by column in forward mode."""

from __future__ import annotations

import numpy as np

from diffsim.ad.jacobians.arguments import limit, offsets
from diffsim.ad.jacobians.program import Program, size
from diffsim.runtime.fields.field import Field


def by_rows(program: Program, most: int | None) -> dict[tuple[Field, Field], np.ndarray]:
    """Return the Jacobian of each pair; NaN, which no comparison takes for a number, in rows left out."""
    made = {(i, o): np.full((size(o), size(i)), np.nan) for i, o in program.pairs}
    for o in dict.fromkeys(o for _, o in program.pairs):
        for row in range(limit(o, most)):
            # Row k of the Jacobian is the vector-Jacobian product with the k-th unit vector.
            seed = np.zeros(size(o))
            seed[row] = 1
            for i, gradient in program.pull_back({o: seed}).items():
                if (i, o) in made:
                    made[i, o][row] = gradient
    return made


def by_columns(program: Program, most: int | None) -> dict[tuple[Field, Field], np.ndarray]:
    """Return the same by tangents of the inputs."""
    made = {(i, o): np.full((size(o), size(i)), np.nan) for i, o in program.pairs}
    left, top = offsets(program.inputs), offsets(program.outputs)
    width = sum(map(size, program.inputs))
    for i in dict.fromkeys(i for i, _ in program.pairs):
        directions = np.zeros((size(i), width))
        directions[:, left[i] : left[i] + size(i)] = np.eye(size(i))
        pushed = program.push_forward(directions)
        for o in program.outputs:
            if (i, o) in made:
                rows = limit(o, most)
                made[i, o][:rows] = pushed[:, top[o] : top[o] + rows].T
    return made
