"""Whole programs in forward mode: several launches, state changed in place, writes from Python between them.

No field has a gradient, and most have no dual: those on the way are lent one. The oracle is Python with dual
numbers, once for each seed.
"""

import contextlib
import math
from unittest import mock

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, KernelSyntaxError
from diffsim.ir import layout
from tests.fuzz.programs import Invalid, N, oracle, placed, start, sure_direction, weigh


def verdict(text, seed, n=N):
    """ "right", "refused", "invalid", or what is wrong."""
    try:
        with np.errstate(all="ignore"):
            sure = sure_direction(text, seed, n)
            other = {k: np.where(d == 0, 0.0, start(seed + 1, n)[1][k]) for k, d in sure.items()}
            none = {k: np.zeros_like(d) for k, d in sure.items()}
            seeds = [sure, other, none][: 1 + seed % 3]
            found = [oracle(text, seed, direction, n) for direction in seeds]
    except Invalid:
        return "invalid"
    end, loss = found[0][:2]
    with gaps_between_tangents() if seed & 2 else contextlib.nullcontext():
        got = run(text, seed, seeds, n)
    if isinstance(got, AutodiffError):
        return "refused"
    values, got_loss, slopes = got
    for k in end:
        if not np.allclose(values[k], end[k], rtol=1e-9, atol=1e-9):
            return f"value of {k}: {values[k].tolist()} instead of {end[k].tolist()}"
    if not math.isclose(got_loss, loss, rel_tol=1e-9, abs_tol=1e-9):
        return f"loss: {got_loss} instead of {loss}"
    for k, (_, _, slope, _) in enumerate(found):
        if not math.isclose(slopes[k], slope, rel_tol=1e-7, abs_tol=1e-7):
            return f"derivative: {slopes[k]} instead of {slope}, seed {k} of {len(seeds)}"
    return "right"


@contextlib.contextmanager
def gaps_between_tangents():
    """Let several tangents of small fields lie apart, as those of large ones do."""
    with mock.patch.multiple(layout, _PAGE=32, _APART=16):
        yield


def run(text, seed, seeds, n):
    """The values at the end, the loss, and its derivatives by all seeds; or the AutodiffError."""
    values, _, weights, _ = start(seed, n)
    ds.init(default_fp=ds.f64)
    space, fields = placed(text, seed, n, lent=list(values))
    sums = {k: ds.field(ds.f64, weights[k].shape) for k in values}
    for k, w in sums.items():
        w.from_numpy(weights[k])
    ends = weigh(fields, sums)
    one = len(seeds) == 1
    param = {fields[k]: seeds[0][k] if one else [s[k] for s in seeds] for k in values}
    try:
        with ds.ad.FwdMode(fields["loss"], param) as forward:
            space["main"]()
            for end in ends:
                end()
    except AutodiffError as error:
        return error
    except KernelSyntaxError as error:  # of an update that is atomic and would read too late
        if "give the value a name first" in str(error):
            return AutodiffError(str(error), None)
        raise
    slopes = np.reshape(forward.tangents(fields["loss"]), -1)
    return {k: fields[k].to_numpy() for k in values}, fields["loss"][None], slopes
