"""Programs that change their state in place, whose adjoints need conditions of it rather than its values.

Swaps, clamps, selects and contacts under conditions of what is overwritten, in branches within each other
and in loops, beside updates that need the values; several loops of a kernel, launches after each other,
writes from Python between them. Checked as those of `slices.py`.
"""

from random import Random

from tests.fuzz import slices

SHAPE = (4, 5)
ROWS = ("t", "t + 1", "p", "1 - p", "2", "0", "3 - t")
CONDITIONS = (
    "a > b",
    "a > {n}",
    "(a > b) == (i % 2 == p)",
    "a * b > {n}",
    "t > 0 and a > b",
    "a > {n} or b > {n}",
    "i > 1 and u[{y}] < 0.6",
)
SHAPES = (
    "if {c}:\n    u[{x}] = b\n    u[{y}] = a",
    "if {c}:\n    u[{x}], u[{y}] = b, a\nelse:\n    u[{x}] = 0.5 * b",
    "u[{x}] = ds.max(a, {n})",
    "u[{x}] = ds.min(ds.max(a, b), 0.9)\nu[{y}] -= 0.1",
    "u[{x}] = b if {c} else 0.5 * a",
    "if {c}:\n    u[{x}] -= 0.5 * b",
    "if {c}:\n    if b > {n}:\n        u[{x}] = 0.3 * b - a\n    elif {d}:\n        u[{y}] += a",
    "if {c}:\n    u[{x}] = ds.max(b, {n})\n    if {d}:\n        u[{y}] = a",
    "if {c}:\n    u[{x}] = a * b",
    "u[{x}] = a * b if {c} else b",
    "s = a\nfor k in ds.ndrange(3):\n    if b > 0.2 * k:\n        s = 0.4 * (s + b)\nu[{x}] = s",
    "s = a\nif {c}:\n    for k in ds.ndrange(3):\n        s = ds.min(s, 0.3 * b + 0.1 * k)\nu[{x}] = s",
    "s = b\nif {c}:\n    s = 0.5 * a\n    if {d}:\n        s -= b\nif s > {n}:\n    u[{x}] = s",
    "s = 1 if {c} else 2\nif s == 1 and {d}:\n    u[{x}] = 0.7 * a + 0.1 * b",
)
CALLS = (
    "{a}({t}, 0, {p})",
    "{a}({t}, 0, {p}); {b}({t}, 0, 0)",
    "for t in range(2): {a}(t, 0, {p})",
    "for t in range(2): {a}(t, 0, {p}); {b}(1 - t, 0, q)",
    "{a}({t}, 0, 1); u[{t}, 2] = 0.4; {a}({t}, 0, 0)",
    "{a}({t}, 0, {p}); u.fill(0.3); {b}({t}, 0, 1)",
)


def make(seed):
    """The program of this number: kernels, and `main(q)`, which launches them."""
    r = Random(seed)
    texts = (_program(r) for _ in range(400))
    return next((t for t in texts if slices.is_plain(t, SHAPE)), "def main(q): pass\n")


def _program(r):
    count = r.choice([1, 1, 2, 3])
    lines = [line for k in range(count) for line in _kernel(r, k)]
    lines.append("def main(q):")
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
    # Fields get versions of rows with the first kernel whose arguments tell rows.
    rows = ROWS if r.random() < 0.7 else ("0", "1", "2")
    x, y = (f"{r.choice(rows)}, i" for _ in "xy")
    n = r.choice([0.3, 0.5, 0.7])
    c, d = (r.choice(CONDITIONS).format(n=n, y=y) for _ in "cd")
    values = r.choice(["a, b = u[{x}], u[{y}]", "a, b = u[{y}], u[{x}]", "a, b = u[{x}], u[{x}]"])
    return (values + "\n" + r.choice(SHAPES)).format(x=x, y=y, n=n, c=c, d=d)


def verdict(text, seed, in_place):
    """ "right", "refused", or what is wrong."""
    return slices.verdict(text, seed, in_place, SHAPE)
