"""Zero factors: incoming adjoints are not multiplied by constants that are 0.

    %r = build %length, 0.0, 0.0                      adjoints of a cross product with it:
    %m = cross(%r, %f)                                  %a = mul %g.2, %length     %a = mul %g.2, %length
                                                        %b = mul %g.0, 0.0      ->
                                                        %c = add %a, %b            (%a)

Axes, selections of components, matrices of a model: programs multiply by vectors and matrices that are mostly
0. What such a factor passes on is 0, whatever the adjoint is, infinite too: so is the derivative of 0 x. In
values, which follow IEEE 754, the product stays, as 0 times infinity is NaN.

Assumes: scalar IR; `Kernel.incoming` names the gradients that an adjoint passes on. Promises: the same
gradients, but where they had 0 times an infinite or undefined adjoint. A value counts as an incoming adjoint
where it is linear in what is loaded of these: sums, multiples, and choices, also carried by loops.
"""

from __future__ import annotations

from collections.abc import Iterable

from diffsim.ir.nodes import (
    Atomic,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import Rewriter, statements

_SUMS = frozenset(("add", "sub", "accumulate", "neg", "cast"))


def without_zero_factors(kernel: Kernel) -> Kernel:
    """Return an adjoint without products of incoming adjoints and 0; other kernels as they are."""
    if not kernel.incoming:
        return kernel
    return kernel.replace(tasks=tuple([_task(t, kernel.incoming) for t in kernel.tasks]))


def _task(task: Task, incoming: frozenset[Mem]) -> Task:
    adjoints = _Adjoints(task, incoming).find()
    work = _Drop(adjoints)
    body = work.block(task.body)
    return task.replace(body=body) if work.found else task


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.type.is_float and v.value == 0


class _Adjoints:
    """Finds the values that are linear in what a task loads of some memories.

    First the greatest set of values whose operands are in it, as loops carry sums around; then what of it
    depends on such a load at all.
    """

    def __init__(self, task: Task, incoming: frozenset[Mem]) -> None:
        self.loaded: list[Value] = []
        self.linear: set[Value] = set()
        self.missing: dict[Value, int] = {}
        """Of a product: how many of its factors may be in the set."""
        self.used_by: dict[Value, list[Value]] = {}
        self.needs: list[tuple[Value, list[Value]]] = []
        for s in statements(task.body):
            self.note(s, incoming)

    def note(self, s: Stmt, incoming: frozenset[Mem]) -> None:
        """Note what a statement's results are made of."""
        if isinstance(s, Load) and s.mem in incoming and s.out.type.is_float:
            self.loaded.append(s.out)
            self.linear.add(s.out)
        elif isinstance(s, Let) and s.out.type.is_float:
            self.note_op(s)
        elif isinstance(s, If):
            for out, a, b in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
                self.all_of(out, (a, b))
        elif isinstance(s, (For, While)):
            for p, first, then, out in zip(s.params, s.inits, s.body.yields, s.outs, strict=True):
                self.all_of(p, (first, then))
                self.all_of(out, (p,))

    def note_op(self, s: Let) -> None:
        name = s.op.name
        if name in _SUMS:
            self.all_of(s.out, s.args)
        elif name == "div":
            self.all_of(s.out, s.args[:1])
        elif name == "select":
            self.all_of(s.out, s.args[1:])
        elif name == "mul":
            self.linear.add(s.out)
            self.missing[s.out] = len(s.args)
            self.link(s.out, s.args)

    def all_of(self, out: Value, args: Iterable[Value]) -> None:
        """Note that a value is in the set if all of these are."""
        if out.type.is_float:
            self.linear.add(out)
            self.missing[out] = 1
            self.link(out, args)

    def link(self, out: Value, args: Iterable[Value]) -> None:
        given = list(args)
        self.needs.append((out, given))
        for a in given:
            self.used_by.setdefault(a, []).append(out)

    def find(self) -> set[Value]:
        others = [v for v in self.used_by if v not in self.linear and not _is_zero(v)]
        while others:
            for out in self.used_by.get(others.pop(), ()):
                self.missing[out] -= 1
                if self.missing[out] <= 0 and out in self.linear:
                    self.linear.discard(out)
                    others.append(out)
        found, waiting = set[Value](), list(self.loaded)
        while waiting:
            v = waiting.pop()
            if v not in found:
                found.add(v)
                waiting += [out for out in self.used_by.get(v, ()) if out in self.linear]
        return found


class _Drop(Rewriter):
    """Copies a body without products of adjoints and 0."""

    def __init__(self, adjoints: set[Value]) -> None:
        super().__init__()
        self.adjoints = adjoints
        self.found = False

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Let) and s.out in self.adjoints:
            known = self.known(s)
            if known is not None:
                self.found = True
                self.env[s.out] = known
                return []
        adds = isinstance(s, Atomic) and s.out is None and s.op == "add"
        if adds and s.value in self.adjoints and _is_zero(self.value(s.value)):  # type: ignore[union-attr]
            return []
        made = self.copy(s)
        if isinstance(s, If):
            for out, a, b in zip(s.outs, made.then.yields, made.orelse.yields, strict=True):  # type: ignore[union-attr]
                if out in self.adjoints and _is_zero(a) and _is_zero(b):
                    self.env[out] = a
        return [made]

    def known(self, s: Let) -> Value | None:
        """Return the value that an op of adjoints is without an instruction, if there is one."""
        name, args = s.op.name, self.values(s.args)
        zeros = [_is_zero(a) for a in args]
        nothing = Const(s.out.type, 0.0)
        if name == "mul":
            return nothing if any(zeros) else None
        if name in ("neg", "cast", "div"):
            return nothing if zeros[0] else None
        if name == "select":
            return nothing if zeros[1] and zeros[2] else None
        # A sum.
        if zeros[1]:
            return args[0]
        return args[1] if zeros[0] and name != "sub" else None
