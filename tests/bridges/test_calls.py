"""Calls that another library differentiates, with NumPy in its place: in any order, with any state."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.bridges.call import RecordedCall
from diffsim.bridges.function import FieldFunction, Given, set_values, values_of
from tests.support.gradients import central, numbers

N = 3


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


@pytest.fixture
def swing(_f64):
    return Swing()


class Swing:
    """A step in place: the speed, and with it the place, depend on what was there, and on a push."""

    def __init__(self):
        self.x, self.v = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
        self.push = ds.field(ds.f64, shape=N)
        self.rate = ds.field(ds.f64, shape=())
        self.rate[None] = 0.7

    @ds.kernel
    def step(self, dt: ds.f64):
        for i in self.x:
            self.v[i] += dt * (self.push[i] - self.rate[None] * ds.sin(self.x[i]))
            self.x[i] += dt * self.v[i] * self.v[i]


def by_hand(x, v, push, dt=0.3, rate=0.7):
    v = v + dt * (push - rate * np.sin(x))
    return x + dt * v * v, v


def call(function, *arrays, args=(), named=None):
    """Call a wrapped function; returns its record and the outputs."""
    given = {k: Given(a, a.shape, a.dtype, str(a.dtype)) for k, a in enumerate(arrays)}
    prepared = function.prepare((*arrays, *args), named or {}, given)
    for f, a in zip(prepared.fields, arrays, strict=True):
        set_values(f, a)
    made = RecordedCall(function, prepared)
    return made, [values_of(f) for f in made.outputs]


def pull(made, *seeds):
    """The gradients of the inputs of a call for gradients of its outputs."""
    found = made.pull_back(dict(zip(made.outputs, seeds, strict=True)), made.inputs)
    return [found[f] for f in made.inputs]


def test_calls_are_reversed_in_any_order_and_as_often_as_wanted(swing):
    function = FieldFunction(swing.step, [swing.x, swing.v, swing.push], [swing.x, swing.v])
    starts = [[numbers(N, seed=3 * k + j) for j in range(3)] for k in range(4)]
    calls = [call(function, *start, args=(0.3,)) for start in starts]
    seeds = numbers(N, seed=90), numbers(N, seed=91)
    ends = values_of(swing.x), values_of(swing.v), swing.x.versions.latest

    for k in (1, 3, 0, 1, 2):
        made, outputs = calls[k]
        assert np.allclose(outputs, by_hand(*starts[k]), rtol=1e-14)
        found = pull(made, *seeds)
        for j in range(3):

            def value(moved, j=j, k=k):
                arrays = [moved if i == j else a for i, a in enumerate(starts[k])]
                return sum((o * s).sum() for o, s in zip(by_hand(*arrays), seeds, strict=True))

            assert np.allclose(found[j], central(value, starts[k][j]), rtol=1e-8)
    # The program finds its fields as it left them.
    assert (values_of(swing.x) == ends[0]).all()
    assert (values_of(swing.v) == ends[1]).all()
    assert swing.x.versions.latest == ends[2]


def test_what_else_a_call_reads_is_that_of_the_call(swing):
    """Parameters that Python sets between two calls, a field of which the function is not told."""
    function = FieldFunction(swing.step, [swing.x, swing.v, swing.push], [swing.x, swing.v])
    x, v, push = (numbers(N, seed=k) for k in range(3))
    found = []
    calls = []
    for rate in (0.2, 0.9):
        swing.rate[None] = rate
        calls.append(call(function, x, v, push, args=(0.3,))[0])
    swing.rate.fill(100.0)
    for made, rate in zip(calls, (0.2, 0.9), strict=True):
        found = pull(made, np.ones(N), np.zeros(N))[0]
        expected = central(lambda a, rate=rate: by_hand(a, v, push, rate=rate)[0].sum(), x)
        assert np.allclose(found, expected, rtol=1e-8)
    assert swing.rate[None] == 100.0


def test_gradients_of_the_program_stay_as_they_are(swing):
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    y = ds.field(ds.f64, shape=N, needs_grad=True)

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    x.grad.fill(5.0)
    y.grad.fill(7.0)
    made, _ = call(FieldFunction(square, [x], [y]), numbers(N))
    assert np.allclose(pull(made, np.ones(N))[0], 2 * numbers(N))
    assert (x.grad.to_numpy() == 5.0).all()
    assert (y.grad.to_numpy() == 7.0).all()


def test_copies_of_what_stays_the_same_are_shared(swing):
    function = FieldFunction(swing.step, [swing.x, swing.v, swing.push], [swing.x, swing.v])
    start = [numbers(N, seed=k) for k in range(3)]
    calls = [call(function, *start, args=(0.3,))[0] for _ in range(2)]
    copies = [{kept.saved.box[0]: kept for kept in made._kept} for made in calls]
    assert copies[0][swing.rate] is copies[1][swing.rate]
    assert copies[0][swing.v] is not copies[1][swing.v]


def test_a_time_axis_is_kept_by_its_rows():
    steps = 50
    x = ds.field(ds.f64, shape=(steps + 1, N), needs_grad=True)
    start, end = ds.field(ds.f64, shape=N), ds.field(ds.f64, shape=N)

    @ds.kernel
    def begin(t: ds.i32):
        for i in start:
            x[t, i] = start[i]

    @ds.kernel
    def step(t: ds.i32):
        for i in start:
            x[t + 1, i] = x[t, i] + 0.3 * ds.sin(x[t, i])

    @ds.kernel
    def finish(t: ds.i32):
        for i in end:
            end[i] = x[t, i]

    def one(t):
        begin(t)
        step(t)
        finish(t + 1)

    function = FieldFunction(one, [start], [end])
    a = numbers(N)
    made, outputs = call(function, a, args=(7,))
    assert np.allclose(outputs, a + 0.3 * np.sin(a))
    rows = [kept.saved.box[1] for kept in made._kept if kept.saved.box[0] is x]
    assert rows == [7]
    call(function, 2 * a, args=(7,))
    assert np.allclose(pull(made, np.ones(N))[0], 1 + 0.3 * np.cos(a))
    assert np.allclose(x.to_numpy()[7], 2 * a)


# --- state that goes from call to call ------------------------------------------------------------


def test_a_derivative_through_state_that_is_no_input_is_refused(swing):
    function = FieldFunction(swing.step, [swing.push], [swing.x])
    first, _ = call(function, numbers(N), args=(0.3,))
    second, _ = call(function, numbers(N, seed=1), args=(0.3,))
    found = pull(first, np.ones(N))[0]  # nothing came before the first one
    assert np.allclose(found, 2 * 0.3**2 * 0.3 * numbers(N), rtol=1e-12)
    with pytest.raises(ds.AutodiffError, match="depends on what step left in v in an earlier call"):
        pull(second, np.ones(N))


@pytest.mark.parametrize("how", ["fill", "mark", "plain"])
def test_state_that_is_set_between_the_calls_is_constant(swing, how):
    function = FieldFunction(swing.step, [swing.push], [swing.x])
    call(function, numbers(N), args=(0.3,))
    if how == "plain":  # a call without a gradient
        set_values(swing.push, numbers(N, seed=7))
        swing.step(0.1)
    for f in (swing.x, swing.v):
        if how == "fill":
            f.fill(0.5)
        elif how == "mark":
            f.mark_written()
    x, v = values_of(swing.x), values_of(swing.v)
    made, _ = call(function, numbers(N, seed=1), args=(0.3,))
    expected = central(lambda push: by_hand(x, v, push)[0].sum(), numbers(N, seed=1))
    assert np.allclose(pull(made, np.ones(N))[0], expected, rtol=1e-8)


def test_work_space_is_no_state():
    """What a function clears, adds to and reads has no derivative by what it held before."""
    x, y, work = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3))

    @ds.kernel
    def clear():
        for i in work:
            work[i] = 0.0

    @ds.kernel
    def collect():
        for i in x:
            work[(i + 1) % N] += x[i] ** 3

    @ds.kernel
    def result():
        for i in y:
            y[i] = work[i] ** 2

    def run():
        clear()
        collect()
        result()

    function = FieldFunction(run, [x], [y])
    calls = [call(function, numbers(N, seed=k))[0] for k in range(3)]
    for k in (2, 0):
        found = pull(calls[k], np.ones(N))[0]
        assert np.allclose(found, 6 * numbers(N, seed=k) ** 5, rtol=1e-12)


def test_an_output_that_a_call_does_not_write_is_no_constant():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))

    @ds.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    function = FieldFunction(lambda runs: square() if runs else None, [x], [y])
    call(function, numbers(N), args=(True,))
    made, _ = call(function, numbers(N), args=(False,))
    with pytest.raises(ds.AutodiffError, match="left in y in an earlier call"):
        pull(made, np.ones(N))


# --- functions of arrays, random numbers, rollouts, gradients by hand -----------------------------


@ds.kernel
def _outer(a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.types.ndarray()):
    for i, j in c:
        c[i, j] = ds.sin(a[i]) * b[j]


def outer(a, b, scale=1.0):
    c = ds.ndarray(ds.f64, (a.shape[0], b.shape[0]), needs_grad=True)
    _outer(a, b, c)
    return c


def test_arrays_are_made_for_each_call():
    function = FieldFunction(outer, None, None)
    a, b = numbers(2), numbers(4)
    first, outputs = call(function, a, b)
    assert np.allclose(outputs[0], np.outer(np.sin(a), b))
    call(function, b, a, named={"scale": 2.0})
    assert not first._kept  # nobody else has its arrays
    seed = numbers(2, 4)
    found = pull(first, seed)
    assert np.allclose(found[0], np.cos(a) * (seed @ b))
    assert np.allclose(found[1], np.sin(a) @ seed)


def test_arrays_of_vectors():
    vec3 = ds.types.vector(3, ds.f64)

    @ds.kernel
    def lengths(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            b[i] = a[i].norm()

    def run(a):
        b = ds.ndarray(ds.f64, a.shape, needs_grad=True)
        lengths(a, b)
        return b

    a = numbers(4, 3)
    made, outputs = call(FieldFunction(run, [vec3], None), a)
    norms = np.linalg.norm(a, axis=1)
    assert np.allclose(outputs[0], norms)
    assert np.allclose(pull(made, np.ones(4))[0], a / norms[:, None])


def test_random_numbers_are_those_of_the_call():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))

    @ds.kernel
    def noisy():
        for i in x:
            y[i] = x[i] * ds.random(ds.f64)

    function = FieldFunction(noisy, [x], [y])
    a = numbers(N, lo=1.0, hi=2.0)
    calls = [call(function, a) for _ in range(3)]
    assert not np.allclose(calls[0][1], calls[1][1])
    for made, outputs in (calls[1], calls[0]):
        assert np.allclose(pull(made, np.ones(N))[0], outputs[0] / a, rtol=1e-13)


def test_rollouts_and_gradients_by_hand():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))

    @ds.kernel
    def step():
        for i in x:
            x[i] += 0.1 * ds.sin(x[i])

    @ds.kernel
    def double():
        for i in x:
            y[i] = 2.0 * x[i]

    @ds.ad.grad_replaced
    def twice():
        double()

    @ds.ad.grad_for(twice)
    def twice_grad():
        x.grad.from_numpy(x.grad.to_numpy() + 2.0 * y.grad.to_numpy())
        y.grad.fill(0.0)

    def run():
        ds.ad.checkpoint(lambda t: step(), 9, state=[x], snapshots=3)
        twice()

    def numpy_run(a):
        for _ in range(9):
            a = a + 0.1 * np.sin(a)
        return 2.0 * a

    function = FieldFunction(run, [x], [y])
    calls = [call(function, numbers(N, seed=k))[0] for k in range(2)]
    for k in (0, 1, 0):
        expected = central(lambda a: numpy_run(a).sum(), numbers(N, seed=k))
        assert np.allclose(pull(calls[k], np.ones(N))[0], expected, rtol=1e-8)


# --- refused --------------------------------------------------------------------------------------


def test_a_missing_gradient_is_refused_at_the_call():
    x, between, y = (ds.field(ds.f64, shape=N) for _ in range(3))

    @ds.kernel
    def first():
        for i in x:
            between[i] = x[i] ** 2

    @ds.kernel
    def second():
        for i in x:
            y[i] = between[i]

    def run():
        first()
        second()

    function = FieldFunction(run, [x], [y])
    with pytest.raises(ds.MissingGradientError, match="between"):
        call(function, numbers(N))
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted")
    made, _ = call(function, numbers(N))
    assert np.allclose(pull(made, np.ones(N))[0], 2 * numbers(N))


def test_a_call_from_before_init_is_refused(swing):
    function = FieldFunction(swing.step, [swing.x, swing.v, swing.push], [swing.x, swing.v])
    made, _ = call(function, *(numbers(N, seed=k) for k in range(3)), args=(0.3,))
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    with pytest.raises(ds.AutodiffError, match=r"ds.init\(\) or ds.reset\(\) was called since"):
        pull(made, np.ones(N), np.ones(N))


def test_a_call_on_a_tape_is_refused(swing):
    function = FieldFunction(swing.step, [swing.push], [swing.x])
    with ds.Tape(), pytest.raises(ds.AutodiffError, match="a tape is recording"):
        call(function, numbers(N), args=(0.3,))
    with (
        ds.ad.FwdMode(param=swing.rate),
        pytest.raises(ds.AutodiffError, match="forward mode is on"),
    ):
        call(function, numbers(N), args=(0.3,))


def test_a_call_that_fails_leaves_no_record(swing):
    def run():
        swing.step(0.3)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call(FieldFunction(run, [swing.push], [swing.x]), numbers(N))
    # Nor does it count as a differentiable one.
    made, _ = call(FieldFunction(swing.step, [swing.push], [swing.x]), numbers(N), args=(0.3,))
    pull(made, np.ones(N))
