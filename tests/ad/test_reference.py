"""The examples of the reference pages on differentiation, as they are printed there."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError, KernelSimplicityError
from tests.support.gradients import central
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("cpu")
N = 16


# ---- field_kernel_differentiation


def test_tape_of_sine():
    x = ds.field(dtype=ds.f32, shape=(), needs_grad=True)
    y = ds.field(dtype=ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def compute_y():
        y[None] = ds.sin(x[None])

    for at in (0.0, 0.7, -2.0):
        x[None] = at
        with ds.Tape(y):
            compute_y()
        assert y[None] == pytest.approx(np.sin(at), rel=1e-6)
        assert x.grad[None] == pytest.approx(np.cos(at), rel=1e-6)


def test_gravity():
    n, dt = 8, 1e-5
    x = ds.Vector.field(2, dtype=ds.f32, shape=n, needs_grad=True)
    v = ds.Vector.field(2, dtype=ds.f32, shape=n)
    U = ds.field(dtype=ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def compute_U():
        for i, j in ds.ndrange(n, n):
            r = x[i] - x[j]
            U[None] += -1 / r.norm(1e-3)

    @ds.kernel
    def advance():
        for i in x:
            v[i] += dt * -x.grad[i]
        for i in x:
            x[i] += dt * v[i]

    @ds.kernel
    def init():
        for i in x:
            x[i] = [ds.random(), ds.random()]

    def energy(X):
        d = X[:, None] - X[None]
        return (-1 / np.sqrt((d**2).sum(-1) + 1e-3)).sum()

    init()
    X, V = x.to_numpy(dtype=np.float64), np.zeros((n, 2))
    for _ in range(3):
        with ds.Tape(loss=U):
            compute_U()
        force = central(energy, X, 1e-6)
        assert U[None] == pytest.approx(energy(X), rel=1e-5)
        np.testing.assert_allclose(x.grad.to_numpy(), force, rtol=2e-4, atol=1e-3)
        advance()
        V -= dt * force
        X += dt * V
        np.testing.assert_allclose(v.to_numpy(), V, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(x.to_numpy(), X, rtol=1e-6)


@pytest.mark.parametrize("size", [3, (2, 2)])
def test_the_loss_is_a_single_number(size):
    y = ds.field(ds.f32, shape=size, needs_grad=True)
    with pytest.raises(ds.FieldError, match="single number"):
        ds.Tape(y)


def test_the_tape_sets_the_loss_to_0():
    x, U = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
    U[None] = 7

    @ds.kernel
    def add():
        U[None] += x[None]

    x[None] = 2
    with ds.Tape(U):
        assert U[None] == 0
        add()
    assert (U[None], x.grad[None]) == (2, 1)


def test_two_losses_by_kernel_grad():
    x = ds.field(dtype=ds.f32, shape=N, needs_grad=True)
    loss = ds.field(dtype=ds.f32, shape=(), needs_grad=True)
    loss2 = ds.field(dtype=ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def func():
        for i in x:
            loss[None] += x[i] ** 2
            loss2[None] += x[i]

    for i in range(N):
        x[i] = i
    loss.grad[None] = 1
    loss2.grad[None] = 1
    func()
    func.grad()
    for i in range(N):
        assert x.grad[i] == i * 2 + 1


def rule_fields():
    x = ds.field(dtype=ds.f32, shape=N, needs_grad=True)
    loss = ds.field(dtype=ds.f32, shape=(), needs_grad=True)
    b = ds.field(dtype=ds.f32, shape=(), needs_grad=True)
    for i in range(N):
        x[i] = i
    b[None] = 10
    loss.grad[None] = 1
    return x, loss, b


def test_rule_1():
    x, loss, b = rule_fields()

    @ds.kernel
    def func_broke_rule_1():
        loss[None] = x[1] * b[None]
        b[None] += 100

    @ds.kernel
    def func_equivalent():
        loss[None] = x[1] * 10

    with pytest.raises(GlobalDataAccessError) as caught:
        with ds.Tape(loss):
            func_broke_rule_1()
    assert caught.value.span.line == line_of(func_broke_rule_1, "loss[None] =")
    assert f"line {line_of(func_broke_rule_1, 'b[None] += 100')}" in str(caught.value)
    assert "b[None] += 100" in str(caught.value)

    with ds.Tape(loss):
        func_equivalent()
    assert (loss[None], x.grad[1]) == (10, 10)
    assert x.grad.to_numpy().sum() == 10


def test_rule_2():
    x, loss, _ = rule_fields()

    @ds.kernel
    def func_break_rule_2():
        loss[None] += x[1] ** 2
        loss[None] *= x[2]

    @ds.kernel
    def func_equivalent():
        loss[None] = (2 + x[1] ** 2) * x[2]

    loss[None] = 2
    func_break_rule_2()
    with pytest.raises(GlobalDataAccessError) as caught:
        func_break_rule_2.grad()
    assert caught.value.span.line == line_of(func_break_rule_2, "*= x[2]")

    loss[None] = 2
    func_equivalent()
    func_equivalent.grad()
    assert loss[None] == 6
    assert (x.grad[1], x.grad[2]) == (4, 3)


def simplicity_fields():
    x, y = (ds.field(ds.f32, shape=N, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    y.from_numpy(np.arange(N, dtype=np.float32))
    return x, y, loss


def test_simple_kernels():
    x, y, loss = simplicity_fields()

    @ds.kernel
    def differentiable_task1():
        for i in x:
            x[i] = y[i]

    @ds.kernel
    def differentiable_task2():
        for i in range(10):
            for j in range(20):
                for k in range(300):
                    loss[None] += x[i] * 0.001

    with ds.Tape(loss):
        differentiable_task1()
        differentiable_task2()
    assert loss[None] == pytest.approx(45 * 6, rel=1e-5)
    expected = np.where(np.arange(N) < 10, 6.0, 0.0)
    np.testing.assert_allclose(y.grad.to_numpy(), expected, rtol=1e-4)


def test_kernels_that_are_not_simple():
    ds.init(kernel_simplicity="strict")
    x, y, loss = simplicity_fields()

    @ds.kernel
    def differentiable_task3():
        for i in range(10):
            for j in range(20):
                loss[None] += x[i]
            for j in range(20):
                loss[None] += y[j - j]  # second

    @ds.kernel
    def differentiable_task4():
        loss[None] += x[0]
        for i in range(10):
            loss[None] += y[i]

    @ds.kernel
    def static_task3():
        for i in range(10):
            for j in ds.static(range(20)):
                loss[None] += x[i]
            for j in ds.static(range(20)):
                loss[None] += y[i]

    for kernel, line in (
        (differentiable_task3, line_of(differentiable_task3, "second") - 1),
        (differentiable_task4, line_of(differentiable_task4, "x[0]")),
    ):
        with pytest.raises(KernelSimplicityError) as caught:
            with ds.Tape(loss):
                kernel()
        assert caught.value.span.line == line
        assert "ds.static" in caught.value.hint
        kernel()  # only the gradient is refused
        with pytest.raises(KernelSimplicityError):
            kernel.grad()
    ds.init()

    with ds.Tape(loss):
        static_task3()
    expected = np.where(np.arange(N) < 10, 20.0, 0.0)
    assert x.grad.to_numpy().tolist() == y.grad.to_numpy().tolist() == expected.tolist()


def test_strict_is_a_choice_of_the_program():
    """The reference's two kernels have right gradients by default."""
    x, y, loss = simplicity_fields()

    @ds.kernel
    def task4():
        loss[None] += x[0] ** 2
        for i in range(10):
            loss[None] += y[i]

    x[0] = 3
    with ds.Tape(loss):
        task4()
    assert x.grad[0] == 6
    assert y.grad.to_numpy().tolist() == [1.0] * 10 + [0.0] * 6

    def task3():
        for i in range(10):
            for j in range(20):
                loss[None] += x[i]
            for j in range(20):
                loss[None] += y[j - j]

    for options in {}, {"simplicity": "relaxed"}:
        # The kernel's own word wins over that of the session.
        ds.init(kernel_simplicity="strict" if options else "relaxed")
        x, y, loss = simplicity_fields()
        made = ds.kernel(task3, **options)
        with ds.Tape(loss):
            made()
        assert x.grad.to_numpy().tolist() == [20.0] * 10 + [0.0] * 6
        assert y.grad.to_numpy().tolist() == [200.0] + [0.0] * 15
    ds.init()


def test_lazy_grad_and_atomic_add():
    x, total = ds.field(ds.f32), ds.field(ds.f32)
    n = 128
    ds.root.dense(ds.i, n).place(x)
    ds.root.place(total)
    ds.root.lazy_grad()

    @ds.kernel
    def func(mul: ds.f32):
        for i in range(n):
            ds.atomic_add(total[None], x[i] * mul)

    with ds.Tape(loss=total):
        func(4)
        func(5)
    assert x.grad.to_numpy().tolist() == [9.0] * n
    assert total.grad[None] == 1


@pytest.mark.parametrize("rule", [1, 2])
def test_the_rules_to_the_letter(rule):
    x, loss, b = rule_fields()

    @ds.kernel
    def func_broke_rule_1():
        loss[None] = x[1] * b[None]
        b[None] += 100

    @ds.kernel
    def func_break_rule_2():
        loss[None] += x[1] ** 2
        loss[None] *= x[2]

    kernel = func_broke_rule_1 if rule == 1 else func_break_rule_2
    name, line = ("b", "b[None] += 100") if rule == 1 else ("loss", "*= x[2]")
    with pytest.raises(GlobalDataAccessError, match=rf"{name}\[None\] was read") as caught:
        with ds.Tape(loss, validation=True):
            kernel()
    assert caught.value.span.line == line_of(kernel, line)
