"""Programs on one long axis: kernels that read and write slices of it, which their arguments move.

`u[(t + 1) * n + i] = f(u[t * n + i])` with n in the text or among the arguments, steps that overlap since n
is another number than before, rows by `1 - p` and `t % 2`, loops that end early or not at all, writes from
Python, recordings that repeat, replays. The text runs twice: as kernels, and in Python with complex steps.
"""

from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError
from tests.support import source

SIZE = 36
FUNCTIONS = {
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "floor": lambda z: np.floor(np.real(z)),
    "ndrange": range,
    "max": lambda a, b: a if np.real(a) >= np.real(b) else b,
    "min": lambda a, b: a if np.real(a) <= np.real(b) else b,
}
"""What a text calls `ds`, in Python; loops over ranges of `ndrange` are inner ones."""
FIRST = (
    "t*{n}", "(t + 1)*{n}", "(t + 1)*{n}", "(1 - p)*{n}", "p*{n}", "(t % 2)*{n}", "((t + 1) % 2)*{n}",
    "2*t", "{n}*t + 2", "(t + 1)*{n} - 1", "t + p", "{n}", "t*4", "(t + 1) // 2 * 3",
)  # fmt: skip
LOOPS = (
    "range({n})",
    "range({n})",
    "range(4)",
    "range(1, {n} - 1)",
    "range(t, {n})",
    "range(p*{n}, p*{n} + 2)",
)
PLACES = ("{} + i", "{} + i", "{} + i", "{} + 2*i", "{}", "{} - i + 3")
VALUES = (
    "u[{a}]**2 * 0.7 + 0.1",
    "u[{a}] * u[{b}] + 0.2",
    "0.5 * u[{a}] + 0.1",
    "u[{a}] - 0.3 * u[{b}]**2",
)


def make(seed):
    """The program of this number: kernels, and `main(q)`, which launches them."""
    r = Random(seed)
    # Lanes that meet are refused in any case.
    texts = (_program(r) for _ in range(200))
    return next((t for t in texts if is_plain(t)), "def main(q): pass\n")


def _program(r):
    count = r.choice([1, 2, 2, 3])
    lines = [line for k in range(count) for line in _kernel(r, k)]
    lines.append("def main(q):")
    lines += [f"    {_event(r, count)}" for _ in range(r.randrange(2, 7))]
    return "\n".join(lines) + "\n"


def _kernel(r, k):
    n = r.choice(["n", "n", "4", "3"])
    place = lambda: r.choice(PLACES).format(r.choice(FIRST)).format(n=n)  # noqa: E731
    target = f"{r.choice(FIRST)} + i".format(n=n)
    yield "@ds.kernel"
    yield f"def k{k}(t: ds.i32, n: ds.i32, p: ds.i32):"
    yield f"    for i in {r.choice(LOOPS).format(n=n)}:"
    yield f"        u[{target}] = {r.choice(VALUES).format(a=place(), b=place())}"


def _event(r, count):
    if r.random() < 0.15:
        return f"u[{r.randrange(20)}] = 0.4"
    t, n = r.choice(["0", "1", "2", "q"]), r.choice([4, 4, 4, 3, 2, 5, 0, -2])
    return f"k{r.randrange(count)}({t}, {n}, {r.choice([0, 1, 'q'])})"


def verdict(text, seed, in_place, shape=(SIZE,)):
    """ "right", "refused", or what is wrong; `shape` is that of the program's field."""
    if not is_plain(text, shape):
        return "invalid"
    ds.init(default_fp=ds.f64)
    u, x = (ds.field(ds.f64, shape, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, (), needs_grad=True)
    random = np.random.default_rng(seed)
    w = ds.field(ds.f64, shape)
    w.from_numpy(random.uniform(-1.0, 1.0, shape))
    space = {"ds": ds, "u": u, "x": x, "w": w, "loss": loss}
    source.make(text + ENDS, space)
    accepted = set()
    try:
        for q in (0, 0, 1, 0, 0):
            x.from_numpy(random.uniform(0.2, 1.0, shape))
            loss[None] = 0.0
            with ds.Tape(loss, in_place=in_place) as tape:
                space["run"](q)
            wrong = _compare(f"main({q})", text, space, q)
            if wrong:
                return wrong
            accepted.add(q)
        q = "replay"
        x.from_numpy(random.uniform(0.2, 1.0, shape))
        tape.replay()
        tape.backward()
        return _compare("replay", text, space, 0) or "right"
    except AutodiffError as error:
        # No lane reads what another one has written, so copies are all that a tape needs.
        if in_place == "save" and "has changed it since" in str(error):
            return f"main({q}) is not saved: {error}"
        return f"main({q}) is refused anew: {error}" if q in accepted else "refused"
    except DiffsimError:
        return "invalid"


ENDS = """
@ds.kernel
def start():
    for i in ds.grouped(u): u[i] = x[i]
@ds.kernel
def finish():
    for i in ds.grouped(u): loss[None] += w[i] * u[i]
def run(q):
    start()
    main(q)
    finish()
"""


def _compare(what, text, space, q):
    found, expected = space["x"].grad.to_numpy(), _gradient(text, space, q)
    if np.allclose(found, expected, rtol=1e-9, atol=1e-12):
        return None
    return f"{what}: x.grad is {found.tolist()}, not {expected.tolist()}"


class _Checked:
    """An array that refuses indices out of bounds, and lanes that meet."""

    def __init__(self, shape):
        self.shape, self.read, self.written, self.lane = shape, {}, {}, None

    def lanes(self, *bounds):
        self.read, self.written = {}, {}
        for self.lane in range(*bounds):
            yield self.lane
        self.lane = None

    def __getitem__(self, k):
        self.touch(k, self.read)
        return 0.5

    def __setitem__(self, k, value):
        if self.lane is None:  # Python writes
            return
        self.touch(k, self.read)
        self.touch(k, self.written)
        if any(lane != self.lane for lane in self.read[k]):
            raise IndexError(k)

    def fill(self, value):
        """As of a field."""

    def touch(self, k, found):
        lanes = self.written.get(k, ())
        place = np.atleast_1d(k)
        inside = (place >= 0).all() and (place < self.shape).all()
        if not inside or (self.lane is not None and any(j != self.lane for j in lanes)):
            raise IndexError(k)
        found.setdefault(k, set()).add(self.lane)


def _in_python():
    return SimpleNamespace(kernel=lambda f: f, i32=int, **FUNCTIONS)


def is_plain(text, shape=(SIZE,)):
    """Whether no index is out of bounds, and no lanes of a launch meet."""
    u = _Checked(shape)
    plain = {"ds": _in_python(), "u": u, "range": u.lanes}
    exec(text, plain)
    try:
        plain["main"](0)
        u.read, u.written = {}, {}
        plain["main"](1)
    except IndexError:
        return False
    return True


def _gradient(text, space, q):
    """The gradient by complex steps of 1e-30, which are exact (Squire and Trapp 1998)."""
    plain = {"ds": _in_python()}
    exec(text, plain)
    weights = space["w"].to_numpy()
    found = np.zeros(weights.shape)
    for k in np.ndindex(found.shape):
        plain["u"] = space["x"].to_numpy().astype(complex)
        plain["u"][k] += 1e-30j
        plain["main"](q)
        found[k] = (weights * plain["u"]).sum().imag / 1e-30
    return found
