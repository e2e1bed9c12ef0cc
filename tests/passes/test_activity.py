"""Activity, against what changes when a field with a gradient changes."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.interpreter import run
from diffsim.errors import AutodiffError
from diffsim.ir.traversal import outs, statements
from diffsim.passes.autodiff.activity import Activity, read_after_leak
from tests.support.trace import _Tracer, ir_of

pytestmark = pytest.mark.usefixtures("cpu")

N = 4
BODIES = {
    "straight": "        a = x[i] * 2.0\n        b = c[i] + 1.0\n        y[i] = a * b\n",
    "branch": (
        "        a = c[i]\n        if k[i] > 1:\n            a = a * x[i]\n        y[i] = a\n"
        "        b = c[i]\n        if k[i] > 1:\n            b = b + 1.0\n        y[i] += b\n"
    ),
    "loop": (
        "        a = ds.f64(1.0)\n        b = ds.f64(1.0)\n        for j in range(3):\n"
        "            a = a * b\n            b = b + x[i]\n            y[i] += c[i]\n        y[i] += a\n"
    ),
    "while": (
        "        a = c[i]\n        m = 0\n        while m < 3:\n"
        "            a = a * x[i]\n            m += 1\n        y[i] = a\n"
    ),
    "index": "        a = c[k[i]]\n        b = x[k[i]]\n        y[i] = a + b\n",
    "leak": "        c[i] = x[i]\n        y[i] = 3.0 * c[i]\n",
}


def fields():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
    return {"x": x, "y": y, "c": ds.field(ds.f64, shape=N), "k": ds.field(ds.i32, shape=N)}


def numbers(kernel, x):
    """Every number that every value has in a run, in order."""
    given = {
        "x": x,
        "y": np.full(N, 0.5),
        "c": np.linspace(1, 2, N),
        "k": np.arange(N, dtype=np.int32),
    }
    memory = {m: given[m.name].copy() for m in kernel.mems if m.kind == "field"}
    memory |= {m: np.zeros(()) for m in kernel.mems if m.kind == "temp"}
    values = _Tracer(kernel, memory, (0,), 0, {}).start(kernel).values
    return [(v.value, v.number) for v in values]


def changing(kernel):
    """The float values that are another number when x is another."""
    base = np.linspace(0.3, 0.9, N)
    found = set()
    for k in range(N):
        moved = base + 0.01 * (np.arange(N) == k)
        for (v, one), (_, other) in zip(numbers(kernel, base), numbers(kernel, moved), strict=True):
            if v.type.is_float and not np.array_equal(one, other):
                found.add(v)
    return found


@pytest.mark.parametrize("name", [n for n in BODIES if n != "leak"])
def test_active_values_are_those_that_change(name):
    space = fields()
    kernel = ir_of("    for i in x:\n" + BODIES[name], **space)
    inside = {v for t in kernel.tasks for s in statements(t.body) for v in outs(s)}
    from_x = frozenset(m for m in kernel.mems if m.name == "x")
    assert Activity(kernel, from_x).values & inside == changing(kernel)
    # y has a gradient too, so its own loads are active as well.
    assert Activity(kernel).values >= Activity(kernel, from_x).values


def test_rules_that_are_zero_stop_activity():
    space = fields()
    kernel = ir_of(
        "    for i in x:\n"
        "        a = ds.floor(x[i])\n"
        "        b = ds.stop_grad(x[i] * 2.0)\n"
        "        y[i] = a + b + (1.0 if x[i] > 0.5 else 2.0)\n",
        **space,
    )
    (task,) = kernel.tasks
    active = Activity(kernel).values
    names = {s.op.name for s in statements(task.body) if hasattr(s, "op") and s.out in active}
    assert names == {"mul"}


def test_temporaries_that_cross_tasks():
    space = fields()
    kernel = ir_of(
        "    s = ds.f64(0.0)\n    t = ds.f64(0.0)\n    for i in x:\n        s += x[i]\n        t += c[i]\n"
        "    for i in x:\n        y[i] = s * t\n",
        **space,
    )
    assert {m.name for m in Activity(kernel).temps} == {"s"}
    assert Activity(kernel, frozenset()).temps == set()


def test_leaks():
    space = fields()
    kernel = ir_of("    for i in x:\n" + BODIES["leak"], **space)
    activity = Activity(kernel)
    assert [s.mem.name for s in activity.leaks] == ["c"]
    assert {m.name for m in read_after_leak(kernel, activity)} == {"c"}
    unread = ir_of("    for i in x:\n        c[i] = x[i]\n", **space)
    assert [s.mem.name for s in Activity(unread).leaks] == ["c"]
    assert read_after_leak(unread, Activity(unread)) == frozenset()
    constant = ir_of("    for i in x:\n        c[i] = ds.stop_grad(x[i])\n", **space)
    assert Activity(constant).leaks == []


def test_gradients_are_differentiated_once():
    space = fields()
    kernel = ir_of("    for i in x:\n        c[i] = x.grad[i]\n", **space)
    assert [s.mem.name for s in Activity(kernel).second_leaks] == ["c"]
    again = ir_of("    for i in x:\n        y[i] = 2.0 * x.grad[i]\n", **space)
    with pytest.raises(AutodiffError, match="a tape differentiates once"):
        Activity(again)


def test_the_oracle_runs_the_kernel():
    """The trace computes what the interpreter does."""
    space = fields()
    kernel = ir_of("    for i in x:\n" + BODIES["straight"], **space)
    x, c = np.linspace(0.3, 0.9, N), np.linspace(1, 2, N)
    memory = {m: {"x": x, "c": c}.get(m.name, np.zeros(N)).copy() for m in kernel.mems}
    run(kernel, memory, (0,))
    (y,) = (a for m, a in memory.items() if m.name == "y")
    np.testing.assert_allclose(y, 2 * x * (c + 1))
