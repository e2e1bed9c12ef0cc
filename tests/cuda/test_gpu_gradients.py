"""Gradients on a real GPU: tapes, checkpoints, replays and values that loops save."""

import gc
import warnings

import numpy as np
import pytest

from tests.cuda.real import device, real, share_until_return, slow_kernel

pytestmark = pytest.mark.gpu


def test_a_gradient(gpu):
    ds = gpu
    n = 5000
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    values = np.random.default_rng(2).normal(size=n)
    x.from_numpy(values)

    @ds.kernel
    def compute():
        for i in x:
            loss[None] += ds.sin(x[i]) * x[(i + 1) % n]

    with ds.Tape(loss):
        compute()
    np.testing.assert_allclose(loss[None], (np.sin(values) * np.roll(values, -1)).sum(), rtol=1e-10)
    expected = np.cos(values) * np.roll(values, -1) + np.roll(np.sin(values), 1)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 7])
def test_in_place_and_checkpointed_steps(gpu, steps):
    """x' = x + h sin(x), repeated in place: dx_n/dx_0 is the product of 1 + h cos(x_k)."""
    ds = gpu
    n, h = 257, 0.3
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    start = np.linspace(-2, 2, n)

    @ds.kernel
    def step():
        for i in x:
            x[i] += h * ds.sin(x[i])

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    state, slope = start.copy(), np.ones(n)
    for _ in range(steps):
        slope *= 1 + h * np.cos(state)
        state += h * np.sin(state)
    x.from_numpy(start)
    with ds.Tape(loss, in_place="save"):
        for _ in range(steps):
            step()
        measure()
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
    np.testing.assert_allclose(x.to_numpy(), state, rtol=1e-13)
    x.from_numpy(start)
    with ds.Tape(loss):
        ds.ad.checkpoint(lambda t: step(), steps, [x], snapshots=2)
        measure()
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_saved_values_of_loops(gpu, size):
    """A loop with a trip count from memory saves its values; also with little room for them."""
    ds = gpu
    n = 3000
    ds.init(arch=ds.cuda, device_scratch_size=size)
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    trips = ds.field(ds.i32, shape=n)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def compute():
        for i in x:
            v = x[i]
            for _ in range(trips[i]):
                v = v + 0.1 * ds.sin(v)
            loss[None] += v

    values, counts = np.linspace(-1, 1, n), np.arange(n) % 90
    x.from_numpy(values)
    trips.from_numpy(counts.astype(np.int32))
    with ds.Tape(loss):
        compute()
    slope, v = np.ones(n), values.copy()
    for k in range(90):
        on = counts > k
        slope[on] *= 1 + 0.1 * np.cos(v[on])
        v[on] += 0.1 * np.sin(v[on])
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-11)


# ---- replays


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_a_replay_is_the_record_made_anew(gpu, in_place):
    """A spring's rollout with other stiffnesses; the last bits are those of the order of sums."""
    ds = gpu
    n, steps = 300, 400
    x = ds.field(ds.f64, shape=(steps + 1, n), needs_grad=True)
    v, work, kick = (ds.field(ds.f64, shape=n, needs_grad=True) for _ in range(3))
    stiffness, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
    hand = ds.Vector.field(2, ds.f64, shape=(3, n), needs_grad=True, layout=ds.Layout.SOA)

    @ds.kernel
    def push(h: ds.f64):
        for i in v:
            v[i] = v[i] + h * kick[i]

    @ds.kernel
    def step(t: ds.i32, h: ds.f64):
        for i in range(n):
            x[t + 1, i] = x[t, i] + h * (v[i] - h * stiffness[None] * ds.sin(x[t, i]))

    @ds.kernel
    def turn(t: ds.i32):
        for i in range(n):
            hand[t, i] = hand[t, i] * ds.cos(x[t, i])

    @ds.kernel
    def measure():
        for i in range(n):
            loss[None] += (x[steps, i] - 0.3) ** 2 / n + hand[1, i].dot(hand[1, i]) + work[i] * v[i]

    def program():
        push(0.5)
        if in_place == "save":
            turn(1)
            hand[2, 5] = [1.0, 2.0]
        for t in range(steps):
            step(t, 0.02)
        if in_place == "save":
            turn(1)
        work.copy_from(kick)
        measure()

    def start(seed):
        random = np.random.default_rng(seed)
        for f in (x, v, work, kick, hand):
            f.from_numpy(random.uniform(-1, 1, f.shape + f.element))
        stiffness[None] = 1.0 + seed

    fields = (x, v, work, kick, hand, stiffness, loss)

    def made():
        return [f.to_numpy() for f in fields] + [f.grad.to_numpy() for f in fields]

    tape = ds.Tape(loss, in_place=in_place)
    start(0)
    with tape:
        program()
    for seed in range(1, 4):
        start(seed)
        with ds.Tape(loss, in_place=in_place):
            program()
        expected = made()
        assert np.abs(expected[-2]) > 0
        start(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tape.replay()
            tape.backward()
        for found, one in zip(made(), expected, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-11, atol=1e-13)


def test_many_replays_take_no_more_memory(gpu, monkeypatch):
    """And wait for nothing: the allocations of the first are all there are."""
    ds = gpu
    x = ds.field(ds.f32, shape=1000, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def step():
        for i in x:
            x[i] = ds.sin(x[i]) + 0.5

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    def train(tape, epochs):
        for _ in range(epochs):
            x.fill(1.0)
            tape.replay()
            tape.backward()
        ds.sync()

    x.fill(1.0)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        for _ in range(20):
            step()
        measure()
    train(tape, 5)
    gc.collect()  # what tests before this one have left
    before = device()._spare_bytes, x.grad[77]
    taken = []
    alloc = device().alloc
    monkeypatch.setattr(device(), "alloc", lambda *of: taken.append(of) or alloc(*of))
    train(tape, 100)
    assert taken == []
    assert (device()._spare_bytes, x.grad[77]) == before
    value, slope = 1.0, 1.0
    for _ in range(20):
        value, slope = np.sin(value) + 0.5, slope * np.cos(value)
    assert x.grad[77] == pytest.approx(slope, rel=1e-4)
    assert x[77] == pytest.approx(value, rel=1e-6)


@real
def test_a_replay_is_not_waited_for(gpu):
    ds = gpu
    slow = slow_kernel(ds, ds.field(ds.f32, shape=64))
    tape = ds.Tape()
    with tape:
        for _ in range(10):
            slow(300_000)
    tape.replay()
    assert share_until_return(ds, tape.replay) < 0.2


@real
def test_what_can_not_be_a_graph_goes_one_by_one(gpu, monkeypatch):
    """A capture that fails in its middle leaves the process and the device usable."""
    ds = gpu
    x, loss = ds.field(ds.f32, 3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    x.fill(2)
    with ds.Tape(loss) as tape:
        measure()
    from diffsim.runtime.cuda import command_list

    enqueue = command_list.CudaCommandList._enqueue

    def spoiled(self, driver):
        enqueue(self, driver)
        driver._call("cuStreamSynchronize", driver.stream)  # not allowed here

    with monkeypatch.context() as patch:
        patch.setattr(command_list.CudaCommandList, "_enqueue", spoiled)
        device()._warned = False
        with pytest.warns(RuntimeWarning, match="one by one"):
            tape.replay()
        tape.backward()
    assert x.grad.to_numpy().tolist() == [4, 4, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.fill(3)
        with ds.Tape(loss) as tape:
            measure()
        tape.replay()
        tape.backward()
    assert x.grad.to_numpy().tolist() == [6, 6, 6]
    assert loss[None] == 27
