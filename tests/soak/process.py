"""Signals, forks and threads at random times: nothing hangs, and every number is right."""

import contextlib
import ctypes
import gc
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import diffsim as ds
from tests.trust import test_forks, test_memory

_UNTIL_FORKED = """
seconds, seed = float(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
threads = [threading.Thread(target=busy, args=(how,)) for how in ("compile", "launch", "launch")]
for t in threads:
    t.start()
end = time.time() + seconds
while time.time() < end:
    time.sleep(rng.random() * 0.1)
    child = os.fork()
    if not child:
        os._exit(0 if is_right(5) else 1)
    found = wait(child)
    assert found == 0, found
over.set()
for t in threads:
    t.join()
assert is_right(7)
print("done")
"""


def forks(seconds, rng):
    """Forks of a process whose threads compile and launch."""
    with tempfile.TemporaryDirectory() as folder:
        out = test_forks.run(Path(folder), _UNTIL_FORKED, f"{seconds}", f"{rng.randrange(10**6)}")
    assert out == "done\n", out


def interrupts(seconds, rng):
    """Ctrl-C at random times, while launches of three threads take turns: each is whole, or stopped."""
    ds.init(cpu_max_num_threads=rng.choice([1, 2, 4]))
    x = ds.field(ds.i64, shape=1000)
    own = ds.field(ds.i64, shape=1000)

    @ds.kernel
    def add(turns: ds.i32):
        for i in x:
            for _ in range(turns):
                x[i] += 1

    @ds.kernel
    def mine(turns: ds.i32):
        for i in own:
            k = 0
            while k < turns:
                k += 1
                own[i] += 1

    add(1)
    mine(1)
    done, over = [1], threading.Event()

    def other() -> None:
        chances = np.random.default_rng(rng.randrange(10**6))
        while not over.is_set():
            turns = int(chances.integers(1, 100_000))
            add(turns)
            done.append(turns)

    threads = [threading.Thread(target=other) for _ in range(2)]
    for t in threads:
        t.start()
    end = time.time() + seconds
    try:
        while time.time() < end:
            own.fill(0)
            turns = rng.randrange(1, 10_000_000)
            timer = threading.Timer(rng.random() * 0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                mine(turns)
                whole = True
                timer.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                whole = False
            begin = time.time()
            timer.join()
            found = own.to_numpy()
            assert (found <= turns).all()
            assert not whole or (found == turns).all()
            assert time.time() - begin < 10
    except KeyboardInterrupt:
        pass  # it came between two launches
    finally:
        over.set()
        for t in threads:
            t.join()
    assert (x.to_numpy() == sum(done)).all()


def _settle():
    """Give back what nobody uses: some hundred megabytes that malloc keeps come and go, and are no leak.

    Kernels are in cycles, which the collector frees, and with them the fields that they capture.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def memory(seconds, rng):
    """Fields of random sizes, placed and dropped, and kernels compiled and dropped: memory stays as it is."""
    ds.init(offline_cache=False)

    def one_round() -> None:
        x = ds.field(ds.f32, needs_grad=rng.random() < 0.5)
        ds.root.dense(ds.i, rng.randrange(1, 4_000_000)).place(x)
        factor = rng.random()

        @ds.kernel
        def scale():
            for i in x:
                x[i] = factor

        scale()
        assert x[0] == np.float32(factor)

    for _ in range(300 if seconds > 10 else 60):  # until memory has settled
        one_round()
    _settle()
    before, rounds, end = test_memory.resident(), 0, time.time() + seconds
    while time.time() < end:
        one_round()
        rounds += 1
    _settle()
    assert test_memory.resident() - before < 80 + 0.03 * rounds


SCENARIOS = {"forks": forks, "interrupts": interrupts, "memory": memory}
