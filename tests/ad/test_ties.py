"""Ties: of two equal numbers, a launch that keeps which it took takes the one that others take."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field
from tests.support.source import make

CHOICES = (
    "ds.max(a, b)",
    "ds.min(a, b)",
    "ds.max(a, 1.0)",
    "ds.min(1.0, a, b)",
    "ds.abs(a - b) * a",
    "a if a >= b else b",
    "ds.select(a <= b, a * b, a - b)",
    "ds.Vector([a, b]).max()",
)
PAIRS = np.array([(a, b) for a in (-1.0, -0.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0)]).T
TEXT = """
@ds.kernel
def choose():
    for i in range({n}):
        a, b = u[i], w[i]
        {target}[i] = {choice}

@ds.kernel
def total():
    for i in range({n}):
        loss[None] += (i + 1) * {target}[i]
"""


def gradients(choice, target):
    """Of u and w, if what is chosen is stored over u, or elsewhere."""
    n = PAIRS.shape[1]
    names = {"ds": ds, "loss": field()} | {name: field(n) for name in "uwy"}
    for name, values in zip("uw", PAIRS, strict=True):
        names[name].from_numpy(values)
    make(TEXT.format(n=n, target=target, choice=choice), names)
    with ds.Tape(names["loss"], in_place="save"):
        names["choose"]()
        names["total"]()
    return [names[name].grad.to_numpy() for name in "uw"]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_same_side_of_a_tie(cpu, quick_code, choice):
    np.testing.assert_array_equal(gradients(choice, "u"), gradients(choice, "y"))
