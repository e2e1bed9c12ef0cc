"""Random writes from Python and launches, as text; parts of fields with equal value numbers held the same.

Three fields of 4 rows with two numbers each (of `q` no launch makes rows), and one of vectors. The
reference is a copy of every field after each launch: where two moments have equal numbers, the copies are
compared, byte by byte. Nothing is asked of the gradient: `by_hand.py` does that.
"""

from __future__ import annotations

from random import Random

import numpy as np

import diffsim as ds
from diffsim.runtime.kernels.launch_history import _gradients
from diffsim.runtime.numbering.value_numbers import value_numbers
from diffsim.runtime.session import session
from tests.support.source import make as make_kernels

KERNELS = """
@ds.kernel
def step(t: ds.i32):
    for i in range(2):
        x[t + 1, i] = 0.5 * x[t, i] + y[t, i]
@ds.kernel
def scale(f: ds.f64):
    for i, j in y:
        y[i, j] = f * x[i, j]
@ds.kernel
def some(f: ds.f64):
    for i in range(1, 3):
        y[i, 0] = f / (1.0 + x[i, 1] ** 2)
@ds.kernel
def add(d: ds.types.vector(2, ds.f64)):
    for i in p:
        p[i] += d * y[i, 0]
@ds.kernel
def chosen():
    for i in p:
        if p[i].x > 0.1:
            p[i].y = x[i, 1]
@ds.kernel
def mix():
    for i, j in q:
        y[i, j] -= q[i, j]
"""
NAMES = ("step", "scale", "some", "add", "chosen", "mix")
NUMBERS = (0.0, -0.0, 0.5, 1.0)


def make(seed):
    """The program of a number: what it does, line by line."""
    r = Random(seed)
    few = NUMBERS[: r.choice((2, 4))]

    def number():
        return repr(r.choice(few))

    def array(*shape):
        values = [r.choice(few) for _ in range(int(np.prod(shape)))] if r.random() < 0.3 else []
        return f"np.array({values}).reshape{shape}" if values else f"np.full({shape}, {number()})"

    def line():
        f, k, i = r.choice("xy"), r.randrange(4), r.randrange(2)
        return r.choice(
            [
                f"{f}[{k}, {i}] = {number()}",
                f"for k in range(4):\n    for i in range(2): x[k, i] = y[k, i] = {number()}",
                f"{f}[{k}] = {array(2)}",
                f"{f}.from_numpy({array(4, 2)})",
                f"{f}.fill({number()})",
                f"q[{k}] = {array(2)}",
                f"{f}.copy_from({r.choice('xy')})",
                f"p[{k}] = [{number()}, {number()}]",
                f"for k in range(4): p[k] = [{number()}, 1.0]",
                f"p.from_numpy({array(4, 2)})",
                f"p.fill([{number()}, {number()}])",
                f"step({r.randrange(3)})",
                f"scale({number()})",
                f"some({number()})",
                f"add([{number()}, {number()}])",
                "chosen()",
                "mix()",
            ]
        )

    rollout = [line() for _ in range(r.randint(1, 6))]
    lines = []
    for _ in range(r.randint(2, 4)):
        lines += rollout
        lines += [line() for _ in range(r.randint(0, 2))]
    return "\n".join(["# numbering", *lines]) + "\n"


def _parts(f):
    """The parts of a field that have numbers, with their elements."""
    array = f.to_numpy()
    yield None, array
    if f.versions.axis is not None:
        for row in range(len(f.versions.rows)):
            yield row, array.take([row], f.versions.axis)


def moments(text):
    """Run a program; return for each moment what was known of each part: place, number, bytes."""
    ds.init(default_fp=ds.f64)
    fields = {name: ds.field(ds.f64, shape=(4, 2), needs_grad=True) for name in "xyq"}
    fields["p"] = ds.Vector.field(2, ds.f64, shape=4, needs_grad=True)
    space = {**fields, "ds": ds, "np": np}
    make_kernels(KERNELS, space)
    # Rows are made by the first launch that has any.
    space["step"](0)
    found = []
    statements = text.replace("\n    ", "\t").splitlines()[1:]
    for k, statement in enumerate(statements):
        exec(statement.replace("\t", "\n    "), space)
        # Elements that Python writes one after the other are numbered at the next launch, or at the end.
        if statement.partition("(")[0] not in NAMES and k < len(statements) - 1:
            continue
        held = [
            ((f.number, row), part.tobytes()) for f in fields.values() for row, part in _parts(f)
        ]
        found.append((session.clock, held))
    value_numbers.catch_up(_gradients)
    return [
        (place, value_numbers.at(place, clock), data)
        for clock, held in found
        for place, data in held
    ]


def verdict(text):
    """Run a program: "right", or what is wrong."""
    held = {}
    for place, number, data in moments(text):
        if number is not None and held.setdefault((place, number), data) != data:
            return f"{place} held two values with one number"
    return "right"
