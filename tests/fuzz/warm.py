"""Random programs that are run with what the cache on disk holds of others, and without.

A batch of programs, each a file, is run in a process with an empty cache, and in one with what the first
has kept; then each is changed in one or two places, and run with that cache and with an empty one. Values,
gradients, errors and what is printed must be the same, bit for bit.

A program has holes, and what is put into them is what a translation looks at: numbers, fields and their
layouts, funcs, classes, arguments, options. Its other kernels are those of other generators.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time
import warnings
from random import Random
from types import ModuleType

import numpy as np

import diffsim as ds
from diffsim.runtime import kept_results
from diffsim.runtime.translated.kept_translations import Place
from tests.fuzz import constructs, programs, rewrites, shapes

BATCH, CHANGES = 12, 3

HOLES = {
    "options": ["", "fast_math=True", "cpu_max_num_threads=1", "deterministic=True",
        "check_nan=True", "default_ip=ds.i64", 'kernel_simplicity="strict"', 'rules="off"',
        "strict=True", "random_seed=5", "debug=True"],
    "fp": ["ds.f64", "ds.f32"],
    "patched": ["pass", "ds.sin = ds.cos", "math.sin = math.cos", "math.pi = 3.0",
        "ds.math.pi = 3.0", "ds.math.sin = ds.math.cos", "ds.f64 = ds.f32", "ds.math = math",
        "ds.sin = ds.tanh", "np.sin = np.cos", "ds.Vector = ds.Matrix", "ds.types.f64 = ds.f32",
        "ds.i32 = ds.i64", "math.sin = abs", "ds.types.half = 0.5", "ds.types.half = 0.25",
        "ds.Matrix.norm = ds.Matrix.sum", "ds.half = ds.Vector([0.5, 0.5])",
        "ds.half = ds.Vector([0.25, 0.5])", "ds.Field.half = 0.25", "ds.math.clamp = ds.math.mix",
        "ds.e = 2.0"],
    "helper": ["scale, power, named = 1.5, 2, {'a': [1, (2.0, 3)]}",
        "scale, power, named = 1.5, 3, {'a': [1, (2.0, 3)]}",
        "scale, power, named = 1.25, 2, {'a': [1, (2.5, 3)]}",
        "scale, power, named = np.float32(1.5), 2, {'a': [1, (2, 3)]}",
        "scale, power, named = 1.5, True, {'a': (1, [2.0, 3])}"],
    "p": ["ds.field(ds.f64, 4, needs_grad=True)", "ds.field(ds.f32, 4, needs_grad=True)",
        "ds.field(float, 4, needs_grad=True)", "ds.field(ds.f64, 8, needs_grad=True)",
        "ds.field(ds.f64, 4)", "ds.field(ds.i32, 4)", "ds.field(ds.f64, (4, 2), needs_grad=True)",
        "ds.field(ds.f64, 8, offset=-4, needs_grad=True)", "ds.field(ds.f64, 5, needs_grad=True)",
        "dense(ds.root.dense(ds.i, 4))", "dense(ds.root.dense(ds.i, 2).dense(ds.i, 2))",
        "dense(ds.root.pointer(ds.i, 4))", "ds.ndarray(ds.f64, 4, needs_grad=True)"],
    "q": ["ds.field(ds.f64, 4, needs_grad=True)", "ds.field(ds.f32, 4, needs_grad=True)", "p",
        "ds.field(ds.f64, 6, needs_grad=True)", "dense(ds.root.dense(ds.i, 4))"],
    "between": ["pass", "p, q = q, p", "q = p", "r = p", "p, r = r, p", "u, w = w, u",
        'p.call_it("q") if hasattr(p, "call_it") else None'],
    "u": ["ds.Vector.field(2, ds.f64, 4, needs_grad=True)",
        "ds.Vector.field(3, ds.f64, 4, needs_grad=True)",
        "ds.Vector.field(2, ds.f64, 4, needs_grad=True, layout=ds.Layout.SOA)",
        "ds.Vector.field(2, ds.f32, 4, needs_grad=True)", "ds.Vector.field(2, ds.f64, 4)"],
    "placed": ["ds.root.dense(ds.i, 4).place(d, e)",
        "ds.root.dense(ds.i, 4).place(d); ds.root.dense(ds.i, 4).place(e)",
        "ds.root.dense(ds.i, 4).place(e, d)", "ds.root.dense(ds.i, 8).place(d, e)",
        "ds.root.dense(ds.i, 4).place(d, offset=0); ds.root.dense(ds.i, 4).place(e)"],
    "number": ["1.5", "2", "-0.0", "0.0", "True", "np.float32(1.5)", "np.float64(1.5)",
        "np.int8(2)", "1e300", "float('nan')", "math.inf", "ds.f32", "10**12", "None", "'1'"],
    "n": ["4", "3", "2", "1"],
    "items": ["[1.0, 2.0, [3.0, 4.0]]", "(1.0, 2.0, [3.0, 4.0])", "[1.0, 2.5, [3.0, 4.0]]",
        "[1, 2.0, [3.0, 4.0]]", "[1.0, 2.0, [3.0, 4.0], 5.0]", "[1.0, 2.0, (3.0, -4.0)]"],
    "array": ["np.array([1.0, 2.0, 3.0])", "np.array([1.0, 2.0, 3.5])", "np.array([1, 2, 3])",
        "np.array([1.0, 2.0, 3.0], dtype=np.float32)", "np.array([1.0, 2.0])",
        "np.array([3.0, 2.0, 1.0])[::-1]"],
    "matrix": ["ds.Vector([1.0, 2.0])", "ds.Vector([1.0, 2.5])", "ds.Vector([1, 2])",
        "ds.Vector([1.0, 2.0], dt=ds.f32)", "ds.Matrix([[1.0], [2.0]])"],
    "body": ["return a * a + g", "return a * g", "return ds.sin(a)", "return a + h(a)",
        "return h(a, g)", "return a\n"],
    "given": ["2.0", "3.0", "2", "g"],
    "annotation": ["", ": ds.template()", ": ds.f32", ": ds.f64", ": ds.i32"],
    "wrapper": ["ds.func", "ds.pyfunc", "ds.real_func"],
    "which": ["f", "h", "ds.sin", "math.sin", "np.sin", "made(1.0)", "made(2.0)",
        "ds.func(lambda a: a + 1.0)", "abs", "plain", "made(p)", "made(q)", "float", "ds.f32",
        "Box(1.0).bend", "box.bend", "ds.math.sign"],
    "builtin": ["pass", "abs = f", "max = min", "sum = max", "range = range", "len = plain",
        "int = float", "abs = ds.sin", "min = ds.max", "print = int"],
    "attribute": ["k = 2.0", "k = 2.5", "k = 2", "k = p",
        "k = property(lambda self: self.v + 1.0)", "k = np.float32(2.0)", "k = q",
        "__len__ = lambda self: 0; k = 2.0", "__bool__ = lambda self: False; k = 2.0"],
    "v": ["1.0", "2.0", "1", "p", "q", "[1.0, 2.0]"],
    "base": ["object", "Base"],
    "basic": ["0.5", "0.25"],
    "method": ["return a * self.v + self.k", "return a * self.k", "return a + self.low",
        "return a * a"],
    "enum": ["A", "B"],
    "a": ["ds.f64", "ds.f32", "ds.i32", "float", "ds.template()", "scalar", "int"],
    "scalar": ["ds.f64", "ds.f32", "ds.i32"],
    "arr": ["ds.types.ndarray()", "ds.types.ndarray(dtype=ds.f64, ndim=1)",
        'ds.types.ndarray(boundary="clamp")', "ds.types.ndarray(dtype=ds.f32, ndim=1)",
        "ds.template()", 'ds.types.ndarray(dtype=ds.f64, ndim=1, boundary="clamp")',
        "ds.types.ndarray(ndim=2)"],
    "passed_a": ["1.25", "2", "1.5", "g"],
    "passed_s": ["1.0", "2.0", "1", "p", "q", "f", "(1.0, 2.0)", "box", "None"],
    "passed_arr": ["np.linspace(0.0, 1.0, 4)", "np.linspace(0.0, 1.0, 4).astype(np.float32)",
        "np.ones((2, 2))", "p", "np.linspace(0.0, 1.0, 8)[::2]", "r", "np.ones(5)"],
    "sign": ["+", "-", "*"],
    "shown": ["pass", "ds.static_print(g)", "ds.static_assert(n > 2)", "print('at', n)",
        "assert n < 4", "assert p[0] > -10.0, 'low'"],
    "shifted": ["", "\n", "# a comment\n\n"],
    "closed": ["1.0", "2.0", "p", "f"],
    "struct": ["q: ds.f64", "q: ds.f32", "q: ds.i32"],
}  # fmt: skip

READS = [
    "g * 0.5",
    "helper.scale ** helper.power",
    "helper.named['a'][1][0]",
    "p[i % n]",
    "p[0] * q[1]",
    "q[i % n] * r[i]",
    "u[i][0] * w[i].y",
    "u[i].sum()",
    "d[i] * e[i]",
    "items[1] * items[2][0]",
    "len(items)",
    "sum(items[2])",
    "(2.0 if isinstance(items, list) else 3.0)",
    "array[1] * array[-1]",
    "array.sum()",
    "m[0] * m[1]",
    "f(p[i])",
    "f(r[i]) * h(0.5)",
    "which(r[i])",
    "chosen['it'](0.5)",
    "box.k * 0.5",
    "box.v * 0.25",
    "box.bend(r[i])",
    "Box.k",
    "(1.0 if box else 2.0)",
    "box.inner.low",
    "(1.0 if mode == Mode.A else 2.0)",
    "(1.0 if mode is Mode.A else 2.0)",
    "(1.0 if option is None else 2.0)",
    "(1.0 if p is q else 2.0)",
    "(1.0 if hasattr(box, 'low') else 2.0)",
    "math.pi * ds.math.pi",
    "ds.math.e",
    "math.sin(0.5)",
    "np.sin(0.5)",
    "ds.sin(r[i])",
    "ds.math.sin(r[i])",
    "ds.math.clamp(r[i], 0.0, 0.3)",
    "abs(r[i])",
    "max(r[i], 0.2)",
    "min(r[i], g)",
    "len(array)",
    "int(2.75) * r[i]",
    "p.shape[0]",
    "ds.cast(g, ds.i32) * 0.5",
    "ds.cast(r[i], ds.f64)",
    "ds.Vector([r[i], 2.0]).norm()",
    "(1 / 3)",
    "(7 // 2 * r[i])",
    "ds.random() * r[i]",
    "ds.static(g)",
    "ds.select(r[i] > 0.5, g, 2.0)",
    "plain(0.5)",
    "ds.f64(1) / ds.f64(3)",
    "ds.types.f64(1) / 3",
    "ds.types.half",
    "ds.half[0]",
    "p.half",
    "ds.Vector([3.0, 4.0]).norm()",
    "Two(r[i], 2).q",
    "scalar(1.7)",
]

OF_ARGUMENTS = ["a * 2", "s", "s[0]", "arr[i] * 2.0", "arr[(i + 1) % 4]", "arr.shape[0]"]
OF_FACTORY = ["c0", "c0[1]", "c0(r[i])"]
CHOICES = {
    f"read{k}": READS + {0: 2 * OF_ARGUMENTS, 5: 4 * OF_FACTORY}.get(k, []) for k in range(8)
}

PROGRAM = """{shifted}import enum
import math
import types
import numpy as np
import diffsim as ds
from tests.fuzz import programs
ds.init(arch=ds.cpu, default_fp={fp}, {options})
{patched}
helper = types.ModuleType("helper")
exec(\"\"\"import numpy as np
{helper}\"\"\", vars(helper))
def dense(node):
    f = ds.field(ds.f64, needs_grad=True)
    node.place(f, f.grad) if {seed} % 2 else node.place(f)
    return f
p = {p}
q = {q}
r = ds.field(ds.f64, 4, needs_grad=True)
out = ds.field(ds.f64, 4, needs_grad=True)
u = {u}
w = ds.Vector.field(2, ds.f64, 4, needs_grad=True)
d, e = ds.field(ds.f64, needs_grad=True), ds.field(ds.f64, needs_grad=True)
{placed}
loss = ds.field(ds.f64, (), needs_grad=True)
values, _, _, numbers = programs.start({seed})
for k, field in enumerate((p, q, r, u, w, d, e)):
    a = np.random.default_rng(k).uniform(0.2, 1.0, field.to_numpy().shape)
    field.from_numpy(a.astype(field.to_numpy().dtype))
{between}
g = {number}
n = {n}
items = {items}
array = {array}
m = {matrix}
option = {option}
class Mode(enum.Enum):
    A, B = 1, 2
mode = Mode.{enum}
scalar = {scalar}
def plain(a):
    return a * {given}
@{wrapper}
def h(a, b={given}):
    return a * b
@ds.func
def f(a{annotation}):
    {body}
def made(c):
    @ds.func
    def inner(a):
        return a * 2.0 + (c if isinstance(c, float) else c[0])
    return inner
class Base:
    low = {basic}
@ds.data_oriented
class Box({base}):
    {attribute}
    def __init__(self, v):
        self.v = v
        self.inner = Base()
    @ds.func
    def bend(self, a):
        {method}
    @ds.kernel
    def work(self, a: ds.f64):
        for i in range(4):
            out[i] += {read_of_box}
box = Box({v})
@ds.dataclass
class Two:
    p: ds.f64
    {struct}
which = {which}
chosen = {{"it": which}}
{builtin}
@ds.kernel
def look(a: {a}, s: ds.template(), arr: {arr}):
    {shown}
    for i in range(4):
        out[i] += {read0} {sign} {read1}
@ds.kernel
def again():
    for i in range(n):
        r[i] = r[i] * {read2} {sign} {read3}
    for i in range(4):
        out[i] = out[i] * {read4}
def factory(c0):
    @ds.kernel
    def closed():
        for i in range(4):
            out[i] += {read5} * {read6}
    return closed
@ds.kernel
def returned() -> ds.f64:
    t = 0.0
    for i in range(4):
        t += {read7}
    return t
@ds.kernel
def weigh():
    for i in range(4):
        loss[None] += out[i] * (0.5 + i)
shown = {{}}
def attempt(name, launch):
    try:
        with ds.Tape(loss):
            launch()
            weigh()
    except Exception as problem:
        shown[name, "error"] = (type(problem).__name__ + str(problem)).encode()
    shown[name, "loss"] = loss.to_numpy().tobytes()
    for k, field in enumerate((p, q, r, u, w, d, e, out)):
        shown[name, k] = field.to_numpy().tobytes()
        if field.grad is not None:
            shown[name, k, "grad"] = field.grad.to_numpy().tobytes()
def answer():
    shown["returned"] = repr(returned()).encode()
passed = {passed_arr}
attempt("look", lambda: look({passed_a}, {passed_s}, passed))
attempt("again", again)
attempt("closed", lambda: factory({closed})())
attempt("closed again", lambda: factory({closed})())
attempt("box", lambda: box.work(0.5))
attempt("returned", answer)
"""

# Kernels of other generators, at the end of the same file: their text must not move.
OTHERS = """ds.init(arch=ds.cpu, default_fp={fp}, {options})
x = ds.field({fx}, 4, needs_grad={gx})
y = ds.field({fy}, 4, needs_grad={gy})
z = ds.field(ds.f64, 4, needs_grad=True)
m = ds.field(ds.f64, (3, 4), needs_grad=True)
v = {fv}
s, c = ds.field(ds.f64, (), needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
h = ds.field(ds.f64, 4, needs_grad=True)
b, at = ds.field(ds.f64, 4), ds.field(ds.i32, 4)
loss = ds.field(ds.f64, (), needs_grad=True)
fields = dict(x=x, y=y, z=z, m=m, v=v, s=s, c=c, h=h)
{swapped}
for k, field in fields.items():
    field.from_numpy(values[k].astype(field.to_numpy().dtype))
at.from_numpy(numbers)
@ds.kernel
def end():
    for i in range(4):
        loss[None] += x[i] + 2.0 * y[i] * y[i] - z[i] + m[1, i] + v[i].x * v[i].y + h[i] * s[None]
{others}
try:
    with ds.Tape(loss, in_place="{in_place}"):
        main()
        end()
except Exception as problem:
    shown["others", "error"] = (type(problem).__name__ + str(problem)).encode()
for k, field in fields.items():
    shown["others", k] = field.to_numpy().tobytes()
    if field.grad is not None:
        shown["others", k, "grad"] = field.grad.to_numpy().tobytes()
"""
HOLES |= {
    "option": ["None", "1.0", "p"],
    "fx": ["ds.f64", "ds.f32", "ds.f16"],
    "fy": ["ds.f64", "ds.f32"],
    "gx": ["True", "False"],
    "gy": ["True", "False"],
    "fv": HOLES["u"][:1] + HOLES["u"][2:],
    "swapped": ["pass", "x, y = y, x", "y = x", "x, z = z, x", "z = y", "c = s"],
    "in_place": ["save", "refuse"],
}


LAUNCHES = ("look", "again", "closed", "closed again", "box", "returned", "others")


class Program:
    """A program with what is in its holes."""

    def __init__(self, seed):
        self.r = r = Random(seed)
        self.seed = seed
        maker = r.choice([programs, shapes, rewrites, constructs])
        self.others = maker.make(seed)
        # Half of what is chosen is the usual, so that most programs are right.
        self.chosen = {k: r.choice(v) if r.random() < 0.15 else v[0] for k, v in HOLES.items()}
        self.reads = {k: r.choice(reads) for k, reads in CHOICES.items()}
        self.of_box = r.choice(["self.k", "self.v", "self.bend(a)", "self.inner.low", "self.k * a"])

    def text(self):
        """The file."""
        whole = PROGRAM + OTHERS
        given = {**self.chosen, **self.reads, "read_of_box": self.of_box}
        return whole.format(seed=self.seed, others=self.others, **given)

    def change(self):
        """Put something else into one or two holes; return their names."""
        r, changed = self.r, []
        for _ in range(r.randint(1, 2)):
            kind = r.random()
            if kind < 0.1:
                self.others = self._number_changed(self.others)
                changed.append("others")
            elif kind < 0.15:
                k = r.choice(list(self.reads))
                self.reads[k] = r.choice(CHOICES[k])
                changed.append(k)
            else:
                k = r.choice(list(HOLES))
                self.chosen[k] = r.choice([x for x in HOLES[k] if x != self.chosen[k]])
                changed.append(f"{k}: {self.chosen[k]!r}")
        return changed

    def _number_changed(self, text):
        found = list(re.finditer(r"\b\d\.\d+|ds\.(sin|tanh|exp)\b", text))
        if not found:
            return text
        at = self.r.choice(found)
        new = {"ds.sin": "ds.tanh", "ds.tanh": "ds.sin", "ds.exp": "ds.sin"}.get(at.group(), "0.37")
        return text[: at.start()] + new + text[at.end() :]


def verdicts(seed, count=BATCH):
    """Run a batch of programs.

    Returns:
        What is wrong, with the texts; and for each run how often something was found of what was asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        made = [Program(seed * 1000 + k) for k in range(count)]
        whats = ["unchanged"] * count
        first, _ = _run(place, made, "kept")
        second, hits = _run(place, made, "kept")
        wrong = _differences(made, whats, first, second)
        counts = [hits]
        for k in range(CHANGES):
            before = [p.text() for p in made]
            whats = [", ".join(p.change()) for p in made]
            warm, hits = _run(place, made, "kept")
            counts.append(hits)
            cold, _ = _run(place, made, f"empty{k}")
            wrong += _differences(made, whats, cold, warm, before)
        return wrong, counts


def _run(place, made, cache):
    for k, p in enumerate(made):
        (place / f"program{k}.py").write_text(p.text())
    (place / cache).mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "DIFFSIM_CACHE_DIR": str(place / cache)}
    command = [sys.executable, "-m", "tests.fuzz.warm", str(place), str(len(made))]
    subprocess.run(command, env=environment, check=True)
    return pickle.loads((place / "found").read_bytes())


def _differences(made, whats, right, found, before=None):
    wrong = []
    for k, (p, a, b) in enumerate(zip(made, right, found, strict=True)):
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        if names:
            lines = [f"{n}: {b.get(n)!r} instead of {a.get(n)!r}" for n in names[:4]]
            old = "" if before is None else f"# before:\n{before[k]}\n"
            wrong.append(f"{whats[k]}: {lines}\n{old}# now:\n{p.text()}")
    return wrong


def search(first, minutes):
    """Run batches from a seed on; return how many programs were wrong."""
    end, failures, hits = time.monotonic() + 60 * minutes, 0, {}
    for seed in itertools.count(first):
        wrong, counts = verdicts(seed)
        for text in wrong:
            print(f"\nbatch {seed}: {text}", flush=True)
        failures += len(wrong)
        for what, (got, asked) in (row for found in counts for row in found.items()):
            before = hits.get(what, (0, 0))
            hits[what] = before[0] + got, before[1] + asked
        if time.monotonic() > end or failures >= 5:
            break
    print(
        f"\nbatches {first} to {seed} of {BATCH} programs: {failures} wrong; found of asked: {hits}"
    )
    return failures


# ---- in a process of their own


def _main(folder, count):
    """Run the programs of a folder, and write what they found there."""
    hits = {}
    _count(Place, "find", hits, "translations")
    _count(kept_results, "find", hits, "code")
    _count(kept_results, "find_kernel", hits, "adjoints")
    homes = (ds, ds.math, ds.types, math, np, ds.Matrix, ds.Field)
    known = [(home, dict(vars(home))) for home in homes]
    results = []
    for k in range(count):
        file = os.path.join(folder, f"program{k}.py")
        space = {"__name__": f"program{k}", "__file__": file}
        sys.modules[space["__name__"]] = type(sys)(space["__name__"])
        shown, said = {}, io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(record=True) as told,
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("always")
            try:
                exec(compile(pathlib.Path(file).read_text(), file, "exec"), space)
            except Exception as problem:
                shown["error"] = f"{type(problem).__name__}: {problem}"
        for home, names in known:
            for name, x in list(vars(home).items()):
                if name in names and x is not names[name]:
                    setattr(home, name, names[name])
                elif name not in names and not isinstance(x, ModuleType):  # those are submodules
                    delattr(home, name)
        shown |= space.get("shown", {})
        shown["said"] = said.getvalue(), [str(w.message) for w in told]
        results.append(shown)
    # A batch may not be right because nothing of it runs.
    right = sum("error" not in r and (k, "error") not in r for r in results for k in LAUNCHES)
    hits["launches without an error"] = right, len(LAUNCHES) * len(results)
    (pathlib.Path(folder) / "found").write_bytes(pickle.dumps((results, hits)))


def _count(home, name, hits, what):
    inner = getattr(home, name)

    def counted(*args):
        found = inner(*args)
        got, asked = hits.get(what, (0, 0))
        hits[what] = got + (found is not None), asked + 1
        return found

    setattr(home, name, counted)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
