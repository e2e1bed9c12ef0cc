"""Without AVX-512, what additions behind a branch have accessed is loaded before it; NumPy."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.record.kept_conditions import known_keeping
from diffsim.ir.nodes import If, Load, Store
from diffsim.passes import pipeline
from diffsim.runtime import compiler
from diffsim.runtime.session import session
from tests.support.vectors import narrow


@pytest.fixture(autouse=True)
def short_vectors(monkeypatch):
    monkeypatch.setattr(session, "_jit", narrow())
    ds.init(arch=ds.cpu, offline_cache=False, default_fp=ds.f64)


def order(kernel, bits=256):
    """What the adjoint in place does to gradients, in order, and in how many branches."""
    stages = pipeline.lower(debug=False, deterministic=False, vector_bits=bits)
    adjoint = pipeline.run(kernel._only(()).in_place.derivative.ir, stages, "forward_clears")
    found = []

    def visit(block, depth):
        for s in block.stmts:
            if isinstance(s, If):
                visit(s.then, depth + 1)
                visit(s.orelse, depth + 1)
            elif isinstance(s, (Load, Store)) and s.mem.is_grad:
                found.append((type(s).__name__, depth))

    for task in adjoint.tasks:
        visit(task.body, 0)
    return found


def gradient(kernel, start, weights, *args):
    """Of the weighted sum of what a kernel makes of `start`, in y."""
    x, y = (ds.field(ds.f64, shape=start.shape, needs_grad=True) for _ in "xy")
    w, loss = ds.field(ds.f64, shape=start.shape), ds.field(ds.f64, shape=(), needs_grad=True)
    x.from_numpy(start)
    w.from_numpy(weights)

    @ds.kernel
    def begin():
        for i in ds.grouped(x):
            y[i] = x[i]

    @ds.kernel
    def total():
        for i in ds.grouped(x):
            loss[None] += w[i] * y[i]

    run = kernel(y)
    with ds.Tape(loss, in_place="save"):
        begin()
        run(*args)
        total()
    return run, x.grad.to_numpy()


def rectifier(y):
    @ds.kernel
    def run():
        for i in y:
            a = y[i]
            if a < 0.5:
                y[i] = 0.25 * a

    return run


@pytest.mark.parametrize("n", [8, 61, 1000])
def test_a_rectifier_in_place(n):
    random = np.random.default_rng(n)
    start, weights = random.uniform(0, 1, n), random.standard_normal(n)
    run, found = gradient(rectifier, start, weights)
    assert found.tolist() == np.where(start < 0.5, 0.25 * weights, weights).tolist()
    assert order(run) == [("Load", 0), ("Store", 1)]
    assert order(run, 512) == [("Load", 1), ("Store", 1)]


def rows(y):
    """Whether y[i, k] is what y[i, j] was set to is known when it runs."""

    @ds.kernel
    def run(j: ds.i32, k: ds.i32):
        for i in range(64):
            a, b = y[i, j], y[i, k]
            if a > 0.5 * b:
                y[i, j] = 2.0 * b
                y[i, k] = 3.0 * a

    return run


@pytest.mark.parametrize("k", [0, 2])
def test_a_load_stays_behind_what_may_write_its_element(k):
    random = np.random.default_rng(k)
    start, weights = random.uniform(0, 1, (64, 3)), random.standard_normal((64, 3))
    run, found = gradient(rows, start, weights, 0, k)
    taken = start[:, 0] > 0.5 * start[:, k]
    expected = weights.copy()
    if k == 0:
        expected[taken, 0] *= 3
    else:
        expected[taken, 0] = 3 * weights[taken, k]
        expected[taken, k] = 2 * weights[taken, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    loads = [depth for what, depth in order(run) if what == "Load"]
    assert loads == [0, 1]


def guarded(y):
    z = ds.field(ds.f64, shape=8, needs_grad=True)

    @ds.kernel
    def run(least: ds.f64, first: ds.i32):
        for i in range(8):
            a = y[i]
            if a > least:
                y[i] = 2.0 * a
                z[i + first] *= 3.0

    return run


@pytest.mark.parametrize(("least", "first"), [(0.5, 0), (2.0, 1 << 30)])
def test_elements_that_lanes_access_on_one_side_alone_may_not_exist(least, first):
    random = np.random.default_rng(3)
    start, weights = random.uniform(0, 1, 8), random.standard_normal(8)
    run, found = gradient(guarded, start, weights, least, first)
    assert found.tolist() == np.where(start > least, 2 * weights, weights).tolist()
    assert order(run) == [("Load", 0), ("Load", 1), ("Store", 1), ("Store", 1)]


def test_pairs_exchange_gradients_without_slow_stores():
    """Kept conditions decide, so that nothing of the state is loaded (docs/adr/0115)."""

    def stage(y):
        @ds.kernel
        def run(j: ds.i32):
            for i in y:
                o = i ^ j
                if o > i:
                    a, b = y[i], y[o]
                    if a > b:
                        y[i] = b
                        y[o] = a

        return run

    for j in (1, 2, 8, 32):
        random = np.random.default_rng(j)
        start, weights = random.uniform(0, 1, 256), random.standard_normal(256)
        run, found = gradient(stage, start, weights, j)
        other = np.arange(256) ^ j
        low = np.minimum(np.arange(256), other)
        swapped = start[low] > start[low ^ j]
        assert found.tolist() == np.where(swapped, weights[other], weights).tolist()
    keeping = known_keeping(run._only(()))
    assert keeping is not None
    text = compiler.llvm_text(keeping.derivative.ir)
    assert "masked.load.v4i8" not in text
    assert "masked.load.v8i8" not in text
