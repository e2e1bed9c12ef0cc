"""Programs on levels of one field: `u[(v - 1) // 2] += f(u[v])` for v in a range that the arguments tell.

Ranges that touch, overlap by one, are empty or have one element; quotients and shifts of negative numbers,
remainders, parents from an index field that may be their own; diagonals of a table, `w[i, d - i]`; strides
that are arguments; launches that do overwrite, writes from Python, recordings that repeat, replays. The
record decides which adjoints find what their launch saw (docs/adr/0159). The text runs twice: as kernels, and
in Python with complex steps.
"""

import itertools
import re
from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError
from tests.fuzz.slices import ENDS, FUNCTIONS
from tests.support import source

SIZE, SIDE = 40, 7
OWN = ("v", "v", "v", "v + d", "2*v", "2*v + 1", "a + b - v - 1", "d*v", "v - d + 2")
"""Indices that tell lanes apart."""
SHARED = (
    "(v - 1) // 2", "(v - 1) // 2", "v // 2", "v >> 1", "v // 2 + d", "(v + d) // 3", "-v // 2 + 20",
    "(2*v - 3) // 4 + 1", "v % 5", "v % 4 + a", "v - v // 2", "a // 2", "d", "parent[v]", "parent[v]",
    "(v - 1) // 2 + v // 4", "30 - (d*v) // 4", "((v - 1) // 2 - 1) // 2 + 1", "min(v, d + 6)",
)  # fmt: skip
PLACES = {
    "u": (OWN, SHARED),
    "w": (
        (
            "v, d - v",
            "v, d - v",
            "v, v",
            "d, v",
            "v, d - v + 1",
            "6 - v, v - d + 1",
            "v - 1, d - v",
        ),
        ("v - 1, d - v", "v, d - v - 1", "v - 1, d - v - 1", "v // 2, v", "d, v // 2", "v - d, v"),
    ),
}
VALUES = (
    "{a}**2 * 0.3 + 0.1",
    "{a} * {b} * 0.4",
    "0.5 * {a}",
    "0.3 * {a} - 0.2 * {b}**2",
    "{a} * x_v",
)
LOOPS = ("range(a, b)", "range(a, b)", "range(a, b)", "range(a, b - 1)", "range(max(a, d), b)")
SUM = re.compile(r"^( *)(\w)\[(.*)\] \+= (.*)$", re.MULTILINE)


def make(seed):
    """The program of this number: kernels, and `main(q)`, which launches them."""
    r = Random(seed)
    texts = (_program(r) for _ in range(400))
    return next((t for t in texts if is_plain(t)), "def main(q): pass\n")


def field_of(text):
    """The name of the field in a text: `u` is a line, `w` a table."""
    return "w" if "w[" in text else "u"


def _program(r):
    name = r.choice("uuuw")
    count = r.choice([1, 1, 2])
    lines = [line for k in range(count) for line in _kernel(r, k, name)]
    lines.append("def main(q):")
    lines += [f"    {event}" for event in _events(r, count, name)]
    return "\n".join(lines) + "\n"


def _kernel(r, k, name):
    own, shared = PLACES[name]
    place = lambda: f"{name}[{r.choice(own + shared)}]"  # noqa: E731
    value = r.choice(VALUES).replace("x_v", "u[v]" if name == "u" else "0.9")
    value = value.format(a=r.choice([f"{name}[{own[0]}]", place()]), b=place())
    yield "@ds.kernel"
    yield f"def k{k}(a: ds.i32, b: ds.i32, d: ds.i32):"
    yield f"    for v in {r.choice(LOOPS)}:"
    if r.random() < 0.5:
        yield f"        {name}[{r.choice(own)}] = {value}"
    else:
        yield f"        {name}[{r.choice(own + shared + shared)}] += {value}"


def _events(r, count, name):
    """Launches over levels, from the last one to the first or the other way, whose ends may be off by one."""
    if name == "w":
        yield from _diagonals(r, count)
        return
    ends = r.choice(
        [[0, 1, 3, 7, 15], [1, 2, 4, 8, 16], sorted(r.sample(range(20), 5)), [3, 3, 4, 9, 9]]
    )
    levels = list(itertools.pairwise(ends))
    if r.random() < 0.6:
        levels.reverse()
    for level, (a, b) in enumerate(levels):
        a, b = a + r.choice([0] * 8 + [1, -1]), b + r.choice([0] * 8 + [1, -1])
        d = r.choice([0, 1, 1, 2, 1 << level, b - a, -1, "q"])
        yield f"k{r.randrange(count)}({a}, {b}, {d})"
        if r.random() < 0.05:
            yield f"u[{r.randrange(SIZE)}] = 0.4"
        if r.random() < 0.04:
            yield f"parent[{r.randrange(SIZE)}] = {r.randrange(3)}"


def _diagonals(r, count):
    for d in r.choice([range(1, 6), range(2, 8), range(6, 0, -1), [3, 3, 4], [2, 4, 6]]):
        last = min(d, SIDE - 1)
        lo, hi = r.choice([(1, last), (1, last), (0, last + 1), (1, 3)])
        yield f"k{r.randrange(count)}({lo}, {hi}, {r.choice([d, d, d, d, 'q + 2'])})"
        if r.random() < 0.05:
            yield f"w[{r.randrange(SIDE)}, 2] = 0.4"


def parents(seed):
    """The index field: of a heap, at random, with some that are their own."""
    random = np.random.default_rng(seed)
    found = (np.arange(SIZE) - 1) // 2
    if seed % 3:
        found = random.integers(0, np.maximum(np.arange(SIZE) // (1 + seed % 2), 1))
    own = random.random(SIZE) < 0.1
    found[own] = np.flatnonzero(own)
    return np.maximum(found, 0)


def verdict(text, seed, in_place, counts=None):
    """ "right", "refused", or what is wrong; `counts` is told how many recordings the record allowed."""
    if not is_plain(text, parents(seed)):
        return "invalid"
    ds.init(default_fp=ds.f64)
    name = field_of(text)
    shape = (SIZE,) if name == "u" else (SIDE, SIDE)
    u, x = (ds.field(ds.f64, shape, needs_grad=True) for _ in range(2))
    loss, w = ds.field(ds.f64, (), needs_grad=True), ds.field(ds.f64, shape)
    parent = ds.field(ds.i32, SIZE)
    whole = parents(seed)
    parent.from_numpy(whole.astype(np.int32))
    random = np.random.default_rng(seed)
    w.from_numpy(random.uniform(-1.0, 1.0, shape))
    ends = {"ds": ds, "u": u, "x": x, "w": w, "loss": loss}
    space = {"ds": ds, name: u, "parent": parent, "max": max, "min": min}
    source.make(text, space)
    source.make(ENDS, ends)
    ends["main"] = space["main"]
    accepted, tape = set(), ds.Tape()
    try:
        for turn, q in enumerate((0, 0, 1, 0, 0, "replay", "replay")):
            what = q if q == "replay" else f"main({q})"
            # Other parents, in some programs, with the same recording.
            if seed % 3 == 1 and turn in (4, 6):
                parent.from_numpy(parents(seed + turn).astype(np.int32))
                accepted.clear()
            whole = parent.to_numpy()
            if not is_plain(text, whole):
                return "right"
            x.from_numpy(random.uniform(0.2, 1.0, shape))
            loss[None] = 0.0
            if q == "replay":
                tape.replay()
                tape.backward()
            else:
                with ds.Tape(loss, in_place=in_place) as tape:
                    ends["run"](q)
                if counts is not None:
                    counts[tape.recorder.recorded().has_allowed] += 1
            wrong = _compare(what, text, whole, x, w, 0 if q == "replay" else q)
            if wrong:
                return wrong
            accepted.add(q)
        return "right"
    except AutodiffError as error:
        if (
            in_place == "save"
            and "has changed it since" in str(error)
            and "parent" not in str(error)
        ):
            return f"{what} is not saved: {error}"
        return f"{what} is refused anew: {error}" if q in accepted else "refused"
    except DiffsimError:
        return "invalid"


def _compare(what, text, whole, x, weights, q):
    found, expected = x.grad.to_numpy(), _gradient(text, whole, x, weights, q)
    if np.allclose(found, expected, rtol=1e-9, atol=1e-12):
        return None
    return f"{what}: x.grad is {found.tolist()}, not {expected.tolist()}"


class _Checked:
    """A field that refuses indices out of bounds, and lanes that meet but to add."""

    def __init__(self, shape):
        self.shape, self.lane = shape, None
        self.begin()

    def begin(self):
        self.done = {"read": {}, "stored": {}, "added": {}}

    def lanes(self, *bounds):
        self.begin()
        for self.lane in range(*bounds):
            yield self.lane
        self.lane = None

    def __getitem__(self, k):
        self.touch(k, "read", "stored", "added")
        return 0.5

    def __setitem__(self, k, value):
        if self.lane is not None:  # else Python writes
            self.touch(k, "stored", "read", "stored", "added")

    def add(self, k, value):
        self.touch(k, "added", "read", "stored")

    def touch(self, k, how, *others):
        place = np.atleast_1d(k)
        if not ((place >= 0).all() and (place < self.shape).all()):
            raise IndexError(k)
        if any(lane != self.lane for other in others for lane in self.done[other].get(k, ())):
            raise IndexError(k)
        self.done[how].setdefault(k, set()).add(self.lane)


class _Numbers(np.ndarray):
    """Complex numbers, of a field in Python."""

    def add(self, k, value):
        self[k] += value


def _in_python(text, whole, name, numbers, loop):
    tools = SimpleNamespace(kernel=lambda f: f, i32=int, **FUNCTIONS)
    parent = _Bounded(int(p) for p in whole)
    space = {"ds": tools, name: numbers, "range": loop, "parent": parent}
    exec(SUM.sub(r"\1\2.add((\3), \4)", text), space)
    return space["main"]


class _Bounded(list):
    """A list without negative indices."""

    def __getitem__(self, k):
        if k < 0:
            raise IndexError(k)
        return super().__getitem__(k)


def is_plain(text, whole=None):
    """Whether no index is out of bounds, and no lanes of a launch meet."""
    name = field_of(text)
    field = _Checked((SIZE,) if name == "u" else (SIDE, SIDE))
    main = _in_python(text, parents(0) if whole is None else whole, name, field, field.lanes)
    try:
        for q in range(2):
            main(q)
    except IndexError:
        return False
    return True


def _gradient(text, whole, x, weights, q):
    """The gradient by complex steps of 1e-30, which are exact (Squire and Trapp 1998)."""
    start, weights = x.to_numpy(), weights.to_numpy()
    # One run for all elements: along the last axis of the numbers.
    steps = np.eye(start.size).reshape(*start.shape, -1)
    numbers = (start[..., None] + 1e-30j * steps).view(_Numbers)
    _in_python(text, whole, field_of(text), numbers, range)(q)
    found = np.tensordot(weights, np.asarray(numbers).imag / 1e-30, start.ndim)
    return found.reshape(start.shape)
