"""Errors call a field as the program does, by its variable or attribute, and blame lines of the program."""

import gc
import weakref

import numpy as np
import pytest

import diffsim as ds

AT_TOP = None  # set by tests: a global variable


def message(call, *args):
    with pytest.raises(ds.DiffsimError) as found:
        call(*args)
    return found.value.message


@ds.kernel
def square(a: ds.template(), b: ds.template()):
    for i in a:
        b[i] = a[i] * a[i]


@ds.kernel
def in_place(a: ds.template()):
    for i in a:
        a[i] = a[i] * a[i]


@ds.kernel
def square_arrays(a: ds.types.ndarray(), b: ds.types.ndarray()):
    for i in a:
        b[i] = a[i] * a[i]


@ds.kernel
def total(a: ds.template(), loss: ds.template()):
    for i in a:
        loss[None] += a[i]


def test_local_and_global_variables(cpu, monkeypatch):
    pressure = ds.field(ds.f32, shape=3, needs_grad=True)
    with pytest.raises(ds.AccessError, match="outside pressure,"):
        pressure[3] = 1.0
    with pytest.raises(ds.OperationError, match=r"pressure.grad \+ ... cannot be computed"):
        pressure.grad + 1
    monkeypatch.setitem(globals(), "AT_TOP", ds.field(ds.f32, shape=3))
    with pytest.raises(ds.AccessError, match="outside AT_TOP,"):
        AT_TOP[3] = 1.0


def test_attributes_and_elements(cpu):
    class Simulation:
        def __init__(self):
            self.heat = ds.field(ds.f32, shape=3, needs_grad=True)
            self.layers = [self.heat, ds.field(ds.i32, shape=2)]
            self.state = {"old": ds.Vector.field(2, ds.f32, shape=2)}

        def write(self):
            self.heat[3] = 1.0

        def layer(self):
            self.layers[1].from_numpy(np.ones(2))

        def vector(self):
            self.state["old"][0] = [1.0, 2.0, 3.0]

        def gradient(self):
            self.heat.grad.from_numpy(np.ones(4))

    simulation = Simulation()
    assert "outside self.heat," in message(simulation.write)
    assert "an element of self.layers[1] is an i32" in message(simulation.layer)
    assert "an element of self.state['old']" in message(simulation.vector)
    assert "self.heat.grad needs an array" in message(simulation.gradient)


def test_members_of_structs(cpu):
    balls = ds.types.struct(pos=ds.types.vector(2, ds.f32), mass=ds.f32).field(shape=3)
    with pytest.raises(ds.FieldError, match="pos needs an array of shape"):
        balls.pos.from_numpy(np.ones(3))
    with pytest.raises(ds.OperationError, match="the field of structs balls is memory"):
        balls + 1


def test_given_names_win(cpu):
    x = ds.field(ds.f32, shape=3, name="temperature")
    with pytest.raises(ds.AccessError, match="outside temperature,"):
        x[3] = 1.0


def test_kernels_call_templates_as_the_program_does(cpu):
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    density = ds.field(ds.f32, shape=3, needs_grad=True)
    plain = ds.field(ds.f32, shape=3)

    def helper(given):
        in_place(given)

    def overwrite():
        with ds.Tape(loss):
            helper(density)
            total(density, loss)

    def lose():
        with ds.Tape(loss):
            square(density, plain)
            total(plain, loss)

    assert "needs density as it was read" in message(overwrite)
    assert message(lose).startswith("plain is given a value")
    assert "load density[%i]" in in_place.ir(args=(density,))


def test_arrays_are_called_as_the_program_does(cpu):
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    first = ds.ndarray(ds.f32, 3, needs_grad=True)
    second = ds.ndarray(ds.f32, 3, needs_grad=True)
    third = ds.ndarray(ds.f32, 3)

    def stale():
        with ds.Tape(loss):
            square_arrays(first, second)
            first.fill(2.0)
            total(second, loss)

    def lose():
        with ds.Tape(loss):
            square_arrays(first, third)
            total(third, loss)

    assert "needs first as it was" in message(stale)
    assert message(lose).startswith("third is given a value")


def test_looking_for_names_keeps_nothing_alive(cpu):
    x = ds.field(ds.f32, shape=3)
    mine = locals()
    with pytest.raises(ds.AccessError):
        x[3] = 1.0
    assert mine["x"] is x, "the program's own dictionary stays"
    del mine
    gone = weakref.ref(x)
    with pytest.raises(ds.AccessError):
        x[3] = 1.0
    del x
    gc.collect()
    assert gone() is None


def test_code_of_the_program_is_not_run(cpu):
    class Odd:
        def __getattribute__(self, name):
            raise RuntimeError("looked at")

    odd = Odd()
    field = ds.field(ds.f32, shape=3)
    with pytest.raises(ds.AccessError, match="outside field,"):
        field[3] = 1.0
    assert type(odd) is Odd


def test_writes_of_diffsims_own_functions_are_their_callers(cpu):
    """What a tape, a struct or a check writes is blamed on the statement that called it."""
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    y = ds.field(ds.f64, shape=3, needs_grad=True)
    balls = ds.types.struct(mass=ds.f32).field(shape=3)
    with ds.Tape() as tape:
        square(x, y)
    tape.backward(grads={y: np.ones(3)})
    ds.ad.gradcheck_tape(tape)
    ds.ad.gradcheck(lambda: square(x, y), [x], [y])
    with ds.Tape(loss):
        square(x, y)
        total(y, loss)
    balls.fill(1.0)
    balls[0] = {"mass": 2.0}
    balls[1].mass = 3.0
    balls.from_numpy({"mass": np.ones(3)})
    ds.ad.checkpoint(lambda t: square(x, y), 2, [x, y])
    for field in (loss, x, y, x.grad, y.grad, loss.grad, balls.mass):
        _, place = field.versions.written_by(None)
        assert place is None or place.file == __file__, place.text()
