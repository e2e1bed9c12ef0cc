"""What a product with the Hessian matrix takes, in gradients: ds.ad.hvp against ds.Tape(in_place="save").

    python benchmarks/second_order.py            three programs, in f64
    python benchmarks/second_order.py --quick    small sizes and few rounds: does everything work?
    python benchmarks/second_order.py --write    and keep the table, second_order.md

    heat         40 steps of a heat equation whose conductivity depends on the temperature
    springs      40 steps of masses on springs, in place
    mpm          20 steps of a liquid of particles and a grid, in place

Gradients and products take turns, on one thread; the least time of each counts. Memory is the most that NumPy
and Python held at once, fields, tape and result, without the code and the vector; each in a process of its
own, after a first run that compiles.
"""

import argparse
import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path
from time import process_time as now

import numpy as np

import diffsim as ds
from diffsim.ad.repeat import past
from diffsim.runtime.files import write_text
from diffsim.runtime.memory.storage import HostStorage

PAGE = Path(__file__).with_name("second_order.md")
WAYS = "gradient", "hvp"


class Program:
    """A function that launches kernels, from fields that it starts from, to a loss."""

    def __init__(self, title, run, x, loss):
        self.title = title
        self.run = run
        self.x = x
        self.loss = loss
        self.vector = np.random.default_rng(2).normal(size=x.shape + x.element)

    def gradient(self):
        with ds.Tape(self.loss, in_place="save"):
            self.run()
        return self.x.grad.to_numpy()

    def hvp(self):
        return ds.ad.hvp(self.run, self.x, self.vector, loss=self.loss)


def numbers(*shape):
    return np.random.default_rng(1).random(shape)


def field(*shape, n=None):
    if n:
        return ds.Vector.field(n, ds.f64, shape, needs_grad=True)
    return ds.field(ds.f64, shape, needs_grad=True)


def heat(quick):
    n, steps = (8, 4) if quick else (256, 40)
    x, a, b, loss = field(n, n), field(n, n), field(n, n), field()
    x.from_numpy(numbers(n, n))

    @ds.func
    def flow(p, q):
        return (1.0 + 0.25 * (p + q) ** 2) * (p - q)

    @ds.kernel
    def begin():
        for i, j in x:
            a[i, j] = x[i, j]
            b[i, j] = x[i, j]

    def step(old, new):
        @ds.kernel
        def spread():
            for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
                around = flow(old[i - 1, j], old[i, j]) + flow(old[i + 1, j], old[i, j])
                new[i, j] = old[i, j] + 0.1 * (
                    around + flow(old[i, j - 1], old[i, j]) + flow(old[i, j + 1], old[i, j])
                )

        return spread

    there, back = step(a, b), step(b, a)

    @ds.kernel
    def total():
        for i, j in a:
            loss[None] += a[i, j] ** 4

    def run():
        begin()
        for _ in range(steps // 2):
            there()
            back()
        total()

    return Program(f"heat, {n} x {n}, {steps} steps", run, x, loss)


def springs(quick):
    n, steps = (10, 4) if quick else (20_000, 40)
    start, x, v, loss = field(n, n=2), field(n, n=2), field(n, n=2), field()
    start.from_numpy(np.stack([np.arange(n) * 0.1, 0.02 * numbers(n)], axis=1))
    x.from_numpy(start.to_numpy())

    @ds.kernel
    def begin():
        for i in x:
            x[i] = start[i]
            v[i] = ds.Vector([0.0, 0.0])

    @ds.kernel
    def pull():
        for i in range(n - 1):
            d = x[i + 1] - x[i]
            length = d.norm()
            force = 100.0 * (length - 0.09) / length * d
            v[i] += 0.01 * force
            v[i + 1] -= 0.01 * force

    @ds.kernel
    def move():
        for i in x:
            v[i].y -= 0.0981
            x[i] += 0.01 * v[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i].dot(x[i]) * v[i].dot(v[i])

    def run():
        begin()
        for _ in range(steps):
            pull()
            move()
        total()

    return Program(f"{n:,} masses on springs, {steps} steps", run, start, loss)


def mpm(quick):
    n, cells, steps = (12, 8, 3) if quick else (8_000, 64, 20)
    dx = 1.0 / cells
    dt, volume, stiffness = 0.1 * dx**2, (0.5 * dx) ** 2, 100.0
    start, x, v, density = field(n, n=2), field(n, n=2), field(n, n=2), field(n)
    affine = ds.Matrix.field(2, 2, ds.f64, n, needs_grad=True)
    momentum, mass, loss = field(cells, cells, n=2), field(cells, cells), field()
    start.from_numpy(0.4 * numbers(n, 2) + 0.3)

    begin, total = ends_of_mpm(start, x, v, density, affine, loss)

    @ds.func
    def weights(w):
        return [0.5 * (1.5 - w) ** 2, 0.75 - (w - 1.0) ** 2, 0.5 * (w - 0.5) ** 2]

    @ds.kernel
    def to_grid():
        for i, j in mass:
            mass[i, j] = 0.0
            momentum[i, j] = ds.Vector([0.0, 0.0])
        for p in x:
            base = ds.cast(x[p] / dx - 0.5, ds.i32)
            fx = x[p] / dx - ds.cast(base, ds.f64)
            w = weights(fx)
            stress = -dt * 4.0 * stiffness * volume * (density[p] ** 2 - 1.0) / dx**2
            inner = ds.Matrix([[stress, 0.0], [0.0, stress]]) + volume * affine[p]
            for i, j in ds.static(ds.ndrange(3, 3)):
                d = (ds.Vector([i, j]) - fx) * dx
                part = w[i].x * w[j].y
                momentum[base + ds.Vector([i, j])] += part * (volume * v[p] + inner @ d)
                mass[base + ds.Vector([i, j])] += part * volume

    @ds.kernel
    def on_grid():
        for i, j in mass:
            if mass[i, j] > 0.0:
                momentum[i, j] = momentum[i, j] / mass[i, j]
            momentum[i, j].y -= dt * 9.8

    @ds.kernel
    def from_grid():
        for p in x:
            base = ds.cast(x[p] / dx - 0.5, ds.i32)
            fx = x[p] / dx - ds.cast(base, ds.f64)
            w = weights(fx)
            speed = ds.Vector([0.0, 0.0])
            turn = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ds.static(ds.ndrange(3, 3)):
                d = (ds.Vector([i, j]) - fx) * dx
                g = w[i].x * w[j].y * momentum[base + ds.Vector([i, j])]
                speed += g
                turn += 4.0 / dx**2 * g.outer_product(d)
            v[p] = speed
            affine[p] = turn
            density[p] *= 1.0 + dt * turn.trace()
            x[p] += dt * speed

    def run():
        begin()
        for _ in range(steps):
            to_grid()
            on_grid()
            from_grid()
        total()

    title = f"{n:,} particles on a grid of {cells} x {cells} (MPM), {steps} steps"
    return Program(title, run, start, loss)


def ends_of_mpm(start, x, v, density, affine, loss):
    """The kernels before the first step of `mpm`, and after the last one."""

    @ds.kernel
    def begin():
        for p in x:
            x[p] = start[p]
            v[p] = ds.Vector([ds.sin(9.0 * start[p].y), -1.0])
            density[p] = 1.0
            affine[p] = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])

    @ds.kernel
    def total():
        for p in x:
            loss[None] += v[p].dot(v[p]) * x[p].y + density[p] ** 2

    return begin, total


PROGRAMS = {"heat": heat, "springs": springs, "mpm": mpm}


def init():
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=1)


def times(program, *, quick):
    """The least time of a gradient, and of a product [s]."""
    ways = [getattr(program, way) for way in WAYS]
    best = [np.inf, np.inf]
    for turn in range(2 if quick else 12):
        for k, way in enumerate(ways):
            start = now()
            way()
            if turn:  # the first one compiles
                best[k] = min(best[k], now() - start)
    return best


def memory(name, way, *, quick):
    """The most bytes that fields and tape take at once, in a process of its own."""
    command = [sys.executable, __file__, "--memory", name, way, *(["--quick"] * quick)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak(name, way, *, quick):
    """The same, in this process."""
    init()
    tracemalloc.start()
    program = PROGRAMS[name](quick)
    run = getattr(program, way)
    run()  # compiles
    gc.collect()
    past._waiting.clear()  # memory of the first run's tape
    fields = sum(s.layout.nbytes for s in gc.get_objects() if isinstance(s, HostStorage))
    rest = tracemalloc.get_traced_memory()[0] - fields
    tracemalloc.reset_peak()
    run()
    return tracemalloc.get_traced_memory()[1] - rest


def row(name, *, quick):
    """One row of the table, as Markdown."""
    init()
    program = PROGRAMS[name](quick)
    gradient, product = times(program, quick=quick)
    less, more = (memory(name, way, quick=quick) for way in WAYS)
    gradient = max(gradient, 1e-9)  # of the smallest sizes the clock may see nothing
    return (
        f"| {program.title} | {gradient * 1e3:.1f} | {product * 1e3:.1f} | {product / gradient:.1f} "
        f"| {less / 1e6:.1f} | {more / 1e6:.1f} | {more / less:.2f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--write", action="store_true", help="keep the table, second_order.md")
    parser.add_argument("--memory", nargs=2, metavar=("PROGRAM", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        print(peak(*args.memory, quick=args.quick))
        return
    made = [
        "# What a product with the Hessian takes\n",
        "Made by `python benchmarks/second_order.py --write`, in f64 on one thread; the gradient is that of "
        '`ds.Tape(in_place="save")`.\n',
        "| program | gradient [ms] | hvp [ms] | quotient | gradient [MB] | hvp [MB] | quotient |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(made))
    for name in PROGRAMS:
        made.append(row(name, quick=args.quick))
        print(made[-1], flush=True)
    if args.write:
        write_text(PAGE, "\n".join(made) + "\n")


if __name__ == "__main__":
    main()
