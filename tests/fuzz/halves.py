"""Random programs of f16: what they compute, to the last bit, and their derivatives.

Two kinds. `verdict` runs programs that say the type of each local, in f16 and f64, and Python runs their
source with numbers that round as NumPy's float16 does and carry a derivative in double precision. Only
operations are made whose last bit is known, so both take the same way at each branch, and derivatives differ
by the rounding of f32 alone. `stepped` takes the programs of `programs.py`, with some of their fields of f16,
and compares the gradient with a complex step, which rounds where the program does.
"""

from __future__ import annotations

import linecache
import math
import types
import warnings
from random import Random

import numpy as np

import diffsim as ds
from diffsim.ad.jacobians.arguments import Subject
from diffsim.ad.jacobians.complex_step import complex_step
from diffsim.ad.jacobians.program import Program
from diffsim.errors import AutodiffError, DiffsimError, KernelSyntaxError
from diffsim.passes.vectors import vectorize
from tests.fuzz import programs

N = 37
FIELDS = {"x": 16, "y": 16, "z": 16, "p": 64}
SCALARS = {"s": 16, "r": 64}


class Maker:
    """Writes a program: kernels whose turns write their own elements, and how often they are launched."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines = []
        self.fresh = 0

    def pick(self, *things):
        return things[self.r.randrange(len(things))]

    def text(self):
        count = self.r.randint(1, 3)
        for k in range(count):
            self.kernel(k)
        self.put(0, "def main():")
        for _ in range(self.r.randint(1, 4)):
            k, a = self.r.randrange(count), round(self.r.uniform(-1.5, 1.5), 2)
            if self.r.random() < 0.3:
                self.put(1, "for _ in range(3):")
                self.put(2, f"k{k}({a})")
            else:
                self.put(1, f"k{k}({a})")
        return "\n".join(self.lines) + "\n"

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def kernel(self, k):
        self.put(0, "@ds.kernel")
        self.put(0, f"def k{k}(a: ds.f16):")
        self.put(1, f"for i in range({N}):")
        self.own = self.r.sample([*FIELDS, "v"], self.r.randint(1, 2))
        self.locals = [("a", 16)]
        for _ in range(self.r.randint(0, 3)):
            self.pick(self.local, self.local, self.branch, self.loop)(2)
        for name in self.own:
            self.write(2, name)
        if self.r.random() < 0.3:
            self.put(2, f"ds.atomic_{self.pick('max', 'min')}(e[None], {self.expr(16, 2)})")

    def write(self, depth, name):
        if name == "v":
            how = self.pick("=", "+=")
            self.put(depth, f"v[i] {how} ds.Vector([{self.expr(16, 2)}, {self.expr(16, 2)}])")
        else:
            how = self.pick("=", "=", "+=", "*=")
            self.put(depth, f"{name}[i] {how} {self.expr(FIELDS[name], 3)}")

    def local(self, depth):
        t, name = self.pick(16, 16, 64), f"q{self.fresh}"
        self.fresh += 1
        self.put(depth, f"{name} = {self.cast(self.expr(t, 2), t)}")
        self.locals.append((name, t))

    def change(self, depth):
        own = [(name, t) for name, t in self.locals if name != "a"]
        if not own:
            return self.put(depth, "pass")
        name, t = self.pick(*own)
        return self.put(depth, f"{name} {self.pick('=', '+=')} {self.cast(self.expr(t, 2), t)}")

    def branch(self, depth):
        self.put(depth, f"if {self.condition()}:")
        self.change(depth + 1)
        if self.r.random() < 0.5:
            self.put(depth, "else:")
            self.change(depth + 1)

    def loop(self, depth):
        self.put(depth, f"for j{depth} in range({self.pick('2', '3', 'i % 3')}):")
        if self.r.random() < 0.3:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, "break")
        self.change(depth + 1)

    def cast(self, text, t):
        return f"ds.cast({text}, ds.f{t})"

    def index(self, name):
        return (
            "i"
            if name in self.own
            else self.pick("i", f"(i + {self.r.randrange(N)}) % {N}", "i // 2")
        )

    def leaf(self, t):
        choices = [f"{k}[{self.index(k)}]" for k, have in FIELDS.items() if have == t] * 2
        choices += [f"{k}[None]" for k, have in SCALARS.items() if have == t]
        choices += [name for name, have in self.locals[-3:] if have == t]
        if t == 16:
            choices += [f"v[{self.index('v')}].{self.pick('x', 'y')}", f"w[{self.index('w')}]"]
            choices.append(f"ds.cast({self.pick('i', str(self.r.randrange(3)))}, ds.f16)")
        return self.pick(*choices)

    def expr(self, t, depth):
        """Something of a type."""
        if depth == 0 or self.r.random() < 0.2:
            return self.leaf(t)
        a, b = self.expr(t, depth - 1), self.expr(t, depth - 1)
        number = round(self.r.uniform(-1.5, 1.5), 3)
        choices = [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} * {number})", f"({number} - {a})",
            f"({a} / (1.5 + {b} * {b}))", f"ds.sqrt(1.25 + {a} * {a})", f"ds.max({a}, {b})",
            f"ds.min({a}, {number})", f"abs({a})", f"-({a})", f"({a} if {self.condition()} else {b})",
            f"ds.stop_grad({a}) * {b}", f"ds.select({self.condition()}, {a}, {b})",
            self.cast(self.expr(80 - t, depth - 1), t),
        ]  # fmt: skip
        if t == 16:
            other = f"v[{self.index('v')}]"
            choices += [f"v[{self.index('v')}].dot({other})", f"({other} * {a}).x"]
        else:
            choices.append(f"({self.expr(16, depth - 1)} + {a})")
        return self.pick(*choices)

    def condition(self):
        t = self.pick(16, 16, 64)
        return self.pick(
            f"{self.leaf(t)} {self.pick('<', '>')} {self.leaf(t)}",
            f"{self.leaf(t)} < {round(self.r.uniform(-1, 1), 2)}",
            "i % 2 == 0",
        )


# ---- the oracle


def rounded(v, t):
    return float(np.float16(v)) if t == 16 else float(v)


class Half:
    """A number of 16 or 64 bits, and its derivative."""

    __slots__ = ("d", "t", "v")

    def __init__(self, v, t, d=0.0):
        self.v, self.t, self.d = rounded(v, t), t, d

    def _with(self, o):
        """The other operand, and the type of both; numbers that are written take the type of this one."""
        o = o if isinstance(o, Half) else Half(o, self.t)
        return o, max(self.t, o.t)

    def __add__(self, o):
        o, t = self._with(o)
        return Half(self.v + o.v, t, self.d + o.d)

    def __sub__(self, o):
        o, t = self._with(o)
        return Half(self.v - o.v, t, self.d - o.d)

    def __mul__(self, o):
        o, t = self._with(o)
        return Half(self.v * o.v, t, self.d * o.v + self.v * o.d)

    def __truediv__(self, o):
        o, t = self._with(o)
        return Half(self.v / o.v, t, (self.d * o.v - self.v * o.d) / o.v**2)

    def __rsub__(self, o):
        return Half(o, self.t) - self

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self):
        return Half(-self.v, self.t, -self.d)

    def __abs__(self):
        return Half(abs(self.v), self.t, self.d * ((self.v > 0) - (self.v < 0)))

    def __lt__(self, o):
        return self.v < self._with(o)[0].v

    def __gt__(self, o):
        return self.v > self._with(o)[0].v


class Pair:
    """A vector of two numbers."""

    def __init__(self, e):
        self.x, self.y = e

    def __add__(self, o):
        return Pair([self.x + o.x, self.y + o.y])

    def __mul__(self, a):
        return Pair([self.x * a, self.y * a])

    def dot(self, o):
        # Products are rounded, their sum is an operation of its own.
        return self.x * o.x + self.y * o.y


class Cells:
    """A field: what is stored takes its type."""

    def __init__(self, e, t):
        self.e, self.t = e, t

    def __getitem__(self, i):
        return self.e[0 if i is None else i]

    def __setitem__(self, i, v):
        self.e[0 if i is None else i] = v if isinstance(v, Pair) else _cast(v, self.t)


def _cast(x, t):
    t = t if isinstance(t, int) else t.bits
    return Half(x.v, t, x.d) if isinstance(x, Half) else Half(x, t)


def _extreme(sign):
    def of(a, b):
        b, t = a._with(b)
        first = a.v <= b.v if sign < 0 else a.v >= b.v
        return _cast(a if first else b, t)

    return of


def _shim(e):
    """What stands for `ds` in the oracle."""
    largest, least = _extreme(1), _extreme(-1)

    def kernel(f):
        return lambda a: f(Half(a, 16))

    def extreme(of):
        def atomic(old, v):
            e[None] = of(old, v)

        return atomic

    def sqrt(a):
        root = math.sqrt(a.v)
        return Half(root, a.t, 0.5 * a.d / root)

    return types.SimpleNamespace(
        kernel=kernel, f16=ds.f16, f64=ds.f64, cast=_cast, max=largest, min=least, sqrt=sqrt,
        atomic_max=extreme(largest), atomic_min=extreme(least), Vector=Pair,
        stop_grad=lambda a: Half(a.v, a.t), select=lambda c, a, b: _cast(a if c else b, max(a.t, b.t)),
    )  # fmt: skip


def start(seed):
    """The numbers of each field, its direction, and its weight in the loss."""
    rng = np.random.default_rng(seed)
    shapes = {**dict.fromkeys(FIELDS, (N,)), **dict.fromkeys(SCALARS, (1,))}
    shapes |= {"v": (N, 2), "w": (N,), "e": (1,)}
    made = {}
    for k, shape in shapes.items():
        bits = {**FIELDS, **SCALARS}.get(k, 16)
        a = rng.uniform(-1.5, 1.5, shape).astype(f"f{bits // 8}").astype(float)
        along = rng.uniform(-1, 1, shape) * (k != "w")
        made[k] = a, along, np.round(rng.uniform(-1, 1, shape), 2)
    return made


def oracle(text, seed):
    """The values at the end, the loss, and its derivative along the direction."""
    space = {}
    for k, (a, along, _) in start(seed).items():
        t = {**FIELDS, **SCALARS}.get(k, 16)
        e = [Half(v, t, d) for v, d in zip(a.ravel().tolist(), along.ravel().tolist(), strict=True)]
        if k == "v":
            e = [Pair(e[j : j + 2]) for j in range(0, 2 * N, 2)]
        space[k] = Cells(e, t)
    fields = dict(space)
    space["ds"] = _shim(fields["e"])
    exec(compile(text, f"<halves {seed}>", "exec"), space)
    space["main"]()
    end, loss, slope = {}, 0.0, 0.0
    for k, (_, _, weight) in start(seed).items():
        flat = [h for e in fields[k].e for h in ((e.x, e.y) if isinstance(e, Pair) else (e,))]
        end[k] = np.array([h.v for h in flat]).reshape(weight.shape)
        loss += sum(h.v * w for h, w in zip(flat, weight.ravel(), strict=True))
        slope += sum(h.d * w for h, w in zip(flat, weight.ravel(), strict=True))
    return end, loss, slope


# ---- the program


def place(text, seed):
    """The names of a program, its fields, and a function that sums them up."""
    fields = {}
    for k, (a, _, _) in start(seed).items():
        t = ds.f64 if {**FIELDS, **SCALARS}.get(k, 16) == 64 else ds.f16
        if k == "v":
            fields[k] = ds.Vector.field(2, t, N, needs_grad=True)
        else:
            fields[k] = ds.field(t, () if len(a) == 1 else N, needs_grad=k != "w")
    loss = fields["loss"] = ds.field(ds.f64, (), needs_grad=True)
    file = f"<halves {seed} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, **fields}
    exec(compile(text, file, "exec"), space)
    weights = {k: ds.field(ds.f64, w.shape) for k, (_, _, w) in start(seed).items()}
    for k, (_, _, w) in start(seed).items():
        weights[k].from_numpy(w)
    x, y, z, p, s, r, v, w, e = (fields[k] for k in (*FIELDS, *SCALARS, "v", "w", "e"))
    wx, wy, wz, wp, ws, wr, wv, ww, we = (weights[k] for k in (*FIELDS, *SCALARS, "v", "w", "e"))

    @ds.kernel
    def weigh():
        for i in x:
            loss[None] += wx[i] * x[i] + wy[i] * y[i] + wz[i] * z[i] + wp[i] * p[i]
            loss[None] += wv[i, 0] * v[i].x + wv[i, 1] * v[i].y + ww[i] * w[i]
        loss[None] += ws[0] * s[None] + wr[0] * r[None] + we[0] * e[None]

    return space["main"], fields, weigh


def fill(fields, seed):
    for k, (a, _, _) in start(seed).items():
        f = fields[k]
        f.from_numpy(a.reshape(f.shape + f.element).astype(f.dtype.numpy))


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def verdict(text, seed, arch=ds.cpu, vectors=False):
    """ "right", "refused", "invalid", or what is wrong."""
    before, vectorize._ALWAYS = vectorize._ALWAYS, vectors
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", ds.PrecisionLoss)
            end, loss, slope = oracle(text, seed)
            if not all(np.abs(a).max() < 1e3 for a in end.values()) or not abs(slope) < 1e6:
                return "invalid"
            return _compare(text, seed, arch, end, loss, slope)
    except AutodiffError:
        return "refused"
    except (
        DiffsimError,
        SyntaxError,
        NameError,
        TypeError,
        AttributeError,
        ZeroDivisionError,
    ) as problem:
        if isinstance(problem, (ds.errors.BackendError, ds.errors.InternalError)):
            raise
        return "invalid"
    finally:
        vectorize._ALWAYS = before


def _compare(text, seed, arch, end, loss, slope):
    ds.init(arch=arch, default_fp=ds.f64, offline_cache=False, rules="lifted")
    main, fields, weigh = place(text, seed)
    numbers, tape = start(seed), None
    for how in ("", "replayed "):
        fill(fields, seed)
        if tape is not None:
            tape.replay()
            tape.backward()
        else:
            with ds.Tape(fields["loss"]) as tape:
                main()
                weigh()
        for k, want in end.items():
            got = fields[k].to_numpy().reshape(want.shape)
            # Products and sums of f64 may be fused.
            near = 1e-9 if fields[k].dtype is ds.f64 else 0.0
            if not np.allclose(got, want, rtol=near, atol=near):
                return f"{how}value of {k}: {got.tolist()} instead of {want.tolist()}"
        if not math.isclose(fields["loss"][None], loss, rel_tol=1e-9, abs_tol=1e-9):
            return f"{how}loss: {fields['loss'][None]} instead of {loss}"
        terms = [
            fields[k].grad.to_numpy().ravel() * along.ravel()
            for k, (_, along, _) in numbers.items()
            if fields[k].grad is not None
        ]
        wrong = _differs(math.fsum(np.concatenate(terms)), slope, terms)
        if wrong:
            return f"{how}derivative: {wrong}"
        if fields["x"].grad.dtype is not ds.f32:
            return "the gradient is of another type"
    fill(fields, seed)
    fields["loss"][None] = 0
    param = {
        f: along.reshape(f.shape + f.element)
        for k, (_, along, _) in numbers.items()
        if (f := fields[k]).grad is not None
    }
    with ds.ad.FwdMode(fields["loss"], param) as forward:
        main()
        weigh()
    wrong = _differs(float(np.ravel(forward.tangents(fields["loss"]))[0]), slope, terms)
    return f"tangent: {wrong}" if wrong else "right"


def _differs(got, want, terms):
    size = max(1.0, float(np.abs(np.concatenate(terms)).sum()))
    return "" if abs(got - want) <= 1e-4 * size else f"{got} instead of {want}"


# ---- the programs of others, some of whose fields are of f16


def stepped(text, seed):
    """The same of a program of `programs.py`, against a complex step."""
    # In f16 a minimum or maximum often meets its equal, and a complex step has another rule there.
    if "ds.atomic_m" in text:
        return "invalid"
    r = Random(seed)
    half = [k for k in programs.shapes(programs.N) if k != "c" and r.random() < 0.6]
    try:
        with np.errstate(all="ignore"):
            along = programs.sure_direction(text, seed)
            programs.oracle(text, seed, along)
    except programs.Invalid:
        return "invalid"
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ds.PrecisionLoss)
        return _stepped(text, seed, half)


def _stepped(text, seed, half):
    values, along, weights, _ = programs.start(seed)
    ds.init(default_fp=ds.f64, offline_cache=False)
    space, fields = programs.placed(text, seed, half=half)
    sums = {k: ds.field(ds.f64, weights[k].shape) for k in values}
    for k, f in sums.items():
        f.from_numpy(weights[k])
    ends = programs.weigh(fields, sums)
    loss, inputs = fields["loss"], [fields[k] for k in values]

    def function():
        loss[None] = 0
        space["main"]()
        for end in ends:
            end()

    try:
        with Program(Subject(function, inputs, [loss], [(i, loss) for i in inputs], {})) as program:
            pulled = program.pull_back({loss: np.ones(1)})
            way = {fields[k]: along[k].reshape(-1) for k in values}
            step = float(complex_step(program, way, 1e-30)[0][0])
    except AutodiffError:
        return "refused"
    except KernelSyntaxError as error:  # of an update that is atomic and would read too late
        if "give the value a name first" in str(error):
            return "refused"
        raise
    terms = [pulled[f] * d for f, d in way.items()]
    slope = math.fsum(np.concatenate(terms))
    if not abs(step) < 1e4 or not all(np.isfinite(t).all() for t in terms):
        return "invalid"
    wrong = _differs(slope, step, terms)
    return f"derivative: {wrong} (by a complex step)" if wrong else "right"
