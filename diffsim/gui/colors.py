"""Colours: 0xRRGGBB, as users write them, and triples of numbers between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, Span, shown
from diffsim.lang.host.signatures import checked


@checked
def rgb_to_hex(c: Sequence[float] | np.ndarray) -> Any:
    """Return the colour 0xRRGGBB of red, green and blue between 0 and 1; arrays of them give an array.

    Example:
        print(hex(ds.rgb_to_hex((1.0, 0.0, 0.2))))  # prints: 0xff0033
    """
    try:
        red, green, blue = (np.clip(np.int32(np.multiply(x, 255)), 0, 255) for x in c)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"a colour has three numbers, not {shown(c)}", Span.of_caller(), "write (1.0, 0.5, 0.0)"
        ) from None
    found = (red << 16) + (green << 8) + blue
    return int(found) if np.ndim(found) == 0 else found


@checked
def hex_to_rgb(color: int) -> tuple[float, float, float]:
    """Return red, green and blue, between 0 and 1, of a colour 0xRRGGBB.

    Example:
        print(ds.hex_to_rgb(0xFF0033))  # prints: (1.0, 0.0, 0.2)
    """
    if not isinstance(color, int | np.integer):
        raise ArgumentError(
            f"a colour is a number, not {shown(color)}", Span.of_caller(), "write 0xRRGGBB"
        )
    color = int(color)  # the masks are wider than the small types of NumPy
    return (color >> 16 & 255) / 255, (color >> 8 & 255) / 255, (color & 255) / 255
