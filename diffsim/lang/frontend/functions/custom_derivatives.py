"""Custom derivatives: `@ds.func_grad`, `@ds.func_replay`, `ds.adjoint`, and `ds.grad` inside kernels.

A call of a func that has one becomes a `CustomCall` (docs/adr/0011): the func's own body, its gradient and
its replay, translated for the same arguments. While a gradient is translated, the adjoint of each parameter
is a local (ADJOINT and the parameter's name), so that branches merge it and loops carry it like any other;
the adjoint of a field is its gradient's memory.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from diffsim.errors import AutodiffError, DiffsimError, Span
from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    CustomCall,
    Gradient,
    Stmt,
    Store,
    Value,
    zero,
)
from diffsim.ir.op import TABLE
from diffsim.ir.traversal import statements as every
from diffsim.ir.types import ScalarType, TensorType, an, derivative_type
from diffsim.lang.frontend import assignments, expressions, subscripts
from diffsim.lang.frontend.context import ADJOINT, DRAWS, AdjointTargets, TranslationContext
from diffsim.lang.frontend.functions import inlining
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.values import Environment, Evaluated
from diffsim.lang.host.field_like import FieldLike, is_field
from diffsim.lang.host.func import BoundFunc, Func, Given
from diffsim.lang.host.intrinsic import Intrinsic, only_in_kernels
from diffsim.lang.host.source import Source
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.public_names import PublicNames


class Adjoint(metaclass=PublicNames):
    """`ds.adjoint[x] += v`, in the gradient of a func, adds to the adjoint of its parameter x.

    Of a field or array, `ds.adjoint[a][i] += v`. It can neither be read nor assigned.

    Example:
        @ds.func
        def root(c):
            return ds.sqrt(c)

        @ds.func_grad(root)
        def adj_root(c, s, adj_s):  # its result s, and the adjoint of that
            ds.adjoint[c] += 0.5 / s * adj_s

        @ds.kernel
        def slope(c: ds.f32) -> ds.f32:
            return ds.grad(root)(c)

        print(slope(4.0))  # prints: 0.25
    """

    _public = ""

    def __getitem__(self, key: object) -> Evaluated:
        raise DiffsimError(
            "ds.adjoint can only be added to, and only in the gradient of a func",
            Span.of_caller(),
            hint="write ds.adjoint[x] += ... in a function decorated with @ds.func_grad(f)",
        )

    # `ds.adjoint[x] += v` in Python calls __getitem__, then __setitem__: both must explain the mistake.
    def __setitem__(self, key: object, value: object) -> None:
        self[key]

    def __reduce__(self) -> str:
        """Copy and pickle by name: there is one such object."""
        return "adjoint"

    def in_words(self) -> str:
        return "ds.adjoint"


adjoint = Adjoint()


# ---- calls


def call(cx: TranslationContext, node: ast.Call, func: Func, bound: Environment) -> Evaluated:
    """Translate a call of a func that has a gradient or a replay of its own."""
    # In the order of the parameters, which is that of the gradient's and the replay's.
    bound = {p: bound[p] for p in _params(func.source)}
    for name, thing in bound.items():
        # One value, so that the adjoint of a list of numbers is one adjoint too.
        if isinstance(thing, (list, tuple)) and any(isinstance(e, Value) for e in thing):
            bound[name] = cx.value(thing, node, f"the argument {name}")
    b = cx.builder
    # 1. The body, whose results become those of the CustomCall.
    with b.block() as body:
        result, draws = _detect_draws(cx, lambda: inlining.body(cx, node, func, bound))
        found = _values(cx, node, result)
    yields = found
    # The number of draws continues after the call, so it leaves the block as one more result.
    if draws and not isinstance(cx.env[DRAWS], Const):
        yields = (*found, cx.env[DRAWS])
    # 2. The statement. Its float arguments are those that a derivative can flow to.
    made = CustomCall(
        tuple(Value(v.type) for v in yields),
        tuple(v for v in bound.values() if isinstance(v, Value) and v.type.is_float),
        Block(body, yields),
        b.span,
        name=func.source.name,
    )
    if len(yields) > len(found):
        cx.env[DRAWS] = made.outs[-1]
    # 3. The replay and the gradient.
    if func.replay is not None:
        if draws:
            raise AutodiffError(
                f"{func.source.name} draws random numbers, and a replay would not draw them",
                b.span,
                hint="draw them in the kernel and pass them as arguments",
            )
        _add_replay(cx, node, func, func.replay, bound, made)
    # Translating it again inside itself would not end; only differentiating this inner call is refused.
    if func.gradient is not None and func in cx.open_gradients:
        made.refusal = (
            f"the gradient of {func.source.name} calls {func.source.name} itself, and cannot be "
            "differentiated again"
        )
    elif func.gradient is not None:
        cx.open_gradients.append(func)
        _add_gradient(cx, node, func, func.gradient, bound, made, len(found))
        cx.open_gradients.pop()
    b.add(made)
    outs = made.outs[: len(found)]
    if isinstance(result, (list, tuple)):
        return type(result)(outs)
    return outs[0] if outs else None


def _values(cx: TranslationContext, node: ast.Call, result: Evaluated) -> tuple[Value, ...]:
    """Convert the result of a func to run-time values."""
    if result is None:
        return ()
    many = result if isinstance(result, (list, tuple)) else (result,)
    return tuple(cx.value(r, node, "what it returns") for r in many)


def _params(source: Source) -> list[str]:
    """Return the names of a function's parameters."""
    spec = source.node.args
    return [p.arg for p in (*spec.posonlyargs, *spec.args)]


def _detect_draws(cx: TranslationContext, translate: Callable[[], Any]) -> tuple[Any, bool]:
    """Translate by the given function; return its result, and whether it draws random numbers."""
    # The flag is a property of the whole kernel; it is cleared to observe this part alone.
    before, cx.uses_random = (cx.env[DRAWS], cx.uses_random), False
    result = translate()
    draws = cx.uses_random
    # Without draws the count is restored, since loops may have carried it and made it a run-time value.
    if not draws:
        cx.env[DRAWS], cx.uses_random = before
    return result, draws


def _run(
    cx: TranslationContext,
    node: ast.Call,
    given: Given,
    env: Environment,
    targets: AdjointTargets | None = None,
) -> Evaluated:
    """Translate a gradient or replay; refuse random numbers in it."""
    result, draws = _detect_draws(
        cx, lambda: inlining.run(cx, node, given.source, env, targets=targets)
    )
    if draws:
        raise AutodiffError(
            f"{given.source.name} draws random numbers, which would not be those of the forward run",
            given.source.head(cx.span(node)),
            hint="draw them in the kernel and pass them as arguments",
        )
    return result


def _add_replay(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    given: Given,
    bound: Environment,
    made: CustomCall,
) -> None:
    """Translate the replay of a func, and check that it returns what the func returns."""
    with cx.builder.block() as stmts:
        result = _run(
            cx, node, given, dict(zip(_params(given.source), bound.values(), strict=True))
        )
        found = _values(cx, node, result)
    for s in every(Block(stmts)):
        # The effects happened in the forward run; the adjoint must not repeat them.
        if isinstance(s, (Store, Atomic)):
            raise AutodiffError(
                f"the replay of {func.source.name} changes {s.mem.name}",
                s.span,
                hint="a replay only reads what the forward run left behind",
            )
    types, want = ([v.type for v in vs] for vs in (found, made.outs))
    # The adjoint uses the values of the replay in place of the results.
    if types != want:
        raise AutodiffError(
            f"{func.source.name} returns {_words(want)}, and its replay {given.source.name} "
            f"{_words(types)}",
            given.source.head(cx.span(node)),
            hint="a replay returns what the func returned, in the same types",
        )
    made.replay = Block(stmts, found)


def _words(types: list[Any]) -> str:
    """Write types in a message."""
    return ", ".join(map(an, types)) or "nothing"


def _add_gradient(
    cx: TranslationContext,
    node: ast.Call,
    func: Func,
    given: Given,
    bound: Environment,
    made: CustomCall,
    count: int,
) -> None:
    """Translate the gradient of a func, and check that it only adds to adjoints."""
    # 1. The gradient's parameters: those of the func, perhaps its results, and one adjoint for each result.
    names, n, outs = _params(given.source), len(bound), made.outs[:count]
    # The two forms differ in the number of parameters, so no annotation is needed to tell them apart.
    with_results = len(names) == n + 2 * count and count > 0
    if not count or (len(names) != n + count and not with_results):
        raise AutodiffError(
            f"{given.source.name}({', '.join(names)}) does not fit "
            f"{func.source.name}({', '.join(bound)}), which returns {_words([v.type for v in outs])}",
            given.source.head(cx.span(node)),
            hint="its parameters are those of the func, then one adjoint for each value it returns (or "
            "these values, then their adjoints)"
            if count
            else "a func that returns nothing has no gradient of its own",
        )
    # 2. Their bindings: the seeds are parameters of the adjoint's block, given values by the reverse pass.
    made.seeds = tuple(Value(derivative_type(v.type)) for v in made.outs)
    env = dict(zip(names, bound.values(), strict=False))
    if with_results:
        env.update(zip(names[n:], outs, strict=False))
    env.update(zip(names[len(names) - count :], made.seeds, strict=False))
    # Only float values have an adjoint; constants and fields
    # among the arguments do not, or have it in memory.
    inputs = {name: env[name] for name in names[:n]}
    types = {
        k: derivative_type(v.type)
        for k, v in inputs.items()
        if isinstance(v, Value) and v.type.is_float
    }
    targets = AdjointTargets(func.source.name, inputs, types)
    # 3. Adjoints of the parameters start at 0 and are accumulated by `ds.adjoint[x] += v`.
    env.update({ADJOINT + k: zero(t) for k, t in types.items()})
    with cx.builder.block() as stmts:
        result = _run(cx, node, given, env, targets)
    if result is not None:
        raise AutodiffError(
            f"{given.source.name} returns a value; the gradient of a func returns nothing",
            given.source.head(cx.span(node)),
            hint="add to the adjoints of the parameters: ds.adjoint[x] += ...",
        )
    for s in every(Block(stmts)):
        # 4. The reverse pass may run the block several times, or not at all, if nothing needs it: any other
        # effect than adding to adjoints would be wrong.
        if isinstance(s, (Store, Atomic)) and s not in targets.added:
            raise AutodiffError(
                f"the gradient of {func.source.name} changes {s.mem.name}",
                s.span,
                hint="it may only add to adjoints: ds.adjoint[x] += ..., ds.adjoint[a][i] += ...",
            )
    # One adjoint per float parameter, in the order of the CustomCall's inputs.
    made.adjoint = Block(stmts, tuple(targets.sums[k] for k in types))
    made.targets = tuple(targets.mems)


# ---- ds.grad(f)(...)


class GradOf:
    """The value of `ds.grad(f)` in a kernel: a function that returns derivatives."""

    def __init__(self, func: Func, owner: tuple[object, ...]) -> None:
        self.func = func
        self.owner = owner

    def in_words(self) -> str:
        return f"the gradient of {self.func.source.name}"

    def in_kernel(
        self,
        cx: TranslationContext,
        node: ast.Call,
        args: list[Evaluated],
        kwargs: dict[str, Evaluated],
    ) -> Evaluated:
        return _gradient(cx, node, self, args, kwargs)


def grad_of(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> GradOf:
    """Translate `ds.grad(f)`."""
    (thing,) = args if len(args) == 1 and not kwargs else (None,)
    if isinstance(thing, BoundFunc):
        return GradOf(thing.func, (thing.owner,))
    if isinstance(thing, Func):
        return GradOf(thing, ())
    raise cx.type_error(
        node,
        f"ds.grad takes a func, not {describe(thing)}",
        "define it with @ds.func and write ds.grad(f)(x)",
    )


def _gradient(
    cx: TranslationContext,
    node: ast.Call,
    of: GradOf,
    args: list[Evaluated],
    kwargs: dict[str, Evaluated],
) -> Evaluated:
    """Translate `ds.grad(f)(x, ...)`: the derivatives with respect to the floats among the arguments."""
    b, func = cx.builder, of.func
    names = _params(func.source)
    count = len(names) - len(of.owner)
    # 1. The arguments: the func's own, then the seeds. Floats among the func's become the inputs.
    bound = inlining.bind(cx, node, func, [*of.owner, *args[:count]], kwargs)
    bound = {p: bound[p] for p in names}
    given: dict[str, Value] = {}
    for name, thing in bound.items():
        # Constants count as inputs here: in `ds.grad(f)(2.0)` the derivative at 2 is asked for.
        listed = isinstance(thing, (list, tuple)) and any(isinstance(e, Value) for e in thing)
        if listed or isinstance(thing, (float, Matrix)):
            thing = cx.value(thing, node, f"the argument {name}")
        if isinstance(thing, Value) and thing.type.is_float:
            given[name] = thing
    if not given:
        raise cx.type_error(
            node,
            f"no argument of {func.source.name} is a float here, so it has no gradient",
            "a derivative is taken with respect to floats, vectors and matrices of floats",
        )
    # 2. The body, as a block over parameters of its own: derivatives are taken with respect to these.
    params = {k: Value(v.type, k) for k, v in given.items()}
    with b.block() as body:
        inner = {**bound, **params}
        # A gradient of the func's own is used by its derivative too.
        special = func.gradient is not None or func.replay is not None
        translate = call if special else inlining.body
        result, draws = _detect_draws(cx, lambda: translate(cx, node, func, inner))
        found = _values(cx, node, result)
    if draws:
        raise cx.syntax(
            node,
            f"{func.source.name} draws random numbers, and has no gradient by ds.grad",
            "draw them in the kernel and pass them as arguments",
        )
    # 3. The statement, which a pass expands by the rules of
    # reverse mode (`passes/autodiff/region_adjoint.py`).
    seeds = _seeds(cx, node, func.source.name, found, args[count:])
    outs = tuple(Value(derivative_type(v.type)) for v in given.values())
    # Integer results have no adjoint, so they get no seed.
    floats = tuple(v for v in found if v.type.is_float)
    b.add(
        Gradient(
            outs,
            tuple(params.values()),
            tuple(given.values()),
            Block(body, floats),
            seeds,
            b.span,
            func.source.name,
        )
    )
    return outs if len(outs) > 1 else outs[0]


def _seeds(
    cx: TranslationContext,
    node: ast.Call,
    name: str,
    found: tuple[Value, ...],
    given: Sequence[object],
) -> tuple[Value, ...]:
    """Return the seeds of a func's results, one per float: 1, or what the call gives."""
    floats = [v for v in found if v.type.is_float]
    # The derivative of a scalar function is its gradient: the seed is 1.
    if len(floats) == 1 and not floats[0].type.shape and not given:
        return (Const(derivative_type(floats[0].type), 1.0),)
    if len(given) != len(floats) or not floats:
        raise cx.type_error(
            node,
            f"{name} returns {_words([v.type for v in found])}, and {len(given)} adjoints are given",
            f"write ds.grad({name})(<its arguments>, <one adjoint for each float that it returns>)"
            if floats
            else "ds.grad differentiates funcs that return floats",
        )
    made = []
    for v, g in zip(floats, given, strict=True):
        g = cx.value(g, node, "an adjoint", v.type)
        if g.type.shape != v.type.shape or not (g.type.is_float or g.type.is_int):
            raise cx.type_error(
                node,
                f"{name} returns {an(v.type)}, and its adjoint is {an(g.type)}",
                "an adjoint has the type of what it belongs to",
            )
        made.append(cx.builder.cast(g, v.type.scalar.arithmetic))
    return tuple(made)


grad = Intrinsic(
    "grad",
    "The gradient of a func inside a kernel: `ds.grad(f)(x, y)` is (df/dx, df/dy), one for each float "
    "argument; a func of several results, or of vectors, takes their adjoints after its arguments.",
    grad_of,
    only_in_kernels("grad"),
    "func",
    example="""
        @ds.func
        def energy(p):  # of a spring [J]
            return 0.5 * p * p

        @ds.kernel
        def force(p: ds.f32) -> ds.f32:
            return -ds.grad(energy)(p)

        print(force(3.0))  # prints: -3.0
    """,
)


# ---- ds.adjoint[x] += v


def add_to_adjoint(cx: TranslationContext, node: ast.AugAssign) -> bool:
    """Translate `ds.adjoint[...] += v`; False if the statement is something else."""
    target: ast.expr = node.target
    # The chain from the outermost subscript inwards, until `ds.adjoint[...]` itself is found.
    path: list[Any] = []
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        # What follows are indices into the adjoint: `ds.adjoint[v][0] += g`, `ds.adjoint[x][i].y += g`.
        if isinstance(target, ast.Subscript) and is_adjoint(cx, target.value):
            break
        path.insert(0, target)
        target = target.value
    else:
        return False
    targets = cx.frame.targets
    if targets is None or not isinstance(node.op, (ast.Add, ast.Sub)):
        raise cx.syntax(
            node,
            "ds.adjoint can only be added to, and only in the gradient of a func",
            "write ds.adjoint[x] += ... in a function decorated with @ds.func_grad(f)",
        )
    key = target.slice
    name = key.id if isinstance(key, ast.Name) else ""
    # 1. A float parameter: its adjoint is a local. 2. A
    # field: its gradient. 3. A constant: nothing to add to.
    if name in targets.types:
        _add_to_local(cx, node, ADJOINT + name, path)
        return True
    thing = targets.inputs[name] if name in targets.inputs else expressions.expr(cx, key)
    if is_field(thing):
        _add_to_memory(cx, node, targets, thing, path)
    # The same gradient serves calls with constant arguments; the value is translated for its errors only.
    elif name in targets.inputs and _is_constant(cx, name, thing):
        expressions.expr(cx, node.value)
    else:
        raise cx.type_error(
            key,
            f"{describe(thing)} has no adjoint here",
            f"the brackets contain a float parameter of {targets.name}, or a field",
        )
    return True


def _is_constant(cx: TranslationContext, name: str, thing: Evaluated) -> bool:
    """Return whether a parameter got numbers without a derivative in this call."""
    t = cx.frame.source.annotations().get(name)
    whole = t is int or (isinstance(t, (ScalarType, TensorType)) and t.is_int)
    return not whole and isinstance(thing, (Value, Matrix, *folding.Number))


def refuse_assignment(cx: TranslationContext, target: ast.expr) -> None:
    """Refuse `ds.adjoint[x] = v`."""
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        if isinstance(target, ast.Subscript) and is_adjoint(cx, target.value):
            raise cx.syntax(
                target,
                "ds.adjoint can only be added to",
                "write += : each use of a value adds its part to the adjoint",
            )
        target = target.value


def is_adjoint(cx: TranslationContext, node: ast.expr) -> bool:
    """Return whether an expression is `ds.adjoint`."""
    # By syntax first: evaluating any other expression here would emit its code twice.
    named = (isinstance(node, ast.Attribute) and node.attr == "adjoint") or (
        isinstance(node, ast.Name) and node.id not in cx.env and node.id not in cx.frame.locals
    )
    return named and expressions.expr(cx, node) is adjoint


def _add_to_local(cx: TranslationContext, node: ast.AugAssign, key: str, path: list[Any]) -> None:
    """Add to the adjoint of a float parameter, or to an element of it."""
    b, old = cx.builder, cx.env[key]
    index: list[Any] = []
    for step in path:
        if isinstance(step, ast.Attribute):
            index.append(linalg.COMPONENTS.get(step.attr, -1))
        else:
            index += subscripts.index_list(cx, step)
    if index and (len(index) != len(old.type.shape) or -1 in index):
        raise cx.type_error(
            node.target, f"{an(old.type)} has no such element", "write one index for each axis"
        )
    was = b.op(TABLE["extract"], (old, *index)) if index else old
    g = cx.value(expressions.expr(cx, node.value), node.value, "the value", was.type)
    if g.type.shape not in ((), was.type.shape) or not (g.type.is_float or g.type.is_int):
        raise cx.type_error(
            node.value,
            f"this adjoint is {an(was.type)}, not {an(g.type)}",
            "an adjoint has the type of what it belongs to",
        )
    # The sum is a new SSA value, bound to the name: branches and loops merge it like any local.
    g = b.cast(g, was.type.scalar) if g.type.shape == was.type.shape else b.broadcast(g, was.type)
    new = was + (-g if isinstance(node.op, ast.Sub) else g)
    cx.env[key] = b.op(TABLE["insert"], (old, new, *index)) if index else new


def _add_to_memory(
    cx: TranslationContext,
    node: ast.AugAssign,
    targets: AdjointTargets,
    thing: FieldLike,
    path: list[Any],
) -> None:
    """Add to the gradient of a field's element."""
    mem = thing._mem
    if not path or not mem.dtype.is_float:
        raise cx.type_error(
            node.target,
            f"{describe(thing)} as a whole has no adjoint"
            if not path
            else f"{mem.name} holds integers",
            f"name an element: ds.adjoint[{mem.name}][i] += ...",
        )
    place = subscripts.element_place(cx, path[0], thing)
    for step in path[1:]:
        index = (
            (linalg.COMPONENTS.get(step.attr, -1),)
            if isinstance(step, ast.Attribute)
            else tuple(subscripts.index_list(cx, step))
        )
        found = subscripts.component_place(cx, place, index, step)
        if found is None:
            raise cx.syntax(step, "a row has no adjoint of its own", "name one element of it")
        place = found
    # Listed in the statement, also where the field has no gradient: passes check what the adjoint names.
    targets.mems[mem] = None
    v = assignments.stored(cx, *place, expressions.expr(cx, node.value), node.value)
    # Without a gradient there is nothing to add to.
    if mem.grad is not None:
        # Atomic, since other lanes may call the func with the same element.
        cx.builder.atomic("add", mem.grad, place[1], -v if isinstance(node.op, ast.Sub) else v)
        added: Stmt = cx.builder.stmts[-1]
        targets.added.add(added)
