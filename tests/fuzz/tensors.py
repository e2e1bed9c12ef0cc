"""Random programs of vectors, matrices, structs and funcs, as text, and what a right run of one is.

Fields: `f`, `V`, `M`, `P` of N numbers, 3-vectors, 2 x 2 matrices and structs, which are only read; `g`, `W`,
`L`, `Q` of the same, which kernels write; `at` of whole numbers. Funcs get and return all of these, some
return early, or several values; some change what they are given.

The oracle is Python, which runs the same text with the tensors of `tensor_duals.py`.
"""

import ast
import itertools
import linecache
import math
import re
from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError
from tests.fuzz.tensor_duals import Fields, Shim, Struct, Tensor, ValueSemantics, numbers_of

N = 5
HEAD = """
v2, v3, m22 = ds.types.vector(2, ds.f64), ds.types.vector(3, ds.f64), ds.types.matrix(2, 2, ds.f64)

@ds.dataclass
class Inner:
    m: m22
    s: ds.f64

@ds.dataclass
class Part:
    a: ds.f64
    v: v3
    k: ds.i32
    q: Inner

    @ds.func
    def push(self, d, w):
        self.v += d * self.a
        self.q.s *= w
        if self.k % 2 == 0:
            self.q.m[0, 1] -= self.v.y

    @ds.func
    def size(self, w):
        if self.a > w:
            return self.q.m.trace() * self.a
        return self.v.norm() + self.q.s
"""
SHAPES = {
    "f": (),
    "V": (3,),
    "M": (2, 2),
    "P": Struct,
    "g": (),
    "W": (3,),
    "L": (2, 2),
    "Q": Struct,
}
WRITTEN = {"g": "F", "W": "V3", "L": "M", "Q": "S"}
LENGTH = {"V2": 2, "V3": 3}


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines = []
        self.funcs = []
        self.names = itertools.count()

    def text(self):
        for _ in range(self.r.randint(0, 3)):
            self.func()
        kernels = [self.kernel(n) for n in range(self.r.randint(1, 2))]
        self.put(0, "def main():")
        for name, takes_vector in kernels:
            vector = self.pick("u", f"[{self.number()}, {self.number()}, {self.number()}]")
            args = [self.pick("c", self.number()), *([vector] if takes_vector else [])]
            self.put(1, f"{name}({', '.join(args)})")
        return HEAD + "\n".join(self.lines) + "\n"

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def pick(self, *things):
        return things[self.r.randrange(len(things))]

    def number(self):
        return str(round(self.r.uniform(-1.3, 1.3), 2))

    def name(self, kind):
        return f"{kind.lower()}_{next(self.names)}"

    # ---- funcs and kernels

    def func(self):
        name = f"func{len(self.funcs)}"
        kinds = [
            self.pick("F", "F", "I", "V2", "V3", "M", "S", "Q") for _ in range(self.r.randint(1, 3))
        ]
        results = [self.pick("F", "V2", "V3", "M", "S", "Q") for _ in range(self.pick(1, 1, 2, 3))]
        params = [self.name(k) for k in kinds]
        changed = kinds[0] in ("V2", "V3", "M", "S", "Q") and self.r.random() < 0.4
        shown = [f"{params[0]}: ds.template()", *params[1:]] if changed else params
        self.put(0, "@ds.func")
        self.put(0, f"def {name}({', '.join(shown)}):")
        self.scope = Scope(fields=False)
        for p, k in zip(params, kinds, strict=True):
            self.scope.add(k, p)
        self.scope.fixed = {params[0]} if changed else set()
        if changed:
            self.change_param(1, params[0], kinds[0])
        for _ in range(self.r.randint(0, 3)):
            self.statement(1)
            if self.r.random() < 0.35:
                self.put(1, f"if {self.condition()}:")
                with self.scope.inner():
                    for _ in range(self.r.randint(0, 1)):
                        self.statement(2)
                    self.give_back(2, results)
        if len(results) == 1 and self.r.random() < 0.3:
            self.put(1, f"for n in range({self.pick(2, 3)}):")
            with self.scope.inner():
                self.scope.add("I", "n")
                self.scope.fixed.add("n")
                for _ in range(self.r.randint(0, 1)):
                    self.statement(2)
                self.put(2, f"if {self.condition()}:")
                self.give_back(3, results)
        self.give_back(1, results)
        self.funcs.append((name, kinds, results, changed))

    def give_back(self, depth, results):
        self.put(depth, f"return {', '.join(self.expr(k, 1) for k in results)}")

    def change_param(self, depth, name, kind):
        with self.scope.inner():
            if kind in ("S", "Q"):
                self.part(depth, name, kind)
            else:
                self.put(depth, f"{name} {self.pick('+=', '-=', '*=')} {self.expr(kind, 1)}")

    def kernel(self, n):
        takes_vector = self.r.random() < 0.4
        self.put(0, "@ds.kernel")
        self.put(0, f"def k{n}(w: ds.f64{', z: v3' if takes_vector else ''}):")
        top = [("F", "w"), *([("V3", "z")] if takes_vector else [])]
        for _ in range(self.r.randint(1, 2)):
            self.scope = Scope()
            for kind, name in top:
                self.scope.add(kind, name)
                self.scope.fixed.add(name)
            shared = []
            if self.r.random() < 0.4:
                for kind in self.r.sample(["F", "V3", "M"], self.r.randint(1, 2)):
                    name = self.name(kind)
                    zeros = {
                        "F": "0.0",
                        "V3": "v3(0.0)",
                        "M": "ds.Matrix([[0.0, 0.0], [0.0, 0.0]])",
                    }
                    self.put(1, f"{name} = {zeros[kind]}")
                    shared.append((kind, name))
            modes = {f: self.pick("own", "add") for f in WRITTEN}
            self.scope.modes = modes
            self.put(1, self.pick(f"for i in range({N}):", "for i in f:", "for i in P:"))
            with self.scope.inner():
                self.scope.index = "i"
                self.scope.add("I", "i")
                self.scope.fixed.add("i")
                for _ in range(self.r.randint(1, 5)):
                    self.statement(2)
                for kind, name in shared:
                    self.put(2, f"{name} += {self.expr(kind, 2)}")
                self.write(2)
            for kind, name in shared:
                self.scope.add(kind, name)
            if shared:
                self.scope.modes = dict.fromkeys(WRITTEN, "add")
                self.put(1, "if w < 9.0:")  # loops in it are serial
                with self.scope.inner():
                    self.scope.index = str(self.r.randrange(N))
                    for _ in range(self.r.randint(0, 2)):
                        self.statement(2)
                    self.write(2)
        return f"k{n}", takes_vector

    # ---- statements

    def statement(self, depth):
        if depth > 4:
            return self.local(depth)
        makers = [
            self.local,
            self.local,
            self.change,
            self.change,
            self.branch,
            self.loop,
            self.spin,
            self.unrolled,
        ]
        if self.funcs:
            makers += [self.call, self.call]
        if self.scope.index is not None and self.r.random() < 0.5:
            makers.append(self.write)
        return self.pick(*makers)(depth)

    def local(self, depth):
        kind = self.pick("F", "F", "I", "V2", "V3", "M", "S", "Q", "B")
        name = self.name(kind)
        self.put(depth, f"{name} = {self.expr(kind, 2)}")
        self.scope.add(kind, name)

    def change(self, depth):
        own = [
            (k, n)
            for k, names in self.scope.names.items()
            for n in names
            if n not in self.scope.fixed
        ]
        if not own:
            return self.local(depth)
        kind, name = self.pick(*own)
        if kind == "B":
            self.put(depth, f"{name} = {self.condition()}")
        elif kind == "I":
            self.put(depth, f"{name} {self.pick('=', '+=', '-=')} {self.expr('I', 1)}")
        elif kind == "F":
            self.put(depth, f"{name} {self.pick('=', '+=', '-=', '*=')} {self.expr('F', 2)}")
        elif self.r.random() < 0.3:
            how = "=" if kind in ("S", "Q") else self.pick("=", "+=", "*=")
            self.put(depth, f"{name} {how} {self.expr(kind, 2)}")
        else:
            self.part(depth, name, kind)
        return None

    def part(self, depth, place, kind):
        """Change a part of a vector, matrix or struct."""
        how = self.pick("=", "+=", "-=", "*=")
        if kind == "S":
            member, of = self.pick(("a", "F"), ("v", "V3"), ("k", "I"), ("q", "Q"), ("v", "V3"))
            if of == "I":
                self.put(depth, f"{place}.k {self.pick('=', '+=')} {self.expr('I', 1)}")
            elif self.r.random() < 0.3 and "[" not in place:
                self.put(depth, f"{place}.push({self.expr('V3', 1)}, {self.expr('F', 1)})")
            elif of == "F" or self.r.random() < 0.4:
                self.put(depth, f"{place}.{member} {'=' if of == 'Q' else how} {self.expr(of, 2)}")
            else:
                self.part(depth, f"{place}.{member}", of)
        elif kind == "Q":
            if self.r.random() < 0.4:
                self.put(depth, f"{place}.s {how} {self.expr('F', 2)}")
            else:
                self.part(depth, f"{place}.m", "M")
        elif kind == "M" and self.r.random() < 0.4:
            at = self.pick(":, 1", "0, :", ":, 0", f"{self.small(2)}, :", self.small(2), "::-1, 1")
            self.put(depth, f"{place}[{at}] {how} {self.expr(self.pick('V2', 'F'), 1)}")
        elif kind == "M":
            at = self.pick(
                "0, 1", "1, 1", f"{self.small(2)}, 0", f"{self.small(2)}, {self.small(2)}"
            )
            self.put(depth, f"{place}[{at}] {how} {self.expr('F', 2)}")
        else:
            n = LENGTH[kind]
            roll = self.r.random()
            if roll < 0.15 and n == 3:
                at = self.pick(":2", "1:", "::2", "::-2")
                self.put(depth, f"{place}[{at}] {how} {self.expr('V2', 1)}")
            elif roll < 0.4:
                letters = self.r.sample("xyz"[:n], 2)
                self.put(depth, f"{place}.{''.join(letters)} {how} {self.expr('V2', 1)}")
            elif roll < 0.7:
                self.put(depth, f"{place}.{self.pick(*'xyz'[:n])} {how} {self.expr('F', 1)}")
            else:
                self.put(depth, f"{place}[{self.small(n)}] {how} {self.expr('F', 1)}")

    def branch(self, depth):
        self.put(depth, f"if {self.condition()}:")
        self.block(depth + 1)
        if self.r.random() < 0.3:
            self.put(depth, f"elif {self.condition()}:")
            self.block(depth + 1)
        if self.r.random() < 0.5:
            self.put(depth, "else:")
            self.block(depth + 1)

    def block(self, depth, most=2):
        with self.scope.inner():
            for _ in range(self.r.randint(1, most)):
                self.pick(self.change, self.change, self.statement)(depth)

    def loop(self, depth):
        k = self.name("n")
        bounds = self.pick(
            "3", "1, 4", "5, 0, -2", "2, -1, -1", f"{self.small(3)}", f"{self.small(2)}, 3", "0"
        )
        self.put(depth, f"for {k} in range({bounds}):")
        with self.scope.inner():
            self.scope.add("I", k)
            self.scope.fixed.add(k)
            if self.r.random() < 0.3:
                self.put(depth + 1, f"if {self.condition()}:")
                self.put(depth + 2, self.pick("break", "continue"))
            self.block(depth + 1)

    def spin(self, depth):
        k = self.name("I")
        self.put(depth, f"{k} = {self.pick('0', '1', '-1')}")
        self.put(depth, f"while {k} < 3 and {self.condition()}:")
        with self.scope.inner():
            self.scope.add("I", k)
            self.scope.fixed.add(k)
            self.put(depth + 1, f"{k} += 1")
            self.block(depth + 1)

    def unrolled(self, depth):
        k = self.name("n")
        self.put(depth, f"for {k} in ds.static(range({self.pick('2', '3', '2, -1, -1')})):")
        with self.scope.inner():
            self.scope.add("I", k)
            self.scope.fixed.add(k)
            self.block(depth + 1)

    def call(self, depth):
        name, kinds, results, changed = self.pick(*self.funcs)
        args = [self.expr(k, 1) for k in kinds]
        if changed:
            args[0] = self.name(kinds[0])
            self.put(depth, f"{args[0]} = {self.expr(kinds[0], 1)}")
        made = [self.name(k) for k in results]
        self.put(depth, f"{', '.join(made)} = {name}({', '.join(args)})")
        for k, n in zip(results, made, strict=True):
            self.scope.add(k, n)
        if changed:
            self.scope.add(kinds[0], args[0])

    def write(self, depth):
        """Store into an element of this lane's own, or add to any."""
        field = self.pick(*WRITTEN)
        kind, own = WRITTEN[field], self.scope.modes[field] == "own"
        at = self.scope.index if own else self.place()
        place = f"{field}[{at}]"
        how = self.pick("=", "+=") if own else self.pick("+=", "-=")
        if kind == "S":
            if own and self.r.random() < 0.5:
                self.put(depth, f"{place} = {self.expr('S', 2)}")
                return
            member, kind = self.pick((".a", "F"), (".v", "V3"), (".q.s", "F"), (".q.m", "M"))
            place += member
        if kind == "V3" and self.r.random() < 0.5:
            letters, kind = self.pick(
                *((".zx", "V2"), (".y", "F"), (f"[{self.small(3)}]", "F"), (".yz", "V2")),
                ("[1:]", "V2"),
            )
            place += letters
        elif kind == "M" and self.r.random() < 0.5:
            at, kind = self.pick(
                (f"{self.small(2)}, 1", "F"), (self.small(2), "V2"), (":, 0", "V2")
            )
            place = f"{place}[{at}]"
        self.put(depth, f"{place} {how} {self.expr(kind, 2)}")

    # ---- expressions

    def fill(self, template, depth):
        """The template with expressions for `<F>` and its like; `<.F>` is one without operators."""

        def put(found):
            word = found.group(1)
            if word == "#":
                return self.number()
            if word[0].isdigit():
                return self.small(int(word), depth)
            if word[0] == ".":
                return self.expr(word[1:], 0)
            return self.expr(word, depth)

        return re.sub(r"<([#.\w]+)>", put, template)

    def small(self, n, depth=1):
        """A whole number from 0 to n - 1."""
        if depth == 0 or self.r.random() < 0.5:
            return str(self.r.randrange(n))
        return f"({self.expr('I', depth - 1)}) % {n}"

    def place(self, depth=1):
        i = self.scope.index
        return self.pick(i, f"at[{i}]", self.small(N, depth), str(self.r.randrange(N)))

    def condition(self, depth=1):
        if depth == 0:
            leaves = ("<.F> > <#>", "<.I> == 1", *self.scope.names["B"][-2:])
            return f"({self.fill(self.pick(*leaves), 0)})"
        return f"({self.fill(self.pick(*CONDITIONS, *self.scope.names['B']), depth - 1)})"

    def expr(self, kind, depth):
        names = self.scope.names[kind][-4:]
        if names and self.r.random() < (0.25 if depth else 0.7):
            return self.pick(*names)
        if kind == "B":
            return self.condition(depth)
        if depth == 0 or self.r.random() < 0.15:
            return self.fill(self.pick(*self.leaves(kind)), 0)
        if self.r.random() < 0.12:
            ones = [f for f in self.funcs if f[2] == [kind] and not f[3]]
            if ones:
                name, kinds, _, _ = self.pick(*ones)
                return f"{name}({', '.join(self.expr(k, depth - 1) for k in kinds)})"
        return self.fill(
            self.pick(*EXPRESSIONS[kind], "(<K> if <B> else <K>)").replace("K", kind), depth - 1
        )

    def read(self, *fields):
        """Elements of fields that may be read."""
        s, found = self.scope, []
        for f in fields if s.index is not None else ():
            if f not in WRITTEN:
                found.append(f"{f}[{self.place(0) if self.r.random() < 0.6 else s.index}]")
            elif s.modes[f] == "own":
                found.append(f"{f}[{s.index}]")
        return found

    def leaves(self, kind):
        """What needs no operators."""
        names = self.scope.names
        structs = [*names["S"][-1:], *self.read("P", "Q")]
        inners = [*names["Q"][-1:], *(f"{p}.q" for p in structs)]
        if kind == "F":
            found = ["<#>", *self.read("f", "f", "g"), *(f"{p}.a" for p in structs)]
            found += [f"{v}.{self.pick(*'xy')}" for k in ("V2", "V3") for v in names[k][-1:]]
            found += [f"{p}.v.{self.pick(*'yz')}" for p in structs]
            return found + [f"{m}[1, 0]" for m in names["M"][-1:]] + [f"{q}.s" for q in inners]
        if kind == "I":
            return [str(self.r.randint(-2, 4)), *(f"{p}.k" for p in structs), *self.read("at")]
        if kind == "V2":
            found = [
                f"{v}.{self.pick('xy', 'zx', 'yy')}"
                for v in (*names["V3"][-1:], *self.read("V", "W"))
            ]
            return [*found, *(f"{m}[:, 1]" for m in names["M"][-1:]), "ds.Vector([<F>, <F>])"]
        if kind == "V3":
            found = [*self.read("V", "W"), *(f"{p}.v" for p in structs), "v3(<F>, <#>, <F>)"]
            return [*found, self.pick("v3(<F>, 0.0, 0.0)", "v3(0.0, 1.0, 0.0)")]
        if kind == "M":
            return [
                *self.read("M", "L"),
                *(f"{q}.m" for q in inners),
                "ds.Matrix([[<F>, 0.3], [<#>, <F>]])",
                "ds.Matrix([[<F>, 0.0], [0.0, 1.0]])",
            ]
        if kind == "S":
            return [*self.read("P", "P", "Q"), "Part(v=<V3>)", "Part(a=<F>, k=<I>, v=<V3>, q=<Q>)"]
        return [*(f"{p}.q" for p in structs), "Inner(m=<M>, s=<F>)"]


CONDITIONS = (
    "<F> > <#>",
    "<#> < <F> < <F>",
    "<I> % 2 == 0",
    "0 <= <I> < <I>",
    "<F> > 0.1 and <F> < <#>",
    "not (<F> > 0.2 or <I> == 1)",
    "(<V3> < <.F>).all()",
    "<F> > 0.0 or <B>",
)
_TENSORS = (
    *("(<K> + <K>)", "(<K> - <K>)", "(<K> * <K>)", "(<K> * <F>)", "(<F> - <K>)", "-(<K>)"),
    *("(<K> / (2.0 + (<F>) ** 2))", "ds.sin(<K>)", "ds.max(<K>, <K>)", "ds.select(<B>, <K>, <K>)"),
)
EXPRESSIONS = {
    "F": (
        *(
            "(<F> + <F>)",
            "(<F> - 0.5 * <F>)",
            "<F> * <F>",
            "<F> / (1.5 + <F> ** 2)",
            "-<F>",
            "ds.sin(<F>)",
        ),
        *(
            "ds.tanh(<F>)",
            "ds.sqrt(1.2 + (<F>) ** 2)",
            "max(<F>, <F>)",
            "ds.min(<F>, <F>, 0.3)",
            "(<F>) ** 3",
        ),
        *(
            "ds.select(<B>, <F>, <F>)",
            "ds.stop_grad(<F>) * <F>",
            "(<V3>).dot(<V3>)",
            "(<V2>).norm(0.1)",
        ),
        *("(<V2>).cross(<V2>)", "(<V3>).sum()", "(<V3>).max()", "(<V3>).norm_sqr()", "(<V3>)[<3>]"),
        *(
            "(<M>)[<2>, <2>]",
            "(<M>).trace()",
            "(<M>).determinant()",
            "(<S>).size(<F>)",
            "tm.mix(<F>, <F>, <.F>)",
        ),
        *("tm.clamp(<F>, -0.4, <F>)", "tm.length(<V3> + 0.01)", "<I> * <F>", "<F> * (<B>)"),
        *("ds.atan2(<F>, 1.1 + (<F>) ** 2)", "(<F> - <I>)"),
    ),
    "I": (
        *(
            "(<I> + <I>)",
            "(<I> - <I>)",
            "(<I> // 2)",
            "(<I> // -3)",
            "(<I> % 3)",
            "(<I> % -2)",
            "max(<I>, <I>)",
        ),
        *("(<I> & 3)", "(<I> >> 1)", "abs(<I>)", "int(<F>)", "-<I>"),
    ),
    "V2": (
        *_TENSORS,
        *(
            "v2(<F>, <F>)",
            "((<M>) @ (<V2>))",
            "(<M>)[<2>]",
            "(<V3>)[1:]",
            "(<V3>)[::2]",
            "(<V2>).normalized(0.3)",
        ),
        *("(<V2>).yx", "(<M>)[0, :]", "((<V2>) @ (<M>))"),
    ),
    "V3": (
        *_TENSORS,
        *("(<V3>).cross(<V3>)", "(<V3>).zyx", "(<V3>).xxy", "v3(<V2>, <F>)", "v3(<F>, <V2>)"),
        *("tm.reflect(<V3>, <V3>)", "ds.Vector([<F>, <F>, <F>])"),
        "ds.Vector([(<V3>)[j] * <.F> for j in ds.static(range(3))])",
    ),
    "M": (
        *_TENSORS,
        *(
            "((<M>) @ (<M>))",
            "(<M>).transpose()",
            "(<V2>).outer_product(<V2>)",
            "ds.Matrix.cols([<V2>, <V2>])",
        ),
        *(
            "(ds.Matrix.identity(ds.f64, 2) * 3.0 + ds.sin(<M>)).inverse()",
            "ds.Matrix.rows([<V2>, <V2>])",
        ),
    ),
    "S": ("Part(a=<F>, v=<V3>, k=<I>, q=<Q>)", "Part(v=<V3>)", "Part(q=<Q>, a=<F>)", "<.S>"),
    "Q": ("Inner(m=<M>, s=<F>)", "Inner(s=<F>)", "<.Q>"),
}
"""Templates by kind, F a float, I an integer, B a condition, S and Q structs; `<3>` is an index below 3."""


class Scope:
    """What may be used where the text goes on: names by kind; those that may not be assigned."""

    def __init__(self, fields=True):
        self.names = {k: [] for k in ("F", "I", "B", "V2", "V3", "M", "S", "Q")}
        self.fixed = set()
        self.index = None
        self.modes = {}
        self.fields = fields
        self.outer = []

    def add(self, kind, name):
        self.names[kind].append(name)

    def inner(self):
        return self

    def __enter__(self):
        self.outer.append(({k: list(v) for k, v in self.names.items()}, self.index))

    def __exit__(self, *problem):
        self.names, self.index = self.outer.pop()


# ---- running a program, in both ways


class Invalid(Exception):
    """The program makes no sense: its numbers leave all bounds, or Python refuses it."""


def start(seed):
    """The inputs, the direction of the derivative, and the weights of the outputs: name -> array."""
    rng = np.random.default_rng([11, seed])
    shapes = {"c": (), "u": (3,)}
    for name, shape in SHAPES.items():
        if shape is Struct:
            shapes |= {
                f"{name}.a": (N,),
                f"{name}.v": (N, 3),
                f"{name}.q.m": (N, 2, 2),
                f"{name}.q.s": (N,),
            }
        else:
            shapes[name] = (N, *shape)
    made = [{k: rng.uniform(-1, 1, s) for k, s in shapes.items()} for _ in range(3)]
    return (
        *made,
        rng.integers(0, N, N).astype(np.int32),
        rng.integers(-2, 4, (2, N)).astype(np.int32),
    )


def expected(text, seed, direction=None, second=None):
    """The values at the end, and the derivative of their weighted sum, by dual numbers.

    With a second direction the derivative is a dual number, with the second derivative.
    """
    values, along, weights, at, ks = start(seed)
    direction = along if direction is None else direction
    shim = Shim()
    space = {"ds": shim, "tm": shim.math}
    fields = Fields(space, values, direction, second, at, {"P": ks[0], "Q": ks[1]})
    try:
        tree = ast.fix_missing_locations(ValueSemantics().visit(ast.parse(text)))
        exec(compile(tree, "<oracle>", "exec"), space)
        fields.make(N, SHAPES)
        space["main"]()
        end, slope = {}, 0.0
        for k, w in weights.items():
            end[k], rates = numbers_of(fields, k)
            for a, d in zip(w.ravel(), rates, strict=True):
                slope = slope + float(a) * d
    except (ArithmeticError, ValueError, NameError, RecursionError) as e:
        raise Invalid(repr(e)) from None
    if not max(abs(float(slope)), *(np.abs(e).max() for e in end.values())) < 1e6:
        raise Invalid("numbers out of bounds")
    ends = {k: np.array([p.k for p in space[k].cells]) for k in "PQ"}
    return end, slope, ends


def run(text, seed, in_place="save", **options):
    """The same by diffsim; or the AutodiffError of a refusal."""
    values, direction, weights, _, _ = start(seed)
    ds.init(default_fp=ds.f64, **options)
    space, field = placed(text, seed)
    try:
        with ds.Tape(in_place=in_place) as tape:
            space["main"]()
        end = {k: field(k).to_numpy() for k in values}
        ints = {k: space[k].k.to_numpy() for k in "PQ"}
        tape.backward(grads={field(k): w for k, w in weights.items() if k in _touched(tape, field)})
    except AutodiffError as e:
        return e
    left = {k: w for k, w in weights.items() if k not in _touched(tape, field)}
    slope = sum((field(k).grad.to_numpy() * direction[k]).sum() for k in values if k not in left)
    slope += sum((left[k] * direction[k]).sum() for k in left)
    return end, slope, ints


def placed(text, seed):
    """The names of a program, with fields that hold the inputs, and a function from a name to its field."""
    values, _, _, at, ks = start(seed)
    file = f"<program {seed} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, "tm": ds.math}
    exec(compile(text, file, "exec"), space)
    for name, shape in SHAPES.items():
        if shape is Struct:
            space[name] = space["Part"].field(shape=N, needs_grad=True)
        elif shape == ():
            space[name] = ds.field(ds.f64, N, needs_grad=True)
        else:
            maker = ds.Vector if len(shape) == 1 else ds.Matrix
            space[name] = maker.field(*shape, dtype=ds.f64, shape=N, needs_grad=True)
    space["c"] = ds.field(ds.f64, (), needs_grad=True)
    space["u"] = ds.Vector.field(3, ds.f64, (), needs_grad=True)
    space["at"] = ds.field(ds.i32, N)
    space["at"].from_numpy(at)
    for name, numbers in zip("PQ", ks, strict=True):
        space[name].k.from_numpy(numbers)

    def field(name):
        head, *rest = name.split(".")
        found = space[head]
        for member in rest:
            found = getattr(found, member)
        return found

    for k, a in values.items():
        field(k).from_numpy(a)
    return space, field


def _touched(tape, field):
    names = list(start(0)[0])
    known = list(tape.gradients)
    return [k for k in names if any(field(k) is f for f in known)]


def verdict(text, seed, in_place="save", **options):
    """ "right", "refused", "invalid", or what is wrong."""
    try:
        with np.errstate(all="ignore"):
            end, slope, ints = expected(text, seed)
    except Invalid:
        return "invalid"
    found = run(text, seed, in_place, **options)
    if isinstance(found, AutodiffError):
        return "refused"
    got, got_slope, got_ints = found
    for k in ints:
        if (ints[k] != got_ints[k]).any():
            return f"value of {k}.k: {got_ints[k].tolist()} instead of {ints[k].tolist()}"
    for k in end:
        if not np.allclose(got[k], end[k], rtol=1e-9, atol=1e-9):
            return f"value of {k}: {got[k].tolist()} instead of {end[k].tolist()}"
    if not math.isclose(got_slope, slope, rel_tol=1e-7, abs_tol=1e-7):
        return f"derivative: {got_slope} instead of {slope}"
    return "right"


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


__all__ = ["Tensor", "expected", "make", "run", "verdict"]
