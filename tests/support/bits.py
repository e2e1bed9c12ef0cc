"""Whether compiled lanes have computed what the interpreter has, bit by bit."""

import numpy as np

MOST = 1 << 23
"""Whole numbers beyond it are rounded as f32, so that the order of sums shows."""


def verdict(found, exact, options):
    """The verdict on arrays by name: "right", "invalid" (too large numbers), or what is wrong."""
    if found.keys() != exact.keys():
        return f"wrong: one of them is refused {options}"
    if max(np.abs(a).max() for a in exact.values()) > MOST:
        return "invalid"
    wrong = [name for name, a in exact.items() if not np.array_equal(a, found[name])]
    return f"wrong: {wrong} {options}" if wrong else "right"
