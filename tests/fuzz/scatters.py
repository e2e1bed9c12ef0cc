"""Random kernels that scatter what lanes compute, by windows and channels, to elements of many lanes.

As a hand-written adjoint of a convolution does. Lanes load their own elements before and after they store to
them; what is scattered follows from one of them or from two, cheaply or at length, under conditions of whole
numbers and of floats; indices have steps of either sign, two loops, one loop twice, components of vectors or
numbers from a table; bounds are constants, arguments, or other loops' numbers. All numbers are whole and
small, so sums are exact in any order, and values and gradients are compared bit by bit with the interpreter.
"""

from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from tests.support import bits, source

N, O, EXTENT = 6, 9, 20
FIELDS = {
    "x": (3, EXTENT, 10),
    "f": (EXTENT, 10),
    "w": (O, 8, 3),
    "y": (2, N, O),
    "z": (2, N, O),
    "q": (2, N, O),
}
PLACES = (
    ("t, k, c", "k = i + a"),
    ("t, k, c", "k = i + a + 1"),
    ("t, k, c", "k = 2 * i + a"),
    ("t, k, c", "k = i + 2 * a"),
    ("t, k, c", "k = 6 - i + a"),
    ("t, k, c", "k = i + t + a"),
    ("t, k, c", "k = i + at[a]"),
    ("t, k, c", "k = at[i] + a"),
    ("t, k, c", "k = i + c % 3"),
    ("t, k, (c + 1) % 8", "k = i + a"),
    ("t, k, 7 - c", "k = i + a"),
    ("t, i + c, c", "k = a"),
    ("t, c, c", "k = i + a"),
    ("t, i + c, k", "k = c + 1"),
    ("t, c + 1, k", "k = i + a + c % 3"),
    ("t, k, c + 1", "k = i + c"),
    ("t, i + a, k", "k = (o + c) % 8"),
    ("t, a, c", "k = i + a"),
    ("1 - t, k, c", "k = i + a"),
    ("2 * t, k, c", "k = i + a"),
)
HEADS = (
    "g = y[t, i, o]",
    "g = y[t, i, o]",
    "g = y[t, i, o] + z[t, i, o]",
    "g = y[1 - t, i, o]",
    "y[t, i, o] = 2.0\ng = y[t, i, o]",
    "g = y[t, i, o]\ny[t, i, o] = 0.0\ng += y[t, i, o]",
)
STORES = (
    "",
    "y[t, i, o] = 0.0",
    "y[t, i, o] = 0.0",
    "y[t, i, o] = 1.0",
    "z[t, i, o] = 0.0",
    "y[t, i, o] = g",
)
LENGTHS = (
    "h = g",
    "h = g * (2 - g) * (g + 1) * (g - 1) - 3 * g",
    "h = g * g * g - 3 * g * g + 2 * g - 1",
    "h = ds.max(g, 0)",
    "h = g if g > 1 else -2 * g",
)
SECONDS = (
    "r = g",
    "r = g",
    "r = z[t, i, o]",
    "r = z[t, i, o]\nz[t, i, o] = 0.0",
    "r = z[t, i, o] * z[t, i, o] - h\nz[t, i, o] = 0.0",
    "r = y[t, i, o]",
)
GUARDS = (
    "if k >= 0:",
    "if k >= 0:",
    "if h != 0:",
    "if h != 2:",
    "if g != 0:",
    "if h == 0:",
    "if (k + o) % 3:",
    "if w[o, c, a] > 0:",
    "if c != o:",
    "if i > 1:",
    "if k < 4:",
)
TERMS = (
    "w[o, c, a] * h",
    "w[o, c, a] * h",
    "h",
    "h * w[o, c, a] + 1",
    "w[o, c, a] * h - r",
    "-h * w[o, c, a]",
    "w[o, c, a] * h * at[c]",
    "f[k, c] * h",
    "w[o, c, a] * i * h",
)


def make(seed):
    """The program of this number; its first line says where the weights' axes are."""
    r = Random(seed)
    place, k = r.choice(PLACES[:3] if r.random() < 0.4 else PLACES)
    mem = r.choice(["x", "x", "x", "x", "f", "p"])
    index = place if mem == "x" else place.partition(", ")[2]
    lines = [
        "@ds.kernel",
        "def run(t: ds.i32, n: ds.i32):",
        f"    for i, o in ds.ndrange({r.choice([f'{N}, {O}'] * 20 + [f'{N}, n + 1', f'(1, {N}), {O}'])}):",
        *(" " * 8 + line for line in _own(r)),
    ]
    depth = 8
    for line in [*_loops(r), k, r.choice(GUARDS)]:
        lines.append(" " * depth + line)
        depth += 4 * line.endswith(":")
    part = r.choice(["[0]", "[1]"]) if mem == "p" else ""
    lines.append(" " * depth + f"{mem}[{index}]{part} += {r.choice(TERMS)}")
    if r.random() < (0.7 if part else 0.2):
        again = r.choice([index, index, "t, k + 1, c", "t, c, c", "t, k, 3"])
        again = again.removeprefix("t, ") if mem != "x" else again
        part = r.choice(["[0]", "[1]"]) if part else ""
        lines.append(" " * depth + f"{mem}[{again}]{part} += {r.choice(TERMS[:4])}")
    if r.random() < 0.3:
        lines.append(" " * 8 + r.choice(STORES[1:]))
    weight = ", ".join(r.sample("oca", 3))
    return f"# {weight}\n" + "\n".join(lines).replace("w[o, c, a]", f"w[{weight}]") + "\n"


def _own(r):
    """What a lane does with its own elements."""
    first, last = r.choice(STORES), r.choice(["", "", "q[t, i, o] = r + 1", *STORES])
    parts = [r.choice(HEADS), *r.sample([r.choice(LENGTHS), first], 2), r.choice(SECONDS), last]
    return [line for part in parts for line in part.splitlines()]


def _loops(r):
    channels = f"for c in range({r.choice(['8'] * 30 + ['n', '1, 8', 'i, 8'])}):"
    if r.random() < 0.05:
        return [channels, "for a in range(c % 3):"]
    return r.sample([channels, f"for a in range({r.choice('32211')}):"], 2)


def results(text, seed, **options):
    """All numbers and gradients that a program leaves."""
    ds.init(default_fp=ds.f64, rules="lifted", offline_cache=False, **options)
    random = np.random.default_rng(seed)
    names = {"ds": ds, "at": ds.field(ds.i32, shape=9)}
    names["at"].from_numpy(random.integers(0, 3, 9).astype("i4"))
    extents = {"o": O, "c": 8, "a": 8}
    shape = tuple(extents[v] for v in text.partition("\n")[0][2:].split(", "))
    shapes = FIELDS | {"w": shape}
    fields = {f: ds.field(ds.f64, shape=shape, needs_grad=True) for f, shape in shapes.items()}
    fields["p"] = ds.Vector.field(2, ds.f64, shape=FIELDS["f"], needs_grad=True)
    for field in fields.values():
        for part in (field, field.grad):
            part.from_numpy(random.integers(-2, 3, part.to_numpy().shape).astype(float))
    made = names | fields
    source.make(text, made)
    t = seed % 2
    made["run"](t, 8)
    found = {name: field.to_numpy() for name, field in fields.items()}
    try:
        made["run"].grad(t, 8)
    except ds.errors.AutodiffError:
        return found
    return found | {f"{name}.grad": field.grad.to_numpy() for name, field in fields.items()}


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    how = Random(seed + 1)
    options = dict(cpu_max_num_threads=how.choice([1, 1, 3]), deterministic=how.random() < 0.2)
    return bits.against_interpreter(partial(results, text, seed), options, may_refuse=True)
