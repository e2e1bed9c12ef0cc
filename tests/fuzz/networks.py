"""Random networks that exchange pairs of elements in place, as sorting networks do, in a launch per stage.

A lane finds its partner with `^`, `|`, `&`, shifts, quotients and sums of its number and the launch's
arguments, under conditions that may let two lanes meet. Python runs the lanes one by one on numbers that know
their derivatives, and tells which elements each of them touches: one in which lanes meet must be refused.
"""

from itertools import combinations
from random import Random

import numpy as np

import diffsim as ds
from tests.support import source

N = 16
PARTNERS = (
    "i ^ p", "i ^ p", "p ^ i", "i | p", "i + p", "i - p", "i ^ (1 << q)", "i ^ (p & 12)", "i ^ 4",
    "i ^ 6", "i | 4", "(i ^ p) ^ q", "i + 1", "i - 1", "(i & p) + q", "i ^ (i + p)", "15 - i",
    "i ^ (p + q)", "(i & -8) | (i + q) & 7", "2 * p * (i // (p | 1)) + i % (p | 1)", "at[i]",
)  # fmt: skip
GUARDS = (
    "o > i", "o > i", "i < o", "o >= i", "o != i", "i & p == 0", "i & p == 0", "i & p != 0", "i & p == p",
    "i & 4 == 0", "i // 4 % 2 == 0", "i % 2 == q", "i & 1 == q & 1", "(i & p == 0) and i < 12",
    "o > i or q == 7", "not o <= i", "i < 8", "i & (1 << q) == 0", "i & q == 0",
)  # fmt: skip
EXCHANGES = (
    ("if (a > b) == ({up}):", "    y[i] = b", "    y[o] = a"),
    ("y[i] = b", "y[o] = a"),
    ("up = {up}", "y[i] = min(a, b) if up else max(a, b)", "y[o] = max(a, b) if up else min(a, b)"),
    ("y[i] = 0.6 * a + 0.4 * b", "y[o] = 0.3 * a * b"),
    ("y[o] = a * b",),
    ("if a > 0.1:", "    y[i] = a * b"),
    ("if o < 15 and a > b:", "    y[o + 1] = a * b", "else:", "    y[o] = a"),
    ("if a > b:", "    k = at[i]", "    y[k] = a"),
    ("if a > b:", "    y[i] = b", "    y[o] = a * a", "else:", "    y[o] = b * b", "    y[i] = a"),
    ("if a > b:", "    y[i] += b", "    y[o] += 0.5 * a", "y[i] += 0.3 * y[o]"),
    ("if a > b:", "    y[o] = b", "    if i > 3:", "        y[i] = a * b", "y[o] += 0.2 * a"),
    ("if a > 0.0 and b > 0.0:", "    y[i] = y[o]", "    y[o] = a", "y[i] = 0.5 * y[i]"),
    ("for k in range(2):", "    if y[o] > 0.1 * b:", "        y[i] = y[o]", "        y[o] = a"),
    ("for k in range(2):", "    if y[o] > 0.1 * b and o >= k:", "        y[o - k] = a * b"),
)


def make(seed):
    """The program of this number."""
    r = Random(seed)
    exchange = [
        line.format(up=r.choice(["True", "i & q == 0", "o > 7"])) for line in r.choice(EXCHANGES)
    ]
    lines = [
        "@ds.func",
        "def lane(i, p, q):",
        f"    o = {r.choice(PARTNERS)}",
        f"    if ({r.choice(GUARDS)}) and o >= 0 and o < {N}:",
        "        a, b = y[i], y[o]",
        *["        " + line for line in exchange],
        "@ds.kernel",
        "def stage(p: ds.i32, q: ds.i32):",
        f"    for i in range({r.choice([N, N, N // 2])}):",
        "        lane(i, p, q)",
    ]
    return "\n".join(lines) + "\n"


class Number:
    """A number and its derivatives by all inputs."""

    def __init__(self, value, slope):
        self.value, self.slope = value, slope

    def __add__(self, other):
        return Number(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other):
        if isinstance(other, float):
            return Number(self.value * other, self.slope * other)
        return Number(self.value * other.value, self.slope * other.value + other.slope * self.value)

    __rmul__ = __mul__

    def __lt__(self, other):
        return self.value < getattr(other, "value", other)

    def __gt__(self, other):
        return self.value > getattr(other, "value", other)


class Touched(list):
    """A list that notes which elements are read and written."""

    def __init__(self, numbers):
        super().__init__(numbers)
        self.read, self.written = set(), set()

    def __getitem__(self, k):
        self.read.add(k)
        return super().__getitem__(k)

    def __setitem__(self, k, number):
        self.written.add(k)
        super().__setitem__(k, number)


def in_python(text, start, at, launches):
    """The elements after some launches, and whether lanes of one of them have met."""
    made = text.replace("@ds.func\n", "").partition("@ds.kernel")
    lanes = int(made[2].partition("in range(")[2].partition(")")[0])
    space = {"y": Touched(map(Number, start, np.eye(N))), "at": at}
    exec(made[0], space)
    y, met = space["y"], False
    for p, q in launches:
        touched = []
        for i in range(lanes):
            y.read, y.written = set(), set()
            space["lane"](i, p, q)
            touched.append((y.read | y.written, y.written))
        met |= any(a[1] & b[0] or b[1] & a[0] for a, b in combinations(touched, 2))
    return list(y), met


def in_diffsim(text, start, at, launches, weights, **options):
    """The elements after some launches, and the gradient of their weighted sum."""
    ds.init(default_fp=ds.f64, rules="lifted", offline_cache=False, **options)
    x, y, w = (ds.field(ds.f64, shape=N, needs_grad=g) for g in (True, True, False))
    loss, table = ds.field(ds.f64, shape=(), needs_grad=True), ds.field(ds.i32, shape=N)
    x.from_numpy(start), w.from_numpy(weights), table.from_numpy(at)
    space = dict(ds=ds, x=x, y=y, at=table, loss=loss, w=w)
    source.make(
        text + f"@ds.kernel\ndef begin():\n    for i in range({N}):\n        y[i] = x[i]\n"
        f"@ds.kernel\ndef end():\n    for i in range({N}):\n        loss[None] += w[i] * y[i]\n",
        space,
    )
    with ds.Tape(loss):
        space["begin"]()
        for p, q in launches:
            space["stage"](p, q)
        space["end"]()
    return y.to_numpy(), x.grad.to_numpy()


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    how, random = Random(seed + 1), np.random.default_rng(seed)
    start, weights = random.uniform(-1, 1, (2, N))
    at = random.permutation(N).astype(np.int32)
    if how.random() < 0.5:
        at = at[np.argsort(at)][[k ^ 5 for k in range(N)]]  # pairs
    launches = [
        (how.choice([0, 1, 2, 4, 8, 4, 3, 5, -1, -8]), how.choice([0, 1, 2, 3, 7]))
        for _ in range(how.choice([1, 2]))
    ]
    options = dict(
        arch=how.choice([ds.cpu, ds.cpu, ds.cpu, ds.python]),
        cpu_max_num_threads=how.choice([1, 2]),
        debug=how.random() < 0.2,
    )
    y, met = in_python(text, start, at, launches)
    try:
        values, gradient = in_diffsim(text, start, at, launches, weights, **options)
    except ds.errors.AutodiffError:
        return "refused"
    if met:
        return f"wrong: lanes meet and there is a gradient, {launches} {options}"
    slopes = sum(k * e.slope for k, e in zip(weights, y, strict=True))
    if not np.allclose(values, [e.value for e in y]):
        return f"wrong: values, {launches} {options}"
    return "right" if np.allclose(gradient, slopes) else f"wrong: gradient, {launches} {options}"
