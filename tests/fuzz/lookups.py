"""Random kernels that look up numbers in small tables, which registers hold where the processor can.

Tables of one or two axes, of vectors and of integers, of sizes around what one register has; indices that
are loaded, rounded, clamped or moved; tables that another task, or a lane itself, writes. All numbers are
whole and small, so what vectors of lanes compute (and their gradient) is compared bit by bit with the
interpreter.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from tests.support import bits

LANES = (1, 63, 64, 100, 1100)
SHAPES = [
    (9,),
    (63,),
    (64,),
    (65,),
    (128,),
    (129,),
    (200,),
    (255,),
    (256,),
    (257,),
    (16, 16),
    (5, 13),
]


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.shapes = [self.r.choice(SHAPES) for _ in range(3)]
        # The last table has vectors for elements, if there is room.
        self.width = self.r.choice([1, 2, 3]) if np.prod(self.shapes[2]) < 130 else 1
        self.kinds = [self.r.choice(["f", "f", "i"]) for _ in range(2)] + ["f"]

    def text(self):
        r = self.r
        lines = ["@ds.kernel", "def run(n: ds.i32, away: ds.i32):"]
        if r.random() < 0.3:
            lines += ["    for j in range(8):", f"        {self.element(0, 'j')} += 1"]
        lines += [
            "    for i in range(n):",
            "        k = at[i]",
            "        m = ds.cast(x[i], ds.i32)",
        ]
        locals_ = ["x[i]", "1"]
        for number in range(r.randint(1, 5)):
            where = r.randrange(3)
            first = self.index()
            there = [first, self.moved(first)][: r.randint(1, 2)]
            terms = [f"{r.randint(-2, 2)} * {self.element(where, p)}" for p in there]
            line = f"t{number} = {' + '.join(terms)} + {r.choice(locals_)}"
            branch = r.random() < 0.1
            if branch:
                lines += [f"        t{number} = 0.0", "        if k > 3:"]
            lines.append(f"        {'    ' * branch}{line}")
            locals_.append(f"t{number}")
        if r.random() < 0.15:
            lines.append(f"        {self.element(2, 'k')} += 1.0")
        lines.append(f"        y[i] {r.choice(['=', '+='])} {' + '.join(locals_)}")
        if r.random() < 0.3:
            lines.append(f"        c[i] = ds.Vector([x[i], t0, {locals_[-1]}])")
        return "\n".join(lines) + "\n"

    def index(self):
        """A number from 1 to 6."""
        return self.r.choice(["k", "m", "(k + m) // 2", "ds.min(k, m)", "(k - 1 + away)", "away"])

    def moved(self, index):
        return f"({index} {self.r.choice(['+ 1', '- 1', '+ 0'])})"

    def element(self, where, index):
        """An element of a table, near its beginning or its end."""
        shape = self.shapes[where]
        ends = [f"{n - 1} - {index}" if n > 8 and self.r.random() < 0.5 else index for n in shape]
        if len(shape) == 2:
            ends[0] = self.r.choice([ends[0], "0", "away"]) if shape[0] > 8 else "2"
        part = f"[{self.r.randrange(self.width)}]" if where == 2 and self.width > 1 else ""
        return f"t{'abc'[where]}[{', '.join(ends)}]{part}"


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields."""
    made, r = Maker(seed), Random(seed)
    n = r.choice(LANES)
    ds.init(default_fp=ds.f32, offline_cache=False, **options)
    names = dict(ds=ds)
    for name, shape, kind in zip(("ta", "tb", "tc"), made.shapes, made.kinds, strict=True):
        t = ds.f32 if kind == "f" else ds.i32
        if name == "tc" and made.width > 1:
            names[name] = ds.Vector.field(made.width, t, shape=shape, needs_grad=True)
        else:
            names[name] = ds.field(t, shape=shape, needs_grad=kind == "f")
    for name in ("x", "y"):
        names[name] = ds.field(ds.f32, shape=max(LANES), needs_grad=True)
    names["c"] = ds.Vector.field(3, ds.f32, shape=max(LANES), needs_grad=True)
    names["at"] = ds.field(ds.i32, shape=max(LANES))
    exec(compile(text, f"<lookups {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    fields = [names[name] for name in ("ta", "tb", "tc", "y", "c")]
    for field in [*fields, *(f.grad for f in fields if f.grad is not None)]:
        given = field.to_numpy()
        field.from_numpy(random.integers(-4, 5, given.shape).astype(given.dtype))
    for name in ("x", "at"):
        given = names[name].to_numpy()
        names[name].from_numpy(random.integers(1, 7, given.shape).astype(given.dtype))
    away = r.randint(1, 2)
    names["run"](n, away)
    found = {name: names[name].to_numpy() for name in ("y", "c", "ta", "tc")}
    names["run"].grad(n, away)
    named = {name: names[name].grad for name in ("ta", "tb", "tc", "x", "y", "c")}
    return found | {f"{k}.grad": g.to_numpy() for k, g in named.items() if g is not None}


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    file = f"<lookups {seed}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    options = dict(cpu_max_num_threads=Random(seed + 1).choice([1, 1, 3]))
    return bits.against_interpreter(partial(results, text, seed), options, may_refuse=True)
