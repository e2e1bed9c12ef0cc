"""Tuples, structs and dictionaries of run-time values as wholes, and lists of fields: they are Python's."""

import itertools
import warnings

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")

# Each is evaluated by Python, too, with its own numbers and structs.
COMPARED = [
    "(a, 1) == (2, s)",
    "(a, 1) != (2, 1)",
    "(a, (s, 1)) == (2, (1.0, 1))",
    "(a, s) < (2, 1.0)",
    "(a, s) <= (2, 1.0)",
    "(a, s) > (1, 2.0, 0)",
    "(a,) >= (2, s)",
    "((a, 1), s) < ((2, 1), 2.0)",
    "() < (a,)",
    "(a, 1) in ((1, 1), (2, 1))",
    "(2, 1) in [(a, s), (3, a)]",
    "[a, 1] in ([2, 1], 3)",
    "(a, 1) not in ((1, 1), a)",
    "(a, 'x') == (2, 'x')",
    "(a, 'x') == (2, a)",
    "(a, None) == (2, None)",
    "{'k': a, 'l': 1} == {'l': 1, 'k': 2}",
    "{'k': a} != {'l': a}",
    "P(a, s) == P(2, 1.0)",
    "P(a, s) != C",
    "P(a, s) == Q(a, s)",
    "P(a, s) in (P(1, 1.0), C)",
    "(P(a, s), a) == (C, 2)",
    "max((a, s), (2, 1.5), (1, 9.0))[1] == 1.5",
    "min([(a, s), (2, 1.5)])[0] == a",
]


@pytest.mark.parametrize("text", COMPARED)
def test_comparisons(text):
    P = ds.types.struct(n=ds.i32, v=ds.types.vector(2, ds.f64))
    Q = ds.types.struct(n=ds.i32, v=ds.types.vector(2, ds.f64))
    space = {"ds": ds, "P": P, "Q": Q, "C": P(2, 1.0)}
    make(f"@ds.kernel\ndef k(a: ds.i32, s: ds.f64) -> ds.i32:\n    return {text}\n", space)
    for a, s in itertools.product((1, 2, 3), (1.0, 2.0)):
        assert bool(space["k"](a, s)) is eval(text, space, {"a": a, "s": s})


def test_gradients_of_the_least_tuple():
    x, y = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def nearest():
        for i in x:
            distance, at = min((x[i] ** 2, 1.0 * y[i]), (4.0, 3 * y[i]))
            loss[None] += distance * at

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    y.from_numpy(np.array([5.0, -1.0, 7.0]))
    with ds.Tape(loss):
        nearest()
    # Of the tie, 4.0, the second is less: 3 y < y.
    assert x.grad.to_numpy().tolist() == [10.0, 0.0, 0.0]
    assert y.grad.to_numpy().tolist() == [1.0, 12.0, 12.0]


REFUSED = {
    "P(a, s) is P(a, s)": "`is` cannot compare run-time values",
    "P(a, s) < P(2, 1.0)": "cannot be compared",
    "(a, ds.Vector([s, 1.0])) < (2, 1.0)": "cannot be compared",
    "min(ds.Vector([s, 1.0]), (s, 2.0)).x > 0": "min orders tuples",
    "{1: s}[a] > 0": "the key of a dictionary is known when the kernel is compiled",
    "{1: s}.get(a, 0.0) > 0": "the key of a dictionary is known when the kernel is compiled",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    space = {"ds": ds, "P": ds.types.struct(n=ds.i32, v=ds.f64)}
    make(f"@ds.kernel\ndef k(a: ds.i32, s: ds.f64) -> ds.i32:\n    return {text}\n", space)
    with pytest.raises(ds.DiffsimError, match=REFUSED[text]):
        space["k"](2, 1.0)


def test_struct_parameters_are_locals():
    @ds.dataclass
    class Ball:
        at: ds.types.vector(2, ds.f64)
        mass: ds.f64

        def grow(self):
            self.mass += 1

    pair = ds.types.struct(one=Ball, n=ds.i32)

    @ds.kernel
    def change(p: pair, other: Ball) -> ds.types.vector(4, ds.f64):
        p.one.grow()
        ds.loop_config(serialize=True)
        for i in range(3):
            p.one.at[1] += i
            p.n += 1
        if other.mass == 0:
            other = p.one
        return [other.at.x, other.at.y, other.mass, p.n]

    given = pair(one=Ball(at=[1, 2], mass=3), n=4)
    assert change(given, Ball()).to_list() == [1, 5, 4, 7]
    assert given == pair(one=Ball(at=[1, 2], mass=3), n=4)


LOOPS = [
    "for b in (P(s), P(1.0)):\n        b.m += 1\n        r += b.m",
    "for k, b in enumerate((P(s), P(2.0))):\n        for j in range(3):\n            b.m += k * j\n"
    "        r = 2 * r + b.m",
    "for b in [P(s), P(1.0), P(4.0)]:\n        if b.m > 1.2:\n            break\n        b.m *= 2\n"
    "        r += b.m\n    else:\n        r += 100",
    "b = P(s)\n    r = 10 * sum([b.m for b in (P(1.0), P(2.0))])\n    r += b.m",
]


@pytest.mark.parametrize("text", LOOPS)
def test_loops_over_structs(text):
    """The target is a local struct, and not the one of that name around a comprehension."""
    space = {"ds": ds, "P": ds.types.struct(m=ds.f64)}
    function = f"def k(s: ds.f64) -> ds.f64:\n    r = 0.0 * s\n    {text}\n    return r\n"
    make(function, python := dict(space))
    make("@ds.kernel\n" + function, space)
    for s in (0.5, 1.5):
        assert space["k"](s) == pytest.approx(python["k"](s), rel=1e-6)


WRITES = [
    "for i in F[0]:\n        F[1][i] = F[0][i] + i",
    "for i in N['a'][1]:\n        for j in range(2):\n            N['a'][1][i] = F[0][i] + i",
    "for I in ds.grouped(f[0]):\n        f[1][I] = f[0][I] + I[0]",
    "for i in f[0]:\n        for j in range(2):\n            f[1][i] = f[0][i] + i",
    "g = (F[1], F[0])\n    for i in g[1]:\n        g[0][i] = g[1][i] + i",
]


@pytest.mark.parametrize("text", WRITES)
def test_loops_over_a_field_in_a_list_are_parallel(text):
    x, y = ds.field(ds.f64, 3), ds.field(ds.f64, 3)
    space = {"ds": ds, "F": [x, y], "N": {"a": [x, y], "b": x}}
    make(f"@ds.kernel\ndef k(f: ds.template()):\n    {text}\n", space)
    x.fill(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space["k"]((x, y))
    assert y.to_numpy().tolist() == [2, 3, 4]
    assert "parallel" in str(space["k"].ir())
