"""Random kernels that make NaN and infinities: Python itself says which operation made the first one.

The same source runs in Python on numbers that know their origin (`Number`). A program fails if diffsim finds
another element, operation or iteration, or finds one where there is none.
"""

import random
import re

import numpy as np

import diffsim as ds
from tests.support.source import make as run_source

VALUES = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 1e200, -1e200, np.inf, np.nan]
LANES = 4
_NUMBER = re.compile(r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)")


class Found(Exception):
    """The first number that an operation made and that was stored."""


class Number:
    """A float with the operation that made it, if it is not finite."""

    loops = []  # noqa: RUF012

    def __init__(self, value, origin=None):
        self.value, self.origin = np.float64(value), origin

    @classmethod
    def of(cls, name, function, *args):
        args = [a if isinstance(a, Number) else Number(a) for a in args]
        values = [a.value for a in args]
        with np.errstate(all="ignore"):
            made = cls(function(*values))
        nan, infinite = np.isnan(made.value), np.isinf(made.value)
        if nan or infinite:
            earlier = [a.origin for a in args if a.origin is not None]
            fresh = not np.isnan(values).any() if nan else np.isfinite(values).all()
            if earlier:
                made.origin = earlier[0]
            elif fresh:
                made.origin = name, tuple(map(float, values)), tuple(cls.loops)
        return made

    def __add__(self, other):
        return Number.of("+", np.add, self, other)

    def __sub__(self, other):
        return Number.of("-", np.subtract, self, other)

    def __mul__(self, other):
        return Number.of("*", np.multiply, self, other)

    def __truediv__(self, other):
        return Number.of("/", np.divide, self, other)

    def __lt__(self, other):
        return bool(self.value < (other.value if isinstance(other, Number) else other))


class Functions:
    """What stands for `ds` in Python."""

    @staticmethod
    def select(cond, a, b):
        return a if cond else b


def _function(name, of, sign):
    setattr(Functions, name, staticmethod(lambda *args: Number.of(sign, of, *args)))


for _name, _of in (("sqrt", np.sqrt), ("exp", np.exp), ("log", np.log), ("acos", np.arccos)):
    _function(_name, _of, f"ds.{_name}")
_function("max", np.fmax, "ds.max")
_function("min", np.fmin, "ds.min")


class Cells:
    """What stands for a field in Python."""

    def __init__(self, values, name=""):
        self.values, self.name = [Number(v) for v in values], name

    def __iter__(self):
        return counted(len(self.values))

    def __getitem__(self, i):
        return Number(self.values[i].value)  # what was loaded was made by nobody

    def __setitem__(self, i, number):
        if number.origin is not None:
            raise Found(f"{self.name}[{i}]", number.value, number.origin)
        self.values[i] = number


def counted(n):
    depth = len(Number.loops)
    for k in range(n):
        Number.loops[depth:] = [k]
        yield k
    del Number.loops[depth:]


class Maker:
    """Writes a random kernel."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0

    def value(self, depth):
        pick = self.random.random()
        if depth == 0 or pick < 0.2:
            return self.random.choice("abc")
        inner = [self.value(depth - 1) for _ in range(2)]
        if pick < 0.6:
            return f"({inner[0]} {self.random.choice('+-*//')} {inner[1]})"
        if pick < 0.8:
            return f"ds.{self.random.choice(['sqrt', 'log', 'exp', 'acos'])}({inner[0]})"
        if pick < 0.9:
            return f"ds.{self.random.choice(['min', 'max'])}({inner[0]}, {inner[1]})"
        return f"ds.select({self.condition()}, {inner[0]}, {inner[1]})"

    def condition(self):
        return f"{self.random.choice('abc')} < {self.random.choice([-1.0, 0.0, 0.75, 1.0])}"

    def statements(self, indent, depth, n):
        lines = []
        for _ in range(n):
            pick = self.random.random()
            if depth and pick < 0.2:
                lines.append(f"{indent}if {self.condition()}:")
                lines += self.statements(indent + "    ", depth - 1, 2)
                if pick < 0.1:
                    lines.append(f"{indent}else:")
                    lines += self.statements(indent + "    ", depth - 1, 1)
            elif depth and pick < 0.35:
                self.count += 1
                lines.append(f"{indent}for k{self.count} in range({self.random.randint(1, 3)}):")
                lines += self.statements(indent + "    ", depth - 1, 2)
            elif pick < 0.5:
                lines.append(f"{indent}{self.random.choice('yw')}[i] = {self.value(1)}")
            else:
                lines.append(f"{indent}{self.random.choice('abc')} = {self.value(2)}")
        return lines

    def source(self):
        head = ["def f():", "    for i in x:", "        a = x[i]", "        b = z[i]"]
        head.append("        c = x[i] * 0.5")
        body = self.statements("        ", 2, self.random.randint(2, 6))
        return "\n".join([*head, *body, "        y[i] = a", "        w[i] = b", ""])


def make(seed):
    """The source of a kernel."""
    return Maker(seed).source()


def inputs(seed):
    """What the fields x and z hold."""
    r = random.Random(-1 - seed)
    return {n: [r.choice(VALUES) for _ in range(LANES)] for n in "xz"}


def expected(source, values):
    """What Python finds: the element, the operation, the loops; None: nothing."""
    cells = {n: Cells(values.get(n, [0.0] * LANES), n) for n in "xzyw"}
    space = {"ds": Functions, "range": counted, **cells}
    exec(source, space)
    Number.loops.clear()
    try:
        space["f"]()
    except Found as found:
        return found.args
    return None


def found(source, values):
    """What diffsim finds: the message; None: nothing."""
    fields = {n: ds.field(ds.f64, shape=LANES, name=n) for n in "xzyw"}
    for n, numbers in values.items():
        fields[n].from_numpy(np.array(numbers))
    space = {"ds": ds, **fields}
    run_source(f"@ds.kernel\n{source}", space)
    try:
        space["f"]()
    except ds.KernelArithmeticError as error:
        return error.message.split("\n")[0]
    return None


def verdict(text, seed):
    """ "right", "refused" if there is nothing to find, "invalid", or what is wrong."""
    ds.init(default_fp=ds.f64, debug=True)
    values = inputs(seed)
    try:
        want = expected(text, values)
    except Exception:
        return "invalid"
    try:
        have = found(text, values)
    except ds.DiffsimError:
        return "invalid"
    if want is None or have is None:
        return "refused" if want is have else f"found: {have} instead of {want}"
    place, number, (name, operands, loops) = want
    word = "NaN" if np.isnan(number) else "infinite"
    head, _, rest = have.partition(" in f(): ")
    made, _, where = rest.partition(", in the iteration ")
    made = made.partition(" is ")[0]
    shown = [float(t) for t in _NUMBER.findall(made)]
    right = (
        head == f"{place} became {word}"
        and name in made
        and tuple(int(k.split(" = ")[1]) for k in where.split(", ")) == loops
        and len(shown) == len(operands)
        and np.allclose(shown, operands, rtol=1e-5)
    )
    return "right" if right else f"another: {have} instead of {want}"
