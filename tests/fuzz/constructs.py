"""Random programs with more of Python in their expressions, and elements passed by reference.

As `programs.py`; values also go through dictionaries, lists, comprehensions and `:=`, conditions ask `in`,
and additions to elements are made by a func that changes its parameter.
"""

from __future__ import annotations

from tests.fuzz import programs

# The annotation is a text, which the oracle's Python does not evaluate.
GROW = """@ds.func
def grow(q: "ds.template()", k):
    q += k
"""


class Maker(programs.Maker):
    """Writes a program."""

    def text(self):
        self.named = 0
        return GROW + super().text()

    def expr(self, depth):
        if depth == 0 or self.r.random() < 0.5:
            return super().expr(depth)
        a, b = super().expr(depth - 1), super().expr(depth - 1)
        self.named += 1
        return self.pick(
            f"((w{self.named} := {a}) * w{self.named} + {b})",
            f"({{'p': {a}, 'q': {b}}}['{self.pick('p', 'q')}'])",
            f"sum([k * {a} for k in (0.5, -1.5)])",
            f"max([{a}, {b}])",
            f"{{k: k * {a} for k in (1, 2)}}[2]",
            f"[{a}, {b}][{self.pick('0', '1')}]",
        )

    def condition(self):
        i = self.pick(self.scope.index, *self.scope.ints)
        return self.pick(super().condition(), f"{i} in (0, 2)", f"{i} not in range(1, 4, 2)")

    def write(self, depth, target, how):
        if how != "+=" or target == "v":
            return super().write(depth, target, how)
        i = self.scope.index
        place = {"s": "s[None]", "m": f"m[{self.a_row()}, {i}]"}.get(target, f"{target}[{i}]")
        return self.put(depth, f"grow({place}, {self.expr(2)})")


def make(seed):
    """The program of this number."""
    return Maker(seed).text()
