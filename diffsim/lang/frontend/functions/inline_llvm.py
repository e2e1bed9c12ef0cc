"""Functions in LLVM text: `@ds.func_native`. The text is not parsed here; LLVM checks it when it is compiled.

A call is an InlineLLVM statement; where it can have a derivative, it is wrapped into a CustomCall whose
adjoint and replay are InlineLLVM statements too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from diffsim.errors import KernelTypeError
from diffsim.ir.nodes import Block, CustomCall, InlineLLVM, Value
from diffsim.ir.types import ScalarType, derivative_type
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.values import Environment
from diffsim.lang.host.func import Func, NativeText
from diffsim.lang.host.signatures import checked
from diffsim.tracebacks import entry

Text = str | Mapping[str, str]


@checked
def func_native(
    text: Text, adj_text: Text | None = None, replay_text: Text | None = None
) -> Callable[[Callable[..., Any]], Func]:
    r"""Decorate a function without a body: what it computes is written in LLVM's language.

    The parameters and the result are scalars and have annotations. A text is the body of one LLVM
    function whose parameters have the same names (`%x`); lines `declare ...` before it name what it
    calls. It computes its result from its parameters and has no other effect.

    Args:
        text: for all backends, or a dictionary from "cpu" and "cuda" to one each.
        adj_text: its adjoint: gets `%adj_ret` after the parameters, and returns the adjoint of the float
            parameter, or a struct of those of all; without it there is no derivative.
        replay_text: what an adjoint runs in its place.

    Raises:
        KernelTypeError: a parameter without a scalar type.

    Example:
        @ds.func_native("%r = add i32 %a, 1\nret i32 %r")
        def following(a: ds.i32) -> ds.i32: ...

        @ds.kernel
        def compute(a: ds.i32) -> ds.i32:
            return following(a)

        print(compute(41))  # prints: 42
    """

    @entry
    def decorate(function: Callable[..., Any]) -> Func:
        func = Func(function)
        spec, types = func.source.node.args, func.source.annotations()
        if spec.vararg or spec.kwarg or spec.kwonlyargs:
            raise KernelTypeError(
                f"{func.source.name} has parameters with * or after one",
                func.source.head(),
                hint="a ds.func_native has plain parameters",
            )
        names = [p.arg for p in (*spec.posonlyargs, *spec.args)]
        # LLVM's types follow from the annotations alone, so each is needed.
        for name in (*names, "return"):
            if not isinstance(types.get(name), ScalarType):
                what = f"the parameter {name}" if name != "return" else "the result"
                raise KernelTypeError(
                    f"{what} of {func.source.name} is no scalar, and LLVM text computes with scalars",
                    func.source.parameter(name),
                    hint="annotate it: def f(x: ds.f32) -> ds.f32; pass the elements of a vector one by one",
                )
        # A body would be ignored: better an error than two definitions that differ.
        if any(not _is_stub(s) for s in func.source.node.body):
            raise KernelTypeError(
                f"{func.source.name} has a body, and is computed by its text",
                func.source.head(),
                hint="write ... in its place",
            )
        func.native = NativeText(
            {name: types[name] for name in names},
            types["return"],
            _by_backend(text),
            None if adj_text is None else _by_backend(adj_text),
            None if replay_text is None else _by_backend(replay_text),
        )
        return func

    return decorate


def _is_stub(s: ast.stmt) -> bool:
    return isinstance(s, ast.Pass) or (
        isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
    )


def _by_backend(text: Text) -> dict[str, str]:
    return dict.fromkeys(("cpu", "cuda"), text) if isinstance(text, str) else dict(text)


def call(cx: TranslationContext, func: Func, bound: Environment) -> Value:
    """Translate a call; the arguments have the types of the parameters."""
    native, name, b = func.native, func.source.name, cx.builder
    assert native is not None
    names = tuple(native.types)
    # `inlining.bind` has converted them to the annotated types.
    args = tuple(cx.value(bound[p], func.source.node) for p in names)

    # The adjoint takes one parameter more, the seed, and returns one adjoint for each float parameter.
    def run(text: dict[str, str], suffix: str, more: tuple[Value, ...] = ()) -> InlineLLVM:
        given = (*names, "adj_ret") if more else names
        outs = (
            tuple(Value(derivative_type(v.type)) for v in floats)
            if more
            else (Value(native.result),)
        )
        return InlineLLVM(outs, name + suffix, given, (*args, *more), text, b.span)

    floats = tuple(v for v in args if v.type.is_float)
    forward = run(native.text, "")
    # No derivative can flow through it, so no adjoint is needed.
    if not floats or not native.result.is_float:
        b.add(forward)
        return forward.outs[0]
    made = CustomCall(
        (Value(native.result),), floats, Block([forward], forward.outs), b.span, name=name
    )
    # The adjoint kernel runs the replay instead of the text, where it needs the result again.
    if native.replay is not None:
        again = run(native.replay, ".replay")
        made.replay = Block([again], again.outs)
    if native.adjoint is not None:
        # The seed becomes the last parameter of the adjoint's text, `%adj_ret`.
        made.seeds = (Value(derivative_type(native.result)),)
        back = run(native.adjoint, ".adj", made.seeds)
        made.adjoint = Block([back], back.outs)
    b.add(made)
    return made.outs[0]
