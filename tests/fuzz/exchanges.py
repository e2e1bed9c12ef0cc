"""Random kernels whose lanes access elements at `i ^ j`, in pairs, as sorting networks and transforms do.

Distances that are arguments, numbers and counters of loops; guards, also of what was loaded before; rows;
fields of floats and integers; blocks of lanes that begin at a multiple of their number and that do not. All
numbers are whole and small, so what vectors of lanes compute (and their gradient) is compared bit by bit with
the interpreter.
"""

import linecache
from random import Random

import numpy as np

import diffsim as ds
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.support import bits
from tests.support.vectors import narrow

SIZE = 256
"""Of the last axis: a power of 2, so that no partner is outside."""
BOUNDS = (
    (0, 16),
    (0, 64),
    (0, 128),
    (0, 100),
    (0, 37),
    (16, 80),
    (32, 41),
    (3, 70),
    (0, 7),
    (8, 64),
)
GUARDS = (
    "",
    "",
    "if o > i:",
    "if o < i:",
    "if i % 3 != 1:",
    "if o < hi:",
    "if m[i] > 0:",
    "if c[o] > 0:",
    "if f[i] > 0:",
    "if f[i + 2] > f[i]:",
)


class Maker:
    """Writes a kernel of one loop, or of two."""

    def __init__(self, seed):
        self.r = Random(seed)

    def text(self):
        loops = [line for _ in range(self.r.choice([1, 1, 2])) for line in self.loop()]
        return "@ds.kernel\ndef run(j: ds.i32, lo: ds.i32, hi: ds.i32):\n" + "\n".join(loops) + "\n"

    def loop(self):
        r = self.r
        lo, hi = r.choice(BOUNDS)
        if r.random() < 0.3:
            lo = hi = ""
        ends = f"{lo}, {hi}" if hi else r.choice(["lo, hi", "0, hi", "16, hi"])
        head = f"for i in range({ends}):"
        if r.random() < 0.3:
            head = f"for q, i in ds.ndrange(3, ({ends})):"
        lines = [head] if "q" in head else [head, "    q = 1"]
        depth = 1
        distance = r.choice(["j", "j", "j + 1", "5", "16", "48", "1"])
        if r.random() < 0.3:
            lines.append("    for b in range(7):")
            distance, depth = r.choice(["(1 << b)", "(j + b)", "b"]), 2
        pad = "    " * depth
        lines.append(pad + r.choice([f"o = i ^ {distance}", f"o = {distance} ^ i"]))
        if guard := r.choice(GUARDS):
            lines.append(pad + guard)
            pad += "    "
        if r.random() < 0.3:
            return self.exchange(lines, pad)
        if r.random() < 0.15:
            return self.rows(lines, pad)
        for _ in range(r.randint(1, 4)):
            lines.append(pad + self.update())
        if r.random() < 0.3:
            new = r.choice(["s - 5", "2 * s", "3 * s + f[i]"])
            lines += [f"{pad}s = x[i]", f"{pad}if s > {r.randint(0, 3)}:", f"{pad}    x[i] = {new}"]
        return ["    " + line for line in lines]

    def exchange(self, lines, pad):
        """Pairs in place; both lanes of a pair would change both of its elements."""
        r = self.r
        if "if o > i" not in lines[-1]:
            lines.append(f"{pad}if o > i:")
            pad += "    "
        new = r.choice([("s + t", "s - t"), ("t", "s"), ("ds.min(s, t)", "ds.max(s, t)")])
        where = r.choice(["y[{}]", "w[q, {}]"])
        a, b = where.format("i"), where.format("o")
        lines.append(f"{pad}s, t = {a}, {b}")
        # Stores of some of the lanes that have loaded.
        if guard := r.choice(
            ["", "if s > t:", "if (s > t) == ((i & 4) == 0):", "if m[i] > 1:", "if f[i] > 1:"]
        ):
            lines.append(pad + guard)
            pad += "    "
        lines += [f"{pad}{a} = {new[0]}", f"{pad}{b} = {new[1]}"]
        return ["    " + line for line in lines]

    def rows(self, lines, pad):
        """Elements of a lane that are one or two, which is known when it runs; and one on one side alone."""
        r = self.r
        other = r.choice(["w[lo % 3, i]", "w[q, i]", "w[hi % 3, i]"])
        new = r.choice([("2 * t", "3 * s"), ("t", "s"), ("3 * s", "s + t"), ("2 * s", "t")])
        lines += [f"{pad}s, t = w[1, i], {other}", f"{pad}if {r.choice(['s > t', 's > 1'])}:"]
        lines += [f"{pad}    w[1, i] = {new[0]}", f"{pad}    {other} = {new[1]}"]
        if r.random() < 0.3:
            lines.append(f"{pad}    z[lo % 3, i] *= 2")
        return ["    " + line for line in lines]

    def value(self):
        r = self.r
        found = r.choice(
            ["y[o]", "y[o]", "w[q, o]", "w[o % 2, o]", "u[o][1]", "y[i] * y[o]", "y[(o + 1) % 256]"]
        )
        return f"{r.choice(['1', '2', '-1'])} * {found}"

    def update(self):
        r = self.r
        return r.choice(
            [
                f"x[i] += {self.value()}",
                f"x[o] += {self.value()}",
                f"z[q, o] -= {self.value()}",
                "x[o] += y[i]; z[q, i] += y[o]",
                "c[o] += m[i]",
                "c[i] = m[o] + 1" if r.random() < 0.3 else "x[i] += m[o]",
                f"total[None] += {self.value()}",
            ]
        )


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields; what only one of them is refused is not there."""
    r = Random(seed)
    t, whole = r.choice([(ds.f32, ds.i32), (ds.f64, ds.i64), (ds.f32, ds.u32), (ds.f64, ds.i32)])
    ds.init(default_fp=t, offline_cache=False, **options)
    names = dict(ds=ds)
    for name, shape in dict(x=SIZE, y=SIZE, w=(3, SIZE), z=(3, SIZE), total=()).items():
        names[name] = ds.field(t, shape=shape, needs_grad=True)
    names["u"] = ds.Vector.field(2, t, shape=SIZE, needs_grad=True)
    names["f"] = ds.field(r.choice([ds.u8, ds.i16, ds.f16, ds.i32]), shape=SIZE)
    for name in "mc":
        names[name] = ds.field(whole, shape=SIZE)
    exec(compile(text, f"<exchanges {seed}>", "exec"), names)
    fields = {name: f for name, f in names.items() if name in (*"xywzumcf", "total")}
    args = r.choice([(1, 0, 64), (2, 16, 128), (8, 3, 40), (16, 0, 100), (40, 0, 128), (0, 32, 65)])
    found = {}
    for ways in (("run", "grad"), ("saved",)):
        random = np.random.default_rng(seed)
        for field in fields.values():
            for part in (field, field.grad):
                if part is not None:
                    given = part.to_numpy()
                    part.from_numpy(random.integers(0, 4, given.shape).astype(given.dtype))
        for what in ways:
            try:
                _launch(names["run"], what, args, fields.values())
            except ds.errors.AutodiffError:
                break
            for name, field in fields.items():
                found[what, name] = field.to_numpy()
                if field.grad is not None:
                    found[what, name, "grad"] = field.grad.to_numpy()
    return found


def _launch(run, what, args, fields):
    """Launch a kernel, or its adjoint, or both on a tape that keeps what the adjoint needs."""
    if what != "saved":
        (run if what == "run" else run.grad)(*args)
        return
    grads = {f: f.grad.to_numpy() for f in fields if f.grad is not None}
    with ds.Tape(in_place="save") as tape:
        run(*args)
    tape.backward(grads=grads)


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    name = f"<exchanges {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.1,
        debug=how.random() < 0.1,
    )
    before = vectorize._ALWAYS, session._jit
    vectorize._ALWAYS = how.random() < 0.8
    if how.random() < 0.4:
        session._jit = narrow()
    try:
        found = results(text, seed, arch=ds.cpu, **options)
        exact = results(text, seed, arch=ds.python)
    except ds.errors.DiffsimError as error:
        return f"crash: {error}"
    finally:
        vectorize._ALWAYS, session._jit = before
    # Conditions that a launch has kept make adjoints possible, but not in Python.
    if not all(any(what == "saved" for what, *_ in a) for a in (found, exact)):
        found, exact = ({k: v for k, v in a.items() if k[0] != "saved"} for a in (found, exact))
    return bits.verdict(found, exact, options)
