"""Look for programs whose gradient is wrong, and make those that are found small.

    python -m tests.fuzz                     for ten minutes, from a new seed on
    python -m tests.fuzz --minutes 60
    python -m tests.fuzz --cuda              on an emulated GPU, with more lanes
    python -m tests.fuzz --deterministic     the same bits in every run
    python -m tests.fuzz --by-default        the same bits without the option, where they are promised
    python -m tests.fuzz --warm              with and without what the cache on disk holds of others
    python -m tests.fuzz --seed 1234         one program again

Ends with status 1 and the smallest programs that it could find if any gradient (or value) was wrong.
"""

import argparse
import functools
import os
import sys
import tempfile
import time

import diffsim as ds
from diffsim.backends.cpu import chunks, codegen, outline, trailing_task
from diffsim.passes.autodiff import skipped_iterations
from diffsim.passes.neighbours import materialized_values
from tests.cuda import emulated
from tests.fuzz import (
    advice,
    appends,
    arrays,
    bridges,
    by_hand,
    captured,
    chains,
    clears,
    complex_steps,
    components,
    conditions,
    constructs,
    cuda,
    decomposed,
    dense,
    deterministic,
    exchanges,
    fissions,
    forward,
    gathers,
    given,
    halves,
    hessians,
    idle,
    launches,
    levels,
    lookups,
    near_lanes,
    neighbours,
    nested,
    networks,
    nonfinite,
    numbering,
    numbers,
    one_row,
    periods,
    programs,
    recomputed,
    recordings,
    repeatable,
    repeated,
    rewrites,
    roots,
    scatters,
    sections,
    shapes,
    slices,
    solves,
    sparse,
    sparse_trees,
    stacks,
    stored,
    sweeps,
    tables,
    tangents,
    tensors,
    torus,
    warm,
    wide,
    windows,
)
from tests.fuzz.shrink import shrink

SHORT = skipped_iterations._SHORT
TOGETHER = codegen._MOST_TOGETHER
CHUNK_WORK = chunks._CHUNK_WORK
LONGEST = outline._LONGEST, outline._MOST_NESTED, outline._PART
TRAILING = codegen._FEWEST_CHUNKS, trailing_task._LARGE
AGAIN = materialized_values._LEAST_AGAIN
HOWS = ("save", "refuse")
ONE_CHUNK = ("tangents", "exchanges")
"""Tangents are compared bit by bit with another kernel, whose sums would be in another order; lanes that
exchange elements see what others of their chunk store."""
ONE_FUNCTION = ("tangents", "decomposed")
"""Values that are equal in one function may be so up to rounding in its parts, and their vectors any."""


def tries(seed, on_cuda, in_order=False, by_default=False):
    """The program of a number, and the ways to run it: words for each, and a function of the text."""
    if by_default:
        # Rows are short, as each turn is a chunk, which starts late.
        n = wide.SIZES[0]
        text = (wide.OwnMaker if seed % 4 else wide.WideMaker)(seed, n).text()
        return text, [("by default", lambda text: deterministic.by_default(text, seed, n))]
    if in_order:
        text, n = wide.make(seed)
        return text, [("deterministic", lambda text: deterministic.verdict(text, seed, n))]
    if on_cuda and seed % 8 == 4:
        return neighbours.make(seed), [
            ("neighbours", functools.partial(neighbours.on_cuda, seed=seed))
        ]
    if on_cuda and seed % 2:
        text, how = tensors.make(seed), cuda.options(seed)
        return text, [(str(how), lambda text: cuda.verdict_of_tensors(text, seed))]
    if on_cuda:
        text, n = wide.make(seed)
        return text, [(str(cuda.options(seed)), lambda text: cuda.verdict(text, seed, n))]
    if seed % 32 == 28:
        ways = [
            (f'in_place="{how}"', functools.partial(neighbours.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return neighbours.make(seed), ways
    if seed % 32 == 24:
        return given.make(seed), given.ways(seed)
    if seed % 32 == 1:
        arch = ds.python if seed % 256 == 1 else ds.cpu
        options = {"arch": arch, "debug": seed % 64 == 1}
        return sparse_trees.make(seed), [
            ("sparse trees", functools.partial(sparse_trees.verdict, seed=seed, **options))
        ]
    if seed % 32 == 23:
        arch = ds.python if seed % 256 == 23 else ds.cpu
        return components.make(seed), [
            ("components", functools.partial(components.verdict, seed=seed, arch=arch))
        ]
    if seed % 32 == 9:
        ways = [(k, functools.partial(solves.verdict, seed=seed, way=k)) for k in solves.WAYS]
        return solves.make(seed), ways
    if seed % 32 == 25:
        return decomposed.make(seed), [
            ("decomposed", functools.partial(decomposed.verdict, seed=seed))
        ]
    if seed % 128 == 103:
        return one_row.make(seed), [("one row", functools.partial(one_row.verdict, seed=seed))]
    if seed % 32 == 7:
        return dense.make(seed), [("dense", functools.partial(dense.verdict, seed=seed))]
    if seed % 64 == 43:
        return numbers.make(seed), [("numbers", functools.partial(numbers.verdict, seed=seed))]
    if seed % 32 == 11:
        return recordings.make(seed), [
            ("recordings", functools.partial(recordings.verdict, seed=seed))
        ]
    if seed % 32 == 15:
        return arrays.make(seed), [("arrays", functools.partial(arrays.verdict, seed=seed))]
    if seed % 32 == 13:
        return roots.make(seed), [("roots", functools.partial(roots.verdict, seed=seed))]
    if seed % 128 == 83:
        return windows.make(seed), [("windows", functools.partial(windows.verdict, seed=seed))]
    if seed % 64 == 40:
        return scatters.make(seed), [("scatters", functools.partial(scatters.verdict, seed=seed))]
    if seed % 64 == 42:
        ways = [
            (f'in_place="{how}"', functools.partial(stacks.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return stacks.make(seed), ways
    if seed % 64 == 26:
        ways = [(k, functools.partial(idle.verdict, seed=seed, way=k)) for k in idle.WAYS]
        return idle.make(seed), ways
    if seed % 64 == 19:
        return lookups.make(seed), [("lookups", functools.partial(lookups.verdict, seed=seed))]
    if seed % 128 == 115:
        return exchanges.make(seed), [
            ("exchanges", functools.partial(exchanges.verdict, seed=seed))
        ]
    if seed % 64 == 22:
        return fissions.make(seed), [("fissions", functools.partial(fissions.verdict, seed=seed))]
    if seed % 64 == 44:
        return torus.make(seed), [("torus", functools.partial(torus.verdict, seed=seed))]
    if seed % 32 == 19:
        return gathers.make(seed), [("gathers", functools.partial(gathers.verdict, seed=seed))]
    if seed % 32 == 27:
        return near_lanes.make(seed), [
            ("near lanes", functools.partial(near_lanes.verdict, seed=seed))
        ]
    if seed % 64 == 35:
        return appends.make(seed), [("appends", functools.partial(appends.verdict, seed=seed))]
    if seed % 32 == 3:
        return repeated.make(seed), [("repeated", functools.partial(repeated.verdict, seed=seed))]
    if seed % 32 == 31:
        return networks.make(seed), [("networks", functools.partial(networks.verdict, seed=seed))]
    if seed % 32 == 17:
        return repeatable.make(seed), [
            ("replays", functools.partial(repeatable.verdict, seed=seed))
        ]
    if seed % 32 == 29:
        arch, vectors = ds.python if seed % 256 == 29 else ds.cpu, bool(seed & 32)
        return halves.make(seed), [
            ("halves", functools.partial(halves.verdict, seed=seed, arch=arch, vectors=vectors))
        ]
    twice = ("hessians", functools.partial(hessians.verdict, seed=seed))
    stepped = ("complex step", functools.partial(complex_steps.verdict, seed=seed))
    if seed % 32 == 21:
        text = tensors.make(seed)
        return text, [("tensors", functools.partial(tensors.verdict, seed=seed)), twice, stepped]
    if seed % 128 == 101:
        return chains.make(seed), [("chains", functools.partial(chains.verdict, seed=seed))]
    if seed % 64 == 37:
        return periods.make(seed), [("periods", functools.partial(periods.verdict, seed=seed))]
    if seed % 64 == 5:
        return tables.make(seed), [("tables", functools.partial(tables.verdict, seed=seed))]
    if seed % 16 in (5, 8):
        return tangents.make(seed), [("tangents", functools.partial(tangents.verdict, seed=seed))]
    if seed % 64 == 62:
        ways = [
            (f'in_place="{how}"', functools.partial(conditions.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return conditions.make(seed), ways
    if seed % 32 == 30:
        ways = [
            (f'in_place="{how}"', functools.partial(stored.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return stored.make(seed), ways
    if seed % 16 == 14:
        return recomputed.make(seed), [
            ("recomputed", functools.partial(recomputed.verdict, seed=seed))
        ]
    if seed % 32 == 4:
        text, lent = advice.make(seed, rewrites if seed % 64 == 4 else programs)
        return text, [("advice", functools.partial(advice.verdict, seed=seed, lent=lent))]
    if seed % 32 == 20:
        return nonfinite.make(seed), [
            ("nonfinite", functools.partial(nonfinite.verdict, seed=seed))
        ]
    if seed % 64 == 38:
        return numbering.make(seed), [("numbering", numbering.verdict)]
    if seed % 128 == 6:
        return clears.make(seed), [("clears", functools.partial(clears.verdict, seed=seed))]
    if seed % 8 == 6:
        return by_hand.make(seed), [("by hand", by_hand.verdict)]
    if seed % 16 == 10:
        return captured.make(seed), [("captured", captured.verdict)]
    if seed % 64 == 48:
        ways = [
            (f'in_place="{how}"', functools.partial(nested.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return nested.make(seed), ways
    if seed % 32 == 16:
        return sweeps.make(seed), [("sweeps", functools.partial(sweeps.verdict, seed=seed))]
    if seed % 32 == 18:
        ways = [
            (f'in_place="{how}"', functools.partial(sections.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return sections.make(seed), ways
    if seed % 64 == 34:
        ways = [
            (f'in_place="{how}"', functools.partial(levels.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return levels.make(seed), ways
    if seed % 16 == 2:
        ways = [
            (f'in_place="{how}"', functools.partial(slices.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return slices.make(seed), ways
    if seed % 16 == 12:
        ways = [
            (f'in_place="{how}"', functools.partial(launches.verdict, seed=seed, in_place=how))
            for how in HOWS
        ]
        return launches.make(seed), ways
    ways = [
        (f'in_place="{how}"', functools.partial(programs.verdict, seed=seed, in_place=how))
        for how in HOWS
    ]
    ways.append(("lifted", functools.partial(programs.lifted, seed=seed)))
    ways.append(("forward", functools.partial(forward.verdict, seed=seed)))
    python = functools.partial(programs.verdict, seed=seed, in_place="save", arch=ds.python)
    ways.append(("in Python", python))
    ways += [twice, stepped, ("halves", functools.partial(halves.stepped, seed=seed))]
    ways += [
        (k, functools.partial(bridges.verdict, seed=seed, library=k)) for k in bridges.LIBRARIES
    ]
    ways.append(("sparse", functools.partial(sparse.verdict, seed=seed)))
    maker = (programs, shapes, rewrites, constructs)[seed // 32 % 4]
    if maker is shapes:
        ways.append(("by hand", functools.partial(shapes.by_hand, seed=seed)))
    return maker.make(seed), ways


def trial(text, verdict):
    """What is wrong with a program, or None."""
    try:
        said = verdict(text)
    except Exception as error:  # whatever it is, it is no answer to a user
        return f"crash: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None if said in ("right", "refused", "invalid") else said


def _as_wrong(wrong, verdict, text):
    """Whether a program is wrong in the same way."""
    said = trial(text, verdict) or ""
    return (
        said.split(":")[:2] == wrong.split(":")[:2] if "crash" in wrong else said[:8] == wrong[:8]
    )


def main():
    """Run the command line."""
    # With a cache of its own: code that another run compiled under other limits would be found again.
    with tempfile.TemporaryDirectory(prefix="diffsim-fuzz-") as folder:
        os.environ["DIFFSIM_CACHE_DIR"] = folder
        return search()


def search():
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="run this program only")
    parser.add_argument("--cuda", action="store_true", help="emulate the code for GPUs")
    parser.add_argument("--deterministic", action="store_true", help="the same bits in every run")
    parser.add_argument(
        "--by-default", action="store_true", help="the same bits, where they are promised"
    )
    parser.add_argument("--warm", action="store_true", help="the cache on disk, in many processes")
    options = parser.parse_args()
    if options.cuda:
        emulated.install(by_default=True)
    first = time.time_ns() // 10**6 % 10**9 if options.seed is None else options.seed
    if options.warm:
        return 1 if warm.search(first, options.minutes if options.seed is None else 0.0) else 0
    end = time.monotonic() + 60 * options.minutes
    seed, tried, failures = first, 0, 0
    while time.monotonic() < end and failures < 5:
        # Loops here are short: half of the programs take those of few iterations for long ones.
        skipped_iterations._SHORT = seed // 2 % 2 * SHORT
        # And kernels have few: a third of the programs are launched in parts of one or two.
        codegen._MOST_TOGETHER = (1, 2, TOGETHER, TOGETHER, TOGETHER, TOGETHER)[seed % 6]
        # What stencils compute costs little: two thirds hand it over nevertheless.
        materialized_values._LEAST_AGAIN = AGAIN if seed % 3 == 0 else 0
        text, ways = tries(seed, options.cuda, options.deterministic, options.by_default)
        # And boxes are small: threads share half of the programs', with few lanes in each chunk.
        shared = seed // 3 % 2 and ways[0][0] not in ONE_CHUNK
        chunks._CHUNK_WORK = (1, 20, 200)[seed % 7 % 3] if shared else CHUNK_WORK
        # Blocks are short: a fifth of the programs are functions of three statements.
        parts = seed % 5 == 2 and ways[0][0] not in ONE_FUNCTION
        outline._LONGEST, outline._MOST_NESTED, outline._PART = (4, 4, 3) if parts else LONGEST
        for words, verdict in ways:
            tried += 1
            wrong = trial(text, verdict)
            if wrong is None:
                continue
            failures += 1
            print(f"\nseed {seed}, {words}: {wrong}\n{text}\nmaking it small ...", flush=True)
            small = shrink(text, functools.partial(_as_wrong, wrong, verdict))
            print(small + f"\n# {trial(small, verdict)}", flush=True)
            break
        if options.seed is not None:
            break
        seed += 1
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{tried} runs from seed {first}, {failures} wrong ")
    print(f"\n{tried} runs of programs {first} to {seed}: {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
