"""Whether compiled lanes have computed what the interpreter has, bit by bit."""

import numpy as np

import diffsim as ds

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


def against_interpreter(results, options, *, may_refuse=False):
    """The verdict on a program that both run; `may_refuse`: a refused gradient is "refused", not a crash.

    Args:
        results: runs the program with options of `ds.init`, and returns all that it leaves, by name.
        options: those of the compiled run.
    """
    try:
        found = results(arch=ds.cpu, **options)
        exact = results(arch=ds.python)
    except ds.errors.DiffsimError as error:
        refused = may_refuse and isinstance(error, ds.errors.AutodiffError)
        return "refused" if refused else f"crash: {error}"
    return verdict(found, exact, options)
