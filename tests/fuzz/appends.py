"""Random kernels whose lanes go through lists and append what they keep: at counters, up to a bound.

Conditions in conditions, several counters, several stores at one, of indices, numbers, vectors; and loops
that only look so, as they use a counter for something else. All numbers are whole and small, so what vectors
of iterations store, and the gradient, is compared bit by bit with the interpreter, which takes one by one;
so is what lies behind the last element of each list.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from tests.support import bits

ITEMS, CELLS, LANES, WIDE = 60, 6, 9, 160


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(f"appends {seed}")
        self.lines = ["@ds.kernel", "def run(n: ds.i32):", "    for i in range(n):"]
        self.ints, self.floats = ["q", "q", "j", "e"], ["v[q]", "v[q]", "x", "u[q][1]"]

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        self.put(2, "j = at[i]")
        self.put(2, "x = v[j]")
        self.counters = ["a", "b"][: self.pick(1, 1, 2)]
        for c in self.counters:
            self.put(2, f"{c} = {self.pick('0', '0', 'j % 3', 'i % 2')}")
        depth = 2
        if self.r.random() < 0.6:
            self.put(2, "for c in range(j % 4, j % 4 + 3):")
            depth = 3
            ends = self.pick(
                "first[c], first[c + 1]", "length[c]", "first[c], first[c] + length[c]"
            )
        else:
            ends = self.pick("j, ITEMS", "ITEMS // 2", "40", "7", "j % 5", "10, 10 + j", "3, 2")
        self.put(depth, f"for e in range({ends}):")
        self.body(depth + 1)
        for k, c in enumerate(self.counters):
            self.put(2, f"near[i, {k}] = {c}")
        self.put(2, "for k in range(a):")
        self.put(3, f"g[i] += {self.pick('1', '2')} * kept[i, k]")
        return "\n".join(self.lines) + "\n"

    def body(self, depth):
        self.put(depth, f"q = {self.pick('items[e]', 'items[e]', 'e', 'items[items[e]]')}")
        for k in range(self.pick(0, 1, 1, 2)):
            self.put(depth, f"t{k} = {self.number()}")
            self.floats.append(f"t{k}")
            if self.r.random() < 0.3:
                self.put(depth, f"if {self.test()}:")
                self.put(depth + 1, f"t{k} = {self.number()}")
        for c in self.counters:
            self.append(c, depth)

    def append(self, c, depth):
        tests = [self.test() for _ in range(self.pick(1, 1, 2, 3))]
        if self.r.random() < 0.5:
            tests.insert(self.r.randrange(len(tests) + 1), self.bound(c))
        nested = self.r.random() < 0.3
        for t in tests if nested else [" and ".join(tests)]:
            self.put(depth, f"if {t}:")
            depth += 1
        places = [
            "list[i, {}]",
            "kept[i, {}]",
            "vec[i, {}]",
            "turned[{}, i]",
            "pool[i * WIDE + {}]",
        ]
        taken = self.r.sample(places, self.pick(0, 1, 1, 2, 3))
        if c == "a":
            taken = sorted({places[1], *taken})
        for place in taken:
            at = place.replace("{}", c)
            if c == "b":
                at = at.replace("[", "2[", 1)
            value = self.integer() if place[0] in "lp" else self.number()
            if place[0] == "v":
                value = f"ds.Vector([{self.number()}, x, {self.number()}])"
            line = f"{at} = {value}"
            if self.r.random() < 0.15:
                self.put(depth, f"if {self.pick(f'{c} < 9', 'i > 2', self.test())}:")
                line = "    " + line
            self.put(depth, line)
        self.put(depth, f"{c} += {self.pick('1', '1', '1', '1', '1', '1', '2')}")
        if self.r.random() < 0.1:
            odd = f"{self.pick('a', c)} {self.pick('> 3', '% 2 == 0')}"
            self.put(depth, f"g[i] += 1.0 if {odd} else 2.0")

    def test(self):
        a, b = self.number(), self.pick("x", "0.0", "1.0", self.number())
        return self.pick(
            "q > j",
            "q != j",
            "e % 3 > 0",
            f"{self.integer()} < {self.integer()}",
            f"{a} {self.pick('<', '>', '<=', '!=')} {b}",
            f"ds.sqrt({a} * {a}) < 2.0",
            "j > 1",
            "(j != 0 and q // j > 1)",
        )

    def bound(self, c):
        most = self.pick("WIDE", "11", "30", "j + 5", "CELLS")
        return self.pick(f"{c} < {most}", f"{c} <= {most}", f"{most} > {c}", f"not {c} >= {most}")

    def integer(self):
        return self.pick(*self.ints, f"{self.pick(*self.ints)} + 1", "2 * q", "items[q]")

    def number(self):
        a, b = self.pick(*self.floats), self.pick(*self.floats)
        return self.pick(
            a, a, f"({a} - {b})", f"({a} + 1.0)", f"{self.pick(2, 3)} * {a}", "w[q, 1]"
        )


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields."""
    r = Random(seed)
    t, n = r.choice([ds.f32, ds.f64]), r.choice([1, 4, LANES])
    ds.init(default_fp=t, offline_cache=False, **options)
    names = dict(ds=ds, ITEMS=ITEMS, CELLS=CELLS, WIDE=WIDE)
    shapes = dict(at=LANES, items=ITEMS, first=CELLS + 4, length=CELLS + 4, near=(LANES, 2))
    for k in ("", "2"):
        shapes |= {f"list{k}": (LANES, WIDE), f"pool{k}": LANES * WIDE}
        names[f"kept{k}"] = ds.field(t, shape=(LANES, WIDE), needs_grad=True)
        names[f"turned{k}"] = ds.field(t, shape=(WIDE, LANES), needs_grad=True)
        names[f"vec{k}"] = ds.Vector.field(3, t, shape=(LANES, WIDE), needs_grad=True)
    names |= {k: ds.field(ds.i32, shape=s) for k, s in shapes.items()}
    names["v"], names["g"] = (ds.field(t, shape=s, needs_grad=True) for s in (ITEMS, LANES))
    names["u"] = ds.Vector.field(2, t, shape=ITEMS, needs_grad=True)
    names["w"] = ds.field(t, shape=(ITEMS, 3), needs_grad=True)
    exec(compile(text, f"<appends {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    floats = [k for k, f in names.items() if getattr(f, "dtype", None) is t]
    for k in floats:
        for part in (names[k], names[k].grad):
            a = part.to_numpy()
            part.from_numpy(random.integers(-2, 3, a.shape).astype(a.dtype))
    names["at"].from_numpy(random.integers(0, 6, LANES).astype("i4"))
    # Indices of indices stay within the fields, also with 1 added, or doubled.
    names["items"].from_numpy(random.integers(0, ITEMS // 2 - 1, ITEMS).astype("i4"))
    names["first"].from_numpy(np.sort(random.integers(0, ITEMS - 24, CELLS + 4)).astype("i4"))
    names["length"].from_numpy(random.integers(-1, 25, CELLS + 4).astype("i4"))
    lists = ["near", "list", "list2", "pool", "pool2"]
    for k in lists[1:]:
        names[k].fill(-7)
    names["run"](n)
    found = {k: names[k].to_numpy() for k in (*lists, *floats)}
    try:
        names["run"].grad(n)
    except ds.errors.AutodiffError:
        return found
    return found | {f"{k}.grad": names[k].grad.to_numpy() for k in floats}


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    file = f"<appends {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.2,
        debug=how.random() < 0.1,
    )
    return bits.against_interpreter(partial(results, text, seed), options, may_refuse=True)
