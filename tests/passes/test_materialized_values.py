"""What a stencil's adjoint gives to neighbours is computed once, and stored where a gradient is cleared."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Atomic, Let
from diffsim.ir.traversal import statements, task_statements
from diffsim.ir.verifier import verify
from diffsim.passes import pipeline
from diffsim.passes.instrument.bounds import check_bounds
from diffsim.passes.neighbours.materialized_values import materialize_values
from diffsim.passes.sparse.activation import expand_activations
from tests.support.gradients import check, field, numbers
from tests.support.source import make

N = 20
TEXT = """
@ds.kernel
def kernel(n: ds.i32):
    for i, j in ds.ndrange({box}):
        {body}
"""
BOX = "(2, N - 2), (2, N - 2)"
NEAR = "(x[i - 1, j] + x[i + 1, j] + 2 * x[i, j - 1] + x[i, j + 1])"
TAKEN = """v = g[i, j]
        g[i, j] = 0.0
        v = 4 * (v - w[i, j]) / b[i, j]
        """
GIVEN = """x[i - 1, j] += v
        x[i + 1, j] += 2 * v
        x[i, j - 1] += w[i, j] * v
        """
BOTH = "x[i - 1, j] += v - c; x[i + 1, j] += c + 2 * v; x[i, j - 1] += w[i, j] * v - 3 * c"


@pytest.fixture
def space(cpu):
    names = {k: field((N, N)) for k in "xywgbp"}
    return dict(
        names,
        ds=ds,
        N=N,
        m=ds.field(ds.i32, 2),
        v2=field((N, N), n=2),
        f=field((N,)),
        t=field((2, N, N)),
        h=field((N, N), dtype=ds.f32),
    )


def kernel(space, body, box=BOX):
    make(TEXT.format(body=body, box=box), space)
    return space["kernel"]._only(())


def is_split(ir):
    found = materialize_values(ir)
    verify(found, "materialized_values")
    return len(found.tasks) > len(ir.tasks)


def run(ir):
    rng = np.random.default_rng(7)
    start = {}
    for m in sorted(ir.mems, key=lambda m: m.name):
        shape = (*m.shape, *m.dtype.shape)
        powers = 2.0 ** rng.integers(0, 3, shape)
        start[m] = powers if m.name == "b" else rng.integers(-3, 4, shape).astype(float)
    interpreter.run(ir, start, (3,))
    return {m.name: a for m, a in start.items()}


def assert_the_same(ir):
    assert is_split(ir)
    there, here = run(ir), run(materialize_values(ir))
    for name, values in there.items():
        # Whole numbers, and quotients by powers of two: exact in any order.
        np.testing.assert_array_equal(values, here[name], err_msg=name)


@pytest.mark.parametrize(
    "body",
    [
        TAKEN + GIVEN,
        # A term of the lane itself stays with it, if it is costly.
        TAKEN + GIVEN + "x[i, j] += v * v / b[i, j]",
        TAKEN + GIVEN + "x[i, j] += v; p[0, 0] += v; w.grad[i, j] += v * b[i, j]",
        TAKEN + GIVEN + "if v > 0: x[i, j + 1] += v",
        TAKEN + GIVEN.replace("j - 1", "ds.max(j - 1, 4)"),
        # Two numbers, and room for both.
        TAKEN + "c = y[i, j]; y[i, j] = 0.0; c = c / b[i, j]\n        " + BOTH,
        # Two memories that are given the same.
        TAKEN + GIVEN + "y[i, j - 1] += v; y[i, j + 1] -= v",
        # A loop that takes long.
        TAKEN + "for _ in range(n): v = v + g.grad[i, j] / b[i, j]\n        " + GIVEN,
    ],
)
def test_the_same_sums(space, body):
    assert_the_same(kernel(space, body).ir)


@pytest.mark.parametrize(
    "body",
    [
        # The element is read, written or added to again.
        TAKEN + GIVEN + "y[i, j] = g[i, j]",
        TAKEN + GIVEN + "g[i, j] = 2.0 * y[i, j]",
        TAKEN + GIVEN + "g[i, j] += 1.0",
        TAKEN + GIVEN + "for k in range(n): y[i, j] += g[i, j]",
        TAKEN + GIVEN + "y[i, j] = g[i, j + 1]",
        "c = g[i, j + 1]; y[i, j] = c; " + TAKEN + GIVEN,
        # What is printed is printed once, and before.
        TAKEN + GIVEN + "print(v)",
        # An addition needs what has effects.
        TAKEN
        + "c = 1.0\n        if v > 0:\n            c = 2.0; p[0, 0] += 1.0\n        "
        + GIVEN.replace("2 *", "c *"),
        # It is cleared in some lanes, or before it is read, or it is no constant that is stored.
        TAKEN.replace("g[i, j] = 0", "if b[i, j] > 0: g[i, j] = 0") + GIVEN,
        "g[i, j] = 0.0; " + TAKEN.replace("g[i, j] = 0.0", "") + GIVEN,
        TAKEN.replace("= 0.0", "= b[i, j]") + GIVEN,
        # It is no lane's own, or of another type.
        TAKEN.replace("g[i, j]", "f[i]") + GIVEN,
        TAKEN.replace("= g[i, j]", "= b[i, j] * h[i, j]").replace("g[", "h[") + GIVEN,
        # What the additions change is read, or changed in another way.
        TAKEN + GIVEN + "y[i, j] = x[i, j]",
        TAKEN + GIVEN + "x[i, j] = 1.0",
        TAKEN + GIVEN + "ds.atomic_max(x[i, j], v)",
        TAKEN + GIVEN + "y[i, j] = ds.atomic_add(x[i, j + 1], v)",
        # What they still load changes.
        TAKEN + GIVEN + "w[i, j] = 1.0",
        TAKEN + GIVEN + "w[i, j] += v",
        # Two numbers, and room for one.
        TAKEN + "c = v * v / b[i, j]; " + BOTH,
        # What is added is no neighbour's, or costs nothing.
        TAKEN + GIVEN.replace("i - 1", "i * 2 % N").replace("i + 1", "i").replace("j - 1", "j"),
        "v = g[i, j]; g[i, j] = 0.0; " + GIVEN,
    ],
)
def test_what_stays(space, body):
    assert not is_split(kernel(space, body).ir)


def test_a_row_that_an_index_tells(space):
    body = "k = m[0] % 2\n        " + TAKEN.replace("g[", "t[k, ") + GIVEN
    assert is_split(kernel(space, body).ir)
    assert not is_split(kernel(space, body + "m[0] = 1").ir)


@pytest.mark.parametrize("sparse", ["g", "x", "w"])
def test_elements_that_may_not_be_there_stay(space, sparse):
    space[sparse] = ds.field(ds.f64)
    ds.root.pointer(ds.ij, N // 4).dense(ds.ij, 4).place(space[sparse])
    assert not is_split(expand_activations(kernel(space, TAKEN + GIVEN).ir))


def test_bounds_that_lanes_write_stay(space):
    body = TAKEN + GIVEN + "m[0] = 4"
    assert is_split(kernel(space, body).ir)
    assert not is_split(kernel(space, body, box="(m[0], N - 2), (2, N - 2)").ir)


def test_lanes_that_a_check_may_stop_stay(space):
    ir = kernel(space, TAKEN + GIVEN).ir
    assert is_split(ir)
    assert not is_split(check_bounds(ir))


def test_a_vector_is_handed_over(space):
    text = """v = v2.grad[i, j]
        v2.grad[i, j] = ds.Vector([0.0, 0.0])
        v = v / b[i, j] + ds.Vector([1.0, w[i, j]])
        v2[i - 1, j] += v
        v2[i + 1, j] += 2 * v
        v2[i, j + 1] += w[i, j] * v"""
    assert_the_same(kernel(space, text).ir)


def lowered_adjoint(space, body):
    ir = kernel(space, body).derivative.ir
    return ir, pipeline.run(ir, pipeline.LOWER, check=True)


@pytest.mark.parametrize(
    "factor",
    [
        "1 / (1 + w[i, j] ** 2 + b[i, j])",
        "ds.exp(w[i, j] * b[i, j])",
        "(w[i, j] + b[i, j]) * w[i, j] * 0.5",
    ],
)
@pytest.mark.parametrize("clamped", [False, True])
def test_gradients(space, factor, clamped):
    near, box = NEAR, BOX
    if clamped:
        near = NEAR.replace("i - 1", "ds.max(i - 1, 0)").replace("j + 1", "ds.min(j + 1, N - 1)")
        near, box = near.replace("i + 1", "(i + 1) % N").replace("j - 1", "(j + N - 1) % N"), "N, N"
    make(TEXT.format(body=f"y[i, j] = {near} * {factor}", box=box), space)
    loss = field()

    @ds.kernel
    def measure():
        for i, j in y:
            loss[None] += y[i, j] * y[i, j] * (i - 3 * j)

    x, y, w, b = (space[k] for k in "xywb")
    for k, f in enumerate((x, w, b)):
        f.from_numpy(numbers(N, N, seed=k, lo=0.2))

    def program():
        space["kernel"](3)
        measure()

    check(program, loss, x, w, b, reset=(y,))
    assert is_split(space["kernel"]._only(()).derivative.ir)


def test_divisions_are_made_once_and_additions_gathered(space):
    ir, lowered = lowered_adjoint(space, f"y[i, j] = {NEAR} / (1 + w[i, j] ** 2 + b[i, j])")
    assert is_split(ir)
    inside = [s for t in lowered.tasks for s in task_statements(t)]
    assert not [s for s in inside if isinstance(s, Atomic) and not s.exclusive]
    divisions = [s for s in inside if isinstance(s, Let) and s.op.name == "div"]
    made = [s for t in ir.tasks for s in statements(t.body)]
    assert len(divisions) == len([s for s in made if isinstance(s, Let) and s.op.name == "div"])
