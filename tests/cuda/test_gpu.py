"""On a real GPU: values and gradients, memory, errors, other libraries, threads."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.gpu
real = pytest.mark.gpu(real=True)  # not on a fake GPU


@pytest.fixture
def gpu():
    """diffsim, initialized for the GPU and reset afterwards."""
    import diffsim as ds

    ds.init(arch=ds.cuda)
    yield ds
    ds.reset()


def run(folder, text):
    """What a process of Python printed."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def device():
    from diffsim.runtime.session import session

    return session.device


# ---- values


@pytest.mark.parametrize("t", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"])
def test_every_type(gpu, t):
    ds = gpu
    dtype = getattr(ds, t)
    n = 10007
    x, y = ds.field(dtype, shape=n), ds.field(dtype, shape=n)
    values = (np.arange(n) % 101).astype(dtype.numpy)
    x.from_numpy(values)

    @ds.kernel
    def triple():
        for i in x:
            y[i] = x[i]
            if x[i] < 40:
                y[i] += 2 * x[i]

    triple()
    assert (y.to_numpy() == np.where(values < 40, 3 * values, values)).all()
    y.fill(7)
    assert (y.to_numpy() == 7).all()
    y[5] = 9
    assert (y[4], y[5], y[6]) == (7, 9, 7)


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_vectors_in_both_layouts(gpu, layout):
    ds = gpu
    x = ds.Vector.field(3, ds.f64, shape=(5, 4), layout=getattr(ds.Layout, layout))
    values = np.arange(60.0).reshape(5, 4, 3)
    x.from_numpy(values)
    assert (x.to_numpy() == values).all()
    x[2, 1] = [1, 2, 3]
    values[2, 1] = [1, 2, 3]
    assert (x.to_numpy() == values).all()
    assert x[2, 1].to_list() == [1, 2, 3]
    x.fill(ds.Vector([4.0, 5.0, 6.0]))
    assert (x.to_numpy() == [4, 5, 6]).all()

    @ds.kernel
    def turn():
        for i, j in x:
            x[i, j] = ds.Vector([x[i, j][1], x[i, j][2], i + 10.0 * j])

    turn()
    i, j = np.meshgrid(range(5), range(4), indexing="ij")
    expected = np.stack([np.full((5, 4), 5), np.full((5, 4), 6), i + 10 * j], axis=-1)
    assert (x.to_numpy() == expected).all()


@pytest.mark.parametrize("n", [1, 16, 32, 64, 96, 128, 512, 1024])
@pytest.mark.parametrize("deterministic", [False, True])
def test_blocks_of_every_size(gpu, n, deterministic):
    """Sums, additions to small fields, stencils and saved values, and their gradients."""
    ds = gpu
    ds.init(arch=ds.cuda, deterministic=deterministic)
    lanes, bins, turns = 20_011, 24, 140
    x, y, z = (ds.field(ds.f64, shape=lanes, needs_grad=True) for _ in range(3))
    some = ds.field(ds.f64, shape=bins, needs_grad=True)
    drive = ds.field(ds.f64, shape=turns, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel(simplicity="relaxed")
    def run(k: ds.i32):
        ds.loop_config(block_dim=n)
        for i in range(1, lanes - 1):
            y[i] = x[i - 1] * x[i + 1]
        ds.loop_config(block_dim=n)
        for i in y:
            a = y[i]
            for j in range(k):
                a = a + 0.01 * ds.sin(a) * drive[j]
            z[i] = a
        ds.loop_config(block_dim=n)
        for i in z:
            some[(7 * i) % bins] += z[i]
        ds.loop_config(block_dim=n)
        for i in z:
            loss[None] += z[i] ** 2
        for i in some:
            loss[None] += i * some[i]

    rng = np.random.default_rng(n)
    values, forces = rng.normal(size=lanes), rng.normal(size=turns)
    x.from_numpy(values)
    drive.from_numpy(forces)
    with ds.Tape(loss):
        run(turns)
    a = np.zeros(lanes)
    a[1:-1] = values[:-2] * values[2:]
    states = [a]
    for force in forces:
        states.append(states[-1] + 0.01 * np.sin(states[-1]) * force)
    end, places = states[-1], 7 * np.arange(lanes) % bins
    expected = (end**2).sum() + (np.arange(bins) * np.bincount(places, end, bins)).sum()
    np.testing.assert_allclose(loss[None], expected, rtol=1e-11)
    adjoint, gradient = 2 * end + places, np.zeros(turns)
    for j in reversed(range(turns)):
        gradient[j] = (adjoint * 0.01 * np.sin(states[j])).sum()
        adjoint = adjoint * (1 + 0.01 * np.cos(states[j]) * forces[j])
    exact = np.zeros(lanes)
    exact[:-2] += adjoint[1:-1] * values[2:]
    exact[2:] += adjoint[1:-1] * values[:-2]
    np.testing.assert_allclose(x.grad.to_numpy(), exact, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(drive.grad.to_numpy(), gradient, rtol=1e-9, atol=1e-9)


def test_sums_and_returned_values(gpu):
    ds = gpu
    n = 1 << 20
    x = ds.field(ds.f64, shape=n)
    values = np.random.default_rng(1).normal(size=n)
    x.from_numpy(values)

    @ds.kernel
    def total() -> ds.f64:
        s = ds.f64(0.0)
        for i in x:
            s += x[i]
        return s

    @ds.kernel
    def ends() -> ds.types.vector(2, ds.f64):
        return ds.Vector([x[0], x[n - 1]])

    for _ in range(3):
        assert abs(total() - values.sum()) < 1e-9 * n
    assert ends().to_list() == [values[0], values[-1]]


def test_bounds_from_fields_and_arguments(gpu):
    ds = gpu
    n = ds.field(ds.i32, shape=())
    hits = ds.field(ds.i32, shape=100)

    @ds.kernel
    def count(first: ds.i32):
        n[None] += 10
        for i in range(first, n[None]):
            hits[i] += 1

    for k in range(1, 6):
        count(5 * k)
    expected = np.zeros(100, int)
    for k in range(1, 6):
        expected[5 * k : 10 * k] += 1
    assert (hits.to_numpy() == expected).all()


def test_mathematics_is_numpys(gpu):
    ds = gpu
    n = 1000
    x, y = ds.field(ds.f64, shape=n), ds.field(ds.f64, shape=(8, n))
    values = np.linspace(0.1, 3, n)
    x.from_numpy(values)

    @ds.kernel
    def run():
        for i in x:
            y[0, i] = ds.sin(x[i])
            y[1, i] = ds.exp(x[i])
            y[2, i] = ds.log(x[i])
            y[3, i] = ds.sqrt(x[i])
            y[4, i] = ds.atan2(x[i], 2.0)
            y[5, i] = ds.tanh(x[i])
            y[6, i] = x[i] ** 2.5
            y[7, i] = x[i] // 0.7

    run()
    expected = [
        np.sin(values),
        np.exp(values),
        np.log(values),
        np.sqrt(values),
        np.arctan2(values, 2),
        np.tanh(values),
        values**2.5,
        values // 0.7,
    ]
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=4e-16 * 4)


def test_the_same_bits_in_every_run(gpu):
    """Sums, additions to shared elements and the adjoint's; with deterministic=True."""
    ds = gpu
    ds.init(arch=ds.cuda, deterministic=True)
    n = 30011
    x = ds.field(ds.f32, shape=n, needs_grad=True)
    w = ds.field(ds.f32, shape=5, needs_grad=True)
    bins = ds.field(ds.f32, shape=7, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    x.from_numpy(np.random.default_rng(1).normal(size=n).astype(np.float32))
    w.from_numpy(np.linspace(0.5, 2, 5).astype(np.float32))

    @ds.kernel
    def measure():
        for i in x:
            bins[i % 7] += w[i % 5] * ds.sin(x[i])
            loss[None] += w[i % 3] * x[i] * x[i]

    @ds.kernel
    def close():
        for k in bins:
            loss[None] += bins[k] ** 2

    found = set()
    for _ in range(50):
        bins.fill(0)
        with ds.Tape(loss):
            measure()
            close()
        parts = (bins, loss, x.grad, w.grad)
        found.add(b"".join(f.to_numpy().tobytes() for f in parts))
    assert len(found) == 1


# ---- gradients


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


def test_many_replays_take_no_more_memory(gpu):
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

    def train(tape, turns):
        for _ in range(turns):
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
    take = device().take
    device().take = lambda *of: taken.append(of) or take(*of)
    try:
        train(tape, 100)
    finally:
        del device().take
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
    x = ds.field(ds.f32, shape=64)

    @ds.kernel
    def slow(n: ds.i32):
        for i in x:
            for _ in range(n):
                x[i] = ds.sin(x[i]) + 1.0

    tape = ds.Tape()
    with tape:
        for _ in range(10):
            slow(300_000)
    tape.replay()
    ds.sync()
    start = time.perf_counter()
    tape.replay()
    launched = time.perf_counter() - start
    ds.sync()
    assert launched < 0.2 * (time.perf_counter() - start)


@real
def test_from_numpy_does_not_wait(gpu):
    ds = gpu
    x, y = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=1 << 20)
    given = np.full(1 << 20, 2, np.float32)

    @ds.kernel
    def slow(n: ds.i32):
        for i in x:
            for _ in range(n):
                x[i] = ds.sin(x[i]) + 1.0

    slow(1)
    for _ in range(4):  # as many slots as it uses
        y.from_numpy(given)
    ds.sync()
    start = time.perf_counter()
    slow(3_000_000)
    y.from_numpy(given)
    returned = time.perf_counter() - start
    given[...] = 0
    assert (y.to_numpy() == 2).all()
    assert returned < 0.2 * (time.perf_counter() - start)


@real
def test_ctrl_c_in_a_copy(tmp_path):
    out = run(
        tmp_path,
        """
        import os, signal, threading, time
        import numpy as np
        import diffsim as ds
        ds.init(arch=ds.cuda)
        n = 100_000_000
        x = ds.field(ds.i32, shape=n)
        a = np.arange(n, dtype=np.int32)
        b = -a
        x.from_numpy(a)
        stopped = 0
        for k in range(40):
            timer = threading.Timer(0.002 * (k % 20), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                x.from_numpy(b) if k < 20 else x.to_numpy()
                timer.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                stopped += 1
        x.from_numpy(a)
        print(stopped, np.array_equal(x.to_numpy(), a))
        """,
    )
    assert out == "40 True\n"


@real
def test_a_forked_child_is_told(tmp_path):
    out = run(
        tmp_path,
        """
        import os
        import numpy as np
        import diffsim as ds
        ds.init(arch=ds.cuda)
        x = ds.field(ds.i32, shape=1_000_000)
        a = np.zeros(1_000_000, np.int32)
        x.from_numpy(a)
        if os.fork() == 0:
            try:
                x.from_numpy(a)
            except Exception as problem:
                print("forked" in str(problem), flush=True)
            os._exit(0)
        print(os.wait()[1], x[5])
        """,
    )
    assert out == "True\n0 0\n"


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


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_saved_values_of_loops(gpu, size):
    """A loop with a number of turns from memory saves its values; also with little room for them."""
    ds = gpu
    n = 3000
    ds.init(arch=ds.cuda, device_scratch_size=size)
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    turns = ds.field(ds.i32, shape=n)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel(simplicity="relaxed")
    def compute():
        for i in x:
            v = x[i]
            for _ in range(turns[i]):
                v = v + 0.1 * ds.sin(v)
            loss[None] += v

    values, counts = np.linspace(-1, 1, n), np.arange(n) % 90
    x.from_numpy(values)
    turns.from_numpy(counts.astype(np.int32))
    with ds.Tape(loss):
        compute()
    slope, v = np.ones(n), values.copy()
    for k in range(90):
        on = counts > k
        slope[on] *= 1 + 0.1 * np.cos(v[on])
        v[on] += 0.1 * np.sin(v[on])
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-11)


# ---- arrays of NumPy and of other libraries


def test_numpy_arrays_are_copied_in_and_out(gpu):
    ds = gpu

    @ds.kernel
    def scale(x: ds.types.ndarray(), y: ds.types.ndarray(), a: ds.f32):
        for i, j in x:
            y[i, j] = a * x[i, j]

    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 4), np.float32)
    for a in (2, 3):
        scale(x, y, a)
        assert (y == a * x).all()


@pytest.mark.parametrize("nbytes", [1 << 16, (1 << 16) + 4, 1 << 22, (5 << 22) + 4, 100_000_004])
def test_arrays_of_all_sizes_are_copied(gpu, nbytes):
    ds = gpu
    n = nbytes // 4
    x = ds.field(ds.i32, shape=n)
    values = np.random.default_rng(nbytes).integers(-(2**31), 2**31, n).astype(np.int32)

    @ds.kernel
    def flip():
        for i in x:
            x[i] = -1 - x[i]

    for k in range(3):
        given = values + np.int32(k)
        x.from_numpy(given)
        given[...] = 0  # while the GPU still reads what was there
        flip()
        assert np.array_equal(x.to_numpy(), ~(values + np.int32(k)))


def test_threads_copy_at_the_same_time(gpu):
    ds = gpu
    n = 3_000_001
    found = []

    def work(k):
        x = ds.field(ds.i32, shape=n)
        for turn in range(5):
            given = np.arange(n, dtype=np.int32) * k + turn
            x.from_numpy(given)
            given[...] = 0
            found.append(np.array_equal(x.to_numpy(), np.arange(n, dtype=np.int32) * k + turn))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 20


@real
def test_pinned_tensors_may_change_after_a_copy(tmp_path):
    pytest.importorskip("torch")
    out = run(
        tmp_path,
        """
        import torch
        import diffsim as ds
        ds.init(arch=ds.cuda)
        right = []
        for n in (1, 1000, 100_000, 10_000_000):
            x = ds.field(ds.f32, shape=n)
            a = torch.full((n,), 3.0, pin_memory=True).numpy()
            for _ in range(20):
                a[...] = 3
                x.from_numpy(a)
                a[...] = 0
                right.append((x.to_numpy() == 3).all())
        print(all(right), len(right))
        """,
    )
    assert out == "True 80\n"


@real
def test_torch_beside_diffsim(tmp_path):
    """A thousand turns, both orders of the first use, two threads."""
    pytest.importorskip("torch")
    for first in ("torch", "diffsim"):
        out = run(
            tmp_path,
            f"""
            import threading
            import torch, diffsim as ds
            if {first == "torch"}:
                t = torch.zeros(1000, device="cuda")
            ds.init(arch=ds.cuda)
            x = ds.field(ds.f32, shape=1000)

            @ds.kernel
            def more(a: ds.f32):
                for i in x:
                    x[i] += a

            more(1.0)
            if {first == "diffsim"}:
                t = torch.zeros(1000, device="cuda")
            for k in range(1000):
                more(1.0)
                t += 1
            assert x[999] == 1001, x[999]
            assert float(t[999]) == 1000

            def other():
                for k in range(200):
                    more(1.0)
                    t.add_(1)
                torch.cuda.synchronize()
                assert t[3].item() >= 1200

            threads = [threading.Thread(target=other) for _ in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert x[7] == 1401, x[7]
            assert float(t.sum()) == 1400 * 1000
            print("ok")
            """,
        )
        assert out == "ok\n"


def test_another_thread(gpu):
    ds = gpu
    x = ds.field(ds.f32, shape=100)

    @ds.kernel
    def set_to(a: ds.f32):
        for i in x:
            x[i] = a

    found = []

    def work():
        set_to(3.0)
        found.append(x[50])
        y = ds.field(ds.i32, shape=7)
        y.fill(4)
        found.append(y[6])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [3, 4]
    set_to(5.0)
    assert x[99] == 5


# ---- memory


@real
@pytest.mark.memory
def test_memory_is_freed_with_its_field(gpu):
    """More in all than there is. (How much is free says nothing: other processes may use the GPU.)"""
    ds = gpu
    n = device().driver.memory // 100
    for k in range(150):
        x = ds.field(ds.u8, shape=n)
        x.fill(k % 7)
        if k % 10 == 0:
            assert x[n - 1] == k % 7
        del x


@real
@pytest.mark.memory
def test_more_than_2_to_the_31_elements(gpu):
    ds = gpu
    n = 2**31 + 16
    x = ds.field(ds.u8, shape=n)

    @ds.kernel
    def mark():
        for i in x:
            if i >= n - 3:
                x[i] = ds.cast(200 + (i - (n - 3)), ds.u8)

    mark()
    assert [x[n - k] for k in (4, 3, 2, 1)] == [0, 200, 201, 202]
    x[n - 1] = 9
    assert x[n - 1] == 9


@pytest.mark.memory
def test_no_memory_left(gpu):
    ds = gpu
    with pytest.raises(ds.FieldError, match=r"no memory for big .* GiB"):
        ds.field(ds.f64, shape=1 << 40, name="big")
    x = ds.field(ds.f32, shape=10)
    x.fill(2)
    assert x[9] == 2


# ---- errors


def test_debug_mode_names_field_index_and_line(gpu):
    ds = gpu
    ds.init(arch=ds.cuda, debug=True)
    x = ds.field(ds.f32, shape=100)

    @ds.kernel
    def outside(k: ds.i32):
        for i in x:
            if i == 42:
                x[i + k] = 1.0

    outside(1)
    with pytest.raises(ds.AccessError, match=r"142.*x") as caught:
        outside(100)
    assert "x[i + k] = 1.0" in str(caught.value)
    outside(2)
    assert x[43] == 1
    assert x[44] == 1


@real
def test_waiting_can_be_interrupted(tmp_path):
    out = run(
        tmp_path,
        """
        import os, signal, threading, time
        import diffsim as ds
        ds.init(arch=ds.cuda)
        x = ds.field(ds.f64, shape=64)

        @ds.kernel
        def long(n: ds.i32):
            for i in x:
                for _ in range(n):
                    x[i] = ds.sin(x[i]) + 1.0

        long(1)
        ds.sync()
        start = time.time()
        long(20_000_000)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ds.sync()
            print("done in", time.time() - start)
        except KeyboardInterrupt:
            print("interrupted", time.time() - start < 2)
        ds.sync()
        print(x[0] > 0)
        """,
    )
    assert out == "interrupted True\nTrue\n"


@real
def test_launches_do_not_wait(gpu):
    ds = gpu
    x = ds.field(ds.f32, shape=64)

    @ds.kernel
    def slow(n: ds.i32):
        for i in x:
            for _ in range(n):
                x[i] = ds.sin(x[i]) + 1.0

    slow(1)
    ds.sync()
    start = time.perf_counter()
    slow(3_000_000)
    launched = time.perf_counter() - start
    ds.sync()
    assert launched < 0.2 * (time.perf_counter() - start)


@real
def test_code_is_kept_on_disk(tmp_path):
    text = f"""
        import diffsim as ds
        from diffsim.backends.cuda.driver import Driver
        links = []
        link = Driver.link
        Driver.link = lambda self, ptx: links.append(1) or link(self, ptx)
        ds.init(arch=ds.cuda, offline_cache_file_path={str(tmp_path / "cache")!r})
        x = ds.field(ds.f32, shape=8)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = ds.sin(1.0 * i)

        fill()
        print(len(links), round(x[1], 4))
        """
    assert run(tmp_path, text) == "1 0.8415\n"
    assert run(tmp_path, text) == "0 0.8415\n"


# ---- the same memory in other libraries


def test_torch_sees_the_same_memory(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    x = ds.Vector.field(3, ds.f32, shape=(4, 5), layout=ds.Layout.SOA)
    views = torch.from_dlpack(x), torch.as_tensor(x, device="cuda")
    for k, t in enumerate(views):
        assert tuple(t.shape) == (4, 5, 3)
        t[2, 3, 1] = 7 + k
        assert x[2, 3].to_list() == [0, 7 + k, 0]
        x[0, 0] = [1, 2, 3 + k]
        assert t[0, 0].tolist() == [1, 2, 3 + k]
        assert t.data_ptr() == x.address
    del x
    gc.collect()
    assert views[0][2, 3, 1].item() == 8


def test_tensors_are_used_where_they_are(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    x = ds.field(ds.f32, shape=(300, 7))

    @ds.kernel
    def exchange(y: ds.types.ndarray()):
        for i, j in y:
            a = x[i, j]
            x[i, j] = y[i, j]
            y[i, j] = a + 1.0

    t = torch.arange(2100.0, device="cuda").reshape(300, 7)
    exchange(t)
    t += 1
    exchange(t)
    expected = np.arange(2100, dtype=np.float32).reshape(300, 7)
    assert (t.cpu().numpy() == expected + 1).all()
    assert (x.to_numpy() == 2).all()
    for wrong, message in (
        (t.T, "not contiguous"),
        (t.clone().requires_grad_(), "detach"),
        (t.cpu(), "not a torch|asarray|array"),
    ):
        with pytest.raises(ds.KernelTypeError, match=message):
            exchange(wrong)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        u = torch.full((300, 7), 3.0, device="cuda")
        for _ in range(100):
            u = u * 1.0
        stream.synchronize()
        exchange(u)
    assert (x.to_numpy() == 3).all()


def test_gradient_through_a_tensor_argument(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    n = 1000
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.fill(2)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    w = torch.arange(n, device="cuda", dtype=torch.float64)
    with ds.Tape(loss):
        measure(w)
        w.zero_()  # the tape has what it was
    assert (x.grad.to_numpy() == 4.0 * np.arange(n)).all()


def test_cupy_and_jax(gpu):
    ds = gpu
    x = ds.field(ds.f32, shape=10)
    x.fill(3)
    tried = 0
    for name in ("cupy", "jax.dlpack"):
        try:
            library = __import__(name, fromlist=["from_dlpack"])
        except ImportError:
            continue
        tried += 1
        assert float(library.from_dlpack(x).sum()) == 30
    if not tried:
        pytest.skip("neither is here")
