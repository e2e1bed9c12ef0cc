"""Functions of fields as functions of JAX: `ds.jax.wrap` (docs/jax.md).

JAX is imported at the first use, never with diffsim.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from diffsim import tracebacks
from diffsim.bridges.function import FieldFunction, Given, shapes
from diffsim.bridges.pure import PureFunction
from diffsim.errors import ArgumentError, FieldError, MissingPackageError, OptionError, Span, shown
from diffsim.lang.host.copying import Named
from diffsim.lang.host.signatures import checked, is_one_of
from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module
from diffsim.tracebacks import entries

__all__ = ["wrap"]
__dir__ = names_of_module(__all__)

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, __all__)


@checked
def wrap(
    function: Callable[..., Any] | None = None,
    *,
    inputs: Any = None,
    outputs: Any = None,
    mode: str = "reverse",
) -> Any:
    """Make a function of JAX, with derivatives, of a function of fields; also a decorator.

        step = ds.jax.wrap(move, inputs=[x, v, force], outputs=[x, v])
        jax.jit(jax.grad(lambda u: step(x0, v0, u)[0].sum()))(u0)

    It is pure, as JAX wants: it begins from what other fields hold, and all fields are afterwards as they
    were. Under `jit` JAX calls back; under `vmap` one call follows the other.

    Args:
        function: launches kernels. Arguments after the inputs are passed on to it.
        inputs: a field for each array.
        outputs: fields that the function writes. One output is one array, several are a tuple.
        mode: "reverse" for `jax.grad` and `jax.vjp`, "forward" for `jax.jvp` and `jax.jacfwd`.

    Raises:
        ArgumentError: at a call: an array does not fit.

    Example:
        import jax

        x = ds.field(ds.f32, shape=3, needs_grad=True)
        y = ds.field(ds.f32, shape=3, needs_grad=True)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        f = ds.jax.wrap(square, inputs=[x], outputs=[y])
        gradient = jax.grad(lambda a: f(a).sum())(jax.numpy.full(3, 3.0))
        print(gradient.tolist())  # prints: [6.0, 6.0, 6.0]
    """
    _jax()
    if not is_one_of(mode, "reverse", "forward"):
        problem = f"mode={shown(mode)} is not possible"
        raise OptionError(problem, Span.of_caller(), hint='it is "reverse" or "forward"')
    if inputs is None or outputs is None:
        raise FieldError(
            "ds.jax.wrap needs to know the shapes before a call: inputs and outputs are fields",
            Span.of_caller(),
            hint="write ds.jax.wrap(function, inputs=[x], outputs=[y])",
        )
    if function is None:
        return lambda f: WrappedForJax(FieldFunction(f, inputs, outputs), mode)
    return WrappedForJax(FieldFunction(function, inputs, outputs), mode)


@functools.cache
def _jax() -> Any:
    """Import JAX.

    Raises:
        MissingPackageError: it is not installed.
    """
    if importlib.util.find_spec("jax") is None:
        raise MissingPackageError(
            "JAX is not installed",
            Span.of_caller(),
            hint='install it: pip install "diffsim-lang[jax]"',
        )
    import jax

    tracebacks.add_own(jax.__path__[0])
    return jax


@entries("__call__")
class WrappedForJax(Named):
    """A function of arrays of JAX; made by `ds.jax.wrap`."""

    def __init__(self, function: FieldFunction, mode: str) -> None:
        functools.update_wrapper(self, function.function)
        self.function = function
        self.mode = mode

    def __call__(self, *args: Any, **named: Any) -> Any:
        jax, function = _jax(), self.function
        count = function.count(args, lambda a: isinstance(a, (jax.Array, np.ndarray))) or 0
        self._check_others({**dict(enumerate(args[count:], count)), **named})
        arrays = [jax.numpy.asarray(a) for a in args[:count]]
        given = {k: _given(a) for k, a in enumerate(arrays)}
        pure = PureFunction(function, function.prepare(args, named, given))
        made = (_reverse if self.mode == "reverse" else _forward)(pure)(*arrays)
        return made[0] if len(made) == 1 else tuple(made)

    def _check_others(self, others: dict[Any, Any]) -> None:
        for k, a in others.items():
            if isinstance(a, _jax().Array):
                what = f"argument {k + 1}" if isinstance(k, int) else k
                raise ArgumentError(
                    f"{what} of {self.function.name} is an array of JAX, and not among the inputs: its "
                    "gradient would be lost",
                    Span.of_caller(),
                    hint="name a field for it, inputs=[...], and give arrays by place",
                )


def _given(array: Any) -> Given:
    name = str(array.dtype)
    try:
        dtype = np.dtype(name)
    except TypeError:  # bfloat16 and the like
        dtype = None
    if name == "float32" and not _jax().config.jax_enable_x64:
        name += ' (for float64: jax.config.update("jax_enable_x64", True))'
    return Given(array, tuple(array.shape), dtype, name)


def _reverse(pure: PureFunction) -> Any:
    """Return the function with its vector-Jacobian product."""
    jax = _jax()
    ends = _results(pure.function.outputs or ())
    fields = pure.prepared.fields
    floats = [f.dtype.is_float for f in fields]
    gradients = _results([f for f in fields if f.dtype.is_float])
    state = jax.ShapeDtypeStruct((), np.int32)

    def value(*arrays: Any) -> Any:
        outputs, at = pure.value(arrays)
        return (*outputs, np.asarray(at, np.int32))

    def pull_back(arrays: Any, seeds: Any, at: Any) -> Any:
        return tuple(pure.pull_back(arrays, [np.asarray(s) for s in seeds], int(at)))

    def forward(*arrays: Any) -> Any:
        *outputs, at = _call_back(value, (*ends, state), *arrays)
        return tuple(outputs), (arrays, at)

    def backward(kept: Any, seeds: Any) -> Any:
        arrays, at = kept
        # What is no float has no gradient: its seed is of a type that holds nothing.
        seeds = tuple(
            s if s.dtype != jax.dtypes.float0 else np.zeros(e.shape, e.dtype)
            for s, e in zip(seeds, ends, strict=True)
        )
        found = iter(_call_back(pull_back, gradients, arrays, seeds, at))
        return tuple(
            next(found) if is_float else np.zeros(a.shape, jax.dtypes.float0)
            for a, is_float in zip(arrays, floats, strict=True)
        )

    call = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    call.defvjp(forward, backward)
    return call


def _forward(pure: PureFunction) -> Any:
    """Return the function with its Jacobian-vector product."""
    jax = _jax()
    outputs = pure.function.outputs or ()
    ends = _results(outputs)
    tangent_ends = _results([f for f in outputs if f.dtype.is_float])
    floats = [f.dtype.is_float for f in pure.prepared.fields]

    def value(*arrays: Any) -> Any:
        return tuple(pure.value(arrays)[0])

    def push(arrays: Any, tangents: Any) -> Any:
        return tuple(pure.push_forward(arrays, [np.asarray(t) for t in tangents]))

    @jax.custom_jvp
    def call(*arrays: Any) -> Any:
        return _call_back(value, ends, *arrays)

    @call.defjvp
    def tangents_of(arrays: Any, tangents: Any) -> Any:
        given = tuple(t for t, is_float in zip(tangents, floats, strict=True) if is_float)
        moved = iter(_call_back(push, tangent_ends, arrays, given))
        rest = tuple(
            next(moved) if f.dtype.is_float else np.zeros(e.shape, jax.dtypes.float0)
            for f, e in zip(outputs, ends, strict=True)
        )
        return _call_back(value, ends, *arrays), rest

    return call


def _results(fields: Sequence[Any]) -> tuple[Any, ...]:
    """Return JAX's descriptions of the values of fields."""
    return tuple(_jax().ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes(fields))


def _call_back(function: Callable[..., Any], results: tuple[Any, ...], *args: Any) -> Any:
    return tuple(_jax().pure_callback(function, results, *args, vmap_method="sequential"))
