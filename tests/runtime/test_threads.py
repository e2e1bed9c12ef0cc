"""Threads: results do not depend on their number; Python's threads, Ctrl-C, fork."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from diffsim.runtime.locked_cached_property import making
from tests.support.processes import run, start

# ---- threads


def test_python_without_its_global_lock_is_refused(cpu, monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(cpu.BackendError, match="without its global lock") as found:
        cpu.init(arch=cpu.cpu)
    assert "PYTHON_GIL=1" in found.value.hint
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    cpu.init(arch=cpu.cpu)


@pytest.mark.parametrize("collects", [True, False])
def test_python_collects_no_garbage_while_kernels_are_compiled(cpu, collects):
    """Afterwards it does as before, also after an error."""
    cpu.init(arch=cpu.cpu, offline_cache=False)
    x = cpu.field(cpu.f32, shape=4)

    @cpu.kernel
    def double():
        for i in x:
            x[i] = 2.0 * x[i]

    @cpu.kernel
    def wrong():
        for i in x:
            x[i] = unknown  # noqa: F821 - what is refused

    seen = []
    (gc.enable if collects else gc.disable)()
    gc.callbacks.append(lambda *_: seen.append(making.depth))
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        double()
        assert gc.isenabled() is collects
        with pytest.raises(cpu.DiffsimError):
            wrong()
        assert gc.isenabled() is collects
    finally:
        gc.set_threshold(*old)
        gc.callbacks.pop()
        gc.enable()
    assert not any(seen)
    assert bool(seen) is collects


def simulate(ds, threads):
    """Reductions, histograms and neighbours; all that threads could change."""
    ds.init(cpu_max_num_threads=threads)
    n = 20011
    x = ds.field(ds.f32, shape=n)
    v = ds.Vector.field(3, ds.f64, shape=())
    bins, total = ds.field(ds.i32, shape=17), ds.field(ds.f32, shape=())
    x.from_numpy(np.random.default_rng(0).normal(size=n).astype(np.float32))

    @ds.kernel
    def reduce() -> ds.f32:
        s = 0.0
        for i in x:
            s += x[i] * x[i]
            total[None] += ds.sin(x[i])
            v[None] += [x[i], 1.0, x[i] * i]
            bins[i % 17] += i
        return s

    s = reduce()
    return s, total[None], v[None].to_list(), bins.to_numpy().tolist()


@pytest.mark.host
def test_sums_with_any_number_of_threads(cpu):
    results = {n: [simulate(cpu, n) for _ in range(3)] for n in (1, 2, 3, 4)}
    a = np.random.default_rng(0).normal(size=20011).astype(np.float32).astype(float)
    expected = np.zeros(17, int)
    np.add.at(expected, np.arange(len(a)) % 17, np.arange(len(a)))
    for found in results.values():
        s, total, v, bins = found[0]
        np.testing.assert_allclose(s, (a**2).sum(), rtol=1e-5)
        np.testing.assert_allclose(total, np.sin(a).sum(), rtol=1e-4)
        np.testing.assert_allclose(v, [a.sum(), len(a), (a * np.arange(len(a))).sum()], rtol=1e-6)
        assert bins == expected.tolist()
        assert found[1] == found[2] == found[0], "not the same bits again"


def smoothed(ds, threads):
    ds.init(cpu_max_num_threads=threads)
    x, y = ds.field(ds.f32, shape=(300, 200)), ds.field(ds.f32, shape=(300, 200))
    x.from_numpy(np.random.default_rng(0).random((300, 200), np.float32))

    @ds.kernel
    def smooth():
        for i, j in ds.ndrange((1, 299), (1, 199)):
            s = 1.0 / (1.0 + x[i, j])  # no exp or sin: their last bits differ in vector code
            for di, dj in ds.ndrange((-1, 2), (-1, 2)):
                s += x[i + di, j + dj] * ds.sqrt(x[i, j])
            y[i, j] = s / 9

    smooth()
    return y.to_numpy()


def test_arithmetic_of_single_lanes_does_not_depend_on_threads(cpu):
    one, two, four = (smoothed(cpu, threads) for threads in (1, 2, 4))
    assert (one == two).all()
    assert (one == four).all()
    assert one[1:-1, 1:-1].min() > 0


@pytest.mark.host
def test_every_launch_gives_the_same_bits(cpu):
    ds = cpu
    ds.init(cpu_max_num_threads=4)
    x = ds.field(ds.f32, shape=30011)
    x.from_numpy(np.random.default_rng(1).normal(size=30011).astype(np.float32))

    @ds.kernel
    def total() -> ds.f32:
        s = 0.0
        for i in x:
            s += x[i]
        return s

    assert len({total() for _ in range(50)}) == 1


@pytest.mark.host
def test_environment_sets_the_number_of_threads(tmp_path):
    out = run(
        tmp_path,
        """
        import diffsim as ds
        from diffsim.runtime.session import session

        ds.init()
        print(session.threads, session.options.debug)
        ds.init(cpu_max_num_threads=2, debug=False)
        print(session.threads, session.options.debug)
        """,
        DIFFSIM_NUM_THREADS="3",
        DIFFSIM_DEBUG="1",
    )
    assert out.split() == ["3", "True", "2", "False"]


def test_launches_from_another_python_thread(cpu):
    ds = cpu
    ds.init(cpu_max_num_threads=2)
    x = ds.field(ds.i32, shape=10000)

    @ds.kernel
    def add(a: ds.i32):
        for i in x:
            x[i] += a

    def work():
        for _ in range(20):
            add(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    work()
    for t in threads:
        t.join()
    assert (x.to_numpy() == 100).all()


@pytest.fixture
def hasty():
    """Threads of Python take turns all the time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_threads(work, n=6):
    """Run work(0), ..., work(n - 1) at the same time."""
    start, problems = threading.Barrier(n), []

    def run(k):
        start.wait()
        try:
            work(k)
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert problems == []


def test_compiling_in_several_threads(cpu, hasty):
    ds = cpu
    results = {}

    def work(number):
        x = ds.field(ds.f64, shape=100, needs_grad=True)
        total = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def fill(a: ds.i32) -> ds.i32:
            s = 0
            for i in x:
                x[i] = a + i
                s += (a + i) * number
            return s

        @ds.kernel
        def add_up():
            for i in x:
                total[None] += number * x[i] ** 2

        found = fill(number)
        add_up()
        total.grad[None] = 1
        add_up.grad()
        results[number] = found, (x.grad.to_numpy() == 2 * number * x.to_numpy()).all()

    in_threads(work)
    assert results == {k: (sum((k + i) * k for i in range(100)), True) for k in range(6)}


def test_a_kernel_is_compiled_once(cpu, hasty, monkeypatch):
    """Code that a thread runs would be freed if another one compiled the kernel again."""
    from diffsim.runtime.kernels import specialization

    ds = cpu
    x = ds.field(ds.f64, shape=10, needs_grad=True)
    made = []
    compile_ = specialization.compiled
    monkeypatch.setattr(specialization, "compiled", lambda *a: made.append(a) or compile_(*a))

    @ds.kernel
    def add(a: ds.f64):
        for i in x:
            x[i] += a

    in_threads(lambda k: add(k))
    assert (x.to_numpy() == sum(range(6))).all()
    assert len(made) == 1


LONG = """
import time
import diffsim as ds

ds.init(cpu_max_num_threads={threads})
x = ds.field(ds.f64, shape=64)

@ds.kernel
def long(lanes: ds.i32):
    for i in range(lanes):
        s = ds.f64(i)
        for k in range(5):
            s = ds.sin(s + k)
        x[i % 64] {how} s

@ds.kernel
def short() -> ds.i32:
    s = 0
    for i in range(100000):
        s += i % 3
    return s

long(1)
print("ready", flush=True)
try:
    long(128 << 20)
    print("ended by itself")
except KeyboardInterrupt:
    print("interrupted", time.time())
print(short(), short())
long(64)
print("done")
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", ["=", "+="])
@pytest.mark.host
def test_ctrl_c_ends_a_long_kernel(tmp_path, threads, how):
    """Also where each thread adds to a copy of its own."""
    with start(tmp_path, LONG.format(threads=threads, how=how)) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        sent = time.time()
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, err
    first, *rest = out.splitlines()
    word, at = first.split(maxsplit=1)
    assert word == "interrupted"
    assert float(at) - sent < 1.0
    assert rest == ["99999 99999", "done"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.host
def test_fork(tmp_path):
    out = run(
        tmp_path,
        """
        import os, sys, warnings
        import diffsim as ds

        # Python 3.12 and later warn of every fork of a process with threads.
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        ds.init(cpu_max_num_threads=2)
        x = ds.field(ds.i32, shape=50000)

        @ds.kernel
        def add(a: ds.i32) -> ds.i32:
            s = 0
            for i in x:
                x[i] += a
                s += x[i]
            return s

        assert add(1) == 50000
        child = os.fork()
        if not child:
            ok = add(2) == 150000

            @ds.kernel
            def fresh() -> ds.i32:
                s = 0
                for i in x:
                    s += x[i]
                return s

            os._exit(0 if ok and fresh() == 150000 else 1)
        assert add(3) == 200000
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), add(1))
        """,
    )
    assert out.split() == ["0", "250000"]


def test_the_number_of_threads_changes_no_bit(cpu):
    """Chunks are cut by the work alone: sums, and the last bits of vectorized functions."""
    found = set()
    for threads in (1, 2, 3, 5):
        cpu.init(arch=cpu.cpu, cpu_max_num_threads=threads)
        x, y = cpu.field(cpu.f32, shape=(301, 997)), cpu.field(cpu.f32, shape=(301, 997))
        total = cpu.field(cpu.f32, shape=())

        @cpu.kernel
        def work(x: cpu.template(), y: cpu.template(), total: cpu.template()):
            for i, j in x:
                y[i, j] = cpu.exp(cpu.sin(x[i, j]))
                total[None] += y[i, j]

        x.from_numpy(np.random.default_rng(7).random((301, 997)).astype(np.float32))
        work(x, y, total)
        found.add((y.to_numpy().tobytes(), total[None]))
    assert len(found) == 1


@pytest.mark.host
def test_a_system_without_its_threads(cpu, monkeypatch):
    from diffsim.errors import BackendError

    ds = cpu
    x = ds.field(ds.f32, shape=100_000)

    @ds.kernel
    def fill():
        for i in x:
            x[i] = 1.0

    monkeypatch.delattr(os, "fork")
    with pytest.raises(BackendError, match="threads of Linux and macOS") as caught:
        fill()
    assert "WSL" in caught.value.hint
