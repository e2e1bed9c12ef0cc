"""Assignment to parts of vectors and matrices: `v[0] = x`, `v.y = x`, `v.xy = w`, `v.fill(0)`.

Vectors are SSA values, which do not change: assigning to a part of a local binds the local to a new vector,
made by the op `insert`.
"""

from __future__ import annotations

import ast
from typing import Any

from diffsim.ir.nodes import Mem, Value
from diffsim.ir.op import TABLE
from diffsim.ir.types import Type, an
from diffsim.lang.frontend import assignments, iteration_spaces, statements, subscripts
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.expressions import expr
from diffsim.lang.frontend.functions import custom_derivatives, structs
from diffsim.lang.frontend.narrowing import keep_type
from diffsim.lang.frontend.operators import slicing
from diffsim.lang.frontend.operators.folding import Number
from diffsim.lang.frontend.values import Evaluated, KernelContainer, KernelLocal, StructVar
from diffsim.lang.host.field_like import is_component, is_field
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix

Place = tuple[Mem, tuple[Value, ...]]


def assign(cx: TranslationContext, target: ast.expr, thing: Evaluated, source: ast.expr) -> None:
    """Assign to a part of a local: `v[0] = x`, `A[i, j] = x`, `v.y = x`, `v.zx = w`, `p.pos = x`."""
    custom_derivatives.refuse_assignment(cx, target)
    # A member of a local struct has a name of its own, "p.pos".
    member = structs.local_name(cx, target)
    if member is not None:
        assignments.assign_local(cx, member, thing, target)
        return
    if isinstance(target, ast.Subscript):
        _refuse_dictionary(cx, target)
    chosen: list[int] = []
    if isinstance(target, ast.Attribute):
        holder = expr(cx, target.value)
        local = isinstance(holder, (Value, list, Matrix))
        chosen = _chosen(cx, target)
        if not chosen or not local:
            raise cx.syntax(
                target,
                f"an attribute of {describe(holder)} cannot be assigned in a kernel",
                "its components are x, y, z and w" if local else "keep what changes in a 0-D field",
            )
    # Several elements at once, named by a slice or by fewer indices than axes.
    if isinstance(target, ast.Subscript) and _assign_slice(cx, target, thing, source):
        return
    if not isinstance(target, (ast.Subscript, ast.Attribute)):
        raise cx.syntax(target, "this cannot be assigned to", "assign to a name or to an element")
    base = target.value
    index: list[Value] = []
    if isinstance(target, ast.Subscript):
        index = subscripts.index_list(cx, target)
    # `A[i][j]` and `A[i, j]` name the same element.
    while isinstance(base, ast.Subscript):
        index = subscripts.index_list(cx, base) + index
        base = base.value
    # The chain must begin with a local: a vector from outside the kernel is a constant.
    name = structs.local_name(cx, base)
    if name is None and not isinstance(base, ast.Name):
        raise cx.syntax(target, "this cannot be assigned to", "assign to an element of a local")
    owner = expr(cx, base)
    if name is None:
        raise cx.type_error(
            target,
            f"{ast.unparse(base)} is {describe(owner)} from outside the kernel and cannot be "
            "changed in it",
            "copy it to a local first, or keep it in a field",
        )
    # A constant that is changed becomes a value.
    if isinstance(owner, (list, Matrix)):
        owner = cx.value(owner, base)
    if not isinstance(owner, Value) or not owner.type.shape:
        raise cx.type_error(
            target,
            f"{name} is {describe(owner)}, whose elements cannot be assigned",
            "make it a vector: ds.Vector([...])",
        )
    dims = owner.type.shape
    if chosen and len(index) + 1 == len(dims) and max(chosen) >= dims[-1]:
        raise cx.type_error(
            target,
            f"{an(owner.type)} has no element {max(chosen)}",
            f"the last one is {dims[-1] - 1}",
        )
    things = split(cx, thing, len(chosen), source) if len(chosen) > 1 else [thing]
    # A swizzle such as `v.xy = w` inserts one element after the other.
    ends = [[cx.builder.literal(k)] for k in chosen] or [[]]
    for one, end in zip(things, ends, strict=True):
        new = cx.value(one, source, "the value", like=owner.type)
        # An element keeps the vector's scalar type, as a local keeps its own.
        new = keep_type(cx, new, owner.type.scalar, f"an element of {name}", source)
        owner = cx.builder.op(TABLE["insert"], (owner, new, *index, *end))
    assignments.assign_local(cx, name, owner, target)


def _refuse_dictionary(cx: TranslationContext, target: ast.Subscript) -> None:
    """Refuse `d["x"] = v`: a dictionary is known at compile time, and is the same everywhere."""
    owner = cx.env.get(target.value.id) if isinstance(target.value, ast.Name) else None
    if isinstance(owner, KernelContainer):
        owner = owner.form
    if isinstance(owner, dict):
        name = ast.unparse(target.value)
        raise cx.type_error(
            target,
            f"{name} is a dictionary, which cannot be changed in a kernel",
            f"make another one: {name} = {{**{name}, {ast.unparse(target.slice)}: ...}}, or use locals",
        )


def _assign_slice(
    cx: TranslationContext, target: ast.Subscript, thing: Evaluated, source: ast.expr
) -> bool:
    """Assign to a slice of a local: `v[:2] = w`, `A[:, 0] = w`, `A[1] = w`; False if the target is none."""
    name = structs.local_name(cx, target.value)
    owner = None if name is None else expr(cx, target.value)
    if isinstance(owner, (list, Matrix)) and slicing.slices(target):
        owner = cx.value(owner, target)
    if name is None or not isinstance(owner, Value) or not _is_slice(cx, target, owner.type):
        return False
    places, shape = slicing.slice_of(cx, target, owner.type)
    for at, one in zip(places, spread(cx, thing, shape, source), strict=True):
        new = cx.value(one, source, "the value", like=owner.type)
        new = keep_type(cx, new, owner.type.scalar, f"an element of {name}", source)
        owner = cx.builder.op(TABLE["insert"], (owner, new, *at))
    assignments.assign_local(cx, name, owner, target)
    return True


def _is_slice(cx: TranslationContext, target: ast.Subscript, owner: Type) -> bool:
    """Return whether `owner[...]` names several elements."""
    if not owner.shape:
        return False
    return slicing.slices(target) or len(subscripts.index_list(cx, target)) < len(owner.shape)


def spread(
    cx: TranslationContext, thing: Evaluated, shape: tuple[int, ...], source: ast.expr
) -> list[Any]:
    """Return what is assigned to each element of a slice."""
    # A vector or list goes element by element, a number to all.
    if len(shape) == 1:
        return split(cx, thing, shape[0], source)
    v = cx.value(thing, source)
    # Exact shapes: NumPy's broadcasting of rows would hide mistakes.
    if v.type.shape and v.type.shape != shape:
        raise cx.type_error(
            source,
            f"{shape[0]} x {shape[1]} elements are assigned {an(v.type)}",
            "give a matrix of that shape, or one number for all",
        )
    # In row order, in which the places are listed too.
    return linalg.elements(v) if v.type.shape else [v] * (shape[0] * shape[1])


def _chosen(cx: TranslationContext, target: ast.Attribute) -> list[int]:
    """Return the elements that `.y` or `.zx` names for an assignment; none for other names."""
    first = linalg.COMPONENTS.get(target.attr)
    chosen = linalg.swizzle(target.attr) or ([] if first is None else [first])
    # With two values for one element the order would decide; GLSL refuses it as well (4.60, 5.5).
    if len(set(chosen)) < len(chosen):
        raise cx.syntax(
            target, f".{target.attr} names an element twice", "assign each of them once"
        )
    return chosen


def component_places(
    cx: TranslationContext, target: ast.expr
) -> tuple[list[Place], tuple[int, ...]] | None:
    """Return the places that `x[i].zx`, `x[i][:2]` or `A[i][0]` names in a field, and their shape."""
    # Members of structs are whole values, not components.
    if structs.local_name(cx, target) is not None or subscripts.is_member(cx, target):
        return None
    swizzle = isinstance(target, ast.Attribute) and linalg.swizzle(target.attr) is not None
    if not swizzle and not isinstance(target, ast.Subscript):
        return None
    assert isinstance(target, (ast.Attribute, ast.Subscript))
    # The element in memory, of which components are stored one by one: no other component is written, so
    # lanes may write different components of one element.
    inner = subscripts.resolve_place(cx, target.value)
    if inner is None or isinstance(inner, structs.StructPlace):
        return None
    mem, index = inner
    if isinstance(target, ast.Attribute):
        places = [subscripts.component_place(cx, inner, (k,), target) for k in _chosen(cx, target)]
        if any(place is None for place in places):
            raise cx.type_error(
                target,
                f"a matrix has no .{target.attr}",
                "name elements by their indices: [i, j]",
            )
        return [place for place in places if place is not None], (len(places),)
    # An index longer than the rank already names a component.
    if len(index) > mem.rank or not _is_slice(cx, target, mem.dtype):
        return None
    chosen, shape = slicing.slice_of(cx, target, mem.dtype)
    return [(mem, (*index, *(cx.value(k, target) for k in at))) for at in chosen], shape


def split(cx: TranslationContext, thing: Evaluated, n: int, source: ast.expr) -> list[Any]:
    """Return what is assigned to each of n elements: those of a vector or list, or one number for all."""
    if isinstance(thing, Value) and len(thing.type.shape) == 1:
        thing = linalg.elements(thing)
    elif isinstance(thing, Matrix):
        thing = list(thing)
    elif isinstance(thing, Number) or (isinstance(thing, Value) and not thing.type.shape):
        thing = [thing] * n
    if not isinstance(thing, (list, tuple)) or len(thing) != n:
        have = f"{len(thing)} numbers" if isinstance(thing, (list, tuple)) else describe(thing)
        raise cx.type_error(
            source,
            f"{n} elements are assigned {have}",
            f"give a vector of {n} elements, or one number for all",
        )
    return list(thing)


_FIELD, _VALUE, _ELEMENTS, _AT = "fill:field", "fill:value", "fill:elements", "fill:at"


def _fill_field(cx: TranslationContext, node: ast.Call, target: ast.expr) -> bool:
    """Translate the statement `x.fill(0)` of a field as a loop over it; False if it is no field."""
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return False
    field = expr(cx, target)
    if not is_field(field) and not is_component(field):
        return False
    given = _filling(cx, node)
    number = expr(cx, given)
    dtype = field._mem.dtype if is_field(field) else field._mem.dtype.scalar
    # A number for all elements of a vector.
    if dtype.shape and isinstance(number, Number):
        number = cx.value(number, given, "the number", dtype.scalar)
    if dtype.shape and isinstance(number, Value) and not number.type.shape:
        number = keep_type(cx, number, dtype.scalar, field._mem.name, given)
        number = cx.builder.broadcast(number, dtype)
    # The loop is built as syntax, with names that no program
    # can have, so that it becomes a task like any other.
    cx.env.update({_FIELD: field, _VALUE: number, _ELEMENTS: iteration_spaces.Grouped(field)})
    at = ast.Name(_AT, ast.Load()) if field._mem.rank else ast.Constant(None)
    place = ast.Subscript(ast.Name(_FIELD, ast.Load()), at, ast.Store())
    done: ast.stmt = ast.Assign([place], ast.Name(_VALUE, ast.Load()))
    if field._mem.rank:
        elements = ast.Name(_ELEMENTS, ast.Load())
        done = ast.For(ast.Name(_AT, ast.Store()), elements, [done], [])
    # Each node needs a place in the source, for errors and spans.
    for part in ast.walk(done):
        ast.copy_location(part, node)
    statements.block(cx, [done])
    for name in (_FIELD, _VALUE, _ELEMENTS, _AT):
        cx.env.pop(name, None)
    return True


def _filling(cx: TranslationContext, node: ast.Call) -> ast.expr:
    """Return the argument of `.fill`."""
    # Taichi names it `val`, NumPy `value`.
    given = [*node.args, *[k.value for k in node.keywords if k.arg in ("val", "value")]]
    if len(given) != 1 or len(node.args) + len(node.keywords) != 1:
        raise cx.type_error(node, ".fill takes one number", "write v.fill(0.0)")
    return given[0]


def fill(cx: TranslationContext, node: ast.expr) -> bool:
    """Translate the statement `v.fill(0)` of a local or an element; False if `node` is no such call."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    target = node.func.value
    # A call in the target would be translated twice: once to find the place, once for the field.
    if node.func.attr != "fill" or any(isinstance(n, ast.Call) for n in ast.walk(target)):
        return False
    name = structs.local_name(cx, target)
    place = subscripts.resolve_place(cx, target) if name is None else None
    local = None if name is None else cx.env[name]
    if isinstance(local, (list, Matrix)):
        local = cx.value(local, target)
    if isinstance(local, StructVar) or isinstance(place, structs.StructPlace):
        return False
    # 1. A local vector. 2. An element of a field. 3. A whole field.
    if isinstance(local, (Value, KernelLocal)):
        owner = local.mem.dtype if isinstance(local, KernelLocal) else local.type
    elif place is not None:
        owner = place[0].dtype if len(place[1]) == place[0].rank else place[0].dtype.scalar
    else:
        # A name may be that of a parameter, which is a whole field.
        return _fill_field(cx, node, target)
    if not owner.shape:
        return False
    given = _filling(cx, node)
    number = cx.value(expr(cx, given), given, "the number", owner.scalar)
    if number.type.shape:
        raise cx.type_error(
            given, f".fill takes one number, not {describe(number)}", "assign it with ="
        )
    if place is not None:
        cx.builder.store(*place, assignments.stored(cx, *place, number, given))
        return True
    assert name is not None
    number = keep_type(cx, number, owner.scalar, f"an element of {name}", given)
    assignments.assign_local(cx, name, cx.builder.broadcast(number, owner), target)
    return True
