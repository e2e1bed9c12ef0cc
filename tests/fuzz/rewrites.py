"""Random programs whose lanes write an element several times, and read it in between.

As `programs.py`, but for what kernels are made of: each lane stores into its own elements, into single
components of them, changes them in branches and loops, and reads them again. In rows of `m` the indices of
two accesses may be equal for some arguments and not for others.
"""

from __future__ import annotations

from tests.fuzz import programs
from tests.fuzz.programs import Scope


class Maker(programs.Maker):
    """Writes a program."""

    def pieces(self):
        return self.rewrite, self.rewrite, self.rewrite, self.serial_rewrite, self.scatter, self.map

    def rewrite(self):
        """Each lane writes its own elements several times."""
        self.put(1, f"for i in range({self.n}):")
        self.changes("i")

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
