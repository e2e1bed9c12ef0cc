"""Random programs of decompositions: forward and reverse mode against each other, and against differences.

A program changes matrices in place, step by step. <J v, g> = <v, J^T g> holds at any matrix, equal singular
values included; differences are compared where they agree with themselves.
"""

import linecache
import random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError

N = 6
_HEAD = """
@ds.func
def bend(u):
    return ds.sin(u) + 0.3 * u * u

@ds.kernel
def step(c: ds.f64):
    for i in A:
        X = A[i] + c * B[i]
        Y = X
"""


def make(seed):
    """The text of a program: a kernel, and how often it is launched."""
    rng = random.Random(f"decomposed {seed}")
    n = rng.choice([2, 3])
    body = []
    for k in range(rng.randint(1, 3)):
        lines = _statements(rng, k)
        how = rng.random()
        if how < 0.2:
            lines = [
                f"if A[i][0, 1] > {round(rng.uniform(-1, 1), 1)}:",
                *("    " + x for x in lines),
            ]
        elif how < 0.4:
            lines = [f"for j{k} in ds.static(range(2)):", *("    " + x for x in lines)]
        body += lines
    body.append(f"A[i] = {_number(rng)} * X + {_number(rng)} * Y")
    if rng.random() < 0.5:
        body.append("total[None] += (Y @ B[i]).trace() + X[0, 1] * Y[1, 0]")
    lines = "".join(f"        {line}\n" for line in body)
    steps = "".join(f"    step({_number(rng)})\n" for _ in range(rng.randint(1, 3)))
    return f"# {n} x {n}{_HEAD}{lines}\ndef main():\n{steps}"


def _number(rng):
    return round(rng.uniform(-0.9, 0.9), 2)


def _statements(rng, k):
    """Statements that make Y of X by a decomposition."""
    R, S, U, D, V, w = (f"{name}{k}" for name in "RSUDVw")
    of = rng.choice(["X", "Y", "X + 0.3 * Y"])
    f = rng.choice(["bend", "ds.tanh", "ds.exp"])
    kind = rng.choice("polar svd product map eigen sym_map one".split())
    if kind == "polar":
        return [f"{R}, {S} = ds.polar_decompose({of})", f"Y = 0.5 * {R} @ Y + {S} * 0.2"]
    if kind == "sym_map":
        return [f"Y = 0.3 * ds.sym_map({f}, 0.2 * ({of}) @ ({of}).transpose())"]
    if kind == "eigen":
        made = rng.choice([f"{V} * {w}[0]", f"X * {w}.norm_sqr()"])
        return [f"{w}, {V} = ds.sym_eig({of})", f"Y = Y + 0.2 * {made}"]
    lines = [f"{U}, {D}, {V} = ds.svd({of})"]
    made = {
        "svd": f"{U} @ {V}.transpose()",
        "product": f"{U} @ ({D} @ {D} - {D}) @ {V}.transpose()",
        "map": f"{U} @ ds.diagonal_map({f}, 0.2 * {D}) @ {V}.transpose()",
        "one": f"{U} * {D}[0, 0] - {V}",
    }[kind]
    return [*lines, f"Y = 0.4 * Y + 0.3 * {made}"]


def matrices(n, rng, equal):
    """Matrices of any kind; `equal`: some with equal singular values."""
    a = rng.normal(size=(N, n, n))
    if not equal:
        return a
    a[0], a[1] = np.eye(n), np.diag([2.0, 1.0, 1.0][:n])
    q, r = (np.linalg.qr(m)[0] for m in rng.normal(size=(2, n, n)))
    a[2] = q @ np.diag([1.5, 1.5, 0.5][:n]) @ r
    a[3] = a[3] + a[3].T
    return a


def verdict(text, seed):
    """ "right", "refused", or what is wrong."""
    rng, n = np.random.default_rng(seed), int(text[2])
    ds.init(default_fp=ds.f64)
    A, B = (ds.Matrix.field(n, n, ds.f64, N, needs_grad=True) for _ in range(2))
    total = ds.field(ds.f64, (), needs_grad=True)
    file = f"<decomposed {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, "A": A, "B": B, "total": total}
    exec(compile(text, file, "exec"), space)
    # Single vectors of values that rounding makes equal turn in reverse mode, and not in forward mode.
    equal = "[0, 0] - V" not in text
    start = (
        matrices(n, rng, equal),
        np.where(rng.random(N) < 0.5, 0.0, 1.0)[:, None, None] * matrices(n, rng, equal),
    )
    along = rng.normal(size=(rng.choice([1, 3]), 2, N, n, n))
    g, h = rng.normal(size=(N, n, n)), rng.normal()

    def begin(step=0.0):
        for f, a, v in zip((A, B), start, along[0], strict=True):
            f.from_numpy(a + step * v)
        total[None] = 0

    def tangents_at(step):
        begin(step)
        with ds.ad.FwdMode([A, total], {A: [*along[:, 0]], B: [*along[:, 1]]}) as forward:
            space["main"]()
        return forward.tangents(A), forward.tangents(total)

    begin()
    try:
        with ds.Tape(in_place="save") as tape:
            space["main"]()
        tape.backward(grads={A: g, total: h})
        back = A.grad.to_numpy(), B.grad.to_numpy()
        tangents, of_total = tangents_at(0.0)
    except AutodiffError:
        return "refused"
    if not np.isfinite(tangents).all() or not all(np.isfinite(b).all() for b in back):
        return "invalid" if not np.isfinite(A.to_numpy()).all() else "not finite"
    for k, v in enumerate(along):
        there = (tangents[k] * g).sum() + of_total[k] * h
        terms = [(d * b).sum() for d, b in zip(v, back, strict=True)]
        size = (
            1
            + np.abs(tangents[k]).sum()
            + sum(np.abs(d * b).sum() for d, b in zip(v, back, strict=True))
        )
        if not abs(there - sum(terms)) <= 1e-6 * size:
            # In forward mode values are equal up to the root of eps times the largest, and tangents near to
            # that are of rounding errors; single vectors show both (docs/decompositions.md).
            near, near_total = tangents_at(1e-13)
            moved = (near[k] - tangents[k]) * g
            moves = abs(moved.sum() + (near_total[k] - of_total[k]) * h) > 1e-6 * size
            if moves or (not equal and np.abs(A.to_numpy()).max() > 1e4):
                return "invalid"
            return f"tangent: {there} instead of {sum(terms)}"
    return _against_differences(space["main"], A, begin, tangents[0])


def _against_differences(run, A, begin, tangents):
    """Compare each matrix whose differences are sure."""
    slopes = []
    for h in (1e-4, 1e-5):
        ends = []
        for step in (h, -h):
            begin(step)
            run()
            ends.append(A.to_numpy())
        slopes.append((ends[0] - ends[1]) / (2 * h))
    scale = 1 + np.abs(slopes[1]).max((1, 2))
    sure = np.abs(slopes[0] - slopes[1]).max((1, 2)) < 1e-5 * scale
    wrong = np.abs(tangents - slopes[1]).max((1, 2)) > 1e-4 * scale
    # Vectors of equal values are any: of those the first matrices, differences are chance.
    wrong[:3] = False
    if (wrong & sure).any():
        k = int(np.argmax(wrong & sure))
        return f"slope of A[{k}]: {tangents[k].tolist()} instead of {slopes[1][k].tolist()}"
    return "right"
