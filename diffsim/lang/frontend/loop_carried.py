"""The effects of the iterations of an outermost loop on locals of the kernel.

    for i in x:             for i in x:             for i in x:
        r = x[i] - c            total += x[i]           if x[i] > best:
        y[i] = r * r                                        best = x[i]

r, although the kernel has one, too, is a value of each iteration: assigned before it is read, and not read
after the loop (a *private* variable). total is a reduction. best keeps its value from one iteration to the
next (it is *carried*), so that the loop has an order. These are the usual classes of scalars in loops
(R. Allen, K. Kennedy, Optimizing Compilers for Modern Architectures, 2002, chapter 5). They are found by
syntax, since it has to be known before the body is translated how the loop runs. In doubt a local is carried:
in order every loop is right.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from diffsim.ir.nodes import Value
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import by_reference
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.values import (
    Environment,
    KernelContainer,
    KernelLocal,
    StructVar,
    holds_fields,
    parts_of,
)
from diffsim.lang.host.source import SyntaxNode, walk

REDUCING = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)
"""Operators of reductions: associative and commutative, up to rounding."""


@dataclass(frozen=True, slots=True)
class Locals:
    """Locals of the kernel that a loop changes; reductions are in neither list.

    Attributes:
        carried: those that an iteration takes from the one before, or that are read after the last one, with
            the first node that tells.
        private: those that each iteration assigns before it reads them.
    """

    carried: dict[str, SyntaxNode]
    private: list[str]


def locals_changed(cx: TranslationContext, loop: ast.For) -> Locals:
    """Return what the body of a loop at kernel level does to the locals that the kernel has before it."""
    names = by_reference.changed(cx, loop.body)
    names = {name for name in names if _is_local(cx.env.get(name))}
    if not names:
        return Locals({}, [])
    uses = _Uses(cx.env, names)
    uses.statements(loop.body, _names(loop.target))
    carried = {name: uses.read[name] for name in sorted(names & uses.read.keys())}
    for name in sorted(uses.reduced.keys() & uses.assigned - carried.keys()):
        carried[name] = uses.reduced[name]
    if private := uses.assigned - carried.keys():
        behind = _Uses(cx.env, private)
        behind.statements(_following(cx.frame.source.node.body, loop), set())
        carried |= behind.read | behind.reduced
    return Locals(carried, sorted(uses.assigned - carried.keys()))


def _following(body: list[ast.stmt], loop: ast.For) -> list[ast.stmt]:
    """Return the statements that come after a loop, which is among these or in one of them."""
    for k, s in enumerate(body):
        if s is loop:
            return body[k + 1 :]
        for part in (getattr(s, "body", []), getattr(s, "orelse", [])):
            if any(inner is loop for inner in walk(part)):
                return _following(part, loop) + body[k + 1 :]
    return []


def _is_local(thing: object) -> bool:
    """Whether a name is bound to a value, rather than to a field or a function."""
    kinds = (Value, KernelLocal, KernelContainer, StructVar, *folding.Number)
    # What `fields[k][i] = v` changes is a field.
    return isinstance(thing, kinds) or (parts_of(thing) is not None and not holds_fields(thing))


@dataclass(slots=True)
class _Uses:
    """Walks over a body in the order of evaluation.

    Attributes:
        env: the bindings before the loop.
        names: the locals that matter.
        read: those read, or changed in part, where they may still have the value from before the iteration.
        reduced: those added to there.
        assigned: those assigned as a whole anywhere.
    """

    env: Environment
    names: set[str]
    read: dict[str, SyntaxNode] = field(default_factory=dict)
    reduced: dict[str, SyntaxNode] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)

    def statements(self, body: list[ast.stmt], known: set[str]) -> set[str]:
        """Walk over statements; before them the names in `known` are assigned, behind them those returned."""
        for s in body:
            known = self.statement(s, known)
        return known

    def statement(self, s: ast.stmt, known: set[str]) -> set[str]:
        if isinstance(s, (ast.Assign, ast.AnnAssign)):
            if s.value is not None:
                self.reads(s.value, known)
            targets = s.targets if isinstance(s, ast.Assign) else [s.target]
            return known.union(*(self.target(t, known) for t in targets))
        if isinstance(s, ast.AugAssign):
            self.reads(s.value, known)
            self.update(s, known)
            return known
        if isinstance(s, ast.If):
            self.reads(s.test, known)
            return self.statements(s.body, known) & self.statements(s.orelse, known)
        if isinstance(s, (ast.For, ast.While)):
            self.reads(s.iter if isinstance(s, ast.For) else s.test, known)
            own = _names(s.target) if isinstance(s, ast.For) else set()
            self.statements(s.body, known | own)  # perhaps not once
            return known
        self.reads(s, known)
        return known

    def target(self, t: ast.expr, known: set[str]) -> set[str]:
        """Note an assignment; return the names that it assigns as a whole."""
        if isinstance(t, ast.Name):
            self.assigned |= {t.id} & self.names
            return {t.id}
        if isinstance(t, (ast.Tuple, ast.List)):
            return set().union(*(self.target(part, known) for part in t.elts))
        self.reads(t, known)
        return set()

    def update(self, s: ast.AugAssign, known: set[str]) -> None:
        whole = isinstance(s.target, ast.Name) or ast.unparse(s.target) in self.env
        if whole and isinstance(s.op, REDUCING):
            self._note(self.reduced, ast.unparse(s.target).partition(".")[0], s.target, known)
        else:
            self.reads(s.target, known)

    def reads(self, node: Any, known: set[str]) -> None:
        """Note what an expression, or a statement of expressions, reads."""
        if isinstance(node, ast.Name):
            self._note(self.read, node.id, node, known)
        elif isinstance(node, ast.Call) and _is_atomic(node):
            self._note(self.reduced, node.args[0].id, node, known)  # type: ignore[attr-defined]
            self.all(node.args[1:], known)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)):
            own = set().union(*(_names(g.target) for g in node.generators))
            self.all(ast.iter_child_nodes(node), known | own)
        elif isinstance(node, ast.NamedExpr):
            self.reads(node.value, known)
            self.target(node.target, known)
        else:
            self.all(ast.iter_child_nodes(node), known)

    def all(self, nodes: Iterable[ast.AST], known: set[str]) -> None:
        for node in nodes:
            self.reads(node, known)

    def _note(self, where: dict[str, SyntaxNode], name: str, node: Any, known: set[str]) -> None:
        if name in self.names and name not in known:
            where.setdefault(name, node)


def _names(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _is_atomic(node: ast.Call) -> bool:
    called: str = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return called.startswith("atomic_") and bool(node.args) and isinstance(node.args[0], ast.Name)
