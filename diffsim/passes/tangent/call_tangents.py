"""The tangent of a call that has an adjoint of its own: that adjoint, transposed.

    A.adj = L(R.adj, S.adj)     the given adjoint, a linear map: J^T
    dR, dS = L^T(dA)            its own adjoint: J, applied to the tangent

So a decomposition needs no second set of formulas, and forward mode agrees with reverse mode, also where
eigenvalues or singular values are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffsim.ir import ops
from diffsim.ir.nodes import Block, CustomCall, Kernel, Let, Task, Value, no_derivative, zero
from diffsim.passes.autodiff.activity import Activity
from diffsim.passes.autodiff.region_adjoint import Adjoints, Reverser
from diffsim.passes.tangent.op_tangents import TangentBuilder


def tangents_of_call(
    b: TangentBuilder, call: CustomCall, along: Sequence[tuple[Value, ...]]
) -> list[tuple[Value, ...]]:
    """Emit the tangents of a call's results, for each of several tangents of its arguments."""
    adjoint = call.adjoint
    assert adjoint is not None
    assert all(isinstance(s, Let) for s in adjoint.stmts)
    region = Kernel(call.name, (), (), (Task((), Block([]), adjoint, call.span),), call.span)
    work = _Transposer(b, Activity(region, frozenset(), call.seeds).values)
    b.cut, b.is_inner = (), False  # its factors are finite: nothing is masked
    # Where a map is linear, it has the same adjoint everywhere; at 0 most of the map itself is dead code.
    work.env.update((seed, zero(seed.type)) for seed in call.seeds)
    work.forward(adjoint)
    found = []
    for tangents in along:
        adj: Adjoints = {}
        for y, dx in zip(adjoint.yields, tangents, strict=True):
            work.add(adj, y, dx)
        work.backward(adjoint, adj)
        found.append(tuple(adj.get(seed) or no_derivative(seed.type) for seed in call.seeds))
    b.span = call.span
    return found


class _Transposer(Reverser):
    """Emits the adjoint of a linear map."""

    def _let(self, s: Let, adj: Adjoints) -> None:
        if s.op is not ops.spectral_gradient:
            super()._let(s, adj)
        # By its vectors it cannot be differentiated, by its seeds it can.
        elif (g := adj.pop(s.out, None)) is not None:
            self.add(adj, s.args[0], g)
