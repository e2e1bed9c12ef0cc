"""Tangents that depend on which lane is first, results, calls, and what forward mode refuses."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.errors import AutodiffError
from diffsim.ir.nodes import Mem
from diffsim.ir.verifier import verify
from diffsim.passes.autodiff.reverse import reverse
from diffsim.passes.tangent.forward import differentiate
from tests.support.source import make
from tests.support.tangents import WithTangents, differences, random_memory
from tests.support.trace import ir_of

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
N = 6


def fields(grad=False):
    x, y, v = (ds.field(ds.f64, shape=N, needs_grad=grad) for _ in range(3))
    s = ds.field(ds.f64, shape=(), needs_grad=grad)
    return {"x": x, "y": y, "v": v, "s": s, "at": ds.field(ds.i32, shape=N)}


def directions_of(primal, count=1):
    return [
        {m: a for m, a in random_memory(primal, 50 + k, -1, 1).items() if m.dtype.is_float}
        for k in range(count)
    ]


def forward(body, width=1, **space):
    """The tangents of each field, differences, and the direction; machine code says the same."""
    space = fields() | space
    primal = ir_of(body, params="", **space)
    start = random_memory(primal, 3)
    directions = directions_of(primal, width)
    made = WithTangents(primal, width)
    memory, found, _ = made.run(start, directions)
    compiled, tangents = made.run_compiled(start, directions)
    for m in made.active:
        np.testing.assert_allclose(compiled[m], memory[m], rtol=1e-12)
        np.testing.assert_allclose(tangents[m], found[m], rtol=1e-12)
    slope = [differences(primal, start, d)[0] for d in directions]
    return [
        (found[m][k], slope[k][m], {n.name: d for n, d in directions[k].items()})
        for k in range(width)
        for m in made.active
    ]


EXTREMES = {
    "of all lanes": "    for i in x:\n        ds.atomic_max(s[None], x[i] * y[i])\n",
    "of some": "    for i in x:\n        ds.atomic_min(v[at[i]], x[i] - 0.5)\n",
    "of a local": """
    low = ds.f64(9.0)
    for i in x:
        ds.atomic_min(low, ds.sin(x[i]))
    s[None] = low * low
""",
    "and their old values": """
    for i in x:
        old = ds.atomic_max(s[None], x[i])
        y[i] = old * v[i]
""",
    "of a nest": """
    for i, j in ds.ndrange(N, 3):
        ds.atomic_max(v[j], x[i] * y[j])
""",
    "old sums": """
    for i in x:
        y[i] = ds.atomic_add(s[None], x[i] * x[i])
""",
}


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", EXTREMES)
def test_one_of_several_lanes(name, width):
    for found, slope, _ in forward(EXTREMES[name], width=width, N=N):
        np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-8)


TIES = [
    "    for i in x:\n        ds.atomic_max(s[None], x[i])\n",
    "    for i in x:\n        ds.atomic_min(s[None], x[i])\n        ds.atomic_max(v[i], x[i])\n",
    "    k = 0\n    if k == 0:\n        for i in range(6):\n            ds.atomic_max(s[None], x[i])\n",
]


@pytest.mark.parametrize("body", TIES)
def test_ties_are_decided_as_in_the_adjoint(body):
    primal = ir_of(body, params="", **fields(grad=True))
    start = {m: np.full_like(a, 0.7) for m, a in random_memory(primal).items()}
    (direction,) = directions_of(primal)
    _, found, _ = WithTangents(primal).run(start, [direction])
    held = {m: a.copy() for m, a in start.items()}
    interpreter.run(primal, held)
    g = {m: np.random.default_rng(1).uniform(-1, 1, m.shape) for m in found}
    held |= {m.grad: g[m].copy() for m in found}
    interpreter.run(reverse(primal).ir, held)
    there = sum(np.sum(found[m][0] * g[m]) for m in found)
    back = sum(np.sum(direction[m] * held[m.grad]) for m in found)
    assert there == pytest.approx(back, rel=1e-13)


def test_nan_does_not_count_as_an_extreme():
    primal = ir_of(EXTREMES["of all lanes"], params="", **fields())
    start = random_memory(primal, 3)
    next(a for m, a in start.items() if m.name == "x")[2] = np.nan
    (direction,) = directions_of(primal)
    _, found, _ = WithTangents(primal).run(start, [direction])
    (s,) = [a[0] for m, a in found.items() if m.name == "s"]
    assert np.isfinite(s)


# ---- results


def returning(body, result, **space):
    space = {"ds": ds, **fields(), **space}
    make(f"@ds.kernel\ndef f() -> {result}:\n{body}", space)
    return space["f"]._only(()).ir, space


@pytest.mark.parametrize("width", [1, 4])
def test_results_bring_their_tangents(width):
    body = "    t = ds.f64(0.0)\n    for i in x:\n        t += x[i] * y[i]\n    return t\n"
    primal, _space = returning(body, "ds.f64")
    start, directions = random_memory(primal, 3), directions_of(primal, width)
    made = WithTangents(primal, width)
    assert made.made.returns_active
    _, _, result = made.run(start, directions)
    alone = interpreter.run(primal, {m: a.copy() for m, a in start.items()})
    assert result.shape == (1 + width,)
    assert result[0] == alone
    for k, direction in enumerate(directions):
        assert result[1 + k] == pytest.approx(differences(primal, start, direction)[1], rel=1e-7)


def test_a_matrix_that_is_returned():
    body = "    return ds.Matrix([[x[0], x[1]], [y[0] * x[2], 1.0]])\n"
    primal, _space = returning(body, "ds.types.matrix(2, 2, ds.f64)")
    start, (direction,) = random_memory(primal, 3), directions_of(primal)
    _, _, result = WithTangents(primal).run(start, [direction])
    slope = differences(primal, start, direction)[1]
    np.testing.assert_allclose(result[4:].reshape(2, 2), slope, rtol=1e-7, atol=1e-8)


def test_a_result_without_tangents_stays_as_it_is():
    primal, _space = returning("    y[0] = x[0]\n    return 1.5 + ds.floor(x[1])\n", "ds.f64")
    made = WithTangents(primal)
    assert not made.made.returns_active
    assert made.ir.result is primal.result


@pytest.mark.parametrize("width", [1, 4])
def test_arguments_may_have_tangents(width):
    body = "    for i in x:\n        y[i] = x[i] * w.dot(w) * a\n"
    params = "w: ds.types.vector(2, ds.f64), a: ds.f64"
    space = fields()
    primal = ir_of(body, ds.Vector([0.3, 0.7]), 0.5, params=params, **space)
    x, y = space["x"]._mem, space["y"]._mem
    made = differentiate(primal, width=width, varying=primal.args)
    assert [s.mem.name for s in made.leaks] == ["y"]
    y.dual = Mem("y.dual", y.dtype, 1 + (width > 1), (N, width) if width > 1 else (N,))
    made = differentiate(primal, width=width, varying=primal.args)
    verify(made.ir)
    held = {x: np.ones(N), y: np.zeros(N), y.dual: np.full(y.dual.shape, np.nan)}
    w, a = np.array([0.3, 0.7]), 0.5
    r = np.random.default_rng(1)
    dw, da = r.uniform(-1, 1, (width, 2)), r.uniform(-1, 1, width)
    interpreter.run(made.ir, held, (w, a, *dw, *da))
    want = 2 * dw @ w * a + w @ w * da
    np.testing.assert_allclose(held[y.dual].reshape(N, width), np.tile(want, (N, 1)), rtol=1e-14)


# ---- calls


def test_gradients_in_kernels_have_tangents():
    @ds.func
    def energy(a, b):
        e = a * a * b
        for _ in range(3):
            e = e * a + ds.sin(b)
        return e

    body = "    for i in x:\n        y[i] = ds.grad(energy)(x[i], v[i])[0] * x[i]\n"
    for found, slope, _ in forward(body, energy=energy, width=4):
        np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-7)


def test_random_numbers_are_constants():
    body = "    for i in x:\n        y[i] = x[i] * ds.random(ds.f64)\n"
    for found, slope, _ in forward(body):
        np.testing.assert_allclose(found, slope, rtol=1e-7, atol=1e-8)


def given():
    @ds.func
    def cube(a):
        return a * a * a

    @ds.func_grad(cube)
    def adj_cube(a, g):
        ds.adjoint[a] += 30.0 * a * a * g

    return cube


def refusal(body, **space):
    primal = ir_of(body, params="", **fields(), **space)
    with pytest.raises(AutodiffError) as caught:
        WithTangents(primal)
    return caught.value


def test_given_gradients_have_no_tangent():
    error = refusal("    for i in x:\n        y[i] = cube(x[i])\n", cube=given())
    assert "cube has a gradient of its own, which is for reverse mode" in str(error)
    assert error.span.line == 4


def test_given_gradients_of_constants_are_fine():
    body = "    for i in x:\n        y[i] = cube(ds.cast(at[i], ds.f64)) * x[i] + cube(ds.stop_grad(x[i]))\n"
    for found, _, direction in forward(body, cube=given()):
        assert found.shape in ((N,), ())
        assert direction
    memory = forward(body, cube=given())
    assert any(np.abs(found).max() > 0 for found, *_ in memory)


def test_text_has_no_tangent():
    @ds.func_native("%r = fmul double %a, %a\nret double %r")
    def square(a: ds.f64) -> ds.f64: ...

    error = refusal("    for i in x:\n        y[i] = square(x[i])\n", square=square)
    assert "square is LLVM text, and forward mode has no tangent for it" in str(error)
    assert error.span.line == 4


# ---- memory


def test_memory_without_dual_is_constant_and_what_leaks_into_it_is_named():
    primal = ir_of("    for i in x:\n        y[i] = x[i] * v[i]\n", params="", **fields())
    start, (direction,) = random_memory(primal, 3), directions_of(primal)
    made = WithTangents(primal, without=("y", "v"))
    assert [s.mem.name for s in made.made.leaks] == ["y"]
    assert made.made.leaks[0].span.line == 4
    made.run(start, [direction])


def test_nothing_changes_where_nothing_has_a_dual():
    primal = ir_of("    for i in x:\n        y[i] = x[i] * v[i]\n", params="", **fields())
    made = WithTangents(primal, without=("x", "y", "v"))
    assert made.made.leaks == ()
    assert [type(s) for s in made.ir.tasks[0].body.stmts] == [
        type(s) for s in primal.tasks[0].body.stmts
    ]
