"""What the ways of keeping the past cost: a time axis, in_place="save", ds.ad.checkpoint, tape.replay().

python benchmarks/in_place.py            # both programs
python benchmarks/in_place.py --quick    # small sizes and few rounds: does everything work?
python benchmarks/in_place.py --write    # and put the table into docs/autodiff.md

Two programs, each along a time axis and in place, from the same text:

    PingPong    10,000 numbers, 32 steps of logistic growth, from one field into another one and back
    Particles   mpm88's liquid: 8,192 particles on a grid of 128 x 128 nodes, 32 steps

A round is one step of an optimisation: the tape's block, the backward pass, and a kernel that changes the
inputs. The ways take turns, and their gradients are compared. Bytes are those of the fields, with their
gradients, and of all that the tape or the rollout copies. Times are those of the processor, on one thread, as
those of a clock would be of what else runs on the machine.
"""

import argparse
from pathlib import Path
from time import process_time as now

import numpy as np
from tables import write_rows

import diffsim as ds

PAGE = Path(__file__).resolve().parents[1] / "docs" / "autodiff.md"
MARK = "<!-- measured: python benchmarks/in_place.py --write -->"
STEPS = 32
REAL = ds.f32  # of all numbers


class Program:
    """A program of STEPS steps, and its inputs `x`.

    Attributes:
        in_place: whether its state is overwritten; else row t of each field is the state of step t.
        state: the fields that lead from one step to the next.
        start, step, finish: its parts: kernels, or functions that launch them.
        update: a kernel that changes the inputs.
    """

    def __init__(self, x, *, in_place):
        self.in_place = in_place
        self.x, self.loss = x, ds.field(REAL, (), needs_grad=True)
        self.fields = [x, self.loss]

        @ds.kernel
        def update():
            for i in x:
                x[i] -= 1e-4 * x.grad[i]

        self.update = update

    def made(self, *fields):
        self.fields += fields
        return fields

    def bytes(self):
        """Of all fields and their gradients."""
        return 2 * sum(f.storage.layout.nbytes for f in self.fields)

    def run(self):
        self.start()
        for t in range(STEPS):
            self.step(t)
        self.finish()

    def run_checkpointed(self):
        self.start()
        took = ds.ad.checkpoint(self.step, STEPS, state=self.state)
        self.finish()
        return took


class PingPong(Program):
    """Numbers in two fields that take turns, or along a time axis: x -> x + x (1 - x) / 20."""

    def __init__(self, *, in_place, quick=False):
        n = 100 if quick else 10_000
        self.title = f"{n:,} numbers, {STEPS} cheap steps"
        super().__init__(ds.field(REAL, n, needs_grad=True), in_place=in_place)
        rows = 1 if in_place else STEPS + 1
        self.state = self.made(
            *(ds.field(REAL, (rows, n), needs_grad=True) for _ in range(1 + in_place))
        )
        self._ends(n)
        if in_place:
            steps = self._step(n, *self.state), self._step(n, *reversed(self.state))
            self.step = lambda t: steps[t % 2](0)
        else:
            self.step = self._step(n, *self.state, *self.state)
        self.x.from_numpy(np.linspace(0.1, 0.9, n, dtype=REAL.numpy))

    def _step(self, n, u, v):
        shift = 0 if self.in_place else 1

        @ds.kernel
        def step(t: ds.i32):
            for i in range(n):
                v[t + shift, i] = u[t, i] + 0.05 * u[t, i] * (1.0 - u[t, i])

        return step

    def _ends(self, n):
        x, loss, u = self.x, self.loss, self.state[0]
        last = 0 if self.in_place else STEPS

        @ds.kernel
        def start():
            for i in range(n):
                u[0, i] = x[i]

        @ds.kernel
        def finish():
            for i in range(n):
                loss[None] += u[last, i] / n

        self.start, self.finish = start, finish


class Particles(Program):
    """A weakly compressible liquid as moving-least-squares particles, after mpm88 [SI units, thickness 1].

    The inputs are the velocities at the start; the loss is the mean height at the end.
    """

    def __init__(self, *, in_place, quick=False):
        n, cells = (256, 32) if quick else (8192, 128)
        self.title = f"{n:,} particles, {STEPS} heavy steps"
        vec, mat = ds.Vector.field, ds.Matrix.field
        super().__init__(vec(2, REAL, n, needs_grad=True), in_place=in_place)
        rows = 1 if in_place else STEPS + 1
        x, v = self.made(*(vec(2, REAL, (rows, n), needs_grad=True) for _ in range(2)))
        C, J = self.made(
            mat(2, 2, REAL, (rows, n), needs_grad=True), ds.field(REAL, (rows, n), needs_grad=True)
        )
        grid = (rows, cells, cells)
        momentum, flow = self.made(*(vec(2, REAL, grid, needs_grad=True) for _ in range(2)))
        (mass,) = self.made(ds.field(REAL, grid, needs_grad=True))
        self.state = [x, v, C, J]
        self.n, self.cells = n, cells
        self.first = ds.Vector.field(2, REAL, n)
        self._ends(x, v, C, J)
        self._steps(x, v, C, J, momentum, flow, mass)
        places = (np.random.default_rng(1).random((n, 2)) * 0.6 + 0.2).astype(np.float32)
        cell = (places * cells).astype(int)
        places = places[np.argsort(cell[:, 0] * cells + cell[:, 1], kind="stable")]
        self.first.from_numpy(places)
        self.x.from_numpy(np.stack([np.sin(6 * places[:, 1]), np.cos(5 * places[:, 0])], 1))

    def _ends(self, x, v, C, J):
        n, first, speed, loss = self.n, self.first, self.x, self.loss
        last = 0 if self.in_place else STEPS

        @ds.kernel
        def start():
            for p in range(n):
                x[0, p], v[0, p], J[0, p] = first[p], speed[p], 1.0
                C[0, p] = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])

        @ds.kernel
        def finish():
            for p in range(n):
                loss[None] += x[last, p][1] / n

        self.start, self.finish = start, finish

    def _steps(self, x, v, C, J, momentum, flow, mass):  # noqa: C901 - kernels of one simulation
        n, cells, in_place = self.n, self.cells, self.in_place
        inv, dx, dt = float(cells), 1 / cells, 1e-4
        volume = mass_of_one = 0.36 / n
        stiffness, wall = 400.0, 3

        @ds.func
        def now(t):
            return 0 if ds.static(in_place) else t

        @ds.func
        def following(t):
            return 0 if ds.static(in_place) else t + 1

        @ds.kernel
        def clear(t: ds.i32):
            for i, j in ds.ndrange(cells, cells):
                momentum[now(t), i, j] = ds.Vector([0.0, 0.0])
                mass[now(t), i, j] = 0.0

        @ds.kernel
        def to_grid(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[now(t), p] * inv - 0.5, ds.i32)
                f = x[now(t), p] * inv - ds.cast(base, REAL)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                stress = -dt * 4 * inv * inv * volume * stiffness * (J[now(t), p] - 1.0)
                affine = ds.Matrix([[stress, 0.0], [0.0, stress]]) + mass_of_one * C[now(t), p]
                for i, j in ds.static(ds.ndrange(3, 3)):
                    away = (ds.cast(ds.Vector([i, j]), REAL) - f) * dx
                    weight = w[i][0] * w[j][1]
                    part = weight * (mass_of_one * v[now(t), p] + affine @ away)
                    momentum[now(t), base[0] + i, base[1] + j] += part
                    mass[now(t), base[0] + i, base[1] + j] += weight * mass_of_one

        @ds.kernel
        def on_grid(t: ds.i32):
            for i, j in ds.ndrange(cells, cells):
                new = momentum[now(t), i, j] / (mass[now(t), i, j] + 1e-10)
                new[1] -= dt * 9.8
                if (i < wall and new[0] < 0.0) or (i > cells - wall and new[0] > 0.0):
                    new[0] = 0.0
                if (j < wall and new[1] < 0.0) or (j > cells - wall and new[1] > 0.0):
                    new[1] = 0.0
                flow[now(t), i, j] = new

        @ds.kernel
        def to_particles(t: ds.i32):
            for p in range(n):
                base = ds.cast(x[now(t), p] * inv - 0.5, ds.i32)
                f = x[now(t), p] * inv - ds.cast(base, REAL)
                w = [0.5 * (1.5 - f) ** 2, 0.75 - (f - 1.0) ** 2, 0.5 * (f - 0.5) ** 2]
                velocity = ds.Vector([0.0, 0.0])
                slope = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
                for i, j in ds.static(ds.ndrange(3, 3)):
                    away = ds.cast(ds.Vector([i, j]), REAL) - f
                    part = w[i][0] * w[j][1] * flow[now(t), base[0] + i, base[1] + j]
                    velocity += part
                    slope += 4 * inv * part.outer_product(away)
                v[following(t), p] = velocity
                C[following(t), p] = slope
                J[following(t), p] = J[now(t), p] * (1.0 + dt * slope.trace())
                x[following(t), p] = x[now(t), p] + dt * velocity

        def step(t):
            clear(t)
            to_grid(t)
            on_grid(t)
            to_particles(t)

        self.step = step


class Way:
    """One way of a program's gradient: `round` is a step of the optimisation without the update."""

    def __init__(self, name, program):
        self.name, self.program = name, program
        self.times = []
        self.copies = 0

    def round(self):
        with ds.Tape(self.program.loss):
            self.program.run()

    def time(self, rounds):
        """Time so many rounds in a row, after two that compile and clear the gradients of other ways."""
        for number in range(rounds + 2):
            start = now()
            self.round()
            self.program.update()
            if number > 1:
                self.times.append((now() - start) * 1e3)
        self.gradient = self.program.x.grad.to_numpy()


class Saved(Way):
    """in_place="save", with a Tape of its own for each round."""

    def round(self):
        with ds.Tape(self.program.loss, in_place="save") as tape:
            self.program.run()
        self.copies = tape.stats().saved_bytes


class Checkpointed(Way):
    """ds.ad.checkpoint, with as many snapshots as it chooses."""

    def round(self):
        with ds.Tape(self.program.loss, in_place="save"):
            took = self.program.run_checkpointed()
        self.copies = took.peak_bytes


class Replayed(Way):
    """One tape, recorded once."""

    def __init__(self, name, program):
        super().__init__(name, program)
        self.tape = None

    def round(self):
        if self.tape is None:
            self.tape = ds.Tape(self.program.loss, in_place="save")
            with self.tape:
                self.program.run()
            return
        self.tape.replay()
        self.tape.backward()
        self.copies = self.tape.stats().saved_bytes


def ways(program, *, quick):
    """The ways to the gradient, each with fields of its own."""
    in_place = [program(in_place=True, quick=quick) for _ in range(3)]
    return [
        Way("time axis", program(in_place=False, quick=quick)),
        Replayed("time axis, `tape.replay()`", program(in_place=False, quick=quick)),
        Saved('`in_place="save"`', in_place[0]),
        Replayed('`in_place="save"`, `tape.replay()`', in_place[1]),
        Checkpointed("`ds.ad.checkpoint`", in_place[2]),
    ]


def measure(program, *, quick):
    """Return the ways of a program, with their times [ms]."""
    found = ways(program, quick=quick)
    for _ in range(2 if quick else 10):
        for way in found:
            way.time(2 if quick else 8)
    exact = found[0].gradient.astype(np.float64)
    for way in found[1:]:
        error = np.abs(way.gradient - exact).max() / np.abs(exact).max()
        assert error < 1e-3, (way.name, error)
    return found


def table(program, *, quick):
    """The rows of a program, as Markdown."""
    found = measure(program, quick=quick)
    base = min(found[0].times)
    lines = [f"| *{found[0].program.title}* | | | | |"]
    for way in found:
        best = min(way.times)
        sizes = f"{way.program.bytes() / 1e6:.2f} | {way.copies / 1e6:.2f}"
        lines.append(f"| {way.name} | {sizes} | {best:.2f} | {best / base:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--write", action="store_true", help="put the table into docs/autodiff.md")
    args = parser.parse_args()
    ds.init(arch=ds.cpu, cpu_max_num_threads=1)
    head = (
        "| | fields [MB] | copies [MB] | time [ms] | times the time axis |\n|---|--:|--:|--:|--:|"
    )
    made = [head, *(table(program, quick=args.quick) for program in (PingPong, Particles))]
    print("\n".join(made))
    if args.write:
        write_rows(PAGE, MARK, "\n".join(made))


if __name__ == "__main__":
    main()
