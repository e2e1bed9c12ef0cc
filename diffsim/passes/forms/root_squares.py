"""Squares of roots, differentiated without the root: for second derivatives where the root is 0.

The rule of sqrt is guarded: its derivative at 0 counts as 0. So the chain through y = sqrt(s) gives y**2 no
second derivative at s = 0, though y**2 is s. This pass finds products of two expressions that are linear in
one root, and lets the derivative flow through their expansion, which has no root where none is needed:

    (a y + b) (c y + d)  =  a c s + (a d + b c) y + b d       y = sqrt(s), or y = |x| with s = x x

    %z = mul %p, %q          ->    %product = mul %p, %q
                                   %e = (the expansion)
                                   %z = derived_as %product, %e

So (|v| - L)**2 has the second derivative 2 I at v = 0 where L is 0, and else a kink in the term -2 L y alone.
The value is that of the product, to the bit. First derivatives are the same but for rounding, and need none
of this: only kernels that are differentiated twice are rewritten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Const, Kernel, Let, Load, Stmt, Task, Value
from diffsim.ir.traversal import Rewriter


class _Linear(NamedTuple):
    """`slope * root + rest`; None: a slope of 1, a rest of 0."""

    slope: Value | None
    rest: Value | None


def squares_without_roots(kernel: Kernel) -> Kernel:
    """Return the kernel with products of roots rewritten; the kernel itself, if there are none."""
    work = _Squares()
    tasks = tuple(work.rewritten(t) for t in kernel.tasks)
    return kernel.replace(tasks=tasks) if work.found else kernel


class _Squares(Rewriter):
    """Copies a kernel; `found` says whether it has products of roots."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self._lets: dict[Value, Let] = {}
        self._roots: dict[Value, Value | None] = {}
        # Value numbering: of each value, and of what each one is computed of.
        self._numbers: dict[Value, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._writes = 0  # so far, or what may be some

    def rewritten(self, task: Task) -> Task:
        bounds, axes = self.block(task.bounds), self.fresh_all(task.axes)
        return task.replace(axes=axes, bounds=bounds, body=self.block(task.body))

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, (Let, Load)):
            # Loads before and after it, or inside, may find other values.
            self._writes += 1
            made = self.copy(s)
            self._writes += 1
            return [made]
        made = self.copy(s)
        if isinstance(made, Load):
            index = map(self._number, made.index)
            self._let_number(made.out, ("load", made.mem, self._writes, *index))
            return [made]
        assert isinstance(made, Let)
        self._lets[made.out] = made
        factors = _factors(made)
        root = None if factors is None else self._common_root(*factors)
        if root is None or factors is None:
            return [made]
        self.found = True
        return self._expanded(made, factors, root)

    def _expanded(self, s: Let, factors: tuple[Value, Value], root: Value) -> list[Stmt]:
        """Return the product, and its derivative by the expansion."""
        product = Value(s.out.type)
        b = Builder(s.span)
        with b:
            b.add(Let(product, s.op, s.args, s.span))
            (a, c), (e, f) = (self._linear(b, v, root) for v in factors)
            terms = [
                _times(b, a, _times(b, e, self._square(b, root))),
                None if f is None else _times(b, a, _times(b, f, root)),
                None if c is None else _times(b, c, _times(b, e, root)),
                None if c is None or f is None else b.op(ops.mul, (c, f)),
            ]
            whole = _sum(b, terms)
            assert whole is not None
            last = Let(s.out, ops.derived_as, (product, whole), s.span)
            b.add(last)
        self._lets[s.out] = last
        return b.stmts

    # ---- which values are linear in a root

    def _common_root(self, p: Value, q: Value) -> Value | None:
        one = self._root(p)
        other = one if p is q else self._root(q)
        same = one is not None and other is not None and self._number(one) == self._number(other)
        return one if same else None

    def _root(self, v: Value) -> Value | None:
        """Return the root that a value is linear in, if it is."""
        if v not in self._roots:
            self._roots[v] = self._found_root(v)
        return self._roots[v]

    def _found_root(self, v: Value) -> Value | None:
        s = self._lets.get(v)
        if s is None or v.type.shape or not v.type.is_float:
            return None
        name, found = s.op.name, [self._root(a) for a in s.args if a.type.is_float]
        if name in ("sqrt", "fabs", "abs"):
            return v
        if name == "neg":
            return found[0]
        if name in ("add", "sub", "mul"):
            inside = [r for r in found if r is not None]
            if len(inside) < 2:
                return inside[0] if inside else None
            return self._common_root(*s.args) if name != "mul" else None
        return found[0] if name == "div" and found[1] is None else None

    def _linear(self, b: Builder, v: Value, root: Value) -> _Linear:
        """Emit the slope and the rest of a value that is linear in a root."""
        s = self._lets[v]
        name = s.op.name
        if name in ("sqrt", "fabs", "abs"):
            return _Linear(None, None)
        if name == "neg":
            a, c = self._linear(b, s.args[0], root)
            return _Linear(-_one(b, a, v), None if c is None else -c)
        left, right = s.args
        if name in ("mul", "div"):
            scaled, by = (left, right) if self._root(left) is not None else (right, left)
            a, c = self._linear(b, scaled, root)
            if name == "mul":
                return _Linear(_times(b, a, by), None if c is None else b.op(ops.mul, (c, by)))
            whole = b.op(ops.div, (_one(b, a, v), by))
            return _Linear(whole, None if c is None else b.op(ops.div, (c, by)))
        parts = [
            self._linear(b, x, root) if self._root(x) is not None else _Linear(_none(b, v), x)
            for x in (left, right)
        ]
        sign = ops.sub if name == "sub" else ops.add
        slope = b.op(sign, tuple(_one(b, p.slope, v) for p in parts))
        rests = [_none(b, v) if p.rest is None else p.rest for p in parts]
        return _Linear(slope, b.op(sign, tuple(rests)))

    def _square(self, b: Builder, root: Value) -> Value:
        s = self._lets[root]
        inside = s.args[0]
        return inside if s.op.name == "sqrt" else b.op(ops.mul, (inside, inside))

    def _number(self, v: Value) -> int:
        """Return a number that equal values share."""
        if v not in self._numbers:
            s = self._lets.get(v)
            if isinstance(v, Const):
                made: tuple[Any, ...] = ("constant", v.type, repr(v.value))
            else:
                made = (v,) if s is None else (s.op.name, v.type, *map(self._number, s.args))
            self._let_number(v, made)
        return self._numbers[v]

    def _let_number(self, v: Value, computed_of: tuple[Any, ...]) -> None:
        self._numbers[v] = self._known.setdefault(computed_of, len(self._known))


def _factors(s: Let) -> tuple[Value, Value] | None:
    """Return the factors of a product of two scalars, or of a square."""
    if s.out.type.shape or not s.out.type.is_float:
        return None
    if s.op.name == "mul":
        return s.args[0], s.args[1]
    if s.op.name == "pow" and isinstance(s.args[1], Const) and s.args[1].value == 2:
        return s.args[0], s.args[0]
    return None


def _times(b: Builder, slope: Value | None, v: Value) -> Value:
    return v if slope is None else b.op(ops.mul, (slope, v))


def _one(b: Builder, slope: Value | None, like: Value) -> Value:
    return b.const(1.0, like.type) if slope is None else slope


def _none(b: Builder, like: Value) -> Value:
    return b.const(0.0, like.type)


def _sum(b: Builder, terms: list[Value | None]) -> Value | None:
    whole: Value | None = None
    for t in terms:
        if t is not None:
            whole = t if whole is None else b.op(ops.add, (whole, t))
    return whole
