"""The native thread pool: every chunk once, whatever the timing; arenas; signals; forks; exits."""

import ctypes
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import llvmlite.binding as llvm
import numpy as np
import pytest

from diffsim.backends.native.jit import Jit, Library
from diffsim.backends.native.pool import Pool

TASKS = """
declare i64 @ds_parallel_for(ptr, ptr, ptr, i64, i64, ptr)
declare i64 @ds_enter()
declare void @ds_leave()
declare ptr @ds_arena_alloc(ptr, i64, i64)
declare i64 @ds_arena_mark(ptr, i64)
declare void @ds_arena_release(ptr, i64, i64)

define void @increment(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
entry:
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %q = getelementptr i64, ptr %p, i64 %i
  %v = load i64, ptr %q
  %v.new = add i64 %v, 1
  store i64 %v.new, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; params[3 * chunk ...] = begin, end, worker
define void @record(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
  %at = mul i64 %chunk, 3
  %a = getelementptr i64, ptr %p, i64 %at
  store i64 %begin, ptr %a
  %b = getelementptr i64, ptr %a, i64 1
  store i64 %end, ptr %b
  %c = getelementptr i64, ptr %a, i64 2
  store i64 %worker, ptr %c
  ret void
}

; Launch `increment` many times: native code that launches without Python in between.
define i64 @repeat(ptr %pool, ptr %data, i64 %n, i64 %chunks, i64 %times) nounwind {
entry:
  %stop = alloca i64
  store i64 0, ptr %stop
  %entered = call i64 @ds_enter()
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %rc = call i64 @ds_parallel_for(ptr %pool, ptr @increment, ptr %data, i64 %n, i64 %chunks, ptr %stop)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  call void @ds_leave()
  ret i64 %rc
}

; params = { pool, bytes, failures }: fill two allocations and check that they do not overlap.
define void @scratch(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
  %pool = load ptr, ptr %p
  %bytes.p = getelementptr i64, ptr %p, i64 1
  %bytes = load i64, ptr %bytes.p
  %bad.p = getelementptr i64, ptr %p, i64 2
  %mark = call i64 @ds_arena_mark(ptr %pool, i64 %worker)
  %a = call ptr @ds_arena_alloc(ptr %pool, i64 %worker, i64 %bytes)
  %b = call ptr @ds_arena_alloc(ptr %pool, i64 %worker, i64 %bytes)
  %tag = trunc i64 %chunk to i8
  call void @llvm.memset.p0.i64(ptr %a, i8 %tag, i64 %bytes, i1 true)
  call void @llvm.memset.p0.i64(ptr %b, i8 -1, i64 %bytes, i1 true)
  %last = sub i64 %bytes, 1
  %end.p = getelementptr i8, ptr %a, i64 %last
  %v0 = load volatile i8, ptr %a
  %v1 = load volatile i8, ptr %end.p
  %ne0 = icmp ne i8 %v0, %tag
  %ne1 = icmp ne i8 %v1, %tag
  %ne = or i1 %ne0, %ne1
  %bad = zext i1 %ne to i64
  %old = atomicrmw add ptr %bad.p, i64 %bad monotonic
  call void @ds_arena_release(ptr %pool, i64 %worker, i64 %mark)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Both `record` and, after the 64 records, `slow`.
define void @attend(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
  call void @record(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker)
  %after = getelementptr i64, ptr %p, i64 192
  call void @slow(ptr %after, i64 0, i64 0, i64 0, i64 0)
  ret void
}

; Some tenths of a millisecond of work.
define void @slow(ptr %p, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %v = load volatile i64, ptr %p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 1000000
  br i1 %more, label %loop, label %done
done:
  %old = atomicrmw add ptr %p, i64 1 monotonic
  ret void
}
"""

SCRIPT_HEAD = f"""
import ctypes, os, signal, sys, time
from diffsim.backends.native.jit import Jit
from diffsim.backends.native.pool import Pool
jit = Jit()
pool = Pool(jit, 4)
library = jit.load(jit.compile({TASKS!r}))
increment = library.address("increment")
def total(n, chunks, launches):
    data = (ctypes.c_int64 * n)()
    for _ in range(launches):
        pool.run(increment, ctypes.addressof(data), n, chunks)
    return sum(data)
"""


@pytest.fixture(scope="module")
def tasks(jit: Jit) -> Library:
    Pool(jit, 1).close()  # registers the symbols
    return jit.load(jit.compile(TASKS))


@pytest.fixture(params=[1, 2, 3, 8])
def pool(jit: Jit, request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(jit, request.param)
    yield made
    made.close()


@pytest.fixture
def pool4(jit: Jit) -> Iterator[Pool]:
    made = Pool(jit, 4)
    yield made
    made.close()


def script(body: str, **popen: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT_HEAD + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(body: str) -> str:
    process = script(textwrap.dedent(body))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


@pytest.mark.parametrize("chunks", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 64, 1000, 30_001])
def test_every_index_exactly_once(pool: Pool, tasks: Library, n: int, chunks: int) -> None:
    data = (ctypes.c_int64 * (n + 1))()
    for _ in range(10):
        assert pool.run(tasks.address("increment"), ctypes.addressof(data), n, chunks) == 0
    assert list(data) == [10] * n + [0]


@pytest.mark.parametrize("n", [0, 5, 1000, 2**31 + 11, 2**62 - 1, 2**62])
@pytest.mark.parametrize("chunks", [1, 2, 7, 1000])
def test_partition_depends_on_n_and_chunks_alone(
    pool: Pool, tasks: Library, n: int, chunks: int
) -> None:
    data = (ctypes.c_int64 * (3 * chunks))(*[-1] * (3 * chunks))
    pool.run(tasks.address("record"), ctypes.addressof(data), n, chunks)
    assert list(data[0::3]) == [c * n // chunks for c in range(chunks)]
    assert list(data[1::3]) == [(c + 1) * n // chunks for c in range(chunks)]
    assert all(0 <= worker < pool.threads for worker in data[2::3])


@pytest.mark.parametrize("chunks", [0, -1])
def test_no_chunks_no_calls(pool: Pool, tasks: Library, chunks: int) -> None:
    data = (ctypes.c_int64 * 10)()
    assert pool.run(tasks.address("increment"), ctypes.addressof(data), 10, chunks) == 0
    assert sum(data) == 0


@pytest.mark.parametrize("n", [0, 1, 4095, 1 << 18, 5 * (1 << 18) + 3])
def test_copies_are_whole_and_nothing_more(pool: Pool, n: int) -> None:
    of = np.random.default_rng(n).integers(0, 256, n + 2, np.uint8)
    to = np.full(n + 2, 77, np.uint8)
    pool.copy(to.ctypes.data + 1, of.ctypes.data + 1, n)
    assert (to[1:-1] == of[1:-1]).all()
    assert to[0] == to[-1] == 77


def test_several_threads_take_part(pool4: Pool, tasks: Library) -> None:
    seen = set()
    for _ in range(200):
        data = (ctypes.c_int64 * (3 * 64 + 1))()
        pool4.run(tasks.address("attend"), ctypes.addressof(data), 64, 64)
        assert data[192] == 64
        seen.update(data[2 : 3 * 64 : 3])
        if seen == {0, 1, 2, 3}:
            return
    pytest.fail(f"only the workers {seen} ever ran a chunk")


def test_a_thread_begins_with_its_own_share_and_others_take_from_its_end(
    pool4: Pool, tasks: Library
) -> None:
    for _ in range(10):
        data = (ctypes.c_int64 * (3 * 64 + 1))()
        pool4.run(tasks.address("attend"), ctypes.addressof(data), 64, 64)
        workers = list(data[2 : 3 * 64 : 3])
        for own in range(4):
            share = [w == own for w in workers[16 * own : 16 * own + 16]]
            assert share == sorted(share, reverse=True), (own, workers)


@pytest.mark.parametrize("threads", [2, 16])
def test_many_tiny_launches(jit: Jit, tasks: Library, threads: int) -> None:
    pool = Pool(jit, threads)
    repeat = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)(
        tasks.address("repeat")
    )
    data = (ctypes.c_int64 * 16)()
    assert repeat(pool.handle, ctypes.addressof(data), 16, 8, 100_000) == 0
    assert list(data) == [100_000] * 16
    pool.close()


def test_launches_after_sleeps_of_all_lengths(pool4: Pool, tasks: Library) -> None:
    rng = random.Random(1)
    data = (ctypes.c_int64 * 64)()
    for _ in range(2000):
        # Around the time workers spin, so that launches meet them on their way to sleep.
        until = time.perf_counter() + rng.uniform(0, 120e-6)
        while time.perf_counter() < until:
            pass
        pool4.run(tasks.address("increment"), ctypes.addressof(data), 64, 8)
    assert list(data) == [2000] * 64


def test_pools_come_and_go(jit: Jit, tasks: Library) -> None:
    data = (ctypes.c_int64 * 8)()
    before = threads_of_process()
    for i in range(100):
        pool = Pool(jit, 5)
        for _ in range(i % 3):
            pool.run(tasks.address("increment"), ctypes.addressof(data), 8, 8)
        pool.close()
        pool.close()
    assert list(data) == [99] * 8
    assert threads_of_process() == before


def threads_of_process() -> int:
    """Native threads of this process; constant where the system does not say."""
    folder = "/proc/self/task"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def test_closed_pool_is_refused(jit: Jit, tasks: Library) -> None:
    pool = Pool(jit, 2)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(tasks.address("increment"), 0, 0, 1)


@pytest.mark.parametrize("threads", [0, -3, 40_000])
def test_thread_count_is_checked(jit: Jit, threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        Pool(jit, threads)


# ---- Scratch arenas


Alloc = Callable[[int], int | None]


@pytest.fixture
def arena(pool4: Pool, tasks: Library) -> tuple[Alloc, Callable[[], int], Callable[[int], None]]:
    i64, ptr = ctypes.c_int64, ctypes.c_void_p

    def native(name: str, *signature: object) -> Callable[..., int]:
        return ctypes.PYFUNCTYPE(*signature)(llvm.address_of_symbol(name))

    alloc = native("ds_arena_alloc", ptr, ptr, i64, i64)
    mark = native("ds_arena_mark", i64, ptr, i64)
    release = native("ds_arena_release", None, ptr, i64, i64)
    handle = pool4.handle
    return (
        lambda n: alloc(handle, 0, n),
        lambda: mark(handle, 0),
        lambda m: release(handle, 0, m),
    )


def test_allocations_are_aligned_and_disjoint(arena: tuple, pool4: Pool) -> None:
    alloc, _, _ = arena
    sizes = [0, 1, 63, 64, 65, 1000, 70_000, 3, 200_000, 5, 1_000_000, 64] * 3
    spans = sorted((alloc(size), size) for size in sizes)
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(a + max(n, 1) <= b for (a, n), (b, _) in itertools.pairwise(spans))
    for start, size in spans:
        ctypes.memset(start, 0xAB, size)
    assert sum(sizes) <= pool4.scratch_bytes <= 4 * sum(sizes) + 65536


def test_release_goes_back_and_blocks_are_reused(arena: tuple, pool4: Pool) -> None:
    alloc, mark, release = arena
    assert pool4.scratch_bytes == 0
    start = mark()
    first = alloc(100)
    inner = mark()
    second = alloc(100)
    release(inner)
    assert alloc(100) == second
    for size in (50_000, 100_000, 400_000, 2_000_000):
        alloc(size)
    held = pool4.scratch_bytes
    release(inner)
    assert alloc(100) == second
    release(start)
    assert alloc(100) == first
    rng = random.Random(0)
    for _ in range(200):
        marks = [mark()]
        pointers = []
        for _ in range(rng.randrange(1, 6)):
            pointers.append(alloc(rng.randrange(400_000)))
            marks.append(mark())
        assert len(set(pointers)) == len(pointers)
        for position in reversed(marks[:-1]):
            release(position)
            assert mark() == position
    assert pool4.scratch_bytes <= 4 * held


def test_out_of_memory_gives_null(arena: tuple) -> None:
    alloc, _, _ = arena
    assert alloc(2**62) is None
    assert alloc(-1) is None
    assert alloc(64) is not None


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_arenas_of_workers_do_not_overlap(pool: Pool, tasks: Library, size: int) -> None:
    params = (ctypes.c_int64 * 3)(pool.handle, size, 0)
    for _ in range(20):
        pool.run(tasks.address("scratch"), ctypes.addressof(params), 64, 64)
    assert params[2] == 0
    held = pool.scratch_bytes
    assert 0 < held <= pool.threads * 4 * max(size, 65536)


# ---- Signals, forks, exits


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("threads", [1, 4])
def test_interrupt_ends_a_long_loop(threads: int) -> None:
    process = script(f"""
pool = Pool(jit, {threads})
data = (ctypes.c_int64 * 1)()
print("ready", flush=True)
try:
    pool.run(library.address("slow"), ctypes.addressof(data), 10**6, 10**6)
except KeyboardInterrupt:
    print("stopped", 0 < data[0] < 10**6, total(100, 10, 3), flush=True)
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("stopped True 300\n", "", 0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX timers")
def test_signal_handler_may_launch(pool4: Pool, tasks: Library) -> None:
    nested = (ctypes.c_int64 * 100)()
    outer = (ctypes.c_int64 * 1)()

    at = []

    def handler(*_: object) -> None:
        at.append(outer[0])
        pool4.run(tasks.address("increment"), ctypes.addressof(nested), 100, 10)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert pool4.run(tasks.address("slow"), ctypes.addressof(outer), 2000, 2000) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert outer[0] == 2000
    assert list(nested) == [1] * 100
    # It ran in the middle of the loop, not after it.
    assert 0 < at[0] < 2000


def test_without_interrupt_no_handler_runs(jit: Jit, tasks: Library) -> None:
    pool = Pool(jit, 2, interrupt=False)
    data = (ctypes.c_int64 * 1)()
    assert pool.run(tasks.address("slow"), ctypes.addressof(data), 50, 50) == 0
    assert data[0] == 50
    pool.close()


def test_launches_from_other_python_threads(pool4: Pool, tasks: Library) -> None:
    rows = [(ctypes.c_int64 * 32)() for _ in range(4)]

    def launch(row: ctypes.Array[ctypes.c_int64]) -> None:
        for _ in range(500):
            pool4.run(tasks.address("increment"), ctypes.addressof(row), 32, 8)

    launchers = [threading.Thread(target=launch, args=(row,)) for row in rows]
    for launcher in launchers:
        launcher.start()
    for launcher in launchers:
        launcher.join()
    assert [list(row) for row in rows] == [[500] * 32] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_with_running_workers() -> None:
    out = run_script("""
        assert total(100, 10, 50) == 5000
        handle = pool.handle
        for _ in range(5):
            child = os.fork()
            if child == 0:
                ok = total(100, 10, 50) == 5000 and pool.handle == handle
                os._exit(0 if ok else 1)
            assert total(100, 10, 50) == 5000
            print(os.waitpid(child, 0)[1])
        """)
    assert out.split() == ["0"] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_exits_through_the_interpreter() -> None:
    out = run_script("""
        total(100, 10, 50)
        child = os.fork()
        if child == 0:
            total(100, 10, 5)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)
    assert out.split() == ["7"]


@pytest.mark.parametrize(
    "body",
    [
        "total(100, 10, 100)",
        "total(100, 10, 100); del pool, library, jit",
        "total(100, 10, 100); pool.close(); pool = Pool(jit, 3); total(100, 10, 100)",
        "sys.pool = pool; total(100, 10, 100); sys.exit(0)",
        "pass",
    ],
)
def test_clean_exit(body: str) -> None:
    assert run_script(body) == ""


def test_compiled_pool_is_cached() -> None:
    out = run_script("""
        class Memory(dict):
            put = dict.__setitem__
        import diffsim.backends.native.pool as module
        cache = Memory()
        for state in ("filled", "used", "damaged"):
            module._native = {}
            if state == "damaged":
                cache = Memory({k: b"junk" for k in cache})
            pool = Pool(jit, 2, cache)
            print(len(cache), total(100, 10, 3), b"junk" not in cache.values())
        """)
    assert out.splitlines() == ["1 300 True"] * 3
