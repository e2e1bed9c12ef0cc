"""Loops in strips of a few iterations, with a safepoint after each, against the same loops in Python."""

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from diffsim.backends.llvm import safepoints
from diffsim.backends.native.pool import load_pool
from diffsim.runtime.session import session
from tests.support.processes import run

TRIPS = (0, 1, 7, 8, 9, 16, 17, 100, 1000)
MOST = 2**31 - 1


@pytest.fixture
def ds(cpu, monkeypatch):
    """Strips of 8 to 32 iterations, each of which polls."""
    cpu.init(cpu_max_num_threads=2)
    monkeypatch.setattr(safepoints, "STRIP", 128)
    monkeypatch.setattr(safepoints, "_POLL_INTERVAL", 1)
    return cpu


def up(n):
    k, s = 0, 0
    while k < n:
        s = (s ^ k) + 3
        k += 1
    return s + k


def up_mirrored(n):
    k, s = 0, 0
    while n > k:
        s = (s ^ k) + 3
        k = 1 + k
    return s + k


def up_to_and_with(n):
    k, s = 0, 0
    while k <= n:
        s = (s ^ k) + 3
        k += 1
    return s + k


def down(n):
    k, s = n, 0
    while k > 0:
        s = (s ^ k) + 3
        k -= 1
    return s + k


def down_mirrored(n):
    k, s = n, 0
    while -5 < k:
        s = (s ^ k) + 3
        k += -1
    return s + k


def from_both_sides(n):
    a, b, s = 0, n, 0
    while a < b:
        s = (s ^ a) + b
        if s % 2 == 0:
            b -= 1
        a += 1
    return s * 3 + a - b


def by_threes(n):
    k, s = 0, 0
    while k < n:
        s = (s ^ k) + 3
        k += 3
    return s + k


def until(n):
    k, s = 0, 0
    while k != n:
        s = (s ^ k) + 3
        k += 1
    return s + k


def an_end_that_moves(n):
    k, m, s = 0, n, 0
    while k < m - s % 3:
        s = (s ^ k) + 1
        m += k % 2
        k += 1
        if s > 10_000:
            m = 0
    return s + k + m


def at_the_largest_numbers(n):
    k, s = MOST - n, 0
    while k < MOST:
        s = s * 5 % 1001 + 1
        k += 1
    return s


def collatz(n):
    k, s = n + 1, 0
    while k > 1:
        k = k // 2 if k % 2 == 0 else 3 * k + 1
        s += 1
    return s


def nested(n):
    s, j = 0, 0
    while j < n % 20:
        k = 0
        while k < j * 7:
            s = (s ^ k) + j
            k += 1
        j += 1
    return s


WHILES = (
    up,
    up_mirrored,
    up_to_and_with,
    down,
    down_mirrored,
    from_both_sides,
    by_threes,
    until,
    an_end_that_moves,
    at_the_largest_numbers,
    collatz,
    nested,
)


@pytest.mark.parametrize("loop", WHILES, ids=lambda f: f.__name__)
def test_whiles(ds, loop):
    func = ds.func(loop)

    @ds.kernel
    def one(n: ds.i32) -> ds.i32:
        return func(n)

    assert [one(n) for n in TRIPS] == [loop(n) for n in TRIPS]


@pytest.mark.parametrize("loop", WHILES, ids=lambda f: f.__name__)
def test_whiles_in_lanes(ds, loop):
    func = ds.func(loop)
    count, result = ds.field(ds.i32, shape=300), ds.field(ds.i32, shape=300)
    counts = np.random.default_rng(0).integers(0, 200, 300).astype(np.int32)
    count.from_numpy(counts)

    @ds.kernel
    def all_lanes():
        for i in result:
            result[i] = func(count[i])

    all_lanes()
    np.testing.assert_array_equal(result.to_numpy(), [loop(int(n)) for n in counts])


@pytest.mark.parametrize("t", ["u32", "i64", "u64"])
def test_whiles_of_other_types(ds, t):
    t = getattr(ds, t)

    @ds.kernel
    def both_ways(n: ds.i32) -> ds.i64:
        s, k, end = ds.i64(0), t(5), t(n + 5)
        while k < end:
            s = s * 3 % 1001 + ds.i64(k)
            k += t(1)
        while k > t(0):
            s = s * 5 % 1001 + ds.i64(k)
            k -= t(1)
        return s

    def expected(n):
        s = 0
        for k in range(5, n + 5):
            s = s * 3 % 1001 + k
        for k in range(n + 5, 0, -1):
            s = s * 5 % 1001 + k
        return s

    assert [both_ways(n) for n in TRIPS] == [expected(n) for n in TRIPS]


def test_fors(ds):
    """Serial, backwards, and in lanes with bounds that differ."""
    result = ds.field(ds.i32, shape=100)

    @ds.kernel
    def serial(lo: ds.i32, n: ds.i32) -> ds.i32:
        s = 0
        ds.loop_config(serialize=True)
        for k in range(lo, n):
            s = s * 3 % 1001 + k
        ds.loop_config(serialize=True)
        for k in range(n - 1, lo - 1, -1):
            s = s * 5 % 1001 + k
        return s

    @ds.kernel
    def lanes(lo: ds.i32):
        for i in result:
            s = 0
            for k in range(lo, i * i % 60):
                s = s * 3 % 1001 + k
            result[i] = s

    def expected(lo, n, back=True):
        s = 0
        for k in range(lo, n):
            s = s * 3 % 1001 + k
        for k in range(n - 1, lo - 1, -1) if back else ():
            s = s * 5 % 1001 + k
        return s

    for lo in (0, 3, 8):
        assert [serial(lo, n) for n in TRIPS] == [expected(lo, n) for n in TRIPS]
        lanes(lo)
        want = [expected(lo, i * i % 60, back=False) for i in range(100)]
        np.testing.assert_array_equal(result.to_numpy(), want)


def test_a_condition_that_writes_is_asked_once_for_each_iteration(ds):
    asked = ds.field(ds.i32, shape=())

    @ds.kernel
    def ask(n: ds.i32) -> ds.i32:
        trips = 0
        while ds.atomic_add(asked[None], 1) < n:
            trips += 1
        return trips

    for n in TRIPS:
        asked[None] = 0
        assert (ask(n), asked[None]) == (n, n + 1)


@pytest.mark.parametrize("how", ["while", "for"])
def test_loops_that_count_are_vectorized(cpu, how):
    x = cpu.field(cpu.i32, shape=4096)
    total = cpu.field(cpu.i32, shape=())

    @cpu.kernel
    def with_while(n: cpu.i32):
        k, s = 0, 0
        while k < n:
            s += x[k]
            k += 1
        total[None] = s

    @cpu.kernel
    def with_for(n: cpu.i32):
        s = 0
        cpu.loop_config(serialize=True)
        for k in range(n):
            s += x[k]
        total[None] = s

    kernel = with_while if how == "while" else with_for
    x.from_numpy(np.arange(4096, dtype=np.int32))
    kernel(4000)
    assert total[None] == 3999 * 4000 // 2
    text = kernel.llvm()
    assert "@ds_poll" in text
    assert "llvm.vector.reduce.add" in session.jit.optimized(text)


@pytest.fixture
def polls(cpu, monkeypatch):
    """A list that grows with each poll of code that is loaded meanwhile."""
    cpu.init(cpu_max_num_threads=1)
    monkeypatch.setattr(safepoints, "_POLL_INTERVAL", 100_000)
    load_pool(session.jit, None)
    found = []
    poll = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
        lambda block, worker: found.append(worker) or 0
    )
    before = llvm.address_of_symbol("ds_poll")
    llvm.add_symbol("ds_poll", ctypes.cast(poll, ctypes.c_void_p).value)
    yield found
    llvm.add_symbol("ds_poll", before)


@pytest.mark.parametrize("loop", ["for", "while", "any while", "lanes at once"])
def test_polls_follow_the_work_that_was_done(cpu, polls, loop):
    """Whether loops in a nest have few iterations or many; guesses would poll too often or too rarely."""
    first, total = cpu.field(cpu.i32, shape=201), cpu.field(cpu.f32, shape=200)
    by, at_once = loop, loop == "lanes at once"

    @cpu.kernel
    def count():
        cpu.loop_config(serialize=not at_once)
        for i in range(200):
            s = 0.0
            for _ in range(first[i] - first[i], 3):
                if cpu.static(by == "while"):
                    k = first[i]
                    while k < first[i + 1]:
                        s = s * 0.5 + 1.0
                        k += 1
                elif cpu.static(by == "any while"):
                    k = first[i]
                    while k != first[i + 1]:
                        s = s * 0.5 + 1.0
                        k += 1
                else:
                    for k in range(first[i], first[i + 1]):
                        s = s * 0.5 + 1.0
            total[i] = s

    for trips in (1, 30_000):
        first.from_numpy(np.arange(201, dtype=np.int32) * trips)
        polls.clear()
        count()
        lanes = 200 / 64 if at_once else 200
        least, most = lanes * 3 * trips * 2, lanes * 3 * (trips * 12 + 40)
        assert least / 200_000 - 1 <= len(polls) <= most / 100_000 + 1, trips


@pytest.mark.host
def test_the_first_kernel_of_a_process_may_be_one_that_looks(tmp_path):
    """What its code calls is loaded before it, and not by another kernel that happened to come first."""
    text = """
        import diffsim as ds
        ds.init(arch=ds.cpu, offline_cache=False)
        @ds.kernel
        def count(n: int) -> int:
            k = 0
            while k < n:
                k += 1
            return k
        print(count(100_000))
    """
    assert run(tmp_path, text) == "100000\n"
