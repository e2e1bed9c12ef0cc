"""Intrinsics: functions of the language that are not ops, such as `ds.static`, `ds.ndrange`, `ds.atomic_add`.

Each is an `Intrinsic` with two sides: what a call emits in a kernel, and what it does in Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sized
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.ir.nodes import Const, Mem, RngKey, Value
from diffsim.ir.op import TABLE, OpDispatch
from diffsim.ir.types import ScalarType, an, converted, i32, i64, u32, u64
from diffsim.ir.verifier import is_block_dim
from diffsim.lang.frontend import (
    assignments,
    calls,
    expressions,
    iteration_spaces,
    subscripts,
    tasks,
)
from diffsim.lang.frontend.context import DRAWS, LoopOptions, TranslationContext
from diffsim.lang.frontend.functions import containers
from diffsim.lang.frontend.operators import folding
from diffsim.lang.frontend.values import Evaluated, KernelLocal, PythonObject
from diffsim.lang.host.annotations import scalar_type
from diffsim.lang.host.field_like import is_any_field, is_field, is_struct_field
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.intrinsic import Intrinsic, only_in_kernels
from diffsim.lang.types import linalg
from diffsim.lang.types.descriptions import advice, describe
from diffsim.lang.types.matrix import Matrix

# ---- loops


def _static(
    cx: TranslationContext,
    node: ast.Call,
    args: list[PythonObject],
    kwargs: dict[str, PythonObject],
) -> Any:
    """Evaluate `ds.static(...)`: items to unroll, or a constant."""
    if not args:
        raise cx.type_error(
            node,
            "ds.static takes what is to be known before the launch",
            "write ds.static(range(3))",
        )
    # `ds.static(a, b)` unrolls over its arguments.
    if len(args) > 1:
        return iteration_spaces.Static(args)
    (thing,) = args
    # A constant that has a type, such as `ds.i32(3)`, becomes a number again, which conditions can decide.
    if isinstance(thing, Const):
        return thing.value
    if isinstance(thing, Value) and thing.type.shape:
        # The items are run-time values; what is static is how many there are.
        from_elements = [
            cx.builder.op(TABLE["extract"], (thing, *i)) for i in np.ndindex(*thing.type.shape)
        ]
        return iteration_spaces.Static(from_elements)
    if isinstance(thing, Value):
        raise cx.syntax(
            node,
            "ds.static of a value that is known only at run time",
            "leave ds.static out, or make it a constant, a field's shape or a ds.template() argument",
        )
    if isinstance(thing, (iteration_spaces.NdRange, iteration_spaces.Grouped)):
        return iteration_spaces.Static(_indices_of(cx, node, thing))
    if isinstance(thing, Matrix):
        return iteration_spaces.Static(list(thing))
    if is_any_field(thing):  # another name for it: `a = ds.static(self.position)`
        return thing
    if isinstance(thing, dict):
        return iteration_spaces.Static(containers.keys(cx, thing, node))
    # From the class: `hasattr` of an object may run code of the program.
    if hasattr(type(thing), "__iter__") and not isinstance(thing, str):
        # Before the list is made; a generator has no length, and is consumed.
        if isinstance(thing, Sized):
            iteration_spaces.check_unrolled(cx, node, len(thing))
        items = folding.fold(cx, node, list, thing)
        if any(isinstance(x, iteration_spaces.NdRange) for x in items):
            raise cx.syntax(node, "ranges inside a list cannot be unrolled", "nest two loops")
        return iteration_spaces.Static(items)
    return thing


def _indices_of(
    cx: TranslationContext,
    node: ast.Call,
    box: iteration_spaces.NdRange | iteration_spaces.Grouped,
) -> list[Any]:
    """Return the indices of a box with constant bounds: tuples, or vectors if they are grouped."""
    inner = box.inner if isinstance(box, iteration_spaces.Grouped) else box
    if not isinstance(inner, iteration_spaces.NdRange):
        raise cx.syntax(node, "only ranges can be unrolled, ds.ndrange among them", _NO_STATIC)
    try:
        indices = list(inner)
    except TypeError:
        raise cx.syntax(
            node, "a box with bounds known only at run time cannot be unrolled", _NO_STATIC
        ) from None
    # Constants, as in Taichi: an element of such a vector may choose an item of a list.
    return indices if box is inner else [Matrix(list(index)) for index in indices]


_NO_STATIC = "leave ds.static out"

static = Intrinsic(
    "static",
    "Evaluate while compiling: unrolls `for i in ds.static(range(3))`, decides `if ds.static(flag)`.",
    _static,
    lambda x, *xs: [x, *xs] if xs else x,  # in Python everything is known
    "x, *xs",
    example="""
        @ds.kernel
        def compute() -> ds.i32:
            total = 0
            for i in ds.static(range(3)):  # written out three times
                total += i
            return total

        print(compute())  # prints: 3
    """,
)


def _ndrange(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    bounds = []
    for a in args:
        # One number is the end, as for `range`.
        pair = a if isinstance(a, (tuple, list)) else (0, a)
        if len(pair) != 2:
            raise cx.type_error(
                node,
                "an axis of ds.ndrange is n or (first, end)",
                "for steps loop over range(n) and compute the index: first + k * step",
            )
        bounds.append((pair[0], pair[1]))
    if not bounds:
        raise cx.type_error(node, "ds.ndrange needs at least one axis", "write ds.ndrange(n, m)")
    return iteration_spaces.NdRange(bounds)


def _ndrange_in_python(*axes: object) -> Any:
    # In Python it iterates over the same tuples, so that functions can be tried outside kernels.
    return iter(
        iteration_spaces.NdRange(
            [tuple(a) if isinstance(a, (tuple, list)) else (0, a) for a in axes]
        )
    )


ndrange = Intrinsic(
    "ndrange",
    "All index tuples of a box: `for i, j in ds.ndrange(n, (1, m))`; the outermost one runs in parallel.",
    _ndrange,
    _ndrange_in_python,
    "*args",
    example="""
        x = ds.field(ds.i32, shape=(2, 4))

        @ds.kernel
        def compute():
            for i, j in ds.ndrange(2, (1, 3)):
                x[i, j] = 1

        compute()
        print(x.to_numpy().tolist())  # prints: [[0, 1, 1, 0], [0, 1, 1, 0]]
    """,
)


def _grouped(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) != 1:
        raise cx.type_error(
            node,
            "ds.grouped takes one thing to loop over",
            "write ds.grouped(x), or ds.grouped(ds.ndrange(n, m))",
        )
    return iteration_spaces.Grouped(args[0])


grouped = Intrinsic(
    "grouped",
    "The indices of a field or ndrange as one vector: `for I in ds.grouped(x): x[I] = 0`.",
    _grouped,
    only_in_kernels("grouped"),
    "x",
    example="""
        x = ds.field(ds.i32, shape=(2, 3))

        @ds.kernel
        def compute():
            for I in ds.grouped(x):
                x[I] = I.sum()

        compute()
        print(x.to_numpy().tolist())  # prints: [[0, 1, 2], [1, 2, 3]]
    """,
)


def _loop_config(
    cx: TranslationContext,
    node: ast.Call,
    args: list[PythonObject],
    kwargs: dict[str, PythonObject],
) -> None:
    """Record the options of the next outermost loop."""
    # Some of them are Taichi's and have no effect here, so that its programs run unchanged.
    known = set(loop_config.__signature__.parameters)
    unknown = set(kwargs) - known
    if args or unknown:
        raise cx.type_error(
            node,
            f"ds.loop_config has no option {', '.join(sorted(unknown)) or 'without a name'}",
            hint="its options are " + ", ".join(sorted(known)),
        )
    for name, given in kwargs.items():
        # Values of the kernel are refused: the options belong to the compiled code.
        wrong = not isinstance(given, (bool, int, str, np.integer))
        hint = "give it a constant, or a ds.template() argument"
        if name == "block_dim" and not isinstance(given, Value):
            whole = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
            wrong = not whole or not is_block_dim(int(given))
            hint = "give it a multiple of 32 up to 1024, or a power of two"
        if wrong:
            raise cx.type_error(
                next(k.value for k in node.keywords if k.arg == name),
                f"the option {name} cannot be {describe(given)}",
                hint,
            )
    block_dim = kwargs.get("block_dim")
    if not cx.is_outside:
        if block_dim is not None:
            raise tasks.block_dim_error(cx, node)
        return  # loops inside loops, branches and funcs are serial anyway
    # Several calls before one loop add up. The last one is where errors point.
    options = cx.next_loop = cx.next_loop or LoopOptions(node)
    options.node = node
    options.independent = bool(kwargs.get("independent", options.independent))
    options.serialize = bool(kwargs.get("serialize", options.serialize))
    options.block_dim = options.block_dim if block_dim is None else int(block_dim)
    if options.serialize and options.independent:
        raise cx.type_error(
            node,
            "with serialize=True the iterations run in order, and independent=True says that the order is "
            "the same to them",
            "leave out one of the two",
        )
    if options.serialize and options.block_dim is not None:
        raise cx.type_error(
            node,
            "block_dim is the number of threads in a block, and with serialize=True the loop runs on one "
            "thread",
            "leave out one of the two",
        )


loop_config = Intrinsic(
    "loop_config",
    "Options of the kernel's next outermost loop. `serialize=True` runs its iterations in order. "
    "`block_dim=n` gives "
    "the blocks of its GPU launch, and of its adjoint's, n threads: a multiple of 32 up to 1024, or a power "
    "of two; `ds.init(default_gpu_block_dim=n)` is for loops that do not say. That changes "
    "nothing on the CPU. `independent=True` is your word, for the gradient, that no two iterations touch one "
    "element unless both add to it; `debug=True` checks it. `parallelize`, "
    "`block_dim_adaptive`, `bit_vectorize` and `name`, which Taichi knows, change nothing at all.",
    _loop_config,
    only_in_kernels("loop_config"),
    "*, block_dim=None, serialize=False, parallelize=None, block_dim_adaptive=True, "
    "bit_vectorize=False, name='', independent=False",
    example="""
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            ds.loop_config(serialize=True)
            for i in range(1, 4):
                x[i] = x[i - 1] + 2

        compute()
        print(x.to_numpy())  # prints: [0 2 4 6]
    """,
)

# ---- conversion


def _cast(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    if len(args) != 2:
        raise cx.type_error(node, "ds.cast takes a value and a type", "write ds.cast(a, ds.f32)")
    return calls.convert(cx, args[0], args[1], node)


def _cast_in_python(x: Evaluated, t: object) -> Evaluated:
    if isinstance(x, (Matrix, list, tuple)):
        return Matrix(x, t)
    # A whole array is converted by the rules of the language,
    # which are defined for values out of range too.
    if isinstance(x, np.ndarray) and x.ndim and x.dtype.kind in "biuf":
        return converted(x, scalar_type(t))
    return scalar_type(t)(x)


cast = Intrinsic(
    "cast",
    "The value in another scalar type; vectors and matrices element by element.",
    _cast,
    _cast_in_python,
    "obj, dtype",
    example="""
        print(ds.cast(2.75, ds.i32), ds.cast(ds.Vector([1.5, -1.5]), ds.i32))  # prints: 2 [1, -1]
    """,
)

# ---- atomics


def _atomic(op: str, name: str, what: str, made: int) -> Intrinsic:
    """Make the intrinsic of an atomic update, which makes this number of 12 and 10."""

    def handler(
        cx: TranslationContext, node: ast.Call, args: list[ast.expr], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        if len(args) != 2 or kwargs:
            raise cx.type_error(
                node, f"ds.{name} takes an element and a value", f"write ds.{name}(x[i], v)"
            )
        target, value_node = args
        # Lazy: the target is a place and is not loaded. Its
        # index is evaluated before the value, as in Python.
        place = subscripts.resolve_component(cx, target)
        thing = expressions.expr(cx, value_node)
        if place is None:
            return _on_local(cx, node, op, name, target, thing)
        mem, index = place
        # An atomic update is a store: the value is converted to the memory's type, with the same warnings.
        v = assignments.stored(cx, mem, index, thing, value_node)
        # LLVM's atomicrmw has bitwise operations of integers only (LangRef).
        if op in ("and", "or", "xor") and not v.type.is_int:
            raise cx.type_error(
                node,
                f"ds.{name} needs integers, an element of {mem.name} is {an(mem.dtype)}",
                f"declare {mem.name} with ds.i32",
            )
        if op == "mul":
            return _multiplied(cx, node, mem, index, v)
        if op in ("min", "max") and v.type.shape:
            # Component by component: which of them wins may differ.
            parts = [
                cx.builder.atomic(
                    op, mem, (*index, *map(cx.builder.literal, k)), part, wants_old=True
                )
                for k, part in zip(np.ndindex(*v.type.shape), linalg.elements(v), strict=True)
            ]
            return cx.builder.tensor_of([old for old in parts if old is not None], v.type.shape)
        # Subtraction is addition of the negative, so that one
        # rule serves for both in adjoints and reductions.
        return cx.builder.atomic(op, mem, index, -v if name == "atomic_sub" else v, wants_old=True)

    doc = f"Atomically {what} an element of a field, and return its value before: `ds.{name}(x[i], v)`."
    example = f"""
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.{name}(x[None], 10)

        print(update(), x[None])  # prints: 12 {made}
    """
    return Intrinsic(name, doc, handler, only_in_kernels(name), "x, y", lazy=True, example=example)


def _multiplied(
    cx: TranslationContext, node: ast.Call, mem: Mem, index: tuple[Value, ...], v: Value
) -> Value:
    """Multiply an element: no memory has an atomic update for it, so the loop around runs in order."""
    if cx.in_task:
        raise cx.syntax(
            node,
            "no memory has an atomic product: ds.atomic_mul is for loops that run in order",
            "put ds.loop_config(serialize=True) before it; or write x[i] *= v if no other one uses x[i]",
        )
    old = cx.builder.load(mem, index)
    cx.builder.store(mem, index, old * v)
    return old


def _on_local(
    cx: TranslationContext, node: ast.Call, op: str, name: str, target: ast.expr, thing: Evaluated
) -> Value:
    """Update a local atomically if several lanes see it, else by plain arithmetic."""
    if not isinstance(target, ast.Name):
        raise cx.syntax(
            target,
            f"ds.{name} cannot change this",
            f"name an element of a field: ds.{name}(x[i], v)",
        )
    # A local of the kernel that several lanes see lives in memory; any other local belongs to its lane
    # alone, where plain arithmetic is indivisible.
    owner = cx.env.get(target.id)
    if isinstance(owner, KernelLocal) and cx.in_task:
        mem: Mem = cx.use(owner.mem)
        if op == "mul":
            return _multiplied(cx, node, mem, (), cx.value(thing, node))
        v = assignments.stored(cx, mem, (), thing, node)
        found = cx.builder.atomic(op, mem, (), -v if name == "atomic_sub" else v, wants_old=True)
        assert found is not None
        return found
    # The result is the value before, as for memory.
    old = expressions.expr(cx, target)
    if not isinstance(old, Value):
        raise cx.type_error(
            target,
            f"ds.{name} changes a number, this is {describe(old)}",
            advice(old),
        )
    row = {"and": "bit_and", "or": "bit_or", "xor": "bit_xor"}.get(op, op)
    v = cx.value(thing, node)
    assignments.assign_to(
        cx,
        ast.copy_location(ast.Name(target.id, ast.Store()), target),
        cx.builder.named("sub" if name == "atomic_sub" else row, old, v),
    )
    return old


atomic_add = _atomic("add", "atomic_add", "add v to", 12 + 10)
atomic_sub = _atomic("add", "atomic_sub", "subtract v from", 12 - 10)
atomic_min = _atomic("min", "atomic_min", "store the smaller of v and", 10)
atomic_max = _atomic("max", "atomic_max", "store the larger of v and", 12)
atomic_mul = _atomic("mul", "atomic_mul", "multiply by v", 12 * 10)
atomic_and = _atomic("and", "atomic_and", "store the bitwise and of v and", 12 & 10)
atomic_or = _atomic("or", "atomic_or", "store the bitwise or of v and", 12 | 10)
atomic_xor = _atomic("xor", "atomic_xor", "store the bitwise exclusive or of v and", 12 ^ 10)

# ---- numbers of the type of others


def _like(name: str, number: int) -> Intrinsic:
    """Make the intrinsic that returns a number in the type of its argument."""

    def in_kernel(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Value:
        if len(args) != 1 or kwargs:
            raise cx.type_error(node, f"ds.{name} takes one value", f"write ds.{name}(x)")
        # Only the type is used; the code of the argument is dead, unless it has effects.
        t = cx.value(args[0], node).type
        return cx.builder.broadcast(cx.builder.const(number, t.scalar), t)

    def in_python(x: Evaluated) -> Evaluated:
        if isinstance(x, (list, tuple)):
            x = Matrix(x)
        right = isinstance(x, (bool, int, float, np.generic, np.ndarray, OpDispatch))
        if not right or (isinstance(x, (np.generic, np.ndarray)) and x.dtype.kind not in "biuf"):
            raise KernelTypeError(
                f"ds.{name} takes a number, a vector or a matrix, not {shown(x)}",
                Span.of_caller(),
                hint=f"write ds.{name}(x)",
            )
        # By arithmetic, so that a number that a tape tracks gives one of the same type.
        zeros: Any = x
        return zeros * 0 + number

    text = f"{number} of the type of a value, in every element: `ds.{name}(x)`."
    made = [float(number)] * 2
    example = f"print(ds.{name}(ds.Vector([3.0, 4.0])), ds.{name}(7))  # prints: {made} {number}"
    return Intrinsic(name, text, in_kernel, in_python, "x", example=example)


zero = _like("zero", 0)
one = _like("one", 1)

# ---- random numbers


def _bits(cx: TranslationContext) -> Value:
    """Draw 64 random bits of the lane's stream.

    The generator is counter-based (J. K. Salmon et al., SC 2011): bits are a function of the key, the lane
    and the number of the draw, without a state in memory. So an adjoint that repeats the code repeats them.
    """
    b = cx.builder
    lane: Value = Const(u64, 0)
    for axis in cx.lane_axes:
        # Combines the indices of a lane to one number, by the prime of the FNV hash.
        lane = lane * 0x100000001B3 + b.cast(b.cast(axis, i64), u64)
    draws = cx.env[DRAWS]
    cx.env[DRAWS] = draws + b.const(1, u64)
    cx.uses_random = True
    return b.named("random_u64", RngKey(u64), lane, draws)


def _uniform(cx: TranslationContext, t: ScalarType) -> Value:
    """Draw a uniform number: floats in [0, 1) from the upper bits, integers over their whole range."""
    b, bits = cx.builder, _bits(cx)
    if not t.is_float:
        return b.cast(bits, t)
    # As many of the upper bits as its significand has (11, 24, 53): each of these numbers is exact and below
    # 1, and rounding never gives 1.
    digits = np.finfo(t.numpy).nmant + 1
    top = b.named("shr", bits, b.const(64 - digits, u64))
    top = b.cast(top, i64) if digits > 32 else b.cast(b.cast(top, u32), i32)
    return b.cast(top, t) * 2.0**-digits


def _random(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Value:
    dtype = kwargs.pop("dtype", args[0] if args else float)
    if kwargs or len(args) > 1:
        raise cx.type_error(node, "ds.random takes a type only", "write ds.random(ds.f32)")
    # Integers of all types are the low bits of the draw.
    t = cx.builder.default_fp if dtype is float else dtype
    t = cx.builder.default_ip if dtype is int else t
    if not isinstance(t, ScalarType) or t.is_bool:
        raise cx.type_error(
            node,
            f"ds.random gives floats or integers, not {describe(dtype)}",
            "write ds.random(ds.f32)",
        )
    return _uniform(cx, t)


random = Intrinsic(
    "random",
    "A random number: floats uniform in [0, 1), integers over their whole range. The sequence depends on "
    "`ds.init(random_seed=...)`, the launch and the loop index alone; an adjoint draws the same numbers.",
    _random,
    only_in_kernels("random"),
    "dtype=float",
    example="""
        x = ds.field(ds.f32, shape=1000)

        @ds.kernel
        def compute():
            for i in x:
                x[i] = ds.random()

        compute()
        a = x.to_numpy()
        print(a.min() >= 0.0, a.max() < 1.0)  # prints: True True
    """,
)


def _randn(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Value:
    """Draw a normal number by the Box-Muller transform."""
    t = args[0] if args else cx.builder.default_fp
    t = cx.builder.default_fp if t is float else t
    if not isinstance(t, ScalarType) or not t.is_float:
        raise cx.type_error(node, f"ds.randn gives floats, not {describe(t)}", "write ds.randn()")
    # 1 - u is in (0, 1], so the logarithm is finite. The second normal number that the transform could give
    # is not kept: it would be a state between calls.
    wide = t.arithmetic
    radius = TABLE["sqrt"](-2.0 * TABLE["log"](1.0 - _uniform(cx, wide)))
    return cx.builder.cast(radius * TABLE["cos"](2.0 * math.pi * _uniform(cx, wide)), t)


randn = Intrinsic(
    "randn",
    "A random number with the standard normal distribution (G. E. P. Box, M. E. Muller, 1958).",
    _randn,
    only_in_kernels("randn"),
    "dt=None",
    example="""
        x = ds.field(ds.f32, shape=1000)

        @ds.kernel
        def compute():
            for i in x:
                x[i] = ds.randn()

        compute()
        print(abs(x.to_numpy().mean()) < 0.2)  # prints: True
    """,
)


# ---- derivatives


def _stop_grad(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
) -> Evaluated:
    """Emit `ds.stop_grad` of a value; of a field, make everything that the kernel loads from it constant."""
    if kwargs:
        raise cx.type_error(
            node, "ds.stop_grad takes no keyword arguments", f"leave {next(iter(kwargs))}= out"
        )
    thing = args[0] if len(args) == 1 else None
    # A field as a whole: the memories are noted, and `translate.py` rewrites their loads at the end.
    fields = thing.fields() if is_struct_field(thing) else [thing] if is_field(thing) else []
    if fields:
        cx.constant_mems.update(cx.use(f._mem) for f in fields)
        return None
    return calls.apply(cx, node, TABLE["stop_grad"], args)


stop_grad = Intrinsic(
    "stop_grad",
    "The value itself, with derivative 0. As a statement with a field, `ds.stop_grad(x)`: all that the loop "
    "around it (outside loops: the kernel) reads from x is constant. In Python: what the field x holds "
    "now is a constant on the tape.",
    _stop_grad,
    lambda x: runtime().stop_grad(x),
    "x",
    example="""
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def compute():
            y[None] += x[None] * ds.stop_grad(x[None])

        with ds.Tape(y):
            compute()
        print(y[None], x.grad[None])  # prints: 9.0 3.0
    """,
)
