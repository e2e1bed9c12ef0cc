"""Random programs with `deterministic=True`, many times each: the same bits whatever the threads do.

Chunks are as small as they can be, so that a few lanes are many chunks, and start late (`tests/shaken.py`).
"""

import contextlib
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.cpu import chunks, scheduling
from diffsim.backends.llvm import update_log
from tests import shaken
from tests.fuzz import programs

RUNS = 10


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
            found = programs.run(
                text, seed, in_place, n, single, cpu_max_num_threads=threads, **options
            )
            bits = [
                (
                    {name: a.tobytes() for name, a in final.items()},
                    np.float64([loss, slope]).tobytes(),
                )
                for final, loss, slope in found
            ]
            first = first or bits
            if bits != first:
                return f"bits: run {k} with {threads} threads"
    return "right"
