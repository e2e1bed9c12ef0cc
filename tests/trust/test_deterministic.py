"""`deterministic=True` on the CPU: the same bits in every run, on any number of threads.

What is expected of additions is what NumPy's `add.at` gives, which adds one number after the other.
"""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import chunks
from diffsim.backends.llvm import update_log
from diffsim.errors import OutOfMemoryError
from tests import shaken
from tests.fuzz import deterministic, wide
from tests.support.lowered import lower


def of(kernel, *args):
    """The order of the only task of a kernel."""
    (task,) = lower(kernel._only(args).ir).tasks
    return task.order


def network(threads, deterministic):
    """The gradient of 113 weights in 0-D fields, for 10,000 samples."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=deterministic)
    n, hidden = 10_000, 28
    random = np.random.default_rng(0)
    x, y = ds.Vector.field(2, ds.f32, shape=n), ds.field(ds.f32, shape=n)
    x.from_numpy(random.normal(size=(n, 2)).astype(np.float32))
    y.from_numpy(random.normal(size=n).astype(np.float32))
    weights = [
        ds.Matrix.field(hidden, 2, ds.f32, shape=(), needs_grad=True),
        ds.Vector.field(hidden, ds.f32, shape=(), needs_grad=True),
        ds.Vector.field(hidden, ds.f32, shape=(), needs_grad=True),
        ds.field(ds.f32, shape=(), needs_grad=True),
    ]
    inner, shift, outer, last = weights
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    for w in weights:
        w.from_numpy(random.normal(size=w.to_numpy().shape).astype(np.float32))

    @ds.kernel
    def predict():
        for i in x:
            a = ds.tanh(inner[None] @ x[i] + shift[None])
            loss[None] += (a.dot(outer[None]) + last[None] - y[i]) ** 2

    def gradient():
        with ds.Tape(loss):
            predict()
        return b"".join(w.grad.to_numpy().tobytes() for w in weights)

    return gradient


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_gradient_of_a_network(deterministic):
    gradient = network(2, deterministic)
    found = {gradient() for _ in range(50)}
    assert len(found) == 1
    if deterministic:
        assert found == {network(threads, deterministic)() for threads in (1, 3, 8)}


def scatter(shape, dtype, threads, additions, among=None, **options):
    """Additions to elements picked at random (`among` so many); how to run it, and what NumPy makes of it."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, **options)
    random = np.random.default_rng(1)
    size = int(np.prod(shape))
    places = random.integers(0, among or size, additions).astype(np.int32)
    values = random.normal(size=additions).astype(dtype.numpy)
    x = ds.field(dtype, shape=shape)
    where, extra = ds.field(ds.i32, shape=additions), ds.field(dtype, shape=additions)
    where.from_numpy(places)
    extra.from_numpy(values)
    last = shape[-1]

    @ds.kernel
    def add():
        for i in where:
            x[where[i] // last, where[i] % last] += extra[i]

    def run():
        x.fill(0)
        add()
        return x.to_numpy()

    want = np.zeros(size, dtype.numpy)
    np.add.at(want, places, values)
    return run, want.reshape(shape), add


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_scatter_into_a_large_field(threads, dtype):
    """The order is that of the lanes, so it is NumPy's."""
    run, want, add = scatter((1024, 2048), dtype, threads, 300_000, deterministic=True)
    assert of(add).logged
    for _ in range(5):
        assert run().tobytes() == want.tobytes()


def test_rounds(monkeypatch):
    """A long loop notes its updates in rounds; a chunk may note more than was estimated."""
    monkeypatch.setattr(update_log, "CHUNKS", 3)
    monkeypatch.setattr(update_log, "CHUNK_BYTES", 4000)
    run, want, _ = scatter((512, 4096), ds.f32, 4, 100_000, deterministic=True)
    assert run().tobytes() == want.tobytes()
    monkeypatch.setattr(update_log, "CHUNK_BYTES", 1 << 40)
    run, want, _ = scatter((512, 4096), ds.f32, 4, 100_001, deterministic=True)
    assert run().tobytes() == want.tobytes()


@pytest.mark.parametrize("option", [False, True])
def test_a_shaken_pool_shows_what_is_not_deterministic(option, monkeypatch):
    """Chunks that start late make other sums, unless the option is there."""
    monkeypatch.setattr(chunks, "_CHUNK_WORK", 300)
    with shaken.changed(shaken.delayed):
        run, *_ = scatter((1024, 2048), ds.f32, 16, 50_000, among=50, deterministic=option)
        found = {run().tobytes() for _ in range(20)}
    assert (len(found) == 1) == option


@pytest.mark.parametrize("threads", [1, 4])
def test_old_values(threads):
    """Places handed out by a counter are handed out in the order of the lanes."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=True)
    n = 50_000
    count, listed = ds.field(ds.i32, shape=()), ds.field(ds.i32, shape=n)

    @ds.kernel
    def collect():
        for i in range(n):
            if i % 3 == 0:
                listed[ds.atomic_add(count[None], 1)] = i

    collect()
    assert of(collect).serial
    assert count[None] == -(-n // 3)
    assert (listed.to_numpy()[: count[None]] == np.arange(0, n, 3)).all()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", [ds.f32, ds.f64, ds.i8, ds.i64])
def test_stores_of_several_lanes(threads, dtype):
    """The last lane's store stays, as in NumPy."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=True)
    n = 100_000
    where = np.random.default_rng(0).integers(0, 100, n).astype(np.int32)
    place, y = ds.field(ds.i32, shape=n), ds.field(dtype, shape=200)
    place.from_numpy(where)

    @ds.kernel
    def put():
        for i in place:
            y[place[i]] = ds.cast(i - 7, dtype)

    put()
    want = np.zeros(200, dtype.numpy)
    want[where] = (np.arange(n) - 7).astype(dtype.numpy)
    assert (y.to_numpy() == want).all()


@pytest.mark.parametrize("threads", [1, 4])
def test_minima_of_both_zeros(threads):
    """Of +0 and -0 the one that comes first stays, or the last: the same in every run."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=True)
    n = 60_000
    least, most = ds.field(ds.f32, shape=50), ds.field(ds.f32, shape=50)

    @ds.kernel
    def extremes():
        for i in range(n):
            zero = 0.0
            if i % 7 < 3:
                zero = -0.0
            ds.atomic_min(least[i % 50], zero)
            ds.atomic_max(most[i % 50], zero)

    found = set()
    for _ in range(10):
        least.fill(1.0)
        most.fill(-1.0)
        extremes()
        found.add(least.to_numpy().tobytes() + most.to_numpy().tobytes())
    assert len(found) == 1
    assert not least.to_numpy().any()


def test_what_lanes_may_see_of_each_other():
    """Reading what others write is in the order of the lanes."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=4, deterministic=True)
    n = 30_000
    x = ds.field(ds.i32, shape=n + 1)

    @ds.kernel
    def follow():
        for i in range(n):
            x[i + 1] = x[i] + 1

    follow()
    assert of(follow).serial
    assert (x.to_numpy() == np.arange(n + 1)).all()


def test_what_needs_no_order():
    """Elements of one's own, sums over a loop, counts of whole numbers run as without the option."""
    ds.init(arch=ds.cpu, deterministic=True)
    x, s, count = ds.field(ds.f32, shape=100), ds.field(ds.f32, shape=()), ds.field(ds.i32, shape=7)

    @ds.kernel
    def free():
        for i in x:
            x[i] = 2.0 * x[i]
            s[None] += x[i]
            count[i % 7] += 1

    free()
    assert of(free) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_lanes_together(threads, monkeypatch):
    """Lanes that run as vectors note what each of them adds."""
    monkeypatch.setattr("diffsim.passes.vectors.vectorize._ALWAYS", True)
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=True, offline_cache=False)
    n, width = 40_001, 3_000_000
    x, w = ds.field(ds.f64, shape=width), ds.field(ds.f64, shape=n)
    values = np.random.default_rng(5).integers(-1000, 1000, n).astype(float)
    w.from_numpy(values)

    @ds.kernel
    def add():
        for i in w:
            for k in range(3):
                if w[i] > 0.0:
                    x[(i * 7919 + k) % 3001] += w[i]
                x[k] -= 1.0

    add()
    task = lower(add._only(()).ir).tasks[0]
    assert task.simd
    assert task.order.logged
    want = np.zeros(width)
    for k in range(3):
        some = values > 0
        np.add.at(want, ((np.arange(n) * 7919 + k) % 3001)[some], values[some])
        want[k] -= n
    assert (x.to_numpy() == want).all()  # whole numbers: exact in any order


@pytest.mark.parametrize("threads", [1, 4])
def test_arrays(threads):
    """The shape of an argument is known to nobody before the launch."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=True)
    n = 100_000

    @ds.kernel
    def add(x: ds.types.ndarray(ds.f32, 1), where: ds.types.ndarray(ds.i32, 1)):
        for i in where:
            x[where[i]] += 0.1

    x, where = np.zeros(7_000, np.float32), np.random.default_rng(0).integers(0, 7_000, n)
    where = where.astype(np.int32)
    add(x, where)
    want = np.zeros(7_000, np.float32)
    np.add.at(want, where, np.float32(0.1))
    assert x.tobytes() == want.tobytes()


def test_no_memory_for_logs():
    with shaken.changed(lambda text: text.replace("[ 1024, %entry ]", "[ -1, %entry ]")):
        run, *_ = scatter((1024, 2048), ds.f32, 2, 100_000, deterministic=True)
        with pytest.raises(OutOfMemoryError, match="no memory to note the updates") as caught:
            run()
        assert "x[where[i] // last, where[i] % last] += extra[i]" in str(caught.value)
        assert "divide the loop over several launches" in str(caught.value)


@pytest.mark.parametrize("seed", [119])
def test_random_programs(seed):
    """`python -m tests.fuzz --deterministic` tries more."""
    text, n = wide.make(seed)
    assert deterministic.verdict(text, seed, n, runs=4) in ("right", "refused", "invalid")
