"""Random kernels whose lanes compute functions of their own numbers, and the interpreter.

Damping layers, windows, branches on places, guarded divisions of integers; and what looks alike but is no
function of the numbers alone: arguments, elements of memory, loops that carry. Boxes have constant bounds,
or an argument's; rims and negative indices. Some lanes are there twice, with another box or another
number, as equal ones share tables. Each kernel is launched several times, as the first launch fills tables.
Functions are rounded to small whole numbers, so that all is compared bit by bit.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.passes.kept import tables
from diffsim.passes.vectors import vectorize
from tests.support import bits

SHAPES = ((100,), (37,), (9, 16), (12, 7), (10, 24), (3, 8, 5))
FUNCTIONS = ("ds.sin({})", "ds.cos({})", "ds.exp(-0.1 * {} * {})", "ds.tanh(0.2 * {})")
FUNCTIONS += ("ds.sqrt({} * {}) / (1.0 + {} * {})", "ds.log(3.5 + {} * {})")


class Maker:
    """Writes a kernel."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.shape = self.r.choice(SHAPES)
        self.axes = "ijk"[: len(self.shape)]
        self.own = ", ".join(self.axes)
        self.count = 0

    def text(self):
        r = self.r
        lines = []
        for _ in range(r.choice([1, 1, 2])):
            head, body = self.head(), self.body()
            again = [self.head() if r.random() < 0.5 else head, *map(self.changed, body)]
            both = [head, *body, *(again if r.random() < 0.4 else ())]
            lines += ["    " + line for line in both]
        return "@ds.kernel\ndef run(t: ds.i32, n: ds.i32):\n" + "\n".join(lines) + "\n"

    def changed(self, line):
        """A line, at times with other numbers."""
        changes = [(" < ", " < 1 + "), ("4", "5"), ("3", "2"), ("0.2", "0.3"), ("sin", "cos")]
        old, new = self.r.choice(changes)
        return line.replace(old, new) if "q in" not in line and self.r.random() < 0.2 else line

    def head(self):
        r = self.r
        ends = []
        for k, size in enumerate(self.shape):
            ends.append(r.choice([f"{size}", f"{size}", f"(1, {size - 1})", f"(0, {size - 1})"]))
            if not k and r.random() < 0.3:
                changing = [f"(1 - t, {size})", f"(0, {size} - t)", "n"]
                ends[0] = r.choice([*changing, f"(-2, {size - 2})", f"(-2, {size - 2})"])
        return f"for {self.own} in ds.ndrange({', '.join(ends)}):"

    def place(self):
        """A whole number that depends on the lane's numbers; at times on something else."""
        r, a = self.r, self.r.choice(self.axes)
        b = r.choice(
            [*self.axes, *self.axes, "3", "t", f"m[{self.own}]" if r.random() < 0.3 else "2"]
        )
        return r.choice(
            [
                f"({a} - 4)",
                f"({a} + 2 * {b})",
                f"ds.min({a}, {b}, 7)",
                f"ds.max({a} - {b}, 1)",
                f"(({a} * 3 + {b}) % 7)",
                f"({a} // 2)",
                f"ds.abs({a} - {b})",
            ]
        )

    def function(self):
        r, e = self.r, f"(1.0 * {self.place()})"
        inner = r.choice(FUNCTIONS).replace("{}", e)
        return f"ds.round({r.choice([2, 3, 4])}.0 * {inner})"

    def value(self):
        """Lines that bind a new local, and its name."""
        r, name = self.r, f"w{self.count}"
        self.count += 1
        kind = r.randint(0, 8)
        if kind < 2:
            return [f"{name} = {self.function()}"], name
        if kind == 2:
            guard = f"{self.place()} < {r.randint(1, 6)}"
            return [f"{name} = 2.0", f"if {guard}:", f"    {name} = {self.function()}"], name
        if kind == 3:
            d = self.r.choice([f"({self.axes[-1]} - 3)", self.place()])
            other = r.choice(["1.0", self.function()])
            lines = [f"{name} = {other}", f"if {d} != 0:"]
            return [*lines, f"    {name} = ds.round(3.0 * ds.sin(1.0 * (12 // {d})))"], name
        if kind == 4:
            lines = [
                f"{name} = {self.function()}",
                f"for q in range({r.choice(['2', '3', 'n - 5'])}):",
            ]
            return [
                *lines,
                f"    {name} = ds.round(2.0 * ds.cos({name} + q + {self.place()}))",
            ], name
        if kind == 5 and self.count > 1:
            return [f"{name} = w{self.count - 2} + {self.function()}"], name
        if kind == 6:
            lines = [f"{name} = {r.choice(['x', 'y'])}[{self.own}]", f"if {self.place()} > 2:"]
            return [*lines, f"    {name} = {self.function()}"], name
        if kind == 7:
            # Only lanes that take the branch may divide.
            d = r.choice([f"({self.axes[-1]} - 3)", self.place()])
            lines = [f"{name} = 1.0", f"if {d} != 0 and m[{self.own}] > 0:"]
            return [*lines, f"    {name} = ds.round(3.0 * ds.sin(1.0 * (12 // {d})))"], name
        lines, inside = (
            [f"{name} = 1.0", f"if x[{self.own.replace('i', 'i + 0')}] > 1:"],
            self.function(),
        )
        return [*lines, f"    {name} = {inside} - {self.place()}"], name

    def use(self, w):
        r, own = self.r, self.own
        what = r.choice(
            [f"{w} * x[{own}]", f"{w} * x[{own}]", f"{w} + x[{own}]", w, f"{w} * z[t, {own}]"]
        )
        line = r.choice(["y[{}] += {}", "z[t + 1, {}] = {}", "total[None] += {1}", "y[{}] = {}"])
        return line.format(own, what)

    def body(self):
        r, self.count, lines = self.r, 0, []
        for _ in range(r.randint(1, 4)):
            made, w = self.value()
            uses = [self.use(w) for _ in range(r.randint(0, 2))]
            guard = r.choice(["", "", f"if m[{self.own}] > 1:", f"if {self.place()} > 2:"])
            if guard and r.random() < 0.5:
                # All of it in a branch, so that no later value may use it.
                lines += [guard, *("    " + line for line in (*made, *uses, "pass"))]
                lines += [f"{w} = 0.5"]
                continue
            lines += made
            lines += [guard, *("    " + line for line in (*uses, "pass"))] if guard else uses
        # Negative numbers of lanes, too: elements are those from 2 on.
        return ["    " + line for line in lines or ["pass"]]


def make(seed):
    """The program of this number."""
    text = Maker(seed).text()
    if "(-2, " in text:
        head, _, rest = text.partition("\n    for ")
        for name in "xym":
            rest = rest.replace(f"{name}[i", f"{name}[i + 2")
        rest = rest.replace("[t, i", "[t, i + 2").replace("[t + 1, i", "[t + 1, i + 2")
        text = f"{head}\n    for {rest}"
    return text


def results(text, seed, **options):
    """What several launches and gradients leave in the fields."""
    shape = Maker(seed).shape
    t = Random(seed + 3).choice([ds.f32, ds.f32, ds.f64])
    ds.init(default_fp=t, offline_cache=False, **options)
    larger = (shape[0] + 2, *shape[1:])
    fields = {name: ds.field(t, shape=larger, needs_grad=True) for name in "xy"}
    fields["z"] = ds.field(t, shape=(4, *larger), needs_grad=True)
    fields["total"] = ds.field(t, shape=(), needs_grad=True)
    fields["m"] = ds.field(ds.i32, shape=larger)
    names = {"ds": ds, **fields}
    exec(compile(text, f"<tables {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    found = {}
    for turn in range(3):
        for field in fields.values():
            for part in (field, field.grad):
                if part is not None:
                    given = part.to_numpy()
                    part.from_numpy(random.integers(0, 4, given.shape).astype(given.dtype))
        try:
            run = names["run"]
            (run.grad if turn == 2 else run)(turn % 2, min(shape[0], 7 + turn))
            if turn == 2:
                run.grad((turn + 1) % 2, 8)
        except ds.errors.AutodiffError:
            break
        for name, field in fields.items():
            found[turn, name] = field.to_numpy()
            if field.grad is not None:
                found[turn, name, "grad"] = field.grad.to_numpy()
    return found


def verdict(text, seed):
    """The verdict on a program: "right", "invalid", or what is wrong."""
    name = f"<tables {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.1,
        debug=how.random() < 0.1,
    )
    before = vectorize._ALWAYS, tables._FEWEST_LANES, tables._LEAST_COST
    vectorize._ALWAYS = how.random() < 0.3
    if how.random() < 0.7:
        tables._FEWEST_LANES, tables._LEAST_COST = 1, how.choice([1, 20])
    try:
        return bits.against_interpreter(partial(results, text, seed), options)
    finally:
        vectorize._ALWAYS, tables._FEWEST_LANES, tables._LEAST_COST = before
