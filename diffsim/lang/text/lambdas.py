"""The syntax of a lambda: the one among those of its line whose code the function has."""

from __future__ import annotations

import ast
from types import FunctionType

from diffsim.lang.text.compiled_source import is_code_of


def find_lambda(text: str, function: FunctionType) -> ast.FunctionDef | None:
    """Return a lambda in the text of its file as a def that returns its value; None: there is none."""
    try:
        module = ast.parse(text)
    except SyntaxError:
        return None
    first = function.__code__.co_firstlineno
    found = [n for n in ast.walk(module) if isinstance(n, ast.Lambda) and n.lineno == first]
    inside = [n for n in found if _holds(n.body, function)]
    # Of lambdas inside each other the innermost one that has all of the code: it begins last.
    inside.sort(key=lambda n: (n.body.lineno, n.body.col_offset), reverse=True)
    for one in inside:
        node = _as_def(one)
        if is_code_of(node, function):
            return node
    return None


def _holds(body: ast.expr, function: FunctionType) -> bool:
    """Return whether all instructions of a function come from this expression, as far as Python knows."""
    for line, end, column, end_column in function.__code__.co_positions():
        if line is None or end is None or column is None or end_column is None:
            continue
        first, last = (line, column), (end, end_column)
        # What stands for the function as a whole has an empty place at the begin of the line.
        if first < last and not (
            first >= (body.lineno, body.col_offset)
            and last <= (body.end_lineno or 0, body.end_col_offset or 0)
        ):
            return False
    return True


def _as_def(node: ast.Lambda) -> ast.FunctionDef:
    """Return the def with the same parameters that returns the value of a lambda."""
    result = ast.copy_location(ast.Return(node.body), node.body)
    made = ast.parse("def anonymous(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = node.args, [result]
    return ast.copy_location(made, node)
