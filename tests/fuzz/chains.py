"""Random chains of numbers in lanes: short loops with quotients, roots and functions of what they carry.

What such a loop computes forward is kept for its way back (`passes/kept/sweeps.py`), as far as there is room:
for a few values, or one, in many programs. Some of it is the same in all iterations, some is in branches or
in loops in the loop. Python runs the same text on NumPy arrays, in f64; gradients are held against central
differences of that.
"""

import re
from random import Random

import diffsim as ds
from diffsim.passes.kept import sweeps
from tests.fuzz.periods import compare, lanes_of

LANES = (1, 7, 16, 40)
WIDTH = 9
ROOM = (4096, 4096, 72, 144, 300)
"""Bytes of a lane for what is kept."""
reached: dict[str, int] = {}
"""How many adjoints keep a quotient, a root, a function."""


class Maker:
    """Writes a kernel."""

    def __init__(self, seed):
        self.r = Random(f"chains {seed}")
        self.n = self.pick(*LANES)
        self.names = iter(range(10**6))
        self.lines = []
        self.known = ["a", "b", "c"]

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        self.put(0, f"n = {self.n}")
        self.put(0, "@ds.kernel")
        self.put(0, "def chain():")
        self.put(1, "for i in range(n):")
        self.put(2, "a, b, c = 0.3, q[i, 1], y[i, 8]")
        for _ in range(self.pick(1, 1, 1, 2, 3)):
            self.loop(2)
        self.put(2, "total[None] += a * b + c")
        return "\n".join(self.lines) + "\n"

    def loop(self, depth):
        """A loop, and in its body quotients, roots and functions."""
        k = f"k{next(self.names)}"
        bounds = self.pick("9", "9", "8", "5", "3", "2", "1", "1, 7", "ends[i]", "7, -1, -1", "0")
        self.put(depth, f"for {k} in range({bounds}):")
        known = list(self.known)
        for _ in range(self.r.randint(1, 4)):
            self.statement(depth + 1, k)
        self.known = known
        new = f"0.5 * {self.slow(k)} + 0.4 * {self.pick('a', 'b', 'c')} * {self.value(k)}"
        self.put(depth + 1, f"{self.pick('a', 'b', 'c')} = {new}")

    def value(self, k):
        place = self.pick(k, f"8 - {k}", "0", "i % 9")
        return self.pick(
            *self.known, *self.known, f"q[i, {place}]", f"p[{place}]", "0.7", f"0.1 * {k}"
        )

    def slow(self, k):
        """A bounded value that takes long."""
        x, z = self.value(k), self.value(k)
        return self.pick(
            f"ds.sin({x})",
            f"ds.exp(-({x}) * ({x}))",
            *[f"ds.sin({z}) / (1.2 + ({x}) * ({x}))"] * 2,
            *[f"{self.pick('0.9', '1.0', f'ds.cos({z})')} / (1.0 + {x} * {z} * {x} * {z})"] * 2,
            *[f"ds.sqrt(0.3 + ds.sin({x}) * ds.sin({z}) * 0.2)"] * 2,
            f"1.0 / ds.sqrt(0.6 + {x} * {x})",
            f"{x} / ds.sqrt(1.0 + {x} * {x})",
        )

    def statement(self, depth, k):
        kind = self.r.random()
        name = self.pick("a", "b", "c")
        if kind < 0.5:
            made = f"t{next(self.names)}"
            self.put(depth, f"{made} = {self.slow(k)}")
            self.known.append(made)
        elif kind < 0.65:
            self.put(depth, f"{name} = 0.6 * {name} * {self.slow(k)} + 0.2 * {self.slow(k)}")
        elif kind < 0.75 and depth < 5:
            self.put(depth, f"if {self.pick(*self.known)} > {self.pick('0.2', '0.5', f'p[{k}]')}:")
            known = list(self.known)
            self.statement(depth + 1, k)
            self.put(depth + 1, f"{name} = 0.8 * {name} + 0.1 * {self.slow(k)}")
            self.known = known
        elif kind < 0.85 and depth < 4:
            self.loop(depth)
        elif kind < 0.9:
            self.put(depth, f"if {self.pick(*self.known)} > 0.9:")
            self.put(depth + 1, self.pick("break", "continue"))
        else:
            self.put(depth, f"y[i, {self.pick('0', '1')}] += 0.1 * {self.value(k)}")


def make(seed):
    """The text of a kernel."""
    return Maker(seed).text()


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    n = lanes_of(text)
    shapes = {"q": (n, WIDTH), "p": (WIDTH,), "y": (n, WIDTH), "total": ()}
    before = sweeps._MOST_KEPT
    sweeps._MOST_KEPT = ROOM[seed % len(ROOM)]
    try:
        return compare(text, seed, shapes, WIDTH, _count_kept, offline_cache=False)
    except ds.AutodiffError:
        return "refused"
    finally:
        sweeps._MOST_KEPT = before


def _count_kept(chain):
    kept = re.findall(r"scratch (div|sqrt|sin|cos|exp)\.saved", chain.grad.ir(after="dce"))
    for kind in set(kept):
        reached[kind] = reached.get(kind, 0) + 1
