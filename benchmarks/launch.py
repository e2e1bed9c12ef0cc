"""What a launch costs, and what a process waits for before its first one."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import ROOT, bind, main, now

FIRST = Path(__file__).with_name("first.py")


def start(b, module):
    """New processes: the import, and one small kernel without and with a filled cache [s]."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT) if b.diffsim else "")
    rounds = 3 if b.quick else 7

    def import_time():
        code = (
            f"from time import perf_counter as t; s = t(); import {module}; print('took', t() - s)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.rsplit("took", 1)[1])

    def first_result(cache):
        begin = now()
        command = [sys.executable, str(FIRST), module, str(cache)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith("result"):
                    took = now() - begin
                    assert line.split()[1] == "7.0", line
        return took

    def empty():
        return tempfile.mkdtemp(dir=b.cache)

    import_time()  # writes bytecode
    b.emit("import", [import_time() for _ in range(rounds)], "s")
    filled = empty()
    first_result(filled)
    b.emit("process to first result, cold", [first_result(empty()) for _ in range(rounds)], "s")
    b.emit("process to first result, warm", [first_result(filled) for _ in range(rounds)], "s")


def api(b):
    ds = b.api()
    x = ds.field(ds.f32, shape=(), needs_grad=True)
    v = ds.field(ds.f32, shape=1024)
    array = np.zeros(1024, np.float32)

    @ds.kernel
    def empty():
        pass

    @ds.kernel
    def write():
        x[None] = 1.0

    @ds.kernel
    def three(p: ds.f32, q: ds.i32, r: ds.f32):
        x[None] = p + q * r

    @ds.kernel
    def give() -> ds.f32:
        return x[None]

    @ds.kernel
    def fill(p: ds.f32):
        for i in v:
            v[i] = p

    @ds.kernel
    def take(a: ds.types.ndarray()):
        a[0] = 1.0

    def read():
        return v[5]

    def assign():
        v[5] = 2.0

    b.per_call("empty kernel", empty)
    b.per_call("write one number", write)
    b.per_call("three arguments", lambda: three(1.0, 2, 3.0))
    b.per_call("NumPy argument", lambda: take(array))
    b.per_call("return value", give)
    b.per_call("parallel fill of 1024", lambda: fill(1.0))
    gradients(b, ds)
    b.per_call("read field[i] from Python", read)
    b.per_call("write field[i] from Python", assign)
    three(1.0, 2, 3.0)
    b.check("three arguments", x[None], 7.0)
    b.check("return value", give(), 7.0)
    b.check("parallel fill of 1024", v.to_numpy()[7:], np.ones(1017))
    start(b, b.args.module)


def gradients(b, ds):
    """One small kernel, and a hundred, recorded and differentiated."""
    x, y = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
    u = ds.field(ds.f32, shape=101, needs_grad=True)
    counter = itertools.count()

    @ds.kernel
    def square():
        y[None] += x[None] * x[None]

    @ds.kernel
    def scale(a: ds.f32):
        y[None] += a * x[None]

    @ds.kernel
    def step(t: ds.i32):
        u[t + 1] = u[t] + 0.01 * ds.sin(u[t])

    @ds.kernel
    def last():
        y[None] += u[100]

    def tape():
        with ds.ad.Tape(y):
            square()

    def argument():
        with ds.ad.Tape(y):
            scale(float(next(counter)))

    def by_hand():
        square()
        square.grad()

    def steps():
        with ds.ad.Tape(y):
            for t in range(100):
                step(t)
            last()

    b.per_call("one kernel on a Tape", tape)
    b.per_call("one kernel on a Tape, another argument each time", argument)
    b.per_call("launch, then kernel.grad()", by_hand)
    b.per_call("100 steps on a Tape", steps)
    x[None] = 7.0
    tape()
    b.check("one kernel on a Tape", x.grad[None], 14.0)
    u.fill(0.0)
    steps()
    b.check("100 steps on a Tape", u.grad[0], 1.01**100)


def warp(b):
    wp = b.warp()

    @wp.kernel
    def empty():
        pass

    @wp.kernel
    def write(x: wp.array(dtype=float)):
        x[0] = 1.0

    @wp.kernel
    def three(x: wp.array(dtype=float), p: float, q: int, r: float):
        x[0] = p + float(q) * r

    @wp.kernel
    def fill(x: wp.array(dtype=float), p: float):
        x[wp.tid()] = p

    @wp.kernel
    def square(x: wp.array(dtype=float), y: wp.array(dtype=float)):
        wp.atomic_add(y, 0, x[0] * x[0])

    @wp.kernel
    def step(u: wp.array(dtype=float), t: int):
        u[t + 1] = u[t] + 0.01 * wp.sin(u[t])

    @wp.kernel
    def last(u: wp.array(dtype=float), y: wp.array(dtype=float)):
        wp.atomic_add(y, 0, u[100])

    x, y = (wp.zeros(1, dtype=float, requires_grad=True) for _ in range(2))
    u = wp.zeros(101, dtype=float, requires_grad=True)
    v = wp.zeros(1024, dtype=float)

    def tape():
        recorded = wp.Tape()
        with recorded:
            wp.launch(square, dim=1, inputs=[x, y])
        recorded.backward(y)
        recorded.zero()

    def steps():
        recorded = wp.Tape()
        with recorded:
            for t in range(100):
                wp.launch(step, dim=1, inputs=[u, t])
            wp.launch(last, dim=1, inputs=[u, y])
        recorded.backward(y)
        recorded.zero()

    b.per_call("empty kernel", lambda: wp.launch(empty, dim=1))
    b.per_call("write one number", lambda: wp.launch(write, dim=1, inputs=[x]))
    b.per_call("three arguments", lambda: wp.launch(three, dim=1, inputs=[x, 1.0, 2, 3.0]))
    b.per_call("parallel fill of 1024", lambda: wp.launch(fill, dim=1024, inputs=[v, 1.0]))
    b.per_call("one kernel on a Tape", tape)
    b.per_call("100 steps on a Tape", steps)
    start(b, "warp")


def numba(b):
    nb = b.numba()

    @nb.njit
    def empty():
        pass

    @nb.njit
    def write(x):
        x[0] = 1.0

    @nb.njit(parallel=True)
    def fill(x, p):
        for i in nb.prange(x.shape[0]):
            x[i] = p

    x, p = np.zeros(1024, np.float32), np.float32(1)
    b.per_call("empty kernel", empty)
    b.per_call("write one number", lambda: write(x))
    b.per_call("NumPy argument", lambda: write(x))
    b.per_call("parallel fill of 1024", lambda: fill(x, p))
    start(b, "numba")


SOURCE = r"""
void empty(void) {}
void write_one(float *x) { x[0] = 1; }
void fill(long n, float p, float *restrict x) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) x[i] = p;
}
"""


def c(b):
    """Called through ctypes."""
    library = b.c(SOURCE)
    x = np.zeros(1024, np.float32)
    b.per_call("empty kernel", library.empty)
    b.per_call("write one number", bind(library.write_one, x))
    b.per_call("parallel fill of 1024", bind(library.fill, len(x), 1.0, x))


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
