"""Random programs whose loops change what they have read, again and again: sweeps and contacts.

Loops in order read and write any element, at computed indices, in branches, loops in loops and `while`, also
whole numbers that indices and loops depend on. Iterations of parallel loops do so with elements of their own:
of their number, of a column, or of a number that is computed. Such programs are right with lifted rules.
"""

from tests.fuzz import programs
from tests.fuzz.programs import Maker, Scope


class SweepMaker(Maker):
    """Writes a program of such kernels."""

    def pieces(self):
        # Rows told by different arguments are left to the launch, which may find that they meet.
        self.row = []
        return self.sweep, self.sweep, self.shared, self.contacts, self.owners, self.map

    def sweep(self):
        """Statements in order."""
        self.put(1, "ds.loop_config(serialize=True)")
        bounds = self.pick("0, 2", "0, 3", "1, 4", "0, at[1]", "2, 1", "at[0], at[2]")
        self.put(1, f"for i in range({bounds}):")
        self.scope = Scope(index="i", floats=["a"])
        self.written = ["x", "y", "z", "s", "v", "m", "at"]
        self.statements(2, self.r.randint(2, 4))

    def contacts(self):
        """Each lane changes elements of its own number, or of its column, in loops."""
        targets = self.r.sample(["x", "y", "z", "v", "m"], self.r.randint(1, 2))
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(own=targets, index="i", floats=["a"])
        self.written = targets
        self.statements(2, self.r.randint(2, 4))

    def owners(self):
        """Each lane changes the elements whose number it is given, which are not those of others."""
        targets = self.r.sample(["x", "y", "z", "v"], self.r.randint(1, 2))
        self.put(1, f"for i in range({self.n}):")
        self.put(
            2,
            f"e = {self.pick(f'{self.n - 1} - i', f'(i + 1) % {self.n}', f'(3 * i + 2) % {self.n}')}",
        )
        self.scope = Scope(own=targets, index="e", floats=["a"])
        self.written = targets
        self.statements(2, self.r.randint(2, 4))

    def shared(self):
        """A loop that changes a local of the kernel: one of each iteration, a sum, or one that it keeps."""
        q = f"q{next(self.names)}"
        self.scope = Scope(index=str(self.r.randrange(self.n)), floats=["a"])
        self.put(1, f"{q} = {self.expr(1)}")
        targets = self.r.sample(["x", "y", "z", "v"], self.r.randint(1, 2))
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(own=targets, index="i", floats=["a"])
        self.written = targets
        kind = self.pick("private", "sum", "carried", "mixed")
        if kind == "carried":
            self.scope.floats.append(q)
        if kind in ("private", "mixed"):
            self.put(2, f"{q} = ds.sin({self.expr(2)})")
            self.scope.floats.append(q)
        self.statements(2, self.r.randint(1, 3))
        if kind in ("sum", "carried"):
            guard = self.r.random() < 0.4
            if guard:
                self.put(2, f"if {self.condition()}:")
            how = "+=" if kind == "sum" else self.pick("=", "*=", "+=")
            self.put(2 + guard, f"{q} {how} ds.sin({self.expr(2)})")
        self.scope = Scope(index="1", floats=["a", *[q] * (kind != "private")])
        self.put(1, f"s[None] += ds.sin({self.expr(2)})")

    # ---- statements

    def statements(self, depth, count):
        kinds = [self.update, self.update, self.update, self.local]
        if depth < 5:
            kinds += [self.sides, self.inner, self.until]
        for _ in range(count):
            self.pick(*kinds)(depth)
        self.update(depth)

    def place(self):
        """An element that may be written."""
        s, f = self.scope, self.pick(*self.written)
        if f == "s":
            return f, "s[None]"
        i = s.index if f in s.own else self.index()
        return f, f"m[{self.pick('0', '1', '2', *self.small())}, {i}]" if f == "m" else f"{f}[{i}]"

    def small(self):
        """Whole numbers below 3."""
        return [f"{k} % 3" for k in self.scope.ints]

    def update(self, depth):
        f, place = self.place()
        q = f"q{next(self.names)}"
        if f == "at":
            self.put(
                depth, f"{place} = ({place} + {self.pick('1', '2', *self.small())}) % {self.n}"
            )
            return
        # A value of its own: an update whose value reads the element would be atomic too late.
        if f == "v" and self.r.random() < 0.5:
            self.put(depth, f"{q} = {self.vec(1)}")
            self.put(
                depth,
                f"v{place[1:]} {self.pick('=', '+=')} ds.Vector([ds.sin({q}.x), 0.5 * {q}.y])",
            )
            return
        part = self.pick(".x", ".y") if f == "v" else ""
        self.put(depth, f"{q} = {self.pick('ds.sin', 'ds.tanh', '0.5 * ')}({self.expr(2)})")
        self.put(depth, f"{place}{part} {self.pick('=', '=', '+=', '*=')} {q}")
        self.scope.floats.append(q)

    def nested(self, depth, count):
        """Statements in a block, whose names end with it."""
        s = self.scope
        kept = list(s.floats), list(s.vecs), list(s.ints)
        self.statements(depth, count)
        s.floats, s.vecs, s.ints = kept

    def sides(self, depth):
        self.put(depth, f"if {self.condition()}:")
        self.nested(depth + 1, self.r.randint(0, 1))
        if self.r.random() < 0.5:
            self.put(depth, "else:")
            self.nested(depth + 1, self.r.randint(0, 1))

    def inner(self, depth):
        k = f"n{next(self.names)}"
        ends = self.pick(
            "2", "3", f"1, {self.n}", "at[1]", "2, 0", f"{self.scope.index}", "2, -1, -1"
        )
        self.put(depth, f"for {k} in range({ends}):")
        self.scope.ints.append(k)
        if self.r.random() < 0.2:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, self.pick("break", "continue"))
        self.nested(depth + 1, self.r.randint(0, 2))
        self.scope.ints.remove(k)

    def until(self, depth):
        """A loop that ends when a number in memory says so."""
        k = f"n{next(self.names)}"
        self.put(depth, f"{k} = 0")
        self.put(depth, f"while {k} < {self.pick(2, 3)} and {self.condition()}:")
        self.nested(depth + 1, self.r.randint(0, 2))
        self.put(depth + 1, f"{k} += 1")


def make(seed):
    """The program of this number."""
    return SweepMaker(seed).text()


def verdict(text, seed):
    """The verdict on a program with lifted rules: "right", "refused", "invalid", or what is wrong."""
    return programs.lifted(text, seed)
