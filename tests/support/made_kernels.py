"""Kernels made at random, as source text, with fields to run them on: `Maker` and `Program`.

Not the generator of whole programs, which is tests/fuzz: one kernel, whose loops carry numbers, vectors and
integers, and whose locals several parallel loops add to and read.
"""

import itertools

import numpy as np

import diffsim as ds
from diffsim.backends import interpreter

N = 4
HEAD = """
@ds.func
def bend(a, b):
    if a > b:
        return ds.sin(a) * 0.7
    c = a * b
    if c < -0.3:
        return c
    return b - 0.5 * a

@ds.func
def turn(p, a):
    c, s = ds.cos(a), ds.sin(a)
    return ds.Vector([c * p.x - s * p.y, s * p.x + c * p.y])

@ds.func
def given(p, a, k):
    s = a
    for _ in range(k):
        s = ds.tanh(s + p.x)
    return s * p.y, x[k] * a

@ds.func_grad(given)
def adj_given(p, a, k, y, z, adj_y, adj_z):
    d, dx, s = 1.0, 0.0, a
    for _ in range(k):
        s = ds.tanh(s + p.x)
        dx = (dx + 1.0) * (1.0 - s * s)
        d *= 1.0 - s * s
    ds.adjoint[a] += adj_y * d * p.y + adj_z * x[k]
    ds.adjoint[p] += adj_y * ds.Vector([dx * p.y, s])
    ds.adjoint[x][k] += adj_z * a

@ds.func
def well(p, a):
    s = a
    for k in range(2):
        if p.x > a * 0.3:
            s = ds.sin(s * p.x) + a
        else:
            s = s * a / (1.0 + p.norm_sqr())
    y, z = given(p, s, 1)
    return s * p.y + bend(s, a) * y + z
"""


class Maker:
    """Writes one kernel. `rules`: whether it must keep the global data access rules."""

    def __init__(self, random, rules):
        self.r = random
        self.rules = rules
        self.lines = []
        self.indent = 1
        self.fresh = itertools.count()
        self.floats, self.vectors, self.ints = [], [], []
        self.budget = random.randint(4, 14)
        self.loops = 0
        self.read_out = False

    # ---- expressions

    def pick(self, things):
        return things[self.r.randrange(len(things))]

    def number(self):
        return str(round(self.r.uniform(-1.5, 1.5), 2))

    def index(self):
        """An index below N that is made of whole numbers alone."""
        k = self.pick(self.ints)
        return self.pick(
            [
                k,
                f"({k} + {self.r.randrange(N)}) % {N}",
                f"at[{k}]",
                f"{N - 1} - {k}",
                f"(3 * {k} + 1) % {N}",
            ]
        )

    def f(self, depth=2):
        """A float expression."""
        r = self.r
        if depth == 0 or r.random() < 0.15:
            leaves = [
                lambda: f"x[{self.index()}]",
                lambda: f"x[{self.index()}]",
                lambda: f"v[{self.index()}].{self.pick('xy')}",
                lambda: f"v[{self.index()}][{self.pick(self.ints)} % 2]",
                self.number,
            ]
            if self.floats:
                leaves += [lambda: self.pick(self.floats)] * 4
            if self.vectors:
                leaves += [lambda: f"{self.pick(self.vectors)}[{self.pick(self.ints)} % 2]"] * 2
            return self.pick(leaves)()
        d = depth - 1
        return self.pick(
            [
                lambda: f"({self.f(d)} + {self.f(d)})",
                lambda: f"({self.f(d)} - 0.5 * {self.f(d)})",
                lambda: f"{self.f(d)} * {self.f(d)}",
                lambda: f"{self.f(d)} / (1.5 + ({self.f(d)}) ** 2)",
                lambda: f"ds.sin({self.f(d)})",
                lambda: f"ds.tanh({self.f(d)})",
                lambda: f"ds.sqrt(1.2 + ({self.f(d)}) ** 2)",
                lambda: f"ds.exp(-abs({self.f(d)}))",
                lambda: f"ds.max({self.f(d)}, {self.f(d)})",
                lambda: f"ds.atan2({self.f(d)}, 2.0 + ds.cos({self.f(d)}))",
                lambda: f"({self.f(d)} if {self.condition()} else {self.f(d)})",
                lambda: f"ds.select({self.condition()}, {self.f(d)}, {self.f(d)})",
                lambda: f"bend({self.f(d)}, {self.f(d)})",
                lambda: f"{self.v(d)}.dot({self.v(d)})",
                lambda: f"{self.v(d)}.norm(0.1)",
                lambda: f"given({self.v(d)}, {self.f(d)}, {self.index()})[{self.r.randrange(2)}]",
                lambda: f"ds.tanh(ds.grad(well)({self.v(d)}, {self.f(d)})[1])",
                lambda: f"ds.tanh(ds.grad(well)({self.v(d)}, {self.f(d)})[0].{self.pick('xy')})",
                lambda: f"ds.stop_grad({self.number()}) * {self.pick(self.ints)} * {self.f(d)}",
            ]
        )()

    def v(self, depth=1):
        """A vector expression."""
        if depth <= 0 or self.r.random() < 0.3:
            if self.vectors and self.r.random() < 0.6:
                return self.pick(self.vectors)
            return f"v[{self.index()}]"
        d = depth - 1
        return self.pick(
            [
                lambda: f"ds.Vector([{self.f(d)}, {self.f(d)}])",
                lambda: f"({self.v(d)} + {self.v(d)} * {self.f(d)})",
                lambda: f"turn({self.v(d)}, {self.f(d)})",
                lambda: f"{self.v(d)}.normalized(0.5)",
                lambda: f"(ds.Matrix([[{self.f(0)}, 0.3], [-0.2, {self.f(0)}]]) @ {self.v(d)})",
            ]
        )()

    def condition(self):
        k = self.pick(self.ints)
        return self.pick(
            [
                lambda: f"{self.f(1)} > {self.number()}",
                lambda: f"({k} + {self.r.randrange(3)}) % 2 == 0",
                lambda: f"({k} > 1 and {self.f(0)} < 0.8)",
                lambda: f"(at[{self.index()}] == 2 or {self.f(0)} > 0.4)",
            ]
        )()

    def calm(self, text):
        """Inside loops values stay bounded."""
        if not self.loops:
            return text
        return self.pick(["ds.sin({})", "ds.tanh({})", "0.6 * ds.cos({})"]).format(text)

    # ---- statements

    def put(self, line):
        self.lines.append("    " * self.indent + line)

    def block(self, depth):
        self.indent += 1
        for _ in range(self.r.randint(1, 3)):
            self.statement(depth)
        self.indent -= 1

    def statement(self, depth):
        kinds = [self.assign] * 4 + [self.write] * 3
        if depth > 0 and self.budget > 0:
            kinds += [self.branch, self.branch, self.for_loop, self.for_loop, self.while_loop]
        if not self.rules:
            kinds += [self.break_a_rule]
        self.budget -= 1
        self.pick(kinds)(depth)

    def assign(self, depth):
        r = self.r.random()
        if self.vectors and r < 0.3:
            p = self.pick(self.vectors)
            if self.r.random() < 0.4:
                self.put(f"{p}[{self.pick(self.ints)} % 2] = {self.calm(self.f())}")
            else:
                self.put(f"{p} = {self.v()}.normalized(0.5)" if self.loops else f"{p} = {self.v()}")
        elif r < 0.45 and self.own_ints:
            self.put(f"{self.pick(self.own_ints)} = {self.index()}")
        elif self.floats_here:
            a = self.pick(self.floats_here)
            if self.loops or self.r.random() < 0.5:
                self.put(f"{a} = {self.calm(self.f())}")
            else:
                self.put(f"{a} {self.pick('+-*')}= {self.f()}")

    def write(self, depth):
        self.pick(
            [
                lambda: self.put(f"out[{self.lane}] {self.pick(['=', '+=', '-='])} {self.f()}"),
                lambda: self.put(f"outv[{self.lane}] += {self.v()}"),
                lambda: self.put(f"outv[{self.lane}][{self.pick(self.ints)} % 2] += {self.f()}"),
                lambda: self.put(f"outv[{self.lane}].{self.pick('xy')} = {self.f()}"),
                lambda: self.put(f"acc[{self.index()}] += {self.f()}"),
                lambda: self.put(f"ds.atomic_sub(acc[{self.index()}], {self.f()})"),
                lambda: self.put(f"total[None] += {self.f()}"),
                lambda: (
                    self.put(f"{self.sum_local} += {self.f(1)}")
                    if self.sum_local
                    else self.put("pass")
                ),
            ]
        )()

    def break_a_rule(self, depth):
        lane = self.lane
        self.put(
            self.pick(
                [
                    f"x[{lane}] = {self.f()}",
                    f"x[{self.index()}] = {self.f()}",
                    f"v[{lane}].x *= {self.f(1)}",
                    f"x[{lane}] += {self.f()}",
                    f"out[{self.index()}] = {self.f()}",
                    f"out[{lane}] = out[{lane}] * {self.f(1)}",
                    f"total[None] = {self.f()}",
                    f"at[{lane}] = ({lane} + 1) % {N}",
                    f"acc[{lane}] = out[{lane}] + acc[{lane}]",
                ]
            )
        )

    def branch(self, depth):
        self.put(f"if {self.condition()}:")
        self.block(depth - 1)
        if self.r.random() < 0.6:
            self.put("else:")
            self.block(depth - 1)

    def for_loop(self, depth):
        j = f"j{next(self.fresh)}"
        k = self.pick(self.ints)
        bound = self.pick(["2", "3", f"{k}", f"{k} % 3", f"at[{k}] - 1", f"{k}, 3"])
        self.put(f"for {j} in range({bound}):")
        self.ints.append(j)
        self.loops += 1
        self.block(depth - 1)
        self.leave()
        self.loops -= 1
        self.ints.remove(j)

    def while_loop(self, depth):
        w = f"w{next(self.fresh)}"
        self.put(f"{w} = 0")
        test = self.pick([f"{w} < 3", "True", f"{w} < 4 and {self.f(1)} < 0.9"])
        self.put(f"while {test}:")
        self.indent += 1
        self.put(f"{w} += 1")
        self.put(f"if {w} > 4:")
        self.put("    break")
        self.indent -= 1
        self.ints.append(f"({w} % {N})")
        self.loops += 1
        self.block(depth - 1)
        self.leave()
        self.loops -= 1
        self.ints.pop()

    def leave(self):
        """Maybe leave the loop early."""
        if self.r.random() < 0.4:
            self.put(f"    if {self.condition()}:")
            self.put(f"        {self.pick(['break', 'continue'])}")
            self.indent += 1
            self.statement(0)
            self.indent -= 1

    # ---- kernels

    def parallel_loop(self):
        self.lane = "i"
        self.put("for i in x:")
        self.indent += 1
        self.ints = ["i"]
        kernel_floats = list(self.floats)
        self.floats_here = []
        self.own_ints, self.vectors = [], []
        for name in ("a", "b", "c")[: self.r.randint(1, 3)]:
            self.put(f"{name} = {self.f(1)} + 0.0")
            self.floats_here.append(name)
            self.floats.append(name)
        for name in ("p", "q")[: self.r.randint(0, 2)]:
            self.put(f"{name} = {self.v()} * 1.0")
            self.vectors.append(name)
        if self.r.random() < 0.6:
            self.put(f"k = {self.index()}")
            self.ints.append("k")
            self.own_ints.append("k")
        for _ in range(self.r.randint(2, 5)):
            self.statement(2)
        self.put(f"out[i] += {self.pick(self.floats)}")
        self.indent -= 1
        self.floats = kernel_floats

    def kernel(self):
        self.put("@ds.kernel".replace("    ", ""))
        self.lines[-1] = self.lines[-1].strip()
        self.lines.append("def f():")
        self.sum_local = None
        self.floats_here, self.own_ints = [], []
        names = ("s", "t")[: self.r.randint(0, 2)]
        for name in names:
            self.put(f"{name} = {self.number()}")
        readable = []
        for _ in range(self.r.randint(1, 3)):
            self.sum_local = self.pick(names) if names and self.r.random() < 0.7 else None
            self.floats = [name for name in readable if name != self.sum_local]
            self.parallel_loop()
            if self.sum_local:
                readable = [*self.floats, self.sum_local]
                if self.r.random() < 0.3:
                    s = self.sum_local
                    self.put(f"{s} = ds.sin({s}) * 0.5 + x[1]")
        for name in readable:
            self.put(f"total[None] += ds.sin({name})")
        return "\n".join(self.lines) + "\n"


class Program:
    """A made kernel, its fields, and what they hold before it runs."""

    def __init__(self, text, file):
        file.write_text(HEAD + "\n" + text)
        self.text = text
        f64 = dict(dtype=ds.f64, needs_grad=True)
        self.inputs = {"x": ds.field(shape=N, **f64), "v": ds.Vector.field(2, shape=N, **f64)}
        self.outputs = {
            "out": ds.field(shape=N, **f64),
            "outv": ds.Vector.field(2, shape=N, **f64),
            "acc": ds.field(shape=N, **f64),
            "total": ds.field(shape=(), **f64),
        }
        self.at = ds.field(ds.i32, shape=N)
        self.fields = {**self.inputs, **self.outputs, "at": self.at}
        space = {"ds": ds, **self.fields}
        exec(compile(file.read_text(), str(file), "exec"), space)
        self.kernel = space["f"]
        draw = np.random.default_rng(7).uniform
        self.start = {name: draw(-1, 1, f.to_numpy().shape) for name, f in self.fields.items()}
        self.start["at"] = np.array([2, 0, 3, 2], np.int32)
        self.seeds = {name: draw(-1, 1, f.to_numpy().shape) for name, f in self.outputs.items()}

    def set(self, moved=None):
        for name, f in self.fields.items():
            f.from_numpy((moved or {}).get(name, self.start[name]))

    def run(self, moved):
        """Values after a launch, from these inputs."""
        self.set(moved)
        self.kernel()
        return {name: f.to_numpy() for name, f in self.outputs.items()}

    def value(self, moved):
        found = self.run(moved)
        return sum(float((self.seeds[name] * a).sum()) for name, a in found.items())

    def gradients(self):
        """With respect to all that the fields held before."""
        for f in (*self.inputs.values(), *self.outputs.values()):
            f.grad.fill(0)
        self.set()
        tape = ds.Tape()
        with tape:
            self.kernel()
        tape.backward(grads={f: self.seeds[name] for name, f in self.outputs.items()})
        return {n: f.grad.to_numpy() for n, f in {**self.inputs, **self.outputs}.items()}

    def special(self):
        (found,) = self.kernel.specializations.values()
        return found

    def interpret(self, kernel, gradients=None):
        """Memory by name after the interpreter ran a kernel; names of gradients end in .grad."""
        memory = {}
        names = {id(f): name for name, f in self.fields.items()}
        names.update(
            {id(f.grad): f"{name}.grad" for name, f in self.fields.items() if f.grad is not None}
        )
        for mem in kernel.mems:
            if mem.kind == "field":
                name = names[id(mem.handle())]
                source = self.start if gradients is None else gradients
                memory[mem] = np.array(source[name])
        interpreter.run(kernel, memory)
        return {names[id(mem.handle())]: a for mem, a in memory.items()}
