"""Random programs many times each, with `deterministic=True`: the same bits whatever the threads do.

Without the option the same is promised where lanes share no floats that they update (`by_default`).

Chunks are as small as they can be, so that a few lanes are many chunks, and start late (`tests/shaken.py`).
"""

import contextlib
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.cpu import chunks, scheduling
from diffsim.backends.llvm import update_log
from diffsim.passes.transforms.ordered_updates import order_updates
from diffsim.runtime import compiler
from tests import shaken
from tests.fuzz import programs

RUNS = 10
RUNS_BY_DEFAULT = 20


@contextlib.contextmanager
def small_chunks(seed):
    """Every lane a chunk, or nearly so; few in a round; copies now and then."""
    r = Random(seed)
    changes = [
        (chunks, "_CHUNK_WORK", 1),
        (update_log, "CHUNKS", r.choice([2, 5, 64])),
        (update_log, "CHUNK_BYTES", r.choice([64, 1 << 19])),
        (scheduling, "_FEWEST_COPIES", r.choice([1, 8, 1000])),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    for change in changes:
        setattr(*change)
    try:
        yield
    finally:
        for change in before:
            setattr(*change)


def verdict(text, seed, n, runs=RUNS):
    """What `programs.verdict` says of it, and else in which run which bits were others."""
    r = Random(seed)
    single, in_place = r.random() < 0.7, r.choice(["save", "save", "refuse"])
    options = {"arch": ds.cpu, "deterministic": True}
    with small_chunks(seed), shaken.changed(shaken.delayed):
        said = programs.verdict(text, seed, in_place, n, single, **options)
        if said in ("invalid", "refused") or (said != "right" and not single):
            return said
        first = None
        for k in range(runs):
            threads = r.randint(1, 6)
            bits = _bits(text, seed, in_place, n, single, cpu_max_num_threads=threads, **options)
            first = first or bits
            if bits != first:
                return f"bits: run {k} with {threads} threads"
    return "right"


def _bits(*program, **options):
    """The bits of everything that the passes of a program gave."""
    return [
        (
            {name: a.tobytes() for name, a in final.items()},
            np.float64([loss, slope]).tobytes(),
        )
        for final, loss, slope in programs.run(*program, **options)
    ]


@contextlib.contextmanager
def kernels_with_an_order():
    """Collect the names of kernels, compiled in the block, whose results depend on the order of lanes."""
    found, lower = [], compiler.lower

    def noting(kernel, backend):
        lowered = lower(kernel, backend)
        if any(t.order is not None for t in order_updates(lowered).tasks):
            found.append(kernel.name)
        return lowered

    compiler.lower = noting
    try:
        yield found
    finally:
        compiler.lower = lower


def by_default(text, seed, n, runs=RUNS_BY_DEFAULT):
    """ "right", "refused", "invalid" (nothing is promised of it), or in which run which bits were others."""
    r = Random(seed)
    single, in_place = r.random() < 0.7, r.choice(["save", "save", "refuse"])
    with small_chunks(seed), shaken.changed(shaken.delayed), kernels_with_an_order() as found:
        said = programs.verdict(text, seed, in_place, n, single)
        if found or said in ("invalid", "refused"):
            return "invalid" if found else said
        first = None
        for k in range(runs):
            threads = 1 + k % 2
            bits = _bits(text, seed, in_place, n, single, cpu_max_num_threads=threads)
            first = first or bits
            if bits != first:
                return f"bits: run {k} with {threads} threads"
    return "right" if said == "right" or single else said
