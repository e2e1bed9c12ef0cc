"""Tangents of the kernels of random programs: forward mode against reverse mode, launch by launch.

For each launch <J v, g> = <v, J^T g>, where the kernel has an adjoint, and J v is what differences say, as
far as they agree with each other. The primal's own results must not change by a bit. The tangents of adjoints
are compared with differences of the gradient.
"""

from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.errors import AutodiffError, DiffsimError
from diffsim.ir.nodes import Let
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.reverse import reverse
from tests.fuzz import programs, rewrites, tensors
from tests.support.tangents import WithTangents

LAUNCHES = 4


class Wrong(Exception):
    """What is wrong with a tangent."""


def make(seed):
    """The program of this number: of the kind that `verdict` expects."""
    if seed % 2:
        return tensors.make(seed)
    return (rewrites if seed % 8 == 4 else programs).make(seed)


def verdict(text, seed):
    """ "right", "refused", "invalid", or what is wrong."""
    ds.init(default_fp=ds.f64)
    space, _ = (tensors if seed % 2 else programs).placed(text, seed)
    r = Random(seed)
    left = [LAUNCHES]
    for name, kernel in list(space.items()):
        if name[0] == "k" and name[1:].isdigit():
            space[name] = _Watched(kernel, r, left)
    try:
        with np.errstate(all="ignore"):
            space["main"]()
    except Wrong as wrong:
        return str(wrong)
    except AutodiffError:
        return "refused"
    except DiffsimError:
        return "invalid"
    return "right" if left[0] < LAUNCHES else "invalid"


class _Watched:
    """A kernel whose first launches in a program are checked."""

    def __init__(self, kernel, r, left):
        self.kernel, self.r, self.left = kernel, r, left

    def __call__(self, *args):
        if self.left[0]:
            self.left[0] -= 1
            _check(self.kernel, args, self.r)
        self.kernel(*args)


def _check(kernel, args, r):
    # Numbers in place of the 0-D fields that hold them.
    args = tuple(a[None] if hasattr(a, "shape") and a.shape == () else a for a in args)
    primal = kernel._only(args).ir
    names = [p.name for p in kernel.signature.parameters]
    given = [dict(zip(names, args, strict=True))[a.hint] for a in primal.args]
    start = {m: m.handle().to_numpy() for m in primal.mems if m.kind == "field"}
    if not all(np.isfinite(a).all() and np.abs(a).max() < 1e6 for a in start.values()):
        return
    for m in start:
        m.dual = None
        if m.grad is not None:
            m.grad.dual = None
    floats = [m for m in start if m.dtype.is_float and m.grad is not None]
    without = [m.name for m in floats if r.random() < 0.1]
    without += [m.name for m in start if m.grad is None]
    made = WithTangents(primal, r.choice([1, 1, 2, 4]), without)
    rng = np.random.default_rng(r.randrange(10**9))
    directions = [
        {m: np.array(rng.uniform(-1, 1, start[m].shape)) for m in made.active}
        for _ in range(made.width)
    ]
    memory, found, _ = made.run(start, directions, given)
    after = {m: a.copy() for m, a in start.items()}
    interpreter.run(primal, after, given)
    for m in start:
        if not np.array_equal(memory[m], after[m], equal_nan=True):
            raise Wrong(f"value of {m.name}: {memory[m].tolist()} instead of {after[m].tolist()}")
    if not all(np.isfinite(a).all() and np.abs(a).max() < 1e6 for a in after.values()):
        return
    if not made.made.leaks:
        _against_reverse(made, start, after, directions, found, given, rng)
        if not _has_constants(primal):
            _against_differences(made, start, after, directions[0], found, given)
            _second(made, start, directions[0], given, rng)
    if r.random() < 0.3:
        _against_machine_code(made, start, directions, memory, found, given)


def _has_constants(kernel):
    """Whether something counts as a constant that is none: differences do not know."""
    inside = (s for t in kernel.tasks for s in task_statements(t))
    return any(isinstance(s, Let) and s.op.name == "stop_grad" for s in inside)


def _against_reverse(made, start, after, directions, found, given, rng):
    try:
        adjoint = reverse(made.primal, in_place=True)
    except AutodiffError:
        return
    if adjoint.conditions:
        return
    g = {m: np.array(rng.uniform(-1, 1, a.shape)) for m, a in start.items() if m.grad is not None}
    held = {m: (start if m in adjoint.restored else after)[m].copy() for m in start}
    held |= {m.grad: np.array(g[m] * (m.dual is not None)) for m in g}
    held = {m: a for m, a in held.items() if m in adjoint.ir.mems}
    interpreter.run(adjoint.ir, held, given)
    for k, direction in enumerate(directions):
        there = sum((found[m][k] * g[m]).sum() for m in made.active)
        pairs = [(direction[m], held.get(m.grad, g[m])) for m in made.active]
        back = sum((d * b).sum() for d, b in pairs)
        size = 1 + sum(np.abs(found[m][k]).sum() for m in made.active)
        size += sum(np.abs(d * b).sum() for d, b in pairs)
        # An adjoint that is not finite: numbers out of bounds on a way that counts for nothing.
        if np.isfinite(back) and not abs(there - back) <= 1e-9 * size:
            raise Wrong(f"tangent: {there} instead of {back}")


def _against_differences(made, start, after, direction, found, given):
    def end(moved):
        interpreter.run(made.primal, moved, given)
        return {m: moved[m] for m in made.active}

    _compare("slope", end, start, after, direction, {m: found[m][0] for m in made.active})


def _compare(what, end, start, after, direction, found):
    """Compare tangents with differences, as far as these are sure."""
    slopes, below = [], {}
    for h in (1e-4, 3e-6):
        ends = [
            end({m: np.array(a + step * direction.get(m, 0), a.dtype) for m, a in start.items()})
            for step in (h, -h)
        ]
        slopes.append({m: (ends[0][m] - ends[1][m]) / (2 * h) for m in found})
        below = {m: (after[m] - ends[1][m]) / h for m in found}
    for m in found:
        coarse, fine = slopes[0][m], slopes[1][m]
        scale = 1 + np.abs(fine).max()
        # A kink, also one right here (a tie), or numbers out of bounds.
        if not max(np.abs(coarse - fine).max(), np.abs(below[m] - fine).max()) < 1e-3 * scale:
            return
        if not np.abs(found[m] - fine).max() < 1e-4 * scale:
            raise Wrong(f"{what} of {m.name}: {found[m].tolist()} instead of {fine.tolist()}")


def _second(made, start, direction, given, rng):
    """Compare the tangent of the adjoint with differences of the gradient."""
    try:
        adjoint = reverse(made.primal, in_place=True, again=True)
    except AutodiffError:
        return
    if adjoint.conditions:
        return
    grads = [m.grad for m in start if m.grad is not None]
    second = WithTangents(adjoint.ir, made.width, [m.name for m in start if m.dual is None])
    memory, after, _ = made.run(start, [direction] * made.width, given)
    g = {m: np.array(rng.uniform(-1, 1, (*m.shape, *m.dtype.shape))) for m in grads}
    dg = {m: np.array(rng.uniform(-1, 1, a.shape)) for m, a in g.items()}

    def end(moved):
        held = {m: moved[m].copy() for m in start}
        interpreter.run(made.primal, held, given)
        held |= {m: moved[m].copy() for m in (*adjoint.restored, *grads)}
        interpreter.run(adjoint.ir, held, given)
        return {m: held[m] for m in grads}

    held = {m: memory[m] for m in start} | {m: start[m] for m in adjoint.restored} | g
    rates = {m: after[m][0] for m in made.active} | dg
    rates |= {m: direction[m] for m in adjoint.restored if m in direction}
    held = {m: a for m, a in held.items() if m in adjoint.ir.mems}
    rates = {m: rates[m] for m in second.active}
    _, found, _ = second.run(held, [rates] * made.width, given)
    found = {m: found[m][-1] for m in grads if m in found}
    all_of_it = start | g
    _compare("second", end, all_of_it, end(dict(all_of_it)), direction | dg, found)


def _against_machine_code(made, start, directions, memory, found, given):
    flat = [x for a in given for x in np.ravel(a).tolist()]
    compiled, tangents = made.run_compiled(start, directions, flat)
    for m, a in start.items():
        m.handle().from_numpy(a)
    for m in made.active:
        for have, want in ((compiled[m], memory[m]), (tangents[m], found[m])):
            size = 1 + np.abs(want).max()
            if np.isfinite(want).all() and not np.abs(have - want).max() < 1e-9 * size:
                raise Wrong(
                    f"machine code for {m.name}: {have.tolist()} instead of {want.tolist()}"
                )
