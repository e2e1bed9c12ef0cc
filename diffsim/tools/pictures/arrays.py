"""Arguments of the tools: fields, tensors, lists of numbers, and paths of files, checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, Span, shown
from diffsim.lang.host.signatures import need_path
from diffsim.runtime.fields.field import Field


def refuse(message: str, hint: str) -> ArgumentError:
    """Return the error for something that a tool cannot take, with the user's line."""
    return ArgumentError(message, Span.of_caller(), hint)


def as_array(thing: Any, what: str) -> np.ndarray:
    """Return a field, tensor, array or nested list of numbers as an array of NumPy.

    Args:
        thing: what the user gave.
        what: its name in messages.

    Raises:
        ArgumentError: it holds something else than numbers.
    """
    hint = "give a field, an array, or a list of numbers"
    if isinstance(thing, Field):
        return thing.to_numpy()
    if hasattr(thing, "detach"):  # a tensor of PyTorch that has a gradient refuses to be an array
        thing = thing.detach().cpu()
    try:
        found = np.asarray(thing)
    except (TypeError, ValueError):
        raise refuse(f"{what} is an array of numbers, not {shown(thing)}", hint) from None
    if found.dtype.kind not in "biuf":
        raise refuse(f"{what} is an array of numbers, not {shown(thing)}", hint)
    return found


def stacked(thing: Any, what: str) -> np.ndarray:
    """Return frames as one array; they may be a list of fields or arrays of one shape.

    Raises:
        ArgumentError: there are none, or their shapes differ.
    """
    if isinstance(thing, (list, tuple)) or (
        isinstance(thing, Iterable) and not hasattr(thing, "shape")
    ):
        frames = [as_array(one, what) for one in thing]
        if len({one.shape for one in frames}) > 1:
            shapes = " and ".join(sorted({str(one.shape) for one in frames})[:2])
            raise refuse(
                f"the frames of {what} have different shapes: {shapes}", "give all of one shape"
            )
        thing = np.array(frames)
    found = as_array(thing, what)
    if found.ndim == 0 or found.size == 0:
        raise refuse(f"{what} has no frames: its shape is {found.shape}", "give at least one frame")
    return found


def need_positive(thing: Any, what: str, hint: str) -> float:
    """Return a positive number as a float.

    Raises:
        ArgumentError: it is something else.
    """
    right = isinstance(thing, (int, float, np.integer, np.floating)) and not isinstance(thing, bool)
    number = thing.item() if isinstance(thing, np.generic) else thing  # 1e300 is no f32
    if not right or not 0 < number < 1e300:
        raise refuse(f"{what} is a positive number, not {shown(thing)}", hint)
    return float(thing)


def path_of(thing: Any, what: str, endings: Iterable[str] = ()) -> Path:
    """Return a path that a user gave, whose ending (in any case) says the format.

    Args:
        thing: a text or a path.
        what: what is written there, in messages.
        endings: those that are possible, such as ".png"; all if left out.

    Raises:
        ArgumentError: it cannot name a file, or its ending is none of them.
    """
    need_path(thing, f"the name of {what}")
    path = Path(os.fspath(thing))
    endings = tuple(endings)
    if endings and path.suffix.lower() not in endings:
        raise refuse(
            f"the ending of {path.name!r} names no format of {what}",
            f"use one of {', '.join(endings)}",
        )
    return path
