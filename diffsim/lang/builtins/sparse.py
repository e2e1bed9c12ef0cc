"""Functions of kernels on sparse layout trees: `ds.activate`, `ds.is_active`, `ds.append` and the like."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.ir.nodes import Value
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import sparse_trees
from diffsim.lang.frontend.functions.sparse_trees import index_of, level_of, list_cell, node_of
from diffsim.lang.frontend.values import Evaluated
from diffsim.lang.host.field_like import NodeLike, is_any_field, is_node
from diffsim.lang.host.intrinsic import Intrinsic, only_in_kernels
from diffsim.lang.types.matrix import Matrix

Emit = Callable[[TranslationContext, ast.Call, NodeLike, list[Evaluated]], Evaluated]


def _intrinsic(
    name: str, parameters: tuple[str, ...], doc: str, emit: Emit, body: str, prints: str
) -> Intrinsic:
    """Make an intrinsic whose first argument is a node of a tree; its example is a kernel with this body."""

    def in_kernel(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        if kwargs or len(args) != len(parameters):
            raise cx.type_error(
                node,
                f"ds.{name} takes {len(parameters)} arguments",
                f"write ds.{name}({', '.join(parameters)})"
                + ("; the length of a vector is v.norm()" if name == "length" else ""),
            )
        return emit(cx, node, node_of(cx, args[0], node), args[1:])

    example = _EXAMPLE.format(_LISTS if "lists" in body else _BLOCKS, body, prints)
    return Intrinsic(
        name, doc, in_kernel, only_in_kernels(name), ", ".join(parameters), example=example
    )


_CELL = """Args:
    node: a `pointer`, `hash` or `bitmasked` node of a layout tree.
    indices: of the cell, counted in cells of the node: a number or a vector of integers, one for each axis.

Raises:
    KernelTypeError: a node without such cells, or another number of indices."""
_LIST = """Args:
    node: a `dynamic` node of a layout tree.
    indices: of the cell that holds the list: a number or a vector of integers.

Raises:
    KernelTypeError: a node without lists, or another number of indices."""
_BLOCKS = """x = ds.field(ds.f32)
blocks = ds.root.pointer(ds.i, 4)
blocks.dense(ds.i, 8).place(x)"""
_LISTS = """x = ds.field(ds.i32)
lists = ds.root.dense(ds.i, 4).dynamic(ds.j, 8)
lists.place(x)"""
_EXAMPLE = """{}

@ds.kernel
def compute() -> ds.i32:
    {}

print(compute())  # prints: {}
"""


def _activate(
    cx: TranslationContext, node: ast.Call, found: NodeLike, args: list[Evaluated]
) -> None:
    level = level_of(cx, found, node)
    if level.list_axis is not None:
        raise cx.type_error(
            node, "a list grows by ds.append, or by a store", "write x[i].append(value)"
        )
    sparse_trees.activate(cx, level, index_of(cx, args[0], len(level.axes), node))


def _deactivate(
    cx: TranslationContext, node: ast.Call, found: NodeLike, args: list[Evaluated]
) -> None:
    level = level_of(cx, found, node)
    if level.list_axis is None:
        cell = tuple(index_of(cx, args[0], len(level.axes), node))
    else:
        cell = list_cell(cx, level, args[0], node)
    sparse_trees.deactivate(cx, found, level, cell)


def _is_active(
    cx: TranslationContext, node: ast.Call, found: NodeLike, args: list[Evaluated]
) -> Value:
    level = level_of(cx, found, node)
    return sparse_trees.ask_active(cx, level, index_of(cx, args[0], len(level.axes), node))


def _length(
    cx: TranslationContext, node: ast.Call, found: NodeLike, args: list[Evaluated]
) -> Value:
    level = _list_level(cx, node, found)
    return sparse_trees.length(cx, level, list_cell(cx, level, args[0], node))


def _append(
    cx: TranslationContext, node: ast.Call, found: NodeLike, args: list[Evaluated]
) -> Value:
    level = _list_level(cx, node, found)
    fields = found.placed_fields()
    if len(fields) != 1:
        raise cx.type_error(
            node,
            f"ds.append needs one field in the dynamic, there are {len(fields)}",
            "place a field of structs, and write x[i].append(Particle(...)); or store x[i, k] and y[i, k]",
        )
    cell = list_cell(cx, level, args[0], node)
    return sparse_trees.append(cx, [(fields[0], args[1])], cell, node)


def _list_level(cx: TranslationContext, node: ast.Call, found: NodeLike) -> Any:
    level = level_of(cx, found, node)
    if level.list_axis is None:
        raise cx.type_error(
            node,
            f"a {found.kind} has no lists",
            "name a dynamic node: particles = ds.root.dynamic(ds.i, 1024)",
        )
    return level


def _rescale(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    """Emit an index at the resolution of another node or field."""
    if kwargs or len(args) != 3 or not all(is_node(a) or is_any_field(a) for a in args[:2]):
        raise cx.type_error(
            node, "ds.rescale_index takes two fields or nodes, and an index", "write (x, block, I)"
        )
    things: list[Any] = args[:2]
    of, to = (tuple(a.shape) for a in things)
    if len(of) != len(to):
        raise cx.type_error(
            node, f"the one has {len(of)} axes, the other {len(to)}", "give the index by hand"
        )
    index = index_of(cx, args[2], len(of), node)
    made = [
        cx.builder.named("floordiv", i, cx.builder.const(a // b, i.type)) if a > b else i * (b // a)
        for i, a, b in zip(index, of, to, strict=True)
    ]
    return cx.builder.tensor_of(made, (len(made),))


def _rescale_in_python(of: object, to: object, index: object) -> Any:
    if not all(is_node(a) or is_any_field(a) for a in (of, to)):
        raise KernelTypeError(
            f"ds.rescale_index takes two fields or nodes, not {shown(of)} and {shown(to)}",
            Span.of_caller(),
            hint="write ds.rescale_index(x, block, [i, j])",
        )
    listed = isinstance(index, (list, tuple, Matrix)) or getattr(index, "ndim", 0) == 1
    whole = listed and all(isinstance(i, (int, np.integer)) for i in index)  # type: ignore[attr-defined]
    if not whole or not len(index) == len(of.shape) == len(to.shape):  # type: ignore[arg-type, attr-defined]
        raise KernelTypeError(
            f"ds.rescale_index takes an index with a number for each axis, not {shown(index)}",
            Span.of_caller(),
            hint="write ds.rescale_index(x, block, [i, j])",
        )
    sizes = zip(index, of.shape, to.shape, strict=True)  # type: ignore[call-overload, attr-defined]
    return Matrix([i // (a // b) if a > b else i * (b // a) for i, a, b in sizes])


activate = _intrinsic(
    "activate",
    ("node", "indices"),
    "Make a cell of a sparse node active, and those around it.\n\n" + _CELL,
    _activate,
    "ds.activate(blocks, 2)\n    return ds.is_active(blocks, 2)",
    "1",
)
deactivate = _intrinsic(
    "deactivate",
    ("node", "indices"),
    "Make a cell of a sparse node inactive: its elements are 0 from now on. Of a dynamic: empty a list.\n\n"
    + _CELL,
    _deactivate,
    "x[0] = 1.0\n    ds.deactivate(blocks, 0)\n    return ds.is_active(blocks, 0)",
    "0",
)
is_active = _intrinsic(
    "is_active",
    ("node", "indices"),
    "Whether a cell of a sparse node is active.\n\n" + _CELL,
    _is_active,
    "x[20] = 1.0  # in block 2\n    return ds.is_active(blocks, 2)",
    "1",
)
length = _intrinsic(
    "length",
    ("node", "indices"),
    "The length of a list of a dynamic node, an i32.\n\n" + _LIST,
    _length,
    "x[1].append(7)\n    return ds.length(lists, 1)",
    "1",
)
append = _intrinsic(
    "append",
    ("node", "indices", "val"),
    "Append a value to a list of a dynamic node; returns its index in the list, an i32.\n\n"
    + _LIST,
    _append,
    "ds.append(lists, 1, 7)\n    return x[1, 0]",
    "7",
)
rescale_index = Intrinsic(
    "rescale_index",
    "The index at the resolution of another field or node: of the block that an element is in.\n\n"
    "Args:\n    a: the field or node that the index is of.\n    b: the field or node of the result; "
    "their shapes divide one another.\n    I: an index of a, a number or a vector of integers.",
    _rescale,
    _rescale_in_python,
    "a, b, I",
    example="""
        x, coarse = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=8)
        print(ds.rescale_index(x, coarse, [20]))  # prints: [2]
    """,
)


def _no_activate(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> None:
    """Take the promise that stores in this loop reach active elements; it changes nothing here."""
    for a in args:
        node_of(cx, a, node)


no_activate = Intrinsic(
    "no_activate",
    "A promise that stores in this loop reach active elements of a sparse field: taken, and not needed.",
    _no_activate,
    only_in_kernels("no_activate"),
    "*args",
    example="""
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)

        @ds.kernel
        def compute():
            ds.no_activate(blocks)
            for i in x:
                x[i] += 1.0

        compute()
        print(x[0])  # prints: 0.0
    """,
)
