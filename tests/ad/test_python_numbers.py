"""Numbers that Python takes from fields while a tape records: never a gradient that lacks a part."""

import copy
import gc
import math
import pickle
import statistics
import types
import weakref

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, MissingGradientError
from tests.support.gradients import field

X, V = np.array([1.0, 2.0, 3.0]), np.array([[1.0, 2.0], [3.0, 4.0]])


Body = ds.types.struct(mass=ds.f64, velocity=ds.types.vector(2, ds.f64))


def filled(value):
    made = ds.Vector([0.0, 0.0])
    made[1] = value
    return made


def member(value):
    body = Body(1.0, [1.0, 1.0])
    body.mass = value
    return body


class Space:
    """Fields and kernels of the programs below."""

    def __init__(self):
        self.x, self.v, self.w = field(3), field(2, n=2), field(2, n=2)
        self.loss, self.bare = field(), field(3, grad=False)
        self.x.from_numpy(X)
        self.v.from_numpy(V)
        x, w, loss = self.x, self.w, self.loss

        @ds.kernel
        def squares():
            for i in x:
                loss[None] += x[i] ** 2

        @ds.kernel
        def twice() -> ds.f64:
            return 2 * x[0]

        @ds.kernel
        def scaled(a: ds.f64):
            for i in x:
                loss[None] += a * x[i]

        @ds.kernel
        def along(a: ds.types.vector(2, ds.f64), b: ds.f64):
            loss[None] += a[0] * b * x[0]

        @ds.kernel
        def norms():
            for i in w:
                loss[None] += w[i].norm_sqr()

        @ds.kernel
        def times(a: ds.template()):
            loss[None] += a * x[0]

        @ds.kernel
        def first(a: ds.template()):
            loss[None] += a[0] * x[0]

        self.squares, self.twice, self.scaled = squares, twice, scaled
        self.along, self.norms, self.times, self.first = along, norms, times, first
        self.bodies = Body.field(shape=2, needs_grad=True)
        with ds.Tape():
            self.old, self.old_vector = self.x[0] * 2, self.v[0] * 2

    def put(self, value):
        self.loss[None] = value

    def put_w(self, value):
        self.w[0] = value
        self.norms()

    def put_body(self, value):
        self.bodies[0] = value


@pytest.fixture
def space():
    ds.init(default_fp=ds.f64)
    return Space()


LOST = {
    "a number is added to the loss": lambda s: (s.squares(), s.put(s.loss[None] + 1.0)),
    "an element": lambda s: s.put(s.x[0]),
    "arithmetic from the left": lambda s: s.put(2 * s.x[0]),
    "arithmetic from the right": lambda s: s.put(s.x[0] ** 2 - 1),
    "signs": lambda s: s.put(-abs(s.x[0])),
    "two elements": lambda s: s.put(s.x[0] * s.x[1]),
    "the sum of a list": lambda s: s.put(sum([s.x[0], s.x[1]])),
    "a number of NumPy": lambda s: s.put(np.float64(2) * s.x[0]),
    "a number of NumPy in f32": lambda s: s.put(np.float32(2) * s.x[0]),
    "a copy": lambda s: s.put(copy.deepcopy([s.x[0]])[0]),
    "a copy of a vector": lambda s: s.put_w(copy.deepcopy(2.0 * s.v[0])),
    "an elementary function": lambda s: s.put(ds.sin(s.x[0])),
    "beside a number of an earlier tape": lambda s: s.put(ds.max(s.old, s.x[0])),
    "behind a number of an earlier tape": lambda s: s.put_w([s.old, s.x[0]]),
    "with a vector of an earlier tape": lambda s: s.put_w(s.old_vector + s.v[0]),
    "an argument": lambda s: s.scaled(s.x[0]),
    "an argument, computed": lambda s: s.scaled(1 / s.x[0]),
    "a vector": lambda s: s.put_w(s.v[0]),
    "arithmetic on a vector": lambda s: s.put_w(2.0 * s.v[0] + 1),
    "a method of a vector": lambda s: s.put(s.v[0].norm()),
    "a component": lambda s: s.put(s.v[0].x),
    "an element of a vector": lambda s: s.put(s.v[0][1]),
    "a list": lambda s: s.put_w([s.v[0].x, 1.0]),
    "a vector of numbers": lambda s: s.put_w(ds.Vector([s.x[0], 1.0])),
    "a loop over a vector": lambda s: s.put(sum(s.v[1])),
    "a choice": lambda s: s.put(ds.select(s.x[0] > 0, s.x[1], 0.0)),
    "a function of a vector": lambda s: s.put_w(ds.sin(s.v[0])),
    "the larger of a vector and a number": lambda s: s.put_w(ds.max(0.5, s.v[0])),
    "columns": lambda s: s.put(ds.Matrix.cols([s.v[0], s.v[1]]).determinant()),
    "a diagonal": lambda s: s.put(ds.Matrix.diag(2, s.x[0]).trace()),
    "a vector, filled": lambda s: s.put_w(filled(s.x[0])),
    "a vector and a list": lambda s: s.put_w(ds.Vector([1.0, 2.0]) + [s.x[0], 1.0]),
    "a struct": lambda s: s.put_body(Body(s.x[0], [1.0, 1.0])),
    "a vector in a struct": lambda s: s.put_body(Body(1.0, [s.x[0], 1.0])),
    "a member": lambda s: s.put_body(member(s.x[0])),
    "a template argument": lambda s: s.times(s.x[0]),
    "a list as a template argument": lambda s: s.first([s.x[0] * 2]),
    "a vector times a number": lambda s: s.put_w(ds.Vector([1.0, 2.0]) * s.x[0]),
    "a vector argument": lambda s: s.along(s.v[0], 1.0),
    "a list argument": lambda s: s.along([s.x[0], 1.0], 1.0),
    "a number beside a vector": lambda s: s.along([1.0, 1.0], s.x[0]),
    "fill": lambda s: (s.w.fill(s.x[0]), s.norms()),
    "with a returned value": lambda s: s.put(s.twice() * (s.x[1] + 1)),
    "before a returned value": lambda s: s.put(2 * s.x[1] * s.twice()),
    "a component with a returned value": lambda s: s.put(s.twice() * s.v[0].x),
}


@pytest.mark.parametrize("name", LOST)
def test_what_would_be_lost_is_refused(space, name):
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape(space.loss):
        LOST[name](space)


KEPT = {
    "the element itself with a returned value": (
        lambda s: s.put(s.twice() * s.x[1]),
        [2 * X[1], 2 * X[0], 0],
    ),
    "a constant": (lambda s: s.scaled(ds.stop_grad(s.x[0])), [1, 1, 1]),
    "a plain float": (lambda s: s.scaled(float(s.x[0])), [1, 1, 1]),
    "a constant vector": (lambda s: s.along(ds.stop_grad(s.v[1]), 2.0), [6, 0, 0]),
    "a constant list": (lambda s: s.along(ds.stop_grad([s.x[2], 1.0]), 2.0), [6, 0, 0]),
    "of a field without gradient": (lambda s: s.scaled(s.bare[0] + 2), [2, 2, 2]),
    "looked at": (lambda s: (s.squares(), look(s)), 2 * X),
    "in no_grad": (lambda s: (s.squares(), detached(s)), 2 * X),
    "a record": (lambda s: (s.squares(), record(s)), 2 * X),
    "a whole number": (lambda s: s.scaled(int(s.x[2])), [3, 3, 3]),
}


def look(s):
    assert s.x[0] < 2 * s.x[1]
    assert f"{s.x[2] * 2:.1f} {s.v[0] * 2}" == "6.0 [2.0, 4.0]"
    assert (np.arange(2) * s.x[1]).tolist() == (s.x[1] * np.arange(2)).tolist() == [0, 2]
    assert (math.sqrt(s.x[0] * 4), round(s.x[1])) == (2, 2)
    assert type(statistics.mean([s.x[0], s.x[1] * 2])) is float
    assert pickle.loads(pickle.dumps((s.x[0], s.x[1] * 2))) == (1, 4)
    assert (pickle.loads(pickle.dumps(s.v[0] * 2)) == s.v[0] * 2).to_numpy().all()
    assert (s.x[0] // 2, 7 % s.x[1], 2 ** s.x[2]) == (0, 1, 8)


def detached(s):
    with ds.ad.no_grad():
        s.w[0] = 2 * s.v[0] * s.x[0]
        s.scaled(s.x[0])


def record(s):
    s.bare[0] = s.loss[None] * 2


@pytest.mark.parametrize("name", KEPT)
def test_what_is_right_is_allowed(space, name):
    program, expected = KEPT[name]
    with ds.Tape(space.loss):
        program(space)
    np.testing.assert_allclose(space.x.grad.to_numpy(), expected)


@pytest.mark.parametrize("what", ["a property", "a number", "a vector"])
def test_compiled_into_a_kernel(space, what):
    x, v, loss = space.x, space.v, space.loss

    class Spring:
        @property
        def stiffness(self):
            return 2 * x[0]

    spring = Spring()

    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape(loss):
        number, vector = 2 * x[0], 2 * v[0]

        @ds.kernel
        def one():
            loss[None] += spring.stiffness

        @ds.kernel
        def two():
            loss[None] += number

        @ds.kernel
        def three():
            loss[None] += vector.sum()

        {"a property": one, "a number": two, "a vector": three}[what]()


@pytest.mark.parametrize("how", ["an element", "fill"])
def test_through_a_field_without_gradient(space, how):
    """It may keep a record; but what is computed from the record lacks a part of its gradient."""

    def program():
        if how == "fill":
            space.bare.fill(2 * space.x[0])
        else:
            space.bare[1] = 2 * space.x[0]

    @ds.kernel
    def read():
        space.loss[None] += space.bare[1]

    with (
        pytest.raises(MissingGradientError, match="has no gradient and is between"),
        ds.Tape(space.loss),
    ):
        program()
        read()
    with ds.Tape(space.loss):
        program()
        space.bare.fill(1.0)
        read()
        space.squares()
    np.testing.assert_allclose(space.x.grad.to_numpy(), 2 * X)


def test_after_the_tape_it_is_a_number(space):
    kept = []
    with ds.Tape(space.loss):
        space.squares()
        kept += [space.x[0], space.v[0]]
    with ds.Tape(space.loss):
        space.scaled(2 * kept[0])
        space.put_w(kept[1])
    assert type(2 * kept[0]) is float
    assert space.loss[None] == 2 * X.sum() + (V[0] ** 2).sum()


def test_functions_with_a_gradient_of_their_own_may_compute(space):
    x, loss = space.x, space.loss

    @ds.ad.grad_replaced
    def cube():
        loss[None] = x[0] ** 3

    @ds.ad.grad_for(cube)
    def cube_grad():
        x.grad[0] += 3 * x[0] ** 2 * loss.grad[None]

    x[0] = 2.0
    with ds.Tape(loss):
        cube()
    assert x.grad[0] == 12.0

    def step(t):
        cube()

    with ds.Tape(loss):
        ds.ad.checkpoint(step, 1, state=[x])
    assert x.grad[0] == 12.0


def test_a_step_of_a_rollout(space):
    def step(t):
        space.scaled(2 * space.x[0])

    with pytest.raises(AutodiffError, match="that Python took from x"), ds.Tape(space.loss):
        ds.ad.checkpoint(step, 2, state=[space.x])


def test_a_returned_value_as_a_constant(space):
    """d(2 x0 stop(2 x0)) / d x0."""
    with ds.Tape(space.loss):
        r = space.twice()
        space.loss[None] = ds.stop_grad(r) * r
    assert space.x.grad.to_numpy().tolist() == [4.0, 0.0, 0.0]


@pytest.mark.parametrize("how", ["its own", "another's", "swapped"])
def test_gradients_to_start_from_that_are_gradients(how):
    """What y.grad holds when backward is called counts, though y.grad is cleared on the way."""
    ds.init(default_fp=ds.f64)
    a, b, y, z = (field(2) for _ in range(4))
    a.from_numpy(np.array([1.0, 2.0]))
    b.from_numpy(np.array([3.0, 4.0]))

    @ds.kernel
    def products():
        for i in a:
            y[i] = a[i] ** 2
            z[i] = 5 * b[i]

    tape = ds.Tape()
    with tape:
        products()
    y.grad.from_numpy(np.array([1.0, 10.0]))
    z.grad.from_numpy(np.array([100.0, 1000.0]))
    seeds, grad_a, grad_b = {
        "its own": ({y: y.grad}, [2, 40], [0, 0]),
        "another's": ({z: y.grad}, [0, 0], [5, 50]),
        "swapped": ({y: z.grad, z: y.grad}, [200, 4000], [5, 50]),
    }[how]
    tape.backward(grads=seeds)
    assert a.grad.to_numpy().tolist() == grad_a
    assert b.grad.to_numpy().tolist() == grad_b


def test_two_tapes_in_a_chain():
    ds.init(default_fp=ds.f64)
    x, y, loss = field(3), field(3), field()
    x.from_numpy(X)

    @ds.kernel
    def squares():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def cubes():
        for i in y:
            loss[None] += y[i] ** 3

    first, second = ds.Tape(), ds.Tape()
    with first:
        squares()
    with second:
        cubes()
    second.backward(loss)
    first.backward(grads={y: y.grad})
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * X**5)


@pytest.mark.parametrize(
    "kind", ["a number", "a list", "a vector", "a dictionary", "a set", "a struct", "an attribute"]
)
def test_compiled_in_before_with_the_same_value(space, kind):
    """A first run without a tape, to warm up, makes no constant of it."""
    x, v, loss = space.x, space.v, space.loss
    one_number = ds.types.struct(q=ds.f64)
    read = {
        "a number": lambda: 2 * x[0],
        "a list": lambda: [2 * x[0]],
        "a vector": lambda: 2 * v[0],
        "a dictionary": lambda: {"q": 2 * x[0]},
        "a set": lambda: {2 * x[0]},
        "a struct": lambda: one_number(q=2 * x[0]),
        "an attribute": lambda: types.SimpleNamespace(q=2 * x[0]),
    }[kind]
    made = read()

    @ds.func
    def factor():
        number = 0.0
        if ds.static(kind == "a number"):
            number = made
        elif ds.static(kind in ("a list", "a vector")):
            number = made[0]
        elif ds.static(kind == "a dictionary"):
            number = made["q"]
        elif ds.static(kind == "a set"):
            for q in ds.static(made):
                number = q
        else:
            number = made.q
        return number

    @ds.kernel
    def run():
        loss[None] += factor() * x[1]

    run()
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape(loss):
        made = read()
        run()


def test_a_history_of_numbers_keeps_nothing_alive(space):
    history, tapes = [], []
    extra = field(3)
    for _ in range(2):
        with ds.Tape(space.loss) as tape:
            space.squares()
            history += [space.loss[None], space.loss[None] / 2, extra[0], 2 * space.v[0]]
        tapes.append(weakref.ref(tape))
        del tape
    was = weakref.ref(extra)
    del extra
    gc.collect()
    assert [t() for t in tapes] == [None, None]
    assert was() is None
    assert history[:2] == [14.0, 7.0]


def test_an_element_of_a_field_that_is_gone(space):
    """Nobody can ask for its gradient; the others are right."""
    with ds.Tape(space.loss):
        other = field(2)
        other[0] = 5.0
        number = other[0]
        del other
        gc.collect()
        space.put(space.twice() * number)
    np.testing.assert_allclose(space.x.grad.to_numpy(), [10, 0, 0])


def test_arrays_that_are_compiled_in_are_not_searched_where_nothing_records(space, monkeypatch):
    """No number has a derivative there."""
    loss, numbers, searched = space.loss, np.array([1.0, 2.0]), []

    @ds.kernel
    def run():
        loss[None] += numbers[0] * numbers[1]

    run()
    monkeypatch.setattr("diffsim.runtime.kernels.captures.source_of", searched.append)
    run()
    assert not searched
    with ds.Tape():
        run()
    assert len(searched) == 1
