"""Loads of far-apart elements made from copies in another order, against NumPy in f64."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.forms import loop_order
from tests.support.lowered import lower


def packed(kernel, *args):
    """The memories that lanes load from in another order, and how many leading indices are given."""
    tasks = lower(kernel._only(args).ir).tasks
    return [(p.mem.name, len(p.prefix)) for t in tasks for p in t.packed]


def random(shape, seed):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_change_between_launches(threads):
    """The copy is of the numbers as a launch finds them; lanes are no multiple of a register."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    n, outputs, inputs, layers = 90, 37, 19, 3
    w = ds.field(ds.f64, shape=(layers, outputs, inputs))
    x, y = ds.field(ds.f64, shape=(n, inputs)), ds.field(ds.f64, shape=(n, outputs))

    @ds.kernel
    def layer(which: ds.i32):
        for i, j in y:
            total = 0.0
            for k in range(inputs):
                if 0 <= which < layers:
                    total += w[which, j, k] * x[i, k]
            y[i, j] = total

    b = random((n, inputs), 1)
    x.from_numpy(b)
    for seed in (2, 3):
        a = random((layers, outputs, inputs), seed)
        w.from_numpy(a)
        for which in (0, 2):
            layer(which)
            np.testing.assert_allclose(y.to_numpy(), b @ a[which].T, rtol=1e-12, atol=1e-12)
    assert packed(layer, 0) == [("w", 1)]
    for outside in (-1, layers, 2**30):  # no load is made, and nothing outside w is copied
        layer(outside)
        assert not y.to_numpy().any()


def test_vectors_integers_and_booleans(monkeypatch):
    monkeypatch.setattr(loop_order, "_CACHE", -1)  # with the lanes along i nothing is packed
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, columns, rows = 40, 33, 17
    v = ds.Vector.field(2, ds.f64, shape=(columns, rows))
    keep, number = ds.field(ds.u1, shape=(columns, rows)), ds.field(ds.i32, shape=(columns, rows))
    y = ds.Vector.field(2, ds.f64, shape=(n, columns))

    @ds.kernel
    def add_up():
        for i, j in y:
            total = ds.Vector([0.0, 0.0])
            for k in range(rows):
                if keep[j, k]:
                    total += v[j, k] * (number[j, k] + i)
            y[i, j] = total

    a, b, c = (
        random((columns, rows, 2), 1),
        random((columns, rows), 2) > 0,
        np.arange(columns * rows),
    )
    v.from_numpy(a)
    keep.from_numpy(b)
    number.from_numpy(c.reshape(columns, rows).astype(np.int32))
    add_up()
    assert {name for name, _ in packed(add_up)} == {"v", "keep", "number"}
    factor = b * (c.reshape(columns, rows) + np.arange(n)[:, None, None])
    np.testing.assert_allclose(y.to_numpy(), np.einsum("ijk,jkc->ijc", factor, a), rtol=1e-12)


def test_what_the_task_writes_is_not_copied():
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, size = 33, 21
    w, x = ds.field(ds.f64, shape=(size, size)), ds.field(ds.f64, shape=(n, size))

    @ds.kernel
    def sweep():
        for i, j in ds.ndrange(n, size):
            total = 0.0
            for k in range(size):
                total += w[j, k] * 0.5
            w[j, (i * 0) + j] += total * 0.0
            x[i, j] = total

    sweep()
    assert not packed(sweep)


def test_a_few_lanes_copy_nothing():
    ds.init(arch=ds.cpu)
    w, x = ds.field(ds.f32, shape=(64, 64)), ds.field(ds.f32, shape=(3, 64))

    @ds.kernel
    def layer():
        for i, j in x:
            total = 0.0
            for k in range(64):
                total += w[j, k]
            x[i, j] = total

    layer()
    assert not packed(layer)
