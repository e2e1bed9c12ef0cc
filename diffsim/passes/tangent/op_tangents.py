"""The tangent of an op, by its row: the rules of reverse mode, read the other way.

The Jacobian of an elementwise op is diagonal, so what maps the adjoint of the result to that of argument k
maps the tangent of argument k to its part of the result's tangent:

    y = sin x         vjp: g cos x         tangent: dx cos x
    y = a * b         vjp: g b, g a        tangent: da b + db a

Rules of ops on whole tensors are transposed maps: those ops are differentiated by their linearity
(`Op.linear`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from diffsim.errors import AutodiffError, Span
from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Const, Let, Stmt, Value, no_derivative
from diffsim.ir.op import NotDifferentiable, Op, Zero
from diffsim.ir.types import Type, derivative_type

TangentOf = Callable[[Value], Value | None]
_Key = tuple[object, ...]


class TangentBuilder(Builder):
    """A builder that computes nothing twice: several tangents share the factors of their rules.

    Tangents are multiplied by one reciprocal instead of divided each.
    """

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.tangents: set[Value] = set()
        """Tangents, and what was computed of them."""
        # Value numbering, a table for each open block: what an inner block computes is not visible outside.
        self._known: list[dict[_Key, Value]] = [{}]

    @contextlib.contextmanager
    def block(self) -> Iterator[list[Stmt]]:
        """Collect the statements emitted inside the `with`, with a table of what they compute."""
        self._known.append({})
        try:
            with super().block() as stmts:
                yield stmts
        finally:
            self._known.pop()

    def keep(self, s: Let) -> None:
        """Add an op of the primal, whose result tangents may use."""
        self.add(s)
        self._made[s.out] = s
        self._known[-1].setdefault(_key(s.op, s.args, s.out.type), s.out)

    def let(self, op: Op, args: tuple[Value, ...], t: Type) -> Value:
        """Emit an op whose result has that type, unless its value is known."""
        return self._let(op, args, t)

    def _let(self, op: Op, args: tuple[Value, ...], t: Type) -> Value:
        key = _key(op, args, t)
        for table in reversed(self._known):
            if key in table:
                return table[key]
        out = self._quotient(op, args, t) or super()._let(op, args, t)
        self._known[-1][key] = out
        if any(a in self.tangents for a in args):
            self.tangents.add(out)
        return out

    def _quotient(self, op: Op, args: tuple[Value, ...], t: Type) -> Value | None:
        """Emit a tangent times a reciprocal; None: not that."""
        if op is not ops.div:
            return None
        above, below = args
        # What is no tangent, as the quotient in the rule of `%`, is rounded as its row says.
        if above not in self.tangents or below in self.tangents or isinstance(below, Const):
            return None
        one = self.const(1.0, below.type.scalar)
        return self.op(ops.mul, (above, self._let(ops.div, (one, below), below.type)))


def _key(op: Op, args: tuple[Value, ...], t: Type) -> _Key:
    # By text, as 0.0 == -0.0.
    return op.name, t, *[repr(a.value) if isinstance(a, Const) else a for a in args]


def tangent_of_op(b: TangentBuilder, s: Let, tangent: TangentOf) -> Value | None:
    """Emit the tangent of an op's result; None: it is 0."""
    if s.op.linear == "together":
        return _linear(b, s, [tangent(a) for a in s.args])
    found: Value | None = None
    t = derivative_type(s.out.type)
    for k, arg in enumerate(s.args):
        rule, dx = s.op.rule(k), tangent(arg)
        if dx is None or isinstance(rule, Zero):
            continue
        if isinstance(rule, NotDifferentiable):
            raise AutodiffError(rule.why, s.span, hint=rule.hint)
        if s.op.linear == "each":
            part = b.let(s.op, (*s.args[:k], dx, *s.args[k + 1 :]), t)
        else:
            made = rule(dx, *s.args, s.out)
            if made is None:
                continue
            # The rule of a conversion leads to the type of the argument.
            part = b.cast(made, t.scalar)
        found = part if found is None else _sum(b, found, part)
    return None if found is None else b.broadcast(found, t)


def _linear(b: TangentBuilder, s: Let, tangents: list[Value | None]) -> Value | None:
    """Emit the op itself on tangents: it is linear in all of its floats together."""
    if all(dx is None for dx in tangents):
        return None
    args = [
        (dx or no_derivative(a.type)) if a.type.is_float else a
        for a, dx in zip(s.args, tangents, strict=True)
    ]
    return b.let(s.op, tuple(args), derivative_type(s.out.type))


def _sum(b: TangentBuilder, left: Value, right: Value) -> Value:
    """Emit a sum; that of what two sides of a condition contribute is a selection."""
    one, other = b.made_by(left), b.made_by(right)
    if one is not None and other is not None and one.op is other.op is ops.select:
        cond, a, nothing = one.args
        same, zero_too, c = other.args
        if cond is same and _is_zero(nothing) and _is_zero(zero_too):
            return b.named("select", cond, a, c)
    return left + right


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0
