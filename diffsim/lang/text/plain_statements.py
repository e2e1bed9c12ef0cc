"""Rewrites `match` and `else` after a loop to `if`, before any analysis sees the syntax of a function."""

from __future__ import annotations

import ast
from typing import Any


def with_plain_statements(function: Any) -> Any:
    """Rewrite the syntax of a function, if it has any such statement."""
    loops = (ast.For, ast.While)
    if any(
        isinstance(n, ast.Match) or (isinstance(n, loops) and n.orelse) for n in ast.walk(function)
    ):
        return _PlainStatements().visit(function)
    return function


class _PlainStatements(ast.NodeTransformer):
    """Rewrites a function in place. Patterns that look into their subject stay, and are refused later."""

    def __init__(self) -> None:
        self._names = 0

    def _name(self, what: str) -> str:
        """Return a name that no program can write."""
        self._names += 1
        return f"{what} {self._names}"

    # ---- match

    def visit_Match(self, node: ast.Match) -> Any:
        """Compare the subject, which is evaluated once, with the value of each case in order."""
        self.generic_visit(node)
        if not all(_is_plain(case) for case in node.cases):
            return node
        # A name is read again for each case, so that one known at compile time decides then.
        subject, before = node.subject, []
        if not isinstance(subject, (ast.Name, ast.Attribute, ast.Constant)):
            name = self._name("match")
            before = [ast.Assign([ast.Name(name, ast.Store())], subject)]
            subject = ast.Name(name, ast.Load())
        rest: list[ast.stmt] = []
        for case in reversed(node.cases):
            tests = [t for t in (_test(case.pattern, subject), case.guard) if t is not None]
            captured = getattr(case.pattern, "name", None)
            bound: list[ast.stmt] = (
                [ast.Assign([ast.Name(captured, ast.Store())], subject)] if captured else []
            )
            body = [_at(s, case.pattern) for s in bound] + case.body
            if tests:
                test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
                rest = [ast.copy_location(ast.If(test, body, rest), case.pattern)]
            else:
                rest = body
        return [_at(s, node) for s in (*before, *rest)]

    # ---- loops

    def visit_For(self, node: ast.For) -> Any:
        """Move `else` behind the loop."""
        return self._without_else(node)

    def visit_While(self, node: ast.While) -> Any:
        """Move `else` behind the loop."""
        return self._without_else(node)

    def _without_else(self, node: ast.For | ast.While) -> Any:
        self.generic_visit(node)
        orelse = node.orelse
        node.orelse = []
        if not orelse:
            return node
        name = self._name("not ended")
        body = _noting_breaks(node.body, name)
        if body == node.body:  # without a break it runs in any case
            return [node, *orelse]
        node.body = body
        first = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(True))
        last = ast.If(ast.Name(name, ast.Load()), orelse, [])
        return [_at(first, node), node, _at(last, orelse[0])]


def _at(made: Any, node: Any) -> Any:
    """Give a statement the place of another one, where it has none."""
    return ast.fix_missing_locations(
        made if hasattr(made, "lineno") else ast.copy_location(made, node)
    )


def _is_plain(case: ast.match_case) -> bool:
    """Return whether a case compares with values, or takes all that is left."""
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs):
        # A name has its value before the guard is asked, which an `if` cannot do.
        return pattern.pattern is None and (pattern.name is None or case.guard is None)
    return _is_value(pattern)


def _is_value(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(_is_value(p) for p in pattern.patterns)
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


def _test(pattern: ast.pattern, subject: ast.expr) -> ast.expr | None:
    """Return the condition under which a pattern fits; None: always."""
    if isinstance(pattern, ast.MatchOr):
        tests: Any = [_test(p, subject) for p in pattern.patterns]
        return _at(ast.BoolOp(ast.Or(), tests), pattern)
    if isinstance(pattern, ast.MatchValue):
        return _at(ast.Compare(subject, [ast.Eq()], [pattern.value]), pattern)
    if isinstance(pattern, ast.MatchSingleton):
        value = _at(ast.Constant(pattern.value), pattern)
        return _at(ast.Compare(subject, [ast.Is()], [value]), pattern)
    return None


def _noting_breaks(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    """Return statements of a loop in which each `break` of this loop sets a name to False first."""
    made: list[ast.stmt] = []
    for s in body:
        if isinstance(s, ast.Break):
            made.append(_at(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(False)), s))
        elif isinstance(s, ast.If):
            then, orelse = (_noting_breaks(part, name) for part in (s.body, s.orelse))
            if (then, orelse) != (s.body, s.orelse):
                s = ast.copy_location(ast.If(s.test, then, orelse), s)
        made.append(s)
    return made
