"""Launches: the cache, threads, Ctrl-C, fork, random numbers, debug mode, ds.init, inspection."""

import functools
import gc
import os
import re
import signal
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


def start(folder, text, **environment):
    """A Python process that runs this text as a file."""
    folder.mkdir(exist_ok=True)
    script = folder / f"script{len(list(folder.glob('*.py')))}.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder, text, **environment):
    """What that process printed."""
    with start(folder, text, **environment) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


# ---- the cache

COUNTED = """
import sys
import diffsim as ds
from diffsim.backends.native.jit import Jit

compiled, compile_one = [], Jit.compile

def counting(self, text, *more):
    compiled.append(text)
    return compile_one(self, text, *more)

Jit.compile = counting
ds.init({options})
x = ds.field(ds.f64, shape=100)

@ds.kernel
def fill(a: ds.f64):
    for i in x:
        x[i] = {formula}

fill(2.0)
print(len(compiled), x[3])
"""


def counted(folder, formula="a * i", options="", **environment):
    out = run(folder, COUNTED.format(formula=formula, options=options), **environment)
    count, value = out.split()
    return int(count), float(value)


@pytest.mark.host
def test_processes_share_compiled_code(tmp_path):
    here = {"DIFFSIM_CACHE_DIR": str(tmp_path / "cache")}
    first, value = counted(tmp_path, **here)
    assert first >= 1
    assert value == 6.0
    assert counted(tmp_path, **here) == (0, 6.0)
    assert counted(tmp_path, "a * i + 1", **here) == (1, 7.0)
    assert counted(tmp_path, options="fast_math=True", formula="a * i / 7", **here)[0] == 1
    assert counted(tmp_path, options="", formula="a * i / 7", **here)[0] == 1
    assert counted(tmp_path, options="debug=True", **here)[0] in (0, 1)
    assert counted(tmp_path, **here) == (0, 6.0)


@pytest.mark.host
def test_a_damaged_cache_is_no_problem(tmp_path):
    here = {"DIFFSIM_CACHE_DIR": str(tmp_path / "cache")}
    whole, _ = counted(tmp_path, **here)
    files = [f for f in (tmp_path / "cache").rglob("*") if f.is_file()]
    assert len(files) >= whole
    for k, file in enumerate(files):
        data = bytearray(file.read_bytes())
        if k % 3 == 0:
            data[len(data) // 2] ^= 1
        file.write_bytes(data if k % 3 == 0 else b"" if k % 3 == 1 else data[:-5])
    assert counted(tmp_path, **here) == (whole, 6.0)
    assert counted(tmp_path, **here) == (0, 6.0)


@pytest.mark.host
def test_without_the_cache_nothing_is_written(tmp_path):
    cache = tmp_path / "cache"
    here = {"DIFFSIM_CACHE_DIR": str(cache), "HOME": str(tmp_path / "home")}
    assert counted(tmp_path, options="offline_cache=False", **here)[0] >= 1
    assert not cache.exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.host
def test_the_folder_given_to_init_wins(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    counted(
        tmp_path, options=f"offline_cache_file_path={str(mine)!r}", DIFFSIM_CACHE_DIR=str(other)
    )
    assert mine.exists()
    assert not other.exists()


def test_a_folder_that_can_not_be_written_is_a_warning(cpu, tmp_path):
    ds = cpu
    (tmp_path / "file").write_text("")
    ds.init(offline_cache_file_path=str(tmp_path / "file" / "cache"))

    @ds.kernel
    def one() -> ds.i32:
        return 123321

    with pytest.warns(RuntimeWarning, match="not kept on disk"):
        assert one() == 123321


# ---- threads


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


# ---- random numbers


def drawn(ds, n=20000, kind="uniform", **options):
    ds.init(**options)
    x = ds.field(ds.f32, shape=(3, n))

    @ds.kernel
    def uniform(k: ds.i32):
        for i in range(n):
            x[k, i] = ds.random()

    @ds.kernel
    def normal(k: ds.i32):
        for i in range(n):
            x[k, i] = ds.randn()

    for k in range(3):
        (uniform if kind == "uniform" else normal)(k)
    return x.to_numpy()


def test_random_numbers_depend_on_the_seed_alone(cpu):
    first = drawn(cpu, random_seed=5, cpu_max_num_threads=1)
    assert (drawn(cpu, random_seed=5, cpu_max_num_threads=4) == first).all()
    assert (drawn(cpu, random_seed=5, cpu_max_num_threads=2, debug=True) == first).all()
    other = drawn(cpu, random_seed=6)
    assert (other == first).mean() < 0.01
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (first[a] == first[b]).mean() < 0.01
        assert abs(np.corrcoef(first[a], first[b])[0, 1]) < 0.03
        assert abs(np.corrcoef(first[a], other[b])[0, 1]) < 0.03


def test_random_numbers_are_uniform(cpu):
    x = drawn(cpu, random_seed=1).ravel().astype(float)
    assert x.min() >= 0
    assert x.max() < 1
    counts, _ = np.histogram(x, 50, (0, 1))
    chi_squared = ((counts - len(x) / 50) ** 2 / (len(x) / 50)).sum()
    assert 20 < chi_squared < 90  # 49 degrees of freedom
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.02
    assert len(np.unique(x)) > 0.99 * len(x)


def test_normal_numbers_have_the_right_moments(cpu):
    x = drawn(cpu, kind="normal", random_seed=2).ravel().astype(float)
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.02
    assert abs(x.var() - 1) < 0.03
    assert abs((x**3).mean()) < 0.06
    assert abs((x**4).mean() - 3) < 0.2
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.01


def test_random_numbers_of_other_types_and_places(cpu):
    ds = cpu
    ds.init(random_seed=3)
    n = 4000
    whole, wide = ds.field(ds.i32, shape=n), ds.field(ds.f64, shape=n)
    small, pairs = ds.field(ds.u8, shape=n), ds.Vector.field(2, ds.f32, shape=(40, 100))

    @ds.func
    def two():
        return ds.Vector([ds.random(), ds.random()])

    @ds.kernel
    def draw():
        for i in whole:
            whole[i] = ds.random(ds.i32)
            if i % 2 == 0:
                wide[i] = ds.random(ds.f64)
            for _ in range(3):
                small[i] = ds.random(ds.u8)
        for i, j in pairs:
            pairs[i, j] = two()
        for i in range(n):
            if i % 2 == 1:
                wide[i] = ds.random(ds.f64)

    draw()
    a = whole.to_numpy().astype(float)
    assert a.min() < -(2**31) * 0.99
    assert a.max() > 2**31 * 0.99
    assert abs(a.mean()) < 0.05 * 2**31
    assert len(np.unique(wide.to_numpy())) == n
    assert abs(wide.to_numpy().mean() - 0.5) < 0.03
    assert len(np.unique(small.to_numpy())) == 256
    p = pairs.to_numpy().reshape(-1, 2)
    assert abs(np.corrcoef(p.T)[0, 1]) < 0.06
    assert len(np.unique(p)) > 0.99 * p.size


def test_draws_outside_of_parallel_loops(cpu):
    ds = cpu
    x = ds.field(ds.f64, shape=30)

    @ds.kernel
    def draw():
        x[0] = ds.random(ds.f64)
        x[1] = ds.random(ds.f64)
        k = 2
        while k < 10:
            x[k] = ds.random(ds.f64)
            k += 1
        for i in range(10, 20):
            x[i] = ds.random(ds.f64)
        for i in range(20, 30):
            x[i] = ds.random(ds.f64)

    draw()
    assert len(np.unique(x.to_numpy())) == 30


# ---- debug mode


def test_out_of_bounds_names_field_index_shape_and_line(cpu):
    ds = cpu
    ds.init(debug=True)
    x, guard = ds.field(ds.i32, shape=(3, 4)), ds.field(ds.i32, shape=(3, 4))
    v = ds.Vector.field(3, ds.f32, shape=4)

    @ds.kernel
    def write(i: ds.i32, j: ds.i32):
        x[i, j] = 7

    @ds.kernel
    def read(i: ds.i32, j: ds.i32) -> ds.i32:
        return x[i, j]

    @ds.kernel
    def add(i: ds.i32, j: ds.i32):
        for _ in range(10):
            x[i, j] += 1

    @ds.kernel
    def component(i: ds.i32, k: ds.i32):
        v[i][k] = 1.0

    line = write.source.first + 2
    for i, j in [(3, 0), (-1, 0), (0, 4), (0, -1), (2**31 - 1, 0), (-(2**31), 3)]:
        for kernel in (write, read, add):
            with pytest.raises(ds.AccessError) as caught:
                kernel(i, j)
            assert f"index ({i}, {j}) is outside of x, which has shape (3, 4)" in str(caught.value)
            assert "x[i, j]" in str(caught.value)
        with pytest.raises(ds.AccessError, match=rf"line {line}\b"):
            write(i, j)
    for i, k in [(0, 3), (0, -1), (4, 0)]:
        with pytest.raises(ds.AccessError):
            component(i, k)
    # Where an index is wrong, element 0 may be written in its place, and nothing else.
    assert not x.to_numpy()[1:, 1:].any()
    assert not v.to_numpy()[1:, 1:].any()
    assert not guard.to_numpy().any()
    write(2, 3)
    component(3, 2)
    assert (read(2, 3), v[3][2]) == (7, 1.0)


def test_out_of_bounds_in_arrays_and_in_other_memory(cpu):
    ds = cpu
    ds.init(debug=True)
    frame = np.zeros(30, np.float32)
    a = frame[10:20]

    @ds.kernel
    def write(x: ds.types.ndarray(), first: ds.i32, end: ds.i32):
        for i in range(first, end):
            x[i] = 1.0

    write(a, 0, 10)
    for first, end in [(-3, 5), (5, 13), (-10, 0)]:
        with pytest.raises(ds.AccessError, match=r"outside of x, which has shape"):
            write(a, first, end)
    assert frame.tolist() == [0.0] * 10 + [1.0] * 10 + [0.0] * 10


def test_local_vectors_are_checked_too(cpu):
    ds = cpu
    ds.init(debug=True)

    @ds.kernel
    def pick(k: ds.i32) -> ds.f32:
        v = ds.Vector([1.0, 2.0, 3.0])
        return v[k]

    assert pick(2) == 3.0
    for k in (3, -1):
        with pytest.raises(ds.DiffsimError):
            pick(k)


def test_ptx_is_what_would_run(cpu):
    """With the options of the session."""
    ds = cpu
    x = ds.field(ds.f32, shape=100)
    total = ds.field(ds.f32, shape=())

    @ds.kernel
    def add_up(k: ds.i32):
        for i in x:
            total[None] += x[i] / x[k]

    plain = add_up.ptx()
    assert "_combine" not in plain
    assert ".cas." not in plain
    ds.init(deterministic=True)
    assert "add_up_combine0" in add_up.ptx()
    ds.init(fast_math=True)
    assert "div.approx" in add_up.ptx()
    ds.init(debug=True)
    assert re.search(r"\.cas\.b64", add_up.ptx())  # of the error buffer


@pytest.mark.parametrize("debug", [False, True])
def test_division_of_integers_by_zero(cpu, debug):
    """An error in debug mode: of scalars, of one component, in bounds, and nowhere where it is not made."""
    ds = cpu
    ds.init(debug=debug)
    x = ds.field(ds.i32, shape=4)

    @ds.kernel
    def divide(how: ds.template(), b: ds.i32):
        for i in x:
            if ds.static(how == "//"):
                x[i] = 7 // b
            elif ds.static(how == "%"):
                x[i] = 7 % b
            elif ds.static(how == "in place"):
                x[i] = 7
                x[i] //= b
            elif ds.static(how == "vector"):
                x[i] = (ds.Vector([7, 8]) // ds.Vector([1, b]))[1]
            elif ds.static(how == "guarded"):
                if b != 0 and 7 // b > 0:
                    x[i] = 1
                x[i] += 7 // b if b != 0 else 2
                if 0 < b < 7 // b:
                    x[i] += 10
            elif ds.static(how == "constant"):
                x[i] = b // 7
            elif ds.static(how == "constant 0"):
                x[i] = (b + 7) // 0

    @ds.kernel
    def count(b: ds.i32):
        for i in range(8 // b):
            x[0] += 1

    ways = {"//": (3, 0), "%": (1, 0), "in place": (3, 0), "vector": (4, 0)}
    for how, (by_2, by_0) in ways.items():
        divide(how, 2)
        assert x[3] == by_2
        if debug:
            with pytest.raises(ds.AccessError, match="an integer is divided by 0") as caught:
                divide(how, 0)
            assert "//" in str(caught.value) or "%" in str(caught.value)
            assert "^" in str(caught.value)
        else:
            divide(how, 0)
            assert x[3] == by_0
    for b, guarded in ((0, 2), (2, 14)):
        x.fill(0)
        divide("guarded", b)
        assert x[1] == guarded
        divide("constant", b)
        assert x[1] == 0
    x.fill(0)
    count(2)
    assert x[0] == 4
    if debug:
        with pytest.raises(
            ds.AccessError, match=r"an integer is divided by 0(?s:.)*range\(8 // b\)"
        ):
            count(0)
        with pytest.raises(ds.AccessError, match="an integer is divided by 0"):
            divide("constant 0", 2)


def test_assertions(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=10)

    @ds.kernel
    def check(limit: ds.i32):
        for i in x:
            assert i < limit, "i is too large"
            x[i] = 1

    @ds.kernel
    def plain(a: ds.f32):
        assert a > 0
        assert a < 10 and a != 5, "a is odd"  # noqa: PT018

    check(3)  # without debug they are comments
    plain(-1.0)
    ds.init(debug=True)
    x.fill(0)
    with pytest.raises(ds.DiffsimError, match="i is too large") as caught:
        check(3)
    assert "assert i < limit" in str(caught.value)
    check(10)
    assert x.to_numpy().tolist() == [1] * 10
    plain(1.0)
    with pytest.raises(ds.DiffsimError, match="assertion failed"):
        plain(-1.0)
    with pytest.raises(ds.DiffsimError, match="a is odd"):
        plain(5.0)


# ---- init and reset


def test_init_begins_anew(cpu):
    ds = cpu
    x = ds.field(ds.f64, shape=())
    scale = 2.0

    @ds.kernel
    def run() -> float:
        x[None] += scale
        tenth = 0.1
        return tenth

    assert run() == float(np.float32(0.1))
    scale = 3.0
    with pytest.raises(ds.KernelStateError):
        run()
    ds.init(default_fp=ds.f64)
    assert run() == 0.1
    assert x[None] == 5.0
    ds.reset()
    assert run() == float(np.float32(0.1))


@pytest.mark.parametrize(
    "options",
    [
        {"arch": "cpu"},
        {"arch": 3},
        {"default_fp": "f32"},
        {"default_fp": int},
        {"default_ip": float},
        {"debug": 1},
        {"random_seed": 1.5},
        {"random_seed": True},
        {"cpu_max_num_threads": -1},
        {"cpu_max_num_threads": 10**6},
        {"kernel_simplicity": "loose"},
        {"offline_cache_file_path": 5},
        {"fastmath": True},
    ],
    ids=str,
)
def test_wrong_options_are_refused_and_change_nothing(cpu, options):
    ds = cpu
    ds.init(default_fp=ds.f64, random_seed=3)

    @ds.kernel
    def tenth() -> ds.f64:
        a = 0.1
        return a

    tenth()
    with pytest.raises(ds.DiffsimError):
        ds.init(**options)
    assert tenth() == 0.1


def test_backends(cpu):
    ds = cpu
    with pytest.raises(ds.BackendError, match="can not be used here"):
        ds.init(arch=ds.cuda, device=99)
    with pytest.warns(UserWarning, match="using the CPU"):
        ds.init(arch=ds.gpu, device=99)
    ds.init(ds.cpu)
    ds.sync()


def test_kernels_work_without_init(tmp_path):
    out = run(
        tmp_path,
        """
        import diffsim as ds

        x = ds.field(ds.f32, shape=3)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = 2 * i

        fill()
        print(x.to_numpy().tolist())
        """,
    )
    assert out == "[0.0, 2.0, 4.0]\n"


# ---- compiled once, or anew


def compiled_texts(monkeypatch):
    """The list of what is compiled from now on."""
    from diffsim.backends.cpu import codegen as cpu
    from diffsim.backends.cuda import codegen as cuda

    made = []

    def noting(lower, kernel, *args, **more):
        made.append(kernel.name)
        return lower(kernel, *args, **more)

    for backend in (cpu, cuda):
        monkeypatch.setattr(backend, "lower", functools.partial(noting, backend.lower))
    return made


def test_a_kernel_is_compiled_once_for_each_template(cpu, monkeypatch):
    ds = cpu
    made = compiled_texts(monkeypatch)
    x, y = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=4)

    @ds.kernel
    def fill(f: ds.template(), v: ds.f32):
        for i in f:
            f[i] = v

    @ds.kernel
    def array(a: ds.types.ndarray()):
        for i in a:
            a[i] = 1

    for k in range(5):
        fill(x, k)
        fill(y, k)
    assert made == ["fill", "fill"]
    for shape in (3, 4, 5):
        array(np.zeros(shape, "f4"))
        array(np.zeros(shape))
    assert made == ["fill", "fill", "array", "array"]


def test_a_new_field_under_an_old_name_compiles_anew(cpu, monkeypatch):
    ds = cpu
    made = compiled_texts(monkeypatch)
    x = ds.field(ds.f32, shape=3)

    @ds.kernel
    def fill(v: ds.f32):
        for i in x:
            x[i] += v

    for n in (3, 5, 7):
        x = ds.field(ds.f32, shape=n)
        gc.collect()
        for _ in range(3):
            fill(1.0)
        assert x.to_numpy().tolist() == [3.0] * n
    assert made == ["fill"] * 3


# ---- inspection


def test_kernels_show_what_became_of_them(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=8, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def measure(scale: ds.f32):
        for i in x:
            loss[None] += scale * ds.sin(x[i]) ** 2

    stages = {s: measure.ir(after=s) for s in ("frontend", "simplify", "scalarize", "sums", "dead")}
    for text in stages.values():
        assert "measure" in text
        assert "sin" in text
    assert measure.ir() == stages["simplify"]
    assert "cos" in measure.grad.ir()
    assert "x.grad" in measure.grad.ir(after="dead")
    assert "define" in measure.llvm()
    assert "define" in measure.grad.llvm()
    for text in (measure.ptx(), measure.grad.ptx(sm=90)):
        assert re.search(r"\.visible \.entry", text)
    assert ".target sm_80" in measure.ptx()
    with pytest.raises(
        ds.BackendError, match="measure has no PTX: there is no PTX for sm=91"
    ) as caught:
        measure.ptx(sm=91)
    assert "measure.ptx(sm=91)" in str(caught.value)
    with pytest.raises(ds.DiffsimError, match="no stage"):
        measure.ir(after="nothing")
    # looking is not launching
    assert loss[None] == 0
    measure(1.0)
    assert measure.ir() == stages["simplify"]


def test_inspection_of_kernels_compiled_for_their_arguments(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=8, needs_grad=True)

    @ds.kernel
    def double(f: ds.template(), a: ds.types.ndarray()):
        for i in f:
            f[i] *= a[i]

    with pytest.raises(ds.DiffsimError, match="compiled for its arguments"):
        double.ir()
    a = np.ones(8)
    texts = [double.ir(args=(x, a)), double.llvm(args=(x, a)), double.ptx(args=(x, a))]
    assert all("double" in t for t in texts)
    double(x, a)
    assert double.ir() == texts[0]


def test_llvm_text_holds_no_address(cpu):
    ds = cpu

    def text():
        x = ds.field(ds.f32, shape=100)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = i

        fill()
        return fill.llvm(), x

    (one, x), (two, y) = text(), text()
    assert x.address != y.address
    assert one == two


def test_the_wrong_number_of_arguments_names_the_call(cpu):
    ds = cpu

    @ds.kernel
    def two(a: ds.i32, b: ds.i32):
        pass

    for arguments in ((1,), (1, 2, 3), ()):
        with pytest.raises(ds.KernelTypeError, match="two"):
            two(*arguments)
    two(1, 2)
    for arguments in ((1,), (1, 2, 3), ()):
        with pytest.raises(ds.KernelTypeError, match="two") as caught:
            two(*arguments)
        assert "test_launch.py" in str(caught.value)


def test_errors_in_a_launch_leave_everything_usable(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=3)

    @ds.kernel
    def fill(a: ds.i32):
        for i in x:
            x[i] = a

    for wrong in (1.5, "a", 2**40, None):
        with pytest.raises(ds.KernelTypeError):
            fill(wrong)
    fill(3)
    with pytest.raises(ds.KernelTypeError):
        fill(2**40)
    assert x.to_numpy().tolist() == [3, 3, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill(np.int16(4))
    assert x[0] == 4


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
