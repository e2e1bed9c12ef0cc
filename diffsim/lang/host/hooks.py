"""What the language asks of the runtime, which stands above it: filled in by `diffsim.runtime`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Ports:
    """Functions of the runtime that names of the language lead to (`ds.Vector.field`, `ds.random`)."""

    make_field: Callable[..., Any]
    make_ndarray: Callable[..., Any]
    make_struct_field: Callable[..., Any]
    default_fp: Callable[[], Any]
    default_ip: Callable[[], Any]
    stop_grad: Callable[..., Any]
    forget_kernels: Callable[[], None]


ports = Ports()
