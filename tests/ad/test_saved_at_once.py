"""Loops whose number of iterations is not known save while they are counted, and keep functions."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import While
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.counted_loops import most_iterations
from diffsim.passes.autodiff import loop_checkpoints
from diffsim.runtime.session import session
from tests.support.gradients import check, numbers
from tests.support.source import make

LANES = 37

BREAKS_FIRST = "if z > 2:\n    break\nz = z * z + 0.1\nk += 1"
BREAKS_TWICE = "if z > 2:\n    break\nz += 0.1\nif z < -1:\n    z *= 2\n    break\nk += 1"
CONTINUES = "if z > 2:\n    k += 1\n    continue\nz = z * z + 0.1\nk += 1"
BREAKS_LATE = "k += 1\nif z > 2:\n    break\nz = z * z + 0.1"
BOUNDED = [BREAKS_FIRST, BREAKS_TWICE, CONTINUES, BREAKS_LATE]
UNBOUNDED = [
    "z = z * z + 0.1\nif z > 2:\n    k += 1",  # not in each iteration
    "z = z * z + 0.1\nk += 1 if z > 2 else 2",
    "if z > 2:\n    break\nz += 0.1\nif z < 1:\n    k += 1",
    "if z > 2:\n    k += 1\nz += 0.1\nk += 1",
    "if z > 2:\n    k = 0\n    continue\nz += 0.1\nk += 1",
    "z += 0.1\nk += -1",
]


def most(body, test="k < 7"):
    """The most iterations of a while loop, as far as constants tell."""
    x, y = (ds.field(ds.f64, shape=LANES, needs_grad=True) for _ in range(2))
    text = "".join(f"            {line}\n" for line in body.splitlines())
    space = {"ds": ds, "x": x, "y": y}
    head = f"@ds.kernel\ndef f():\n    for i in x:\n        z = x[i]\n        k = 0\n        while {test}:\n"
    make(f"{head}{text}        y[i] = z\n", space)
    ir = space["f"]._only(()).ir
    (loop,) = (s for t in ir.tasks for s in task_statements(t) if isinstance(s, While))
    return most_iterations(loop)


@pytest.mark.usefixtures("cpu")
def test_an_iteration_that_is_the_last_one_need_not_count():
    assert [most(body) for body in BOUNDED] == [7] * len(BOUNDED)
    assert most(BREAKS_FIRST, "z < 3 and k < 7") == 7


@pytest.mark.usefixtures("cpu")
def test_others_have_to():
    assert [most(body) for body in UNBOUNDED] == [None] * len(UNBOUNDED)
    assert most(BREAKS_FIRST, "z < 3 or k < 7") is None


def steps():
    """Steps of a size that the state decides, until a time that is another one in each lane."""
    x, c = (ds.field(ds.f64, shape=LANES, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.from_numpy(numbers(LANES, lo=0.3, hi=0.9))
    c.from_numpy(numbers(LANES, lo=0.5, hi=1.5))

    @ds.kernel
    def run():
        for i in x:
            z, a, t = x[i], c[i], 0.0
            while t < 0.2 * (i % 7):
                h = 0.05 * ds.pow(1.0 + z * z, -0.3)
                z += h * ds.sin(a * z)
                t += h
                if z > 2.0:
                    break
            loss[None] += z * t

    return run, loss, x, c


def functions(run):
    return re.findall(r"= (\w+) .*", run.grad.ir()), re.findall(
        r"load (\w+)\.saved\[", run.grad.ir()
    )


@pytest.mark.usefixtures("quick_code")
def test_one_run_counts_and_saves(monkeypatch):
    """On the way there; where there are more iterations than fit, two more. None on the way back."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    run, loss, *fields = steps()
    found = check(run, loss, *fields)
    ops, loaded = functions(run)
    assert (ops.count("pow"), ops.count("sin"), ops.count("cos")) == (3, 3, 1)
    assert {"pow", "sin"} < set(loaded)
    for most_, length in ((0, 1), (0, 3), (0, 8), (200, 2)):
        monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", most_)
        monkeypatch.setattr(loop_checkpoints, "_SHORTEST", length)
        run, loss, *fields = steps()
        for a, b in zip(found, check(run, loss, *fields), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.usefixtures("quick_code")
def test_many_lanes_count_first(monkeypatch):
    """They share little memory, so each gets what it needs."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    run, loss, *fields = steps()
    found = check(run, loss, *fields)
    monkeypatch.setattr(session.backend, "many_lanes", True)
    run, loss, *fields = steps()
    for a, b in zip(found, check(run, loss, *fields), strict=True):
        assert a.tobytes() == b.tobytes()
    ops, loaded = functions(run)
    assert (ops.count("pow"), ops.count("sin"), ops.count("cos")) == (5, 5, 1)
    assert not {"pow", "sin"} & set(loaded)


@pytest.mark.parametrize("t", [ds.f32, ds.f64], ids=str)
@pytest.mark.parametrize("p", [-3.3, -1 / 3, 0.25, 0.45, 0.7, 1.5])
def test_powers_at_the_ends_of_their_range(t, p):
    ds.init(arch=ds.cpu, default_fp=t, offline_cache=False)
    precision = np.float32 if t is ds.f32 else np.float64
    tiny = np.finfo(precision).smallest_subnormal
    at = [tiny, 77 * tiny, 1e-30, 1e-3, 0.7, 1.0, 7.0, 1e30, np.finfo(precision).max, np.inf, 0.0]
    values = np.array([*at, np.nan], precision)
    x, y = (ds.field(t, shape=len(values), needs_grad=True) for _ in range(2))
    x.from_numpy(values)

    @ds.kernel
    def powers():
        for i in x:
            y[i] = x[i] ** p

    powers()
    y.grad.fill(1.0)
    powers.grad()
    wide = values.astype(np.longdouble)
    with np.errstate(all="ignore"):
        power = np.longdouble(precision(p))
        expected = (power * wide ** (power - 1)).astype(precision)
    expected[values == 0] = 0 if p < 1 else expected[values == 0]
    np.testing.assert_allclose(
        x.grad.to_numpy(), expected, rtol=64 * np.finfo(precision).eps, atol=2 * tiny
    )
