"""Parts that the solvers share: vectors of NumPy and of diffsim, and the refusal of tapes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    DtypeError,
    FieldError,
    MissingPackageError,
    Span,
    shown,
)
from diffsim.ir.types import f32, from_numpy
from diffsim.runtime.fields.constructors import ndarray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session


def need_scipy() -> ModuleType:
    """Return `scipy.sparse`.

    Raises:
        MissingPackageError: SciPy is not installed.
    """
    try:
        import scipy.sparse  # type: ignore[import-untyped, import-not-found, unused-ignore]
        import scipy.sparse.linalg  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise MissingPackageError(
            "sparse matrices compute with SciPy, which is not installed",
            Span.of_caller(),
            hint="pip install scipy",
        ) from None
    found: ModuleType = scipy.sparse
    return found


def refuse_tape(what: str) -> None:
    """Refuse what a tape could not follow.

    Raises:
        AutodiffError: one is recording.
    """
    if session.tape is not None:
        raise AutodiffError(
            f"{what} has no gradient: a tape would take its result for a constant",
            Span.of_caller(),
            hint="solve by ds.ad.linear_solve, which has one, or do this outside the tape",
        )


def need_dtype(dtype: Any) -> Any:
    """Return a float type that SciPy solves in; refuse others."""
    if not getattr(dtype, "is_float", False) or dtype.shape or dtype.for_storage:
        raise DtypeError(
            f"numbers of a sparse matrix are f32 or f64, not {shown(dtype)}",
            Span.of_caller(),
            hint="give it ds.f32 or ds.f64",
        )
    return dtype


def real_array(thing: Any, what: str) -> np.ndarray:
    """Return the numbers of a field, array or list as an array of NumPy.

    Raises:
        ArgumentError: it holds something else.
    """
    try:
        a = thing.to_numpy() if isinstance(thing, Field) else np.asarray(thing)
    except (TypeError, ValueError):  # rows of different lengths
        a = None
    if a is None or a.dtype.kind not in "biuf":
        raise ArgumentError(
            f"{what} consists of real numbers, and {shown(thing)} does not",
            Span.of_caller(),
            hint="give an array of NumPy, a list of numbers or a field",
        )
    return a


def numbers(b: Any, n: int, what: str) -> np.ndarray:
    """Return a vector of n numbers as an array of NumPy.

    Raises:
        ArgumentError: it holds something else than numbers.
        FieldError: it has another shape.
    """
    a = real_array(b, what)
    if a.shape != (n,):
        raise FieldError(
            f"{what} has {n} numbers, this has shape {a.shape}",
            Span.of_caller(),
            hint="give a vector with a number for each row",
        )
    return a


def alike(x: np.ndarray, b: Any) -> Any:
    """Return a result as what the right-hand side is: an array of NumPy, or one of diffsim."""
    if not isinstance(b, Field):
        return x
    made = ndarray(from_numpy(x.dtype) or f32, x.shape)
    made.from_numpy(np.ascontiguousarray(x))
    return made
