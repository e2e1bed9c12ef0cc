"""Calls that are over when the kernel is compiled: `ds.static_assert`, `ds.static_print`, and Taichi's hints.

Hints say how to make code faster without changing a number. The compiler finds such things itself, so they
are checked and change nothing.
"""

from __future__ import annotations

import ast
from typing import Any

from diffsim.ir.nodes import Value
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.expressions import truth
from diffsim.lang.frontend.values import Evaluated, StructValue
from diffsim.lang.host.field_like import is_any_field
from diffsim.lang.host.intrinsic import Intrinsic, only_in_kernels
from diffsim.lang.types.descriptions import describe


def _static_assert(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Refuse the kernel where a condition does not hold."""
    message = kwargs.pop("msg", args[1] if len(args) == 2 else "ds.static_assert does not hold")
    if kwargs or not 1 <= len(args) <= 2 or not isinstance(message, str):
        raise cx.type_error(
            node,
            "ds.static_assert takes a condition and a text",
            'write ds.static_assert(x.shape[0] > 1, "...")',
        )
    holds = truth(cx, args[0], node.args[0])
    if isinstance(holds, Value):
        raise cx.syntax(
            node.args[0],
            "ds.static_assert needs a condition that is known before the launch",
            "write assert, which debug=True checks",
        )
    if not holds:
        raise cx.type_error(
            node,
            f"{message} (this is known before the kernel runs)",
            "see what the condition tests",
        )


static_assert = Intrinsic(
    "static_assert",
    "Refuse to compile the kernel where a condition that is known before the launch does not hold: "
    '`ds.static_assert(x.shape[0] > 1, "x is too short")`.',
    _static_assert,
    only_in_kernels("static_assert"),
    "cond, msg=None",
    example="""
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute() -> ds.i32:
            ds.static_assert(x.shape[0] > 1, "x is too short")
            return x.shape[0]

        print(compute())  # prints: 4
    """,
)


def _static_print(
    cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Any]
) -> None:
    cx.has_output = True
    print(*map(_shown, args), **kwargs)


def _shown(thing: Evaluated) -> Any:
    """Return what `ds.static_print` prints for an operand, in containers too."""
    if isinstance(thing, StructValue):
        members = (f"{name}={_shown(part)}" for name, part in thing.members.items())
        return f"{thing.type.__name__}({', '.join(members)})"
    if isinstance(thing, dict):
        return "{" + ", ".join(f"{k!r}: {_part(v)}" for k, v in thing.items()) + "}"
    if isinstance(thing, list):
        return f"[{', '.join(map(_part, thing))}]"
    if isinstance(thing, tuple):
        return f"({', '.join(map(_part, thing))}{',' * (len(thing) == 1)})"
    # What Python would show by its address.
    without_name: Any = object.__repr__
    nameless = isinstance(thing, Value) or type(thing).__repr__ is without_name
    return f"<{describe(thing)}>" if nameless else thing


def _part(thing: Evaluated) -> str:
    shown = _shown(thing)
    return repr(thing) if shown is thing else str(shown)


static_print = Intrinsic(
    "static_print",
    "Print while the kernel is compiled: constants as Python does, other values by their type.",
    _static_print,
    print,
    "*args, sep=' ', end='\\n'",
    example="""
        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            ds.static_print("squaring", a)
            return a * a

        print(compute(3.0))
        # prints: squaring <an f32>
        # prints: 9.0
    """,
)


def _hint(name: str, what: str) -> Intrinsic:
    """Make a hint about fields, which changes nothing."""

    def handler(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> None:
        for given in args:
            if not is_any_field(given):
                raise cx.type_error(
                    node,
                    f"ds.{name} takes fields, this is {describe(given)}",
                    f"write ds.{name}(x), or leave it out",
                )

    return Intrinsic(
        name,
        f"Taichi's hint to {what}; it changes nothing, as the compiler decides.",
        handler,
        only_in_kernels(name),
        "*args",
        example=f"""
            x = ds.field(ds.i32, shape=4)

            @ds.kernel
            def compute():
                ds.{name}(x)
                for i in x:
                    x[i] = 2 * i

            compute()
            print(x[3])  # prints: 6
        """,
    )


block_local = _hint("block_local", "keep a field in the shared memory of a GPU's blocks")
cache_read_only = _hint("cache_read_only", "read a field through a GPU's read-only cache")
mesh_local = _hint("mesh_local", "keep attributes of a mesh in the shared memory of a GPU's blocks")


def _first(name: str, doc: str, parameters: str, call: str) -> Intrinsic:
    """Make a promise about an index, which is the index itself."""

    def handler(
        cx: TranslationContext, node: ast.Call, args: list[Evaluated], kwargs: dict[str, Evaluated]
    ) -> Evaluated:
        if not args or not isinstance(args[0], (Value, int)):
            raise cx.type_error(
                node,
                f"ds.{name} takes a whole number",
                f"leave ds.{name} out, and write the number",
            )
        return args[0]

    return Intrinsic(
        name,
        doc,
        handler,
        only_in_kernels(name),
        parameters,
        example=f"""
            x = ds.field(ds.i32, shape=4)

            @ds.kernel
            def compute():
                for i in x:
                    x[{call}] = 2 * i

            compute()
            print(x[3])  # prints: 6
        """,
    )


loop_unique = _first(
    "loop_unique",
    "Taichi's promise that a value is another one in each iteration: the value itself. For gradients "
    "`ds.loop_config(independent=True)` promises it, which `debug=True` checks.",
    "val, covers=None",
    "ds.loop_unique(i)",
)
assume_in_range = _first(
    "assume_in_range",
    "Taichi's promise that a value lies in a range: the value itself, as the compiler finds ranges.",
    "val, base, low, high",
    "ds.assume_in_range(i, 0, 0, 4)",
)
