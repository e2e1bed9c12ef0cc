"""Random programs of several kernels and of Python between them, as text, and what a right run of one is.

Fields: `x`, `y`, `z` of 4 numbers; `m` of 3 rows of 4; `v` of 4 vectors; `s` of one number; `c` of one, only
given to kernels in place of a number; `at` of whole numbers; `h` of 4, to which `heard` adds wherever an
expression may stand, also in conditions. Statements at kernel level read and write `h` themselves, and so
tell in which order that is done. Wide programs (`wide.py`) have longer rows, and
planes `u`. Kernels keep to what has one meaning in any order of lanes: a parallel loop reads of what it
writes its own element only, and what it adds to it does not read. Steps of `main` launch kernels, in loops,
in rollouts with checkpoints, in blocks without gradients; write from Python; copy fields. Each tape is
replayed too, if it can be, and once more from a file.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import math
import pathlib
import re
import tempfile
from random import Random

import numpy as np

import diffsim as ds
from diffsim.ad.recorder import TapeRecorder
from diffsim.errors import AutodiffError, DiffsimError, KernelSyntaxError
from diffsim.runtime.session import session
from tests.fuzz.duals import Cell, Dual, Shim, Vec, rows_named, step

N, ROWS = 4, 3
PLANES, HEIGHT = 4, 6  # of u, in wide programs

TURNS = ("", "repeated: ", "with a launch between: ", "without it again: ")
"""How often a program is recorded by one line, one after the other."""
AGAIN = ("replayed ", "from a file ")


def shapes(n):
    """The shape of each field that is differentiated, where rows have n elements."""
    found = {
        "x": (n,),
        "y": (n,),
        "z": (n,),
        "m": (ROWS, n),
        "v": (n,),
        "s": (),
        "c": (),
        "h": (n,),
    }
    return found if n == N else {**found, "u": (PLANES, HEIGHT, n)}


HEARD = """@ds.func
def heard(k, q):
    h[k] += 0.2 * q * q
    return q
"""


class Maker:
    """Writes a program."""

    turns = "at[i]"
    hows = (
        "snapshots=1",
        "snapshots=2",
        'schedule="equidistant"',
        "memory=4000",
        'schedule="binomial", snapshots=2',
        "snapshots=2, while_=lambda t: t < 3",
        "snapshots=1, disk=True",
    )

    def __init__(self, seed, n=N):
        self.r = Random(seed)
        self.n = n
        self.lines = []
        self.kernels = []
        self.names = itertools.count()

    def text(self):
        for _ in range(self.r.randint(1, 4)):
            self.kernel()
        begins = self.r.random() < 0.4
        if begins:
            self.put(0, "def begin():")
            for _ in range(self.r.randint(1, 4)):
                self.put_in(1)
        self.put(0, "def main():")
        if begins:
            self.put(1, "begin()")
        for _ in range(self.r.randint(1, 6)):
            self.step(1)
        text = "\n".join(self.lines) + "\n"
        return HEARD + text if "heard(" in text else text

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def pick(self, *things):
        return things[self.r.randrange(len(things))]

    def number(self):
        return str(round(self.r.uniform(-1.3, 1.3), 2))

    # ---- kernels

    def kernel(self):
        name = f"k{len(self.kernels)}"
        takes_row = self.r.random() < 0.4
        self.kernels.append((name, takes_row))
        self.put(0, "@ds.kernel")
        self.put(0, f"def {name}({'t: ds.i32, ' if takes_row else ''}a: ds.f64):")
        self.row = ["t"] if takes_row else []
        for _ in range(self.r.randint(1, 3)):
            self.pick(*self.pieces())()

    def pieces(self):
        """What a kernel is made of."""
        rare = self.scatter, self.serial, self.recurrence, self.renumber
        return self.map, self.map, self.map, *rare

    def map(self):
        """Each turn writes its own elements."""
        r = self.r
        targets = r.sample(["x", "y", "z", "v", "m"], r.randint(1, 2))
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(own=targets, index="i", floats=["a"])
        self.body(2, r.randint(0, 3))
        for t in targets:
            self.write(2, t, self.pick("=", "=", "+=", "*="))

    def scatter(self):
        """Turns add to elements of others, which nobody reads."""
        target = self.pick("x", "y", "s", "v")
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(hidden=[target], index="i", floats=["a"])
        self.body(2, self.r.randint(0, 2))
        value = self.vec(2) if target == "v" else self.expr(2)
        place = "s[None]" if target == "s" else f"{target}[{self.index()}]"
        if target != "v" and self.r.random() < 0.3:
            self.put(2, f"ds.atomic_{self.pick('max', 'min')}({place}, {value})")
        else:
            self.put(2, f"{place} {self.pick('+=', '+=', '-=')} {value}")

    def serial(self):
        """Statements at kernel level."""
        self.scope = Scope(index=str(self.r.randrange(self.n)), floats=["a"])
        self.put(1, f"if a < 9.0 and {self.condition()}:")  # never known before the launch
        heard = self.r.random() < 0.4
        if heard:
            self.scope.own = ["h"]
        self.body(2, self.r.randint(0, 2))
        target = "h" if heard else self.pick("x", "y", "z", "s", "v")
        self.write(2, target, self.pick("=", "+=", "*="))

    def renumber(self):
        """Other whole numbers, some of which depend on what is differentiated."""
        self.put(1, f"for i in range({self.n}):")
        self.scope = Scope(index="i", floats=["a"], hidden=["at"])
        far = f"ds.cast(7.0 * abs({self.expr(1)}), ds.i32)"
        step = self.pick("1", "i", far, far)
        self.put(2, f"at[i] = (at[i] + {step}) % {self.n}")

    def recurrence(self):
        """A loop in order, that reads what it wrote."""
        f = self.pick("x", "y", "z")
        self.put(1, "ds.loop_config(serialize=True)")
        self.put(1, f"for i in range({self.n - 1}):")
        self.scope = Scope(index="i", floats=["a"])
        self.body(2, self.r.randint(0, 2))
        self.put(2, f"{f}[i + 1] = {self.expr(1)} + 0.7 * {f}[i]")

    def body(self, depth, n):
        for _ in range(n):
            self.pick(self.local, self.local, self.change, self.branch, self.loop, self.spin)(depth)

    def local(self, depth):
        name = f"q{next(self.names)}"
        if self.r.random() < 0.3:
            self.put(depth, f"{name} = {self.vec(2)}")
            self.scope.vecs.append(name)
        else:
            self.put(depth, f"{name} = {self.expr(2)}")
            self.scope.floats.append(name)

    def change(self, depth):
        own = [f for f in self.scope.floats if f != "a"]
        if own:
            self.put(depth, f"{self.pick(*own)} {self.pick('=', '+=', '*=')} {self.expr(2)}")
        elif self.scope.vecs:
            p = self.pick(*self.scope.vecs)
            self.put(depth, f"{p}{self.pick('.x', '.y', '[0]', '[1]')} = {self.expr(1)}")
        else:
            self.local(depth)

    def branch(self, depth):
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.put(depth, f"if {self.condition()}:")
        self.change(depth + 1)
        self.scope.floats, self.scope.vecs = list(floats), list(vecs)
        if self.r.random() < 0.5:
            self.put(depth, "else:")
            self.change(depth + 1)
            self.scope.floats, self.scope.vecs = floats, vecs

    def loop(self, depth):
        """A counted loop that carries a local, perhaps left early."""
        name, k = f"q{next(self.names)}", f"n{next(self.names)}"
        self.put(depth, f"{name} = {self.expr(1)}")
        self.put(
            depth,
            f"for {k} in range({self.pick('2', '3', self.turns if self.scope.index == 'i' else '2')}):",
        )
        self.scope.floats.append(name)
        self.scope.ints.append(k)
        if self.r.random() < 0.3:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, self.pick("break", "continue"))
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        if self.r.random() < 0.4:
            self.change(depth + 1)
        new = self.expr(1)
        replaced = (
            f"ds.min({name}, {new})",
            f"ds.max({new}, {name})",
            f"{new} if {self.condition()} else {name}",
        )
        computed = f"ds.sin({name}) * {new} + {self.number()}"
        self.put(depth + 1, f"{name} = {self.pick(computed, computed, *replaced)}")
        self.scope.floats, self.scope.vecs = floats, vecs
        self.scope.ints.remove(k)

    def spin(self, depth):
        """A while loop with a whole number that it counts, and uses as an index."""
        name, k = f"q{next(self.names)}", f"n{next(self.names)}"
        self.put(depth, f"{name} = {self.expr(1)}")
        self.put(depth, f"{k} = 0")
        test = self.pick(name, name, f"heard({self.index()}, {name})")
        self.put(depth, f"while {k} < {self.pick(2, 3)} and {test} < 2.0:")
        self.scope.floats.append(name)
        self.scope.ints.append(k)
        self.put(depth + 1, f"{name} = {name} * {self.expr(1)} + 0.6")
        self.put(depth + 1, f"{k} += 1")
        self.scope.ints.remove(k)

    def write(self, depth, target, how):
        i = self.scope.index
        if target == "v":
            value = self.vec(2)
            self.put(depth, f"v[{i}] {'+=' if how == '+=' else '='} {value}")
            return
        place = {"s": "s[None]", "m": f"m[{self.a_row()}, {i}]"}.get(target, f"{target}[{i}]")
        self.put(depth, f"{place} {how} {self.expr(2)}")

    def a_row(self):
        self.wrote_row = self.pick(*self.row, "0", "2") if self.row else self.pick("0", "1", "2")
        return self.wrote_row

    # ---- expressions

    def index(self):
        """Any element."""
        i = self.pick(self.scope.index, *self.scope.ints)
        shift = self.r.randrange(self.n)
        at = i if "at" in self.scope.hidden else f"at[{i}]"
        return self.pick(i, i, f"({i} + {shift}) % {self.n}", at, f"{self.n - 1} - {i}")

    def expr(self, depth):
        if depth == 0 or self.r.random() < 0.2:
            return self.leaf()
        a, b = self.expr(depth - 1), self.expr(depth - 1)
        return self.pick(
            f"({a} + {b})",
            f"({a} - 0.5 * {b})",
            f"{a} * {b}",
            f"{a} / (1.5 + {b} ** 2)",
            f"ds.sin({a})",
            f"ds.tanh({a})",
            f"ds.exp(-abs({a}))",
            f"ds.sqrt(1.2 + ({a}) ** 2)",
            f"ds.max({a}, {b})",
            f"ds.min({a}, 0.3)",
            f"({a} if {self.condition()} else {b})",
            f"{self.vec(0)}.dot({self.vec(0)})",
            f"ds.stop_grad({a}) * {b}",
            f"heard({self.index()}, {a})",
        )

    def leaf(self):
        s = self.scope
        choices = [self.number(), *s.floats[-4:], *s.floats[-4:]]
        for f in ("x", "y", "z"):
            if f not in s.hidden:
                choices.append(f"{f}[{s.index if f in s.own else self.index()}]")
        if "s" not in s.hidden:
            choices.append("s[None]")
        if "h" in s.own:
            choices += [f"h[{s.index}]", f"h[{s.index}]"]
        if "m" not in (*s.hidden, *s.own):
            choices.append(f"m[{self.pick(*self.row, '1')}, {self.index()}]")
        elif "m" in s.own:
            choices.append(f"m[{self.pick(*self.row, '1')}, {s.index}]")
        if "v" not in s.hidden:
            choices.append(f"v[{s.index if 'v' in s.own else self.index()}].{self.pick('x', 'y')}")
        choices += [f"{p}{self.pick('.x', '[1]')}" for p in s.vecs[-2:]]
        return self.pick(*choices)

    def vec(self, depth):
        s = self.scope
        if depth == 0 or self.r.random() < 0.3:
            if "v" in s.hidden:
                return f"ds.Vector([{self.leaf()}, {self.leaf()}])"
            return f"v[{s.index if 'v' in s.own else self.index()}]"
        return self.pick(
            f"ds.Vector([{self.expr(depth - 1)}, {self.expr(depth - 1)}])",
            f"({self.vec(depth - 1)} + {self.vec(depth - 1)})",
            f"({self.vec(depth - 1)} - {self.vec(0)})",
            f"({self.vec(depth - 1)} * {self.expr(1)})",
        )

    def condition(self):
        i = self.pick(self.scope.index, *self.scope.ints)
        return self.pick(
            f"{self.expr(1)} > {self.number()}",
            f"{self.leaf()} < {self.number()}",
            f"{i} % 2 == 0",
            f"({self.leaf()} > 0.0 and {i} < 2)",
        )

    # ---- the program around the kernels

    def launch(self, row=None):
        name, takes_row = self.pick(*self.kernels)
        at = f"{row or self.r.randrange(ROWS)}, " if takes_row else ""
        return f"{name}({at}{self.pick(self.number(), self.number(), 'c')})"

    def put_in(self, depth):
        """Python sets an input."""
        f, i = self.pick("x", "y", "z"), self.r.randrange(self.n)
        count = self.r.randint(1, self.n - 1)
        self.put(
            depth,
            self.pick(
                f"{f}[{i}] = {self.number()}",
                f"m[{self.r.randrange(ROWS)}, {i}] = {self.number()}",
                f"m.fill({self.number()})",
                f"{self.pick('s', 'c')}[None] = {self.number()}",
                f"v[{i}] = ds.Vector([{self.number()}, {self.number()}])",
                f"{self.pick(f, 'm', 'v', 's', 'h')}.fill({self.number()})",
                f"{f}.from_numpy(0.5 * b.to_numpy())",
                f"{f}.copy_from(b)",
                f"ds.copy({f}, b, src_offset={self.n - count}, count={count})",
            ),
        )

    def step(self, depth):
        roll = self.r.random()
        if self.r.random() < 0.1:
            self.put_in(depth)
            return
        f, g = self.r.sample(["x", "y", "z"], 2)
        if roll < 0.45 or depth > 2:
            self.put(depth, self.launch())
        elif roll < 0.6:
            self.put(depth, f"for t in range({self.pick(2, 3)}):")
            for _ in range(self.r.randint(1, 2)):
                self.put(depth + 1, self.launch("t"))
        elif roll < 0.68:
            name = f"roll{next(self.names)}"
            self.put(depth, f"def {name}(t):")
            for _ in range(self.r.randint(1, 2)):
                self.put(depth + 1, self.launch(f"t % {ROWS}"))
            how = self.pick(*self.hows)
            state = f"[{', '.join(shapes(self.n))}, at]"
            self.put(depth, f"ds.ad.checkpoint({name}, {self.r.randint(1, 5)}, {state}, {how})")
        elif roll < 0.76:
            self.put(depth, "with ds.ad.no_grad():")
            self.step(depth + 1)
        elif roll < 0.84:
            place = self.pick(
                f"{f}[{self.r.randrange(self.n)}]", "s[None]", f"m[1, {self.r.randrange(self.n)}]"
            )
            other = f"0.5 * {g}[{self.r.randrange(self.n)}]"
            value = self.pick(self.number(), other, "0.3 * s[None]")
            value = value if "[" not in value else f"ds.stop_grad({value})"
            self.put(depth, f"{place} = {value}")
        elif roll < 0.9:
            self.put(depth, f"{f}.fill({self.number()})")
        elif roll < 0.95:
            self.put(depth, f"{self.pick('ds.copy({0}, {1})', '{0}.copy_from({1})')}".format(f, g))
        else:
            size = self.r.randint(1, 3)
            to, at = (self.r.randint(0, self.n - size) for _ in range(2))
            self.put(depth, f"ds.copy({f}, {g}, dest_offset={to}, src_offset={at}, count={size})")


class Scope:
    """What a loop's body may use.

    Attributes:
        own: fields of which each turn reads and writes its own element only.
        hidden: fields that may not be read.
    """

    def __init__(self, *, own=(), hidden=(), index, floats):
        self.own, self.hidden, self.index = own, hidden, index
        self.floats, self.vecs, self.ints = list(floats), [], []


# ---- running a program, in both ways


def start(seed, n=N):
    """Values of the inputs, and the direction of the derivative."""
    rng = np.random.default_rng([7, seed])
    sizes = {k: (*shape, 2) if k == "v" else shape for k, shape in shapes(n).items()}
    values = {k: rng.uniform(-1, 1, size) for k, size in sizes.items()}
    direction = {k: rng.uniform(-1, 1, size) for k, size in sizes.items()}
    weights = {k: rng.uniform(-1, 1, size) for k, size in sizes.items()}
    return values, direction, weights, rng.integers(0, n, n).astype(np.int32)


class _Updates(ast.NodeTransformer):
    """`x[i] += v`, `ds.atomic_max(x[i], v)` and `v[i].y = s` as calls of the oracle's fields."""

    def visit_Assign(self, node):
        found = _component(node.targets[0])
        return self.generic_visit(node) if found is None else _put(node, *found, node.value)

    def visit_Call(self, node):
        if getattr(node.func, "id", "") == "grow":  # see `constructs.py`
            place, value = node.args
            return self.visit_AugAssign(ast.AugAssign(place, ast.Add(), self.visit(value))).value
        name = getattr(node.func, "attr", "")
        if name not in ("atomic_max", "atomic_min"):
            return self.generic_visit(node)
        place, value = node.args
        best = ast.Attribute(place.value, "best", ast.Load())
        larger = ast.Constant(name == "atomic_max")
        return ast.copy_location(ast.Call(best, [place.slice, value, larger], []), node)

    def visit_AugAssign(self, node):
        t = node.target
        part = []
        if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Subscript):
            t, part = t.value, [ast.Constant("xy".index(t.attr))]
        adds = isinstance(node.op, (ast.Add, ast.Sub))
        found = None if adds else _component(node.target)
        if found is not None:
            place, component = found
            old = ast.Subscript(
                ast.Subscript(place.value, place.slice, ast.Load()), component, ast.Load()
            )
            return _put(node, place, component, ast.BinOp(old, node.op, node.value))
        if not (adds and isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name)):
            return node
        if t.value.id not in (*shapes(0), "loss"):
            return node
        value = node.value
        if isinstance(node.op, ast.Sub):
            value = ast.UnaryOp(ast.USub(), value)
        call = ast.Call(ast.Attribute(t.value, "add", ast.Load()), [t.slice, value, *part], [])
        return ast.copy_location(ast.Expr(call), node)


def _component(target):
    """The element and the component that `v[i].y` or `v[i][1]` names, or None."""
    inner = getattr(target, "value", None)
    if not (isinstance(inner, ast.Subscript) and getattr(inner.value, "id", "") in shapes(0)):
        return None
    if isinstance(target, ast.Attribute):
        return inner, ast.Constant("xy".index(target.attr))
    return inner, target.slice


def _put(node, place, component, value):
    call = ast.Call(
        ast.Attribute(place.value, "put", ast.Load()), [place.slice, component, value], []
    )
    return ast.copy_location(ast.Expr(call), node)


class Invalid(Exception):
    """The program makes no sense: its numbers leave all bounds, or Python refuses it."""


def constants(n):
    """What `b` holds, which has no gradient."""
    return np.linspace(-0.9, 0.8, n)


def expected(text, seed, n=N):
    """The values at the end, the loss and its derivative along the direction, by dual numbers."""
    return oracle(text, seed, start(seed, n)[1], n)[:3]


def sure_direction(text, seed, n=N):
    """The direction, with 0 for elements of which only the tape can say whether they are inputs.

    Those are set from Python in the block, after a kernel that names the field and did not use the element.
    """
    direction = start(seed, n)[1]
    for k, elements in oracle(text, seed, direction, n)[3].items():
        for index in elements:
            direction[k][index] = 0.0
    return direction


def oracle(text, seed, direction, n=N, *, second=None, stores_move=None):
    """The values at the end, the loss, its derivative; and by field what `Cell.unsure` says.

    Args:
        text: the program.
        seed: of the numbers.
        direction: of the derivative.
        n: elements in a row.
        second: a direction too: the derivative is then a dual number, with the second derivative.
        stores_move: along the direction move not only inputs, but also what kernels store in this field.
    """
    values, _, weights, at = start(seed, n)
    shim = Shim()
    shim.stores_move = stores_move
    space = {"ds": shim}
    for k, shape in shapes(n).items():
        moves = {
            i: step(direction[k][i], None if second is None else second[k][i])
            for i in np.ndindex(*shape)
        }
        start_of = Vec if k == "v" else Dual
        made = lambda i, k=k, m=moves, of=start_of: of(values[k][i]) + m[i]  # noqa: E731
        space[k] = Cell(shim, shape, made, moves)
    space["at"] = Cell(shim, (n,), lambda i: int(at[i]))
    space["b"] = Cell(shim, (n,), lambda i: Dual(constants(n)[i]), constant=True)
    shim.fields = {k: space[k] for k in values}
    try:
        shim.rows = rows_named(ast.parse(text), [k for k, s in shapes(n).items() if len(s) > 1])
        tree = ast.fix_missing_locations(_Updates().visit(ast.parse(text)))
        exec(compile(tree, "<oracle>", "exec"), space)
        space["main"]()
        end, loss = _weighed({k: space[k] for k in values}, weights)
    except (
        ArithmeticError,
        ValueError,
        NameError,
        TypeError,
        AttributeError,
        KeyError,
        SyntaxError,
    ) as e:
        raise Invalid(repr(e)) from None
    largest = max(abs(float(loss)), abs(float(loss.d)), *(np.abs(e).max() for e in end.values()))
    if not largest < 1e6:
        raise Invalid("numbers out of bounds")
    return end, float(loss), loss.d, {k: space[k].unsure for k in values}


def _weighed(cells, weights):
    """The values of fields at the end, and the loss."""
    loss, end = Dual(0.0), {}
    for k, cell in cells.items():
        rows = [c.e if isinstance(c, Vec) else [c] for c in cell.at.values()]
        flat = [c for row in rows for c in row]
        end[k] = np.array([float(c) for c in flat]).reshape(weights[k].shape)
        for c, w in zip(flat, weights[k].ravel(), strict=True):
            loss = loss + c * w
    return end, loss


def run(
    text,
    seed,
    in_place,
    n=N,
    single=False,
    direction=None,
    before=False,
    lent=(),
    retain_grad=None,
    **options,
):
    """The same by diffsim, by a replay of its tape, and by its file; or the AutodiffError of a refusal.

    Args:
        text: the program.
        seed: of the numbers.
        in_place: what the tape does about what is overwritten; None: what the rules say.
        n: elements in a row.
        single: compute with f32.
        direction: of the derivative, if it is not that of the seed.
        before: whether `begin`, which sets inputs, is called before the block.
        lent: names of fields without a gradient of their own.
        retain_grad: the name of a field whose gradient is retained.
        options: of `ds.init`.
    """
    values, along, weights, _ = start(seed, n)
    direction = along if direction is None else direction
    fp = ds.f32 if single else ds.f64
    if single:
        text = text.replace("ds.f64", "ds.f32")
        values = {k: a.astype(np.float32) for k, a in values.items()}
    ds.init(default_fp=fp, **options)
    at = start(seed, n)[3]
    space, fields = placed(text, seed, n, fp, lent)
    if before:
        space["begin"]()
        space["begin"] = int
        values = {k: fields[k].to_numpy() for k in values}
    sums = {}
    for k in values:
        w = ds.field(fp, weights[k].shape)
        w.from_numpy(weights[k].astype(fp.numpy))
        sums[k] = w
    ends = weigh(fields, sums)
    found = []

    def look():
        slope = sum(
            (fields[k].grad.to_numpy() * direction[k]).sum() for k in values if k not in lent
        )
        found.append((final, fields["loss"][None], slope))

    how = {"in_place": in_place} if in_place else {}
    if retain_grad:
        how["retain_grad"] = [fields[retain_grad]]
    try:
        # The same line again: the second recording repeats the first, the third leaves it somewhere.
        for turn in TURNS:
            for k in values:
                fields[k].from_numpy(values[k])
            fields["at"].from_numpy(at)
            space["main"].__globals__.update(interrupted(space, turn, seed, fp))
            with ds.Tape(fields["loss"], **how) as tape:
                space["main"]()
                for end in ends:
                    end()
            final = {k: fields[k].to_numpy() for k in values}
            look()
        for k in values:
            fields[k].from_numpy(values[k])
        fields["at"].from_numpy(at)
        with contextlib.suppress(AutodiffError):  # what cannot be replayed
            tape.replay()
            tape.backward()
            final = {k: fields[k].to_numpy() for k in values}
            look()
            for k in values:
                fields[k].from_numpy(values[k])
            fields["at"].from_numpy(at)
            found.append(from_file(tape, fields, values, direction, lent))
    except AutodiffError as e:
        return e
    except KernelSyntaxError as e:  # of an update that is atomic and would read too late
        if "give the value a name first" in str(e):
            return e
        raise
    return found


def placed(text, seed, n=N, fp=ds.f64, lent=(), half=()):
    """The names of a program, and its fields, which hold the inputs; those of `half` are of f16."""
    values, _, _, at = start(seed, n)
    types = {k: ds.f16 if k in half else fp for k in values}
    fields = {
        k: ds.field(types[k], s, needs_grad=k not in lent) for k, s in shapes(n).items() if k != "v"
    }
    fields["loss"] = ds.field(fp, (), needs_grad=True)
    fields["v"] = ds.Vector.field(2, types["v"], n, needs_grad="v" not in lent)
    fields["at"] = ds.field(ds.i32, n)
    fields["at"].from_numpy(at)
    fields["b"] = ds.field(fp, n)
    fields["b"].from_numpy(constants(n).astype(fp.numpy))
    for k in values:
        fields[k].from_numpy(values[k].astype(types[k].numpy))
    file = f"<program {seed} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, **fields}
    exec(compile(text, file, "exec"), space)
    return space, fields


def interrupted(space, turn, seed, fp):
    """The kernels of a program, one call of which launches another kernel before: not in the first turns."""
    kernels = {name: k for name, k in space.items() if name[0] == "k" and name[1:].isdigit()}
    if turn != TURNS[2]:
        return {name: getattr(k, "uninterrupted", k) for name, k in kernels.items()}
    aside, calls = ds.field(fp, ()), [seed % 7]

    @ds.kernel
    def write_aside():
        aside[None] += 1.0

    def wrapped(kernel):

        def call(*args):
            # Steps of rollouts run again, on the way back too, and must do the same.
            if session.tape.__class__ is TapeRecorder and not session.passes:
                calls[0] -= 1
                if calls[0] == 0:
                    write_aside()
            return kernel(*args)

        call.uninterrupted = kernel
        return call

    return {name: wrapped(k) for name, k in kernels.items()}


def weigh(fields, weights):
    x, y, z, m, v, s, c, h, loss = (fields[k] for k in (*shapes(N), "loss"))
    wx, wy, wz, wm, wv, ws, wc, wh = (weights[k] for k in shapes(N))

    @ds.kernel(simplicity="relaxed")
    def weigh():
        for i in x:
            loss[None] += wx[i] * x[i] + wy[i] * y[i] + wz[i] * z[i]
            loss[None] += wv[i, 0] * v[i].x + wv[i, 1] * v[i].y + wh[i] * h[i]
        for i, j in m:
            loss[None] += wm[i, j] * m[i, j]
        loss[None] += ws[None] * s[None] + wc[None] * c[None]

    if "u" not in fields:
        return [weigh]
    u, wu = fields["u"], weights["u"]

    @ds.kernel
    def weigh_planes():
        for i in ds.grouped(u):
            loss[None] += wu[i] * u[i]

    return [weigh, weigh_planes]


def lifted(text, seed):
    """The verdict on a program as one who knows no rules writes it, with the rules lifted."""
    r = Random(seed)
    # A copy of a field without gradient sets an input, which the oracle knows of constant fields alone.
    copied = set(re.findall(r"copy_from\((\w+)|copy\(\w+, (\w+)|clone\((\w+)", text))
    sources = {name for names in copied for name in names}
    lent = [k for k in start(seed)[0] if r.random() < 0.3 and k not in sources]
    return verdict(text, seed, None, lent=lent, rules="lifted")


def from_file(tape, fields, values, direction, lent):
    """The same by the tape in a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "tape.npz")
        tape.save(file)
        loaded = ds.load_tape(file)
    loaded.replay()
    loaded.backward()
    there = {k: loaded.fields.get(fields[k].name, fields[k]) for k in values}
    slope = sum(
        (there[k].grad.to_numpy() * direction[k]).sum()
        for k in values
        if k not in lent and there[k] is not fields[k]
    )
    return {k: f.to_numpy() for k, f in there.items()}, loaded.loss[None], slope


def verdict(text, seed, in_place, n=N, single=False, lent=(), **options):
    """ "right", "refused", "invalid", or what is wrong; the arguments are those of `run`."""
    options["lent"] = lent
    try:
        with np.errstate(all="ignore"):
            direction = sure_direction(text, seed, n)
            for k in lent:
                direction[k] = np.zeros_like(direction[k])
            end, loss, slope, _ = oracle(text, seed, direction, n)
    except Invalid:
        return "invalid"
    found = run(text, seed, in_place, n, single, direction, **options)
    if isinstance(found, DiffsimError):
        return "refused"
    ways = list(zip((*TURNS, *AGAIN), found, strict=False))
    if "begin()" in text:
        found = run(text, seed, in_place, n, single, direction, before=True, **options)
        if isinstance(found, DiffsimError):
            return f"refused only where inputs are set before the block: {found}"
        ways += zip((f"set before: {turn}" for turn in (*TURNS, *AGAIN)), found, strict=False)
    near, near_slope = (1e-3, 1e-2) if single else (1e-9, 1e-7)
    for replayed, (final, got_loss, got_slope) in ways:
        for k in end:
            if not np.allclose(final[k], end[k], rtol=near, atol=near):
                return f"{replayed}value of {k}: {final[k].tolist()} instead of {end[k].tolist()}"
        if not math.isclose(got_loss, loss, rel_tol=near, abs_tol=near):
            return f"{replayed}loss: {got_loss} instead of {loss}"
        if not math.isclose(got_slope, slope, rel_tol=near_slope, abs_tol=near_slope):
            return f"{replayed}derivative: {got_slope} instead of {slope}"
    return "right"


def make(seed):
    """The program of this number."""
    return Maker(seed).text()
