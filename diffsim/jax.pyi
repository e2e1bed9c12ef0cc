"""Functions of fields as functions of JAX: `ds.jax.wrap` (docs/jax.md)."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

def wrap(function: Callable[..., Any] | None = ..., *, inputs: Any = ..., outputs: Any = ..., mode: str = ...) -> Any:
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

__all__ = [
    "wrap",
]
