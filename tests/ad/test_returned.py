"""Gradients through what kernels return, and through arithmetic on it in Python."""

import copy
import math
import pickle

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError, GlobalDataAccessError, MissingGradientError
from tests.support.gradients import check, field, numbers
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code")

vec3 = ds.types.vector(3, ds.f64)
mat2 = ds.types.matrix(2, 2, ds.f64)


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)


@pytest.fixture
def space():
    """Fields and kernels that return something."""
    x, y, loss, v = field(4), field(4), field(), field(n=3)
    x.from_numpy(numbers(4) + 0.2)
    v.from_numpy(numbers(3))

    @ds.kernel
    def total() -> ds.f64:
        s = 0.0
        for i in x:
            s += x[i] ** 2
        return s

    @ds.kernel
    def at(i: ds.i32) -> ds.f64:
        return ds.sin(x[i])

    @ds.kernel
    def vector() -> vec3:
        return ds.Vector([x[0], x[1] ** 2, x[2] * x[3]])

    @ds.kernel
    def matrix() -> mat2:
        return ds.Matrix([[x[0], x[1] * x[2]], [2.0, x[3]]])

    @ds.kernel
    def scale(a: ds.f64):
        for i in x:
            loss[None] += ds.cos(a) * x[i]

    @ds.kernel
    def use(a: vec3, m: mat2):
        loss[None] += a.norm_sqr() + (m @ m).trace()

    class Space:
        pass

    made = Space()
    for name, thing in locals().copy().items():
        setattr(made, name, thing)
    return made


PROGRAMS = {
    "stored": lambda s: s.loss.__setitem__(None, s.total()),
    "added": lambda s: [add(s.loss, None, s.total()) for _ in range(3)],
    "added after a kernel": lambda s: (
        s.scale(0.3),
        add(s.loss, None, 2 * s.at(1) + 1),
        s.scale(1),
    ),
    "arithmetic": lambda s: add(
        s.loss,
        None,
        (s.total() - 3 * s.at(0)) / (2 + s.at(1)) ** 2 + 1 / s.total() - (-s.at(2)) ** 2,
    ),
    "functions": lambda s: add(
        s.loss, None, ds.sin(s.total()) * ds.exp(s.at(0)) + ds.sqrt(s.total()) + abs(s.at(3))
    ),
    "powers": lambda s: add(s.loss, None, s.total() ** s.at(1) + 2 ** s.at(0) + s.total() ** 3),
    "choices": lambda s: add(s.loss, None, max(s.at(0), s.at(1)) * ds.min(s.at(2), s.at(3))),
    "an argument": lambda s: (s.scale(s.total()), s.scale(2 * s.at(1) - 1), s.scale(a=s.at(2))),
    "the same value often": lambda s: [
        (s.scale(r), add(s.loss, None, r * r)) for r in [s.total()] for _ in range(3)
    ],
    "vectors": lambda s: s.use(s.vector(), s.matrix()),
    "vectors and numbers": lambda s: s.use(
        2 * s.vector() * s.at(0) + ds.Vector([1.0, 2.0, 3.0]) - s.vector() / s.total(),
        s.matrix() * s.matrix(),
    ),
    "components": lambda s: add(s.loss, None, s.vector()[2] * s.matrix()[0, 1] + s.vector()[0]),
    "an element": lambda s: (
        put(s.y, 2, s.at(1)),
        put(s.y, 3, s.at(2) * s.y[2]),
        add(s.loss, None, s.at(0) * s.y[3]),
    ),
    "a whole vector": lambda s: (
        put(s.v, None, s.vector()),
        s.use(s.vector(), s.matrix()),
        read(s),
    ),
    "one number for all components": lambda s: (put(s.v, None, s.at(2)), read(s)),
    "stored over": lambda s: (
        s.loss.__setitem__(None, s.total()),
        s.loss.__setitem__(None, s.at(1)),
        add(s.loss, None, s.at(2)),
    ),
}


def add(f, index, r):
    f[index] += r


def put(f, index, r):
    f[index] = r


def read(s):
    @ds.kernel
    def norm() -> ds.f64:
        return s.v[None].norm_sqr() * s.v[None][1]

    s.loss[None] += norm()


@pytest.mark.parametrize("in_place", ["refuse", "save"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_against_central_differences(space, name, in_place):
    x, loss, program = space.x, space.loss, PROGRAMS[name]
    start = x.to_numpy()
    with ds.Tape(loss, in_place=in_place):
        program(space)
    found = x.grad.to_numpy()
    for i in range(4):
        ends = []
        for h in (1e-6, -1e-6):
            moved = start.copy()
            moved[i] += h
            x.from_numpy(moved)
            loss[None] = 0
            program(space)
            ends.append(loss[None])
        want = (ends[0] - ends[1]) / 2e-6
        assert found[i] == pytest.approx(want, rel=1e-6, abs=1e-8)
    assert np.any(found)


@pytest.mark.parametrize("seed", range(15))
def test_random_arithmetic(space, seed):
    rng = np.random.default_rng(seed)
    start = space.x.to_numpy()

    def run():
        pool = [space.total(), *(space.at(k) for k in range(4))]
        draw = np.random.default_rng(seed + 100)
        for _ in range(12):
            a, b = (pool[k] for k in draw.integers(0, len(pool), 2))
            made = [
                lambda a, b: a + b,
                lambda a, b: a - 2 * b,
                lambda a, b: a * b * 0.5,
                lambda a, b: a / (b * b + 1.5),
                lambda a, b: ds.tanh(a) * 0.7,
                lambda a, b: ds.max(a, b) if a > 0.3 else -b,
                lambda a, b: ds.atan2(a, 1.5 + abs(b)),
                lambda a, b: 0.1 + (a * a + 0.2) ** 0.5,
            ][draw.integers(8)](a, b)
            pool.append(made)
        space.loss[None] += sum(pool[5:])
        space.scale(pool[-1])

    with ds.Tape(space.loss):
        run()
    found = space.x.grad.to_numpy()
    direction = rng.normal(size=4)
    ends = []
    for h in (1e-6, -1e-6):
        space.x.from_numpy(start + h * direction)
        space.loss[None] = 0
        run()
        ends.append(space.loss[None])
    assert found @ direction == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-6)


def test_a_value_as_the_loss(space):
    x = space.x.to_numpy()
    tape = ds.Tape()
    with tape:
        r = space.total()
        q = r * r + space.at(0)
    want = 4 * (x**2).sum() * x
    want[0] += np.cos(x[0])
    for k in (1, 2):
        tape.backward(q)
        np.testing.assert_allclose(space.x.grad.to_numpy(), k * want)
    tape.zero()
    tape.backward(r)
    np.testing.assert_allclose(space.x.grad.to_numpy(), 2 * x)


def test_kernel_grad(space):
    x = space.x.to_numpy()
    space.total()
    space.total.grad(returned=2.0)
    np.testing.assert_allclose(space.x.grad.to_numpy(), 4 * x)
    space.x.grad.fill(0)
    space.at(1)
    space.at.grad(1, returned=1)
    space.at.grad(i=1, returned=1)
    np.testing.assert_allclose(space.x.grad.to_numpy(), [0, 2 * np.cos(x[1]), 0, 0])
    space.x.grad.fill(0)
    space.vector()
    space.vector.grad(returned=[1.0, 2.0, 0.0])
    np.testing.assert_allclose(space.x.grad.to_numpy(), [1, 4 * x[1], 0, 0])
    for wrong in (None, [1.0, 2.0], 1.0, "a"):
        with pytest.raises(DiffsimError):
            space.vector.grad(returned=wrong)


def test_outside_of_a_tape_numbers_are_numbers(space):
    assert type(space.total()) is float
    assert isinstance(space.vector(), ds.Matrix)
    with ds.Tape(space.loss):
        with ds.ad.no_grad():
            assert type(space.total()) is float
        r, v = space.total(), space.vector()
        assert isinstance(r, ds.ad.Recorded)
        assert type(r.value) is float
        assert f"{r:.3f}" == f"{r.value:.3f}"
        assert r > 0
        assert r == r.value
        assert ds.stop_grad(r) == r.value
        space.loss[None] = ds.stop_grad(2 * r.value)
    assert not space.x.grad.to_numpy().any()
    assert float(r) == r.value
    assert type(r * 2) is float
    assert math.sin(r) == math.sin(r.value)
    assert np.asarray([r, r], float).sum() == 2 * r.value
    space.y[1] = r
    space.v[None] = v
    space.scale(r)
    assert space.y[1] == r.value
    assert (v + v)[0] == 2 * v[0]
    with pytest.raises(AutodiffError, match="plain float"), ds.Tape(space.loss):
        float(r)


def test_what_is_only_looked_at_needs_nothing(space):
    """A value that the loss does not depend on may be stale."""
    with ds.Tape(space.loss):
        space.total()
        space.x.fill(0.5)
        space.scale(1.0)
    np.testing.assert_allclose(space.x.grad.to_numpy(), 0)


def test_returns_and_stores_at_once():
    x, y, loss = field(3), field(3), field()
    x.from_numpy(numbers(3))

    @ds.kernel
    def both(scale: ds.f64) -> ds.f64:
        s = 0.0
        for i in x:
            y[i] = x[i] ** 3
            s += scale * x[i] ** 2
        return s * s

    @ds.kernel
    def end():
        for i in y:
            loss[None] += y[i]

    def program():
        r = both(0.7)
        end()
        loss[None] += r / 3

    check(program, loss, x)
    check(lambda: (both(0.7), end()), loss, x)


def test_branches_and_early_returns():
    x, loss = field(3), field()

    @ds.kernel
    def first(limit: ds.f64) -> ds.f64:
        r = 0.0
        if x[0] > limit:
            r = x[0] ** 2
        else:
            r = x[1] * x[2]
        return r

    def program():
        loss[None] += first(0.0) * 2

    for start in ([0.5, 0.2, 0.3], [-0.5, 0.2, 0.3]):
        x.from_numpy(np.array(start))
        check(program, loss, x)


@pytest.mark.parametrize("how", ["tape", "checkpoint"])
def test_time_steps(how):
    """A step that returns something, which the next launch of the same step uses."""
    q, work, loss = field(3), field(), field()
    start = numbers(3)

    @ds.kernel
    def energy() -> ds.f64:
        e = 0.0
        for i in q:
            e += q[i] ** 2
        return e

    @ds.kernel
    def move(e: ds.f64):
        for i in q:
            q[i] = q[i] + 0.1 * ds.sin(e * q[i])

    def step(t):
        e = energy()
        move(0.5 * e)
        work[None] += e * (t + 1)

    def run(values):
        q.from_numpy(values)
        work[None] = 0
        with ds.ad.no_grad():
            for t in range(7):
                step(t)
        return work[None]

    q.from_numpy(start)
    with ds.Tape(work, in_place="save"):
        if how == "tape":
            for t in range(7):
                step(t)
        else:
            ds.ad.checkpoint(step, 7, state=[q, work], snapshots=2)
    found = q.grad.to_numpy()
    for i in range(3):
        ends = []
        for h in (1e-6, -1e-6):
            moved = start.copy()
            moved[i] += h
            ends.append(run(moved))
        assert found[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_a_value_of_another_step_or_tape(space):
    kept = []

    def step(t):
        kept.append(space.total())
        if t:
            space.loss[None] += kept[0]

    with pytest.raises(AutodiffError, match="belongs to another tape"), ds.Tape(space.loss):
        ds.ad.checkpoint(step, 3, state=[space.x, space.loss])
    tape = ds.Tape(space.loss)
    with tape:
        r = space.total()
        ds.stop_grad(space.loss)
    with pytest.raises(AutodiffError, match="belongs to another tape"), tape:
        space.loss[None] += r
    with pytest.raises(AutodiffError, match="belongs to another tape"), ds.Tape():
        space.scale(r)
    with pytest.raises(AutodiffError, match="another tape"):
        ds.Tape().backward(r)


def test_a_function_with_a_gradient_of_its_own(space):
    @ds.ad.grad_replaced
    def f(a):
        return space.total() * 2 if a is None else float(a)

    @ds.ad.grad_for(f)
    def f_grad(a):
        pass

    with pytest.raises(AutodiffError, match="belongs to another tape"), ds.Tape(space.loss):
        space.loss[None] += f(None)
    with pytest.raises(AutodiffError, match="plain float"), ds.Tape(space.loss):
        float(f(None))
    with pytest.raises(AutodiffError, match="plain float"), ds.Tape(space.loss):
        f(space.total())


LOST = {
    "float": lambda s, r: float(r),
    "math": lambda s, r: math.sin(r),
    "numpy": lambda s, r: np.sin(r),
    "numpy array": lambda s, r: s.y.from_numpy(np.array([r, r, r, r])),
    "a float array": lambda s, r: np.array([r], float),
    "a list as a vector": lambda s, r: s.use([r, 1.0, 2.0], [[1, 0], [0, 1]]),
    "a vector of it": lambda s, r: ds.Vector([r, 1.0]),
    "fill": lambda s, r: s.y.fill(r),
    "remainder": lambda s, r: r % 2,
    "whole number": lambda s, r: int(r),
    "index": lambda s, r: s.y[r],
    "an int argument": lambda s, r: s.at(r),
    "a comparison op": lambda s, r: ds.select(r > 1, 1.0, "a"),
    "a vector element read before": lambda s, r: s.v.__setitem__(None, s.v[None] + s.vector()),
    "a numpy number": lambda s, r: np.float64(r),
}


@pytest.mark.parametrize("name", LOST)
def test_nothing_is_lost_without_a_word(space, name):
    with pytest.raises((DiffsimError, TypeError, ValueError)), ds.Tape(space.loss):
        LOST[name](space, space.total())


def test_numpy_numbers_go_along(space):
    x = space.x.to_numpy()
    with ds.Tape(space.loss):
        space.loss[None] = np.float64(2) * space.total() + np.float32(1)
    np.testing.assert_allclose(space.x.grad.to_numpy(), 4 * x)


def test_compiled_in(space):
    """A value cannot slip into a kernel as a constant."""
    loss = space.loss
    globals_ = {"ds": ds, "loss": loss}
    with pytest.raises(DiffsimError), ds.Tape(loss):
        globals_["r"] = space.total()
        make("@ds.kernel\ndef k():\n    loss[None] += r\n", globals_)
        globals_["k"]()
    with pytest.raises(DiffsimError), ds.Tape(loss):
        make("@ds.kernel\ndef k(a: ds.template()):\n    loss[None] += a\n", globals_)
        globals_["k"](space.total())


def test_missing_gradients(space):
    bare, half = field(grad=False), field(4, grad=False)
    with pytest.raises(MissingGradientError, match="bare is given"), ds.Tape(space.loss):
        bare[None] = space.total()

    @ds.kernel
    def halve():
        for i in half:
            half[i] = 0.5 * space.x[i]

    @ds.kernel
    def first() -> ds.f64:
        return half[0]

    with pytest.raises(MissingGradientError, match="first reads it"), ds.Tape(space.loss):
        halve()
        space.loss[None] = first()
    with ds.Tape(space.loss):
        halve()
        with ds.ad.no_grad():
            space.loss[None] = first()


def test_an_element_that_changed_since(space):
    y, loss = space.y, space.loss
    with pytest.raises(GlobalDataAccessError, match="was read in Python"), ds.Tape(loss):
        a = y[0]
        y[0] = 2.0
        loss[None] += a * space.total()


def test_stale_values_are_refused(space):
    with pytest.raises(GlobalDataAccessError, match="needs x as it was"), ds.Tape(space.loss):
        space.loss[None] += space.total()
        space.x.fill(1)
    space.x.fill(3)
    with ds.Tape(space.loss, in_place="save"):
        space.loss[None] += space.total()
        space.x.fill(7)
    np.testing.assert_allclose(space.x.grad.to_numpy(), 6)


def test_copies_are_the_value_itself(space):
    """Another object would have got a gradient that nobody hands on."""
    for way in (copy.copy, copy.deepcopy, lambda r: copy.deepcopy([r])[0]):
        with ds.Tape(space.loss):
            space.loss[None] = 3 * way(space.total())
        np.testing.assert_allclose(space.x.grad.to_numpy(), 6 * space.x.to_numpy())
    with ds.Tape():
        kept = [space.total(), space.vector()]
    number, vector = pickle.loads(pickle.dumps(kept))
    assert (number, vector.to_numpy().tolist()) == (kept[0], list(kept[1].array))


def test_integers_are_numbers():
    x, n = field(3), ds.field(ds.i32, ())

    @ds.kernel
    def count() -> ds.i32:
        n[None] += 1
        return n[None] + ds.cast(x[0], ds.i32)

    with ds.Tape():
        assert type(count()) is int


def test_f32():
    x, loss = (ds.field(ds.f32, s, needs_grad=True) for s in (3, ()))
    x.fill(0.1)

    @ds.kernel
    def total() -> ds.f32:
        s = ds.f32(0)
        for i in x:
            s += x[i] ** 2
        return s

    @ds.kernel
    def use(a: ds.f32):
        loss[None] += a * a

    with ds.Tape(loss):
        use(3 * total())
    np.testing.assert_allclose(x.grad.to_numpy(), 18 * 0.03 * 0.2, rtol=1e-5)
