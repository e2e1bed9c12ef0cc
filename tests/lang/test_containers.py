"""Fields in lists, tuples and dictionaries are fields: read when a kernel runs, written, differentiated."""

import sys

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers
from tests.support.source import make


class Pair:
    """A container of the user's own."""

    def __init__(self, one, other):
        self.both = (one, other)

    def __getitem__(self, k):
        return self.both[k]


@pytest.fixture
def space():
    ds.init(default_fp=ds.f64)
    x, y, v, s, loss = field(3), field(3), field(2, n=2), field(), field()
    for f in (x, y, v):
        f.from_numpy(numbers(*f.to_numpy().shape))
    s[None] = 2.0
    body = ds.types.struct(pos=ds.types.vector(2, ds.f64), mass=ds.f64).field(2, needs_grad=True)
    body.mass.from_numpy(numbers(2))
    body.pos.from_numpy(numbers(2, 2))
    return {
        "ds": ds,
        "x": x,
        "y": y,
        "v": v,
        "s": s,
        "loss": loss,
        "body": body,
        "L": [x, v, s, [y]],
        "T": (x, v),
        "D": {"x": x, "s": s, 1: v, "in": {"y": y}},
        "P": Pair(x, v),
        "B": [body],
    }


READS = {
    "a number": "loss[None] += L[2][None] ** 2",
    "in a dictionary": "loss[None] += D['s'][None] ** 2 * D[1][0].x",
    "a constant index": "loss[None] += L[0][1] ** 3",
    "a loop": "for i in range(3):\n        loss[None] += L[0][i] ** 2 * D['x'][(i + 1) % 3]",
    "a loop over it": "for i in T[0]:\n        loss[None] += T[0][i] ** 2",
    "a vector": "for i in range(2):\n        loss[None] += L[1][i].norm_sqr() * D[1][i][1] + P[1][i].x ** 2",
    "deeper": "for i in range(3):\n        loss[None] += L[3][0][i] ** 2 * D['in']['y'][i]",
    "an unrolled index": "for k in ds.static(range(2)):\n        loss[None] += L[0][k] * T[k][k].norm_sqr()"
    " if ds.static(k) else L[k][k] ** 2",
    "a computed index": "for i in range(3):\n        loss[None] += L[int(0.5)][i] ** 2",
    "a container of one's own": "for i in range(3):\n        loss[None] += P[0][i] ** 2",
    "structs": "for i in range(2):\n        loss[None] += B[0][i].mass * B[0][i].pos.norm_sqr()",
    "lists in another": "few = [s[None], x[1]]\n    every = [*few, few[0] * few[1], *v[1], *range(2)]\n"
    "    for k in ds.static(range(7)):\n        loss[None] += every[k] ** 2 + ds.Vector([*few, *every])[k]",
    "lists in a tuple": "few = (s[None], x[1])\n    both = *few, *(few[1], 2.0)\n"
    "    for k in ds.static(range(4)):\n        loss[None] += both[k] ** 2 * (2.0 in {1.0, *both[3:]})",
    "an atomic maximum": "for i in range(3):\n        ds.atomic_max(L[2][None], D['x'][i] + 5.0)",
}

if sys.version_info >= (3, 15):
    READS["lists in a comprehension"] = """every = [*row for row in [[s[None], x[0]], [x[1]]]]
    loss[None] += every[0] * every[1] * every[2]"""
    READS[
        "dictionaries in a comprehension"
    ] = """every = {**one for one in [{"a": s[None], "b": 2.0}, {"b": x[0]}]}
    loss[None] += every["a"] * every["b"] ** len(every)"""


@pytest.mark.parametrize("name", READS)
def test_gradients(space, name):
    """Central differences also see a field whose value was compiled in: nothing would change."""
    make(f"@ds.kernel\ndef k():\n    {READS[name]}\n", space)
    make("@ds.kernel\ndef end():\n    loss[None] += s[None] ** 2\n", space)

    def program():
        space["s"][None] = ds.stop_grad(2.0)
        space["k"]()
        space["end"]()

    inputs = [space["x"], space["y"], space["v"], space["body"].mass, space["body"].pos]
    check(program, space["loss"], *inputs)


def test_what_is_read_is_what_is_there(space):
    make("@ds.kernel\ndef k() -> ds.f64:\n    return L[2][None] + D['x'][1] + P[0][2]\n", space)
    for value in (1.0, 5.0):
        space["s"][None] = value
        space["x"].fill(2 * value)
        assert space["k"]() == 5 * value


WRITES = {
    "L[0][1] = 7.0": ("x", [0, 7, 0]),
    "D['x'][2] += 3.0": ("x", [0, 0, 3]),
    "for i in range(3):\n        T[0][i] = 1.0 * i": ("x", [0, 1, 2]),
    "for i in range(2):\n        L[1][i].y += 1.0": ("v", [[0, 1], [0, 1]]),
    "for i in range(2):\n        D[1][i][0] = 2.0": ("v", [[2, 0], [2, 0]]),
    "for i in range(3):\n        ds.atomic_add(L[3][0][i], 4.0)": ("y", [4, 4, 4]),
}


@pytest.mark.parametrize("text", WRITES)
def test_writes(space, text):
    for f in ("x", "y", "v"):
        space[f].fill(0)
    make(f"@ds.kernel\ndef k():\n    {text}\n", space)
    space["k"]()
    name, expected = WRITES[text]
    np.testing.assert_array_equal(space[name].to_numpy(), expected)


def test_another_field_in_a_dictionary(space):
    make("@ds.kernel\ndef k() -> ds.f64:\n    return D['s'][None]\n", space)
    assert space["k"]() == 2.0
    space["D"]["s"] = field()
    assert space["k"]() == 0.0
