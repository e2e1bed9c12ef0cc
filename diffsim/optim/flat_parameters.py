"""Parameters as one long vector of f64, as methods of other libraries want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, FieldError, Span, shown
from diffsim.optim.steps.parameters import named_fields
from diffsim.runtime.fields.field import Field

Array = np.ndarray[Any, Any]


class FlatParameters:
    """Fields and the vector of all their numbers, one field after the other.

    Args:
        given: a field with a gradient, or a list or a dictionary of such fields.

    Attributes:
        fields: the fields, by name.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.fields = named_fields(given)
        self._shapes = [f.shape + f.element for f in self.fields.values()]
        self._ends = np.cumsum([int(np.prod(s)) for s in self._shapes])[:-1]

    def join(self, arrays: Sequence[Array]) -> Array:
        """Return arrays, one for each field, as one vector."""
        return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays])

    def parts(self, x: Array) -> list[Array]:
        """Return a vector as arrays in the shapes of the fields."""
        split = np.split(np.asarray(x, np.float64), self._ends)
        return [part.reshape(s) for part, s in zip(split, self._shapes, strict=True)]

    def values(self) -> Array:
        """Return the values of all fields."""
        return self.join([f.to_numpy() for f in self.fields.values()])

    def gradient(self) -> Array:
        """Return the gradients of all fields."""
        return self.join([f.grad.to_numpy() for f in self.fields.values() if f.grad is not None])

    def set(self, x: Array) -> None:
        """Set the values of all fields."""
        for f, part in zip(self.fields.values(), self.parts(x), strict=True):
            f.from_numpy(part.astype(f.dtype.numpy))

    def bounds(self, given: Any) -> tuple[Array, Array]:
        """Return the lower and the upper bounds of all numbers.

        Args:
            given: a pair for all fields, or a list or a dictionary with a pair for each.
        """
        self._check_surplus(given)
        lows, highs = zip(
            *(self._ends_of(k, f, given) for k, f in enumerate(self.fields.items())), strict=True
        )
        low, high = self.join(lows), self.join(highs)
        if (low > high).any():
            raise ArgumentError(
                "a least value is greater than the greatest one",
                Span.of_caller(),
                "write (low, high)",
            )
        return low, high

    def _check_surplus(self, given: Any) -> None:
        """Refuse bounds that belong to no field: SciPy's own are one pair for each number."""
        if isinstance(given, list) and len(given) > len(self.fields):
            raise FieldError(
                f"there are {len(given)} bounds for {len(self.fields)} "
                f"{'field' if len(self.fields) == 1 else 'fields'}",
                Span.of_caller(),
                hint="give one pair for each field; the numbers of a field have bounds of their own by two "
                "arrays of its shape: (lows, highs)",
            )
        if isinstance(given, Mapping):
            for key in given:
                if key not in self.fields:
                    raise ArgumentError(
                        f"there are bounds for {shown(key)}, and no parameter of this name",
                        Span.of_caller(),
                        hint="give them as the fields are: in a list for a list, in a dictionary of the "
                        "same names for a dictionary; or one pair for all",
                    )

    def _ends_of(self, k: int, item: tuple[str, Field], given: Any) -> tuple[Array, Array]:
        key, f = item
        pair = given
        if isinstance(given, Mapping):
            pair = given.get(key, (None, None))
        elif isinstance(given, list):
            pair = given[k] if k < len(given) else None
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise FieldError(
                f"the bounds of {f.name} (parameter {key}) are a pair, not {shown(pair)}",
                Span.of_caller(),
                hint="write bounds=(-1, 1), or bounds=[(0, None), (-1, 1)] for a list of two fields",
            )
        return self._bound(f, pair[0], -np.inf), self._bound(f, pair[1], np.inf)

    @staticmethod
    def _bound(f: Field, value: Any, without: float) -> Array:
        """Return a bound of each number of a field, which the field's type can hold."""
        shape = f.shape + f.element
        try:
            wanted = np.broadcast_to(
                np.asarray(without if value is None else value, np.float64), shape
            )
        except (TypeError, ValueError):
            raise FieldError(
                f"a bound of {f.name} is a number or an array of shape {shape}, not {shown(value)}",
                Span.of_caller(),
                hint="write None for no bound",
            ) from None
        # Rounded to f32 it must not lie outside what was asked for.
        held = wanted.astype(f.dtype.numpy)
        outside = (
            held.astype(np.float64) > wanted if without > 0 else held.astype(np.float64) < wanted
        )
        toward = np.asarray(-without, held.dtype)
        return np.where(outside, np.nextafter(held, toward), held).astype(np.float64)
