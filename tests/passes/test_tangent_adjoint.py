"""Tangents of adjoints: second derivatives, kernel by kernel, against differences of the gradient in f64."""

import numpy as np
import pytest

from diffsim.backends import interpreter
from diffsim.passes.autodiff.reverse import reverse
from tests.support.tangents import BODIES, WithTangents, directions_of, kernel_of, random_memory

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
LOST = ("in place", "a serial task", "vectors")
"""Needed in several states."""
SECOND = {
    **{name: BODIES[name] for name in BODIES if name not in LOST},
    "vectors": """
    for i in x:
        w = v[i] * x[i] + ds.Vector([y[i], 1.0])
        c[i] += w.normalized().dot(v[i].yx)
""",
    "a minimum of all lanes": "    for i in x:\n        ds.atomic_min(s[None], x[i] * y[i])\n",
    "a minimum of some lanes": "    for i in x:\n        ds.atomic_max(c[at[i]], x[i] * y[i])\n",
    "an adjoint of 0": "    for i in x:\n        y[i] = x[i] * x[i] / (x[i] + ds.sqrt(y[i]))\n",
    "a guarded quotient": """
    for i in x:
        y[i] = ds.select(c[i] > 0.7, ds.exp(x[i]) / (c[i] - 0.7), v[i].norm())
""",
    "a long loop": """
    for i in x:
        a = x[i]
        for k in range(40):
            a = a + 0.05 * ds.sin(a * y[i])
        c[i] = a
""",
}


class Second:
    """The gradient of <g, memory after a kernel> to the memory before, and its tangents."""

    def __init__(self, body, width=1):
        primal, _fields = kernel_of(body, grad=True)
        made = reverse(primal, again=True, in_place=True)
        self.restored = made.restored
        self.primal, self.adjoint = WithTangents(primal, width), WithTangents(made.ir, width)
        self.fields = [m for m in primal.mems if m.grad is not None]
        self.kept = _fields

    def gradient(self, start, g, args):
        held = {m: a.copy() for m, a in start.items()}
        interpreter.run(self.primal.primal, held, args)
        held |= {m: start[m].copy() for m in self.restored}
        held |= {m.grad: g[m].copy() for m in self.fields}
        interpreter.run(self.adjoint.primal, held, args)
        return {m: held[m.grad] for m in self.fields}

    def tangents(self, start, g, directions, dg, args):
        """The gradient as the tangent's kernel leaves it, and its tangents."""
        memory, after, _ = self.primal.run(start, directions, args)
        # A tape that restores what a launch overwrote restores its tangents, too.
        memory |= {m: start[m] for m in self.restored}
        after |= {m: [d[m] for d in directions] for m in self.restored}
        held = {m: memory[m] for m in start} | {m.grad: g[m] for m in self.fields}
        rates = [
            {m: after[m][k] for m in after} | {m.grad: dg[k][m] for m in self.fields}
            for k in range(len(directions))
        ]
        rates = [{m: a for m, a in r.items() if m in self.adjoint.active} for r in rates]
        held = {m: a for m, a in held.items() if m in self.adjoint.primal.mems}
        memory, found, _ = self.adjoint.run(held, rates, args)
        gone = {m: memory.get(m.grad, g[m]) for m in self.fields}
        rows = range(len(directions))
        found = [{m: found[m.grad][k] if m.grad in found else dg[k][m] for m in gone} for k in rows]
        return gone, found


def check(body, width=1, args=(3,), rel=1e-6, g_at_0=False):
    second = Second(body, width)
    primal = second.primal.primal
    start, directions = random_memory(primal, 1), directions_of(primal, width)
    r = np.random.default_rng(2)
    g = {m: np.array(r.uniform(-1, 1, start[m].shape) * (not g_at_0)) for m in second.fields}
    dg = [{m: r.uniform(-1, 1, a.shape) for m, a in g.items()} for _ in range(width)]
    gradient, found = second.tangents(start, g, directions, dg, args)
    alone = second.gradient(start, g, args)
    for m in second.fields:
        np.testing.assert_array_equal(gradient[m], alone[m])
    for k, direction in enumerate(directions):
        h, ends = 1e-6, []
        for step in (h, -h):
            moved = {m: np.array(a + step * direction.get(m, 0), a.dtype) for m, a in start.items()}
            ends.append(
                second.gradient(moved, {m: np.array(g[m] + step * dg[k][m]) for m in g}, args)
            )
        for m in second.fields:
            slope = (ends[0][m] - ends[1][m]) / (2 * h)
            near = rel * max(1, np.abs(slope).max())
            np.testing.assert_allclose(found[k][m], slope, rtol=rel, atol=near)
    return second, start, g


@pytest.mark.parametrize("name", SECOND)
def test_tangents_of_adjoints_are_differences_of_gradients(name):
    second, start, g = check(SECOND[name])
    # <u, H v> = <v, H u>: the seed's own change counts for neither.
    u, v = directions_of(second.primal.primal, 2)
    none = {m: np.zeros_like(a) for m, a in g.items()}
    (hv,), (hu,) = (second.tangents(start, g, [d], [none], (3,))[1] for d in (v, u))
    there, back = (sum(np.sum(d[m] * h[m]) for m in h) for d, h in ((u, hv), (v, hu)))
    size = sum(np.abs(d[m] * h[m]).sum() for d, h in ((u, hv), (v, hu)) for m in h)
    assert there == pytest.approx(back, rel=1e-10, abs=1e-13 * size)


@pytest.mark.parametrize(
    "name", ["matrices", "loops", "scatter", "a minimum of all lanes", "a minimum of some lanes"]
)
def test_machine_code_computes_the_same(name):
    second = Second(SECOND[name])
    start, directions = (
        random_memory(second.primal.primal, 1),
        directions_of(second.primal.primal, 1),
    )
    r = np.random.default_rng(2)
    memory, after, _ = second.primal.run(start, directions, (3,))
    held = {m: start[m] if m in second.restored else memory[m] for m in start}
    rates = {m: directions[0][m] if m in second.restored else after[m][0] for m in after}
    held |= {m.grad: np.array(r.uniform(-1, 1, start[m].shape)) for m in second.fields}
    rates |= {m.grad: np.array(r.uniform(-1, 1, start[m].shape)) for m in second.fields}
    held = {m: a for m, a in held.items() if m in second.adjoint.primal.mems}
    rates = {m: rates[m] for m in second.adjoint.active}
    _, want, _ = second.adjoint.run(held, [rates], (3,))
    _, found = second.adjoint.run_compiled(held, [rates], (3,))
    for m in want:
        np.testing.assert_allclose(found[m], want[m], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["vectors", "loops", "an adjoint of 0"])
def test_four_at_once(name):
    check(SECOND[name], width=4)


@pytest.mark.parametrize("name", ["vectors", "matrices", "an adjoint of 0", "loops"])
def test_an_adjoint_of_0_may_change(name):
    """Guards of derivative rules test adjoints for 0, and such an adjoint has a tangent."""
    check(SECOND[name], g_at_0=True)
