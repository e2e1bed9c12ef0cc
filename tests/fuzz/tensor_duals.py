"""Vectors, matrices and structs of dual numbers: the oracle of `tensors.py`."""

from __future__ import annotations

import ast
import math
import types

import numpy as np

from tests.fuzz import duals
from tests.fuzz.duals import Dual, constant, dual, on_duals, step


def _d(x):
    return x if isinstance(x, Dual) else Dual(x)


def sqrt(x):
    x = _d(x)
    return duals.sqrt(x) if x.v > 0 else Dual(math.sqrt(x.v))


def larger(a, b):
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return _d(b) if _d(a) < _d(b) else _d(a)


def smaller(a, b):
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return _d(b) if _d(a) > _d(b) else _d(a)


def atan2(a, b):
    if not (isinstance(a, Dual) or isinstance(b, Dual)):
        return math.atan2(a, b)
    a, b = _d(a), _d(b)
    r = a.v * a.v + b.v * b.v
    return Dual(atan2(a.v, b.v), (a.d * b.v - a.v * b.d) / r if r else 0.0)


def each(function):
    """A function of numbers, element by element."""

    def apply(*args):
        shape = next((a.a.shape for a in args if isinstance(a, Tensor)), None)
        if shape is None:
            return function(*args)
        made = np.empty(shape, object)
        for i in np.ndindex(*shape):
            made[i] = function(*(a.a[i] if isinstance(a, Tensor) else a for a in args))
        return Tensor(made)

    return apply


class Tensor:
    """A vector or matrix."""

    def __init__(self, entries):
        made = entries if isinstance(entries, np.ndarray) else _array(entries)
        object.__setattr__(self, "a", made)

    def copy(self):
        return Tensor(self.a.copy())

    def __len__(self):
        return len(self.a)

    def __iter__(self):
        return iter(self.a)

    def _with(self, o, f):
        return Tensor(f(self.a, o.a if isinstance(o, Tensor) else o))

    def __add__(self, o):
        return self._with(o, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, o):
        return self._with(o, lambda a, b: a - b)

    def __rsub__(self, o):
        return self._with(o, lambda a, b: b - a)

    def __mul__(self, o):
        return self._with(o, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, o):
        return self._with(o, lambda a, b: a / b)

    def __neg__(self):
        return Tensor(-self.a)

    def __lt__(self, o):
        return each(lambda a, b: _d(a) < _d(b))(self, o)

    def __matmul__(self, o):
        if o.a.ndim == 1:
            return Tensor([_sum(row * o.a) for row in self.a])
        if self.a.ndim == 1:
            return Tensor([_sum(self.a * column) for column in o.a.T])
        return Tensor([[_sum(row * column) for column in o.a.T] for row in self.a])

    def _change(self, new):
        self.a[...] = new.a
        return self

    def __iadd__(self, o):
        return self._change(self + o)

    def __isub__(self, o):
        return self._change(self - o)

    def __imul__(self, o):
        return self._change(self * o)

    def __getitem__(self, k):
        found = self.a[k]
        return Tensor(found.copy()) if isinstance(found, np.ndarray) else found

    def __setitem__(self, k, v):
        self.a[k] = v.a if isinstance(v, Tensor) else _d(v)

    def __getattr__(self, name):
        if name == "a" or set(name) - set("xyz"):
            raise AttributeError(name)
        found = [self.a["xyz".index(c)] for c in name]
        return found[0] if len(found) == 1 else Tensor(found)

    def __setattr__(self, name, v):
        if len(name) == 1:
            self.a["xyz".index(name)] = _d(v)
            return
        parts = list(v.a) if isinstance(v, Tensor) else [v] * len(name)
        for c, one in zip(name, parts, strict=True):
            self.a["xyz".index(c)] = _d(one)

    def sum(self):
        return _sum(self.a.ravel())

    def all(self):
        return all(self.a.ravel())

    def dot(self, o):
        return (self * o).sum()

    def norm_sqr(self, eps=0):
        return self.dot(self) + eps

    def norm(self, eps=0):
        return sqrt(self.norm_sqr(eps))

    def normalized(self, eps=0):
        return self / (self.norm() + eps)

    def max(self):
        best = self.a[0]
        for x in self.a[1:]:
            best = larger(best, x)
        return best

    def cross(self, o):
        a, b = self.a, o.a
        if len(a) == 2:
            return a[0] * b[1] - a[1] * b[0]
        return Tensor(
            [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
        )

    def outer_product(self, o):
        return Tensor([[x * y for y in o.a] for x in self.a])

    def trace(self):
        return self.a[0, 0] + self.a[1, 1]

    def determinant(self):
        return self.a[0, 0] * self.a[1, 1] - self.a[0, 1] * self.a[1, 0]

    def transpose(self):
        return Tensor(self.a.T.copy())

    def inverse(self):
        (a, b), (c, d) = self.a
        return Tensor([[d, -b], [-c, a]]) / self.determinant()

    @staticmethod
    def identity(dtype, n):
        return Tensor([[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)])

    @staticmethod
    def rows(vectors):
        return Tensor([list(v.a) for v in vectors])

    @staticmethod
    def cols(vectors):
        return Tensor.rows(vectors).transpose()


def _sum(numbers):
    total = Dual(0.0)
    for x in numbers:
        total = total + x
    return total


def _array(entries):
    rows = [e.a if isinstance(e, Tensor) else e for e in entries]
    if any(isinstance(r, (list, np.ndarray)) for r in rows):
        made = np.empty((len(rows), len(rows[0])), object)
        for i, row in enumerate(rows):
            for j, x in enumerate(row):
                made[i, j] = _d(x)
        return made
    made = np.empty(len(rows), object)
    for i, x in enumerate(rows):
        made[i] = _d(x)
    return made


class Type:
    """`ds.types.vector(3, ds.f64)`."""

    def __init__(self, *shape):
        self.shape = shape

    def __call__(self, *parts):
        flat = []
        for p in parts:
            flat += list(p.a.ravel()) if isinstance(p, Tensor) else [p]
        if len(flat) == 1:
            flat *= math.prod(self.shape)
        made = np.empty(len(flat), object)
        made[:] = [_d(x) for x in flat]
        return Tensor(made.reshape(self.shape))

    def zero(self):
        return self(0.0)


class Struct:
    """What all structs are."""

    def __init__(self, **members):
        for name, t in self.members.items():
            zero = t.zero() if isinstance(t, Type) else t() if issubclass(t, Struct) else t(0)
            setattr(self, name, members.get(name, zero))

    def __setattr__(self, name, v):
        t = self.members[name]
        object.__setattr__(self, name, _d(v) if t is float else copied(v))

    def copy(self):
        return type(self)(**{m: getattr(self, m) for m in self.members})


def copied(x):
    if isinstance(x, (Tensor, Struct)):
        return x.copy()
    return tuple(map(copied, x)) if isinstance(x, tuple) else x


class ValueSemantics(ast.NodeTransformer):
    """What is assigned is a copy."""

    def visit_Assign(self, node):
        self.generic_visit(node)
        node.value = ast.copy_location(
            ast.Call(ast.Name("_copied", ast.Load()), [node.value], []), node
        )
        return node


class Elements:
    """A field."""

    def __init__(self, cells):
        self.cells = cells

    def __iter__(self):
        return iter(range(len(self.cells)))

    def __getitem__(self, i):
        return self.cells[_index(i)]

    def __setitem__(self, i, v):
        old = self.cells[_index(i)]
        self.cells[_index(i)] = (
            v if isinstance(old, int) else copied(v) if isinstance(v, (Tensor, Struct)) else _d(v)
        )


def _index(i):
    if not 0 <= i:
        raise AssertionError(f"index {i}")
    return i


class Fields:
    """All fields, made when the struct types are known."""

    def __init__(self, space, values, direction, second, at, ks):
        self.space, self.values, self.ks = space, values, ks
        self.direction, self.second = direction, second
        space["at"] = Elements([int(k) for k in at])
        space["c"] = self.tensor("c")
        space["u"] = self.tensor("u")
        space["_copied"] = copied

    def tensor(self, name, i=()):
        v, d = self.values[name][i], self.direction[name][i]
        second = None if self.second is None else self.second[name][i]
        if np.ndim(v) == 0:
            return Dual(v) + step(d, second)
        made = np.empty(v.shape, object)
        for k in np.ndindex(*v.shape):
            made[k] = Dual(v[k]) + step(d[k], None if second is None else second[k])
        return Tensor(made)

    def make(self, n, shapes):
        part, inner = self.space["Part"], self.space["Inner"]
        for name, shape in shapes.items():
            if shape is not Struct:
                cells = [self.tensor(name, i) for i in range(n)]
            else:
                t = lambda m, i, name=name: self.tensor(f"{name}.{m}", i)  # noqa: E731
                cells = [
                    part(
                        a=t("a", i),
                        v=t("v", i),
                        k=int(self.ks[name][i]),
                        q=inner(m=t("q.m", i), s=t("q.s", i)),
                    )
                    for i in range(n)
                ]
            self.space[name] = Elements(cells)


def numbers_of(fields, name):
    """The values of a field at the end, and their derivatives."""
    head, *rest = name.split(".")
    thing = fields.space[head]
    cells = thing.cells if isinstance(thing, Elements) else [thing]
    for member in rest:
        cells = [getattr(c, member) for c in cells]
    flat = [x for c in cells for x in (c.a.ravel() if isinstance(c, Tensor) else [c])]
    shape = fields.values[name].shape
    return np.array([float(x) for x in flat]).reshape(shape), [x.d for x in flat]


class Shim:
    """Stands for the module diffsim while a program runs."""

    def __init__(self):
        self.f64, self.i32 = float, int
        self.sin = each(on_duals(duals.sin))
        self.tanh = each(on_duals(duals.tanh))
        self.sqrt = sqrt
        self.atan2 = atan2
        self.max = self._several(each(larger))
        self.min = self._several(each(smaller))
        self.select = lambda c, a, b: a if c else b
        self.stop_grad = constant
        self.static = lambda x: x
        self.template = lambda: "template"
        self.Vector = self.Matrix = Tensor
        self.types = types.SimpleNamespace(
            vector=lambda n, t: Type(n), matrix=lambda n, m, t: Type(n, m)
        )
        self.math = types.SimpleNamespace(
            mix=lambda x, y, a: x * (1 - _d(a)) + y * a,
            clamp=lambda x, a, b: smaller(larger(x, a), b),
            length=lambda v: v.norm(),
            reflect=lambda x, n: x - n * (2 * n.dot(x)),
        )

    @staticmethod
    def _several(two):
        def apply(first, *rest):
            for x in rest:
                first = two(first, x)
            return first

        return apply

    def dataclass(self, c):
        space = {k: v for k, v in vars(c).items() if not k.startswith("__")}
        return type(c.__name__, (Struct,), {**space, "members": c.__annotations__})

    def func(self, f):
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
        kept = [n == "self" or f.__annotations__.get(n) == "template" for n in names]

        def call(*args):
            return f(*(a if keep else copied(a) for a, keep in zip(args, kept, strict=True)))

        return call

    def kernel(self, f):
        return lambda *args: f(
            *(
                Tensor(a) if isinstance(a, list) else dual(a) if isinstance(a, float) else copied(a)
                for a in args
            )
        )
