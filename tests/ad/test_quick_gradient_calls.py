"""Calls of `kernel.grad` as nearly all are, the first one after a launch, and what is none of these."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.kernels.gradient_call import GradientCall


class Scaling:
    def __init__(self, x, y):
        self.x, self.y = x, y

    @ds.kernel
    def scale(self, a: ds.f64):
        for i in self.x:
            self.y[i] = a * self.x[i] ** 2


class Given:
    """A kernel with the fields that are its first arguments, and its gradient."""

    def __init__(self, kernel, *fields, grad=None):
        self.kernel, self.fields = kernel, fields
        self.grad = grad or Given(kernel.grad, *fields, grad=self)

    def __call__(self, *args, **named):
        return self.kernel(*self.fields, *args, **named)


@pytest.fixture(params=["function", "method", "array", "template", "both"])
def scale(cpu, quick_code, request):
    x, y = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(2))
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def scale(a: ds.f64):
        for i in x:
            y[i] = a * x[i] ** 2

    @ds.kernel
    def of_arrays(x: ds.types.ndarray(), y: ds.types.ndarray(), a: ds.f64):
        for i in x:
            y[i] = a * x[i] ** 2

    @ds.kernel
    def of_templates(x: ds.template(), y: ds.template(), a: ds.f64):
        for i in x:
            y[i] = a * x[i] ** 2

    @ds.kernel
    def of_both(x: ds.template(), y: ds.types.ndarray(), a: ds.f64):
        for i in x:
            y[i] = a * x[i] ** 2

    return (
        {
            "function": scale,
            "method": Scaling(x, y).scale,
            "array": Given(of_arrays, x, y),
            "template": Given(of_templates, x, y),
            "both": Given(of_both, x, y),
        }[request.param],
        x,
        y,
    )


def test_fields_that_take_turns(cpu, quick_code, monkeypatch):
    """Each combination of fields has launches of its own, and each kind of arrays a kernel of its own."""

    @ds.kernel
    def add(a: ds.types.ndarray(), total: ds.types.ndarray(), factor: ds.f64):
        for i in a:
            total[None] += factor * a[i] ** 2

    inputs = [ds.field(t, n, needs_grad=True) for t in (ds.f64, ds.f32) for n in (3, 3, 4)]
    totals = [ds.field(ds.f64, (), needs_grad=True) for _ in range(2)]
    for total in totals:
        total.grad[None] = 1.0
    for turn in range(4):
        if turn == 2:
            monkeypatch.setattr(GradientCall, "__call__", None)  # the way of all other calls
        for k, f in enumerate(inputs):
            f.fill(k + turn)
            f.grad.fill(0.0)
            for total in totals:
                add(f, total, 0.5)
        for k, f in enumerate(inputs):
            for n, total in enumerate(totals):
                add.grad(f, total, 0.5)
                np.testing.assert_allclose(f.grad.to_numpy(), (n + 1.0) * (k + turn))
    f, (one, two) = inputs[0], totals
    add(f, one, 0.5)
    f.fill(7.0)
    add(f, two, 0.5)
    f.grad.fill(0.0)
    add.grad(f, two, 0.5)
    np.testing.assert_allclose(f.grad.to_numpy(), 7.0)
    monkeypatch.undo()
    with pytest.raises(ds.GlobalDataAccessError):
        add.grad(f, one, 0.5)
    with pytest.raises(ds.AutodiffError, match="was not launched with these arguments"):
        add.grad(inputs[0], ds.field(ds.f64, (), needs_grad=True), 0.5)
    with pytest.raises(ds.DiffsimError):
        add.grad(inputs[0], np.zeros(()), 0.5)


def test_constants_that_take_turns(cpu, quick_code, monkeypatch):
    """Each is compiled in: 1, True and "1" are not the same."""
    x, y = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(2))
    x.fill(2.0)

    @ds.kernel
    def scale(n: ds.template(), a: ds.f64):
        for i in x:
            y[i] = a * x[i] * (3.0 if ds.static(n is True) else 5.0 if ds.static(n == "1") else n)

    for turn in range(4):
        if turn == 2:
            monkeypatch.setattr(GradientCall, "__call__", None)  # the way of all other calls
        for n, factor in [(1, 1.0), (True, 3.0), (2, 2.0), ("1", 5.0)]:
            scale(n, 0.5)
            np.testing.assert_allclose(slope_of(x, y, lambda n=n: scale.grad(n, 0.5)), 0.5 * factor)


def test_a_gradient_that_is_kept_forgets_with_its_kernel(scale):
    scale, x, y = scale
    call = scale.grad
    for _ in range(3):
        scale(2.0)
        call(2.0)
    ds.init()
    with pytest.raises(ds.AutodiffError, match=r"was not launched since ds.init\(\) was called"):
        call(2.0)
    scale(3.0)
    np.testing.assert_allclose(slope_of(x, y, lambda: call(3.0)), 6.0 * x.to_numpy())


def test_a_method_whose_object_has_changed(cpu, quick_code):
    x, y, z = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(3))
    one = Scaling(x, y)
    for _ in range(3):
        one.scale(2.0)
        one.scale.grad(2.0)
    one.x = z
    with pytest.raises(ds.AutodiffError, match="since a field that it uses was made anew"):
        one.scale.grad(2.0)
    z.fill(3.0)
    one.scale(2.0)
    np.testing.assert_allclose(slope_of(z, y, lambda: one.scale.grad(2.0)), 12.0)
    call = Scaling(x, y).scale.grad
    gc.collect()
    with pytest.raises(ds.DiffsimError):
        call(2.0)


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
