"""Jacobians by backward passes, one for each row."""

from __future__ import annotations

import numpy as np

from diffsim.ad.jacobians.arguments import limit
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
