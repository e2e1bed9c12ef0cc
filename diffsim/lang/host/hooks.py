"""Functions of the runtime that the language calls.

The runtime imports the language, so the language cannot import the runtime: dependency inversion.

`diffsim/__init__.py` installs the functions once, when everything is loaded. Until then nothing calls
them: types that follow the default precision (`DefaultTensor`) ask for it when they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diffsim.ir.types import ScalarType


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeHooks:
    """Functions of the runtime that names of the language lead to (`ds.Vector.field`, `float`).

    Attributes:
        make_field: (shape of an element, dtype, shape, name, needs_grad, layout, needs_dual,
            offset, order) -> field.
        make_ndarray: (shape of an element, dtype, shape, needs_grad, needs_dual) -> array.
        make_struct_field: (struct type, shape, name, needs_grad, layout, needs_dual) -> field of
            structs.
        default_fp: the scalar type that `float` means in this session.
        default_ip: the scalar type that `int` means in this session.
        stop_grad: `ds.stop_grad` outside kernels.
        forget_kernels: discards every compiled specialization; a func has got another derivative.
    """

    make_field: Callable[..., Any]
    make_ndarray: Callable[[tuple[int, ...], Any, Any, bool, bool], Any]
    make_struct_field: Callable[..., Any]
    default_fp: Callable[[], ScalarType]
    default_ip: Callable[[], ScalarType]
    stop_grad: Callable[[Any], Any]
    forget_kernels: Callable[[], None]


# None only while the package is being imported.
_installed: RuntimeHooks | None = None


def install(hooks: RuntimeHooks) -> None:
    """Set the runtime's functions: when the package is loaded, and when a program reloads it."""
    global _installed
    _installed = hooks


def runtime() -> RuntimeHooks:
    """Return the runtime's functions."""
    assert _installed is not None, "diffsim is not loaded completely"
    return _installed
