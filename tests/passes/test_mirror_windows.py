"""Sums over windows and channels are made by the element: the adjoints of convolutions."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central
from tests.support.source import make

N, M, C, O = 9, 11, 8, 9
RANDOM = np.random.default_rng(0)
PICTURE, WEIGHTS = RANDOM.standard_normal((N, M, C)), RANDOM.standard_normal((O, C, 3, 3))
LOOPS = "for c in range(C):\n   for a in range(3):\n    for b in range(3):\n     "
INSIDE = "k, l = i + a - 1, j + b - 1\n     if 0 <= k < N and 0 <= l < M:\n      "
STEPS = INSIDE.replace("i + a", "2 * i + a").replace("j + b", "3 * j + 2 * b")
TERM = "s += w[o, c, a, b] * x[k, l, c]"


@pytest.fixture
def fields(cpu):
    shapes = {"x": PICTURE.shape, "w": WEIGHTS.shape, "y": (3, N, M, O), "loss": ()}
    made = {k: ds.field(ds.f64, shape=n, needs_grad=True) for k, n in shapes.items()}
    made["x"].from_numpy(PICTURE)
    made["w"].from_numpy(WEIGHTS)
    return {"ds": ds, "N": N, "M": M, "C": C, "O": O, **made}


def kernel_of(fields, inside=INSIDE, term=TERM, result="s"):
    head = "@ds.kernel\ndef kernel(t: ds.i32):\n for i, j, o in ds.ndrange(N, M, O):\n  s = w[o, 0, 0, 0]\n"
    make(f"{head}  {LOOPS}{inside}{term}\n  y[t, i, j, o] = {result}\n", fields)
    make(
        "@ds.kernel\ndef total():\n for q in ds.grouped(y):\n  loss[None] += ds.sin(y[q])\n", fields
    )
    return fields["kernel"]


def is_collected(kernel):
    """Whether an element's own lane makes the sum of what is added to it."""
    lines = kernel.grad.ir(after="scatter_to_gather").splitlines()
    sums = [n for n, line in enumerate(lines) if "accumulate" in line]
    adds = [n for n, line in enumerate(lines) if "atomic_add x.grad" in line]
    return len(adds) == 1 and lines[adds[0]].startswith(4 * " " + "atomic") and bool(sums)


def gradients(fields):
    def run():
        for t in range(3):
            fields["kernel"](t)
        fields["total"]()

    with ds.Tape(fields["loss"]):
        run()
    found = fields["x"].grad.to_numpy(), fields["w"].grad.to_numpy()

    def value(x, w):
        fields["x"].from_numpy(x)
        fields["w"].from_numpy(w)
        fields["loss"][None] = 0
        run()
        return fields["loss"][None]

    return found, value


@pytest.mark.parametrize(
    ("inside", "term", "result", "collected"),
    [
        (INSIDE, TERM, "s", True),
        # What the lane computes at length is kept in the element that it clears.
        (INSIDE, TERM, "ds.tanh(s)", True),
        (INSIDE, TERM, "ds.max(s, 0)", True),
        (INSIDE, f"if (k + o) % 3:\n       {TERM}", "ds.max(s, 0)", True),
        (INSIDE, f"if w[o, c, 1, 1] > 0:\n       {TERM}", "s", True),
        # Steps of two and three pixels.
        (STEPS, TERM, "ds.tanh(s)", True),
        # Two windows in one.
        (
            INSIDE,
            f"{TERM}\n      if l + 1 < M:\n       s += 2.0 * x[k, l + 1, c]",
            "ds.sin(s)",
            True,
        ),
        # Functions of what is added up would be computed twice.
        (INSIDE, "s += ds.sin(w[o, c, a, b] * x[k, l, c])", "s", False),
        # Sums that follow from each other.
        (INSIDE, "s += 0.1 * w[o, c, a, b] * x[k, l, c] * s", "s", False),
        # Not a window.
        (INSIDE, "s += w[o, c, a, b] * x[k, k % M, c]", "s", False),
    ],
)
def test_gradients_are_those_of_differences(fields, inside, term, result, collected):
    kernel = kernel_of(fields, inside, term, result)
    found, value = gradients(fields)
    assert is_collected(kernel) == collected
    ways = [RANDOM.standard_normal(a.shape) for a in (PICTURE, WEIGHTS)]

    def moved(e):
        return value(PICTURE + e[0] * ways[0], WEIGHTS + e[0] * ways[1])

    expected = central(moved, np.zeros(1))[0]
    along = sum(float((g * way).sum()) for g, way in zip(found, ways, strict=True))
    assert along == pytest.approx(expected, rel=1e-6)
    assert not fields["y"].grad.to_numpy().any()


def test_zeros_stay_zeros_where_weights_are_infinite(fields):
    # A rectifier that is off hands on nothing, whatever it is multiplied by.
    kernel_of(fields, result="ds.max(s, 0)")
    w = WEIGHTS.copy()
    w[3] = -np.inf
    fields["x"].from_numpy(abs(PICTURE))
    fields["w"].from_numpy(w)
    with ds.Tape(fields["loss"]):
        fields["kernel"](0)
        fields["total"]()
    found = fields["x"].grad.to_numpy()
    w[3] = 0
    fields["w"].from_numpy(w)
    with ds.Tape(fields["loss"]):
        fields["kernel"](0)
        fields["total"]()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, fields["x"].grad.to_numpy(), rtol=1e-12)


def test_a_row_of_the_same_memory(cpu):
    # The sum is of what is added to row t, the value is kept in row t + 1.
    n, units = 5, 8
    h = ds.field(ds.f64, shape=(3, n, units), needs_grad=True)
    w = ds.field(ds.f64, shape=(units, units), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    names = {"ds": ds, "h": h, "w": w, "loss": loss, "n": n, "units": units}
    make(
        """
@ds.kernel
def step(t: ds.i32):
    for i, j in ds.ndrange(n, units):
        s = 0.1 * w[j, 0]
        for k in range(units):
            if k != j + 1:
                s += w[k, j] * h[t, i, k]
        h[t + 1, i, j] = ds.tanh(s)

@ds.kernel
def total():
    for i, j in ds.ndrange(n, units):
        loss[None] += h[2, i, j] ** 3
""",
        names,
    )
    h0, weights = RANDOM.standard_normal((3, n, units)), RANDOM.standard_normal((units, units))
    h.from_numpy(h0)
    w.from_numpy(weights)
    with ds.Tape(loss):
        for t in range(2):
            names["step"](t)
        names["total"]()
    state, jacobians, allowed = h0[0], [], 1 - np.eye(units, k=-1)
    for _ in range(2):
        state = np.tanh(0.1 * weights[:, 0] + state @ (weights * allowed))
        jacobians.append(1 - state**2)
    seed = 3 * state**2
    for factor in reversed(jacobians):
        seed = (seed * factor) @ (weights * allowed).T
    np.testing.assert_allclose(h.grad.to_numpy()[0], seed, rtol=1e-12, atol=1e-14)


def test_what_is_added_inside_and_behind_a_function(cpu):
    """One addition to a bias is of a value that is kept, the other of what the lane has loaded before."""
    n, outs, channels = 17, 9, 8
    start = RANDOM.standard_normal(outs)
    fields = {"ds": ds, "loss": ds.field(ds.f64, shape=(), needs_grad=True)}
    for name, shape in dict(x=(n, channels), w=(outs, channels), y=(n, outs), b=(outs,)).items():
        fields[name] = ds.field(ds.f64, shape=shape, needs_grad=True)
        fields[name].from_numpy(start if name == "b" else RANDOM.standard_normal(shape))
    make(
        f"""
@ds.kernel
def layer():
    for i, o in ds.ndrange({n}, {outs}):
        s = b[o]
        for c in range({channels}):
            s += (w[o, c] * x[i, c]) ** 2
        y[i, o] = ds.sin(s) + b[o]
@ds.kernel
def total():
    for q in ds.grouped(y):
        loss[None] += ds.sin(y[q])
""",
        fields,
    )

    def value(b):
        fields["b"].from_numpy(b)
        fields["loss"][None] = 0
        fields["layer"]()
        fields["total"]()
        return fields["loss"][None]

    with ds.Tape(fields["loss"]):
        fields["layer"]()
        fields["total"]()
    found = fields["b"].grad.to_numpy()
    assert "accumulate" in fields["layer"].grad.ir(after="scatter_to_gather")
    np.testing.assert_allclose(found, central(value, start), rtol=1e-6)


PICKS = {
    "components": ("x[i + a, c][0]", "x[i + a, c][1]"),
    "dimensions": ("u[z.shape[0] - 1, i + a, c]", "u[z.shape[0] - 2, i + a, c]"),
    "arguments": ("u[t + 1, i + a, c]", "u[t, i + a, c]"),
    "differences": ("u[3 - t, i + a, c]", "u[2 - t, i + a, c]"),
}


@pytest.mark.parametrize("picked", PICKS)
def test_sums_for_elements_that_only_constants_tell_apart(picked):
    # An array of any shape: dimensions are no numbers then.
    ds.init(arch=ds.cpu, default_fp=ds.f64, deterministic=True)
    n, outs, channels, size = 10, 9, 8, 3
    u = ds.field(ds.f64, shape=(4, n + size, channels), needs_grad=True)
    x = ds.Vector.field(2, ds.f64, shape=(n + size, channels), needs_grad=True)
    w = ds.field(ds.f64, shape=(outs, channels, size))
    y = ds.field(ds.f64, shape=(n, outs), needs_grad=True)
    first, second = PICKS[picked]
    names = {"ds": ds, "u": u, "x": x, "w": w, "y": y}
    make(
        f"""
@ds.kernel
def layer(z: ds.types.ndarray(dtype=ds.f64, ndim=1), t: ds.i32):
    for i, o in ds.ndrange({n}, {outs}):
        s = 0.0
        for c in range({channels}):
            for a in range({size}):
                s += w[o, c, a] * {first}
                s += 2 * w[o, c, a] * {second}
        y[i, o] = s * z[0]
""",
        names,
    )
    weights, seed = RANDOM.standard_normal(w.shape), RANDOM.standard_normal(y.shape)
    w.from_numpy(weights)
    array = np.ones(3)
    names["layer"](array, 1)
    y.grad.from_numpy(seed)
    names["layer"].grad(array, 1)
    expected = np.zeros((n + size, channels))
    for a in range(size):
        expected[a : a + n] += seed @ weights[:, :, a]
    found = x.grad.to_numpy() if picked == "components" else u.grad.to_numpy()
    one, two = (found[..., 0], found[..., 1]) if picked == "components" else (found[2], found[1])
    np.testing.assert_allclose(one, expected, rtol=1e-12)
    np.testing.assert_allclose(two, 2 * expected, rtol=1e-12)


@pytest.mark.parametrize("index", ["i + a, a + 1", "a + 1, i + a", "i + a, a"])
def test_a_component_that_another_one_waits_for(cpu, index):
    n, outs, size = 20, 9, 8
    fields = {"ds": ds}
    for name, shape in dict(x=(n + size, n + size), w=(size, outs), y=(n, outs)).items():
        fields[name] = ds.field(ds.f64, shape=shape)
        fields[name].from_numpy(np.zeros(shape) if name == "x" else RANDOM.standard_normal(shape))
    make(
        f"""
@ds.kernel
def scatter():
    for i, o in ds.ndrange({n}, {outs}):
        g = y[i, o]
        for a in range({size}):
            x[{index}] += w[a, o] * g
""",
        fields,
    )
    fields["scatter"]()
    expected = np.zeros((n + size, n + size))
    products = fields["y"].to_numpy() @ fields["w"].to_numpy().T
    for i, a in np.ndindex(n, size):
        expected[eval(index)] += products[i, a]
    # Terms of order 1 may cancel: rounding errors are those of the terms.
    np.testing.assert_allclose(fields["x"].to_numpy(), expected, rtol=1e-12, atol=1e-15)
    assert "accumulate" in fields["scatter"].ir(after="scatter_to_gather")


def test_a_window_in_steps_has_the_iterations_that_reach_an_element(cpu):
    """Of `x[4 * i + a]` every fourth distance reaches an element: 3 of 10, for each lane its own."""
    random = np.random.default_rng(1)
    x, w, y = (ds.field(ds.f64, shape=n, needs_grad=True) for n in (50, (10, 3), (11, 3)))
    w.from_numpy(random.standard_normal(w.shape))
    y.grad.from_numpy(random.standard_normal(y.shape))

    @ds.kernel
    def windows():
        for i, k in y:
            s = ds.f64(0)
            for a in range(10):
                s += w[a, k] * x[4 * i + a]
            y[i, k] = s

    adjoint, found = y.grad.to_numpy(), np.zeros(50)
    for i in range(11):
        found[4 * i : 4 * i + 10] += w.to_numpy() @ adjoint[i]
    windows.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), found, rtol=1e-13)
    own = windows.grad.ir(after="scatter_to_gather").split("add x.grad")[0]
    assert "in 0..3 carry" in own
    assert "in 0..10" not in own
