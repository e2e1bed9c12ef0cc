"""Gradients written by hand, and launches that no gradient flows through."""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds


@pytest.fixture
def sums(cpu):
    """A field of 8 numbers and a kernel that adds their multiples to a total."""
    x = ds.field(ds.f64, shape=8, needs_grad=True)
    total = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def add(mul: ds.f64):
        for i in x:
            ds.atomic_add(total[None], x[i] * mul)

    x.from_numpy(np.arange(8.0))
    return x, total, add


def test_the_gradient_of_one_of_two_launches(sums):
    """The adjoint is what the user says: half of what two launches would give."""
    x, total, add = sums

    @ds.ad.grad_replaced
    def forward(mul):
        add(mul)
        add(mul)

    @ds.ad.grad_for(forward)
    def backward(mul):
        add.grad(mul)

    with ds.Tape(loss=total):
        forward(4.0)
    assert total[None] == 2 * 4 * 28
    assert (x.grad.to_numpy() == 4).all()
    x.grad.fill(0)
    total.grad.fill(1)
    forward(mul=3.0)
    forward.grad(mul=3.0)
    assert (x.grad.to_numpy() == 3).all()


def test_between_ordinary_launches(cpu):
    """The chain goes on before and after it: d/da of 3 * (a * 2)**2 with the square by hand."""
    a, b, c, loss = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(4))

    @ds.kernel
    def double():
        b[None] = 2.0 * a[None]

    @ds.kernel
    def square():
        c[None] = b[None] ** 2

    @ds.kernel
    def triple():
        loss[None] += 3.0 * c[None]

    calls = []

    @ds.ad.grad_replaced
    def squared(name, *, times=1):
        square()
        return name

    @ds.ad.grad_for(squared)
    def backward(name, *, times=1):
        calls.append((name, times, c.grad[None]))
        b.grad[None] = b.grad[None] + 2.0 * b[None] * c.grad[None]

    a[None] = 1.5
    with ds.Tape(loss):
        double()
        assert squared("it", times=2) == "it"
        triple()
    assert calls == [("it", 2, 3.0)]
    assert a.grad[None] == pytest.approx(3 * 2 * 3.0 * 2)


def test_methods_and_nesting(cpu):
    @ds.data_oriented
    class Model:
        def __init__(self, factor):
            self.factor = factor
            self.x = ds.field(ds.f64, shape=3, needs_grad=True)
            self.loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def measure(self):
            for i in self.x:
                self.loss[None] += self.factor * self.x[i]

        @ds.ad.grad_replaced
        def inner(self, n):
            self.measure()

        @ds.ad.grad_for(inner)
        def inner_backward(self, n):
            for _ in range(n):
                self.measure.grad()

        @ds.ad.grad_replaced
        def outer(self):
            self.inner(1)

        @ds.ad.grad_for(outer)
        def outer_backward(self):
            self.inner.grad(5)

    for factor in (1.0, 2.0):
        model = Model(factor)
        with ds.Tape(model.loss):
            model.outer()
        assert (model.x.grad.to_numpy() == 5 * factor).all()


def test_what_is_wrong_is_said(sums):
    _, total, add = sums

    @ds.ad.grad_replaced
    def alone():
        add(1.0)

    alone()
    with pytest.raises(ds.AutodiffError, match=r"alone is marked .* and has no gradient"):
        with ds.Tape(total):
            alone()
    with pytest.raises(ds.AutodiffError, match="alone is marked"):
        alone.grad()

    def plain():
        pass

    with pytest.raises(ds.AutodiffError, match="plain is not marked"):
        ds.ad.grad_for(plain)

    @ds.ad.grad_for(alone)
    def backward():
        pass

    with pytest.raises(ds.AutodiffError, match="alone has a gradient already"):
        ds.ad.grad_for(alone)
    with ds.Tape(total):  # an error left no tape behind
        add(1.0)


def test_record_func(cpu):
    x, y = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2))
    x.from_numpy(np.arange(4.0))
    tape = ds.Tape()
    with tape:
        y.from_numpy(np.square(x.to_numpy()))  # NumPy's work has no adjoint of its own

        def backward():
            x.grad.from_numpy(2 * x.to_numpy() * y.grad.to_numpy())

        tape.record_func(backward, [x, y])
    tape.backward(grads={y: 1.0})
    assert (x.grad.to_numpy() == 2 * np.arange(4.0)).all()
    assert tape.gradients[x] is x.grad
    tape.zero()
    assert not x.grad.to_numpy().any()


def test_record_func_of_a_field_and_itself(cpu):
    """The write takes the gradient that the function would hand on: 0 silently otherwise."""
    x, loss = ds.field(ds.f64, shape=4, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def sum_up():
        for i in x:
            loss[None] += x[i]

    def backward():
        x.grad.from_numpy(2 * x.grad.to_numpy())

    x.fill(1.0)
    tape = ds.Tape(loss)
    with pytest.raises(ds.AutodiffError, match="that Python made of x itself") as caught, tape:
        x.from_numpy(2 * x.to_numpy())
        tape.record_func(backward, [x])
        sum_up()
    assert "x.from_numpy(2 * x.to_numpy())" in str(caught.value)
    with tape:
        x.from_numpy(ds.stop_grad(2 * x.to_numpy()))
        sum_up()
    assert x.grad.to_numpy().tolist() == [1.0] * 4


def test_no_grad_cuts_what_is_stored(cpu):
    """y is overwritten by a launch that counts as constant: nothing reaches x through y."""
    x, y, loss = (ds.field(ds.f64, shape=n, needs_grad=True) for n in (4, 4, ()))

    @ds.kernel
    def double():
        for i in x:
            y[i] = 2.0 * x[i]

    @ds.kernel
    def overwrite(n: ds.i32):
        for i in range(n):
            y[i] = 3.0 * x[i]

    @ds.kernel
    def add():
        for i in x:
            loss[None] += y[i] + x[i]

    @ds.kernel
    def shift():
        for i in y:
            y[i] += 10.0 * x[i]

    @ds.kernel
    def total() -> ds.f64:
        s = ds.f64(0.0)
        for i in x:
            s += x[i]
        return s

    x.fill(1.0)
    with ds.Tape(loss):
        double()
        with ds.ad.no_grad():
            overwrite(2)
            shift()
            assert total() == 4.0
        add()
    assert loss[None] == 2 * 13 + 2 * 12 + 4
    assert x.grad.to_numpy().tolist() == [1.0, 1.0, 3.0, 3.0]

    @ds.ad.no_grad
    def helper(n, value):
        overwrite(n)
        y[3] = value
        return value

    with ds.Tape(loss):
        double()
        assert helper(1, 7.0) == 7.0
        add()
    assert x.grad.to_numpy().tolist() == [1.0, 3.0, 3.0, 1.0]


def test_descent_inside_of_a_tape(cpu):
    """A step of gradient descent reads gradients, which only no_grad allows on a tape."""
    w, loss = (ds.field(ds.f64, shape=n, needs_grad=True) for n in (3, ()))

    @ds.kernel
    def measure():
        for i in w:
            loss[None] += w[i] ** 2

    @ds.kernel
    def descend():
        for i in w:
            w[i] -= 0.25 * w.grad[i]

    w.fill(1.0)
    with ds.Tape(loss):
        measure()
    with ds.Tape(loss, clear_gradients=False):
        with ds.ad.no_grad():
            descend()
        w.grad.fill(0)
        measure()
    assert (w.to_numpy() == 0.5).all()
    assert (w.grad.to_numpy() == 1.0).all()


@pytest.mark.parametrize("options", [{}, {"validation": True}, {"in_place": "save"}])
@pytest.mark.parametrize("cut", ["no", "no_grad", "stop_grad", "inside"])
def test_a_value_left_in_a_field_without_gradient(cpu, cut, options):
    """The gradient by hand cannot be given one for it: refused where somebody reads it, unless cut off."""
    x, y, L = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
    mid = ds.field(ds.f64, shape=())

    @ds.kernel
    def into():
        mid[None] = 2 * x[None]

    @ds.kernel
    def onward():
        y[None] = mid[None] + x[None]

    @ds.kernel
    def end():
        L[None] += y[None]

    @ds.ad.grad_replaced
    def forward():
        if cut == "no_grad":
            with ds.ad.no_grad():
                into()
        else:
            into()
        if cut == "inside":
            onward()

    @ds.ad.grad_for(forward)
    def backward():
        if cut == "inside":
            x.grad[None] = x.grad[None] + 3 * y.grad[None]
            y.grad[None] = 0

    x[None] = 1.0

    def run():
        forward()
        if cut == "stop_grad":
            ds.stop_grad(mid)
        if cut != "inside":
            onward()
        end()

    if cut == "no":
        with pytest.raises(ds.MissingGradientError, match="mid is given a value"):
            with ds.Tape(L, **options):
                run()
        return
    with ds.Tape(L, **options):
        run()
    assert x.grad[None] == (3 if cut == "inside" else 1)


def test_arrays_that_change_before_the_gradient_gets_them(sums):
    x, total, _ = sums

    @ds.kernel
    def weigh(by: ds.types.ndarray()):
        for i in x:
            total[None] += by[i] * x[i]

    log = []

    @ds.ad.grad_replaced
    def forward(by, notes=None):
        log.append("forward")
        weigh(by["weights"])

    @ds.ad.grad_for(forward)
    def backward(by, notes=None):
        log.append("backward")
        weigh.grad(by["weights"])
        if notes is not None:
            notes += 1  # its own business

    weights, notes = np.arange(8.0), np.zeros(2)
    tape = ds.Tape()
    with tape:
        forward({"weights": weights}, notes=notes)
    tape.backward(total)
    tape.backward(total)
    np.testing.assert_array_equal(x.grad.to_numpy(), 2 * weights)
    assert notes.tolist() == [2, 2]
    for reused in (weights, [1.0, 2.0]):
        given = {"weights": weights, "more": reused}
        with pytest.raises(ds.GlobalDataAccessError, match="given to forward has changed"):
            with ds.Tape(total):
                forward(given)
                reused[0] = 5.0
                weigh(weights)
    assert "backward" in log


def test_numbers_read_on_the_tape_are_no_arguments(sums):
    x, total, add = sums

    @ds.ad.grad_replaced
    def forward(mul):
        add(mul)

    @ds.ad.grad_for(forward)
    def backward(mul):
        add.grad(mul)

    for call in (lambda: forward(2 * x[1]), lambda: forward(mul=x[1])):
        with pytest.raises(ds.AutodiffError, match="forward is given a number that Python took"):
            with ds.Tape(total):
                call()
    with ds.Tape(total):
        forward(ds.stop_grad(2 * x[1]))
    assert (x.grad.to_numpy() == 2).all()
