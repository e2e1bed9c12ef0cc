"""Gradients that are taken and given back stay where they are."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Atomic, Load, Store
from diffsim.ir.traversal import statements
from diffsim.passes import pipeline
from tests.fuzz import clears
from tests.support.source import make


def order(kernel, upto="forward_clears"):
    """What the adjoint does to gradients, in order."""
    adjoint = pipeline.run(kernel._only(()).derivative.ir, pipeline.LOWER, upto)
    words = {Load: "load", Store: "store", Atomic: "add"}
    return [
        f"{words[type(s)]} {s.mem.name}"
        for task in adjoint.tasks
        for s in statements(task.body)
        if isinstance(s, (Load, Store, Atomic)) and s.mem.is_grad
    ]


def fields(n=2, **more):
    return [ds.field(ds.f64, shape=8, needs_grad=True, **more) for _ in range(n)]


def test_what_is_given_back_whole_is_not_touched(cpu):
    x, y = fields()

    @ds.kernel
    def saxpy(a: ds.f64):
        for i in x:
            y[i] = a * x[i] + y[i]

    saxpy(3.0)
    assert order(saxpy) == ["load y.grad", "add x.grad"]
    y.grad.fill(2.0)
    x.grad.fill(1.0)
    saxpy.grad(3.0)
    assert (y.grad.to_numpy() == 2.0).all()
    assert (x.grad.to_numpy() == 7.0).all()


def test_what_is_given_back_in_part_is_stored(cpu):
    x, y = fields()

    @ds.kernel
    def decay(a: ds.f64):
        for i in x:
            y[i] = 0.5 * y[i] + a * x[i]

    decay(3.0)
    assert sorted(order(decay)) == ["add x.grad", "load y.grad", "store y.grad"]
    y.grad.fill(2.0)
    decay.grad(3.0)
    assert (y.grad.to_numpy() == 1.0).all()
    assert (x.grad.to_numpy() == 6.0).all()


def test_what_is_given_back_twice_is_added(cpu):
    x, y = fields()

    @ds.kernel
    def triple():
        for i in y:
            y[i] = y[i] + 2.0 * y[i] + x[i]

    triple()
    y.grad.fill(2.0)
    triple.grad()
    assert (y.grad.to_numpy() == 6.0).all()
    assert (x.grad.to_numpy() == 2.0).all()


def test_another_element_is_not_given_back(cpu):
    (y,) = fields(1)

    @ds.kernel
    def shift():
        for i in range(4):
            y[i] = y[i + 4] + 1.0

    shift()
    y.grad.from_numpy(np.arange(8.0))
    shift.grad()
    assert y.grad.to_numpy().tolist() == [0, 0, 0, 0, 4, 6, 8, 10]


@pytest.mark.parametrize("same", [True, False])
def test_an_index_that_may_be_the_same_is_in_the_way(cpu, same):
    """y[j] with a j that only the launch knows: its gradient must find y[k]'s cleared, or not."""
    x, y = fields()

    @ds.kernel
    def swap(j: ds.i32, k: ds.i32):
        for _ in range(1):
            y[j] = x[0]
            y[k] = 3.0 * y[k] + x[1]

    j, k = 2, 2 if same else 5
    y.grad.from_numpy(np.arange(8.0) + 1)
    swap(j, k)
    swap.grad(j, k)
    # y[k] = 3 x0 + x1 if j == k; else y[j] = x0 and y[k] = 3 y[k] + x1
    g = np.arange(8.0) + 1
    expected_x = [3 * g[k], g[k]] if same else [g[j], g[k]]
    left = g.copy()
    left[j] = 0.0
    if not same:
        left[k] = 3 * g[k]
    assert x.grad.to_numpy()[:2].tolist() == expected_x
    assert y.grad.to_numpy().tolist() == left.tolist()


def test_vectors_component_by_component(cpu):
    v = ds.Vector.field(3, ds.f64, shape=4, needs_grad=True)
    f = ds.Vector.field(3, ds.f64, shape=4, needs_grad=True)

    @ds.kernel
    def kick(dt: ds.f64):
        for i in v:
            v[i] += dt * f[i]
            v[i][1] *= 2.0

    kick(0.5)
    v.grad.fill(1.0)
    kick.grad(0.5)
    assert v.grad.to_numpy().tolist() == [[1.0, 2.0, 1.0]] * 4
    assert f.grad.to_numpy().tolist() == [[0.5, 1.0, 0.5]] * 4


def test_values_keep_the_sign_of_a_zero(cpu):
    """Only gradients are treated so: a value of the user's may be divided by."""
    x, y = fields()

    @ds.kernel
    def run():
        for i in x:
            y[i] = 0.0
            y[i] += x[i]

    x.fill(-0.0)
    run()
    assert not np.signbit(y.to_numpy()).any()


@pytest.mark.parametrize("cast", ["ds.i8(k)", "k + ds.u8(100)"])
def test_indices_of_few_bits_are_other_places(cpu, cast):
    """In eight bits 200 + 100 is 44, and 200 with a sign -56: neither is 300 with 100 more."""
    y = ds.field(ds.f64, shape=400, needs_grad=True)
    small = ds.field(ds.u8, shape=1)
    small[0] = 200
    space = {"ds": ds, "y": y, "small": small}
    shift = 100 if "i8" in cast else 0
    make(
        "@ds.kernel\ndef move():\n    k = small[0]\n"
        f"    y[ds.i32({cast}) + {shift}] = 2.0 * y[ds.i32(k) + 100]\n",
        space,
    )
    y[300] = 1.0
    space["move"]()
    assert y[44] == 2.0
    y.grad.from_numpy(np.arange(400.0))
    space["move"].grad()
    expected = np.arange(400.0)
    expected[44], expected[300] = 0.0, 300.0 + 2 * 44.0
    assert y.grad.to_numpy().tolist() == expected.tolist()


def test_an_exchange_is_an_exchange_of_gradients(cpu):
    """Lanes own pairs; what they give back is stored in the branch, under one condition with the loads."""
    keys, y = fields()

    @ds.kernel
    def stage(j: ds.i32):
        for i in range(8):
            o = i ^ j
            if o > i:
                a, b = y[i], y[o]
                if keys[i] > keys[o]:
                    y[i] = b
                    y[o] = a

    start = np.array([5.0, 1, 2, 8, 4, 3, 7, 6])
    keys.from_numpy(start)
    stage(2)
    y.grad.from_numpy(np.arange(8.0))
    assert order(stage) == ["load y.grad", "load y.grad", "store y.grad", "store y.grad"]
    stage.grad(2)
    swapped = (0, 2), (4, 6), (1, 3), (5, 7)
    expected = np.arange(8.0)
    for a, b in swapped:
        if start[a] > start[b]:
            expected[[a, b]] = expected[[b, a]]
    assert y.grad.to_numpy().tolist() == expected.tolist()


@pytest.mark.parametrize("k", [2, 5])
def test_what_may_be_the_same_stays_apart_in_branches(cpu, k):
    """y[j] and y[k], which no condition tells apart: one loads what the other has cleared, or not."""
    x, y = fields()

    @ds.kernel
    def swap(j: ds.i32, k: ds.i32):
        for _ in range(1):
            if x[0] > 0.5:
                y[j] = y[k]
                y[k] = 3.0 * y[j]

    def run(start):
        z = start.copy()
        z[2] = z[k]
        z[k] = 3 * z[2]
        return z

    x.fill(1.0)
    y.fill(1.0)
    y.grad.from_numpy(np.arange(8.0) + 1)
    swap(2, k)
    swap.grad(2, k)
    slopes = np.stack([run(e) for e in np.eye(8)]) @ (np.arange(8.0) + 1)
    assert y.grad.to_numpy().tolist() == slopes.tolist()


def test_an_addition_in_between_stays_behind_what_it_finds(cpu):
    """The load between the branch and the addition must not see what is added later."""
    x, y = fields()

    @ds.kernel
    def run():
        for i in y:
            a = y[i]
            if x[i] > 1.5:
                y[i] = 2.0 * a
            y[i] = y[i] * y[i] + a

    start = np.array([1.0, 2.0, 3.0, 0.5, 1.0, 2.0, 3.0, 0.5])
    weights = np.arange(8.0)
    x.from_numpy(np.where(weights % 2, 2.0, 1.0))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    z = ds.field(ds.f64, shape=8, needs_grad=True)
    z.from_numpy(start)

    @ds.kernel
    def begin():
        for i in y:
            y[i] = z[i]

    @ds.kernel
    def total():
        for i in y:
            loss[None] += i * y[i]

    with ds.Tape(loss, in_place="save"):
        begin()
        run()
        total()
    factor = np.where(weights % 2, 2.0, 1.0)
    np.testing.assert_allclose(z.grad.to_numpy(), weights * (2 * factor**2 * start + 1), rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_random_kernels(seed):
    """Loads, clears and additions in any order; `make fuzz` makes as many as there is time for."""
    text = clears.make(seed)
    assert clears.verdict(text, seed) == "right", text
