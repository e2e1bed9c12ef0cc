"""Which conditions of a kernel are kept for its adjoint, and the two forms of the kernel."""

import pytest

import diffsim as ds
from diffsim.ir.layout import Mem
from diffsim.ir.printer import print_kernel
from diffsim.ir.types import u8
from diffsim.passes.kept.conditions import find_conditions, with_conditions
from tests.support import source


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)


def conditions(body, bounds="3, 8"):
    """The names of the conditions of a lane that changes x, and the two forms."""
    x, y = ds.field(ds.f64, 8, needs_grad=True), ds.field(ds.f64, 8)
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    space = {"ds": ds, "x": x, "y": y}
    source.make(f"@ds.kernel\ndef k(n: ds.i32):\n    for i in range({bounds}):\n{lines}\n", space)
    ir = space["k"]._only(()).ir
    found = find_conditions(ir, frozenset([x._mem]))
    memories = {c.value: Mem(f"kept{k}", u8, 1, c.shape) for k, c in enumerate(found)}
    forms = [print_kernel(form) for form in with_conditions(ir, memories)] if found else []
    return [(c.value.hint, c.shape) for c in found], forms


def test_forms():
    found, (launched, differentiated) = conditions("a = x[i]\nc = a > 0.5\nif c: x[i] = 0.5 * a")
    assert found == [("c", (5,))]
    # The lanes begin at 3, and the bytes at 0.
    assert "%t0: i32 = sub %i, 3" in launched
    assert "%c: bool = gt %a, 0.5" in launched
    assert "store kept0[%t0], %t1" in launched
    assert "%t1: u8 = load kept0[%t0]" in differentiated
    assert "%c: bool = ne %t2, 0" in differentiated
    assert "gt %a" not in differentiated


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("c = x[i] > 0.5\nd = x[i] < 0.9\nif c and d: x[i] = 0.0", [""]),  # the two together
        ("m = ds.max(x[i], 0.5)\nx[i] = m", ["m"]),
        ("c = y[i] > 0.5\nif c: x[i] = 0.5 * x[i]", []),  # does not depend on x
        ("k = 0\nwhile x[i] > 0.5 and k < 3:\n    x[i] *= 0.5\n    k += 1", []),
        # What is around a kept condition decides whether it is stored: where floats do, it is kept, too.
        ("b = y[i] * y[i] > 0.5\nif b:\n    c = x[i] > 0.5\n    if c: x[i] = 0.0", ["b", "c"]),
        ("b = i > n\nif b:\n    c = x[i] > 0.5\n    if c: x[i] = 0.0", ["c"]),
    ],
)
def test_which(body, names):
    assert [name for name, _ in conditions(body)[0]] == names


def test_bounds_that_a_launch_decides():
    assert conditions("c = x[i] > 0.5\nif c: x[i] = 0.0", "n")[0] == []
