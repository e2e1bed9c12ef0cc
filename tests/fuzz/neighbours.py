"""Random stencils over nests and boxes, whose neighbours wrap around, stop at the faces, or are left out;
windows that faces cut off; and loops over all pairs, with short loops inside, and along rows that an index
tells. The data are fields, in any order of axes, or arguments.

Python runs the same text over NumPy's arrays, in the order in which the program is written, and central
differences of that run along one direction are what the gradient must give.
"""

import itertools
import linecache
import math
import random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError
from tests.cuda import emulated
from tests.fuzz import cuda

PLANES = 3
SIZES = [
    (20, 18),
    (17, 24),
    (24, 3),
    (5, 19),
    (40, 17),
    (4, 4),
    (6, 40),
    (4, 64),
    (5, 48),
    (5, 140),
    (17, 130),
]
_NUMBERS = itertools.count()
LOSS = """
@ds.kernel
def measure():
    for p, i, j in ds.ndrange(3, H, W):
        s[None] += ((3 * i + 5 * j + p) % 7 - 2) * u[p, i, j] ** 2 + (i % 3) * w[p, i, j].dot(w[p, i, j])
    for i in range(H):
        s[None] += ds.sin(r[i]) * (i % 4)
    for j in range(W):
        s[None] += q[j] * q[j]

"""


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = random.Random(f"neighbours {seed}")
        self.h, self.w = self.r.choice(SIZES)
        self.lines = [f"H, W = {self.h}, {self.w}", *LOSS.split("\n")]
        self.names = itertools.count()

    def pick(self, *things):
        return things[self.r.randrange(len(things))]

    def number(self):
        return str(round(self.r.uniform(-0.9, 0.9), 2))

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        calls = []
        for k in range(self.r.randint(1, 3)):
            self.put(0, "@ds.kernel")
            # Sizes that are known at the launch alone hide those of the text.
            more = self.pick("", ", H: ds.i32, W: ds.i32")
            self.put(0, f"def k{k}(n: ds.i32, c: ds.f64{more}):")
            for _ in range(self.r.choice([1, 1, 2])):
                self.loops()
            sizes = self.pick(", H, W", ", H - 1, W", ", H, W - 2", ", 1, W") if more else ""
            calls.append(f"k{k}({self.pick('H', 'W')}, {self.number()}{sizes})")
        self.put(0, "def main():")
        for _ in range(self.r.randint(1, 4)):
            self.put(1, self.pick(*calls))
        self.put(1, "measure()")
        return "\n".join(self.lines) + "\n"

    # ---- loops

    def loops(self):
        # Sums over many pairs grow without bound, and what they leave of a sine is chance.
        if self.r.random() < 0.15 and self.w < 40:
            self.pick(self.pairs, self.pairs, self.chosen_rows)()
            return
        whole = self.r.random() < 0.7
        low, high = (0, 0) if whole else (self.r.randint(0, 2), self.r.randint(0, 2))
        rows, columns = f"{low}, H - {high}", f"{low}, W - {high}"
        self.floats = ["c"]
        kind = self.pick("nest", "nest", "box", "columns first", "values before", "inner alone")
        if kind == "box":
            self.put(1, f"for i, j in ds.ndrange(({rows}), ({columns})):")
            self.depth = 2
        elif kind == "columns first":
            self.nest(f"for j in range({columns}):", f"for i in range({rows}):")
        elif kind == "values before":
            self.put(1, f"for i in range({rows}):")
            self.put(2, self.pick("a = 0.3 * i - 0.5", "a = r[i]", "a = ds.cos(c * i)", "m = W"))
            self.floats += ["a"] * ("a =" in self.lines[-1])
            end = "m" if "m =" in self.lines[-1] else f"W - {high}"
            self.put(2, f"for j in range({low}, {end}):")
            self.depth = 3
        elif kind == "inner alone":
            self.put(1, f"for i in range({rows}):")
            self.put(2, f"for j in range({self.pick('i % 2, W', '0, i % W + 1', 'W')}):")
            self.depth = 3
        else:
            self.nest(f"for i in range({rows}):", f"for j in range({columns}):")
        # A row is a lane's own, and its iterations find what those before them have written.
        self.rows_in_order = kind not in ("box", "columns first")
        self.body()

    def pairs(self):
        """Each lane meets all others, in loops over components."""
        self.put(1, f"for i in range({self.pick('H', '1, H - 1')}):")
        self.put(2, f"least = {self.pick('9.0', 'r[i]')}")
        self.put(2, f"for j in range({self.pick('W', 'n', '20', '3', '5')}):")
        p, k = self.r.sample(range(PLANES), 2)
        other = f"u[{self.pick('d', str(p))}, {self.pick('d', '1')}, j % W]"
        self.put(3, f"a = {self.pick('0.2', 'least', 'c')}")
        self.put(3, f"for d in range({self.pick('3', '1, 3', '2', '2, 0', '0, 3, 2')}):")
        self.put(4, f"a {self.pick('+=', '=')} a * 0.3 + (u[d, i, {k}] - {other}) ** 2")
        if self.r.random() < 0.4:
            self.put(4, f"if {self.pick('a > 0.4', 'd == 1', 'j > 7')}:")
            self.put(5, f"a {self.pick('=', '+=')} 0.3 * w[d, i, 1].x * {other}")
        if self.r.random() < 0.5:
            self.put(3, "for d in range(3):")
            self.put(4, f"q[i % W] += 0.01 * a * u[d, i, {k}]")
        reduce = self.pick("ds.min(least, a)", "ds.max(0.5 * least, a)", "least + 0.01 * a")
        self.put(3, f"least = {reduce}")
        self.put(2, "r[i] += 0.1 * least")

    def chosen_rows(self):
        """Each lane goes along rows anywhere, and carries a number."""
        self.put(1, f"for i in range({self.pick('H', '1, H')}):")
        self.put(2, f"at = {self.pick('i * i', '(i + n) * i', '(3 * i * i + 1)')} % H")
        self.put(2, f"a = {self.pick('c', 'r[i]', '0.3')}")
        p, k = self.r.sample(range(PLANES), 2)
        self.put(2, f"for d in range({self.pick('W', 'W', '1, W', 'W - 1', 'W // 2 * 2')}):")
        other = self.pick("q[d]", f"u[{k}, at, d]", f"u[{k}, i, d]", f"w[{p}, at, d].y", "0.7")
        self.put(3, f"a {self.pick('+=', '=')} a * 0.3 + u[{p}, at, d] * {other}")
        if self.r.random() < 0.3:
            self.put(3, f"u[{3 - p - k}, at, d] += 0.1 * a")
        self.put(2, "r[i] += 0.1 * a")

    def nest(self, outer, inner):
        self.put(1, outer)
        self.put(2, inner)
        self.depth = 3

    def body(self):
        d = self.depth
        self.of, self.to = self.r.sample(range(PLANES), 2)
        for _ in range(self.r.randint(1, 3)):
            self.local(d)
        kind = self.pick(
            "u", "u", "u", "w", "w", "in place", "colours", "scatter", "sums", "window"
        )
        if kind == "colours":
            self.colours(d)
        elif kind == "window":
            self.window(d)
        elif kind == "u":
            self.put(d, f"u[{self.to}, i, j] {self.pick('=', '=', '+=')} 0.6 * {self.expr()}")
        elif kind == "w":
            value = self.pick(
                f"0.5 * w[{self.of}, {self.place()}]",
                f"ds.Vector([{self.expr()}, {self.expr()}])",
                f"w[{self.of}, {self.place()}] * {self.expr()}",
            )
            self.put(d, f"w[{self.to}, i, j] {self.pick('=', '+=')} {value}")
        elif kind == "in place":
            self.put(d, f"u[{self.to}, i, j] = 0.5 * u[{self.to}, i, j] + 0.3 * {self.expr()}")
            if self.rows_in_order:
                self.put(d, f"u[{self.to}, i, j] += 0.2 * u[{self.to}, i, {self.along('j')}]")
        elif kind == "scatter":
            self.put(d, f"u[{self.to}, {self.place()}] += 0.4 * {self.expr()}")
            if self.r.random() < 0.5:
                self.put(d, f"u[{self.to}, {self.place()}] -= {self.expr()}")
        else:
            self.put(d, f"{self.pick('r[i]', 'q[j]', 's[None]')} += 0.1 * {self.expr()}")
        if self.r.random() < 0.2:
            self.put(d, f"w[{self.to}, i, j] = w[{self.to}, i, j] * {self.number()}")

    def colours(self, d):
        """Cells of one colour read those of the others, in place."""
        m = self.pick(2, 2, 2, 4, 3)
        turned = self.pick("+", "-", "+" if m == 3 else "+ 3 *")
        test = f"(i {turned} j) % {m} == {self.pick('0', '1', f'n % {m}')}"
        if self.r.random() < 0.3:
            test = test.replace("% 2", "& 1").replace("% 4", "& 3")
        self.put(d, f"if {self.pick('0 < i and ', '0 < i and ', '')}{test}:")
        inside = "0 < i and i < H - 1 and 0 < j and j < W - 1"
        self.put(d + 1, f"if {inside}:")
        near = [f"u[{self.to}, {at}]" for at in ("i - 1, j", "i + 1, j", "i, j + 1", "i, j - 1")]
        terms = " + ".join(self.r.sample(near, self.r.randint(1, 4)))
        value = f"0.3 * ({terms}) + {self.pick('0.0', self.expr())}"
        if self.r.random() < 0.3:
            value = f"0.4 * u[{self.to}, i, j] + {value}"
        self.put(d + 2, f"u[{self.to}, i, j] {self.pick('=', '=', '+=')} {value}")

    def window(self, d):
        """Loops over the cells around one, which the faces cut off."""
        name = f"a{next(self.names)}"
        self.put(d, f"{name} = {self.number()}")
        at = "k, l"
        for a, k in [("i", "k"), ("j", "l")]:
            if self.r.random() < 0.2:
                at = at.replace(k, a)
                continue
            self.put(d, f"for {k} in range({self.cut_off(a)}):")
            d += 1
        near = f"u[{self.of}, {at}]"
        for _ in range(self.r.randint(1, 3)):
            value = self.pick(near, f"ds.sin({near} - {self.leaf()})", f"{near} * {self.leaf()}")
            first, second = at.split(", ")
            far = self.pick(
                "0.1", f"0.05 * ({first} - i)", f"0.05 * (j - {second}) * ({first} - i + 1)"
            )
            if self.r.random() < 0.25:
                self.put(d, f"if {self.pick(f'{second} != j', f'{near} > 0.2', f'{first} < i')}:")
                self.put(d + 1, f"{name} += 0.1 * {value}")
            elif self.r.random() < 0.25:
                self.put(d, f"u[{self.to}, {at}] += {far} * {value}")
            elif self.r.random() < 0.3:
                self.put(d, f"{name} = 0.8 * {name} + {far} * ds.cos({name} * {value})")
            else:
                self.put(d, f"{name} += {far} * {value}")
        self.put(self.depth, f"u[{self.to}, i, j] += 0.3 * {name}")

    def cut_off(self, a):
        """The bounds of a window around an axis."""
        n, k, m = {"i": "H", "j": "W"}[a], self.r.randint(0, 4), self.r.randint(1, 5)
        low = self.pick(
            f"ds.max(0, {a} - {k})", f"ds.max(0, {a} - {k})", f"ds.max({a} - {k}, 1)", a, "0",
            f"ds.max(ds.max({a} - {k}, 0), {'j' if a == 'i' else 'i'} - 6)",
        )  # fmt: skip
        high = self.pick(
            f"ds.min({n}, {a} + {m})", f"ds.min({n}, {a} + {m})", f"ds.min({a} + {m}, {n} - 1)",
            f"{a} + 1", n, f"ds.min({n}, n, {a} + {m})",
        )  # fmt: skip
        return f"{low}, {high}"

    def local(self, d):
        name = f"a{next(self.names)}"
        if self.r.random() < 0.3:
            at, n = self.pick(("i", "H"), ("j", "W"))
            self.put(d, f"b{name} = {at} + 1")
            self.put(d, f"if b{name} {self.pick('==', '>=', '>')} {n}{self.pick('', ' - 1')}:")
            self.put(d + 1, f"b{name} = {self.pick('0', f'{n} - 1', at)}")
            self.put(d, f"if b{name} >= {n}:")
            self.put(d + 1, f"b{name} = 0")
            place = f"b{name}, j" if at == "i" else f"i, b{name}"
            self.put(d, f"{name} = u[{self.of}, {place}] * {self.number()}")
        else:
            self.put(d, f"{name} = {self.expr()}")
        if self.r.random() < 0.35:
            test = self.pick(
                f"{name} > {self.number()}", "i < 1", f"j == W - {self.pick(1, 2)}", "i + j > 7"
            )
            self.put(d, f"if {test}:")
            self.put(d + 1, f"{name} {self.pick('=', '+=', '*=')} {self.expr()}")
        if self.r.random() < 0.3:
            k, m = self.pick(-2, -1, 1, 2), self.pick(-1, 0, 1)
            test = f"0 <= i + {k} and i + {k} < H and 0 <= j + {m} and j + {m} < W"
            self.put(d, f"if {test}:")
            part = self.pick("", "", ".x", ".y")
            at = f"{'w' if part else 'u'}[{self.of}, i + {k}, j + {m}]{part}"
            self.put(d + 1, f"{name} += 0.7 * {at}")
        if self.r.random() < 0.25:
            self.beside(d, name)
        self.floats.append(name)

    def beside(self, d, name):
        """Components of vectors beside a lane, each if its neighbour is inside."""
        for _ in range(self.r.randint(1, 3)):
            a, k = self.pick("i", "j"), self.r.randint(1, 2)
            sign = self.pick("-", "+")
            at = f"{a} {sign} {k}"
            test = f"{a} > {k - 1}" if sign == "-" else f"{at} < {'H' if a == 'i' else 'W'}"
            place = f"{at}, j" if a == "i" else f"i, {at}"
            self.put(d, f"if {test}:")
            more = f"w[{self.of}, {place}].{self.pick('x', 'y')}"
            self.put(d + 1, f"{name} {self.pick('+=', '-=', '=', '*=')} {more}")

    # ---- values

    def along(self, a):
        """A neighbour along an axis that is certainly inside."""
        n, k = {"i": "H", "j": "W"}[a], self.r.randint(1, 2)
        return self.pick(
            a,
            a,
            f"({a} + {k}) % {n}",
            f"({a} - {k}) % {n}",
            f"({a} - {k} + {n}) % {n}",
            f"({n} + {a} - 1) % {n}",
            f"ds.min({a} + {k}, {n} - 1)",
            f"ds.max({a} - {k}, 0)",
            f"ds.max(ds.min({a} + {k}, {n} - 1), 1)",
            f"({a} + {k} if {a} + {k} < {n} else {a} + {k} - {n})",
            f"({a} - 1 if {a} > 0 else {n} - 1)",
            f"ds.select({a} == 0, {a}, {a} - 1)",
            f"({n} - 1 - {a})",
        )

    def place(self):
        return f"{self.along('i')}, {self.along('j')}"

    def leaf(self):
        at = f"u[{self.of}, {self.place()}]"
        return self.pick(
            self.number(),
            *self.floats[-3:],
            at,
            at,
            at,
            f"w[{self.of}, {self.place()}].{self.pick('x', 'y')}",
            self.pick("e[i, j]", f"e[{self.place()}]"),
            self.pick("r[i]", "q[j]", "q[(j + 1) % W]") if self.r.random() < 0.3 else at,
        )

    def expr(self):
        a, b = self.leaf(), self.leaf()
        return self.pick(
            f"({a} + {b})",
            f"({a} - 0.5 * {b})",
            f"{a} * {b}",
            f"ds.sin({a})",
            f"ds.exp(-0.4 * {a})",
            f"({a} + {b} + {self.leaf()} + {self.leaf()} - 4.0 * {self.leaf()})",
            f"({a} if {b} > {self.number()} else {self.leaf()})",
        )


def make(seed):
    """The text of a program."""
    return Maker(seed).text()


SHAPES = {"u": 0, "w": 2, "e": 0, "r": 0, "q": 0, "s": 0}


def _shape(name, h, w):
    box = {"e": (h, w), "r": (h,), "q": (w,), "s": ()}.get(name, (PLANES, h, w))
    return box + ((2,) if name == "w" else ())


def _starts(seed, h, w):
    rng = np.random.default_rng(seed)
    starts, along = ({k: rng.normal(size=_shape(k, h, w)) * 0.5 for k in SHAPES} for _ in range(2))
    # A tape sets its loss to 0.
    starts["s"], along["s"] = np.zeros(()), np.zeros(())
    return starts, along


def _execute(text, space, before=None):
    """Run a program, with other data before that."""
    file = f"<neighbours {next(_NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), space)
    for data in (before, {k: space[k] for k in SHAPES}):
        if data:
            space.update(data)
            space["main"]()


class _Vector(np.ndarray):
    """A vector with names for its components."""

    x = property(lambda self: self[0])
    y = property(lambda self: self[1])


class _Field:
    """An array that is indexed as a field is."""

    def __init__(self, values, is_vector):
        self.values, self.is_vector = np.array(values), is_vector

    def __getitem__(self, at):
        # A negative index would be another element of an array, and of no field.
        at = () if at is None else at
        assert all(k >= 0 for k in np.atleast_1d(at))
        found = self.values[at]
        return found.copy().view(_Vector) if self.is_vector else float(found)

    def __setitem__(self, at, value):
        self.values[() if at is None else at] = value


def in_python(text, starts):
    """Return what the fields hold after Python has run the program."""
    fields = {k: _Field(v, k == "w") for k, v in starts.items()}
    words = SimpleNamespace(
        kernel=lambda *f, **_: f[0] if f else lambda f: f,
        i32=int, f64=float, min=min, max=max, sin=math.sin, cos=math.cos, exp=math.exp,
        select=lambda c, a, b: a if c else b,
        Vector=lambda v: np.array(v).view(_Vector),
        ndrange=lambda *n: itertools.product(
            *(range(k) if isinstance(k, int) else range(*k) for k in n)
        ),
    )  # fmt: skip
    _execute(text, {"ds": words, **fields})
    return {k: f.values for k, f in fields.items()}


TYPES = "(dtype=ds.types.vector(2, ds.f64), ndim=3)"


def with_arguments(text, seed):
    """The program with its data as arguments, whose extents may be those of the loops."""
    r = random.Random(f"arguments {seed}")
    typed = ", ".join(f"{k}: ds.types.ndarray{TYPES if k == 'w' else '()'}" for k in SHAPES)
    lines = []
    for line in text.split("\n"):
        name, found, rest = line.strip().partition("(")
        if line.startswith("def ") and line != "def main():":
            separator = "" if rest.startswith(")") else ", "
            lines.append(f"{name}({typed}{separator}{rest}")
            if "H: ds.i32" not in line and r.random() < 0.7:
                lines += ["    H = u.shape[1]", f"    W = {r.choice('uw')}.shape[2]"]
            continue
        if found and name in ("measure", "k0", "k1", "k2") and line.startswith("    "):
            line = f"    {name}({', '.join(SHAPES)}, {rest}"
        lines.append(line)
    return "\n".join(lines)


def _made(name, h, w, r, as_arrays):
    """A field in some order of its axes, or an array."""
    shape = _shape(name, h, w)
    shape = shape[:-1] if name == "w" else shape
    if as_arrays:
        of = ds.Vector.ndarray if name == "w" else ds.ndarray
        return of(*([2] if name == "w" else []), ds.f64, shape, needs_grad=True)
    axes = "ijk"[: len(shape)]
    order = r.choice([axes, axes, *map("".join, itertools.permutations(axes))])
    more = {"order": order} if len(axes) > 1 else {}
    if name == "w":
        return ds.Vector.field(2, ds.f64, shape, needs_grad=True, **more)
    return ds.field(ds.f64, shape, needs_grad=True, **more)


def verdict(text, seed, in_place="save", **options):
    """ "right", "refused", or what is wrong."""
    h, w = (int(k.strip(",")) for k in text.split("\n")[0].split()[3:5])
    starts, along = _starts(seed, h, w)
    ds.init(default_fp=ds.f64, **options)
    r = random.Random(f"layouts {seed}")
    as_arrays = r.random() < 0.35
    fields = {k: _made(k, h, w, r, as_arrays) for k in SHAPES}
    ours = with_arguments(text, seed) if as_arrays else text
    for k, f in fields.items():
        f.from_numpy(starts[k])
    # The first shapes that kernels are given are numbers in their code.
    before = None
    if as_arrays and r.random() < 0.5:
        before = {k: _made(k, h + r.randint(0, 3), w + r.randint(1, 9), r, True) for k in SHAPES}
    there = in_python(text, starts)
    try:
        with ds.Tape(fields["s"], in_place=in_place):
            _execute(ours, {"ds": ds, **fields}, before)
    except AutodiffError:
        return "refused"
    for k, f in fields.items():
        gap = np.abs(f.to_numpy() - there[k]).max()
        if not gap <= 1e-9 * (1 + np.abs(there[k]).max()):
            return f"value of {k}: off by {gap}"
    slope = sum(float((f.grad.to_numpy() * along[k]).sum()) for k, f in fields.items())
    ends = {
        x: float(in_python(text, {k: v + x * along[k] for k, v in starts.items()})["s"])
        for x in (1e-5, -1e-5, 1e-6, -1e-6)
    }
    central = [(ends[x] - ends[-x]) / (2 * x) for x in (1e-5, 1e-6)]
    size = 1 + abs(central[1]) + abs(float(there["s"]))
    if abs(central[0] - central[1]) > 1e-5 * size:
        return "invalid"  # a corner of the function is near
    if not abs(slope - central[1]) <= 1e-4 * size:
        return f"slope: {slope} instead of {central[1]}"
    return "right"


def on_cuda(text, seed):
    """What `verdict` says of the program's CUDA code."""
    how, more, in_place = cuda.options(seed)
    emulated.choose(**how)
    return verdict(text, seed, in_place, **{k: v for k, v in more.items() if k != "single"})
