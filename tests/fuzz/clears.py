"""Random kernels whose lanes load, clear and add to gradients of their own, which are forwarded.

Elements of a lane's own column, in rows that numbers, arguments and data tell, so that two of them are one
element, or are none, or whether they are is known when the kernel runs; clears and additions between each
other, in branches and loops; sums of what a branch has taken, or nothing. As adjoints do it, but in any
order. All numbers are whole and small, and what compiled code computes is compared bit by bit with the
interpreter.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.support import bits
from tests.support.vectors import narrow

LANES, ROWS = 37, 4
PLACES = (
    ("k", "l"),
    ("k", "l"),
    ("k + 1", "l"),
    ("k + 1", "l"),
    ("k", "lo"),
    ("k + 1", "lo"),
    ("k", "k + 1"),
    ("0", "k"),
    ("0", "1"),
    ("k", "ds.cast(k, ds.i8)"),
    ("k", "ds.cast(k + 256, ds.u8)"),
)
TESTS = "k != l|k != l|k == l|k > l|k < 1|k != lo|k != lo|k >= l|lo == 1|m[i] > 1|i % 3 == 0".split(
    "|"
)


class Maker:
    """Writes a kernel."""

    def __init__(self, seed):
        self.r = Random(f"clears {seed}")
        # Few places, and mostly one memory, so that elements meet.
        self.rows = self.r.choice(PLACES)
        self.mems = self.r.choice([["w.grad"], ["w.grad"], ["w.grad", "z"], ["w.grad", "v.grad"]])
        self.lines = []
        self.fresh = 0

    def pick(self, *things):
        return self.r.choice(things)

    def text(self):
        self.lines = ["@ds.kernel", "def run(lo: ds.i32):", f"    for i in range({LANES}):"]
        self.lines += ["        k = p[i]", "        l = q[i]", "        a0 = z[0, i]"]
        self.statements(2, self.r.randint(3, 7), ["a0"])
        return "\n".join(self.lines) + "\n"

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def place(self):
        return f"{self.pick(*self.mems)}[{self.pick(*self.rows)}, i]"

    def test(self, names):
        one = self.pick(*TESTS, f"{self.pick(*names)} > {self.pick('0', '1', self.pick(*names))}")
        how = self.r.random()
        if how < 0.15:
            return f"not ({one})"
        return f"{one} {self.pick('and', 'or')} {self.pick(*TESTS)}" if how < 0.35 else one

    def statements(self, depth, count, names):
        names = list(names)
        for _ in range(count):
            kind = self.r.random()
            if kind < 0.2:
                names.append(self.load(depth))
            elif kind < 0.6 or depth > 4:
                at = self.place()
                value = self.pick(*names, names[-1], names[-1], "1.0")
                self.put(depth, self.pick(f"{at} = 0.0", f"{at} += {value}", f"{at} += {value}"))
                if self.r.random() < 0.1:
                    self.put(depth, f"{self.place()} = {value}")
            elif kind < 0.8:
                names.append(self.taken(depth, names))
            elif kind < 0.93:
                self.put(depth, f"if {self.test(names)}:")
                self.statements(depth + 1, self.r.randint(1, 3), names)
                if self.r.random() < 0.4:
                    self.put(depth, "else:")
                    self.statements(depth + 1, self.r.randint(1, 3), names)
            else:
                self.fresh += 1
                self.put(depth, f"for b{self.fresh} in range({self.pick('2', 'k', 'lo')}):")
                self.statements(depth + 1, self.r.randint(1, 3), names)

    def load(self, depth):
        self.fresh += 1
        self.put(depth, f"a{self.fresh} = {self.place()}")
        return f"a{self.fresh}"

    def taken(self, depth, names):
        """What a branch takes away from an element, or 0; it is added to one behind the branch."""
        self.fresh += 1
        name, at = f"a{self.fresh}", self.place()
        self.put(depth, f"{name} = {self.pick('0.0', '0.0', '0.0', '1.0')}")
        self.put(depth, f"if {self.test(names)}:")
        side = self.r.random() < 0.3
        if side:
            self.statements(depth + 1, 1, names)
            self.put(depth, "else:")
        self.put(depth + 1, f"{name} = {at}")
        self.put(depth + 1, f"{self.pick(at, at, self.place())} = 0.0")
        if self.r.random() < 0.4:
            self.statements(depth + 1, 1, [*names, name])
        if not side and self.r.random() < 0.2:
            self.put(depth, "else:")
            self.put(depth + 1, f"{self.pick(at, self.place())} = 0.0")
        for _ in range(self.pick(0, 0, 1)):
            self.statements(depth, 1, names)
        self.put(depth, f"{self.pick(at, self.place())} += {name}")
        return name


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel leaves in the fields."""
    r = Random(seed)
    t = r.choice([ds.f32, ds.f64])
    ds.init(default_fp=t, offline_cache=False, **options)
    names = {"ds": ds}
    for name in "wvz":
        names[name] = ds.field(t, shape=(ROWS, LANES), needs_grad=True)
    for name in "pqm":
        names[name] = ds.field(ds.i32, shape=LANES)
    random = np.random.default_rng(seed)
    for name in "wvz":
        for part in (names[name], names[name].grad):
            part.from_numpy(random.integers(0, 4, (ROWS, LANES)).astype(part.to_numpy().dtype))
    for name in "pqm":
        names[name].from_numpy(random.integers(0, 3, LANES).astype("i4"))
    exec(compile(text, f"<clears {seed}>", "exec"), names)
    names["run"](int(random.integers(0, 3)))
    found = {name: names[name].to_numpy() for name in "wvz"}
    return found | {f"{name}.grad": names[name].grad.to_numpy() for name in "wvz"}


def verdict(text, seed):
    """The verdict on a program: "right", "invalid", or what is wrong."""
    name = f"<clears {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    how = Random(seed + 1)
    options = dict(cpu_max_num_threads=how.choice([1, 3]), debug=how.random() < 0.1)
    before = vectorize._ALWAYS, session._jit
    vectorize._ALWAYS = how.random() < 0.5
    if how.random() < 0.5:
        session._jit = narrow()
    try:
        return bits.against_interpreter(partial(results, text, seed), options)
    finally:
        vectorize._ALWAYS, session._jit = before
