"""Random programs with more of Python in their expressions, and elements passed by reference.

As `programs.py`; values also go through dictionaries, lists, comprehensions and `:=`, conditions ask `in`,
and additions to elements are made by a func that changes its parameter. Plain functions, lambdas and methods
of structs compute and change values, loops over two axes end early, bits of constants are taken.
"""

from __future__ import annotations

from tests.fuzz import programs

# The annotation is a text, which the oracle's Python does not evaluate.
GROW = """@ds.func
def grow(q: "ds.template()", k):
    q += k

def plain(p, q=0.4):
    if p > 0.5:
        return p * q
    return ds.sin(p) - q

bend = lambda p: 0.3 * p * (p + 1.0)

@ds.dataclass
class Pair:
    p: ds.f64
    q: ds.f64

    def both(self):
        return self.p * self.q

    def shift(self, by):
        self.p += by
        self.q -= 0.5 * self.both()
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
        i = self.pick(self.scope.index, *self.scope.ints)
        return self.pick(
            f"({a} + ({i} {self.pick('and', 'or')} {b}))",
            f"({b} - ({i} if {self.condition()} else {a}))",
            f"((w{self.named} := {a}) * w{self.named} + {b})",
            f"({{'p': {a}, 'q': {b}}}['{self.pick('p', 'q')}'])",
            f"sum([k * {a} for k in (0.5, -1.5)])",
            f"max([{a}, {b}])",
            f"{self.pick('min', 'max')}(({i}, {a}), (1, {b}))[1]",
            f"{{k: k * {a} for k in (1, 2)}}[2]",
            f"[{a}, {b}][{self.pick('0', '1')}]",
            f"plain({a}, {b})",
            f"(plain({a}) + bend({b}))",
            f"Pair({a}, {b}).both()",
            f"ds.bit_cast(ds.bit_cast(ds.f64(ds.stop_grad({a})), ds.i64), ds.f64) * {b}",
        )

    def change(self, depth):
        if self.r.random() < 0.3:
            self.pick(self.struct, self.box, self.listed)(depth)
        else:
            super().change(depth)

    def struct(self, depth):
        """A struct whose methods change it, perhaps in a loop or under a condition."""
        name, value = f"o{next(self.names)}", f"q{next(self.names)}"
        self.put(depth, f"{name} = Pair({self.expr(1)}, {self.expr(1)})")
        how = self.pick("", "for _ in range(2):", f"if {self.condition()}:")
        if how:
            self.put(depth, how)
        self.put(depth + bool(how), f"{name}.shift({self.expr(1)})")
        self.put(depth, f"{value} = {name}.both() - {name}.p")
        self.scope.floats.append(value)

    def box(self, depth):
        """A loop over two axes that may end early, and skips."""
        name = f"q{next(self.names)}"
        k, l = (f"n{next(self.names)}" for _ in range(2))
        self.put(depth, f"{name} = {self.expr(1)}")
        self.put(depth, f"for {k}, {l} in ds.ndrange({self.pick('2', '3', '(1, 3)')}, 2):")
        self.scope.floats.append(name)
        floats = list(self.scope.floats)
        self.scope.ints += [k, l]
        self.put(depth + 1, f"if {self.pick(f'{k} * {l} > 0', f'{name} > 0.4', self.condition())}:")
        self.put(depth + 2, self.pick("break", "break", "continue"))
        self.put(depth + 1, f"{name} = ds.tanh({name}) * {self.expr(1)} + {self.number()}")
        self.scope.ints = [n for n in self.scope.ints if n not in (k, l)]
        self.scope.floats = floats

    def listed(self, depth):
        """A loop over values that may end early, with what is done only if it did not."""
        name, v, w = (f"q{next(self.names)}" for _ in range(3))
        i = self.pick(self.scope.index, *self.scope.ints)
        a, b, c, d = (self.expr(1) for _ in range(4))
        self.put(depth, f"{name} = {self.expr(1)}")
        self.put(depth, f"for {v}, {w} in zip([{a}, {b}], reversed([{c}, {d}])):")
        self.put(depth + 1, f"if {self.pick(f'{name} > 0.4', self.condition())}:")
        self.put(depth + 2, self.pick("break", "break", "continue"))
        self.put(depth + 1, f"{name} = ds.tanh({name}) * {v} + {w}")
        self.put(depth, "else:")
        self.put(depth + 1, f"match {i}:")
        for case in ("0", "1 | 3", "_"):
            self.put(depth + 2, f"case {case}:")
            self.put(
                depth + 3, f"{name} = {name} * {self.number()} + sum(map(bend, [{self.expr(1)}]))"
            )
        self.scope.floats.append(name)

    def condition(self):
        i = self.pick(self.scope.index, *self.scope.ints)
        how, same = self.pick("<", "<=", ">", ">="), self.pick("==", "!=")
        return self.pick(
            super().condition(),
            f"{i} in (0, 2)",
            f"{i} not in range(1, 4, 2)",
            f"({i}, {self.leaf()}) {how} (1, {self.number()})",
            f"({i}, 2) {same} (1, 2)",
            f"({i}, 1) in ((0, 1), (2, 1))",
            f"Pair(1.0 * {i}, 0.5) {same} Pair(1.0, 0.5)",
        )

    def write(self, depth, target, how):
        if how != "+=" or target == "v":
            return super().write(depth, target, how)
        i = self.scope.index
        place = {"s": "s[None]", "m": f"m[{self.a_row()}, {i}]"}.get(target, f"{target}[{i}]")
        return self.put(depth, f"grow({place}, {self.expr(2)})")


def make(seed):
    """The program of this number."""
    return Maker(seed).text()
