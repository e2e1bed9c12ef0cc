"""Random kernels that load from, store to and add to neighbours of elements that indices tell.

Components of vectors, cells around a cell, lists of cells (sorted or not), in branches and loops, with
indices that meet; and elements that a table gives to one lane each, which it adds to, loads and stores in any
order. All numbers are whole and small, so sums are exact in any order, and what vectors of lanes compute (and
their gradient) is compared bit by bit with the interpreter, which runs one lane after the other.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.llvm import long_blocks
from diffsim.ir.nodes import Atomic, Check, Print
from diffsim.ir.traversal import task_statements
from diffsim.passes.vectors import vectorize
from tests.support import bits

ROWS, MOST = 9, 70
CELLS, ITEMS = 7, 20


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines = [
            "@ds.kernel",
            "def run(n: ds.i32):",
            "    for i in range(n):",
        ]
        self.locals = ["1.0"]
        self.fresh = 0

    def pick(self, *things):
        return self.r.choice(things)

    def text(self):
        self.put(2, "j = at[i]")
        self.put(2, "k = of[i][0] + of[i][1] % 2")
        self.statements(2, self.r.randint(3, 8), ["j", "k", f"({ROWS - 3} - j)"])
        return "\n".join(self.lines) + "\n"

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def statements(self, depth, count, indices):
        for _ in range(count):
            kind = self.r.random()
            if kind < 0.4:
                self.fresh += 1
                self.put(depth, f"t{self.fresh} = {self.sum(indices)}")
                self.locals.append(f"t{self.fresh}")
            elif kind < 0.75 or depth > 3:
                self.write(depth, indices)
            elif kind < 0.78:
                self.own(depth)
            elif kind < 0.84:
                self.lists(depth, indices)
            elif kind < 0.92:
                self.put(depth, f"if {self.pick('j > 2', 'k % 2 == 0', 'i % 16 < 15', 'j == k')}:")
                self.nested(depth, indices)
            else:
                self.fresh += 1
                m = f"m{self.fresh}"
                self.put(depth, f"for {m} in range({self.pick('2', '3', 'k % 3')}):")
                self.nested(depth, [*indices, m, f"(j + {m}) // 2"])

    def nested(self, depth, indices):
        kept = list(self.locals)
        self.statements(depth + 1, self.r.randint(1, 3), indices)
        self.locals = kept

    def lists(self, depth, indices):
        """A loop over cells around the loop over the list of each."""
        self.fresh += 1
        c, e, total = (f"{name}{self.fresh}" for name in "ces")
        a, b = self.pick(*indices), self.pick(*indices)
        self.put(depth, f"{total} = 1.0")
        ends = self.pick(
            f"max({a} - 1, 0), min({a} + 2, CELLS)", f"{a} % 4, {b} % 5", "1, CELLS - 1"
        )
        self.put(depth, f"for {c} in range({ends}):")
        if self.r.random() < 0.3:
            self.put(depth + 1, f"n{c} = {self.pick(c, '2', f'{c} + 1', f'2 * {c} - {c}')}")
            c = f"n{c}"
        if self.r.random() < 0.15:
            self.write(depth + 1, indices)
        before = ""
        if self.r.random() < 0.25:
            before = f"b{self.fresh}"
            self.put(depth + 1, f"{before} = ds.min({total}, 2)")
        first = self.pick(f"first[{c}]", f"first[{c}]", f"table[{a} % 3, {c}]")
        after = self.pick("+ 1", "+ 1", "+ 1", "+ 2", "")
        behind = f"{first[:-1]} {after}]"
        # The lengths are those of the lists in `first`: others would leave `items`.
        last = self.pick(behind, f"{first} + length[{c}]" if first.startswith("first") else behind)
        self.put(depth + 1, f"for {e} in range({first}, {last}):")
        m = f"m{self.fresh}"
        self.put(depth + 2, f"{m} = items[{e}]")
        inner = [*indices, m, m] + [c] * (self.r.random() < 0.15)
        self.put(depth + 2, f"{total} += {self.sum(inner)}{before and ' - '}{before}")
        if self.r.random() < 0.4:
            self.candidates(depth + 2, m, total)
        if self.r.random() < 0.6:
            self.nested(depth + 1, inner)
        self.locals.append(total)

    def candidates(self, depth, m, total):
        """Loads of one index under conditions in conditions, from memories of several lengths."""
        if self.r.random() < 0.4:
            self.put(depth, f"{total} += few[i % 3, {m} % 3]")
        for bound in sorted(self.r.sample([2, 3, 4, ROWS], self.r.randint(1, 3)), reverse=True):
            self.put(depth, f"if {m} < {bound} {self.pick('', 'and i % 3 > 0', f'and {m} != j')}:")
            depth += 1
            for _ in range(self.r.randint(1, 2)):
                own = "" if bound > 3 else f"few[i % 3, {m}]"
                far = f"table[{self.pick(0, 1)}, {m}]"
                value = self.pick(own or f"v[{m}][0]", f"v[{m}][{self.component()}]", far)
                self.put(depth, f"{total} {self.pick('+', '+', '-')}= {value}")

    def own(self, depth):
        """Accesses of the lane's own element of a memory; which one that is, a table tells."""
        for _ in range(self.r.randint(1, 4)):
            value = self.pick(*self.locals)
            kind = self.pick(
                *["add"] * 5, *["load"] * 3, "store", "max", self.pick("old", "load", "load")
            )
            if kind in ("load", "old"):
                self.fresh += 1
                self.locals.append(f"t{self.fresh}")
                made = "p[own[i]]" if kind == "load" else f"ds.atomic_add(p[own[i]], {value})"
                self.put(depth, f"t{self.fresh} = {made}")
            elif kind == "max":
                self.put(depth, f"ds.atomic_max(p[own[i]], {value})")
            else:
                self.put(depth, f"p[own[i]] {'+=' if kind == 'add' else '='} {value}")

    def place(self, indices):
        """An element of two neighbouring rows, or a component."""
        a, b = (self.pick(*indices) + self.pick("", "", " + 1", " + 2") for _ in range(2))
        return self.pick(f"q[{a}, {b}]", f"v[{a}][{self.component()}]", f"u[i][{self.component()}]")

    def component(self):
        return self.pick(0, 0, 1, 1, "W - 1")

    def sum(self, indices):
        """Neighbours of one place, as an interpolation mixes them."""
        place = self.place(indices)
        others = [place, place.replace("]", " + 1]", 1) if place[0] == "q" else self.place(indices)]
        return " + ".join(
            [f"{self.r.randint(-2, 2)} * {p}" for p in others] + [self.pick(*self.locals)]
        )

    def write(self, depth, indices):
        value = self.pick(f"2 * {self.pick(*self.locals)}", self.pick(*self.locals))
        place = self.place(indices)
        if place[0] == "u":
            self.put(depth, f"o{place[1:]} {self.pick('=', '+=')} {value}")
        elif place[0] == "v" and self.r.random() < 0.6:
            whole = place[1 : place.index("][") + 1]
            self.put(depth, f"h{whole} += {value} * v[{self.pick(*indices)}]")
        else:
            self.put(depth, f"{'g' if place[0] == 'q' else 'h'}{place[1:]} += {value}")


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def add_lists(names, random):
    """Make lists of cells: mostly one after the other, as sorting leaves them, but for some mistakes."""
    n = CELLS + 3
    ends = np.sort(random.integers(0, ITEMS + 1, (4, n)))
    lengths = np.diff(ends[0], append=ITEMS)
    if random.random() < 0.4:
        ends[random.integers(0, 4), random.integers(0, n)] = random.integers(0, ITEMS + 1)
    if random.random() < 0.4:
        lengths[random.integers(0, n)] += random.integers(-2, 1)
    lengths = np.minimum(lengths, ITEMS - ends[0])
    items = random.integers(0, ROWS - 3, ITEMS)
    given = dict(first=ends[0], table=ends[1:], length=lengths, items=items)
    for name, values in given.items():
        names[name] = ds.field(ds.i32, shape=values.shape)
        names[name].from_numpy(values.astype("i4"))
    names["CELLS"] = CELLS


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields."""
    r = Random(seed)
    width, t = r.choice([2, 3, 4, 5]), r.choice([ds.f32, ds.f64])
    n = r.choice([1, 16, 33, MOST, r.randint(1, MOST)])
    ds.init(default_fp=t, offline_cache=False, **options)
    layout = r.choice([ds.Layout.AOS, ds.Layout.SOA])
    names = dict(ds=ds, W=width)
    names["q"], names["g"] = (
        ds.field(t, shape=(2 * ROWS, 2 * ROWS), needs_grad=True) for _ in "qg"
    )
    names["few"] = ds.field(t, shape=(3, 3), needs_grad=True)
    for name, size in zip("vhuo", (2 * ROWS, 2 * ROWS, MOST, MOST), strict=True):
        names[name] = ds.Vector.field(width, t, shape=size, needs_grad=True, layout=layout)
    names["p"], names["own"] = (
        ds.field(t, shape=MOST, needs_grad=True),
        ds.field(ds.i32, shape=MOST),
    )
    names["at"], names["of"] = ds.field(ds.i32, shape=MOST), ds.Vector.field(2, ds.i32, shape=MOST)
    exec(compile(text, f"<gathers {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    names["own"].from_numpy(random.permutation(MOST).astype("i4"))
    for name in ("few", *"qgvhuop"):
        field = names[name]
        for part in (field, field.grad):
            shape = part.to_numpy().shape
            part.from_numpy(random.integers(-2, 3, shape).astype(part.to_numpy().dtype))
    for name in ("at", "of"):
        which = random.integers(0, ROWS - 3, names[name].to_numpy().shape)
        if random.random() < 0.3:
            which = np.sort(which % 3, axis=0)  # so that many lanes in a row have one index
        names[name].from_numpy(which.astype("i4"))
    add_lists(names, random)
    names["run"](n)
    found = {name: names[name].to_numpy() for name in "ghop"}
    if "p[" in text and r.random() < 0.7:  # whose gradient is mostly refused
        return found
    names["run"].grad(n)
    return found | {f"{name}.grad": names[name].grad.to_numpy() for name in ("few", *"qgvhuop")}


def _are_apart(task, **_):
    """Whether lanes may be vectors: own elements are a permutation's, which no compiler can know."""
    found = list(task_statements(task))
    return not any(
        isinstance(s, (Check, Print)) or (isinstance(s, Atomic) and s.out) for s in found
    )


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    linecache.cache[f"<gathers {seed}>"] = (
        len(text),
        None,
        text.splitlines(True),
        f"<gathers {seed}>",
    )
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.2,
        debug=how.random() < 0.1,
    )
    always, vectorize._ALWAYS = vectorize._ALWAYS, True
    together = vectorize.may_run_together
    vectorize.may_run_together = _are_apart
    usual, stretch = long_blocks._LONG, long_blocks._STRETCH
    if how.random() < 0.3:
        long_blocks._LONG, long_blocks._STRETCH = 4, 2
    try:
        return bits.against_interpreter(partial(results, text, seed), options, may_refuse=True)
    finally:
        vectorize._ALWAYS, vectorize.may_run_together = always, together
        long_blocks._LONG, long_blocks._STRETCH = usual, stretch
