"""Programs that step along two axes: `u[t, k + 1, i] = f(u[t, k, i])`, iterations in steps of time.

Versions have rows along one axis, so that the record decides whether a value was overwritten. Loops over
both axes in any order, indices that arguments, constants or lanes tell, launches that do overwrite, writes
from Python, recordings that repeat, replays. Checked as those of `slices.py`.
"""

from random import Random

from tests.fuzz import slices

SHAPE = (3, 4, 5)
LEADING = ("t", "t", "t", "t + 1", "2 - t", "0", "p")
MIDDLE = ("k", "k", "k", "k + 1", "k + 1", "3 - k", "0", "3", "(k + 1) % 2", "p + 1", "i % 4")
LOOPS = ("range(5)", "range(5)", "range(1, 4)", "range(p, 5)")
LAST = ("i", "i", "4 - i", "(i + 1) % 5", "0")
VALUES = (
    "u[{a}]**2 * 0.7 + 0.1",
    "u[{a}] * u[{b}] + 0.2",
    "0.5 * u[{a}] + 0.1",
    "0.2 * u[{a}]**3 - 0.3 * u[{b}]**2",
)
CALLS = (
    "for t in range(2):\n        for k in range(3): {}(t, k, {p})",
    "for t in range(3):\n        for k in range(3): {}(t, k, {p}); {}(t, 2 - k, q)",
    "for k in range(3):\n        for t in range(2): {}(t, k, {p})",
    "for t in range(2):\n        {}(t, 0, 1)\n        for k in range(2): {}(t, k, {p})",
    "{}({t}, {k}, {p})",
    "{}({t}, q, {p})",
    "u[{t}, {k}, 2] = 0.4",
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
    lines += [f"    {_event(r, count)}" for _ in range(r.randrange(1, 4))]
    return "\n".join(lines) + "\n"


def _kernel(r, number):
    place = lambda: f"{r.choice(LEADING)}, {r.choice(MIDDLE)}, {r.choice(LAST)}"  # noqa: E731
    target = r.choice(["t, k + 1, i", "t, k + 1, i", "t + 1, k, i", place()])
    first = r.choice(["t, k, i", place()])
    yield "@ds.kernel"
    yield f"def k{number}(t: ds.i32, k: ds.i32, p: ds.i32):"
    yield f"    for i in {r.choice(LOOPS)}:"
    yield f"        u[{target}] = {r.choice(VALUES).format(a=first, b=place())}"


def _event(r, count):
    kernels = [f"k{r.randrange(count)}" for _ in range(2)]
    numbers = {name: r.choice([0, 1, "q"]) for name in "tkp"}
    return r.choice(CALLS).format(*kernels, **numbers)


def verdict(text, seed, in_place):
    """ "right", "refused", or what is wrong."""
    return slices.verdict(text, seed, in_place, SHAPE)
