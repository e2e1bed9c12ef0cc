"""Random programs that change what a kernel has captured, between its launches.

A program is run twice: by Python, with funcs as plain functions, and by diffsim. At each `check()` the kernel
must give what Python's `run()` gives, or refuse. What was refused may be put back: then it must be right.
"""

import enum
import linecache
import math
from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import DiffsimError


class Mode(enum.Enum):
    A = 1
    B = 2


class Thing:
    """An object with attributes as given, and properties."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    @property
    def double(self):
        return 2 * self.a

    @property
    def both(self):
        return [self.a, self.table["k"]]


class Other(Thing):
    """Another class of objects, with a truth and elements."""

    def __bool__(self):
        return self.a > 1.0

    def __len__(self):
        return 2

    def __getitem__(self, k):
        return self.a + k

    def __eq__(self, other):
        return self.a == getattr(other, "a", other)

    __hash__ = None


SETUP = """g = 1.0
n = 2
me = Thing(a=1.5, sub=Thing(a=0.5, table={"k": 4.0}), table={"k": 2.0}, opt=None, mode=Mode.A)
other = Other(a=1.0, sub=me.sub, table=me.table, opt=me, mode=Mode.B)
items = [1.0, 2.0, [3.0, 4.0]]
pair = (1.0, 2)
links = [(1, 2.0), (3, 4.0)]
pairs = ((1, 2.0), (3, 4.0))
rows = [[1.0, 2.0], [3.0, 4.0]]
way = vector([1.0, 2.0])
ways = [vector([1.0, 2.0]), vector([3.0, 4.0])]
table = {"k": 3.0, 1: 2.0, "me": me}
chosen = {1, 2}
array = np.array([1.0, 2.0, 3.0])

@func
def f(x):
    return x + g

@func
def h(x, y=2.0):
    return x * y

called = f
calls = [f, h]
named = {"f": h}
kind = float
"""

READS = [
    "g",
    "n",
    "me.a",
    "me.sub.a",
    "me.sub.table['k']",
    "me.double",
    "me.both[1]",
    "other.a",
    "other[1]",
    "len(other)",
    "table['k']",
    "table[1]",
    "table['me'].a",
    "items[0]",
    "items[-1][1]",
    "len(items)",
    "pair[0]",
    "pair[1]",
    "(1.0 if (1, 2.0) in links else 2.0)",
    "(1.0 if (3, 2.0) in links else 2.0)",
    "(1.0 if links == [(1, 2.0), (3, 4.0)] else 2.0)",
    "(1.0 if (1, 2.0) in pairs else 2.0)",
    "(1.0 if links == list(pairs) else 2.0)",
    "(1.0 if [1.0, 2.0] in rows else 2.0)",
    "(1.0 if [3.0, 1.0] in rows else 2.0)",
    "way[1]",
    "ways[1][0]",
    "array[1]",
    "array.shape[0]",
    "(1.0 if me.mode is Mode.A else 2.0)",
    "(1.0 if me.mode == other.mode else 2.0)",
    "(1.0 if me.opt is None else 2.0)",
    "(1.0 if me.opt else 2.0)",
    "(1.0 if other else 2.0)",
    "(1.0 if other == me else 2.0)",
    "(1.0 if me is other.opt else 2.0)",
    "(1.0 if n in chosen else 2.0)",
    "(1.0 if 'x' in table else 2.0)",
    "(1.0 if hasattr(me, 'extra') else 2.0)",
    "(1.0 if isinstance(me.sub, Other) else 2.0)",
    "(1.0 if n is True else 2.0)",
    "called(0.5)",
    "called(n)",
    "calls[0](1.5)",
    "calls[1](2.5)",
    "named['f'](0.5)",
    "h(1.5)",
    "kind(2.75)",
    "(1.75 * units(2, n % 2, kind)[1])",
    "units(3, 1, kind)[1]",
    "min(g, n)",
    "max(1.0, me.a)",
    "abs(g)",
    "sum(array)",
]

PLACES = [
    "g",
    "n",
    "me.a",
    "me.sub.a",
    "me.sub.table['k']",
    "me.table['k']",
    "me.opt",
    "other.a",
    "table['k']",
    "table[1]",
    "table['x']",
    "items[0]",
    "items[2][1]",
    "links[0]",
    "rows[1][1]",
    "way[1]",
    "ways[1][0]",
    "array[1]",
    "me.extra",
]

CHANGES = [
    "pass",
    "ds.init(default_fp=ds.f64)",
    "me.sub = Thing(a={0}, table=dict(k={1}))",
    "me.sub = Other(a={0}, table=me.sub.table)",
    "me.sub.__class__ = Other",
    "me = Thing(a={0}, sub=other.sub, table=table, opt=items, mode=Mode.B)",
    "other = Other(a={0}, sub=me, table=me.table, opt=me, mode=me.mode)",
    "other.opt = me",
    "me.mode = Mode.B",
    "other.mode = Mode.A",
    "me.opt = None",
    "me.opt = other",
    "items = [{0}, {1}, [{0}, {1}]]",
    "items.append({0})",
    "items = list(items)",
    "pair = ({0}, {1})",
    "links[0] = (1, {0})",
    "links[1] = ({0}, 2.0)",
    "links[0] = (1, 2.0)",
    "links.append((1, 2.0))",
    "links = list(links)",
    "pairs = ((1, {0}), (3, 4.0))",
    "pairs = tuple(list(pairs))",
    "pairs = ((1, 2.0), (3, 4.0))",
    "rows[1][1] = {0}",
    "rows[1] = [3.0, {0}]",
    "rows[0], rows[1] = rows[1], rows[0]",
    "rows[0] = rows[0].copy()",
    "way = vector([0.5, {0}])",
    "way = vector([1.0, 2.0])",
    "ways[1] = vector([{0}, 0.5])",
    "ways.reverse()",
    "table = dict(table)",
    "table.pop('x', None)",
    "vars(me).pop('extra', None)",
    "table['me'] = other",
    "chosen.add(2)",
    "chosen = {{1, 3}}",
    "array = array + 1.0",
    "array = np.array([{0}, {1}])",
    "array = array.copy()",
    "called, h = h, called",
    "called = calls[1]",
    "calls.reverse()",
    "calls = list(calls)",
    "named['f'] = f",
    "kind = int",
    "kind = float",
    "set_default(h, {0})",
    "Mode = Mode",
    "abs = min_of_one",
]


def make(seed):
    """The program of this number."""
    r = Random(seed)

    def number():
        return r.choice(["1.0", "1", "True", "0.0", "-0.0", "0.25", "2.5", "2", "3", "-1.5"])

    reads = r.sample(READS, r.randint(1, 4))
    lines = ["def run():", f"    total = 1.0 * {reads[0]}"]
    for k, read in enumerate(reads[1:]):
        if r.random() < 0.3:
            lines.append(f"    if {r.choice(reads)} > {number()}:")
            lines.append(f"        total = total + {2**k} * {read}")
        else:
            lines.append(f"    total = total + {2**k} * {read}")
    lines += ["    return total", "", "def main():"]
    lines.append("    global g, n, me, other, items, pair, table, chosen, array, called, h, calls")
    lines.append("    global named, kind, Mode, abs, links, pairs, rows, way, ways")
    for _ in range(r.randint(2, 12)):
        lines.append("    check()")
        for _ in range(r.randint(1, 2)):
            place = f"{r.choice(PLACES)} = {number()}"
            change = r.choice(CHANGES).format(number(), number())
            lines.append(f"    {place if r.random() < 0.5 else change}")
    return SETUP + "\n" + "\n".join([*lines, "    check()"]) + "\n"


def _space(**more):
    return {
        "Thing": Thing,
        "Other": Other,
        "Mode": Mode,
        "np": np,
        "math": math,
        "min_of_one": min,
        **more,
    }


def by_python(text):
    """What each `check()` finds; None where Python itself refuses."""
    found = []

    def check():
        try:
            found.append(float(space["run"]()))
        except Exception:
            found.append(None)

    def set_default(function, value):
        function.__defaults__ = (value,) if function.__defaults__ else None

    nothing = type("Nothing", (), {"init": staticmethod(lambda **_: None), "f64": None})
    space = _space(
        func=lambda f: f, vector=np.array, units=lambda n, i, kind: np.eye(n, dtype=kind)[i],
        check=check, set_default=set_default, ds=nothing,
    )  # fmt: skip
    exec(text, space)
    space["main"]()
    return found


def verdict(text):
    """ "right", "refused" if nothing else was found, "invalid", or what is wrong."""
    try:
        expected = iter(by_python(text))
    except Exception:
        return "invalid"
    ds.init(default_fp=ds.f64)
    out = ds.field(ds.f64, ())
    wrong, right = [], []

    def check():
        want = next(expected)
        try:
            launch()
        except DiffsimError:
            return
        if want is None or out[None] != want:
            wrong.append(f"check: {out[None]} instead of {want}")
        right.append(want)

    def set_default(function, value):
        plain = function.source.function
        plain.__defaults__ = (value,) if plain.__defaults__ else None

    file = f"<captured {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = _space(
        func=ds.func, vector=ds.Vector, units=ds.Vector.unit,
        check=check, set_default=set_default, ds=ds,
    )  # fmt: skip
    exec(compile(text, file, "exec"), space)
    func = ds.func(space["run"])

    @ds.kernel
    def launch():
        out[None] = func()

    space["main"]()
    return wrong[0] if wrong else "right" if right else "refused"
