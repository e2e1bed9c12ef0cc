"""Random kernels that load, clear and add to neighbours, as stencils' adjoints do, in any order; adjoints of
random stencils; and the interpreter.

What neighbours are given is computed once where that is allowed, however little it costs here
(`passes/neighbours/materialized_values.py`). Most programs break one of the conditions, or seem to: cleared
elements that are read again or written, weights that the lane changes, elements that it reads what it has
added of, too few clears, bounds that the lanes write. Loops that do so have fewer lanes than neighbours are
away, so that no lane meets another. Memories are of several types, arguments, or in sparse trees. Numbers are
whole and small, and divisions exact, so what is compiled is compared bit by bit.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.cpu import chunks
from diffsim.errors import AutodiffError
from diffsim.passes.neighbours import materialized_values
from diffsim.passes.vectors import vectorize
from tests.support import bits

ROWS, COLUMNS = 48, 44
ALL = COLUMNS + 8
FAR = 6
"""Lanes along each axis, at most, where a lane may see what it has given to a neighbour."""


class Maker:
    """Writes a kernel of one loop, or of two, that is run."""

    def __init__(self, seed):
        self.r = Random(f"fissions {seed}")
        self.lines, self.count = [], 0

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, line):
        self.lines.append("        " + line)

    def text(self):
        for _ in range(self.pick(1, 1, 2)):
            self.loop()
        more = "".join(f", {k}: ds.types.ndarray()" for k in "gx" if self.r.random() < 0.1)
        sparse = [f"# sparse: {k}" for k in "ghex" if self.r.random() < 0.03 and k not in more]
        types = [f"# {k}: {self.pick('f32', 'f64', 'i32')}" for k in "ghe" if self.r.random() < 0.1]
        head = f"@ds.kernel\ndef run(n: ds.i32, lo: ds.i32, hi: ds.i32{more}):\n"
        return "\n".join([*sparse, *types, ""]) + head + "\n".join(self.lines) + "\n"

    def loop(self):
        # Where nothing is read again, neighbours may be lanes.
        self.alone = self.r.random() < 0.6
        if self.alone:
            rows = self.pick("20, 25", "n + 15, n + 19", "20, 21", "b[0], 24")
            columns = self.pick("16, 21", "18, 18 + n", "16, 17")
            self.shifts = [-FAR, FAR, 2 * FAR, -2 * FAR]
        else:
            rows = self.pick("8, 40", "lo, hi", "8, hi")
            columns = self.pick("8, 36", "8, hi", "20, 24")
            self.shifts = [-1, 1, 1, -2, 3]
        self.lines.append(f"    for i, j in ds.ndrange(({rows}), ({columns})):")
        self.values, self.vectors, self.cleared = [], [], []
        self.places = {"x": [], "z": [], "X": [], "w": ["i, j"]}
        for k in range(self.r.randint(1, 3)):
            self.gradient(k)
        if not self.values:
            self.values.append("y[i, j]")
        for _ in range(self.r.randint(1, 3)):
            self.value()
        if self.alone and self.r.random() < 0.3:
            self.disturbance()
        for memory in self.r.sample(["x", "z", "X"], self.pick(1, 1, 2)):
            self.additions(memory)
        if self.r.random() < 0.4:
            self.put(f"p[0] += {self.pick(*self.values)}")
        if self.r.random() < 0.4:
            self.put(f"y.grad[i, j] += {self.pick(*self.values)}")
        if self.alone and self.r.random() < 0.4:
            self.disturbance()

    def gradient(self, k):
        """Load the gradient of an element, and clear it: mostly in this order, mostly both."""
        self.count += 1
        vector = self.r.random() < 0.25 and not any(v for _, v in self.cleared)
        # Each memory once, or elements so far apart that no other lane accesses them.
        place = self.pick("i, j", "i, j + 1", "i + 1, j")
        memory = "G" if vector else ("g", "h", "g")[k]
        if k == 2:
            place = f"i + {2 * FAR}, j" if self.alone else place
            memory = memory if self.alone or vector else "e"
        at = f"{memory}[{self.pick('0', 'n - 4')}, {place}]"
        if at in dict(self.cleared):
            return
        name = f"a{self.count}"
        zero = "ds.Vector([0.0, 0.0])" if vector else "0.0"
        lines = [f"{name} = {at}", f"{at} = {zero}"]
        how = self.r.random()
        if how < 0.1:
            lines.reverse()
        elif how < 0.15:
            lines[1] = f"if y[i, j] > 0: {lines[1]}"
        elif how < 0.19:
            lines = lines[:1]
        elif how < 0.23 and not vector:
            lines[1] = f"{at} = 3.0"
        for line in lines:
            self.put(line)
        self.cleared.append((at, vector))
        (self.vectors if vector else self.values).append(name)
        if vector:
            self.values.append(f"{name}[{self.pick('0', '1')}]")
        else:
            self.vectors += [f"ds.Vector([{name}, y[i, j]])"] * (self.r.random() < 0.3)

    def value(self):
        """Compute a number of what has been loaded, with exact divisions."""
        self.count += 1
        name, divisor = f"a{self.count}", self.pick("(1 + y[i, j] * y[i, j] % 2)", "2", "b[1]")
        if self.vectors and self.r.random() < 0.4:
            self.put(f"{name} = 4 * {self.pick(*self.vectors)} / {divisor} + w[i, j]")
            self.vectors.append(name)
            self.values.append(f"{name}[{self.pick('0', '1')}]")
            return
        weight = f"w[i, {self.along('j')}]"
        one, other = self.pick(*self.values), self.pick(*self.values, weight, "2")
        if self.r.random() < 0.2:
            self.put(f"{name} = {one}")
            self.put(f"for _ in range({self.pick('2', 'n % 3')}): {name} = {name} + 2 / {divisor}")
        elif self.r.random() < 0.2:
            self.put(f"{name} = {one}")
            self.put(f"if y[i, j] > 0: {name} = {other} * 2")
        else:
            self.put(f"{name} = 4 * ({one} - {other}) / {divisor}")
        self.values.append(name)

    def along(self, a):
        k = self.pick(*self.shifts)
        if self.alone or self.r.random() < 0.6:
            return f"{a} + {k}".replace("+ -", "- ")
        return self.pick(a, f"ds.min({a} + 1, 38)", f"ds.max({a} - 1, 9)", f"({a} + {abs(k)}) % 48")

    def place(self):
        return self.pick(
            f"{self.along('i')}, j",
            f"i, {self.along('j')}",
            f"{self.along('i')}, {self.along('j')}",
        )

    def additions(self, memory):
        vector = memory == "X" and bool(self.vectors)
        memory = memory if vector else memory.lower()
        of = self.vectors if vector else self.values
        # What is handed over is mostly one number.
        chosen = self.r.sample(of, 1 if self.r.random() < 0.6 else min(2, len(of)))
        chosen = [of[-1]] if self.r.random() < 0.4 else chosen
        for _ in range(self.r.randint(2, 5)):
            beside = f"i, {self.along('j')}"
            weight = self.pick("", "2 * ", "-", "w[i, j] * ", f"w[{beside}] * ", "n * ")
            guard = self.pick("", "", "", "", "", "if y[i, j] > 0: ")
            place = self.place() if self.r.random() < 0.9 else "i, j"
            self.places[memory].append(place)
            self.places["w"] += [beside] * (beside in weight)
            self.put(f"{guard}{memory}[{place}] += {weight}{self.pick(*chosen)}")
            if self.alone and self.r.random() < 0.1:
                self.disturbance()

    def disturbance(self):
        """Read or write what the additions depend on, or what they change; of the lane's own."""
        at, vector = self.pick(*self.cleared)
        zero = "ds.Vector([1.0, 2.0])" if vector else "1.0"
        self.count += 1
        name = f"a{self.count}"
        # Mostly what has been added to, or multiplied with.
        memory = self.pick("x", "z", "X", "w", *[k for k, v in self.places.items() if len(v) > 1])
        near = f"{memory}[{self.pick(self.place(), *self.places[memory], *self.places[memory])}]"
        value = self.pick(*self.values, "1.0")
        updates = [
            f"{name} = {near}",
            f"{name} = ds.atomic_add({near}, {value})",
            f"{near} = 2.0",
            f"ds.atomic_max({near}, {value})",
        ]
        if memory == "X":
            updates = [updates[0], f"{near} = ds.Vector([1.0, 2.0])"]
        elif memory == "w":
            updates = [f"{near} = 2.0", f"{near} += 2.0"]
        own = [f"{name} = {at}", f"{at} += {zero}", f"{at} = 2 * {zero}", "b[0] = 22"]
        if not vector:
            # Not at the top of the body.
            where = self.pick("if y[i, j] > 0", "for _ in range(2)")
            own += [f"{where}: y.grad[i, j] += {at}", f"{where}: {at} += 1.0"]
        self.put(self.pick(*own, *own, *updates, *updates))
        if self.lines[-1].strip().startswith(f"{name} = "):
            whole = "X[" in self.lines[-1] or (vector and at in self.lines[-1])
            self.put(f"y.grad[i, j] += {name}{'[1]' if whole else ''}")
            (self.vectors if whole else self.values).append(name)


HEIGHT, WIDTH = 16, 28
"""Of the fields of stencils."""
BOXES = (
    "(4, 12), (4, 24)",
    "(lo, hi), (4, 2 * hi)",
    "(lo, hi), (4, 24)",
    "(4, 12), (20, 21)",
    "16, 28",
)
NEAR = (
    "{a} + {k}",
    "{a} + {k}",
    "({a} + {k}) % {n}",
    "ds.max({a} - {k}, 0)",
    "ds.min({a} + {k}, {n} - 1)",
)


class AdjointMaker:
    """Writes a kernel of stencils, one loop after the other, whose adjoint is run."""

    def __init__(self, seed):
        self.r = Random(f"fissions {seed}")
        self.lines, self.count = [], 0

    def pick(self, *things):
        return self.r.choice(things)

    def put(self, line):
        self.lines.append("        " + line)

    def text(self):
        # What a loop has written, later ones have stencils of.
        written = []
        for _ in range(self.pick(1, 1, 2, 2, 3)):
            written += self.loop(written)
        head = "@ds.kernel\ndef forward(n: ds.i32, lo: ds.i32, hi: ds.i32):\n"
        return head + "\n".join(self.lines) + "\n"

    def loop(self, written):
        box = self.pick(*BOXES)
        # Around faces, or inside.
        self.near = NEAR[2:] if box == BOXES[-1] else NEAR[: self.pick(1, 1, 5)]
        self.lines.append(f"    for i, j in ds.ndrange({box}):")
        self.values, self.shape = ["w[i, j]"], []
        kept = [k for k in ("y", "z", "V", "Y", "f") if k not in written]
        if not kept:
            self.put("p[0] += w[i, j]")
        targets = self.r.sample(kept, min(len(kept), self.pick(1, 1, 2, 3)))
        for target in targets:
            sources = self.pick(
                *[["x"], ["x", "X"], ["x", "T"], *[[k] for k in written if k != "f"]]
            )
            self.store(target, sources)
        return targets

    def store(self, target, sources):
        self.count += 1
        v = f"a{self.count}"
        # Sometimes the same neighbours as before, with other factors.
        if not self.shape or self.r.random() < 0.6:
            self.shape = [self.place() for _ in range(self.pick(2, 3, 4, 5, 5))]
        self.put(f"{v} = {self.stencil(sources)}")
        for _ in range(self.pick(0, 1, 1, 2)):
            self.factor(v)
        if self.r.random() < 0.3:
            self.put(f"{v} = {v} + {self.pick(*self.values)}")
        self.values.append(v)
        own = self.pick(*["i, j"] * 6, "i, j + 1", "i - 1, j") if "Y" not in target else "i, j"
        own = "i, j" if self.near == NEAR[2:] else own
        value, how = v, "="
        at = f"{target}[{own}]"
        if target == "Y":
            at = f"Y[{self.pick('1', '2', 'n - 2', '1 + n % 2')}, {own}]"
        elif target == "V" and self.r.random() < 0.5:
            at += "[1]"
        elif target == "V":
            value = f"ds.Vector([{v}, {self.pick(*self.values)}])"
        elif self.r.random() < 0.15:
            how = "+="
        guard = self.pick(*[""] * 16, "if w[i, j] > 0: ", "if i > lo: ")
        self.put(f"{guard}{at} {how} {value}")
        if target == "V" and self.r.random() < 0.3:
            self.put(f"V[{own}][0] = {v} * w[i, j]")
        elif target != "V" and how == "=" and self.r.random() < 0.1:
            self.put(f"{at} = {v} * 2 - {self.pick(*self.values)}")

    def stencil(self, sources):
        """Return a sum of neighbours, with weights."""
        terms = []
        for place in self.shape:
            source = self.pick(*sources)
            x = {
                "X": f"X[{place}][1]",
                "T": f"Y[0, {place}]",
                "V": f"V[{place}][0]",
                "Y": f"Y[1, {place}]",
            }
            x = x.get(source, f"{source}[{place}]")
            weight = self.pick("", "", "2 * ", "w[i, j] * ", f"w[{place}] * ", "n * ", "b[1] * ")
            terms.append(weight + x)
        return " + ".join(terms).join("()") + self.pick("", "", " * x[i, j]")

    def factor(self, v):
        """Multiply with something, at some cost."""
        how = self.r.random()
        if how < 0.5:
            self.put(f"{v} = {v} / {self.pick('d[i, j]', 'b[1]', '(3 * b[1] - 2)')}")
        elif how < 0.7:
            self.put(f"{v} = {v} * w[i, j] * ({self.pick(*self.values)} + 1)")
        elif how < 0.8:
            self.put(f"for _ in range({self.pick('2', 'n % 3')}): {v} = {v} * w[i, j] / 2")
        elif how < 0.9:
            self.put(f"if d[i, j] > 1: {v} = {v} * {self.pick(*self.values)} / d[i, j]")
        else:
            self.put(f"{v} = ds.max({v}, {self.pick(*self.values)} / d[i, j])")

    def place(self):
        def along(a, n):
            return self.pick(*self.near).format(a=a, k=self.pick(1, 1, 2), n=n).replace("+ -", "- ")

        def back(a, n):
            text = along(a, n)
            return (
                text.replace(" + ", " - ") if self.near[0] == NEAR[0] and "%" not in text else text
            )

        i, j = self.pick(along, back)("i", HEIGHT), self.pick(along, back)("j", WIDTH)
        return self.pick(f"{i}, j", f"i, {j}", f"{i}, {j}", *["i, j"] * (self.r.random() < 0.3))


def make(seed):
    """The program of this number."""
    return (AdjointMaker if Random(seed).random() < 0.5 else Maker)(seed).text()


def type_of(text, name, default):
    found = [k for k in ("f32", "f64", "i32") if f"# {name}: {k}" in text]
    return getattr(ds, found[0]) if found else default


def memory(text, name, shape, t, **options):
    """A field, or one in a sparse tree."""
    t = type_of(text, name, t)
    if f"# sparse: {name}\n" not in text:
        return ds.field(t, shape=shape, **options)
    found = ds.field(t)
    axes = ds.ijk if len(shape) == 3 else ds.ij
    cells = (*shape[:-2], ROWS // 4, ALL // 4)
    ds.root.pointer(axes, cells).dense(axes, (*[1] * len(shape[:-2]), 4, 4)).place(found)
    for i in range(0, ROWS, 8):
        for j in range(0, ALL, 4):
            found[(*[1] * len(shape[:-2]), i, j)] = 1
    return found


def given(t, random):
    """The fields of programs, with whole numbers in them, and powers of two in one."""
    needs = dict(needs_grad=True)
    names = {k: ds.field(t, shape=(HEIGHT, WIDTH), **needs) for k in "xyzwdf"}
    names["Y"] = ds.field(t, shape=(3, HEIGHT, WIDTH), **needs)
    names["X"] = ds.Vector.field(2, t, shape=(HEIGHT, WIDTH), **needs)
    names["V"] = ds.Vector.field(2, t, shape=(HEIGHT, WIDTH), **needs)
    for field in [*names.values(), *[f.grad for f in names.values()]]:
        shape = field.to_numpy().shape
        field.from_numpy(random.integers(-2, 3, shape).astype(field.to_numpy().dtype))
    names["p"] = ds.field(t, shape=1, **needs)
    names["d"].from_numpy(2.0 ** random.integers(0, 3, (HEIGHT, WIDTH)))
    return names, {**names, **{f"{k}.grad": f.grad for k, f in names.items()}}


def results(text, seed, **options):
    """What the kernel, or its adjoint, leaves in the fields."""
    r = Random(seed)
    t = r.choice([ds.f32, ds.f64])
    is_adjoint = "def forward" in text
    ds.init(default_fp=ds.f64 if is_adjoint else t, offline_cache=False, **options)
    random = np.random.default_rng(seed)
    if is_adjoint:
        args = [3, r.choice([2, 5]), r.choice([10, 12])]
        names, fields = given(ds.f64, random)
    else:
        args = [r.choice([4, 5]), r.choice([8, 11]), r.choice([30, 36])]
        shapes = dict(x=(), z=(), w=(), g=(2,), h=(2,), e=(2,))
        names = {k: memory(text, k, (*s, ROWS, ALL), t) for k, s in shapes.items()}
        names["y"] = ds.field(t, shape=(ROWS, ALL), needs_grad=True)
        names["X"] = ds.Vector.field(2, t, shape=(ROWS, ALL))
        names["G"] = ds.Vector.field(2, t, shape=(2, ROWS, ALL))
        names["p"] = ds.field(t, shape=1)
        fields = {**names, "y.grad": names["y"].grad}
        for field in fields.values():
            values = random.integers(-2, 3, field.to_numpy().shape)
            field.from_numpy(np.asarray(values, field.to_numpy().dtype))
    names["b"] = ds.field(ds.i32, shape=2)
    names["b"].from_numpy(np.array([20, 2], np.int32))
    space = dict(names, ds=ds)
    exec(compile(text, f"<fissions {seed}>", "exec"), space)
    if is_adjoint:
        try:
            space["forward"].grad(*args)
        except AutodiffError:
            # It needs what some fields hold then.
            space["forward"](*args)
            space["forward"].grad(*args)
        return {name: field.to_numpy() for name, field in fields.items()}
    arrays = {k: names[k].to_numpy() for k in "gx" if f", {k}: ds.types.ndarray()" in text}
    space["run"](*args, *arrays.values())
    return {name: field.to_numpy() for name, field in fields.items()} | arrays


def verdict(text, seed):
    """The verdict on a program: "right", "invalid", or what is wrong."""
    name = f"<fissions {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 2, 3]),
        deterministic=how.random() < 0.1,
        debug=how.random() < 0.1,
    )
    before = vectorize._ALWAYS, chunks._CHUNK_WORK, materialized_values._LEAST_AGAIN
    vectorize._ALWAYS, chunks._CHUNK_WORK = how.random() < 0.5, how.choice([20, 200])
    materialized_values._LEAST_AGAIN = how.choice([0, 0, 4, 8])
    try:
        return bits.against_interpreter(partial(results, text, seed), options, may_refuse=True)
    finally:
        (
            vectorize._ALWAYS,
            chunks._CHUNK_WORK,
            materialized_values._LEAST_AGAIN,
        ) = before
