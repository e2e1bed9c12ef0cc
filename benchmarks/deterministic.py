"""What `ds.init(deterministic=True)` costs on the CPU, where lanes share what they add to.

    python benchmarks/deterministic.py            all workloads
    python benchmarks/deterministic.py --write    and keep the table, deterministic.md

Each figure is the least time of some launches in a process of its own; processes with and without the option
take turns, so that a machine that drifts does so for both. `bits`: how many different results there were.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import diffsim as ds
from diffsim.runtime.files import write_text

TURNS, LAUNCHES = 3, 12


def field(values, **more):
    """A field of f32 with these numbers."""
    made = ds.field(ds.f32, shape=values.shape, **more)
    made.from_numpy(values.astype(np.float32))
    return made


def components(random):
    """The gradient of 113 weights that are components of 0-D fields, 10,000 samples."""
    n, hidden = 10_000, 28
    x = ds.Vector.field(2, ds.f32, shape=n)
    x.from_numpy(random.normal(size=(n, 2)).astype(np.float32))
    inner = ds.Matrix.field(hidden, 2, ds.f32, shape=(), needs_grad=True)
    shift = ds.Vector.field(hidden, ds.f32, shape=(), needs_grad=True)
    outer = ds.Vector.field(hidden, ds.f32, shape=(), needs_grad=True)
    last, loss = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
    for w in (inner, shift, outer):
        w.from_numpy(random.normal(size=w.to_numpy().shape).astype(np.float32))

    @ds.kernel
    def predict():
        for i in x:
            a = ds.tanh(inner[None] @ x[i] + shift[None])
            loss[None] += (a.dot(outer[None]) + last[None]) ** 2

    return predict, loss, [inner.grad, shift.grad, outer.grad, last.grad]


def layers(random):
    """The gradient of 10,300 weights in fields, 10,000 samples."""
    n, hidden = 10_000, 100
    x = field(random.normal(size=(n, hidden)))
    inner = field(0.1 * random.normal(size=(hidden, hidden)), needs_grad=True)
    outer = field(0.1 * random.normal(size=(3, hidden)), needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def predict():
        for i in range(n):
            y = 0.0
            for h in range(hidden):
                a = 0.0
                for g in range(hidden):
                    a += x[i, g] * inner[g, h]
                b = ds.tanh(a + outer[0, h])
                y += b * outer[1, h] + b * b * outer[2, h]
            loss[None] += y * y

    return predict, loss, [inner.grad, outer.grad]


def plane(random):
    """100,000 particles add mass and momentum to the 9 nodes around them: 128 x 128 nodes."""
    n, size = 100_000, 128
    at = ds.Vector.field(2, ds.f32, shape=n)
    at.from_numpy((random.random((n, 2)) * (size - 3) + 1).astype(np.float32))
    grid = ds.Vector.field(3, ds.f32, shape=(size, size))

    @ds.kernel
    def add():
        for p in at:
            base = ds.cast(at[p] - 0.5, ds.i32)
            off = at[p] - ds.cast(base, ds.f32)
            w = [0.5 * (1.5 - off) ** 2, 0.75 - (off - 1.0) ** 2, 0.5 * (off - 0.5) ** 2]
            for i, j in ds.static(ds.ndrange(3, 3)):
                m = w[i][0] * w[j][1]
                grid[base[0] + i, base[1] + j] += ds.Vector([m, m * off[0], m * off[1]])

    return add, None, [grid]


def space(random):
    """100,000 particles add mass and momentum to the 27 nodes around them: 64 x 64 x 64 nodes."""
    n, size = 100_000, 64
    at = ds.Vector.field(3, ds.f32, shape=n)
    at.from_numpy((random.random((n, 3)) * (size - 3) + 1).astype(np.float32))
    grid = ds.Vector.field(4, ds.f32, shape=(size, size, size))

    @ds.kernel
    def add():
        for p in at:
            base = ds.cast(at[p] - 0.5, ds.i32)
            off = at[p] - ds.cast(base, ds.f32)
            w = [0.5 * (1.5 - off) ** 2, 0.75 - (off - 1.0) ** 2, 0.5 * (off - 0.5) ** 2]
            for i, j, k in ds.static(ds.ndrange(3, 3, 3)):
                m = w[i][0] * w[j][1] * w[k][2]
                node = ds.Vector([m, m * off[0], m * off[1], m * off[2]])
                grid[base[0] + i, base[1] + j, base[2] + k] += node

    return add, None, [grid]


def histogram(random):
    """4 million weights added up in 256 bins."""
    n = 4_000_000
    where, bins, weight = (
        ds.field(ds.i32, shape=n),
        ds.field(ds.f32, shape=256),
        field(random.random(n)),
    )
    where.from_numpy(random.integers(0, 256, n).astype(np.int32))

    @ds.kernel
    def add():
        for i in where:
            bins[where[i]] += weight[i]

    return add, None, [bins]


def scatter(random):
    """4 million numbers added to 4 million others, picked at random."""
    n = 4_000_000
    where, x, extra = ds.field(ds.i32, shape=n), ds.field(ds.f32, shape=n), field(random.random(n))
    where.from_numpy(random.integers(0, n, n).astype(np.int32))

    @ds.kernel
    def add():
        for i in where:
            x[where[i]] += extra[i]

    return add, None, [x]


def collect(random):
    """1 million lanes, of which a half ask a counter for a place (the old value of an atomic)."""
    n = 1_000_000
    count, listed, x = (
        ds.field(ds.i32, shape=()),
        ds.field(ds.i32, shape=n),
        field(random.random(n)),
    )

    @ds.kernel
    def add():
        for i in x:
            if ds.sin(x[i]) > 0.479:
                listed[ds.atomic_add(count[None], 1) % n] = i

    return add, None, [listed, count]


WORKLOADS = (components, layers, plane, space, histogram, scatter, collect)


def measure(make, threads, option):
    """The least time of a launch [ms], and how many different results there were."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, deterministic=option)
    kernel, loss, results = make(np.random.default_rng(0))
    best, seen = np.inf, set()
    for _ in range(LAUNCHES):
        for r in results:
            r.fill(0)
        if loss is not None:
            loss[None], loss.grad[None] = 0.0, 1.0
        run = kernel.grad if loss is not None else kernel
        if loss is not None:
            kernel()
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        seen.add(b"".join(r.to_numpy().tobytes() for r in results))
    return 1e3 * best, len(seen)


def apart(make, threads, option):
    """`measure` in a process of its own."""
    call = [sys.executable, __file__, "--one", make.__name__, str(threads), str(int(option))]
    ms, seen = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
    return float(ms), int(seen)


def table(threads):
    """The rows, as Markdown."""
    yield "| workload | default [ms] | bits | deterministic [ms] | bits | quotient |"
    yield "|---|--:|--:|--:|--:|--:|"
    for make in WORKLOADS:
        pairs = [[apart(make, threads, option) for option in (False, True)] for _ in range(TURNS)]
        (a, seen), (b, alike) = (
            (min(p[k][0] for p in pairs), max(p[k][1] for p in pairs)) for k in (0, 1)
        )
        assert alike == 1, make.__doc__
        yield f"| {make.__doc__.rstrip('.')} | {a:.2f} | {seen} | {b:.2f} | {alike} | {b / a:.2f} |"


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in deterministic.md")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, threads, option = options.one
        print(*measure(globals()[name], int(threads), option == "1"))
        return
    threads = len(os.sched_getaffinity(0))
    lines = [
        "# What deterministic=True costs",
        "",
        f"Made by `python benchmarks/deterministic.py --write`, on {threads} threads.",
        f"`bits`: different results in {LAUNCHES} launches. The option may have only one.",
        "",
    ]
    for line in table(threads):
        print(line, flush=True)
        lines.append(line)
    if options.write:
        write_text(Path(__file__).with_suffix(".md"), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
