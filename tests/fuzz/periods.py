"""Random loops in lanes whose branches and indices repeat with their number: `k % m`, in many forms.

Chains of numbers that go from iteration to iteration, also backwards, with a step, with bounds that are known
at the launch alone, that end early, or hold loops. Python runs the same text on NumPy arrays, in f64;
gradients are held against central differences of that.
"""

import types
from random import Random

import numpy as np

import diffsim as ds
from tests.support.source import make as define

LANES = (1, 16, 16, 17, 32, 40)
JOINTS = 9


class Maker:
    """Writes a kernel."""

    def __init__(self, seed):
        self.r = Random(f"periods {seed}")
        self.n = self.pick(*LANES)
        self.lines = []

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        self.put(0, f"n = {self.n}")
        self.put(0, "@ds.kernel")
        self.put(0, "def chain():")
        self.put(1, "for i in range(n):")
        self.put(2, f"a, b, c = {self.pick('0.0', '0.3')}, 0.5, q[i, {self.pick(0, 1)}]")
        for _ in range(self.pick(1, 1, 1, 2, 3)):
            self.loop()
        self.put(2, f"total[None] += {self.pick('a', 'b', 'a * b')} + c")
        return "\n".join(self.lines) + "\n"

    def loop(self):
        """One loop, and in its body what depends on its number."""
        self.lo = self.pick(0, 0, 0, 0, 1, 2)
        self.hi = self.pick(9, 9, 8, 7, 6, 5, 4, 3, 2, 1)
        step, top = "", str(self.hi)
        if self.r.random() < 0.15:
            step = self.pick(", 2", ", 3", ", 1")
        if self.r.random() < 0.1:
            top = self.pick("ends[i]", "ends[0]")
        bounds = f"{self.lo}, {top}{step}" if self.lo or step else top
        if self.r.random() < 0.15:
            bounds = self.pick(f"{self.hi - 1}, -1, -1", f"{self.hi - 1}, 0, -2", "8, -1, -1")
        self.put(2, f"for k in range({bounds}):")
        self.index = "k"
        if self.r.random() < 0.3:
            self.put(3, "j = 8 - k")
            self.index = "j"
        if self.r.random() < 0.1:
            self.put(3, f"if {self.pick('b > 0.9', 'k == 5', self.test())}:")
            self.put(4, self.pick("break", "continue"))
        for _ in range(self.r.randint(1, 4)):
            self.statement(3)
        if self.r.random() < 0.1:
            self.put(3, f"for l in range({self.pick('2', '4', 'k % 3', 'k')}):")
            self.put(4, f"a += 0.1 * q[i, l] * {self.pick('b', '0.5 * a', 'c')}")

    def remainder(self):
        k, m = self.pick("k", self.index), self.pick(2, 2, 2, 3, 4, 5)
        return self.pick(
            f"{k} % {m}",
            f"{k} % {m}",
            f"({k} + {self.pick(1, 2, 7)}) % {m}",
            f"(7 - {k}) % {m}",
            f"-{k} % {m}",
            f"(3 * {k} + 1) % {m}",
            f"({k} & {self.pick(1, 2, 3)})",
            f"({k} // 2) % {self.pick(2, 3)}",
            f"({k} * {k}) % {m}",
            f"({k} ^ 1) % {m}",
            f"({k} >> 1) % 2",
        )

    def test(self):
        rest = self.remainder()
        kinds = [f"{rest} == {self.pick(0, 1, 2)}", f"{rest} != 0", f"{rest} > 0", f"{rest} < 1"]
        rare = [f"k == {self.pick(0, 3)}", f"k < {self.pick(2, 4)}", "a > 0.2", "q[i, k] > 0.0"]
        one = self.pick(*kinds, *kinds, *rare)
        if self.r.random() < 0.2:
            one = f"{one} {self.pick('and', 'or')} {self.pick(*kinds, *rare)}"
        return f"not ({one})" if self.r.random() < 0.1 else one

    def place(self):
        """An index below 9."""
        k = self.index
        return self.pick("k", k, k, f"({self.remainder()})", f"8 - {k}")

    def value(self):
        part = self.pick("0", "1", "2", f"{self.remainder()} % 3")
        return self.pick(
            *("a", "b", "c", "0.3", "1.0", "0.0"),
            *(f"q[i, {self.place()}]", f"v[i, {self.place()}, {part}]", f"p[{self.place()}]"),
            *(f"ds.sin({self.pick('a', 'b', f'q[i, {self.place()}]')})", f"p[{self.remainder()}]"),
        )

    def statement(self, depth):
        kind = self.r.random()
        if kind < 0.3:
            self.rotation(depth)
        elif kind < 0.55 and depth < 5:
            self.put(depth, f"if {self.test()}:")
            for _ in range(self.r.randint(1, 2)):
                self.statement(depth + 1)
            if self.r.random() < 0.5:
                self.put(depth, "else:")
                self.statement(depth + 1)
        elif kind < 0.75:
            where = self.pick(f"y[i, {self.place()}]", "total[None]", f"y[i, {self.index}]")
            self.put(depth, f"{where} += {self.value()} * {self.value()}")
        elif kind < 0.8:
            self.put(depth, f"{self.pick('a', 'b')} += 0.1 * ({self.remainder()})")
        else:
            sign = self.pick("+", "-")
            value = f"0.5 * {self.value()} {sign} 0.5 * {self.value()}"
            self.put(depth, f"{self.pick('a', 'b', 'c')} = {value}")

    def rotation(self, depth):
        """A step about one of two axes."""
        self.put(depth, f"e, f = ds.cos(q[i, {self.place()}]), ds.sin(q[i, {self.place()}])")
        self.put(depth, "g, h, o = e, f, 0.0")
        self.put(depth, f"if {self.test()}:")
        self.put(depth + 1, f"g, h, o = {self.pick('1.0, 0.0, f', '0.0, e, 0.0', 'e, 0.0, 1.0')}")
        self.put(depth, "a, b = 0.4 * (g * a + h * b + o * c), 0.4 * (g * b - h * a + o * a)")


def make(seed):
    """The text of a kernel."""
    return Maker(seed).text()


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    n = lanes_of(text)
    shapes = {"q": (n, JOINTS), "v": (n, JOINTS, 3), "p": (JOINTS,), "y": (n, JOINTS), "total": ()}
    return compare(text, seed, shapes, JOINTS, deterministic=seed % 5 == 0)


def lanes_of(text):
    """The number of lanes, with which a text begins."""
    return int(text.partition("\n")[0].partition("=")[2])


def compare(text, seed, shapes, width, look=lambda chain: None, **options):
    """ "right", or what is wrong with `chain()` of a text, which fills `y` and `total`.

    Args:
        text: of the kernel.
        seed: of its numbers.
        shapes: of its fields, by their names.
        width: the largest number in its field `ends`.
        look: is given the kernel, when its gradient has run.
        options: for `ds.init`.
    """
    n = lanes_of(text)
    numbers = np.random.default_rng(seed)
    given = {f: numbers.uniform(-1, 1, shape) for f, shape in shapes.items()}
    given["ends"] = numbers.integers(0, width + 1, n)
    ds.init(
        arch=ds.cpu,
        default_fp=ds.f64,
        cpu_max_num_threads=1 + seed % 2,
        debug=seed % 7 == 0,
        **options,
    )
    fields = {f: ds.field(ds.f64, shape=shape, needs_grad=True) for f, shape in shapes.items()}
    fields["ends"] = ds.field(ds.i32, shape=n)
    for f, field in fields.items():
        field.from_numpy(given[f].astype(field.to_numpy().dtype))
    names = {"ds": ds, "n": n, **fields}
    define(text.partition("\n")[2], names)
    chain = names["chain"]
    weights = {f: numbers.uniform(-1, 1, shapes[f]) for f in ("y", "total")}
    expected = _in_python(text, given)
    chain()
    for f, weight in weights.items():
        if not np.allclose(fields[f].to_numpy(), expected[f], rtol=1e-10, atol=1e-10):
            return f"wrong value of {f}: {np.abs(fields[f].to_numpy() - expected[f]).max()}"
        fields[f].grad.from_numpy(weight)
    chain.grad()
    look(chain)
    for f, shape in shapes.items():
        step = numbers.uniform(-1, 1, shape)
        ends = (_in_python(text, given | {f: given[f] + s * 1e-6 * step}) for s in (1, -1))
        ahead, behind = (sum((e[f] * weights[f]).sum() for f in weights) for e in ends)
        found = (fields[f].grad.to_numpy() * step).sum()
        if not np.isclose(found, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-5):
            return f"wrong gradient of {f}: {found}, and not {(ahead - behind) / 2e-6}"
    return "right"


def _in_python(text, given):
    """Return the arrays after the text has run on copies of these."""
    arrays = {f: np.array(a) for f, a in given.items()}
    functions = {f.__name__: f for f in (np.sin, np.cos, np.exp, np.sqrt)}
    names = {"ds": types.SimpleNamespace(kernel=lambda f: f, **functions), **arrays}
    exec(text, names)
    names["chain"]()
    return arrays
