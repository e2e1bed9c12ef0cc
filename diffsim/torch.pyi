"""Functions of fields as functions of PyTorch: `ds.torch.wrap` (docs/pytorch.md)."""

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

def wrap(function: Callable[..., Any] | None = ..., *, inputs: Any = ..., outputs: Any = ...) -> Any:
    """Make a function of tensors of PyTorch, with gradients, of a function of fields; also a decorator.

        step = ds.torch.wrap(move, inputs=[x, v, force], outputs=[x, v])
        x1, v1 = step(x0, v0, policy(x0))
        x1.sum().backward()

    A call copies the tensors into the input fields, calls the function, and returns copies of the outputs. It
    is one node of PyTorch's graph. Calls may follow each other in one graph in any number.

    Args:
        function: launches kernels. Arguments after the inputs are passed on to it.
        inputs: a field for each tensor. Without fields all tensors (or as many as there are types here)
            become arrays (`ds.ndarray`) of their shape, which the function gets as arguments.
        outputs: fields that the function writes; if left out, it returns them. One output is one tensor,
            several are a tuple.

    Raises:
        ArgumentError: at a call: a tensor does not fit.
        AutodiffError: and its kind: a gradient cannot be given; at the call, or in `backward`.

    Example:
        import torch

        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        f = ds.torch.wrap(square, inputs=[x], outputs=[y])
        a = torch.full((3,), 3.0, dtype=torch.float64, requires_grad=True)
        f(a).sum().backward()
        print(a.grad.tolist())  # prints: [6.0, 6.0, 6.0]
    """

__all__ = [
    "wrap",
]
