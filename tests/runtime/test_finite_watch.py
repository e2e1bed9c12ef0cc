"""NaN and infinities in plain launches: `ds.init(debug=True)` names the operation that made one."""

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import nonfinite
from tests.support.source import line_of, make

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.fixture(autouse=True)
def debug(cpu, quick_code):
    ds.init(default_fp=ds.f64, debug=True)


def field(n, values=None, **options):
    made = ds.field(ds.f64, shape=n, **options)
    if values is not None:
        made.from_numpy(np.array(values, float))
    return made


def refused(launch, *texts):
    with pytest.raises(ds.KernelArithmeticError) as caught:
        launch()
    for text in texts:
        assert text in caught.value.message, caught.value.message
    return caught.value


def test_operands_loops_and_lines():
    x, y = field(5, [1, 1, 1, 1, 1]), field((3, 5))

    @ds.kernel
    def steps(row: ds.i32):
        for i in x:
            a = x[i]
            for k in range(7):
                if i == 3 and k >= 5:
                    a = a / (k - 5.0)
            y[row, i] = a

    error = refused(
        lambda: steps(2),
        "y[2, 3] became infinite in steps(2): 1.0 / 0.0 is inf, in the iteration i = 3, k = 5",
        "stored here:",
    )
    assert error.span.line == line_of(steps, "a = a /")
    assert "check_nan=False" in error.hint
    # What the launch has stored is there.
    assert y.to_numpy()[2].tolist() == [1, 1, 1, np.inf, 1]


@pytest.mark.parametrize(
    ("formula", "x", "text"),
    [
        ("ds.sqrt(x[i])", -4.0, "ds.sqrt(-4.0) is NaN"),
        ("ds.log(x[i])", 0.0, "ds.log(0.0) is -inf"),
        ("x[i] / x[i]", 0.0, "0.0 / 0.0 is NaN"),
        ("x[i] ** 0.5", -1.0, "-1.0 ** 0.5 is NaN"),
        ("ds.exp(x[i]) * 0.0", 800.0, "ds.exp(800.0) is inf"),
        ("1e200 * x[i] - 1e200 * x[i] * 2.0", 1e200, "1e+200 * 1e+200 is inf"),
        ("ds.cast(x[i], ds.f32)", 1e39, "cast(1e+39) is inf"),
        ("ds.Vector([1.0, x[i]]).normalized().x / (x[i] - 2.0)", 2.0, "/ 0.0 is inf"),
        ("1.0 / ds.Vector([x[i], 1.0]).sum()", -1.0, "1.0 / 0.0 is inf"),
        ("ds.acos(x[i])", 1.5, "ds.acos(1.5) is NaN"),
    ],
)
def test_operations(formula, x, text):
    space = {"ds": ds, "x": field(3, [0.5, x, 0.5]), "y": field(3)}
    make(f"@ds.kernel\ndef f():\n    for i in x:\n        y[i] = {formula}\n", space)
    refused(space["f"], "y[1] became", text, "in the iteration i = 1")


def test_meant_infinities_are_none():
    """Minima that start from infinity, distances, what a select or a minimum throws away."""
    n = 6
    near, x = field(n), field(n, [3, 1, 0, 1, 5, 9])
    least = field(())

    @ds.kernel
    def clear():
        least[None] = ds.math.inf
        for i in near:
            near[i] = ds.math.inf
        near[2] = 0.0

    @ds.kernel
    def relax():
        for i in range(1, n):
            near[i] = ds.min(near[i], near[i - 1] + 1.0)

    @ds.kernel
    def thrown_away():
        for i in x:
            inverse = 1.0 / x[i]
            ds.atomic_min(least[None], inverse)
            x[i] = ds.select(x[i] > 0, inverse, 0.0) + ds.max(ds.sqrt(-x[i] - 1.0), 0.0)

    clear()
    for _ in range(n):
        relax()
    thrown_away()
    assert near.to_numpy().tolist() == [np.inf, np.inf, 0, 1, 2, 3]
    assert least[None] == pytest.approx(1 / 9)
    assert x.to_numpy() == pytest.approx([1 / 3, 1, 0, 1, 1 / 5, 1 / 9])


def test_vectors_structs_and_other_memory():
    v = ds.Vector.field(3, ds.f64, shape=4)
    m = ds.Matrix.field(2, 2, ds.f32, shape=())
    array = np.array([4.0, -4.0])

    @ds.kernel
    def vectors():
        for i in v:
            v[i] = ds.Vector([1.0, 2.0 / (i - 1.0), 3.0])

    @ds.kernel
    def matrix(a: ds.f32):
        m[None][1, 0] = ds.log(a)

    @ds.kernel
    def roots(a: ds.types.ndarray()):
        for i in a:
            a[i] = ds.sqrt(a[i])

    @ds.kernel
    def mean(a: ds.types.ndarray()) -> ds.f64:
        total = 0.0
        for i in a:
            total += ds.log(a[i] - i)
        return total

    refused(vectors, "v[1].y became infinite in vectors(): 2.0 / 0.0 is inf")
    refused(lambda: matrix(-2.0), "m[None][1, 0] became NaN in matrix(-2.0): ds.log(-2.0) is NaN")
    refused(lambda: roots(array), "a[1] became NaN in roots(a): ds.sqrt(-4.0) is NaN")
    assert array[0] == 2.0
    refused(
        lambda: mean(np.array([3.0, 2.0, 2.0, 3.0, 1.0])),
        "its result became NaN in mean(a): ds.log(0.0) is -inf, in the iteration i = 2",
    )


def test_between_tasks_and_in_while_loops():
    x, y = field(4, [2, 2, 2, 2]), field(4)

    @ds.func
    def halved(a):
        while a > 1.0:
            a = ds.sqrt(a - 4.0)
        return a

    @ds.kernel
    def calls():
        for i in x:
            y[i] = halved(x[i])

    @ds.kernel
    def tasks():
        total = 0.0
        for i in x:
            total += x[i]
        mean = 1.0 / (total - 8.0)
        for i in x:
            y[i] = mean

    error = refused(calls, "ds.sqrt(-2.0) is NaN")
    assert "called from" in str(error)
    error = refused(tasks, "1.0 / 0.0 is inf", "became infinite in tasks()")
    assert error.span.line == line_of(tasks, "mean = ")


def test_adjoints():
    x, loss = field(3, [4, 0, 4], needs_grad=True), field((), needs_grad=True)

    @ds.kernel
    def f():
        for i in x:
            loss[None] += ds.max(-ds.log(x[i]), 0.0) + x[i] ** 0.5

    @ds.kernel
    def g():
        for i in x:
            loss[None] += ds.min(ds.atan2(x[i], 1.0), 1.0 / x[i])

    ds.init(default_fp=ds.f64, check_nan=True)  # without the other checks
    refused(f, "loss[None] became infinite in f(): ds.log(0.0) is -inf")
    g()  # the minimum takes the other one
    loss.grad[None] = 1.0
    g.grad()
    expected = [-1 / 16, 1, -1 / 16]
    assert x.grad.to_numpy() == pytest.approx(expected)

    @ds.kernel
    def h():
        for i in x:
            loss[None] += ds.exp(300.0 * x[i]) * 1e-200

    x.fill(2.0)
    h()
    loss.grad[None] = 1e306
    error = refused(h.grad, "x.grad[0] became infinite in the adjoint of h(): ")
    assert error.span.line == line_of(h, "loss[None]")


def test_options():
    x = field(2, [1, 1])

    @ds.kernel
    def divide(a: ds.f64):
        for i in x:
            x[i] = a / 0.0

    refused(lambda: divide(1.0), "1.0 / 0.0 is inf")
    ds.init(default_fp=ds.f64, debug=True, check_nan="nan")
    divide(1.0)
    refused(lambda: divide(0.0), "0.0 / 0.0 is NaN")
    ds.init(default_fp=ds.f64, debug=True, check_nan=False)
    divide(0.0)
    assert np.isnan(x.to_numpy()).all()
    with pytest.raises(ds.OptionError, match="check_nan cannot be 'all'"):
        ds.init(check_nan="all")


def test_random_numbers_and_threads():
    """A launch on two threads is repeated with its random numbers; of a row that it stays within alone."""
    ds.init(default_fp=ds.f64, debug=True, cpu_max_num_threads=2)
    n = 20000
    x = field((3, n))

    @ds.kernel
    def noise(t: ds.i32):
        for i in range(n):
            r = ds.random(ds.f64)
            x[t, i] = ds.select(r < 0.001, ds.sqrt(r - 1.0), r)

    error = refused(lambda: noise(1), "became NaN in noise(1): ds.sqrt(-0.99")
    found = np.isnan(x.to_numpy()[1])
    assert 0 < found.sum() < 100
    first = int(np.argmax(found))
    assert f"x[1, {first}] became NaN" in error.message
    assert f"in the iteration i = {first}" in error.message


def test_a_tape_has_a_gap_then(cpu):
    x, loss = field(2, [-1, -1], needs_grad=True), field((), needs_grad=True)

    @ds.kernel
    def root():
        for i in x:
            loss[None] += ds.sqrt(x[i])

    tape = ds.Tape()
    with tape:
        refused(root, "ds.sqrt(-1.0) is NaN")
    with pytest.raises(ds.AutodiffError, match="root did not run to its end on this tape"):
        tape.backward(loss)
    # The launch after it is looked at by itself.
    x.fill(4.0)
    with ds.Tape(loss):
        root()
    assert x.grad.to_numpy().tolist() == [0.25, 0.25]


@pytest.mark.parametrize("array", [False, True])
def test_tangents(array):
    """The value is finite, its tangent along a long direction is not."""
    x = field(3, [1, 2, 1])
    y = ds.ndarray(ds.f64, 3) if array else field(3)

    @ds.kernel
    def of_field():
        for i in x:
            y[i] = ds.exp(300.0 * x[i]) * 1e-200

    @ds.kernel
    def of_array(y: ds.types.ndarray()):
        for i in x:
            y[i] = ds.exp(300.0 * x[i]) * 1e-200

    def run():
        of_array(y) if array else of_field()

    run()
    with ds.ad.FwdMode(loss=y, param=x, seed=[1.0, 1.0, 1.0]):
        run()

    def far():
        with ds.ad.FwdMode(loss=y, param=x, seed=[1.0, 1e306, 1.0]):
            run()

    error = refused(far, ".dual[1] became infinite in of_", "in the iteration i = 1")
    assert error.span.line == line_of(of_array if array else of_field, "ds.exp")


def test_random_kernels():
    said = [nonfinite.verdict(nonfinite.make(seed), seed) for seed in range(8)]
    assert set(said) == {"right", "refused"}
    assert said.count("right") > 3
