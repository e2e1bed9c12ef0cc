"""What lanes compute from their own numbers alone is kept in tables, which the first launch fills."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.kept import tables
from tests.support.gradients import numbers
from tests.support.source import make

N, M = 10, 12
SPONGE = """
        far = ds.min(i, j, {n} - 1 - i)
        w = 1.0
        if far < 4:
            w = ds.exp(-0.1 * (4 - far) ** 2)
"""
BRANCH = """
        w = x[t, i, j]
        if i > 3:
            w = m[i, j] * ds.sin(0.1 * j)
"""
KERNEL = """@ds.kernel
def kernel(t: ds.i32, n: ds.i32):
    for i, j in ds.ndrange({box}):{lines}
        y[t, i, j] = w * x[t, i, j]
"""


@pytest.fixture
def fields(cpu):
    made = {name: ds.field(ds.f64, shape=(2, N, M), needs_grad=True) for name in "xy"}
    made["m"] = ds.field(ds.i32, shape=(N, M))
    return {"ds": ds, "N": N, "M": M, **made}


def kernel_of(fields, lines, box="N, M"):
    if "\n" not in lines:
        lines = f"\n        {lines}"
    make(KERNEL.format(lines=lines, box=box), fields)
    return fields["kernel"]


def count(kernel):
    """The tables of a kernel's code."""
    return kernel.ir(after="tables").count(": table f")


@pytest.mark.parametrize(
    ("lines", "box", "found"),
    [
        (SPONGE.format(n="N"), "N, M", 1),
        (SPONGE.format(n="N"), "(1, N - 1), (1, M - 1)", 1),
        ("w = ds.sin(0.1 * i) + m[i, j]", "N, M", 1),
        ("w = ds.sin(0.1 * i) * ds.cos(0.2 * j)", "N, M", 1),
        ("w = 1.0 / (1.0 + ds.sqrt(1.0 / (1.0 + i)))", "N, M", 1),
        ("w = 1.0 / (1.0 + i)", "N, M", 0),  # a load takes as long
        (SPONGE.format(n="n"), "N, M", 0),  # an argument
        ("w = ds.sin(0.1 * i * t)", "N, M", 0),
        ("w = ds.sin(0.1 * m[i, j])", "N, M", 0),  # memory
        ("w = ds.random(ds.f64)", "N, M", 0),
        (SPONGE.format(n="N"), "(0, n), M", 0),  # lanes that differ from launch to launch
        (SPONGE.format(n="N"), "(-1, N), M", 0),
        (SPONGE.format(n="N"), "(0, 2), (0, 12)", 0),  # too few lanes
        (BRANCH, "N, M", 1),
    ],
)
def test_what_is_kept(fields, lines, box, found):
    assert count(kernel_of(fields, lines, box)) == found


def test_divisions_that_some_lanes_must_not_make(fields):
    divide = "w = ds.sin(1.0 * (12 // (j - 3)))"
    lines = f"\n        w = 1.0\n        if j != 3 and m[i, j] > 0:\n            {divide}\n"
    kernel = kernel_of(fields, lines)
    assert count(kernel) == 0
    kernel(0, 0)
    # A branch on the lane's numbers is copied as a whole.
    lines = f"\n        w = 1.0\n        if j != 3:\n            {divide}\n"
    kernel = kernel_of(fields, lines)
    assert count(kernel) == 1
    fields["x"].fill(2.0)
    kernel(0, 0)
    expected = [2.0 * np.sin(1.0 * (12 // (j - 3))) if j != 3 else 2.0 for j in range(M)]
    assert fields["y"].to_numpy()[0] == pytest.approx(np.tile(expected, (N, 1)))


@pytest.mark.parametrize("threads", [1, 3])
def test_values_and_gradients(threads):
    ds.init(cpu_max_num_threads=threads, offline_cache=False)
    x = ds.field(ds.f64, shape=(2, N, M), needs_grad=True)
    y = ds.field(ds.f64, shape=(2, N, M), needs_grad=True)
    x.from_numpy(numbers(*x.shape))
    fields = {"ds": ds, "N": N, "M": M, "x": x, "y": y}
    kernel = kernel_of(fields, SPONGE.format(n="N"), "(1, N - 1), (1, M - 1)")
    assert count(kernel) == 1
    assert count(kernel.grad) == 1
    i, j = np.mgrid[1 : N - 1, 1 : M - 1]
    far = np.minimum(np.minimum(i, j), N - 1 - i)
    damp = np.where(far < 4, np.exp(-0.1 * (4 - far) ** 2), 1.0)
    for t in (0, 1, 0):
        y.fill(0.0)
        kernel(t, 0)
        given = x.to_numpy()[t, 1:-1, 1:-1]
        assert y.to_numpy()[t, 1:-1, 1:-1] == pytest.approx(damp * given)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        kernel.grad(t, 0)
        assert x.grad.to_numpy()[t, 1:-1, 1:-1] == pytest.approx(damp)


def test_a_launch_that_was_stopped_fills_again(fields):
    text = kernel_of(fields, SPONGE.format(n="N")).llvm()
    launch = text[text.index("define void @launch") :]
    # The word is set behind the task alone, not by a launch that returns before.
    assert launch.index("load atomic i8, ptr @done0 acquire") < launch.index("@task0(")
    assert launch.index("@task0(") < launch.index("store atomic i8 1, ptr @done0 release")


def test_no_more_memory_than_asked_for(fields, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_BYTES", 8 * N * M - 1)
    assert count(kernel_of(fields, SPONGE.format(n="N"))) == 0


@pytest.mark.parametrize(
    ("second", "box", "found"),
    [
        ("far < 4", "N, M", 1),
        ("far < 5", "N, M", 2),  # what the branch decides on
        ("far < 4", "(1, N), M", 2),  # another box
    ],
)
def test_equal_ones_are_one(fields, second, box, found):
    lines = SPONGE.format(n="N")
    text = KERNEL.format(lines=lines, box="N, M")
    again = KERNEL.format(lines=lines.replace("far < 4", second), box=box)
    again = again[again.index("    for") :].replace("y[t, i, j] =", "y[1 - t, i, j] =")
    make(text + again, fields)
    kernel = fields["kernel"]
    assert count(kernel) == found
    fields["x"].from_numpy(numbers(*fields["x"].shape))
    i, j = np.mgrid[:N, :M]
    far = np.minimum(np.minimum(i, j), N - 1 - i)
    for t in (0, 1):
        fields["y"].fill(0.0)
        kernel(t, 0)
        x = fields["x"].to_numpy()[t]
        for at, under in ((t, 4), (1 - t, float(second[6:]))):
            damp = np.where(far < under, np.exp(-0.1 * (4 - far) ** 2), 1.0)
            first = int(at != t and box != "N, M")
            assert fields["y"].to_numpy()[at, first:] == pytest.approx((damp * x)[first:])


def test_zeros_of_different_signs_are_two(fields):
    text = "@ds.kernel\ndef kernel(t: ds.i32):\n"
    for k, zero in enumerate(("0.0", "-0.0")):
        text += f"    for i, j in ds.ndrange(N, M):\n        y[{k}, i, j] = x[t, i, j] + "
        text += f"ds.atan2({zero}, -ds.exp(0.1 * i))\n"
    make(text, fields)
    kernel = fields["kernel"]
    assert count(kernel) == 2
    fields["x"].fill(1.0)
    kernel(0)
    found = fields["y"].to_numpy()
    assert found == pytest.approx(np.broadcast_to([[[1 + np.pi]], [[1 - np.pi]]], found.shape))
