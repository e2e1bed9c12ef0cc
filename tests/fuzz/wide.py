"""Random programs with many lanes, written for what GPUs do with them.

Besides what `programs.py` writes: loops over parts of a row and over boxes, stencils between the planes of
`u`, additions that lanes make to the same few elements, in loops and out of them.
"""

from tests.fuzz.programs import HEIGHT, PLANES, ROWS, Maker, Scope

SIZES = (5, 33, 70)


class WideMaker(Maker):
    """Writes a program whose rows have n elements."""

    turns = "at[i] % 4"
    hows = (*Maker.hows[:3], "memory=400000")

    def pieces(self):
        return (
            *(self.map, self.scatter, self.scatter, self.serial, self.part, self.box),
            *(
                self.stencil,
                self.stencil,
                self.guarded,
                self.shared,
                self.edges,
                self.counted,
                self.parts,
            ),
            self.in_a_row,
        )

    def index(self):
        i = self.pick(self.scope.index, *self.scope.ints)
        few = self.pick(f"{i} % 3", f"{i} // 2")
        return self.pick(super().index(), super().index(), few)

    def span(self, n):
        """A range in a row, now and then an empty one."""
        lo, hi = self.r.randint(0, min(n, 4)), n - self.r.randint(0, min(n, 4))
        return self.pick((0, n), (lo, hi), (lo, hi), (n // 2, n), (hi, lo))

    def part(self):
        """Each turn writes elements of its own, which may not be those of its number."""
        lo, hi = self.span(self.n)
        shift = self.r.randint(-lo, self.n - max(lo, hi))
        targets = self.r.sample(["x", "y", "z", "v", "m"], self.r.randint(1, 2))
        away = self.pick(0, 0, 3, 50)
        self.put(1, f"for i in range({lo - away}, {hi - away}):")
        index = f"(i{_plus(shift + away)})"
        self.scope = Scope(own=targets, index=index, floats=["a"])
        self.body(2, self.r.randint(0, 2))
        for t in targets:
            self.write(2, t, self.pick("=", "=", "+=", "*="))

    def parts(self):
        """Additions to single components, that other lanes add to too."""
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(hidden=["v", "y"], index="i", floats=["a"])
        self.body(2, self.r.randint(0, 2))
        k = f"k{next(self.names)}"
        self.put(2, f"{k} = {self.index()}")
        depth = 2 + (self.r.random() < 0.5)
        if depth == 3:
            self.put(2, f"if {self.condition()}:")
        for _ in range(self.r.randint(1, 3)):
            self.put(depth, f"v[{k}].{self.pick('x', 'y')} {self.pick('+=', '-=')} {self.expr(2)}")
        if self.r.random() < 0.6:
            self.put(2, f"y[{k}] += {self.expr(1)}")

    def in_a_row(self):
        """Additions to elements of a row: some to the same one in all turns, some under a condition."""
        row = self.pick("1", *self.row * 3)
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(hidden=["m"], index="i", floats=["a"])
        self.body(2, self.r.randint(0, 1))
        for where in self.r.sample(["always", "if", "for", "both"], self.r.randint(1, 3)):
            depth, at = 2, self.pick("0", "2", "i % 3")
            if where in ("if", "both"):
                self.put(depth, f"if {self.condition()}:")
                depth += 1
            if where in ("for", "both"):
                at = self.pick(f"n{next(self.names)}", "3")
                self.put(
                    depth, f"for {at if at != '3' else 'q'} in range(1, {self.pick('3', '4')}):"
                )
                depth += 1
            self.put(depth, f"m[{row}, {at}] {self.pick('+=', '-=')} {self.expr(1)}")

    def counted(self):
        """A loop whose turns nobody knows before the launch."""
        lo, hi = self.pick("0", "1", "at[1]", *self.row), self.pick("at[2]", "at[2] + 1", "at[0]")
        targets = self.r.sample(["x", "y", "z", "v", "m"], self.r.randint(1, 2))
        self.put(1, f"for i in range({lo}, {hi}):")
        self.scope = Scope(own=targets, index="i", floats=["a"])
        self.body(2, self.r.randint(0, 2))
        for t in targets:
            self.write(2, t, self.pick("=", "+=", "*="))
        if self.r.random() < 0.5:
            self.put(1, f"for i, j in ds.ndrange({hi}, ({lo}, {self.n})):")
            self.put(2, f"s[None] += u[1, i % {HEIGHT}, j] * {self.number()}")

    def box(self):
        """All of m, or a box in it."""
        (top, bottom), (lo, hi) = self.span(ROWS), self.span(self.n)
        self.put(1, f"for r, i in ds.ndrange(({top}, {bottom}), ({lo}, {hi})):")
        self.scope = Scope(hidden=["m"], index="i", floats=["a"])
        self.body(2, self.r.randint(0, 2))
        self.put(2, f"m[r, i] {self.pick('=', '+=', '*=')} {self.expr(2)} + 0.4 * m[r, i]")

    def planes(self):
        """Where a stencil reads and where it writes."""
        if self.row and self.r.random() < 0.6:
            return self.pick(("t", "t + 1"), ("t + 1", "t"))
        return [str(p) for p in self.r.sample(range(PLANES), 2)]

    def stencil(self):
        """A plane of u from another one and its neighbours there."""
        of, to = self.planes()
        up, down, left, right = (self.r.randint(0, 2) for _ in range(4))
        rows = f"({up}, {HEIGHT - down})" if up or self.r.random() < 0.5 else str(HEIGHT - down)
        away = self.pick(0, 0, 0, 2, 33)
        columns = f"({left - away}, {self.n - right - away})"
        self.put(1, f"for j, i in ds.ndrange({rows}, {columns}):")
        self.scope = Scope(own=[], index=f"(i{_plus(away)})", floats=["a"])
        terms = []
        for _ in range(self.r.randint(1, 4)):
            dj, di = self.r.randint(-up, down), self.r.randint(-left, right)
            at = f"u[{of}, j{_plus(dj)}, i{_plus(di + away)}]"
            terms.append(self.pick(f"{self.number()} * {at}", at, f"{at} * {at}", f"ds.sin({at})"))
        if self.r.random() < 0.3:
            self.body(2, 1)
            terms.append(self.expr(1))
        how = self.pick("=", "=", "+=", "*=")
        self.put(2, f"u[{to}, j, i{_plus(away)}] {how} 0.5 * ({' + '.join(terms)})")

    def guarded(self):
        """All of a plane from those neighbours in another one that there are."""
        of, to = self.planes()
        self.put(1, f"for j, i in ds.ndrange({HEIGHT}, {self.n}):")
        self.scope = Scope(own=[], index="i", floats=["a"])
        self.put(2, f"u[{to}, j, i] {self.pick('=', '+=', '*=')} 0.3 * u[{of}, j, i]")
        for _ in range(self.r.randint(1, 4)):
            j, i = (f"{a}{_plus(self.r.randint(-2, 2))}" for a in "ji")
            test = self.pick(
                f"0 <= {j} < {HEIGHT} and 0 <= {i} < {self.n}",
                f"{j} >= 0 and {j} < {HEIGHT} and {i} > -1 and {i} <= {self.n - 1}",
                f"not ({j} < 0 or {j} >= {HEIGHT} or {i} < 0 or {i} >= {self.n})",
            )
            if self.r.random() < 0.2:
                test += f" and {self.condition()}"
            at = f"u[{of}, {j}, {i}]"
            if self.r.random() < 0.3:
                self.put(2, f"u[{to}, j, i] += 0.5 * ({at} if {test} else {self.pick('0', '0.0')})")
                continue
            self.put(2, f"if {test}:")
            self.put(3, f"u[{to}, j, i] += {self.pick(self.number(), at)} * {at}")

    def edges(self):
        """Rims of a plane from what lies beside them, as boundary conditions have it."""
        _, to = self.planes()
        self.put(1, f"for j in range({HEIGHT}):")
        self.put(2, f"u[{to}, j, 0] = {self.pick('0.9 * ', '')}u[{to}, j, 1]")
        if self.r.random() < 0.5:
            self.put(1, f"for i in range({self.n}):")
            self.put(2, f"u[{to}, 0, i] = u[{to}, {self.pick('1', '2')}, i] * a")

    def shared(self):
        """All lanes add to the same elements, in a loop."""
        target, source = self.r.sample(["x", "y", "z"], 2)
        k = f"n{next(self.names)}"
        first = self.pick("0", "0", "1", "at[1] % 2")
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(hidden=[target], index="i", floats=["a"])
        self.body(2, self.r.randint(0, 1))
        self.put(2, f"for {k} in range({first}, {self.pick('3', '4', 'at[0] % 4')}):")
        self.scope.ints.append(k)
        value = f"{self.expr(2)} * {source}[{k}]"
        if self.r.random() < 0.3:
            self.put(3, f"if {self.condition()}:")
            self.put(4, f"{target}[{k}] += {value}")
        else:
            self.put(3, f"{target}[{k}] {self.pick('+=', '-=')} {value}")


def _plus(shift):
    return f" + {shift}" if shift > 0 else f" - {-shift}" if shift else ""


class OwnMaker(WideMaker):
    """Writes programs most of whose turns write elements of their own alone."""

    def pieces(self):
        return self.map, self.map, self.part, self.part, self.box, self.stencil

    def index(self):
        return self.scope.index


def make(seed):
    """The program of this number, and how many elements its rows have."""
    n = SIZES[seed % len(SIZES)]
    return WideMaker(seed, n).text(), n
