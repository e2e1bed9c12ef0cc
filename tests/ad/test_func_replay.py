"""What stands in for a func where an adjoint needs its result again: `@ds.func_replay`."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)


def test_a_counter_is_read_again_and_not_counted_again():
    """Each lane takes a slot; the adjoint must find the same one."""
    n = 20
    x, packed, weight, loss = field(n), field(n), field(n, grad=False), field()
    count, slots = ds.field(ds.i32, shape=()), ds.field(ds.i32, shape=n)
    x.from_numpy(numbers(n))
    weight.from_numpy(numbers(n, seed=1))

    @ds.func
    def take(i):
        k = ds.atomic_add(count[None], 1)
        slots[i] = k
        return k

    @ds.kernel
    def lost():
        for i in x:
            k = take(i)
            loss[None] += x[i] * x[i] * weight[k]

    # Without a replay the kernel notes what the atomic returned, for each of its iterations.
    with ds.Tape(loss):
        lost()
    expected = 2 * x.to_numpy() * weight.to_numpy()[slots.to_numpy()]
    np.testing.assert_allclose(x.grad.to_numpy(), expected)

    @ds.func_replay(take)
    def retake(i):
        return slots[i]

    @ds.kernel
    def pack():
        for i in x:
            k = take(i)
            packed[k] = 1.0
            loss[None] += x[i] * x[i] * weight[k]

    packed.fill(0.0)
    count[None] = 0
    with ds.Tape(loss):
        lost()
    assert count[None] == n
    expected = 2 * x.to_numpy() * weight.to_numpy()[slots.to_numpy()]
    np.testing.assert_allclose(x.grad.to_numpy(), expected)
    x.grad.fill(0.0)
    loss.grad[None] = 1.0
    lost.grad()
    assert count[None] == n
    np.testing.assert_allclose(x.grad.to_numpy(), expected)

    @ds.kernel
    def forget():
        for i in slots:
            slots[i] = 0

    count[None] = 0
    with pytest.raises(ds.GlobalDataAccessError, match="needs slots as it was"):
        with ds.Tape(loss):
            lost()
            forget()
    count[None] = 0
    with ds.Tape(loss, in_place="save"):
        lost()
        forget()
    assert count[None] == n


def test_derivatives_go_through_the_body():
    """Without a gradient of its own the body is differentiated; values come from the replay."""
    x, kept, loss = field(4), field(8, grad=False), field()
    x.from_numpy(numbers(4))

    @ds.func
    def grow(a, i):
        s = a
        for k in range(3):
            s = s * s + a
        kept[i] = s
        return s

    @ds.func_replay(grow)
    def regrow(a, i):
        return kept[i]

    @ds.kernel
    def run():
        for i in x:
            b = grow(x[i], i)
            loss[None] += b * b * x[i]
            if x[i] > 0.0:
                loss[None] += grow(x[i], i + 4) ** 2

    check(run, loss, x)


def test_with_a_gradient():
    x, kept, loss = field(4), field(4, grad=False), field()
    x.from_numpy(numbers(4, lo=0.5, hi=2.0))

    @ds.func
    def root(a, i):
        s = a
        for _ in range(40):
            s = 0.5 * (s + a / s)
        kept[i] = ds.stop_grad(s)
        return s

    @ds.func_replay(root)
    def reroot(a, i):
        return kept[i]

    @ds.func_grad(root)
    def adj_root(a, i, s, g):
        ds.adjoint[a] += g / (2.0 * s)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += root(x[i], i) ** 3

    check(run, loss, x)
    assert "for %" not in run.grad.ir()  # the iteration is not run again


def test_across_tasks_of_a_kernel():
    """The adjoint makes temporaries again, by the replay."""
    x, loss, total = field(4), field(), field((), grad=False)
    count = ds.field(ds.i32, shape=())
    x.from_numpy(numbers(4))

    @ds.func
    def number():
        k = ds.atomic_add(count[None], 1) + 1
        total[None] = ds.cast(k, ds.f64)
        return ds.cast(k, ds.f64)

    @ds.func_replay(number)
    def renumber():
        return total[None]

    @ds.kernel
    def run():
        k = number()
        for i in x:
            loss[None] += k * x[i] ** 2

    for turn in range(1, 4):
        with ds.Tape(loss):
            run()
        assert count[None] == turn
        np.testing.assert_allclose(x.grad.to_numpy(), turn * 2 * x.to_numpy())
