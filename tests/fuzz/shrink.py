"""Make a program small while it stays wrong: leave statements out, and parts of expressions.

Programs that are lists of steps, such as those of `sparse_trees`, lose line after line.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator


def shrink(text: str, wrong: Callable[[str], bool]) -> str:
    """The smallest program that single steps lead to.

    Args:
        text: a program for which `wrong` holds.
        wrong: whether a program still shows what is to be kept.
    """
    best = text
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(best):
            if len(smaller) < len(best) and wrong(smaller):
                best, improved = smaller, True
                break
    return best


def _smaller(text: str) -> Iterator[str]:
    """Programs with one thing less; the largest first."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        lines = text.splitlines(keepends=True)
        yield from ("".join(lines[:k] + lines[k + 1 :]) for k in range(len(lines)))
        return
    count = sum(1 for _ in _places(tree))
    for k in range(count):
        made = copy.deepcopy(tree)
        for change in _changes(made, k):
            try:
                yield ast.unparse(ast.fix_missing_locations(change))
            except (ValueError, AttributeError):
                continue


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Every statement and expression, with the field of its parent that holds it."""
    for parent in ast.walk(tree):
        if isinstance(parent, ast.arg):
            continue
        for name, value in ast.iter_fields(parent):
            if name == "decorator_list":
                continue
            if isinstance(value, list):
                for i, one in enumerate(value):
                    if isinstance(one, (ast.stmt, ast.expr)):
                        yield parent, name, i
            elif isinstance(value, ast.expr):
                yield parent, name, None


def _changes(tree: ast.AST, k: int) -> Iterator[ast.AST]:
    """The tree with the k-th place left out, or something smaller in it (the tree is changed)."""
    parent, name, i = next(p for j, p in enumerate(_places(tree)) if j == k)
    holder = getattr(parent, name)
    node = holder[i] if i is not None else holder
    if isinstance(node, ast.stmt):
        del holder[i]
        if holder or name == "orelse":
            yield tree
        for inner in ("body", "orelse"):  # a loop or branch: its body alone
            body = getattr(node, inner, None)
            if body and not isinstance(node, ast.FunctionDef):
                holder[i:i] = body
                yield tree
                del holder[i : i + len(body)]
        holder.insert(i, node)
        return
    for new in _parts(node):
        if i is not None:
            holder[i] = new
        else:
            setattr(parent, name, new)
        yield tree


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Smaller expressions that may stand in its place."""
    if isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(node, ast.Constant):
        return
    yield ast.Constant(0.5)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
