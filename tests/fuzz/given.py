"""Random programs whose kernels call funcs with given gradients, and what their tapes retain, as text.

As `programs.py` and `rewrites.py`. `bend` has a loop that the given gradient spares; `probe` takes a field,
and the gradient given for it adds to the element's adjoint. Some programs consist of launches alone: with
`retain_grad` the gradients of what kernels store are known too, as the effect of moving each stored value.
"""

from __future__ import annotations

import math

import numpy as np

from diffsim.errors import AutodiffError
from tests.fuzz import programs, rewrites

FUNCS = """@ds.func
def bend(q):
    w = 0.0
    for _ in range(2):
        w += 0.25 * q * q
    return w
@ds.func_grad(bend)
def adj_bend(q, adj):
    ds.adjoint[q] += q * adj
@ds.func
def probe(f, k, q):
    return f[k] * q + ds.sin(f[k])
@ds.func_grad(probe)
def adj_probe(f, k, q, adj):
    ds.adjoint[f][k] += (q + ds.cos(f[k])) * adj
    ds.adjoint[q] += f[k] * adj
"""


class Maker(rewrites.Maker):
    """Writes a program."""

    def __init__(self, seed, *, retains=False):
        super().__init__(seed)
        self.retains = retains

    def text(self):
        return FUNCS + super().text()

    def pieces(self):
        # What a lane stores and changes again has no place of its own to retain a gradient of.
        more = () if self.retains else (self.rewrite, self.rewrite, self.serial_rewrite)
        return self.map, self.map, self.map, self.scatter, *more

    def kernel(self):
        super().kernel()
        for _ in range(self.r.randint(0, 2)):
            self.pick(*self.pieces())()

    def expr(self, depth):
        roll = self.r.random()
        fields = [f for f in ("x", "y", "z") if f not in self.scope.hidden]
        if depth and roll < 0.15:
            return f"bend({self.expr(depth - 1)})"
        if depth and fields and roll < 0.35:
            f = self.pick(*fields)
            at = self.scope.index if f in self.scope.own else self.index()
            return f"probe({f}, {at}, {self.expr(depth - 1)})"
        return super().expr(depth)

    def step(self, depth):
        if self.retains:
            self.put(depth, self.launch())
        else:
            super().step(depth)

    def put_in(self, depth):
        if self.retains:
            self.put(depth, "pass")
        else:
            super().put_in(depth)


def make(seed):
    """The program of this number."""
    return Maker(seed, retains=retains(seed)).text()


def retains(seed):
    """Whether the tape of this program retains gradients."""
    return seed // 16 % 3 == 0


def retained(text, seed, in_place):
    """The verdict on all gradients at the end of a tape that retains those of what is stored in a field."""
    direction, name = programs.start(seed)[1], "xyzvm"[seed % 5]
    try:
        with np.errstate(all="ignore"):
            slope = programs.oracle(text, seed, direction, stores_move=name)[2]
    except programs.Invalid:
        return "invalid"
    found = programs.run(text, seed, in_place, retain_grad=name)
    if isinstance(found, AutodiffError):
        return "refused"
    for turn, (_, _, got) in zip((*programs.TURNS, "replayed "), found, strict=False):
        if not math.isclose(got, slope, rel_tol=1e-7, abs_tol=1e-7):
            return f"{turn}retained: {got} instead of {slope}"
    return "right"


def ways(seed):
    """The ways to run the program of this number."""
    if retains(seed):
        return [
            (f'retain_grad, in_place="{how}"', lambda text, how=how: retained(text, seed, how))
            for how in ("save", "refuse")
        ]
    return [
        ('in_place="save"', lambda text: programs.verdict(text, seed, "save")),
        ("lifted", lambda text: programs.lifted(text, seed)),
    ]
