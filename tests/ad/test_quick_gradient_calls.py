"""Calls of `kernel.grad` as nearly all are, the first one after a launch, and what is none of these."""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.kernels.gradient_call import GradientCall


@pytest.fixture
def scale(cpu, quick_code):
    x, y = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(2))
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def scale(a: ds.f64):
        for i in x:
            y[i] = a * x[i] ** 2

    return scale, x, y


def slope_of(x, y, call):
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    call()
    return x.grad.to_numpy()


def test_a_call_after_each_launch_is_quick(scale, monkeypatch):
    scale, x, y = scale
    for _ in range(2):
        scale(2.0)
        scale.grad(2.0)
    monkeypatch.setattr(GradientCall, "__call__", None)  # the way of all other calls
    scale.grad._launch = None
    for a in (2.0, 2, 3.0, 2.0):
        scale(a)
        np.testing.assert_allclose(
            slope_of(x, y, lambda a=a: scale.grad(a)), 2.0 * a * x.to_numpy()
        )


def test_further_calls_for_a_launch_are_quick(scale, monkeypatch):
    """The rows of a Jacobian, say: what the derivative loads stays."""
    scale, x, y = scale
    for _ in range(2):
        scale(2.0)
        scale.grad(2.0)
    monkeypatch.setattr(GradientCall, "__call__", None)  # the way of all other calls
    scale.grad._launch = None
    scale(2.0)
    for _ in range(4):
        np.testing.assert_allclose(slope_of(x, y, lambda: scale.grad(2.0)), 4.0 * x.to_numpy())


def test_further_calls_may_mean_earlier_launches(scale):
    """Each call goes back by one launch; with those that have read other values it is refused."""
    scale, x, y = scale
    scale(2.0)
    scale.grad(2.0)
    for filled_after in (1, 2, 3):
        for k in range(5):
            scale(2.0)
            if k + 1 == filled_after:
                x.fill(float(k + 2))
        fine = 5 - filled_after
        for _ in range(fine):
            np.testing.assert_allclose(slope_of(x, y, lambda: scale.grad(2.0)), 4.0 * x.to_numpy())
        for _ in range(2):
            with pytest.raises(ds.GlobalDataAccessError, match=f"called {fine + 1} times"):
                scale.grad(2.0)
        # The next launch is settled by its first call; the second one means the refused launch again.
        scale(2.0)
        np.testing.assert_allclose(slope_of(x, y, lambda: scale.grad(2.0)), 4.0 * x.to_numpy())
        with pytest.raises(ds.GlobalDataAccessError, match="called 2 times"):
            scale.grad(2.0)


def test_further_calls_after_equal_values_were_written(scale):
    scale, x, y = scale
    scale(2.0)
    scale.grad(2.0)
    for _ in range(2):
        x.fill(4.0)
        scale(2.0)
    for _ in range(2):
        np.testing.assert_allclose(slope_of(x, y, lambda: scale.grad(2.0)), 16.0)


def test_other_calls_are_what_they_were(scale):
    scale, x, y = scale
    call = scale.grad
    for _ in range(3):
        scale(2.0)
        call(2.0)
    expected = 4.0 * x.to_numpy()
    # Again, as nothing has changed; with a keyword; for a launch of others' arguments.
    np.testing.assert_allclose(slope_of(x, y, lambda: call(2.0)), expected)
    np.testing.assert_allclose(slope_of(x, y, lambda: call(a=2.0)), expected)
    with pytest.raises(ds.AutodiffError, match="was not launched with these arguments"):
        call(7.0)
    with pytest.raises(ds.KernelTypeError):
        call()
    # What it loads is another value now, for each of several calls.
    scale(2.0)
    x[1] = 5.0
    for _ in range(2):
        with pytest.raises(ds.GlobalDataAccessError, match="x"):
            call(2.0)
    x[1] = 2.0
    scale(2.0)
    np.testing.assert_allclose(slope_of(x, y, lambda: call(2.0)), expected)
    # A gradient that belongs to a value of Python's.
    scale(2.0)
    with ds.Tape() as tape:
        y[0] = 3.0
    tape.backward(grads={y: 1.0})
    with pytest.raises(ds.AutodiffError, match="belongs to the value that Python set"):
        call(2.0)
    # While a tape records; then with a gradient that was made anew.
    scale(2.0)
    with pytest.raises(ds.AutodiffError, match="cannot run while"), ds.Tape():
        call(2.0)
    ds.field(ds.f64, 1, needs_grad=True)
    scale(2.0)
    np.testing.assert_allclose(slope_of(x, y, lambda: call(2.0)), expected)


def test_launches_that_were_not_asked_for_are_gone_back_to(scale):
    """Steps by hand: forward three times, back three times, in each turn."""
    scale, x, y = scale
    for _ in range(4):
        for _ in range(3):
            scale(0.5)
        total = sum(slope_of(x, y, lambda: scale.grad(0.5)) for _ in range(3))
        np.testing.assert_allclose(total, 3.0 * x.to_numpy())
    scale(0.5)
    x.fill(9.0)
    scale(0.5)
    np.testing.assert_allclose(slope_of(x, y, lambda: scale.grad(0.5)), 9.0)
    with pytest.raises(ds.GlobalDataAccessError, match="called 2 times"):
        scale.grad(0.5)
