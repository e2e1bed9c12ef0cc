"""The oracle: a program of fields and kernels, run by Python itself with dual numbers.

A kernel's source is Python, so `exec` runs it, with fields that hold `Dual`s: a value and its derivative
along one direction. Where both are dual numbers themselves, along a second direction, they make second
derivatives. Nothing of diffsim's compiler or tapes takes part.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import math
import re
import types

import numpy as np

_ROW = re.compile(r"t( [+-] \d+)?|\d+")


def _clear(a, b):
    """True; a comparison that rounding decides has no one meaning."""
    if 0 < abs(a - b) < 1e-11:
        raise ArithmeticError("a tie but for rounding")
    return True


def _number(operator):
    """An operator of duals and numbers; what else there is knows itself what to do."""

    @functools.wraps(operator)
    def apply(self, o):
        return operator(self, dual(o)) if isinstance(o, (Dual, int, float)) else NotImplemented

    return apply


class Dual:
    """A number and its derivative; in second derivatives, dual numbers themselves."""

    __slots__ = ("d", "v")

    def __init__(self, v, d=0.0):
        self.v = v if v.__class__ is Dual else float(v)
        self.d = d if d.__class__ is Dual else float(d)

    @_number
    def __add__(self, o):
        return Dual(self.v + o.v, self.d + o.d)

    __radd__ = __add__

    def __neg__(self):
        return Dual(-self.v, -self.d)

    @_number
    def __sub__(self, o):
        return self + (-o)

    @_number
    def __rsub__(self, o):
        return o - self

    @_number
    def __mul__(self, o):
        if abs(self.v) > 1e60:
            raise OverflowError
        return Dual(self.v * o.v, self.d * o.v + self.v * o.d)

    __rmul__ = __mul__

    @_number
    def __truediv__(self, o):
        return Dual(self.v / o.v, (self.d * o.v - self.v * o.d) / o.v**2)

    @_number
    def __rtruediv__(self, o):
        return o / self

    def __pow__(self, n):
        if isinstance(n, float):
            return Dual(self.v**n, n * self.v ** (n - 1) * self.d)
        made = self
        for _ in range(n - 1):
            made = made * self
        return made

    def __abs__(self):
        return -self if self.v < 0 else self

    @_number
    def __lt__(self, o):
        return _clear(self.v, o.v) and self.v < o.v

    @_number
    def __gt__(self, o):
        return _clear(self.v, o.v) and self.v > o.v

    def __bool__(self):
        return self.v != 0

    def __float__(self):
        return float(self.v)

    def __int__(self):
        return int(self.v)


def dual(x):
    return x if isinstance(x, Dual) else Dual(x)


def constant(x):
    """The number without any derivative."""
    return Dual(float(x))


def alike(a, b):
    """Whether two numbers have the same derivatives."""
    if isinstance(a, Dual) or isinstance(b, Dual):
        a, b = dual(a), dual(b)
        return alike(a.v, b.v) and alike(a.d, b.d)
    return a == b


def _of(f, slope):
    """A function of dual numbers, by one of numbers and its slope at x, where it is y."""

    def apply(x):
        if not isinstance(x, Dual):
            return f(x)
        y = apply(x.v)
        return Dual(y, slope(x.v, y) * x.d)

    return apply


sin = _of(math.sin, lambda x, y: cos(x))
cos = _of(math.cos, lambda x, y: -sin(x))
tanh = _of(math.tanh, lambda x, y: 1 - y * y)
exp = _of(math.exp, lambda x, y: y)
sqrt = _of(math.sqrt, lambda x, y: 0.5 / y)


def step(along, second=None):
    """A small step along a direction, and along a second one if there is one."""
    if np.ndim(along):
        seconds = [None] * len(along) if second is None else second
        return Vec(step(a, b) for a, b in zip(along, seconds, strict=True))
    return Dual(0.0, along) if second is None else Dual(Dual(0.0, second), Dual(along))


class Vec:
    """A vector of duals; arithmetic makes new ones."""

    def __init__(self, entries):
        self.e = [dual(x) for x in entries]

    x = property(lambda self: self.e[0], lambda self, v: self.e.__setitem__(0, dual(v)))
    y = property(lambda self: self.e[1], lambda self, v: self.e.__setitem__(1, dual(v)))

    def __getitem__(self, k):
        return self.e[k]

    def __setitem__(self, k, v):
        self.e[k] = dual(v)

    def __add__(self, o):
        return Vec(a + b for a, b in zip(self.e, o.e, strict=True))

    def __sub__(self, o):
        return Vec(a - b for a, b in zip(self.e, o.e, strict=True))

    def __mul__(self, o):
        return Vec(a * o for a in self.e)

    __rmul__ = __mul__

    def __neg__(self):
        return Vec(-a for a in self.e)

    def dot(self, o):
        return self.e[0] * o.e[0] + self.e[1] * o.e[1]

    def copy(self):
        return Vec(self.e)


def copied(x):
    return x.copy() if isinstance(x, Vec) else x


def on_duals(f):
    """The same function, whose result is a dual number in any case."""
    return lambda x: f(dual(x))


class Shim:
    """Stands for the module diffsim while a program runs."""

    def __init__(self):
        self.depth = 0  # of kernels that run
        self.detached = 0
        self.stores_move = None  # the field whose stored values move along its direction
        self.fields = {}  # by name
        self.rows = {}  # by kernel, those of a field that it names, as functions of its first argument
        self.f64, self.i32, self.i64 = float, int, int
        self.dataclass = dataclasses.dataclass
        self.sin, self.cos, self.tanh = on_duals(sin), on_duals(cos), on_duals(tanh)
        self.exp, self.sqrt = on_duals(exp), on_duals(sqrt)
        self.Vector = Vec
        self.ad = types.SimpleNamespace(no_grad=self._no_grad, checkpoint=self._checkpoint)

    @staticmethod
    def max(a, b):
        return dual(a) if not dual(a) < b else dual(b)

    @staticmethod
    def min(a, b):
        return dual(a) if not dual(a) > b else dual(b)

    def stop_grad(self, x):
        return constant(x)

    def bit_cast(self, x, t):
        """There and back again: the number itself, which is a constant."""
        return x

    def cast(self, x, t):
        return t(float(x) if isinstance(x, Dual) and t is int else x)

    def ndrange(self, *sizes):
        return itertools.product(*(range(*s) if isinstance(s, tuple) else range(s) for s in sizes))

    def static(self, x):
        return x

    def loop_config(self, **options):
        pass

    def func(self, f):
        return f

    def func_grad(self, f):
        return lambda given: given

    def kernel(self, f=None, **options):
        if f is None:
            return lambda g: self.kernel(g)

        def launch(*args):
            rows = self.rows.get(f.__name__, {})
            names = [name for name in names_in(f.__code__) if name not in rows]
            self.mention([*names, *(["h"] if "heard" in names else [])])
            for name, of in rows.items():
                self.fields[name].named_rows |= {(row(args[0]),) for row in of}
            for a in args:
                if isinstance(a, Cell):
                    a.named = True
            self.depth += 1
            try:
                return f(*(a[None] if isinstance(a, Cell) else a for a in args))
            finally:
                self.depth -= 1

        return launch

    def mention(self, names):
        """A launch may use these fields."""
        for name in names:
            if name in self.fields:
                self.fields[name].named = True

    def copy(self, target, source, dest_offset=0, src_offset=0, count=None):
        places = [(k,) for k in range(source.shape[0])] if count is None else None
        target.take(
            source,
            places or [(dest_offset + k,) for k in range(count)],
            places or [(src_offset + k,) for k in range(count)],
        )

    def _no_grad(self):
        @contextlib.contextmanager
        def block():
            self.detached += 1
            yield
            self.detached -= 1

        return block()

    def _checkpoint(self, step, n, state, **options):
        for cell in state:
            cell.named = True
        for t in range(n):
            if not options.get("while_", lambda t: True)(t):
                break
            step(t)


def rows_named(tree, fields):
    """For each kernel of a program the fields that it names by rows `t + k` or `k` alone: `Shim.rows`."""
    found = {}
    for f in ast.walk(tree):
        if not isinstance(f, ast.FunctionDef) or not f.decorator_list:
            continue
        for name in fields:
            named = [x for x in ast.walk(f) if isinstance(x, ast.Name) and x.id == name]
            firsts = [
                ast.unparse(x.slice.elts[0])
                for x in ast.walk(f)
                if isinstance(x, ast.Subscript) and x.value in named
            ]
            if named and len(named) == len(firsts) and all(_ROW.fullmatch(i) for i in firsts):
                made = [eval(f"lambda t: {i}") for i in set(firsts)]
                found.setdefault(f.name, {})[name] = made
    return found


def names_in(code):
    """The global names in a function's code, and in its comprehensions, which have code of their own."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return [*code.co_names, *itertools.chain.from_iterable(map(names_in, inner))]


class Cell:
    """A field of duals, vectors of them, or whole numbers.

    What Python sets before it was used is an input, and moves along the direction as what was set before.

    Attributes:
        moves: by index, what an input moves by: a `step`.
        constant: whether it has no gradient.
        named, named_rows: whether something before may use it, or only some of its rows, as far as its
            text tells.
        used: the elements that something wrote or copied (a kernel may read one for nothing).
        unsure: those that Python set, unused, when the field was named: whether they count as inputs
            is for the tape to say.
    """

    def __init__(self, shim, shape, make, moves=None, constant=False):
        self.shim = shim
        self.shape = shape
        self.moves = moves
        self.constant = constant
        self.named, self.named_rows, self.used, self.unsure = False, set(), set(), set()
        self.at = {index: make(index) for index in itertools.product(*map(range, shape))}

    @staticmethod
    def key(index):
        if index is None:
            return ()
        return index if isinstance(index, tuple) else (index,)

    def __iter__(self):
        return iter(range(self.shape[0]))

    def __getitem__(self, index):
        found = self.at[self.key(index)]
        if isinstance(found, int):
            return found
        if not self.shim.depth:  # Python reads a plain number
            return float(found) if isinstance(found, Dual) else Vec(map(constant, found.e))
        if self.shim.detached:
            return constant(found) if isinstance(found, Dual) else Vec(map(constant, found.e))
        return copied(found)

    def __setitem__(self, index, value):
        if not self.shim.depth and self.moves is not None:
            self.given({self.key(index): value})
            return
        self.used.add(self.key(index))
        old = self.at[self.key(index)]
        if isinstance(old, int):
            self.at[self.key(index)] = int(value)
        elif isinstance(old, Vec):
            self.at[self.key(index)] = Vec(value.e if isinstance(value, Vec) else value)
        else:
            self.at[self.key(index)] = dual(value)
        if self.shim.stores_move and self.shim.fields[self.shim.stores_move] is self:
            self.move(self.key(index))

    def move(self, key):
        """Move an element along the direction."""
        self.at[key] = self.at[key] + self.moves[key]

    def add(self, index, value, part=None):
        """An atomic addition (to one component): what stands there keeps its derivative."""
        self.used.add(self.key(index))
        old = self.at[self.key(index)]
        if part is not None:
            value = Vec(value if k == part else 0.0 for k in range(2))
        self.at[self.key(index)] = old + value

    def put(self, index, part, value):
        """A store into one component."""
        self.used.add(self.key(index))
        new = self.at[self.key(index)].copy()
        new[part] = value
        self.at[self.key(index)] = new

    def best(self, index, value, larger):
        """An atomic maximum or minimum; at a tie it is not said whose derivative counts."""
        self.used.add(self.key(index))
        old, new = self.at[self.key(index)], dual(value)
        if float(new) == float(old) and not alike(new, old):
            raise ValueError("a tie")
        if (new > old) if larger else (new < old):
            self.at[self.key(index)] = new

    def fill(self, value):
        self.given(dict.fromkeys(self.at, value))

    def to_numpy(self):
        return np.reshape([float(c) for c in self.at.values()], self.shape)

    def from_numpy(self, values):
        self.given({k: float(values[k]) for k in self.at})

    def copy_from(self, other):
        self.take(other, list(self.at), list(other.at))

    def take(self, other, to, at):
        """Elements of another field."""
        new = {k: copied(other.at[j]) for k, j in zip(to, at, strict=True)}
        if other.constant:
            self.given(new)
            return
        if self.shim.detached:
            new = {
                k: constant(v) if isinstance(v, Dual) else Vec(map(constant, v.e))
                for k, v in new.items()
            }
        else:
            other.used |= set(at)
            self.used |= set(to)
        self.at.update(new)

    def given(self, values):
        """Python sets elements: each that was not used before is an input, but in code without gradients."""
        for index, value in values.items():
            vec = isinstance(self.at[index], Vec)
            entries = value.e if isinstance(value, Vec) else [value] * (2 if vec else 1)
            new = [constant(e) for e in entries]
            self.at[index] = Vec(new) if vec else new[0]
            if index in self.used or self.shim.detached:
                pass
            elif self.named or index[:1] in self.named_rows:
                self.unsure.add(index)
            else:
                self.move(index)
