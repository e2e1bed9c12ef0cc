"""Gradients of random programs against a complex step: an oracle that knows no derivative rules.

Python with dual numbers (`duals.py`) has rules of its own, and is compared with to 1e-7, as it runs other
sums. The complex step runs the same kernels in the interpreter, so gradients agree to 1e-10.
"""

import math

import numpy as np

from diffsim.ad.jacobians.arguments import Subject
from diffsim.ad.jacobians.complex_step import complex_step
from diffsim.ad.jacobians.program import Program
from diffsim.errors import AutodiffError, KernelSyntaxError
from tests.fuzz import programs, tensors
from tests.fuzz.hessians import Numbers, Tensors


def verdict(text, seed):
    """ "right", "refused", "invalid", or what is wrong."""
    kind = Tensors(text, seed) if seed % 2 else Numbers(text, seed)
    try:
        with np.errstate(all="ignore"):
            along, other = kind.directions()
            kind.oracle(along, other)
    except (programs.Invalid, tensors.Invalid):
        return "invalid"
    function, loss, fields = kind.place()
    inputs = [f for k, f in fields.items() if f.grad is not None]
    pairs = [(i, loss) for i in inputs]
    try:
        with Program(Subject(function, inputs, [loss], pairs, {})) as program:
            pulled = program.pull_back({loss: np.ones(1)})
            way = {f: along[k].reshape(-1) for k, f in fields.items() if f in inputs}
            stepped = float(complex_step(program, way, 1e-30)[0][0])
    except AutodiffError:
        return "refused"
    except KernelSyntaxError as error:  # of an update that is atomic and would read too late
        if "give the value a name first" in str(error):
            return "refused"
        raise
    terms = [float(pulled[f] @ d) for f, d in way.items()]
    slope = math.fsum(terms)
    size = max(1.0, *(float(np.abs(pulled[f] * d).sum()) for f, d in way.items()))
    if not abs(slope) < 1e8:
        return "invalid"
    if not math.isclose(slope, stepped, rel_tol=1e-10, abs_tol=1e-10 * size):
        return f"derivative: {slope} by the tape and {stepped} by a complex step"
    return "right"
