"""Second derivatives of polynomials in a length that have no linear term, at 0 and elsewhere.

A sum of w (a r + b) (a r - b), with r the length of a vector or the size of a number, is c r**2 + d: its
Hessian is 2 c I everywhere, at r = 0 as well. The factors are written in many ways
(`passes/forms/root_squares.py`).
"""

from random import Random

import numpy as np

import diffsim as ds
from tests.support.source import make as define

N = 3


def make(seed):
    """The text of a kernel, with the coefficient c of each point in its first line."""
    r = Random(seed)
    root = r.choice(["v[i].norm()", "ds.sqrt(v[i].dot(v[i]))", "ds.sqrt(v[i].norm_sqr())"])
    named = r.random() < 0.6
    lines = [f"r = {root}"] if named else []
    total = 0.0
    for k in range(r.randint(1, 4)):
        a, b, w = (r.choice([-2.0, -1.0, 0.5, 1.0, 3.0]) for _ in range(3))
        total += w * a * a
        lines += _term(r, k, "r" if named else root, (a, r.choice([0.0, b]), w))
    if r.random() < 0.3:
        lines = ["if v[i].x < 50.0:", *("    " + line for line in lines)]
    body = "\n".join(" " * 8 + line for line in lines)
    head = "@ds.kernel\ndef energy():\n    for i in v:\n"
    return f"# {total}\n{head}{body}\n"


def _term(r, k, root, numbers):
    a, b, w = numbers
    if b == 0 and r.random() < 0.5:
        square = r.choice(["({0}) ** 2", "({0}) * ({0})", "ds.pow({0}, 2.0)"])
        return [f"loss[None] += {w} * {square.format(_linear(r, root, a, 0.0))}"]
    first, second = _linear(r, root, a, b), _linear(r, root, a, -b)
    if r.random() < 0.4:
        return [f"p{k} = {first}", f"loss[None] += {w} * p{k} * ({second})"]
    return [f"loss[None] += ({first}) * {w} * ({second})"]


def _linear(r, root, a, b):
    scaled = r.choice([f"{a} * {root}", f"{root} * {a}", f"{root} / {1 / a}", f"-({-a} * {root})"])
    if b == 0:
        return r.choice([scaled, f"{scaled} - zero[i]", f"zero[i] + {scaled}"])
    return r.choice(
        [f"{scaled} + {b}", f"{b} + {scaled}", f"{scaled} - ({-b})", f"{b} - (-({scaled}))"]
    )


def verdict(text, seed):
    """ "right", or what is wrong."""
    r = Random(seed)
    ds.init(default_fp=ds.f64)
    n = r.choice([1, 2, 3])
    space = {
        "ds": ds,
        "v": ds.Vector.field(n, ds.f64, shape=N, needs_grad=True),
        "loss": ds.field(ds.f64, shape=(), needs_grad=True),
        "zero": ds.field(ds.f64, shape=N),
    }
    define(text, space)
    start = np.random.default_rng(seed).normal(size=(N, n))
    start[0] = 0.0
    space["v"].from_numpy(start)
    matrix = ds.ad.hessian(space["energy"], space["v"], loss=space["loss"])
    want = 2 * float(text[2:].partition("\n")[0]) * np.eye(N * n)
    if not np.allclose(matrix, want, rtol=1e-9, atol=1e-8):
        return f"derivative: {np.diag(matrix)} instead of {want[0, 0]}"
    return "right"
