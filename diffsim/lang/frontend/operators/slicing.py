"""Slices of vectors and matrices: `v[:3]`, `A[:3, :3]`, `A[1:, 0]`, with bounds known at compile time."""

from __future__ import annotations

import ast
import itertools
from typing import Any

from diffsim.ir.nodes import Value
from diffsim.ir.op import TABLE
from diffsim.ir.types import Type, an
from diffsim.lang.frontend import expressions, subscripts
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.operators import folding


def slices(node: ast.expr) -> bool:
    """Return whether the expression is a slice, such as `v[:3]` or `A[:3, 0]`."""
    if not isinstance(node, ast.Subscript):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(p, ast.Slice) for p in parts)


def sliced(cx: TranslationContext, owner: Value, node: ast.Subscript) -> Value:
    """Evaluate `v[:3]`, `A[:3, :3]`, `A[1:, 0]` of a vector or matrix; bounds mean what they do in Python."""
    # The length of a slice is part of the result's type, so its bounds are constants.
    places, shape = slice_of(cx, node, owner.type)
    taken = [cx.builder.op(TABLE["extract"], (owner, *at)) for at in places]
    return cx.builder.tensor_of(taken, shape)


def slice_of(
    cx: TranslationContext, node: ast.Subscript, owner: Type
) -> tuple[list[tuple[Any, ...]], tuple[int, ...]]:
    """Return the indices of the elements that `v[:3]`, `A[1:, 0]` or a row `A[1]` names, and their shape."""
    # Remembered for slices as a tuple (places, shape), for plain indices as a list.
    if isinstance(cx.evaluated_indices.get(node), tuple):
        return cx.evaluated_indices[node]
    if not slices(node):  # a row
        row = tuple(subscripts.index_list(cx, node))
        return [(*row, k) for k in range(owner.shape[-1])], owner.shape[1:]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    dims = owner.shape
    if len(parts) > len(dims):
        raise cx.type_error(
            node, f"{an(owner)} has no {len(parts)} axes", "write one slice or index for each axis"
        )
    axes: list[list[Any]] = []
    shape: list[int] = []
    for k, n in enumerate(dims):
        # Axes that are left out are taken as a whole, as in NumPy.
        part = parts[k] if k < len(parts) else ast.Slice()
        if isinstance(part, ast.Slice):
            bounds = folding.fold(cx, node, slice_node(cx, part).indices, n)
            axes.append(list(range(*bounds)))
            shape.append(len(axes[-1]))
        else:
            axes.append(
                [
                    subscripts.checked_index(
                        cx, cx.value(expressions.expr(cx, part), part, "an index"), part
                    )
                ]
            )
    if 0 in shape:
        raise cx.type_error(node, f"this slice of {an(owner)} is empty", "see what its bounds are")
    found = list(itertools.product(*axes)), tuple(shape)
    if node in cx.evaluated_indices:
        cx.evaluated_indices[node] = found
    return found


def slice_node(cx: TranslationContext, node: ast.Slice) -> Any:
    """Evaluate `a:b:c` between brackets."""
    parts = [
        None if p is None else expressions.expr(cx, p) for p in (node.lower, node.upper, node.step)
    ]
    if any(isinstance(p, Value) for p in parts):
        raise cx.syntax(node, "a slice needs bounds known at compile time", "write a loop")
    return slice(*parts)
