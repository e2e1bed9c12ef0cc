"""Random periodic stencils over whole boxes, in time: what lanes gather for their elements on a torus.

Neighbours modulo the length of an axis, once or twice, in branches that the data choose, of fields and of
vectors; parameters of all lanes, of rows and of cells; sums; additions by the program itself. Sizes are
numbers of the text or arguments. All data are whole and small, so sums are exact in any order, and the
gradients are compared bit by bit with those of the interpreter, which runs the adjoint as it is made: one
lane after the other, scattered.
"""

import linecache
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.cpu import chunks, codegen, trailing_task
from diffsim.errors import DiffsimError

STEPS = 2
SIZES = [*[(22, 23), (24, 22)] * 4, (24, 3), (3, 24), (1, 22), (2, 23), (100, 20)]
NAMES = "u v w p r m c e total".split()


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(f"torus {seed}")
        self.plain = self.r.random() < 0.5
        self.h, self.w = self.pick(*SIZES, *[(100, 20)] * 8 * self.plain)
        self.far = self.r.randint(4, 9)
        # One such index keeps all additions to a memory where they are.
        self.stops = self.r.random() < 0.15
        self.lines = []

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        known = self.r.random() < 0.7
        self.put(0, f"H, W = {self.h}, {self.w}")
        self.put(0, "@ds.kernel")
        self.put(0, f"def step(t: ds.i32{'' if known else ', H: ds.i32, W: ds.i32'}):")
        # Boxes that are no whole torus, too.
        rows = self.pick(*["H"] * 9, "(1, H)", "H - 1" if self.h > 1 else "H")
        self.put(1, f"for i, j in ds.ndrange({rows}, {self.pick(*['W'] * 9, '(0, W - 1)')}):")
        (self.moved if self.r.random() < 0.05 else self.cells)()
        self.put(0, "def main():")
        self.put(1, f"for t in range({STEPS}):")
        self.put(2, "step(t)" if known else "step(t, H, W)")
        return "\n".join(self.lines) + "\n"

    def cells(self):
        """What cells get of their neighbours."""
        # Without sums over lanes clears may trail.
        self.values = ["1.0"] if self.plain else ["1.0", "p[0]"]
        # An axis that an index has twice.
        self.twice = not self.plain and self.r.random() < 0.1
        for k in range(self.r.randint(0 if self.plain else 1, 3)):
            self.put(2, f"a{k} = {self.sum()}")
            if self.r.random() < 0.4:
                self.put(2, f"if {self.value()} > {self.pick('0', '1', self.value())}:")
                self.put(3, f"a{k} {self.pick('=', '+=')} {self.sum()}")
            self.values.append(f"a{k}")
        for name in "u" if self.plain else self.r.sample("uvw", self.r.randint(1, 3)):
            value = f"ds.Vector([{self.sum()}, {self.sum()}])" if name == "w" else self.sum()
            self.put(2, f"{name}[t + 1, i, j] = {value}")
        if not self.plain and self.r.random() < 0.3:
            self.put(2, f"if {self.pick('a0 > 0', 'i > 0', 'j < W - 1', 't == 0')}:")
            self.put(3, f"total[None] += {self.sum()}")
        if self.r.random() < 0.2 * (not self.plain):
            self.put(2, f"{self.pick('total[None]', 'r[i]')} += {self.sum()}")
        if self.r.random() < 0.2 * (not self.plain):
            self.put(2, f"v[t + 1, {self.place()}] += {self.sum()}")
        elif self.r.random() < 0.1 * (not self.plain):
            self.moved()

    def moved(self):
        """Lanes add to neighbours what they load of their own, and change that afterwards."""
        for _ in range(2):
            self.put(2, f"e[1, {self.place()}] += {self.pick('', '2.0 * ')}e[0, i, j]")
        self.put(2, f"e[0, i, j] {self.pick('+= 1.0', '+= p[0]', '= 0.0', '= p[0]')}")

    def along(self, axis, n):
        k = self.pick(1, 1, 1, 2, 3, self.far)
        return self.pick(
            axis,
            axis,
            f"({axis} + {k}) % {n}",
            f"({axis} - {k}) % {n}",
            f"({axis} - {k} + {n}) % {n}",
            f"(({axis} + {k}) % {n} + 1) % {n}",
            f"(({axis} + 1) % {n} + {n} - 1) % {n}",
            *[f"({axis} + {k} if {axis} + {k} < {n} else {axis})"] * self.stops,
        )

    def place(self):
        return f"{self.along('i', 'H')}, {self.along('j', 'W')}"

    def value(self):
        if self.plain:
            return self.pick(f"u[t, {self.place()}]", *self.values)
        if self.twice and self.r.random() < 0.5:
            return f"c[i, {self.place()}]"
        return self.pick(
            f"u[t, {self.place()}]",
            f"u[t, {self.place()}]",
            f"v[t, {self.place()}]",
            f"w[t, {self.place()}][{self.pick('0', '1')}]",
            f"m[{self.pick('i, j', self.place())}]",
            f"r[{self.pick('i', 'j % H', self.along('i', 'H'))}]",
            *self.values,
            *self.values[-1:],
        )

    def sum(self):
        found = self.value()
        for _ in range(self.r.randint(1, 3)):
            found = f"({found} {self.pick('+', '-')} {self.pick('', '', '2.0 * ')}{self.value()})"
        # One product: numbers stay small enough to be exact.
        factors = [self.value()] if self.plain else ["p[0]", "r[i]", "m[i, j]"]
        return f"{found} * {self.pick('1.0', *factors)}"


def make(seed):
    """The text of a program."""
    return Maker(seed).text()


def _run(text, seed, arch):
    """What the fields hold afterwards, and their gradients."""
    ds.init(arch=arch, default_fp=ds.f64, cpu_max_num_threads=1 + seed % 2)
    head = text.split("\n", 1)[0]
    h, w = (int(n) for n in head.partition("=")[2].split(","))
    shapes = dict.fromkeys("uvw", (STEPS + 1, h, w)) | {"p": 1, "r": h, "m": (h, w), "total": ()}
    shapes |= {"c": (h, h, w) if "c[i, " in text else (1, 1, 1), "e": (2, h, w)}
    fields = {
        k: ds.Vector.field(2, ds.f64, shapes[k], needs_grad=True)
        if k == "w"
        else ds.field(ds.f64, shapes[k], needs_grad=True)
        for k in NAMES
    }
    rng = np.random.default_rng(seed)
    for f in fields.values():
        values = f.to_numpy()
        f.from_numpy(rng.integers(-1, 2, values.shape).astype(float))
    file = f"<torus {seed} {arch}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, **fields}
    exec(compile(text, file, "exec"), space)
    space["main"]()
    for f in fields.values():
        f.grad.from_numpy(rng.integers(-2, 3, f.grad.to_numpy().shape).astype(float))
    step, sizes = space["step"], (h, w) if "H: ds.i32" in text else ()
    for t in reversed(range(STEPS)):
        step.grad(t, *sizes)
    return {k: f.to_numpy() for k, f in fields.items()} | {
        f"{k}.grad": f.grad.to_numpy() for k, f in fields.items()
    }


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    before = chunks._CHUNK_WORK, codegen._FEWEST_CHUNKS, trailing_task._LARGE
    # Chunks so small that clears trail the sums.
    chunks._CHUNK_WORK = [20, 200, before[0]][seed % 3]
    codegen._FEWEST_CHUNKS = [2, 2, before[1]][seed % 3]
    trailing_task._LARGE = 0
    try:
        there = _run(text, seed, ds.python)
        ours = _run(text, seed, ds.cpu)
    except DiffsimError:
        return "refused"
    finally:
        chunks._CHUNK_WORK, codegen._FEWEST_CHUNKS, trailing_task._LARGE = before
    for k, value in there.items():
        if np.abs(value).max() > 2.0**50:
            return "invalid"
        if not np.array_equal(value, ours[k]):
            return f"{k}: off by {np.abs(value - ours[k]).max()}"
    return "right"
