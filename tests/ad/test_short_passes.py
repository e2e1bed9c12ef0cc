"""Steady tapes of few launches, whose passes are one native call (docs/adr/0147)."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.repeat import variant
from diffsim.ad.replay.repeated_pass import RepeatedPass


@pytest.fixture
def native(cpu, quick_code, monkeypatch):
    """Whether each pass that has a program was a native one."""
    found, run = [], RepeatedPass.run
    monkeypatch.setattr(RepeatedPass, "run", lambda *given: found.append(run(*given)) or found[-1])
    return found


@pytest.fixture
def steps():
    """A chain of fields that are arguments: each is a times the square of the one before."""
    x = [ds.ndarray(ds.f64, 3, needs_grad=True) for _ in range(13)]
    loss = ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def multiply(old: ds.types.ndarray(), new: ds.types.ndarray(), a: ds.f64):
        for i in old:
            new[i] = a * old[i] ** 2

    @ds.kernel
    def add_up(y: ds.types.ndarray()):
        for i in y:
            loss[None] += y[i]

    return x, loss, multiply, add_up


START = np.array([1.0, 0.5, -0.25])


@pytest.mark.host
def test_fields_as_arguments(native, steps):
    """The program has the addresses of the fields, and keeps none of them alive."""
    x, loss, multiply, add_up = steps
    for a in [1.0] * 5 + [0.5, 1.0, 1.0]:
        x[0].from_numpy(START)
        with ds.Tape(loss):
            for k in range(12):
                multiply(x[k], x[k + 1], a if k < 2 else 1.0)
            add_up(x[12])
        # a (a x^2)^2 = a^3 x^4 after two steps, and its 1024th power after ten more
        expected = a**3072 * 4096 * START**4095
        assert x[0].grad.to_numpy() == pytest.approx(expected, rel=1e-9)
    assert native == [True, True, False, True, True]
    # Overwritten after its use: each adjoint asks for itself.
    x[0].from_numpy(START)
    tape = ds.Tape(loss)
    with pytest.raises(ds.GlobalDataAccessError, match="from_numpy"), tape:
        for k in range(12):
            multiply(x[k], x[k + 1], 1.0)
        add_up(x[12])
        x[3].from_numpy(START)
    gone = [weakref.ref(x[5]), weakref.ref(multiply)]
    x.clear()
    del tape, k, multiply, steps
    gc.collect()
    assert gone[0]() is None


@pytest.mark.host
def test_nothing_stays_alive(native):
    x = [ds.field(ds.f64, 3, needs_grad=True) for _ in range(2)]
    loss = ds.field(ds.f64, (), needs_grad=True)

    def made(x, y):
        @ds.kernel
        def square():
            for i in x:
                y[i] += x[i] ** 2
                loss[None] += y[i]

        return square

    square = made(*x)
    x[0].fill(0.5)
    for _ in range(6):
        x[1].fill(0.0)
        with ds.Tape(loss):
            for _ in range(12):
                square()
    # y after k launches is k x^2, and the loss the sum of these
    assert x[0].grad.to_numpy() == pytest.approx(78.0)
    assert native
    gone = [weakref.ref(x[0]), weakref.ref(square)]
    x.clear()
    del square
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.host
def test_other_fields_in_the_place_of_some(native, steps):
    """Another combination of fields is another program of the line."""
    x, loss, multiply, add_up = steps
    for turn in range(12):
        odd = turn % 3 == 2
        x[0].from_numpy(START)
        x[1].fill(0.5)
        with ds.Tape(loss):
            for k in range(1, 12):
                multiply(x[0 if odd and k == 1 else k], x[k + 1], 1.0)
            add_up(x[12])
        assert x[1].grad.to_numpy() == pytest.approx(0.0 if odd else 2048 * 0.5**2047)
        expected = 2048 * START**2047 if odd else 0.0 * START
        assert x[0].grad.to_numpy() == pytest.approx(expected)
    assert set(native) == {True}


def test_tapes_without_a_loss_add_up(native, steps, monkeypatch):
    """Gradients that are left are added to, also those of fields that the launches write."""
    monkeypatch.setattr(variant, "FEW", 1)
    x, loss, multiply, add_up = steps
    for turn in range(6):
        x[0].from_numpy(START)
        loss[None] = 0.0
        with ds.Tape() as tape:
            for k in range(2):
                multiply(x[k], x[k + 1], 1.0)
            add_up(x[2])
        x[0].grad.fill(1.0)
        x[1].grad.fill(turn)
        tape.backward(loss)
        assert x[0].grad.to_numpy() == pytest.approx(1.0 + 4 * START**3)
        assert x[1].grad.to_numpy() == pytest.approx(turn)
        tape.zero()


def test_writes_from_python_between(native, steps, monkeypatch):
    """The gradient of an input that Python set in the block belongs to no launch before it."""
    monkeypatch.setattr(variant, "FEW", 1)
    x, loss, multiply, add_up = steps
    multiply(x[4], x[0], 1.0)
    multiply.grad(x[4], x[0], 1.0)
    for turn in range(6):
        value = np.array([1.0 + turn, 2.0, 3.0])
        with ds.Tape(loss):
            x[0].from_numpy(value)
            multiply(x[0], x[1], 1.0)
            x[2].from_numpy(START)
            multiply(x[1], x[3], 1.0)
            add_up(x[3])
        assert x[0].grad.to_numpy() == pytest.approx(4 * value**3)
        with pytest.raises(ds.AutodiffError, match="belongs to the value that Python set"):
            multiply.grad(x[4], x[0], 1.0)


def test_launches_that_are_asked_for_their_indices(native, monkeypatch):
    """They are asked in each turn; and what asks them keeps no field alive."""
    monkeypatch.setattr(variant, "FEW", 1)
    x, y = (ds.ndarray(ds.f64, 3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, (), needs_grad=True)
    order = ds.field(ds.i32, 3)

    @ds.kernel
    def permute(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in x:
            y[order[i]] = x[i] ** 2

    @ds.kernel
    def first(y: ds.types.ndarray()):
        loss[None] += y[0]

    x.from_numpy(START)
    for turn in range(8):
        places = np.roll([0, 1, 2], turn // 3)
        order.from_numpy(places if turn != 4 else np.array([0, 0, 1]))
        tape = ds.Tape(loss)
        if turn == 4:
            with pytest.raises(ds.GlobalDataAccessError, match="order"), tape:
                permute(x, y)
                first(y)
            continue
        with tape:
            permute(x, y)
            first(y)
        assert x.grad.to_numpy() == pytest.approx(2 * START * (places == 0))
    gone = weakref.ref(x)
    del x, tape, permute, first
    gc.collect()
    assert gone() is None


@pytest.mark.host
def test_what_changes_between_turns(native, steps, monkeypatch):
    """A new field with a gradient, other options, a field that other libraries see."""
    monkeypatch.setattr(variant, "FEW", 1)
    x, loss, multiply, add_up = steps
    theirs = None
    for turn in range(16):
        x[0].from_numpy(START)
        with ds.Tape(loss):
            for k in range(2):
                multiply(x[k], x[k + 1], 1.0)
            add_up(x[2])
        assert x[0].grad.to_numpy() == pytest.approx(4 * START**3)
        if turn == 5:
            ds.field(ds.f32, 2, needs_grad=True)
        if turn == 10:
            theirs = np.from_dlpack(x[1].grad)
        if theirs is not None:
            theirs[...] = 5.0
    assert native.count(True) > 4


@pytest.mark.host
def test_what_no_tape_hears_of(native):
    """The clock tells of the write of another thread: each adjoint asks for itself, and refuses."""
    x, loss = ds.field(ds.f64, 3, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    place = ds.field(ds.i32, 3)

    @ds.kernel
    def add_up(a: ds.f64):
        for i in place:
            loss[None] += a * x[place[i]] ** 2

    x.from_numpy(START)
    for kind in [*6 * ["alone"], "changed", "alone", "alone"]:
        place.from_numpy(np.array([2, 1, 1], np.int32))
        tape = ds.Tape(loss)
        if kind == "changed":
            with pytest.raises(ds.GlobalDataAccessError, match="place"), tape:
                for k in range(12):
                    if k == 6:
                        other = threading.Thread(target=place.fill, args=(0,))
                        other.start()
                        other.join()
                    add_up(1.0)
            continue
        with tape:
            for _ in range(12):
                add_up(1.0)
        assert x.grad.to_numpy() == pytest.approx(24.0 * START * [0.0, 2.0, 1.0])
    assert True in native
