"""What launches with 1, 4 and 8 tangents take, in launches without: ds.ad.FwdMode.

python benchmarks/forward_mode.py            # four programs, in f32 and f64
python benchmarks/forward_mode.py --quick    # small sizes and few rounds: does everything work?
python benchmarks/forward_mode.py --write    # and put the table into docs/forward-mode.md

    stencil      heat on 512 x 512 points
    bodies       all pairs of 512 bodies
    particles    30,000 particles to a grid and back
    springs      a chain of 400,000 springs

Launches with and without tangents take turns; the least time of each counts, on one thread of the processor.
"""

import argparse
from pathlib import Path
from time import process_time as now

import numpy as np
from tables import write_rows

import diffsim as ds

PAGE = Path(__file__).resolve().parents[1] / "docs" / "forward-mode.md"
MARK = "<!-- measured: python benchmarks/forward_mode.py --write -->"
COUNTS = 1, 4, 8


class Program:
    """A launch or two, `run`, from a field `x` to a field `y`."""

    def __init__(self, title, x, y, start, *kernels):
        self.title = title
        self.x, self.y = x, y
        self.start = start
        self.kernels = kernels
        x.from_numpy(start)

    def run(self):
        for kernel in self.kernels:
            kernel()


def stencil(real, quick):
    n = 16 if quick else 512
    a, b = ds.field(real, (n, n)), ds.field(real, (n, n))

    @ds.kernel
    def step():
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            around = a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]
            b[i, j] = a[i, j] + 0.1 * (around - 4.0 * a[i, j]) * a[i, j]

    return Program(f"a stencil, {n} x {n}", a, b, numbers(real, n, n), step)


def bodies(real, quick):
    n = 8 if quick else 512
    x, force = ds.Vector.field(3, real, n), ds.Vector.field(3, real, n)

    @ds.kernel
    def pull():
        for i in range(n):
            total = ds.Vector([ds.cast(0.0, real)] * 3)
            for j in range(n):
                d = x[j] - x[i]
                r = d.dot(d) + 0.01
                total += d / (r * ds.sqrt(r))
            force[i] = total

    return Program(f"all pairs of {n} bodies", x, force, numbers(real, n, 3), pull)


def particles(real, quick):
    n, cells = (20, 8) if quick else (30_000, 128)
    x, speed, mass = (
        ds.Vector.field(2, real, n),
        ds.Vector.field(2, real, n),
        ds.field(real, (cells, cells)),
    )

    @ds.func
    def weights(w):
        return [0.5 * (1.5 - w) ** 2, 0.75 - (w - 1.0) ** 2, 0.5 * (w - 0.5) ** 2]

    @ds.kernel
    def to_grid():
        for i, j in mass:
            mass[i, j] = 0.0
        for p in range(n):
            base = ds.cast(x[p] - 0.5, ds.i32)
            q = weights(x[p] - ds.cast(base, real))
            for i, j in ds.static(ds.ndrange(3, 3)):
                mass[base.x + i, base.y + j] += q[i].x * q[j].y

    @ds.kernel
    def back():
        for p in range(n):
            base = ds.cast(x[p] - 0.5, ds.i32)
            q = weights(x[p] - ds.cast(base, real))
            total = ds.cast(0.0, real)
            for i, j in ds.static(ds.ndrange(3, 3)):
                total += q[i].x * q[j].y * mass[base.x + i, base.y + j]
            speed[p].x = total

    start = numbers(real, n, 2) * (cells - 4) + 2
    return Program(f"{n:,} particles to a grid and back", x, speed, start, to_grid, back)


def springs(real, quick):
    n = 20 if quick else 400_000
    x, force = ds.Vector.field(2, real, n), ds.Vector.field(2, real, n)

    @ds.kernel
    def pull():
        for i in range(n - 1):
            d = x[i + 1] - x[i]
            length = d.norm() + 0.001
            force[i] = (length - 1.0) / length * d

    return Program(
        f"a chain of {n:,} springs, limited by memory", x, force, numbers(real, n, 2), pull
    )


PROGRAMS = stencil, bodies, particles, springs


def numbers(real, *shape):
    return np.random.default_rng(1).random(shape).astype(real.numpy)


def tangents(program, count):
    """Run with so many tangents; return the seeds, and the tangents of y."""
    shape = (count, *program.start.shape)
    seeds = np.random.default_rng(count).normal(size=shape).astype(program.start.dtype)
    with ds.ad.FwdMode(param=program.x, seed=seeds) as forward:
        program.run()
    return seeds, forward.tangents(program.y)


def measure(program, *, quick):
    """Return the time of a run without tangents, and with each number of them [s]."""
    best = dict.fromkeys((0, *COUNTS), np.inf)
    seeds = {k: np.ones((k, *program.start.shape), program.start.dtype) for k in COUNTS}
    for _ in range(1 if quick else 15):
        best[0] = min(best[0], shortest(program, quick=quick))
        for count in COUNTS:
            with ds.ad.FwdMode(param=program.x, seed=seeds[count]):
                best[count] = min(best[count], shortest(program, quick=quick))
    return best


def shortest(program, *, quick):
    """The least time of some runs, after one that may compile."""
    program.run()
    times = []
    # Short runs are many: what else the processor does takes its caches away from most of them.
    while len(times) < (1 if quick else 4) or (not quick and sum(times) < 0.02):
        start = now()
        program.run()
        times.append(now() - start)
    return min(times)


def shown(ratio):
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def row(make, *, quick):
    """One row of the table, as Markdown."""
    cells = []
    for real in (ds.f32, ds.f64):
        program = make(real, quick)
        best = measure(program, quick=quick)
        base = max(best[0], 1e-9)  # of the smallest sizes the clock may see nothing
        cells += [shown(best[k] / base) for k in COUNTS]
    return f"| {program.title} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/forward-mode.md"
    )
    args = parser.parse_args()
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    head = ["kernel", *(f"{t}: {k}" for t in ("f32", "f64") for k in COUNTS)]
    made = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for make in PROGRAMS:
        made.append(row(make, quick=args.quick))
        print(made[-1], flush=True)
    if args.write:
        write_rows(PAGE, MARK, "\n".join(made))


if __name__ == "__main__":
    main()
