"""Layers of sums over windows and channels, whose rows are steps of one field: where many passes meet.

Adjoints collect sums by the element, keep a lane's value in the element that it clears, load what the launch
has stored, or take conditions that it has kept; rows are overwritten by later launches, by Python and on
tapes that save, and tapes come to rest, go on otherwise, hear reads and are replayed. The text runs twice: as
kernels, and in Python with complex steps along random directions of all numbers and weights.
"""

from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError
from tests.fuzz import slices
from tests.support import source

ROWS, N, C, STEPS = 4, 5, 8, 3
SHAPE, WEIGHTS = (ROWS, N, C), (C, C, STEPS)
FROM = ("t", "t", "t", "p", "1 - p", "0", "3 - t")
TO = ("t + 1", "t + 1", "t + 1", "1 - p", "2", "3 - t")
WINDOWS = (
    ("for a in range(3):", " k = i + a - 1", " if 0 <= k < 5:"),
    ("for a in range(3):", " k = i + 2 * a - 3", " if k >= 0 and k < 5:"),
    ("for a in range(2):", " k = 2 * i + a - 4", " if 0 <= k < 5:"),
    ("for k in range(ds.max(0, i - 1), ds.min(5, i + 2)):", " a = k - i + 1", " if True:"),
    ("for a in range(2):", " k = i + a - 1", " if k >= 0 and (k + o) % 3 != p:"),
    ("for a in range(3):", " k = i + a - 1", " if 0 <= k < 5 and m > 0.1:"),
)
TERMS = (
    "s += v[o, c, a] * {of}[{a}, k, c]",
    "s += v[c, o, a] * {of}[{a}, k, c]",
    "s += v[o, c, a] * {of}[{a}, k, c] - 0.1 * {of}[{b}, k, c]",
    "s -= v[o, c, a] * {of}[{a}, k, c] * {of}[{a}, k, c]",
    "s += v[o, c, a] * {of}[{a}, k, c] * m",
)
RESULTS = (
    "{to}[{x}, i, o] = {f}",
    "{to}[{x}, i, o] = {f}",
    "{to}[{x}, i, o] = {f} + 0.3 * m",
    "{to}[{x}, i, o] += {f}",
    "h = {f}\n{to}[{x}, i, o] = h\n{to}[{y}, i, o] = 0.5 * h * h",
    "if s > 0.1:\n    {to}[{x}, i, o] = {f}",
    "if m > 0.5:\n    {to}[{x}, i, o] = {f}\nelse:\n    {to}[{x}, i, o] = 0.3 * m * s",
    "{to}[{x}, i, o] = {f}\n{to}[{x}, i, o] += 0.2 * m",
    "{to}[{x}, i, o] = {f}\n{to}[{y}, i, o] = 0.3 * {to}[{x}, i, o] ** 2",
)
FUNCTIONS = (
    "ds.tanh(s)",
    "ds.tanh(s)",
    "ds.max(s, 0.0)",
    "ds.max(s, m)",
    "0.5 * s",
    "ds.tanh(s) * ds.exp(-m * m)",
    "(s if s > m else 0.5 * m)",
    "ds.sqrt(s * s + 0.5) / (1.0 + m * m)",
)
CALLS = (
    "{a}({t}, {p})",
    "{a}({t}, {p}); {b}({t}, {p})",
    "{a}({t}, {p}); move({t}, {p}); {b}({t}, 1)",
    "for t in range(2): {a}(t, {p})",
    "for t in range(2): {a}(t, {p}); {b}(1 - t, q)",
    "{a}({t}, {p}); move({t}, {p}); {a}({t}, {p})",
    "{a}({t}, {p}); u[{t}, 2, 3] = 0.4; {b}({t}, 0)",
    "{a}({t}, {p}); see(b[1, 2, 3]); {b}({t}, 0)",
    "u[{t}, 1, 2] = 0.4",
    "b.fill(0.3)",
)
MOVE = """@ds.kernel
def move(t: ds.i32, p: ds.i32):
    for i, o in ds.ndrange(5, 8):
        {u}[3, i, o] += 0.5 * u[{a}, i, o]
"""


ENDS = """
@ds.kernel
def start():
    for i in ds.grouped(u):
        u[i] = x[i]
        b[i] = 0.5 * x[i]
@ds.kernel
def finish():
    for i in ds.grouped(u): loss[None] += w[i] * (u[i] + b[i])
def run(q):
    start()
    main(q)
    finish()
"""


def make(seed):
    """The program of this number: kernels, and `main(q)`, which launches them."""
    r = Random(seed)
    texts = (_program(r) for _ in range(400))
    return next((t for t in texts if _is_plain(t)), "def main(q): pass\n")


def _program(r):
    count = r.choice([1, 1, 2])
    lines = [line for k in range(count) for line in _kernel(r, k)]
    lines += [*MOVE.format(a=r.choice(TO), u=r.choice("ub")).splitlines(), "def main(q):"]
    for _ in range(r.choice([1, 1, 2, 3])):
        a, b = (f"k{r.randrange(count)}" for _ in "ab")
        t, p = r.choice([0, 1, "q"]), r.choice([0, 1, "q"])
        lines.append("    " + r.choice(CALLS).format(a=a, b=b, t=t, p=p))
    return "\n".join(lines) + "\n"


def _kernel(r, number):
    yield "@ds.kernel"
    yield f"def k{number}(t: ds.i32, p: ds.i32):"
    yield r.choice(
        ["    for i, o in ds.ndrange(5, 8):"] * 3 + ["    for o, i in ds.ndrange(8, 5):"]
    )
    often = r.random() < 0.6
    places = {
        "a": r.choice(FROM[: 1 if often else None]),
        "b": r.choice(FROM),
        "x": r.choice(TO[: 1 if often else None]),
    }
    places["y"] = r.choice(TO)
    places |= {"of": r.choice("ub"), "to": r.choice("ub")}
    own = r.choice(
        ["{of}[{a}, i, o]", "{to}[{x}, i, o]", "{to}[{a}, i, o]", *["0.3 * v[o, 1, 1]"] * 4]
    )
    yield f"        m = {own.format(**places)}"
    yield f"        s = {r.choice(['0.0', '0.1 * v[o, 0, 0]', '0.5 * m'])}"
    window, channels = r.choice(WINDOWS), "for c in range(8):"
    if r.random() < 0.5:
        lines = [channels, *(" " + line for line in window)]
    else:
        lines = [*window, "  " + channels]
    lines.append(" " * 4 + r.choice(TERMS))
    lines += (
        r.choice(RESULTS[: 3 if often else None]).replace("{f}", r.choice(FUNCTIONS))
    ).splitlines()
    yield from (" " * 8 + line.format(**places) for line in lines)


def verdict(text, seed, in_place):
    """ "right", "refused", or what is wrong."""
    how = Random(seed + 1)
    ds.init(
        default_fp=ds.f64,
        cpu_max_num_threads=how.choice([1, 1, 2]),
        deterministic=how.random() < 0.2,
    )
    u, b, x = (ds.field(ds.f64, SHAPE, needs_grad=True) for _ in range(3))
    v = ds.field(ds.f64, WEIGHTS, needs_grad=True)
    loss = ds.field(ds.f64, (), needs_grad=True)
    random = np.random.default_rng(seed)
    w = ds.field(ds.f64, SHAPE)
    w.from_numpy(random.uniform(-1.0, 1.0, SHAPE))
    space = {
        "ds": ds,
        "u": u,
        "b": b,
        "x": x,
        "w": w,
        "v": v,
        "loss": loss,
        "see": lambda number: None,
    }
    source.make(text + ENDS, space)
    accepted = set()
    try:
        for q in (0, 0, 1, 0, 0, 1, 1):
            x.from_numpy(random.uniform(-0.5, 1.0, SHAPE))
            v.from_numpy(random.uniform(-0.5, 0.5, WEIGHTS))
            loss[None] = 0.0
            with ds.Tape(loss, in_place=in_place) as tape:
                space["run"](q)
            wrong = _compare(f"main({q})", text, space, q, random)
            if wrong:
                return wrong
            accepted.add(q)
        q = "replay"
        x.from_numpy(random.uniform(-0.5, 1.0, SHAPE))
        tape.replay()
        tape.backward()
        return _compare("replay", text, space, 1, random) or "right"
    except AutodiffError as error:
        if in_place == "save" and "has changed it since" in str(error):
            return f"main({q}) is not saved: {error}"
        return f"main({q}) is refused anew: {error}" if q in accepted else "refused"
    except DiffsimError:
        return "invalid"


def _compare(what, text, space, q, random):
    """What is wrong with the gradient, along directions."""
    plain = {"ds": _in_python(np.ndindex)}
    plain["see"] = lambda number: None
    exec(text, plain)
    weights = space["w"].to_numpy()
    for names in ("x", "v", "xv"):
        along = {f: random.uniform(-1.0, 1.0, space[f].shape) * (f in names) for f in "xv"}
        plain |= {f: space[f].to_numpy() + 1e-30j * along[f] for f in "xv"}
        plain |= {"u": plain["x"].copy(), "b": 0.5 * plain["x"]}
        plain["main"](q)
        expected = (weights * (plain["u"] + plain["b"])).sum().imag / 1e-30
        found = sum((space[f].grad.to_numpy() * along[f]).sum() for f in "xv")
        if not np.isclose(found, expected, rtol=1e-9, atol=1e-10):
            return f"{what}: along {names} it is {found}, not {expected}"
    return None


def _in_python(box):
    functions = {k: f for k, f in slices.FUNCTIONS.items() if k != "ndrange"}
    return SimpleNamespace(kernel=lambda f: f, i32=int, ndrange=box, **functions)


class _Checked:
    """A field that refuses indices out of bounds, and lanes that meet."""

    def __init__(self):
        self.lane, self.read, self.written = None, {}, {}

    def lanes(self, *ends):
        self.read, self.written = {}, {}
        for self.lane in np.ndindex(*ends):
            yield self.lane
        self.lane = None

    def __getitem__(self, k):
        self.touch(k, self.read)
        return 0.5

    def __setitem__(self, k, value):
        if self.lane is not None:
            self.touch(k, self.read)
            self.touch(k, self.written)
            if self.read[k] != {self.lane}:
                raise IndexError(k)

    def fill(self, value):
        """As of a field."""

    def touch(self, k, found):
        inside = all(0 <= at < end for at, end in zip(k, SHAPE, strict=True))
        if not inside or (
            self.lane is not None and self.written.get(k, {self.lane}) != {self.lane}
        ):
            raise IndexError(k)
        found.setdefault(k, set()).add(self.lane)


def _is_plain(text):
    u, b = _Checked(), _Checked()

    def lanes(*ends):
        for lane, _ in zip(u.lanes(*ends), b.lanes(*ends), strict=True):
            yield lane

    plain = {"ds": _in_python(lanes), "u": u, "b": b, "v": np.ones(WEIGHTS), "see": lambda _: None}
    exec(text, plain)
    try:
        for q in (0, 1):
            for field in (u, b):
                field.read, field.written, field.lane = {}, {}, None
            plain["main"](q)
    except IndexError:
        return False
    return True
