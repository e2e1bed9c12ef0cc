"""Attributes and elements: `v.x`, `x[i]`, `A[i][0, 1]`, of fields, vectors and Python objects.

A chain such as `particles[i].pos.x` is first resolved to a place in memory (`resolve_place`), so that one
component is loaded and not the whole element; any other chain is evaluated from the inside out.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError, KernelNameError
from diffsim.ir.nodes import Const, Dim, Value
from diffsim.ir.op import TABLE
from diffsim.ir.types import an
from diffsim.lang.frontend import expressions
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import containers, parents, structs
from diffsim.lang.frontend.operators import folding, slicing
from diffsim.lang.frontend.values import (
    BoundPlace,
    ElementPlace,
    Evaluated,
    Place,
    StructValue,
    holds_value,
)
from diffsim.lang.host.field_like import (
    FieldLike,
    is_any_field,
    is_component,
    is_field,
    is_struct_field,
)
from diffsim.lang.host.func import Func
from diffsim.lang.host.inspection import is_ours
from diffsim.lang.host.observations import ATTRIBUTE, ITEM, Observation, is_settled_outside
from diffsim.lang.host.peer_names import advice_for
from diffsim.lang.host.unsupported import close_to
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe, sample
from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.structs import StructType

_HOW_TO_DECLARE = {
    ("grad", False): "declare it with needs_grad=True",
    ("grad", True): "pass a ds.ndarray made with needs_grad=True",
    ("dual", False): "declare it with needs_dual=True",
    (
        "dual",
        True,
    ): "an argument's dual has no name in a kernel: give it as an argument, k(x, x.dual)",
}
"""By attribute, and whether its owner is an argument."""


def attribute_node(cx: TranslationContext, node: ast.Attribute) -> Evaluated:
    """Evaluate an attribute: of an element of a field, of a value, or of a Python object."""
    return _attribute(cx, node, strict=True)[0]


def _attribute(
    cx: TranslationContext, node: ast.Attribute, *, strict: bool
) -> tuple[Any, Observation | None]:
    """Evaluate an attribute, and return the observation that found it; see `TranslationContext.resolve`."""
    with cx.indices_once(node):
        # Only these attributes can name a part of an element; others, such as `x.shape`, are of the object.
        if node.attr in linalg.COMPONENTS or is_member(cx, node):
            place = resolve_place(cx, node)
            if isinstance(place, structs.StructPlace):
                return place.load(cx, node), None
            if place is not None:
                return cx.builder.load(*place), None
        owner, observation = _evaluate_owner(cx, node.value)
    return _attribute_of(cx, owner, observation, node, strict=strict)


def _evaluate_owner(cx: TranslationContext, node: ast.expr) -> tuple[Any, Observation | None]:
    """Evaluate an expression of which only an attribute is read, and return its observation."""
    # Not strict: in `config.dt` another `config` with the same `dt` leaves the kernel valid.
    if isinstance(node, ast.Name):
        return cx.resolve(node, strict=False)
    if isinstance(node, ast.Attribute):
        return _attribute(cx, node, strict=False)
    return expressions.expr(cx, node), None


def attribute(cx: TranslationContext, owner: Evaluated, node: ast.Attribute) -> Evaluated:
    """Evaluate an attribute of a value or a Python object."""
    return _attribute_of(cx, owner, None, node, strict=True)[0]


def _attribute_of(
    cx: TranslationContext,
    owner: Evaluated,
    observation: Observation | None,
    node: ast.Attribute,
    *,
    strict: bool,
) -> tuple[Any, Observation | None]:
    """Evaluate an attribute of an owner that is evaluated already."""
    name = node.attr
    # The attributes of an object of diffsim do not change, so observing the object itself is enough.
    if observation is not None and is_ours(owner):
        observation.strict = True
    # The shape of an array argument is that of the memory, also where no element is read.
    if isinstance(owner, expressions.ArrayRef):
        cx.use(owner._mem)
    # Values of the kernel first; what follows are objects of Python.
    if isinstance(owner, StructValue):
        return structs.attribute(cx, owner, node), None
    if isinstance(owner, parents.Parents):
        return parents.attribute(cx, owner, node), None
    if name == "fill" and isinstance(owner, (Matrix, Value)) and linalg.shape(owner):
        raise cx.type_error(
            node,
            f".fill cannot change this, {describe(owner)}",
            "write v.fill(0.0) as a statement of its own, with a local or an element of a field",
        )
    if isinstance(owner, Value):
        return _of_value(cx, owner, node), None
    # A list of numbers has the methods of a vector, as it becomes one where it is assigned.
    as_vector = isinstance(owner, list) and linalg.swizzle(name)
    if as_vector or (
        isinstance(owner, (list, tuple, Matrix)) and name in (*linalg.METHODS, "cast")
    ):
        if observation is not None:
            observation.strict = True
        if as_vector:
            return attribute(cx, cx.value(owner, node), node), None
        return expressions.Method(
            name, owner if isinstance(owner, Matrix) else cx.value(owner, node)
        ), None
    # A better message than that None has no elements.
    if (is_field(owner) or is_component(owner)) and (
        (name == "grad" and owner.grad is None) or (name == "dual" and not owner.needs_dual)
    ):
        raise KernelNameError(
            f"{owner._mem.name} has no {'gradient' if name == 'grad' else 'dual'}",
            cx.span(node),
            hint=_HOW_TO_DECLARE[name, isinstance(owner, expressions.ArrayRef)],
        )
    found = _get(cx, owner, node)
    # Not observed: see above. The value itself may still be one that cannot be compiled in.
    if is_ours(owner):
        cx.check_captured(found, node, name)
        return found, None
    made = cx.observe(ATTRIBUTE, observation or owner, name, found, node, strict=strict)
    return found, made


def _get(cx: TranslationContext, owner: Evaluated, node: ast.Attribute) -> Evaluated:
    """Read an attribute of a Python object; report errors of the program's code with the line."""
    name = node.attr
    try:
        return getattr(owner, name)
    except AttributeError as problem:
        # Of another name: raised by the code of a property, which has the attribute asked for.
        if problem.name not in (None, name):
            raise cx.program_error(node, problem) from None
    except DiffsimError:
        raise
    except Exception as problem:
        raise cx.program_error(node, problem) from None
    # A `__dir__` of the program's own could fail, or have effects.
    known = object.__dir__(owner) if not isinstance(owner, (type, types.ModuleType)) else dir(owner)
    close = close_to(name, [k for k in known if not k.startswith("_")])
    hint = f"did you mean .{close}?" if close else "look it up with dir(...)"
    raise KernelNameError(
        f"{describe(owner)} has no .{name}",
        cx.span(node),
        hint=(advice_for(name) if is_ours(owner) else None) or hint,
    )


_SIZES = ("n", "m", "ndim", "shape")
"""Attributes of vectors and matrices that are known at compile time."""


def _of_value(cx: TranslationContext, owner: Value, node: ast.Attribute) -> Evaluated:
    """Return a component, a method or the size of a value of the kernel."""
    name = node.attr
    if name in linalg.METHODS or name in ("cast", *_SIZES):
        if not owner.type.shape and name != "cast":
            raise cx.type_error(
                node, f"{an(owner.type)} has no .{name}", "vectors and matrices have it"
            )
        if name in ("n", "m"):
            # The size is part of the type, and known at compile time.
            dims = owner.type.shape
            return dims[0] if name == "n" else (dims[1] if len(dims) == 2 else 1)
        if name in ("shape", "ndim"):
            return owner.type.shape if name == "shape" else len(owner.type.shape)
        return expressions.Method(name, owner)
    # `.x` and the like are names of vectors' elements; matrices have none.
    if name in linalg.COMPONENTS and len(owner.type.shape) == 1:
        return _component(cx, owner, linalg.COMPONENTS[name], node)
    # `v.zyx` is a new vector.
    chosen = linalg.swizzle(name)
    if chosen is not None and len(owner.type.shape) == 1:
        return cx.tensor_of_rows([_component(cx, owner, k, node) for k in chosen], node)
    known = [*linalg.METHODS, "cast", *_SIZES]
    close = close_to(name, known) if owner.type.shape else None
    raise cx.type_error(
        node,
        f"{an(owner.type)} has no .{name}",
        f"did you mean .{close}?"
        if close
        else "vectors and matrices have ." + ", .".join(known)
        if owner.type.shape
        else "a number has no attributes; its type is changed by ds.cast",
    )


def _component(cx: TranslationContext, owner: Value, k: int, node: ast.expr) -> Value:
    """Extract an element of a vector by a constant index."""
    if k >= owner.type.shape[0]:
        raise cx.type_error(
            node,
            f"{an(owner.type)} has no element {k}",
            f"the last one is {owner.type.shape[0] - 1}",
        )
    return cx.builder.op(TABLE["extract"], (owner, k))


def resolve_component(cx: TranslationContext, node: ast.expr) -> Place | None:
    """Return the place that `x[i]`, `x[i][k]` or `x[i].y` names if x is a field; refuse whole structs."""
    place = resolve_place(cx, node)
    if isinstance(place, structs.StructPlace):
        raise cx.type_error(
            node,
            f"this is a {place.type.__name__} as a whole",
            f"name a member: {', '.join(f'.{m}' for m in place.fields)}",
        )
    return place


def resolve_place(cx: TranslationContext, node: ast.expr) -> structs.StructPlace | Place | None:
    """Return the place in a field that `x[i]`, `x[i].y` or `particles[i].pos` names.

    None if the expression is no such chain: then it is evaluated as a value.
    """
    if isinstance(node, ast.Name):
        bound = cx.env.get(node.id)
        return bound_place(bound) if isinstance(bound, BoundPlace) else None
    if isinstance(node, ast.Attribute):
        # The recursion follows the chain inwards to the field, and builds the index on the way back.
        inner = resolve_place(cx, node.value) if _reaches_element(cx, node) else None
        if isinstance(inner, structs.StructPlace):
            return inner.member(cx, node.attr, node)
        if inner is None:
            return None
        return component_place(cx, inner, (linalg.COMPONENTS[node.attr],), node)
    if not isinstance(node, ast.Subscript):
        return None
    # `x[i][k]`: a component of an element, or an element of a field in a list of fields.
    if (
        _is_bound(cx, node.value)
        or isinstance(node.value, ast.Subscript)
        or is_member(cx, node.value)
    ):
        inner = None if slicing.slices(node.value) else resolve_place(cx, node.value)
        if inner is None:
            return _field_place(cx, node, _in_container(cx, node.value))
        if isinstance(inner, structs.StructPlace):
            raise cx.type_error(
                node,
                f"a {inner.type.__name__} has no elements",
                f"name a member: {', '.join(f'.{m}' for m in inner.fields)}",
            )
        return component_place(cx, inner, tuple(index_list(cx, node)), node)
    if not isinstance(node.value, (ast.Name, ast.Attribute)):
        return None
    return _field_place(cx, node, expressions.expr(cx, node.value))


def bound_place(bound: BoundPlace) -> structs.StructPlace | Place:
    """Return the place that a `ds.template()` parameter is bound to."""
    if isinstance(bound, structs.StructPlace):
        return bound
    assert isinstance(bound, ElementPlace)
    return bound.place


def _is_bound(cx: TranslationContext, node: ast.expr) -> bool:
    """Return whether a name is one for a place in a field."""
    return isinstance(node, ast.Name) and isinstance(cx.env.get(node.id), BoundPlace)


def _field_place(
    cx: TranslationContext, node: ast.Subscript, owner: Evaluated
) -> structs.StructPlace | Place | None:
    """Return the place that `owner[i]` names, if owner is a field or array."""
    if is_struct_field(owner):
        index = index_list(cx, node)
        origin = owner.origin
        _check_index(cx, node, owner.name, owner.shape, origin, index)
        return structs.StructPlace(owner._struct, owner.type, _from_zero(index, origin))
    if is_component(owner):
        mem, index_of_element = element_place(cx, node, owner.base)
        return mem, (*index_of_element, *(cx.value(k, node) for k in owner.component))
    return element_place(cx, node, owner) if is_field(owner) else None


def _in_container(cx: TranslationContext, node: ast.expr) -> Evaluated:
    """Evaluate `fields[0]` or `options["x"][1]`, a chain without calls; None for other expressions."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return expressions.expr(cx, node)
    if not isinstance(node, ast.Subscript):
        return None
    # The chain is evaluated again if it turns out to be no place; a call must not run twice.
    if any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(node)):
        return None
    owner = _in_container(cx, node.value)
    return element(cx, owner, node) if isinstance(owner, (list, tuple, dict)) else None


def element_place(cx: TranslationContext, node: ast.Subscript, owner: FieldLike) -> Place:
    """Return the place of `owner[i]`; refuse a wrong number of indices, and constants out of bounds."""
    mem = cx.use(owner._mem)
    index = index_list(cx, node)
    if len(index) != mem.rank:
        axes = f"{mem.rank} ax{'i' if mem.rank == 1 else 'e'}s"
        shown = f"{len(index)} ind{'ex is' if len(index) == 1 else 'ices are'} given"
        raise cx.type_error(
            node, f"{mem.name} has {axes}, {shown}", f"write {sample(owner)} for an element"
        )
    # An array argument has a shape at run time only.
    if mem.shape is not None:
        _check_index(cx, node, mem.name, mem.shape, mem.origin, index)
    if isinstance(owner, expressions.ArrayRef) and owner.clamp:
        return mem, tuple(_clamped(cx, i, n) for i, n in zip(index, owner.shape, strict=True))
    return mem, _from_zero(index, mem.origin)


def _clamped(cx: TranslationContext, index: Value, length: Dim) -> Value:
    """Return the nearest index inside an axis, which has one index at least (`array_kind`)."""
    if isinstance(index, Const) and index.value <= 0:
        return Const(index.type, 0)
    last = length - 1
    return cx.builder.op(TABLE["max"], (cx.builder.op(TABLE["min"], (index, last)), 0))


def _from_zero(index: list[Value], origin: tuple[int, ...]) -> tuple[Value, ...]:
    """Return indices that count from 0, as the IR has them."""
    return tuple(i - o if o else i for i, o in zip(index, origin, strict=True))


def _reaches_element(cx: TranslationContext, node: ast.Attribute) -> bool:
    """Return whether an attribute names a part of an element of a field: `x[i].y`, `particles[i].pos`."""
    if node.attr in linalg.COMPONENTS and isinstance(node.value, ast.Subscript):
        return True
    # Of a struct `.x` is a member, or an error; of a vector it is a component.
    if node.attr in linalg.COMPONENTS and _is_bound(cx, node.value):
        bound = cx.env[node.value.id]  # type: ignore[attr-defined]
        return not isinstance(bound, structs.StructPlace) or is_member(cx, node)
    return is_member(cx, node)


def is_member(cx: TranslationContext, node: ast.expr) -> bool:
    """Return whether `particles[i].a.b` names a place in a field of structs; emits nothing."""
    names: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        names.append(base.attr)
        base = base.value
    if names and _is_bound(cx, base):
        bound = cx.env[base.id]  # type: ignore[attr-defined]
        return isinstance(bound, structs.StructPlace) and _leads_on(bound.fields, bound.type, names)
    if not names or not isinstance(base, ast.Subscript):
        return False
    root = base.value
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    # A chain of names and attributes of Python objects: evaluating it emits no code.
    thing = expressions.expr(cx, base.value)
    if not is_struct_field(thing):
        return False
    return _leads_on(thing._struct, thing.type, names)


def _leads_on(fields: Mapping[str, Any], t: StructType, names: list[str]) -> bool:
    """Return whether these names (the first one last) lead from a struct in a field to a part of it."""
    thing: Any = None
    while names and (thing is None or is_struct_field(thing)):
        name = names.pop()
        if name not in fields:
            # An unknown member counts as one: `StructPlace.member` reports it.
            return name not in t.methods
        thing = fields[name]
        if is_struct_field(thing):
            fields, t = thing._struct, thing.type
    return not names or (len(names) == 1 and names[0] in linalg.COMPONENTS)


def _check_index(
    cx: TranslationContext,
    node: ast.Subscript,
    name: str,
    shape: tuple[int, ...],
    origin: tuple[int, ...],
    index: list[Value],
) -> None:
    """Refuse constant indices outside the shape, and a wrong number of indices."""
    if len(index) != len(shape):
        raise cx.type_error(
            node,
            f"{name} has {len(shape)} ax{'i' if len(shape) == 1 else 'e'}s, "
            f"{len(index)} ind{'ex is' if len(index) == 1 else 'ices are'} given",
            f"write {name}[{', '.join('ijklmnop'[: len(shape)]) or None}] for an element",
        )
    for k, (i, n, first) in enumerate(zip(index, shape, origin, strict=True)):
        # Indices known only at run time are checked by the launch with debug=True.
        if isinstance(i, Const) and not first <= i.value < first + n:
            raise cx.type_error(
                node,
                f"index {i.value} is outside {name}, which has shape {shape}",
                f"along axis {k} the indices go from {first} to {first + n - 1}",
            )


def component_place(
    cx: TranslationContext,
    inner: Place,
    index: tuple[Any, ...],
    node: ast.Subscript | ast.Attribute,
) -> Place | None:
    """Return the place of a component of an element; None for a row of a matrix."""
    mem, outer = inner
    dims = mem.dtype.shape
    # The index names a component already, or the element is a number.
    if len(outer) > mem.rank or not dims:
        raise cx.type_error(
            node,
            f"{ast.unparse(node.value)} is {an(mem.dtype.scalar)}, which has no elements",
            f"take the number as it is, or declare {mem.name} with ds.Vector.field",
        )
    if len(index) == 1 and len(dims) == 2:
        # A row is no place of one memory access: it is loaded with its element and extracted.
        return None
    if len(index) != len(dims):
        raise cx.type_error(
            node,
            f"an element of {mem.name} is {an(mem.dtype)}, {len(index)} indices are given for it",
            f"write {mem.name}[...][{', '.join('ij'[: len(dims)])}]",
        )
    made = []
    for k, n in zip(index, dims, strict=True):
        # Constants are checked now, and all are converted to values.
        number = k.value if isinstance(k, Const) else k
        if not isinstance(number, Value) and not 0 <= number < n:
            raise cx.type_error(
                node,
                f"an element of {mem.name} is {an(mem.dtype)}, which has no element {number}",
                f"the last one is {n - 1}",
            )
        made.append(cx.value(k, node))
    return mem, (*outer, *made)


def index_list(cx: TranslationContext, node: ast.Subscript) -> list[Value]:
    """Evaluate the indices between brackets to integer values; vectors among them are spread."""
    made = cx.evaluated_indices.get(node)
    if made is None:
        made = _indices(cx, node, expressions.expr(cx, node.slice))
        # Inside `indices_once`: remembered for the next visit.
        if node in cx.evaluated_indices:
            cx.evaluated_indices[node] = made
    return list(made)


def _indices(cx: TranslationContext, node: ast.Subscript, found: object) -> list[Value]:
    """Convert evaluated indices to integer values."""
    # `x[None]`, the element of a 0-D field.
    if found is None:
        return []
    # Of fields: the elements of a slice are a matter for a loop.
    if any(isinstance(s, ast.Slice) for s in ast.walk(node.slice)):
        raise cx.syntax(
            node.slice,
            "a slice cannot be used as an index in a kernel",
            "write a loop over the elements",
        )
    made: list[Value] = []
    parts = found if isinstance(found, (tuple, list)) else (found,)
    # The tuples of `ds.static(ds.ndrange(n))` are spread, as index vectors are: `x[k, 0]`.
    for one in [p for part in parts for p in (part if isinstance(part, tuple) else (part,))]:
        if isinstance(one, Matrix):
            one = cx.value(one, node)
        # `x[I]` with the index vector of `ds.grouped`, possibly among others: `x[I, 0]`.
        if isinstance(one, Value) and len(one.type.shape) == 1:
            made += linalg.elements(one)
        else:
            made.append(cx.value(one, node.slice, "an index"))
    return [checked_index(cx, i, node.slice) for i in made]


def checked_index(cx: TranslationContext, index: Value, node: ast.expr) -> Value:
    """Return an index; refuse what is no integer."""
    if not index.type.is_int or index.type.shape:
        raise cx.type_error(
            node,
            f"an index is a whole number, not {an(index.type)}",
            hint="divide with //, or convert it: ds.cast(index, ds.i32)",
        )
    return index


def subscript(cx: TranslationContext, node: ast.Subscript) -> Evaluated:
    """Evaluate `x[i]`, of a field or of anything else."""
    with cx.indices_once(node):
        if slicing.slices(node):
            owner = expressions.expr(cx, node.value)
            if isinstance(owner, Value) and owner.type.shape:
                return slicing.sliced(cx, owner, node)
        place = resolve_place(cx, node)
        if isinstance(place, structs.StructPlace):
            return place.load(cx, node)
        if place is not None:
            return cx.builder.load(*place)
        owner = expressions.expr(cx, node.value)
        by_func = isinstance(getattr(type(owner), "__getitem__", None), Func)
        return expressions.expr(cx, _as_call(node)) if by_func else element(cx, owner, node)


def _as_call(node: ast.Subscript) -> ast.Call:
    """Return `x[i]` as the call of a func that the class of x has for it."""
    method = ast.copy_location(ast.Attribute(node.value, "__getitem__", ast.Load()), node)
    return ast.copy_location(ast.Call(method, [node.slice], []), node)


def _key(owner: Evaluated, found: Any) -> Any:
    """Return an evaluated index as Python's containers take it; `(k,)` counts through lists as k does."""
    if not isinstance(found, tuple):
        return found.value if isinstance(found, Const) else found
    keys = tuple(k.value if isinstance(k, Const) else k for k in found)
    return keys[0] if len(keys) == 1 and isinstance(owner, (list, tuple)) else keys


def element(cx: TranslationContext, owner: Evaluated, node: ast.Subscript) -> Any:
    """Evaluate `owner[...]` of an evaluated owner: a vector, a list, a field or another object."""
    # 1. An element of a field or array. 2. Of a vector of the kernel. 3. An item of a Python object.
    place = _field_place(cx, node, owner)
    if isinstance(place, structs.StructPlace):
        return place.load(cx, node)
    if place is not None:
        return cx.builder.load(*place)
    if isinstance(owner, Value):
        if not owner.type.shape:
            raise cx.type_error(
                node,
                f"{describe(owner)} has no elements",
                "only fields, vectors and matrices have them",
            )
        index = index_list(cx, node)
        # A row of a matrix, as a vector.
        if len(owner.type.shape) == 2 and len(index) == 1:
            width = owner.type.shape[1]
            row = [cx.builder.op(TABLE["extract"], (owner, index[0], j)) for j in range(width)]
            return cx.builder.tensor_of(row, (width,))
        return cx.builder.op(TABLE["extract"], (owner, *index))
    found = _key(owner, expressions.expr(cx, node.slice))
    # A run-time choice among fields would be a pointer, which
    # the IR does not have: analyses need to know the memory.
    if isinstance(found, Value) and isinstance(owner, (list, tuple, dict)):
        things = owner.values() if isinstance(owner, dict) else owner
        if any(map(is_any_field, things)):
            raise cx.type_error(
                node,
                f"which field of {describe(owner)} this is has to be known when the kernel is compiled",
                "loop over the fields with ds.static, or make one field of them, with an axis more",
            )
    if isinstance(owner, dict):
        found = containers.known_key(cx, found, node)
    # A run-time index into a list of numbers: the list becomes a vector, whose elements can be selected.
    if holds_value(found) and isinstance(owner, (list, tuple, Matrix, np.ndarray)):
        if node in cx.evaluated_indices:
            cx.evaluated_indices[node] = _indices(cx, node, found)
        return element(cx, cx.value(owner, node), node)
    if isinstance(owner, np.ndarray):
        cx.value(owner, node)  # refuses large ones with advice
    if not hasattr(type(owner), "__getitem__"):
        raise cx.type_error(
            node,
            f"{describe(owner)} has no elements",
            "only fields, vectors and matrices have them",
        )
    # Not observed as a call, since the container is observed;
    # the line below does it for objects of the program.
    item = folding.fold(cx, node, containers.item, owner, found, asked=False)
    # `__getitem__` is code of the program here: the answer has to be asked for again before each launch.
    if not is_settled_outside(owner) and not isinstance(found, Value):
        cx.observe(ITEM, owner, found, item, node)
    return item
