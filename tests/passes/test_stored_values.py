"""Which values an adjoint may load as the launch has stored them."""

import pytest

import diffsim as ds
from diffsim.ir.printer import print_kernel
from tests.support.source import make

TEXT = """@ds.kernel
def run(t: ds.i32):
"""
LOADED = {
    "an element of each lane": "for i in x:\n    y[i] = ds.tanh(x[i])",
    "a sum of products": (
        "for i, j in w:\n"
        "    s = 0.0\n"
        "    for k in range(8): s += w[i, k] * z[k, j]\n"
        "    z2[i, j] = ds.tanh(s)"
    ),
    "an element of each iteration": "for i in x:\n    for k in range(8): z[i, k] = ds.tanh(x[i] * w[k, i])",
    "a row that an argument tells": "for i in x:\n    z[t, i] = ds.tanh(x[i])",
    "under a condition on whole numbers": "for i in x:\n    if i % 3 == t:\n        y[i] = ds.tanh(x[i])",
    "stored a second time, changed": "for i in x:\n    v = ds.tanh(x[i])\n    y[i] = v\n    x2[i] = v * v",
    "over a store of an earlier loop": "for i in x: y[i] = 0.0\nfor i in x:\n    y[i] = ds.tanh(x[i])",
}
COMPUTED = {
    "nothing is costly": "for i in x:\n    y[i] = x[i] * x[i]",
    "nobody needs it": "for i in x:\n    y[i] = 3.0 * ds.tanh(x[i])",
    "a later loop stores": "for i in x:\n    y[i] = ds.tanh(x[i])\nfor i in x: y[i] = 0.0",
    "the same lane stores": (
        "for i in x:\n    v = ds.tanh(x[i])\n    y[i] = v\n    x2[i] += v * v\n    y[i] = 1.0"
    ),
    "it is added to": "for i in x:\n    y[i] = ds.tanh(x[i])\nfor i in x: y[i] += 1.0",
    "each iteration stores": (
        "for i in x:\n"
        "    for k in range(8):\n"
        "        v = ds.tanh(x[i] * w[k, i])\n"
        "        y[i] = v\n"
        "        x2[i] += v * v"
    ),
    "under a condition on floats": "for i in x:\n    if x[i] * x[i] > 0.25:\n        y[i] = ds.tanh(x[i])",
    "after a number of iterations that floats decide": (
        "for i in x:\n    for k in range(ds.i32(x[i] * x[i])):\n        z[i, k] = ds.tanh(x[i])"
    ),
    "in a while loop": (
        "for i in x:\n"
        "    k = 0\n"
        "    while k < 4:\n"
        "        z[i, k] = ds.tanh(x[i] * k)\n"
        "        k += 1"
    ),
    "rounded": "for i in x:\n    h[i] = ds.f16(ds.tanh(x[i]))",
    "an index field": "for i in x:\n    ds.loop_config(independent=True)\n    y[q[i]] = ds.tanh(x[i])",
    "an element that is read before": "for i in x:\n    y[i] = ds.tanh(y[i] * x[i])",
}


@pytest.fixture
def fields(cpu):
    found = {n: ds.field(ds.f32, shape=8, needs_grad=True) for n in ("x", "x2", "y")}
    found |= {n: ds.field(ds.f32, shape=(8, 8), needs_grad=True) for n in ("w", "z", "z2")}
    found["h"] = ds.field(ds.f16, shape=8, needs_grad=True)
    found["q"] = ds.field(ds.i32, shape=8)
    return found


def _loading(text, fields, in_place=False):
    space = {"ds": ds, **fields}
    make(TEXT + "".join(f"    {line}\n" for line in text.splitlines()), space)
    special = space["run"]._only((0,))
    return (special.in_place if in_place else special).derivative.loading


@pytest.mark.parametrize("name", LOADED)
def test_loaded(name, fields):
    loading = _loading(LOADED[name], fields)
    assert loading is not None
    assert "tanh" not in print_kernel(loading.ir)
    assert "tanh" in print_kernel(loading.specialization.derivative.ir)


@pytest.mark.parametrize("name", COMPUTED)
def test_computed(name, fields):
    assert _loading(COMPUTED[name], fields, in_place="read before" in name) is None
