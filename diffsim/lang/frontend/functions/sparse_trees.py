"""Sparse trees in kernels: what activates, deactivates and asks about cells, and lists (`dynamic`).

Cells are named by a node of the tree and an index at that node's own resolution, as loops over it give it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, Check, Const, For, If, Mem, Value, zero
from diffsim.ir.print_format import CheckKind
from diffsim.ir.sparse import Level, Place, is_active
from diffsim.ir.types import i32, u8
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.narrowing import narrowed
from diffsim.lang.frontend.values import Evaluated, StructValue
from diffsim.lang.host.field_like import FieldLike, NodeLike, is_field, is_node, is_struct_field
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

METHODS = ("append", "length", "deactivate", "parent")
"""The functions that `x[i].append(v)` and the like call, where x is in a dynamic; and `x.parent()`."""


# ---- operands


def node_of(cx: TranslationContext, thing: Evaluated, node: SyntaxNode) -> NodeLike:
    """Return a node of a tree that was given; for a field the node that it is placed in."""
    found = getattr(thing, "node", None) if is_field(thing) else thing
    if not is_node(found):
        raise cx.type_error(
            node,
            f"this takes a node of a layout tree, not {describe(thing)}",
            "name the node: block = ds.root.pointer(ds.ij, 64), or x.parent() of a field in it",
        )
    return found


def level_of(cx: TranslationContext, found: NodeLike, node: SyntaxNode) -> Level:
    """Return the level of a sparse node."""
    if found.kind in ("root", "dense") or found.cell_place is None:
        raise cx.type_error(
            node,
            f"the cells of a {found.kind} node are active at all times",
            "name a pointer, bitmasked, hash or dynamic node",
        )
    return found.cell_place.level


def index_of(cx: TranslationContext, thing: Evaluated, n: int, node: SyntaxNode) -> list[Value]:
    """Return the indices that were given: a number, several, or a vector."""
    made: list[Value] = []
    for one in thing if isinstance(thing, (list, tuple)) else [thing]:
        if isinstance(one, Matrix):
            one = cx.value(one, node)
        if isinstance(one, Value) and len(one.type.shape) == 1:
            made += linalg.elements(one)
        else:
            made.append(cx.value(one, node, "an index"))
    for v in made:
        if not v.type.is_int or v.type.shape:
            raise cx.type_error(
                node,
                f"an index is a whole number, not {describe(v)}",
                "convert it: ds.cast(i, ds.i32)",
            )
    if len(made) != n:
        raise cx.type_error(
            node,
            f"{n} ind{'ex is' if n == 1 else 'ices are'} needed here, {len(made)} given",
            "give the index of a cell of the node: [i, j]",
        )
    return made


# ---- cells


def activate(cx: TranslationContext, level: Level, cell: Sequence[Value]) -> None:
    """Emit the activation of a cell."""
    cx.builder.atomic("or", cx.use(level.mask), level.slot(cell), Const(u8, 1))


def deactivate(
    cx: TranslationContext, found: NodeLike, level: Level, cell: Sequence[Value]
) -> None:
    """Emit what makes a cell inactive with all that is in it; elements become 0."""
    below = [level, *found.sparse_below()]
    _Clearing(cx, below, found.memories()).cell(level, tuple(cell))


class _Clearing:
    """Emits the deactivation of cells, from the outside inwards."""

    def __init__(
        self,
        cx: TranslationContext,
        levels: list[Level],
        memories: list[tuple[Mem, tuple[int, ...]]],
    ) -> None:
        self.cx = cx
        self.levels = levels
        self.memories = memories

    def cell(self, level: Level, cell: tuple[Value, ...]) -> None:
        """Emit the deactivation of one cell (of a dynamic level: of a whole list), if it is active."""
        b = self.cx.builder
        slot = level.slot(cell)
        found = b.load(self.cx.use(level.mask), slot)
        none = Const(level.mask.dtype, 0)
        with b.block() as made:
            for inner in self.levels:
                if inner.parent is level:
                    place = Place(inner.axes, inner.mask.shape or (), level)
                    _nest(b, list(_within(b, place, cell, None)), self._inner(inner))
            for mem, _ in self.memories:
                if mem.place is not None and mem.place.level is level:
                    length = None if level.list_axis is None else found
                    bounds = list(_within(b, mem.place, cell, length))
                    _nest(b, bounds, self._element(self.cx.use(mem)))
            b.store(level.mask, slot, none)
        b.add(If(b.named("ne", found, none), Block(made), Block([]), (), b.span))

    def _inner(self, level: Level) -> Callable[[tuple[Value, ...]], None]:
        return lambda cell: self.cell(level, cell)

    def _element(self, mem: Mem) -> Callable[[tuple[Value, ...]], None]:
        b = self.cx.builder
        return lambda index: b.store(mem, index, zero(mem.dtype))


def _within(
    b: Builder, place: Place, cell: tuple[Value, ...], length: Value | None
) -> Iterator[tuple[Value, Value]]:
    """Yield for each axis of a place the first element within a cell, and how many there are.

    `length`: of the list that a cell of a dynamic level stands for.
    """
    level = place.level
    factors = place.factors(level)
    for a, factor in zip(place.axes, factors, strict=True):
        if a not in level.axes:
            yield Const(i32, 0), Const(i32, factor)
            continue
        k = level.axes.index(a)
        if k == level.list_axis and length is not None:
            most = Const(i32, level.shape[k])
            yield Const(i32, 0), b.named("min", length, most) * factor
        else:
            yield b.cast(cell[k], i32) * factor, Const(i32, factor)


def _nest(
    b: Builder, bounds: list[tuple[Value, Value]], body: Callable[[tuple[Value, ...]], None]
) -> None:
    """Emit a nest of loops over first..first + count along each axis."""

    def along(k: int, index: tuple[Value, ...]) -> None:
        if k == len(bounds):
            body(index)
            return
        first, count = bounds[k]
        if isinstance(count, Const) and count.value == 1:
            along(k + 1, (*index, first))
            return
        offset = Value(i32)
        with b.block() as stmts:
            along(k + 1, (*index, first + offset))
        b.add(For(offset, Const(i32, 0), count, (), (), Block(stmts), (), b.span))

    along(0, ())


# ---- lists


def list_cell(
    cx: TranslationContext, level: Level, index: Evaluated, node: SyntaxNode
) -> tuple[Value, ...]:
    """Return a cell of the list that an index around it names."""
    at = level.list_axis
    assert at is not None
    given = index_of(cx, index, len(level.axes) - 1, node)
    return (*given[:at], Const(i32, 0), *given[at:])


def length(cx: TranslationContext, level: Level, cell: Sequence[Value]) -> Value:
    """Emit the length of a list."""
    b = cx.builder
    assert level.list_axis is not None
    found = b.load(cx.use(level.mask), level.slot(cell))
    # What did not fit was counted, and is missing.
    return b.named("min", found, Const(i32, level.shape[level.list_axis]))


def append(
    cx: TranslationContext,
    targets: Sequence[tuple[FieldLike, Evaluated]],
    cell: tuple[Value, ...],
    node: SyntaxNode,
) -> Value:
    """Emit the append of values to a list; return the index of the new element."""
    b = cx.builder
    first = targets[0][0]._mem.place
    assert first is not None
    level = first.level
    at = level.list_axis
    assert at is not None
    most = Const(i32, level.shape[at])
    values = [
        narrowed(cx, cx.value(v, node, "the value", f.dtype), f.dtype, "an element")
        for f, v in targets
    ]
    old = b.atomic("add", cx.use(level.mask), level.slot(cell), Const(i32, 1), wants_old=True)
    assert old is not None
    fits = b.named("lt", old, most)
    if cx.debug:
        message = "a list of a dynamic is full"
        b.add(Check(fits, message, (), b.span, kind=CheckKind.FULL_LIST))
    with b.block() as made:
        for (f, _), v in zip(targets, values, strict=True):
            mem = cx.use(f._mem)
            assert mem.place is not None
            if mem.place.shape != level.shape:
                raise cx.type_error(
                    node,
                    "only fields placed in the dynamic itself can be appended to",
                    "store x[i, k]",
                )
            if v.type.shape != mem.dtype.shape:
                raise cx.type_error(
                    node,
                    f"an element of {mem.name} is {describe(zero(mem.dtype))}, this is {describe(v)}",
                    "append a value of its type",
                )
            b.store(mem, (*cell[:at], old, *cell[at + 1 :]), v)
    b.add(If(fits, Block(made), Block([]), (), b.span))
    return old


def members_of(
    cx: TranslationContext, thing: Any, value: Evaluated, node: SyntaxNode
) -> list[tuple[FieldLike, Evaluated]]:
    """Return the fields that a value is appended to, each with its part of the value."""
    if not is_struct_field(thing):
        return [(thing, value)]
    if not isinstance(value, StructValue) or value.type is not thing.type:
        raise cx.type_error(
            node,
            f"this is {describe(value)}",
            f"append a {thing.type.__name__}: {thing.type.__name__}(...)",
        )
    found: list[tuple[FieldLike, Evaluated]] = []
    for name, member in thing._struct.items():
        found += members_of(cx, member, value.members[name], node)
    return found


def method(cx: TranslationContext, node: ast.Call) -> tuple[Evaluated] | None:
    """Translate a call of one of METHODS; None: it is no such call."""
    called = node.func
    assert isinstance(called, ast.Attribute)
    if called.attr != "parent":
        return _list_method(cx, node, called)
    owner = called.value
    if isinstance(owner, ast.Call):
        inner = owner.func
        found = (
            method(cx, owner)
            if isinstance(inner, ast.Attribute) and inner.attr == "parent"
            else None
        )
        thing = found and found[0]
    else:
        thing = (
            expressions.expr(cx, owner) if isinstance(owner, (ast.Name, ast.Attribute)) else None
        )
    if not is_node(thing) and not is_field(thing):
        return None
    numbers = [expressions.expr(cx, a) for a in node.args]
    if node.keywords or any(type(n) is not int for n in numbers):
        raise cx.type_error(node, "parent takes a whole number", "write x.parent(2)")
    made: NodeLike = thing.parent(*numbers)  # type: ignore[union-attr]
    return (made,)


def _list_method(
    cx: TranslationContext, node: ast.Call, called: ast.Attribute
) -> tuple[Evaluated] | None:
    """Translate `x[i].append(v)`, `x[i].length()` or `x[i].deactivate()`; None: it is no such call."""
    owner = called.value
    # The only list of a tree, `root.dynamic(ds.i, n)`, needs no index: `x.append(v)`.
    base = owner.value if isinstance(owner, ast.Subscript) else owner
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return None
    thing: Any = expressions.expr(cx, base)
    one: Any = thing
    while is_struct_field(one):
        one = next(iter(one._struct.values()))
    place = one._mem.place if is_field(one) else None
    if place is None or place.level.list_axis is None:
        return None
    cx.builder.span = cx.span(node)
    index = expressions.expr(cx, owner.slice) if isinstance(owner, ast.Subscript) else None
    cell = list_cell(cx, place.level, [] if index is None else index, node)
    wanted = 1 if called.attr == "append" else 0
    if len(node.args) != wanted or node.keywords:
        raise cx.type_error(
            node,
            f".{called.attr} takes {wanted} value{'s' * (wanted != 1)}",
            "write x[i].append(value)",
        )
    if called.attr == "append":
        value = expressions.expr(cx, node.args[0])
        return (append(cx, members_of(cx, thing, value, node), cell, node),)
    if called.attr == "length":
        return (length(cx, place.level, cell),)
    deactivate(cx, one.node, place.level, cell)
    return (None,)


def ask_active(cx: TranslationContext, level: Level, cell: Sequence[Value]) -> Value:
    """Emit whether a cell is active."""
    cx.use(level.mask)
    return is_active(cx.builder, level, cell)
