"""Lanes load and update each element once; what any access in between may change stays as it is."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Atomic, For, Let, Load, Store
from diffsim.ir.traversal import blocks, statements
from diffsim.passes import pipeline
from tests.fuzz import repeated
from tests.support.source import make

N = 5
INITIAL = np.arange(4.0 * N).reshape(N, 4) - 7
TABLE = np.array([0, 3, 1, 1, 2])


def accesses(kernel, upto="scalar_replacement"):
    """How many loads, stores and additions of `x` a lane has."""
    made = pipeline.run(kernel._only(()).ir, pipeline.LOWER, upto)
    every = [s for task in made.tasks for s in statements(task.body)]
    kinds = (Load, Store, Atomic)
    return [sum(isinstance(s, k) and s.mem.name == "x" for s in every) for k in kinds]


@pytest.mark.parametrize(
    ("lines", "before", "after"),
    [
        (["y[i] = x[i, 0] * x[i, 1] + x[i, 0] * x[i, 1]"], [4, 0, 0], [2, 0, 0]),
        (["x[i, 0] += 2.0", "x[i, 0] += x[i, 1]", "x[i, 0] += 1.0"], [1, 0, 3], [2, 1, 1]),
        (["a = x[i, 1]", "x[i, 0] += 2.0", "x[i, 0] += a", "x[i, 2] += a"], [1, 0, 3], [3, 2, 0]),
        (["y[i] = x[i, 0]", "x[i, k] = 3.0", "y[i] += x[i, 0]"], [2, 1, 0], [2, 1, 0]),
        (["x[i, 0] += 1.0", "x[i, k] += 2.0", "x[i, 0] += 3.0"], [0, 0, 3], [0, 0, 3]),
        (["x[i, k] += 1.0", "x[i, k + 1] += 2.0", "x[i, k] += 3.0"], [0, 0, 3], [2, 2, 0]),
        (["x[i, 0] += 1.0", "x[i, 0] -= 2.0", "x[i, 0] = 4.0 * x[i, 0]"], [1, 1, 2], [2, 2, 0]),
        (
            ["if k > 0:", "    y[i] = x[i, 0]", "    x[i, 0] = 1.0", "y[i] += x[i, 0]"],
            [2, 1, 0],
            [2, 1, 0],
        ),
        (
            ["x[i, 0] += 1.0", "if k > 1:", "    x[i, 0] = 5.0", "x[i, 0] += 1.0"],
            [0, 1, 2],
            [0, 1, 2],
        ),
        (
            [
                *(
                    "y[i] = x[i, 0]",
                    "for m in range(k):",
                    "    y[i] += x[i, 0]",
                    "    x[i, 0] += 1.0",
                ),
                "y[i] -= x[i, 0]",
            ],
            [3, 0, 1],
            [3, 0, 1],
        ),
        (
            ["y[i] = x[i, 0]", "for m in range(k):", "    y[i] += x[i, 0]"],
            [2, 0, 0],
            [1, 0, 0],
        ),
        (
            ["for m in range(k):", "    y[i] += x[i, m]", "    y[i] *= x[i, m]", "y[i] -= x[i, 0]"],
            [3, 0, 0],
            [2, 0, 0],
        ),
    ],
    ids=lambda case: "; ".join(map(str.strip, case)) if isinstance(case[0], str) else "",
)
def test_accesses_of_one_element(cpu, quick_code, lines, before, after):
    """Against Python, which runs the same lines on arrays."""
    names = dict(at=ds.field(ds.i32, shape=N), y=ds.field(ds.f64, shape=N))
    names["x"] = ds.field(ds.f64, shape=(N, 4))
    body = "\n".join(f"        {line}" for line in ["k = at[i]", *lines])
    text = f"def run():\n    for i in range({N}):\n{body}\n"
    space = dict(ds=ds, **names)
    make("@ds.kernel\n" + text, space)
    kernel = space["run"]
    assert [accesses(kernel, "forward_clears"), accesses(kernel)] == [before, after]
    x, y = INITIAL.copy(), np.zeros(N)
    names["x"].from_numpy(x)
    names["at"].from_numpy(np.minimum(TABLE, 2).astype("i4"))
    kernel()
    plain = dict(x=x, y=y, at=np.minimum(TABLE, 2))
    exec(text + "run()", plain)
    np.testing.assert_array_equal(names["x"].to_numpy(), x)
    np.testing.assert_array_equal(names["y"].to_numpy(), y)


def test_loads_before_loops(cpu, quick_code):
    """What no iteration chooses is loaded before the outermost loop, if it exists whatever branches say."""
    x, y = ds.field(ds.f64, shape=(N, 4)), ds.field(ds.f64, shape=N)
    x.from_numpy(INITIAL)

    @ds.kernel
    def run():
        for i in range(N):
            for k in range(3):
                for m in range(k):
                    if (i + k) % 2 == 0:
                        y[i] += x[i, 1] + x[i, k]
                    if i < N - 1:
                        y[i] += x[i + 1, 0] * x[N - 1 - i, 2]

    made = pipeline.run(run._only(()).ir, pipeline.LOWER, "scalar_replacement")

    def loads(block, depth=0):
        for s in block.stmts:
            if isinstance(s, Load) and s.mem.name == "x":
                yield depth
            for inner in blocks(s):
                yield from loads(inner, depth + isinstance(s, For))

    (task,) = made.tasks
    assert list(loads(task.body)) == [0, 0, 1, 2]
    run()
    expected = np.zeros(N)
    for i in range(N):
        for k in range(3):
            for _ in range(k):
                if (i + k) % 2 == 0:
                    expected[i] += INITIAL[i, 1] + INITIAL[i, k]
                if i < N - 1:
                    expected[i] += INITIAL[i + 1, 0] * INITIAL[N - 1 - i, 2]
    np.testing.assert_array_equal(y.to_numpy(), expected)


def test_rows_of_other_steps_of_time(cpu, quick_code):
    """Row t stays as it is while row t + 1 is stored; other accesses tell that both exist."""
    x, v = ds.field(ds.f64, shape=(4, N)), ds.field(ds.f64, shape=(4, N))
    w, y = ds.field(ds.f64, shape=(5, N)), ds.field(ds.f64, shape=N)
    fields = dict(x=x, v=v, w=w)
    start = {k: np.random.default_rng(2).normal(size=f.shape) for k, f in fields.items()}
    for k, f in fields.items():
        f.from_numpy(start[k])

    @ds.kernel
    def run(t: ds.i32, u: ds.i32):
        for i in range(N):
            total = 0.0 * x[t, i]
            for k in range(3):
                if (i + k) % 2 == 0:
                    # x is known, v and w exist, of row u nobody knows; row 4 - t of w may be t + 1.
                    total += x[t, i] + v[t, i] + w[t, i] * x[u, i] + w[4 - t, i]
            v[t + 1, i] = total
            w[t + 1, i] = 2.0 * total
            x[t + 1, i] = total + y[i]

    made = pipeline.run(run._only((0, 0)).ir, pipeline.LOWER, "scalar_replacement")

    def loads(block, depth=0):
        for s in block.stmts:
            if isinstance(s, Load) and s.mem is not y:
                yield f"{s.mem.name}{depth}"
            for inner in blocks(s):
                yield from loads(inner, depth + isinstance(s, For))

    (task,) = made.tasks
    assert sorted(loads(task.body)) == ["v0", "w0", "w1", "x0", "x1", "y0"]
    for t, u in ((0, 3), (1, 2), (2, 0)):
        run(t, u)
        now = {k: a.copy() for k, a in start.items()}
        total = np.zeros(N)
        for i in range(N):
            for k in range(3):
                if (i + k) % 2 == 0:
                    total[i] += start["x"][t, i] + start["v"][t, i]
                    total[i] += start["w"][t, i] * start["x"][u, i] + start["w"][4 - t, i]
        now["v"][t + 1], now["w"][t + 1], now["x"][t + 1] = total, 2 * total, total
        for k, f in fields.items():
            np.testing.assert_allclose(f.to_numpy(), now[k], rtol=1e-12)
            f.from_numpy(start[k])


def test_what_loops_always_load_exists(cpu, quick_code):
    """An inner loop that turns tells which elements there are, as far as the branch that it is in goes."""
    x, y = ds.field(ds.f64, shape=(3, N, 2)), ds.field(ds.f64, shape=(3, N, 2))
    start = np.random.default_rng(4).normal(size=x.shape)
    x.from_numpy(start)

    @ds.kernel
    def run(t: ds.i32, n: ds.i32):
        for i in range(N):
            if i + 1 < N:
                for k in range(2):
                    total = 0.0 * x[t, i, k]
                    for m in range(2):
                        total += x[t, i + 1, m]
                    # None of so many stores reaches row t: their first index is another number.
                    for j in ds.static(range(40)):
                        x[t + 1, i, k] = total + j
                for k in range(3):
                    for m in range(n):
                        y[t, i, 0] += x[t, i - 1, m] if i > 0 else 0.0

    made = pipeline.run(run._only((0, 0)).ir, pipeline.LOWER, "scalar_replacement")

    def loads(block, depth=0):
        for s in block.stmts:
            if isinstance(s, Load) and s.mem.name == "x":
                yield depth
            for inner in blocks(s):
                yield from loads(inner, depth + isinstance(s, For))

    (task,) = made.tasks
    # The two elements of i + 1 are loaded before the loop, those of i - 1, which may not exist, in theirs.
    assert list(loads(task.body)) == [0, 0, 1, 2]
    for t, n in ((0, 2), (1, 0)):
        x.from_numpy(start)
        y.fill(0)
        run(t, n)
        now, added = start.copy(), np.zeros(N)
        for i in range(N - 1):
            now[t + 1, i] = start[t, i + 1].sum() + 39
            added[i] = 3 * start[t, i - 1, :n].sum() if i > 0 else 0.0
        np.testing.assert_allclose(x.to_numpy(), now, rtol=1e-14)
        np.testing.assert_allclose(y.to_numpy()[t, :, 0], added, rtol=1e-13, atol=1e-14)


def test_the_adjoint_of_an_unrolled_layer_adds_to_each_input_once(cpu, quick_code):
    w, x = ds.field(ds.f64, shape=(3, 4)), ds.field(ds.f64, shape=(N, 4), needs_grad=True)
    y = ds.field(ds.f64, shape=(N, 3), needs_grad=True)

    @ds.kernel
    def layer():
        for i in range(N):
            for j in ds.static(range(3)):
                for k in ds.static(range(4)):
                    y[i, j] += w[j, k] * x[i, k]

    weights = INITIAL[:3]
    w.from_numpy(weights)
    layer()
    adjoint = pipeline.run(layer._only(()).derivative.ir, pipeline.LOWER, "scalar_replacement")
    every = [s for task in adjoint.tasks for s in statements(task.body)]
    stores = [s for s in every if isinstance(s, Store) and s.mem.name == "x.grad"]
    assert len(stores) == 4
    y.grad.from_numpy(INITIAL[:, :3])
    layer.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), INITIAL[:, :3] @ weights)


def test_a_random_program():
    seed = 3
    assert repeated.verdict(repeated.make(seed), seed) == "right"


def test_additions_that_other_lanes_may_meet_are_one(cpu, quick_code):
    """Additions to elements of a gradient that a table chooses, and functions that the adjoint repeats."""
    x, y = (
        ds.field(ds.f64, shape=(N, 4), needs_grad=True),
        ds.field(ds.f64, shape=N, needs_grad=True),
    )
    at = ds.field(ds.i32, shape=N)

    @ds.kernel
    def run():
        for i in range(N):
            k, m = at[i], at[N - 1 - i]
            y[i] = x[k, 0] * x[m, 0] * x[k, 0] + x[m, 0] * ds.sin(x[k, 1]) * ds.cos(x[k, 1])

    x.from_numpy(INITIAL / 8)
    at.from_numpy(TABLE.astype("i4"))
    run()
    y.grad.from_numpy(np.arange(1.0, N + 1))
    run.grad()
    a, b = INITIAL[TABLE] / 8, INITIAL[TABLE[::-1]] / 8
    up, expected = np.arange(1.0, N + 1), np.zeros((N, 4))
    np.add.at(expected, (TABLE, 0), up * 2 * a[:, 0] * b[:, 0])
    np.add.at(expected, (TABLE[::-1], 0), up * (a[:, 0] ** 2 + np.sin(2 * a[:, 1]) / 2))
    np.add.at(expected, (TABLE, 1), up * b[:, 0] * np.cos(2 * a[:, 1]))
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-13)

    made = pipeline.run(run._only(()).derivative.ir, pipeline.LOWER)
    every = [s for task in made.tasks for s in statements(task.body)]
    assert sum(isinstance(s, Atomic) and s.mem.name == "x.grad" for s in every) == 3
    assert sum(isinstance(s, Let) and s.op.name in ("sin", "cos") for s in every) == 2


def test_additions_stay_on_their_side_of_what_reads_them(cpu, quick_code):
    """A kernel that adds to a gradient itself, loads from it, and adds again."""
    x, at = ds.field(ds.f64, shape=N, needs_grad=True), ds.field(ds.i32, shape=N)
    y, grad = ds.field(ds.f64, shape=N), x.grad
    at.from_numpy(np.arange(N, dtype="i4")[::-1].copy())

    @ds.kernel
    def run():
        for i in range(N):
            k = at[i]
            grad[k] += 1.0
            y[i] = grad[k] + 0.0 * x[i]
            grad[k] += 2.0

    run()
    np.testing.assert_array_equal(y.to_numpy(), np.ones(N))
    np.testing.assert_array_equal(grad.to_numpy(), np.full(N, 3.0))
