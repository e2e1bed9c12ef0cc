"""Probes of issue trackers: what has no right gradient is refused with the line; what looks alike is not."""

import inspect

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import (
    GlobalDataAccessError,
    MissingGradientError,
)
from tests.support.gradients import field, numbers
from tests.support.rules import refused, summed
from tests.support.source import line_of


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


# ---- the probes of the issue trackers (USERS.md, section 0): right or refused, with default settings


@pytest.mark.parametrize("turns", [8, 33])
def test_probe_loop_carried_local(turns):
    x, loss = field(), field()
    x[None] = 0.7

    @ds.kernel(simplicity="strict")
    def strict():
        for i in range(1):
            v = x[None]
            for k in range(turns):
                v = v * v * 0.9 + 0.1
            loss[None] += v

    @ds.kernel
    def relaxed():
        for i in range(1):
            v = x[None]
            for k in range(turns):
                v = v * v * 0.9 + 0.1
            loss[None] += v

    error = refused(strict, loss, ds.KernelSimplicityError)
    assert error.span.line == line_of(strict, "for k")
    assert "relaxed" in error.hint
    with ds.Tape(loss):
        relaxed()
    value, slope = 0.7, 1.0
    for _ in range(turns):
        slope *= 1.8 * value
        value = value * value * 0.9 + 0.1
    assert x.grad[None] == pytest.approx(slope, rel=1e-12)


def test_probe_reads_what_it_wrote_one_turn_before():
    f, loss = field(5), field()
    f.from_numpy(numbers(5, lo=0.1))

    @ds.kernel
    def parallel():
        for i in range(4):
            f[i + 1] = ds.sin(f[i])

    @ds.kernel
    def serial():
        ds.loop_config(serialize=True)
        for i in range(4):
            f[i + 1] = ds.sin(f[i]) + f[i + 1] ** 2
        loss[None] += f[4] ** 2

    @ds.kernel
    def chain():
        ds.loop_config(serialize=True)
        for i in range(4):
            f[i + 1] = ds.sin(f[i])
        loss[None] += f[4] ** 2

    error = refused(parallel, loss, GlobalDataAccessError)
    assert error.span.line == line_of(parallel, "f[i + 1]")
    # The turn before wrote f[i], and nobody writes it after it was read: no value is lost.
    f[0] = 0.4
    with ds.Tape(loss):
        chain()
    value, slope = 0.4, 1.0
    for _ in range(4):
        slope *= np.cos(value)
        value = np.sin(value)
    assert f.grad[0] == pytest.approx(2 * value * slope, rel=1e-12)
    refused(serial, loss, GlobalDataAccessError)  # there f[i + 1] is read and then written


def test_probe_in_place_update():
    x, th, loss = field(), field(), field()
    x[None], th[None] = 2, 0.3

    @ds.kernel
    def rotate():
        x[None] = ds.cos(th[None]) * x[None]

    @ds.kernel
    def end():
        loss[None] += x[None]

    error = refused(lambda: (rotate(), end()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(rotate, "ds.cos")


def test_probe_overwritten_by_the_next_kernel():
    x, y, loss = field(3), field(3), field()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def read():
        for i in x:
            y[i] = x[i] * x[i]

    @ds.kernel
    def overwrite():
        for i in x:
            x[i] = 10.0

    @ds.kernel
    def linear():
        for i in x:
            y[i] = 3 * x[i]

    total = summed(y, loss)
    error = refused(lambda: (read(), overwrite(), total()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(read, "x[i] * x[i]")
    assert "x" in error.message
    assert "kernel overwrite" in error.message
    assert f"line {line_of(overwrite, 'def overwrite')}" in error.message
    # Nothing of x is needed for the gradient of 3 * x, so overwriting it is fine.
    with ds.Tape(loss):
        linear()
        overwrite()
        total()
    assert x.grad.to_numpy().tolist() == [3, 3, 3]
    assert loss[None] == 3 * 10 * 3


@pytest.mark.parametrize("how", ["element", "fill", "from_numpy", "copy_from"])
def test_probe_python_writes_between_forward_and_backward(how):
    x, other, loss = field(3), field(3), field()
    x.fill(3)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += x[i] ** 2

    def write():
        if how == "element":
            x[0] = 5.0
        elif how == "fill":
            x.fill(5.0)
        elif how == "from_numpy":
            x.from_numpy(np.zeros(3))
        else:
            x.copy_from(other)

    tape = ds.Tape()
    with tape:
        f()
    write()
    with pytest.raises(GlobalDataAccessError, match="a Python statement has changed it") as caught:
        tape.backward(loss)
    assert caught.value.span.line == line_of(f, "x[i] ** 2")
    source = inspect.getsource(write)
    wrote = [n for n, text in enumerate(source.splitlines()) if how in text or "x[0] =" in text][-1]
    assert "test_rules.py" in caught.value.message
    if how != "element":
        assert source.splitlines()[wrote].strip() in caught.value.message

    f()
    write()
    loss.grad[None] = 1
    with pytest.raises(GlobalDataAccessError):
        f.grad()


@pytest.mark.parametrize("carrier", ["field", "ndarray", "numpy", "numpy view"])
def test_probe_chain_without_gradient(carrier):
    x, loss = field(3), field()
    mid = {
        "field": lambda: field(3, grad=False),
        "ndarray": lambda: ds.ndarray(ds.f64, 3),
        "numpy": lambda: np.zeros(3),
        "numpy view": lambda: np.zeros(3),
    }[carrier]()
    again = mid[:] if carrier == "numpy view" else mid

    @ds.kernel
    def write(a: ds.types.ndarray()):
        for i in x:
            a[i] = 2 * x[i]

    @ds.kernel
    def read(a: ds.types.ndarray()):
        for i in x:
            loss[None] += a[i] ** 2

    def program():
        write(mid)
        read(again)

    error = refused(program, loss, MissingGradientError)
    assert error.span.line == line_of(write, "a[i] = 2")
    assert "read reads it" in error.message
    assert "stop_grad" in error.hint


def test_chain_without_gradient_inside_of_a_kernel():
    x, mid, loss = field(3), field(3, grad=False), field()

    @ds.kernel
    def f():
        for i in x:
            mid[i] = 2 * x[i]
        for i in x:
            loss[None] += mid[i] * x[i]

    @ds.kernel
    def read_before():  # a trace for looking at, from the launch before
        for i in x:
            loss[None] += mid[i] + 5 * x[i]
        for i in x:
            mid[i] = 2 * x[i]

    @ds.kernel
    def cut():
        for i in x:
            mid[i] = ds.stop_grad(2 * x[i])
        for i in x:
            loss[None] += mid[i] * x[i]

    x.fill(1)
    assert refused(f, loss, MissingGradientError).span.line == line_of(f, "mid[i] = 2")
    mid.fill(5)
    with ds.Tape(loss):
        read_before()
    assert x.grad.to_numpy().tolist() == [5, 5, 5]
    mid.fill(5)
    refused(lambda: (read_before(), read_before()), loss, MissingGradientError)
    with ds.Tape(loss):
        cut()
    assert x.grad.to_numpy().tolist() == [2, 2, 2]


def test_chain_without_gradient_through_copies():
    x, y, loss = field(3), field(3), field()
    bare, bare2 = field(3, grad=False), field(3, grad=False)
    x.fill(2)
    total = summed(y, loss)

    def through():
        bare.copy_from(x)
        bare2.copy_from(bare)
        y.copy_from(bare2)
        total()

    error = refused(through, loss, MissingGradientError)
    assert error.span.line == line_of(through, "bare.copy_from(x)")

    def overwritten():
        bare.copy_from(x)
        bare.fill(7)  # what came from x is gone
        y.copy_from(bare)
        total()

    with ds.Tape(loss):
        overwritten()
    assert not x.grad.to_numpy().any()


def test_a_leak_that_nobody_reads_is_fine():
    x, shown, loss = field(3), field(3, grad=False), field()
    x.fill(2)

    @ds.kernel
    def f():
        for i in x:
            shown[i] = x[i] * 2
            loss[None] += x[i]

    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [1, 1, 1]


def test_probe_atomic_max():
    x, top, loss = field(4), field(), field()
    x.from_numpy(np.array([-0.5, -0.1, -0.9, -0.3]))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i])

    @ds.kernel
    def smallest():
        for i in x:
            ds.atomic_min(top[None], x[i])

    @ds.kernel
    def local():
        m = -9.0
        for i in x:
            ds.atomic_max(m, x[i])
        loss[None] += m

    @ds.kernel
    def end():
        loss[None] += top[None]

    for kernel, start, winner in ((largest, -9.0, 1), (smallest, 9.0, 2)):
        with ds.Tape(loss):
            top[None] = start
            kernel()
            end()
        assert x.grad.to_numpy().tolist() == [float(i == winner) for i in range(4)]
    with ds.Tape(loss):
        local()
    assert x.grad.to_numpy().tolist() == [0, 1, 0, 0]


def test_probe_multiplied_after_a_write():
    x, y, loss = field(2), field(), field()
    x.fill(3)

    @ds.kernel
    def write():
        y[None] = x[0]

    @ds.kernel
    def multiply():
        y[None] *= x[1]

    @ds.kernel
    def end():
        loss[None] += y[None]

    error = refused(lambda: (write(), multiply(), end()), loss, GlobalDataAccessError)
    assert error.span.line == line_of(multiply, "*=")


@pytest.mark.parametrize("shape", ["scalar", "vector"])
def test_probe_returned_value(shape):
    x, y, loss = field(3), field(), field()
    x.fill(2)

    @ds.kernel
    def scalar() -> ds.f64:
        s = 0.0
        for i in x:
            s += x[i] ** 2
        return s

    @ds.kernel
    def vector() -> ds.types.vector(2, ds.f64):
        return ds.Vector([x[0] ** 2, 1.0])

    @ds.kernel
    def end():
        loss[None] += y[None]

    kernel = {"scalar": scalar, "vector": vector}[shape]

    def program():
        found = kernel()
        y[None] = found if shape == "scalar" else found[0]
        end()

    with ds.Tape(loss):
        program()
    assert x.grad.to_numpy().tolist() == ([4, 4, 4] if shape == "scalar" else [4, 0, 0])
    assert kernel() is not None  # without a tape it is just a number


def test_probe_f64_seed():
    x, y = field(), field()
    x[None] = 1

    @ds.kernel
    def f():
        y[None] = x[None] * 3

    tape = ds.Tape()
    with tape:
        f()
    seed = 1 / 3
    tape.backward(grads={y: seed})
    assert x.grad[None] == 3 * seed
