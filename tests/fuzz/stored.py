"""Programs whose adjoints may load what the launches have stored, and must not where it is no longer there.

Costly values are stored to elements that the same lane stores to again, that other loops of the kernel, later
launches, Python or copies of a tape overwrite, under conditions and in loops; some elements are left alone.
A kernel that only adds takes derivatives to them before that: its own adjoint needs no value, so that no rule
and no copy keeps these. Checked as those of `slices.py`.
"""

from random import Random

from tests.fuzz import slices

SHAPE = (4, 5)
ROWS = ("t", "t + 1", "t + 1", "p", "1 - p", "2", "0", "3 - t")
COLUMNS = ("i", "i", "i", "4 - i", "(i + 1) % 5", "i // 2")
COSTLY = (
    "ds.tanh(u[{a}] * 1.3 + 0.1)",
    "ds.exp(-0.4 * u[{a}] * u[{b}])",
    "ds.sqrt(u[{a}] ** 2 + 0.5) / (1.0 + u[{b}] ** 2)",
    "ds.tanh(u[{a}]) * ds.exp(0.1 * u[{b}])",
)
SHAPES = (
    "u[{x}] = {f}",
    "u[{x}] = {f}",
    "v = {f}\nu[{x}] = v\nu[{y}] = 0.5 * v * v",
    "v = {f}\nu[{x}] = v\nu[{x}] = v * v + u[{a}]",
    "v = {f}\nu[{x}] = v\nu[{y}] = {g}",
    "u[{x}] = {f}\nu[{x}] += 0.2 * u[{a}]",
    "u[{x}] = {f}\nu[{y}] = u[{x}] ** 2",
    "if i % 2 == p:\n    u[{x}] = {f}",
    "if ds.floor(2.0 * u[{a}]) > 0.5:\n    u[{x}] = {f}",
    "for k in ds.ndrange(3):\n    v = ds.tanh(0.3 * k + u[{a}])\n    u[{x}] = v * v",
    "for k in ds.ndrange(3):\n    v = ds.tanh(0.3 * k + u[{a}])\n    u[k, {c}] = v\n    u[3, {c}] = v * v",
    "for k in ds.ndrange(3):\n    v = ds.tanh(0.3 * k + u[{a}])\n    u[{x}] = v\n    u[3, i] += v * v",
    "for k in ds.ndrange(3):\n    v = ds.tanh(0.3 * k + u[{a}])\n    u[k, {c}] = v\n    u[3, i] += v * v",
    "v = {f}\nu[{x}] = v\nu[3, i] += 0.5 * v * v\nu[{x}] = 0.3 * u[{a}]",
    "v = {f}\nu[{x}] = v\nu[3, i] += 0.5 * v * v",
    "s = 0.1\nfor k in ds.ndrange(5):\n    s += 0.2 * u[t, k] * u[{a}]\nu[{x}] = ds.tanh(s)",
)
MOVE = """@ds.kernel
def move(t: ds.i32, n: ds.i32, p: ds.i32):
    for i in range(5):
        u[3, i] += 0.5 * u[t + 1, {c}]
"""
CALLS = (
    "{a}({t}, 0, {p})",
    "{a}({t}, 0, {p}); move({t}, 0, 0)",
    "{a}({t}, 0, {p}); move({t}, 0, 0); {b}({t}, 0, 0)",
    "{a}({t}, 0, {p}); move({t}, 0, 0); {a}({t}, 0, {p})",
    "for t in range(2): {a}(t, 0, {p}); move(t, 0, 0)",
    "for t in range(2): {a}(t, 0, {p}); move(t, 0, 0); {b}(t, 0, q)",
    "u[{t}, 2] = 0.4",
    "u.fill(0.3)",
)


def make(seed):
    """The program of this number: kernels, and `main(q)`, which launches them."""
    r = Random(seed)
    texts = (_program(r) for _ in range(400))
    return next((t for t in texts if slices.is_plain(t, SHAPE)), "def main(q): pass\n")


def _program(r):
    count = r.choice([1, 1, 2, 3])
    lines = [line for k in range(count) for line in _kernel(r, k)]
    lines += [*MOVE.format(c=r.choice(COLUMNS)).splitlines(), "def main(q):"]
    for _ in range(r.randrange(1, 4)):
        a, b = (f"k{r.randrange(count)}" for _ in "ab")
        t, p = r.choice([0, 1, "q"]), r.choice([0, 1, "q"])
        lines.append("    " + r.choice(CALLS).format(a=a, b=b, t=t, p=p))
    return "\n".join(lines) + "\n"


def _kernel(r, number):
    yield "@ds.kernel"
    yield f"def k{number}(t: ds.i32, n: ds.i32, p: ds.i32):"
    for _ in range(r.choice([1, 1, 1, 2])):
        yield f"    for i in range({r.choice(['5', '5', '5', 't + 2', '1, 4'])}):"
        for line in _body(r).splitlines():
            yield f"        {line}"


def _body(r):
    place = lambda: f"{r.choice(ROWS)}, {r.choice(COLUMNS)}"  # noqa: E731
    costly = lambda: r.choice(COSTLY).format(a=place(), b=place())  # noqa: E731
    return r.choice(SHAPES).format(
        x=r.choice(["t + 1, i", "t + 1, i", place()]),
        y=place(),
        a=place(),
        b=place(),
        c=r.choice(COLUMNS),
        f=costly(),
        g=costly(),
    )


def verdict(text, seed, in_place):
    """ "right", "refused", or what is wrong."""
    return slices.verdict(text, seed, in_place, SHAPE)
