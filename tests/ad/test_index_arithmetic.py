"""Gradients of kernels whose iterations are told apart by quotients, remainders and conditions."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from diffsim.passes.autodiff.reverse import reverse
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused, summed
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")

N = 6


def weighted(y, loss):
    """A kernel that adds up a field, each element with a weight of its own."""
    w = ds.field(ds.f64, y.shape)
    w.from_numpy(numbers(*y.shape, seed=5))

    @ds.kernel
    def total():
        for I in ds.grouped(y):
            loss[None] += w[I] * y[I] ** 2

    return total


FLAT = {
    "quotient": "i = q // n\nj = q - n * i\ny[i, j] = ds.sin(x[i, j]) * x[j, i]",
    "remainder": "i, j = q // n, q % n\ny[j, i] = ds.sin(x[i, j])",
    "written twice": "y[q // n, q % n] = x[q // n, q % n]\ny[q // n, q % n] *= y[q // n, q % n]",
    "bits": "y[q >> 2, q & 3] = ds.sin(x[q % n, q // n])",
    "clamped": "i, j = q // n, q % n\ny[i, j] = x[i, max(j - 1, 0)] * x[min(i + 1, n - 1), j]",
}


@pytest.mark.parametrize("name", FLAT)
def test_flattened_loops(name):
    x, y, loss = field((N, N)), field((9, N)), field()
    x.from_numpy(numbers(N, N))
    body = "".join(f"        {line}\n" for line in FLAT[name].splitlines())
    space = {"ds": ds, "x": x, "y": y, "n": N}
    make(f"@ds.kernel\ndef f():\n    for q in range({N} * {N}):\n{body}", space)
    total = weighted(y, loss)
    assert not reverse(space["f"]._only(()).ir).conditions  # nothing is left to the launch

    def program():
        space["f"]()
        total()

    check(program, loss, x)


@pytest.mark.parametrize(
    "body",
    [
        "u[q // n, q % (n - 1)] = x[q]",
        "u[q // (n + 1), q % n] = x[q]",
        "u[q // n, (q - n * (q // n)) // 2] = x[q]",
    ],
)
def test_flattened_loops_that_meet(body):
    x, u, loss = field(N * N), field((N + 1, 2 * N)), field()
    space = {"ds": ds, "x": x, "u": u, "n": N}
    if "(n + 1)" in body:
        body = body.replace("q % n", "q % (n - 2)")
    make(f"@ds.kernel\ndef f():\n    for q in range({N} * {N}):\n        {body}\n", space)
    total = summed(u, loss)

    def program():
        space["f"]()
        total()

    assert "both store u[" in str(refused(program, loss, GlobalDataAccessError))


def test_a_linear_sweep_in_two_colours():
    """Needs no values, so the rules allow it as it stands."""
    p, b, loss = field((N, N)), field((N, N)), field()
    p.from_numpy(numbers(N, N))
    b.from_numpy(numbers(N, N, seed=1))
    start = p.to_numpy()

    @ds.kernel
    def sweep(colour: ds.i32):
        for i, j in ds.ndrange((1, N - 1), (1, N - 1)):
            if (i + j) % 2 == colour:
                around = p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]
                p[i, j] = 0.25 * (around - b[i, j])

    @ds.kernel
    def residual():
        for i, j in p:
            loss[None] += p[i, j] ** 2 * (1 + i)

    def program():
        for k in range(4):
            sweep(k % 2)
        residual()

    with ds.Tape(loss):
        program()
    found = [p.grad.to_numpy(), b.grad.to_numpy()]
    # The same in NumPy: a linear map, whose derivative along a direction is the map of that direction.
    weights = np.broadcast_to(1.0 + np.arange(N)[:, None], (N, N))

    def mapped(p, b):
        p = p.copy()
        inner = np.add.outer(np.arange(1, N - 1), np.arange(1, N - 1)) % 2
        for k in range(4):
            around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
            new = 0.25 * (around - b[1:-1, 1:-1])
            p[1:-1, 1:-1] = np.where(inner == k % 2, new, p[1:-1, 1:-1])
        return p

    end = mapped(start, b.to_numpy())
    np.testing.assert_allclose(p.to_numpy(), end, rtol=1e-14)
    directions = numbers(N, N, seed=2), numbers(N, N, seed=3)
    slope = (2 * weights * end * mapped(*directions)).sum()
    assert sum((g * d).sum() for g, d in zip(found, directions, strict=True)) == pytest.approx(
        slope
    )


SWEEPS = {
    "remainder": "for i in range(1, 9):\n    if i % 2 == c:\n        x[i] += ds.sin(x[i - 1]) * x[i + 1]",
    "three colours": "for i in range(1, 9):\n    if i % 3 == c:\n        x[i] += x[i - 1] * x[i + 1]",
    "skipped": "for i in range(1, 9):\n    if (i + c) & 1:\n        continue\n    x[i] = x[i - 1] * x[i + 1]",
    "and": "for i in range(1, 9):\n    if i % 2 == c and x[i - 1] > 0.0:\n        x[i] = x[i - 1] * x[i + 1]",
    "steps": "for i in range(c + 1, 9, 2):\n    x[i] = ds.sin(x[i - 1]) * x[i + 1]",
    "pairs": "for k in range(4):\n    x[2 * k + c] *= x[2 * k + 1 - c] ** 2",
    "twice": "for i in range(1, 9):\n    if i % 2 == c:\n        x[i] = x[i - 1]\n        x[i] *= x[i]",
    "halves": "for i in range(10):\n    if i >= 5:\n        x[i] = x[i - 5] * x[i]",
    "one lane": "for i in range(9):\n    y[i + 1] = x[i] ** 2\n    if i == 0:\n        y[0] = x[1] * x[2]",
}
MEETING = {
    "same colour": "for i in range(2, 8):\n    if i % 2 == c:\n        x[i] = ds.sin(x[i - 2]) * x[i + 2]",
    "of three": "for i in range(1, 7):\n    if i % 3 == c:\n        x[i] = ds.sin(x[i - 1]) * x[i + 3]",
    "no colour": "for i in range(1, 9):\n    if i % 2 != c + 3:\n        x[i] = ds.sin(x[i - 1])",
    "both": "for i in range(1, 9):\n    if i % 2 == c:\n        x[i] = x[i - 1]\n    else:\n        x[i] = 0",
    "or": "for i in range(1, 9):\n    if i % 2 == c or x[0] > 0.0:\n        x[i] = x[i - 1] ** 2",
    "steps of one": "for i in range(c + 1, 9, 1):\n    x[i] = ds.sin(x[i - 1])",
    "halves": "for i in range(10):\n    if i >= 4:\n        x[i] = x[i - 4] ** 2",
    "two lanes": "for i in range(9):\n    y[i + 1] = x[i] ** 2\n    if i <= 1:\n        y[0] = x[1] * x[2]",
}


def kernel_of(body, space):
    text = "".join(f"    {line}\n" for line in body.splitlines())
    make(f"@ds.kernel\ndef f(c: ds.i32):\n{text}", space)
    return space["f"]


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps(name):
    x, y, loss = field(10), field(10), field()
    x.from_numpy(numbers(10))
    f = kernel_of(SWEEPS[name], {"ds": ds, "x": x, "y": y})
    assert not reverse(f._only((0,)).ir, in_place=True).conditions
    start, totals = x.to_numpy(), [weighted(x, loss), weighted(y, loss)]

    def run():
        for c in (0, 1, 0):
            f(c)
        for total in totals:
            total()

    with ds.Tape(loss, in_place="save"):
        run()
    found = x.grad.to_numpy()
    for k in range(10):
        ends = []
        for step in (1e-5, -1e-5):
            x.from_numpy(start + step * (np.arange(10) == k))
            loss[None] = 0.0
            run()
            ends.append(loss[None])
        assert found[k] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", MEETING)
def test_sweeps_that_meet(name):
    x, y, loss = field(10), field(10), field()
    f = kernel_of(MEETING[name], {"ds": ds, "x": x, "y": y})
    total = summed(y if "y[" in MEETING[name] else x, loss)

    with pytest.raises(GlobalDataAccessError):
        with ds.Tape(loss, in_place="save"):
            f(0)
            total()


LEFT_EARLY = {
    "a sum": "for k in range(N):\n    if w[i, k] > 0.8:\n        break\n    y[i] += x[k] ** 2 * w[i, k]",
    "the first": "for k in range(i, N):\n    if w[i, k] > 0.3:\n        y[i] = x[k] ** 2\n        break",
    "own elements": "for k in range(N):\n    if w[i, k] > 0.8:\n        break\n    u[N * i + k] = x[k] ** 2",
    "after a continue": (
        "for k in range(N):\n    if k % 2 == 0:\n        continue\n    y[i] += x[k] ** 2\n"
        "    if w[i, k] > 0.5:\n        break"
    ),
    "a step": "for k in range(N - 1, -1, -2):\n    if w[i, k] > 0.8:\n        break\n    y[i] += x[k] ** 3",
    "inside a loop": (
        "for j in range(N):\n    for k in range(j, N):\n        if w[i, k] > 0.8:\n            break\n"
        "        y[i] += x[k] ** 2 * w[i, j]"
    ),
    "counted by hand": "k = 0\nwhile k < N and w[i, k] < 0.8:\n    y[i] += x[k] ** 2 * w[i, k]\n    k += 1",
}


@pytest.mark.parametrize("name", LEFT_EARLY)
def test_loops_with_a_break_are_loops(name):
    """Within the kernel simplicity rule: the adjoint saves nothing."""
    x, y, w, u, loss = field(N), field(N), field((N, N)), field(N * N), field()
    x.from_numpy(numbers(N))
    w.from_numpy(numbers(N, N, lo=0.0))
    body = "".join(f"        {line}\n" for line in LEFT_EARLY[name].splitlines())
    space = {"ds": ds, "x": x, "y": y, "w": w, "u": u, "N": N}
    make(f"@ds.kernel\ndef f():\n    for i in range({N}):\n{body}", space)
    made = reverse(space["f"]._only(()).ir, strict=True)
    assert not made.conditions
    assert "scratch" not in str(space["f"].grad.ir())
    totals = weighted(y, loss), weighted(u, loss)

    def program():
        space["f"]()
        for total in totals:
            total()

    check(program, loss, x, w, reset=(y, u))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "s = x[i]\nfor k in range(N):\n    if s > 1.0:\n        break\n    s += x[k]\ny[i] = s",
            "carries",
        ),
        (
            "for j in range(N):\n    if w[i, j] > 0.5:\n        break\n"
            "    for k in range(N):\n        y[i] += w[j, k]",
            "or after a break",
        ),
        (
            "for j in range(N):\n    for k in range(N):\n        if w[j, k] > 0.5:\n            break\n"
            "        y[i] += w[j, k]\n    if y[i] > 1.0:\n        break",
            "a loop is beside other statements",
        ),
        ("while y[i] < 1.0:\n    y[i] += x[i]", "a while loop"),
        ("k = 0\nwhile k < N:\n    y[i] += x[k]\n    k += 2 * k + 1", "a while loop"),
    ],
)
def test_other_loops_are_outside_of_the_rule(body, why):
    x, y, w = field(N), field(N), field((N, N))
    text = "".join(f"        {line}\n" for line in body.splitlines())
    space = {"ds": ds, "x": x, "y": y, "w": w, "N": N}
    make(f"@ds.kernel\ndef f():\n    for i in range({N}):\n{text}", space)
    with pytest.raises(ds.AutodiffError, match=why):
        reverse(space["f"]._only(()).ir, strict=True)


def test_a_long_loop_with_a_break_is_reversed_in_segments():
    """The counter of a segment begins where the one before ends."""
    count = 6000
    x, w, loss = field(1), field(count), field()
    x[0] = 0.5
    w.from_numpy(numbers(count, lo=0.5, hi=1.5))

    @ds.kernel
    def f(first: ds.i32):
        for i in x:
            s = x[i]
            for k in range(first, count):
                if s > 2.5:
                    break
                s += 4e-4 * ds.sin(s) * w[k] ** 2
            loss[None] += s

    with ds.Tape(loss):
        f(3)
    found, start = w.grad.to_numpy(), w.to_numpy()
    assert 0.0 < loss[None] - 2.5 < 1e-3
    for k in (2, 3, 1000, 4200):
        ends = []
        for step in (1e-4, -1e-4):
            w[k] = start[k] + step
            loss[None] = 0.0
            f(3)
            ends.append(loss[None])
        w[k] = start[k]
        assert found[k] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-12)
