"""Random programs whose lanes write an element several times, and read it in between.

As `programs.py`, but for what kernels are made of: each lane stores into its own elements, into single
components of them, changes them in branches and loops, and reads them again. In rows of `m` the indices of
two accesses may be equal for some arguments and not for others. Sweeps in colours read their neighbours in
place, and flattened loops take their index apart; some of them so that lanes meet.
"""

from __future__ import annotations

from tests.fuzz import programs
from tests.fuzz.programs import Scope


class Maker(programs.Maker):
    """Writes a program."""

    def pieces(self):
        rare = self.serial_rewrite, self.scatter, self.map
        return *[self.rewrite] * 3, *[self.coloured, self.flattened] * 2, *rare

    def rewrite(self):
        """Each lane writes its own elements several times."""
        self.put(1, f"for i in range({self.n}):")
        self.changes("i")

    def coloured(self):
        """Lanes of one colour read what those of the others hold."""
        f = self.pick("x", "y", "z")
        colours, shift = self.pick((2, 1), (2, 1), (2, 3), (4, 1), (4, 2), (2, 2))
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(hidden=[f], index="i", floats=["a"])
        test = self.pick(
            f"i % {colours} == ", f"(i + 3) % {colours} == ", f"(i & {colours - 1}) == "
        )
        test += self.pick("0", "1", *(["t % 2"] * len(self.row)))
        if self.r.random() < 0.3:
            test += f" and {self.leaf()} > {self.number()}"
        self.put(2, f"if {test}:")
        near = self.pick(
            f"{f}[(i + {shift}) % {self.n}]", f"{f}[(i + {self.n - shift}) % {self.n}]"
        )
        for _ in range(self.r.randint(1, 2)):
            how = self.pick("=", "+=", "*=")
            self.put(
                3, f"{f}[i] {how} {self.expr(1)} + 0.7 * {near} * {self.pick(near, f'{f}[i]')}"
            )

    def flattened(self):
        """A loop over all elements of `m`, which takes its index apart."""
        self.put(1, f"for q in range({programs.ROWS * self.n}):")
        width = self.pick(*[self.n] * 4, self.n - 1)
        row, column = f"q // {width}", self.pick(f"q % {width}", f"q - {width} * (q // {width})")
        if self.r.random() < 0.5:
            self.put(2, f"i, j = {row}, {column}")
            row, column = "i", "j"
        self.scope = Scope(hidden=["m"], index=f"({column})", floats=["a"])
        place = (
            f"m[({row}) % {programs.ROWS}, {column}]" if width < self.n else f"m[{row}, {column}]"
        )
        for _ in range(self.r.randint(1, 3)):
            value = self.pick(self.expr(1), f"{place} * {self.expr(1)}", f"ds.sin({place})")
            self.put(2, f"{place} {self.pick('=', '=', '+=', '*=')} {value}")

    def serial_rewrite(self):
        """Statements at kernel level that do so."""
        self.put(1, f"if a < 9.0 and a > {self.pick(-9, -9, 0)}.0:")
        self.changes(str(self.r.randrange(self.n)))

    def changes(self, index):
        targets = self.r.sample(["x", "y", "z", "v", "m"], self.r.randint(1, 2))
        self.scope = Scope(own=targets, index=index, floats=["a"])
        for _ in range(self.r.randint(2, 5)):
            self.element(2, self.pick(*targets))

    def element(self, depth, target):
        """A statement that changes an element."""
        if depth < 4 and self.r.random() < 0.25:
            self.pick(self.in_branch, self.in_loop, self.in_while)(depth, target)
        elif depth < 4 and self.r.random() < 0.2:
            self.pick(self.local, self.branch, self.loop)(depth)
        elif target == "v" and self.r.random() < 0.5:
            part = self.pick(".x", ".y", "[0]", "[1]", f"[{self.pick(self.scope.index)} % 2]")
            how = self.pick("=", "=", "*=", "+=") if part in (".x", ".y") else "="
            self.put(depth, f"v[{self.scope.index}]{part} {how} {self.expr(1)}")
        else:
            self.write(depth, target, self.pick("=", "=", "+=", "*="))

    def in_branch(self, depth, target):
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.put(depth, f"if {self.condition()}:")
        for word in ("else:", ""):
            for _ in range(self.r.randint(1, 2)):
                self.element(depth + 1, target)
            self.scope.floats, self.scope.vecs = list(floats), list(vecs)
            if not word or self.r.random() < 0.5:
                return
            self.put(depth, word)

    def in_loop(self, depth, target):
        k = f"n{next(self.names)}"
        turns = self.turns if self.scope.index == "i" else "2"
        self.put(depth, f"for {k} in range({self.pick('2', '3', turns, '0')}):")
        self.inside(depth, target, k)

    def in_while(self, depth, target):
        k, test = f"n{next(self.names)}", self.leaf()
        self.put(depth, f"{k} = 0")
        self.put(depth, f"while {k} < {self.pick(2, 3)} and {test} < {self.number()}:")
        self.put(depth + 1, f"{k} += 1")
        self.inside(depth, target, k)

    def inside(self, depth, target, k):
        """What a loop does to an element."""
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        if self.r.random() < 0.3:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, self.pick("break", "continue"))
        for _ in range(self.r.randint(1, 2)):
            self.element(depth + 1, target)
        self.scope.floats, self.scope.vecs = floats, vecs

    def a_row(self):
        return self.pick(*self.row, *self.row, "0", "1", "2")


def make(seed):
    """The program of this number."""
    return Maker(seed).text()
