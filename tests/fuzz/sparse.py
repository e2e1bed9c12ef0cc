"""Jacobians of random programs: sparse ones, and those of forward mode, against rows.

The rows themselves are what `programs.verdict` compares with dual numbers.
"""

import linecache

import numpy as np

import diffsim as ds
from diffsim.ad.jacobians.paths import reached_from
from diffsim.errors import AutodiffError, DiffsimError
from tests.fuzz import programs

WAYS = {
    "by rows": {"mode": "reverse"},
    "by coloured rows": {"mode": "reverse", "sparsity": "auto"},
    "by columns": {"mode": "forward"},
    "by coloured columns": {"mode": "forward", "sparsity": "auto"},
}


def space_of(text, seed):
    """The program's names, and its fields with gradients."""
    values, _, _, at = programs.start(seed)
    ds.init(default_fp=ds.f64)
    fields = {
        k: ds.field(ds.f64, s, needs_grad=True)
        for k, s in programs.shapes(programs.N).items()
        if k != "v"
    }
    fields["v"] = ds.Vector.field(2, ds.f64, programs.N, needs_grad=True)
    for k, array in values.items():
        fields[k].from_numpy(array)
    constants = {"at": ds.field(ds.i32, programs.N), "b": ds.field(ds.f64, programs.N)}
    constants["at"].from_numpy(at)
    constants["b"].from_numpy(programs.constants(programs.N))
    loss = ds.field(ds.f64, (), needs_grad=True)
    file = f"<program {seed} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, "loss": loss, **fields, **constants}
    exec(compile(text, file, "exec"), space)
    return space, list(fields.values())


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    space, fields = space_of(text, seed)
    tape = ds.Tape(in_place="save")
    try:
        with np.errstate(all="ignore"), tape:
            space["main"]()
    except DiffsimError:
        return "refused"
    # What no path joins is refused, and left out here.
    joined = [(i, o) for i in fields for o in fields if o in reached_from(tape.entries, i) - {i}]
    number = {id(f): k for k, f in enumerate(fields)}
    space, fields = space_of(text, seed)
    ins, outs = (
        [fields[k] for k in sorted({number[id(pair[end])] for pair in joined})] for end in (0, 1)
    )
    if not joined:
        return "refused"
    # Written as rows, as coloured rows and as columns.
    found = {}
    for words, options in WAYS.items():
        try:
            with np.errstate(all="ignore"):
                found[words] = ds.ad.jacobian(space["main"], ins, outs, **options)
        except (AutodiffError, ds.KernelSyntaxError):
            if words == "by rows":
                return "refused"
            # What rows accept, coloured rows do; forward mode has refusals of its own.
            if options["mode"] == "reverse":
                raise
    dense = found.pop("by rows")
    for words, matrices in found.items():
        for (i, o), matrix in dense.items():
            if not np.allclose(matrices[i, o], matrix, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"jacobian: d {o.name} / d {i.name} {words} differs from that by rows"
    return "right"
