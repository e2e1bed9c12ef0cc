"""Ctrl-C ends any launch within half a second, and what it leaves behind is in order."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from diffsim.backends.native import pool

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers for signals"),
]
SOON = 0.5
"""How long a launch may go on after it [s]."""


def interrupted(launch) -> float:
    """How long a launch that takes for ever goes on after Ctrl-C [s]."""
    sent, over = [], threading.Event()

    def send() -> None:
        while not over.is_set():  # once it runs, and has let go of Python's lock
            if pool.closed[0]:
                time.sleep(0.02)
                sent.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.005)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch()
        return time.perf_counter() - sent[0]
    finally:
        over.set()
        sender.join()


def kernels(ds):
    """Launches that take for ever, by name."""
    big = 2_000_000_000
    n = ds.field(ds.i32, shape=())
    x = ds.field(ds.f32, shape=64, needs_grad=True)
    total = ds.field(ds.f32, shape=(), needs_grad=True)
    n[None] = big
    x.fill(1.0)

    @ds.kernel
    def serial_for():
        s = 0.0
        ds.loop_config(serialize=True)
        for k in range(big):
            s = ds.sin(s + k)
        total[None] = s

    @ds.kernel
    def while_at_kernel_level():
        k = 1
        while k != 0:
            k = (k + 1) % 1000 + 1
        total[None] = k

    @ds.kernel
    def while_that_counts():
        k, s = 0, 0.0
        while k < big:
            s = ds.sin(s + k)
            k += 1
        total[None] = s

    @ds.kernel
    def whiles_that_differ():
        for i in range(64):
            k, s = 0, 0.0
            while k < n[None] - i:
                s = s * 0.5 + x[k % 64]
                k += 1
            x[i] = s

    @ds.kernel
    def bounds_that_differ():
        for i in range(64):
            s = 0.0
            for k in range(n[None] - i):
                s = s * 0.5 + x[k % 64]
            x[i] = s

    @ds.kernel
    def while_true():
        while True:
            total[None] += 1.0

    @ds.kernel
    def while_in_lanes():
        for i in range(1000):
            k = 1
            while k != 0:
                k = (k + 1) % 1000 + 1 + i % 7
            x[i % 64] = k

    @ds.kernel
    def in_one_lane():
        """The other lanes are done: the launching thread only waits."""
        for i in range(100_000):
            k = 1
            while k > 0 and i == 99_999:
                k = (k + 1) % 1000 + 1
            x[i % 64] = k

    @ds.kernel
    def few_lanes():
        for i in range(3):
            s = 0.0
            for k in range(n[None]):
                s = s * 0.5 + ds.sqrt(x[k % 64])
            x[i] = s

    @ds.kernel
    def as_vectors():
        for i in range(64):
            s = 0.0
            for k in range(n[None]):
                s = s * 0.5 + x[i] * k
            x[i] = s

    @ds.kernel
    def nested():
        for i in range(64):
            s = 0.0
            for j in range(n[None]):
                for k in range(3):
                    s += x[k] * j
            x[i] = s

    @ds.kernel
    def short_inside():
        for i in range(4):
            s = 0.0
            for a in range(n[None]):
                for b in range(n[None] // 500_000_000):
                    s += x[b] * a
            x[i] = s

    @ds.kernel
    def many_lanes():
        for i in range(2**31 - 1):
            x[i % 64] = ds.sin(ds.f32(i))

    @ds.kernel
    def sums():
        for i in range(2**31 - 1):
            total[None] += ds.sin(ds.f32(i))

    @ds.kernel
    def copies():
        for i in range(2**31 - 1):
            x[i % 64] += ds.sin(ds.f32(i))

    @ds.kernel
    def serial_reduction():
        s = 0
        ds.loop_config(serialize=True)
        for k in range(big):
            for j in range(k):
                s ^= j * k
        n[None] = s

    made = dict(locals())
    return {k: f for k, f in made.items() if k not in ("ds", "big", "n", "x", "total")}


NAMES = (
    "serial_for",
    "while_at_kernel_level",
    "while_that_counts",
    "whiles_that_differ",
    "bounds_that_differ",
    "while_true",
    "while_in_lanes",
    "in_one_lane",
    "few_lanes",
    "as_vectors",
    "nested",
    "short_inside",
    "many_lanes",
    "sums",
    "copies",
    "serial_reduction",
)


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_ends_any_loop(cpu, threads):
    ds = cpu
    ds.init(cpu_max_num_threads=threads)
    made = kernels(ds)
    assert set(made) == set(NAMES)
    y = ds.field(ds.i32, shape=100_000)

    @ds.kernel
    def count() -> ds.i32:
        s = 0
        for i in y:
            y[i] += 1
            s += y[i]
        return s

    late = {}
    for k, (name, kernel) in enumerate(made.items(), 1):
        late[name] = interrupted(kernel)
        assert count() == 100_000 * k, name
    assert max(late.values()) < SOON, late


def endless(ds):
    """A kernel whose loop is long once `turns` says so, and the fields of its gradient."""
    x = ds.field(ds.f64, shape=8, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    turns = ds.field(ds.i32, shape=())
    x.fill(1.0)
    turns[None] = 3

    @ds.kernel
    def step():
        for i in range(8):
            for k in range(turns[None]):
                loss[None] += ds.sin(x[i]) * (k + 1)

    return step, x, loss, turns


@pytest.mark.parametrize("how", ["kernel.grad", "tape", "replay", "checkpoint", "gradcheck"])
def test_ctrl_c_ends_a_gradient(cpu, how):
    ds = cpu
    ds.init(cpu_max_num_threads=2)
    step, x, loss, turns = endless(ds)

    def rollout():
        ds.ad.checkpoint(lambda _: step(), 4, state=[loss])

    def gradient(tape):
        tape.zero()
        loss.grad[None] = 1.0
        tape.backward(loss)
        return x.grad.to_numpy()

    tape = ds.Tape()
    with tape:
        rollout() if how == "checkpoint" else step()
    want = gradient(tape)
    np.testing.assert_allclose(want, 6 * np.cos(1.0) * (4 if how == "checkpoint" else 1))
    if how == "replay":
        tape.replay()
    turns.storage.element(0)[0] = 2**31 - 1  # which nobody hears of
    acts = {
        "kernel.grad": step.grad,
        "replay": tape.replay,
        "gradcheck": lambda: ds.ad.gradcheck(step, [x], [loss]),
    }
    assert interrupted(acts.get(how, lambda: gradient(tape))) < SOON
    turns.storage.element(0)[0] = 3
    x.fill(1.0)
    tape = ds.Tape()
    with tape:
        rollout() if how == "checkpoint" else step()
    np.testing.assert_array_equal(gradient(tape), want)


def test_ctrl_c_ends_a_replay_of_many_launches(cpu):
    """None of them takes long."""
    ds = cpu
    x = ds.field(ds.f64, shape=4, needs_grad=True)

    @ds.kernel
    def step():
        for i in range(4):
            s = x[i]
            for k in range(2000):
                s = ds.cos(s)
            x[i] += 0.0 * s

    tape = ds.Tape(clear_gradients=False)
    with tape:
        for _ in range(3_000):
            step()

    def replay():
        while True:
            tape.replay()

    assert interrupted(replay) < SOON


def test_other_threads_run_meanwhile(cpu):
    ds = cpu
    step, _, _, turns = endless(ds)
    step()
    turns[None] = 30_000_000
    ticks, over = [], threading.Event()

    def tick() -> None:
        while not over.wait(0.01):
            if pool.closed[0]:
                ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    step()
    took = time.perf_counter() - begin
    over.set()
    ticker.join()
    assert len(ticks) > 0.3 * took / 0.01


def test_a_handler_of_the_users_may_look_and_launch(cpu):
    ds = cpu
    ds.init(cpu_max_num_threads=2)
    step, x, _, turns = endless(ds)
    step()
    seen = []

    @ds.kernel
    def add() -> ds.f64:
        s = ds.f64(0.0)
        for i in range(100_000):
            s += x[i % 8]
        return s

    def handler(*_: object) -> None:
        seen.append((add(), x[3]))
        signal.setitimer(signal.ITIMER_REAL, 0.02)

    add()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        turns[None] = 400_000_000
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) > 1
    assert set(seen) == {(100_000.0, 1.0)}


def test_launches_of_threads_take_turns(cpu):
    """A launch of another thread waits; so does whoever reads a field."""
    ds = cpu
    ds.init(cpu_max_num_threads=2)
    x = ds.field(ds.i32, shape=64)
    n = 100

    @ds.kernel
    def all_the_same():
        for i in range(64):
            for k in range(300_000):
                x[i] += k * 0 + 1

    def work() -> None:
        for _ in range(n // 10):
            all_the_same()

    all_the_same()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        found = x.to_numpy()
        assert (found == found[0]).all()
        assert x[63] % 300_000 == 0
        time.sleep(0.001)
    for t in threads:
        t.join()
    assert x[0] == 300_000 * (1 + 3 * (n // 10))


def test_memory_freed_while_a_launch_runs(cpu):
    ds = cpu
    step, x, loss, turns = endless(ds)
    step()
    turns[None] = 20_000_000
    runner = threading.Thread(target=step)
    runner.start()
    while not pool.closed[0] and runner.is_alive():
        time.sleep(0.001)
    del step, x, loss, turns
    ds.reset()
    ds.init()
    runner.join()


def test_ctrl_c_while_a_thread_launches(cpu):
    """Only the main thread hears of it, as always in Python."""
    ds = cpu
    step, _, loss, turns = endless(ds)
    step()
    first = loss[None]
    turns[None] = 10_000_000
    runner = threading.Thread(target=step)
    runner.start()
    with pytest.raises(KeyboardInterrupt):
        while not pool.closed[0]:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        loss[None]  # waits for the launch
    runner.join()
    assert loss[None] > first


def run(tmp_path, text: str) -> tuple[str, str, int]:
    """Run a program; its output, errors and status."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr, done.returncode


def test_a_daemon_threads_launch_ends_with_the_process(tmp_path):
    out, err, status = run(
        tmp_path,
        """
        import atexit, threading, time
        import diffsim as ds
        from diffsim.backends.native import pool

        ds.init(cpu_max_num_threads=2)
        x = ds.field(ds.f32, shape=1 << 22)

        @ds.kernel
        def endless():
            for i in x:
                while x[i] >= 0:
                    x[i] += 1.0

        @ds.kernel
        def total() -> ds.f32:
            s = 0.0
            for i in range(1000):
                s += 1.0
            return s

        atexit.register(lambda: print("at the end", total()))
        total()
        threading.Thread(target=endless, daemon=True).start()
        while not pool.closed[0]:
            time.sleep(0.01)
        print("main ends", flush=True)
        """,
    )
    assert (out, err, status) == ("main ends\nat the end 1000.0\n", "", 0)
