"""Iteration spaces of loops: ranges, boxes of indices, fields, and sequences that are unrolled."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.ir.nodes import Block, Const, If, Mem, Stmt, Value
from diffsim.ir.sparse import Place
from diffsim.ir.types import Type, an, i32, i64
from diffsim.lang.frontend import calls, expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import containers, sequences, structs
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.values import Evaluated, StructValue, holds_fields
from diffsim.lang.host.field_like import (
    FieldLike,
    is_any_field,
    is_component,
    is_field,
    is_node,
    is_struct_field,
)
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.host.source import SyntaxNode
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.tracebacks import IS_OWN


class Space:
    """An iteration space: a box of indices, or items known at compile time (`static`).

    Attributes:
        axes: the bounds of each index, of one integer type each, the fastest one last.
        written: for each axis of a field its place in `axes`, if the field has another order in memory.
        kind: "single", "tuple", "grouped" or "none" (of a 0-D field): how the target receives the indices.
        static: the items, if they are known at compile time; then there are no axes.
        start: the first number of a range with a step, whose axis counts iterations; None for others.
        step: the step of such a range.
        active: the place in a sparse tree whose active elements alone are meant.
        origin: what is added to each index: the offset of a field in a sparse tree, whose axes count from 0.
    """

    def __init__(
        self,
        axes: list[tuple[Value, Value]],
        *,
        kind: str = "tuple",
        static: object = None,
        start: Value | None = None,
        step: int = 1,
        active: Place | None = None,
        order: Sequence[int] = (),
        origin: Sequence[int] = (),
    ) -> None:
        self.active = active
        self.origin = origin
        self.axes = [axes[k] for k in order] if order else axes
        self.written = tuple(order.index(k) for k in range(len(order)))
        self.kind = kind
        self.static = static
        self.start = start
        self.step = step

    def item(self, cx: TranslationContext, indices: list[Value]) -> Evaluated:
        """Return what the loop's target is bound to in the iteration with these indices."""
        # Normalized loops (from 0, with step 1) are what the dependence
        # analysis understands; the index is affine in the counter.
        if self.start is not None:
            return self.start + indices[0] * self.step
        if self.kind == "none":
            return ()
        if self.written:
            indices = [indices[k] for k in self.written]
        if any(self.origin):
            indices = [i + o if o else i for i, o in zip(indices, self.origin, strict=True)]
        if self.kind == "grouped":
            return cx.builder.tensor_of(indices, (len(indices),))
        return indices[0] if self.kind == "single" else tuple(indices)

    def only_active(
        self, cx: TranslationContext, indices: Sequence[Value], body: list[Stmt]
    ) -> None:
        """Emit statements of an iteration, under the condition that its element is active."""
        b = cx.builder
        if self.active is None:
            b.stmts += body
            return
        cx.use(self.active.level.mask)
        cond = self.active.is_active(b, indices)
        b.add(If(cond, Block(body), Block([]), (), b.span))

    def hint(self, target: ast.expr, k: int) -> str:
        """Return the name of the k-th index in printed IR."""
        k = self.written.index(k) if self.written else k
        if isinstance(target, ast.Name):
            return target.id if len(self.axes) == 1 else f"{target.id}{k}"
        if isinstance(target, (ast.Tuple, ast.List)) and k < len(target.elts):
            one = target.elts[k]
            return one.id if isinstance(one, ast.Name) else ""
        return ""


class Grouped:
    """The value of `ds.grouped(...)`: an iteration space whose indices form one vector."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def in_words(self) -> str:
        return "ds.grouped(...)"


class NdRange:
    """The value of `ds.ndrange(...)`: a box of indices, with bounds that may be run-time values."""

    def __init__(self, bounds: list[tuple[Any, ...]]) -> None:
        self.bounds = bounds

    def in_words(self) -> str:
        return "ds.ndrange(...)"

    def __iter__(self) -> Any:
        # Only unrolling and Python iterate over the object itself; loops of kernels use its bounds.
        if not all(isinstance(x, int) for pair in self.bounds for x in pair):
            raise TypeError("bounds known while compiling are needed")
        lo = [a for a, _ in self.bounds]
        # As `range`, a box whose end is before its start is empty.
        sizes = [max(0, b - a) for a, b in self.bounds]
        for index in np.ndindex(*sizes):
            yield tuple(i + a for i, a in zip(index, lo, strict=True))


def _order_of(mem: Mem) -> tuple[int, ...]:
    """Return the axes of a dense field from slowest to fastest; () if that is their own order."""
    strides = mem.strides
    if strides is None or mem.place is not None or mem.in_blocks:
        return ()
    order = tuple(sorted(range(mem.rank), key=lambda k: -strides[k]))
    return () if order == tuple(range(mem.rank)) else order


def is_static(cx: TranslationContext, node: ast.expr) -> bool:
    """Return whether a loop is unrolled, by its head alone: nothing is computed yet."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.ListComp)):
        return True
    if isinstance(node, ast.Subscript):  # of a list of lists or of fields, or a part of one
        return is_static(cx, node.value) and not _names_field(cx, node)
    head = node.func if isinstance(node, ast.Call) else node
    if not isinstance(head, (ast.Name, ast.Attribute)):
        return False
    found = expressions.expr(cx, head)
    if head is node:
        return _is_sequence(found)
    if isinstance(found, Intrinsic):
        return found.__name__ == "static"
    made = calls.is_hashable(found) and (found in sequences.SEQUENCES or found is tuple)
    return made or containers.is_method(found)


def _names_field(cx: TranslationContext, node: ast.Subscript) -> bool:
    """Return whether `fields[0]` or `layers["w"][0]` names a field, whose elements a loop runs over."""
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return False
    # Only of fields is the element looked at: of numbers, it may take code to compute it.
    return holds_fields(expressions.expr(cx, base)) and is_any_field(expressions.expr(cx, node))


# The body is translated once per item: compiling more than this would take minutes and much memory.
MOST_UNROLLED = 1 << 16


def _is_sequence(thing: Evaluated) -> bool:
    """Return whether a loop over it is unrolled: a list, a vector or a dictionary."""
    if isinstance(thing, Value):
        return bool(thing.type.shape)
    return isinstance(thing, (list, tuple, dict, Matrix, Static))


def items_of(cx: TranslationContext, thing: Evaluated, node: ast.expr) -> list[Any]:
    """Return the items of a sequence.

    Raises:
        KernelTypeError: it is none.
    """
    if isinstance(thing, (range, str)):
        if len(thing) > MOST_UNROLLED:
            raise cx.type_error(
                node,
                "a list of this would be large, and it is computed while the kernel is compiled",
                "compute it in Python, outside the kernel, or in the kernel, in a loop",
            )
        return list(thing)
    if isinstance(thing, NdRange) or (isinstance(thing, np.ndarray) and thing.ndim):
        return list(thing)
    if not _is_sequence(thing):
        # A container or iterator of the program: its items are observed as one call of `list`.
        if hasattr(type(thing), "__iter__") and not is_any_field(thing):
            found: list[Any] = folding.fold(cx, node, list, thing)
            return found
        raise cx.type_error(
            node,
            f"{describe(thing)} is no list whose length is known when the kernel is compiled",
            "give a list, a vector or range(n) with a constant n",
        )
    return _items(cx, thing, node)


def _items(cx: TranslationContext, thing: Evaluated, node: ast.expr) -> list[Any]:
    """Return what a loop over a sequence visits."""
    if isinstance(thing, Value):
        flat = linalg.elements(thing)
        width = thing.type.shape[-1]
        if len(thing.type.shape) == 1:
            return flat
        rows = [flat[k : k + width] for k in range(0, len(flat), width)]
        return [cx.builder.tensor_of(row, (width,)) for row in rows]
    found: list[Any]
    if isinstance(thing, dict):
        found = containers.keys(cx, thing, node)
    elif isinstance(thing, (list, tuple, Static)):
        found = list(thing)
    else:
        found = folding.fold(cx, node, list, thing)
    check_unrolled(cx, node, len(found))
    return found


def check_unrolled(cx: TranslationContext, node: SyntaxNode, count: int) -> None:
    """Refuse to unroll so many iterations."""
    if count > MOST_UNROLLED:
        raise cx.syntax(
            node,
            f"a loop of {count} iterations is too long to be unrolled",
            "keep the numbers in a field, and loop over range(n)",
        )


def iteration_space(cx: TranslationContext, node: ast.expr) -> Space:
    """Evaluate what a `for` runs over."""
    called = node.func if isinstance(node, ast.Call) else None
    # Before the call is evaluated: the bounds of `range` may
    # be run-time values, which Python's own does not take.
    if isinstance(called, ast.Name) and expressions.expr(cx, called) is range:
        assert isinstance(node, ast.Call)
        return _range_space(cx, node)
    thing = expressions.expr(cx, node)
    kind = "tuple"
    if isinstance(thing, Static):
        return Space([], static=thing.items)
    if isinstance(thing, Grouped):
        kind, thing = "grouped", thing.inner
    if isinstance(thing, NdRange):
        axes = [_bounds(cx, node, lo, hi) for lo, hi in thing.bounds]
        kind = "single" if len(axes) == 1 and kind == "tuple" else kind
        return Space(axes, kind=kind)
    if is_any_field(thing) and isinstance(node, ast.Call) and is_static(cx, node):
        name = ast.unparse(node.args[0])
        raise cx.syntax(
            node,
            f"{describe(thing)} cannot be unrolled",
            f"write ds.static(range({name}.shape[0])), or leave ds.static out",
        )
    while is_struct_field(thing):  # all members have one shape, also those of structs inside
        thing = next(iter(thing._struct.values()))
    if is_component(thing):
        thing = thing.base
    if is_field(thing):
        return _over_field(cx, node, thing, kind)
    if is_node(thing):
        if not thing.axes:
            raise cx.type_error(
                node,
                "a loop cannot run over ds.root",
                "loop over a field, or over a node below it",
            )
        axes = [_bounds(cx, node, 0, n) for n in thing.shape]
        kind = "single" if len(axes) == 1 and kind == "tuple" else kind
        return Space(axes, kind=kind, active=thing.cell_place)
    if isinstance(thing, range):
        # A range object from outside the kernel, or one of constants.
        return _counted(cx, node, thing.start, thing.stop, thing.step)
    if _is_sequence(thing):
        return Space([], static=_items(cx, thing, node))
    raise cx.type_error(
        node,
        f"a loop cannot run over {describe(thing)}",
        hint="loop over range(len(array)), or take it by a parameter annotated ds.types.ndarray()"
        if isinstance(thing, np.ndarray)
        else "loop over range(n), ds.ndrange(n, m), a field, ds.grouped(field) or ds.static(list)",
    )


def _over_field(cx: TranslationContext, node: ast.expr, thing: FieldLike, kind: str) -> Space:
    """Return the indices of a field or array; of one in a sparse tree those that are active."""
    mem = cx.use(thing._mem)
    # One iteration, for the only element: its index is the empty tuple, x[()].
    if mem.rank == 0:
        return Space([_bounds(cx, node, 0, 1)], kind="none")
    # The shape of a field is constant, that of an array argument a run-time value.
    kind = "single" if mem.rank == 1 and kind == "tuple" else kind
    if mem.place is not None:
        axes = [_bounds(cx, node, 0, n) for n in thing.shape]
        return Space(axes, kind=kind, active=mem.place, order=_order_of(mem), origin=mem.origin)
    # With the offset of a field, which arguments do not have.
    ends = [o + n if o else n for o, n in zip(mem.origin, thing.shape, strict=True)]
    axes = [_bounds(cx, node, o, end) for o, end in zip(mem.origin, ends, strict=True)]
    return Space(axes, kind=kind, order=_order_of(mem))


class Static:
    """The value of `ds.static(things)`: items that a `for` is unrolled over."""

    def __init__(self, items: Sequence[object]) -> None:
        self.items = items

    def in_words(self) -> str:
        return "ds.static(...)"

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, k: Any) -> Evaluated:
        return self.items[k]


def _bounds(cx: TranslationContext, node: SyntaxNode, lo: Any, hi: Any) -> tuple[Value, Value]:
    """Convert bounds to values of one integer type: i32, or i64 where that is not enough."""
    # Indices of 32 bits use half of the registers of 64, and are faster on GPUs.
    t: Type = i32
    for x in (lo, hi):
        # Both bounds have one type, that of the index: i64 if either of them needs it.
        if isinstance(x, Value):
            if not x.type.is_int or x.type.shape:
                raise cx.type_error(
                    node,
                    f"a bound of a loop is a whole number, not {an(x.type)}",
                    hint="divide with //, or convert it: ds.cast(n, ds.i32)",
                )
            # The upper half of u32 does not fit into i32.
            if x.type.bits == 64 or x.type.name == "u32":  # type: ignore[union-attr]
                t = i64
        elif isinstance(x, bool) or not isinstance(x, (int, np.integer)):
            name = x._mem.name if is_field(x) else ""
            raise cx.type_error(
                node,
                f"a bound of a loop is a whole number, not {describe(x)}",
                f"for a field use {name}.shape[0]"
                if name
                else "divide with //, or convert it: int(n)",
            )
        elif not i64.holds(int(x)):
            raise cx.type_error(
                node,
                f"{shown(x)} iterations are too many for a loop",
                "bounds of loops have 64 bits",
            )
        elif not i32.holds(int(x)):
            t = i64
    made = [
        cx.builder.cast(x, t.scalar) if isinstance(x, Value) else Const(t, int(x)) for x in (lo, hi)
    ]
    return made[0], made[1]


def _range_space(cx: TranslationContext, node: ast.Call) -> Space:
    """Evaluate `range(...)`."""
    args = calls.arguments(cx, node)
    if node.keywords or not 1 <= len(args) <= 3:
        raise cx.type_error(
            node, "range takes one to three whole numbers", "write range(end) or range(first, end)"
        )
    lo, hi = (0, args[0]) if len(args) == 1 else args[:2]
    step = args[2] if len(args) == 3 else 1
    if isinstance(step, Const):
        step = step.value
    # The sign of the step determines how the iterations are counted, so it is needed now.
    if isinstance(step, Value) or not isinstance(step, int) or step == 0:
        raise cx.type_error(
            node,
            "the step of a range is a whole number other than 0, known before the launch",
            "loop over range(n) and compute the index: first + k * step",
        )
    # Errors point to the argument if there is only one.
    return _counted(cx, node.args[0] if len(node.args) == 1 else node, lo, hi, step)


def _counted(cx: TranslationContext, node: ast.expr, lo: Any, hi: Any, step: int) -> Space:
    """Return the space of a range; one with a step counts iterations from 0."""
    first, last = _bounds(cx, node, lo, hi)
    if step == 1:
        return Space([(first, last)], kind="single")
    # The number of iterations is ceil(gap / |step|), or 0 if the range is empty.
    gap = last - first if step > 0 else first - last
    count = cx.builder.named(
        "max", cx.builder.named("floordiv", gap + (abs(step) - 1), abs(step)), 0
    )
    zero = cx.builder.const(0, first.type)
    return Space([(zero, count)], kind="single", start=first, step=step)


def bind_target(cx: TranslationContext, target: ast.expr, item: Evaluated) -> None:
    """Bind a loop's target to its item: a name, or nested tuples of names."""
    if isinstance(target, ast.Name):
        # The name of the target, for readable IR.
        if isinstance(item, Value) and not item.hint and not isinstance(item, Const):
            item.hint = target.id
        # A struct is a local that may change, as a number is.
        if isinstance(item, StructValue):
            structs.spread(cx.env, target.id, item)
        else:
            cx.env[target.id] = item
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        raise cx.syntax(
            target, "the target of a loop is a name, or several", "assign in the body of the loop"
        )
    # `for a, b in ds.static(vectors)` unpacks vectors, as an assignment does.
    if isinstance(item, Value) and len(item.type.shape) == 1:
        item = linalg.elements(item)
    elif isinstance(item, Matrix):
        item = list(item)
    if not isinstance(item, (tuple, list)) or len(item) != len(target.elts):
        n = len(item) if isinstance(item, (tuple, list)) else 1
        raise cx.type_error(
            target,
            f"each iteration of the loop gives {n} value{'s' * (n != 1)}, for {len(target.elts)} names",
            f"write as many names as values: for {', '.join('ijklmnop'[:n])} in ...",
        )
    for one, part in zip(target.elts, item, strict=True):
        bind_target(cx, one, part)


_MANY_ITERATIONS = 500


def count_unrolled(cx: TranslationContext) -> None:
    """Count an unrolled iteration, and warn of so many in a nest that compiling them takes long."""
    cx.unrolled_iterations += 1
    # The longest one: it is shortened most by running as a loop.
    node = max(cx.unrolled, key=lambda loop: loop[1])[0]
    if cx.unrolled_iterations <= _MANY_ITERATIONS or IS_OWN[cx.span(node).file]:
        return
    form = "numbers in a field, and a loop over it"
    head = node.iter.args[0] if isinstance(node.iter, ast.Call) and node.iter.args else None
    if isinstance(head, ast.Call) and ast.unparse(head.func).endswith("range"):
        form = f"for {ast.unparse(node.target)} in {ast.unparse(head)}"
        form += " in Python, around the launches of a kernel" if cx.is_outside else ""
    cx.warn_once(
        f"more than {_MANY_ITERATIONS} iterations are unrolled here, and each is compiled, which takes "
        f"seconds; a loop that runs is compiled once: {form}",
        UserWarning,
        cx.span(node.iter),
    )
