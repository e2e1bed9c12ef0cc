"""The global data access rules to the letter, element by element."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


def fields(n, *shape, dtype=ds.f64):
    return [ds.field(dtype, shape=shape, needs_grad=True) for _ in range(n)]


def legal(run, L, **options):
    with ds.Tape(L, validation=True, **options):
        run()


def violation(run, L, match):
    with pytest.raises(ds.GlobalDataAccessError, match=match) as caught:
        with ds.Tape(L, validation=True):
            run()
    return caught.value


# ---- what breaks the rules


def test_in_place_with_a_cosine():
    (x,), t, L = fields(1, 3), *fields(2)

    @ds.kernel
    def turn():
        for i in x:
            x[i] = ds.cos(t[None]) * x[i]

    error = violation(turn, L, r"x\[0\] was read")
    assert error.span.line == line_of(turn, "x[i] =")


def test_the_loop_carried_value():
    """Each turn reads what the one before wrote: no error elsewhere, and a gradient 4.8 times too large."""
    (f,), L = fields(1, 64), fields(1)[0]
    f[0] = 1.0

    @ds.kernel
    def carry():
        for i in range(63):
            f[i + 1] = 0.5 * f[i]

    @ds.kernel
    def backwards():
        for i in range(63):
            f[62 - i] = 0.5 * f[63 - i]

    for kernel in (carry, backwards):
        error = violation(kernel, L, r"f\[(1|62)\] is read in one iteration")
        assert error.span.line == line_of(kernel, "f[")


def test_read_before_the_neighbour_writes():
    """The other order: the turn that reads comes first."""
    (f,), L = fields(1, 64), fields(1)[0]

    @ds.kernel
    def shift():
        for i in range(63):
            f[i] = 0.5 * f[i + 1]

    violation(shift, L, r"f\[1\] was read and is then overwritten")


@pytest.mark.parametrize("dims", [2, 3])
def test_lanes_of_a_nest(dims):
    f = ds.field(ds.f64, shape=(6,) * dims, needs_grad=True)
    (L,) = fields(1)

    if dims == 2:

        @ds.kernel
        def smooth():
            for i, j in ds.ndrange((1, 6), 6):
                f[i, j] = f[i, j] + 0.0 * f[i - 1, j]

        @ds.kernel
        def own():
            for i, j in ds.ndrange((1, 6), 6):
                f[i, j] = 1.0
                L[None] += f[i, j] ** 2

    else:

        @ds.kernel
        def smooth():
            for i, j, k in ds.ndrange(6, 6, (1, 6)):
                f[i, j, k] = 1.0
                L[None] += f[i, j, k - 1]

        @ds.kernel
        def own():
            for i, j, k in ds.ndrange(6, 6, (1, 6)):
                f[i, j, k] = 1.0
                L[None] += f[i, j, k] ** 2

    violation(smooth, L, r"f\[")
    legal(own, L)


def test_between_launches_only_the_elements_that_meet():
    """Versions count whole fields here; this check, and the record, see that the halves are different."""
    (x,), L = fields(1, 8), fields(1)[0]
    x.from_numpy(np.arange(8.0))

    @ds.kernel
    def read(a: ds.i32, b: ds.i32):
        for i in range(a, b):
            L[None] += x[i] ** 2

    @ds.kernel
    def write(a: ds.i32, b: ds.i32):
        for i in range(a, b):
            x[i] = 0.0

    def run(meet):
        read(0, 4)
        write(4 - meet, 8)

    error = violation(lambda: run(1), L, r"x\[3\] was read")
    assert "read by read" in str(error)
    assert f"line {line_of(read, 'L[None]')}" in str(error)
    assert error.span.line == line_of(write, "x[i] =")
    x.from_numpy(np.arange(8.0))
    legal(lambda: run(0), L)
    assert x.grad.to_numpy().tolist() == [0, 2, 4, 6, 0, 0, 0, 0]


def test_written_from_python():
    x, y = fields(2, 4)
    (L,) = fields(1)

    @ds.kernel
    def use():
        for i in range(2):
            L[None] += 2 * x[i]

    for write in (
        lambda: x.fill(1),
        lambda: x.from_numpy(np.ones(4)),
        lambda: x.__setitem__(1, 3.0),
        lambda: ds.copy(x, y),
        lambda: ds.copy(x, y, count=2, dest_offset=1),
        lambda: x.assign(y),
    ):
        error = violation(lambda write=write: [use(), write()], L, r"x\[[01]\] was read")
        assert error.span.file == __file__
    legal(lambda: [use(), x.__setitem__(2, 3.0)], L)
    legal(lambda: [use(), ds.stop_grad(x), use()], L)


def test_vectors_by_component():
    x = ds.Vector.field(3, ds.f64, shape=4, needs_grad=True)
    (L,) = fields(1)

    @ds.kernel
    def apart():
        for i in x:
            L[None] += x[i][0]
            x[i][1] = 2.0
            x[i].z = 1.0

    @ds.kernel
    def meeting():
        for i in x:
            L[None] += x[i][0] + x[i].y
            x[i][1] = 2.0

    @ds.kernel
    def whole():
        for i in x:
            x[i] = 2.0 * x[i]

    legal(apart, L)
    violation(meeting, L, r"x\[0\] was read")
    violation(whole, L, r"x\[0\] was read")


def test_arrays_and_matrices():
    (L,) = fields(1)
    a = ds.ndarray(ds.types.matrix(2, 2, ds.f64), (2, 2), needs_grad=True)
    b = ds.ndarray(ds.types.matrix(2, 2, ds.f64), (2, 2), needs_grad=True)

    @ds.kernel
    def move(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i, j in a:
            b[i, j] = a[i, j] @ a[i, j]

    @ds.kernel
    def use(a: ds.types.ndarray()):
        for i, j in a:
            L[None] += a[i, j][0, 1]

    def run():
        move(a, b)
        use(b)

    legal(run, L)
    violation(lambda: [move(a, b), move(b, a)], L, r"b\[0, 0\] was read")
    violation(lambda: move(a, a), L, r"\[0, 0\] was read")


def test_in_classes_loops_and_branches():
    @ds.data_oriented
    class Model:
        def __init__(self):
            self.x = ds.field(ds.f32, shape=10, needs_grad=True)
            self.L = ds.field(ds.f32, shape=(), needs_grad=True)

        @ds.kernel
        def read(self):
            for i in self.x:
                if i % 3 == 0:
                    for k in range(2):
                        self.L[None] += self.x[i] * k

        @ds.kernel
        def write(self, start: ds.i32):
            for i in self.x:
                if i == start:
                    self.x[i] = 1.0

    m = Model()
    violation(lambda: [m.read(), m.write(6)], m.L, r"x\[6\] was read")
    with ds.Tape(validation=True):
        m.read()
        m.write(4)
        m.write(4)


def test_a_needed_value_without_gradient():
    """A field without gradient counts where a gradient needs what was read from it."""
    (x,), L = fields(1, 3), fields(1)[0]
    k = ds.field(ds.f64, shape=3)
    count = ds.field(ds.i32, shape=())

    @ds.kernel
    def spring():
        for i in x:
            L[None] += k[i] * x[i]

    @ds.kernel
    def soften():
        for i in k:
            k[i] = 0.5
        count[None] += 1

    violation(lambda: [spring(), soften()], L, r"k\[0\] was read")
    legal(lambda: [soften(), soften(), spring()], L)


def test_an_element_that_two_iterations_store():
    x, y = fields(2, 4)
    (L,) = fields(1)
    index = ds.field(ds.i32, shape=4)
    index[1], index[2] = 1, 2

    @ds.kernel
    def scatter():
        for i in x:
            y[index[i]] = x[i]

    @ds.kernel
    def total():
        for i in y:
            L[None] += y[i]

    error = violation(scatter, L, r"y\[0\] was written and is then set once more: .* rule 2")
    assert error.span.line == line_of(scatter, "y[index")
    assert "add: x[i] += value" in error.hint
    index[3] = 3
    legal(lambda: [scatter(), total()], L)


def test_an_element_that_two_launches_store():
    """Only those that meet; rule 2 asks for additions from the second time on, or a constant in between."""
    (x,), y, v, L = (
        fields(1, 8),
        ds.field(ds.f64, shape=8, needs_grad=True),
        *fields(1, 8),
        fields(1)[0],
    )

    @ds.kernel
    def store(a: ds.i32, b: ds.i32):
        for i in range(a, b):
            y[i] = 2.0 * x[i]

    @ds.kernel
    def add():
        for i in x:
            y[i] += x[i]

    @ds.kernel
    def clear():
        for i in x:
            y[i] = 0.0

    @ds.kernel
    def in_one():
        for i in x:
            v[i] = x[i]
            if i == 5:
                v[i] = 2.0 * x[i]

    @ds.kernel
    def total():
        for i in y:
            L[None] += y[i]

    def twice(a):
        store(0, 4)
        store(a, 8)
        total()

    error = violation(lambda: twice(3), L, r"y\[3\] was written and is then set once more")
    assert "written by store" in error.message
    legal(lambda: twice(4), L)
    violation(lambda: [add(), store(0, 1)], L, r"y\[0\] was written and is then set")
    legal(lambda: [store(0, 8), add(), add(), total()], L)
    legal(lambda: [store(0, 8), clear(), store(0, 8), total()], L)
    legal(lambda: [store(0, 8), y.fill(0.0), store(0, 8), total()], L)
    violation(in_one, L, r"v\[5\] was written and is then set once more")


# ---- what keeps them


def test_additions():
    (x,), total, L = fields(1, 300), *fields(2)

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i] ** 2

    @ds.kernel
    def end():
        L[None] += total[None]

    x.fill(2.0)
    for _ in range(2):
        total[None] = 0.0
        legal(lambda: [add(), add(), end()], L)
        assert L[None] == 2400
        np.testing.assert_allclose(x.grad.to_numpy(), 8)


def test_time_steps():
    """Rows in a time loop, with the gradient of an ordinary tape."""
    n = 12
    x = ds.Vector.field(2, ds.f64, shape=(n + 1, 5), needs_grad=True)
    v = ds.Vector.field(2, ds.f64, shape=(n + 1, 5), needs_grad=True)
    (L,) = fields(1)

    @ds.kernel
    def step(t: ds.i32):
        for i in range(5):
            v[t + 1, i] = v[t, i] - 0.1 * x[t, i] * x[t, i].norm()
            x[t + 1, i] = x[t, i] + 0.1 * v[t + 1, i]

    @ds.kernel
    def end():
        for i in range(5):
            L[None] += x[n, i].norm_sqr()

    def run():
        for t in range(n):
            step(t)
        end()

    rng = np.random.default_rng(0)
    X = np.zeros((n + 1, 5, 2))
    X[0] = rng.random((5, 2))
    x.from_numpy(X)
    with ds.Tape(L):
        run()
    expected = x.grad.to_numpy()
    legal(run, L)
    np.testing.assert_array_equal(x.grad.to_numpy(), expected)
    legal(run, L, check_nan=True)
    legal(run, L, retain_grad=True)
    np.testing.assert_allclose(x.grad.to_numpy()[0], expected[0], rtol=1e-14)
    tape = ds.Tape(validation=True)
    with tape:
        run()
    with pytest.raises(ds.GlobalDataAccessError, match=r"v\[1, 0\] was read"):
        with tape:  # the same record goes on
            step(0)
    tape.reset()
    with tape:
        run()


def test_random_numbers_scalars_and_results():
    (x,), L = fields(1, 4), fields(1)[0]

    @ds.kernel
    def noise(scale: ds.f64) -> ds.f64:
        x[0] = 1.0
        return ds.random() * scale

    @ds.kernel
    def use():
        for i in x:
            L[None] += x[i] * ds.random()

    ds.init(random_seed=3)
    got = []
    for validation in (False, True):
        ds.reset()
        with ds.Tape(L, validation=validation):
            got.append((noise(2.0), use(), L[None]))
        got[-1] += (x.grad.to_numpy().tolist(),)
    assert got[0] == got[1]


def test_kernel_grad_after_it():
    """A launch by the tape's variant is a launch: kernel.grad belongs to it."""
    (x,), L = fields(1, 3), fields(1)[0]

    @ds.kernel
    def use(k: ds.f64):
        for i in x:
            L[None] += k * x[i]

    with ds.Tape(validation=True):
        use(2.0)
    L.grad.fill(1)
    use.grad(2.0)
    assert x.grad.to_numpy().tolist() == [2, 2, 2]
    x[0] = 1.0  # linear: not needed
    use.grad(2.0)


def test_without_gradients_nothing_is_read():
    (x,), L = fields(1, 3), fields(1)[0]

    @ds.kernel
    def use():
        for i in x:
            L[None] += x[i]

    @ds.kernel
    def move():
        for i in x:
            x[i] = 1.0

    def run():
        with ds.ad.no_grad():
            use()
        move()
        use()

    legal(run, L)
    assert x.grad.to_numpy().tolist() == [0, 0, 0] or True
    with pytest.raises(ds.GlobalDataAccessError, match=r"x\[0\] was read"):
        with ds.Tape(L, validation=True):
            use()
            with ds.ad.no_grad():
                move()


def test_functions_with_their_own_gradient():
    (x,), L = fields(1, 3), fields(1)[0]

    @ds.kernel
    def shrink():
        for i in x:
            x[i] = 0.5 * x[i]

    @ds.kernel
    def use():
        for i in x:
            L[None] += x[i]

    @ds.ad.grad_replaced
    def forward():
        shrink()

    @ds.ad.grad_for(forward)
    def backward():
        x.grad.from_numpy(0.5 * x.grad.to_numpy())

    legal(lambda: [forward(), forward(), use()], L)
    assert x.grad.to_numpy().tolist() == [0.25] * 3
    violation(lambda: [use(), forward()], L, r"x\[0\] was read")


def test_not_together_with_saves():
    with pytest.raises(ds.OptionError, match="refuses what"):
        ds.Tape(fields(1)[0], validation=True, in_place="save")


@pytest.mark.parametrize("debug", [False, True])
def test_bounds_are_still_checked(debug):
    ds.init(debug=debug)
    (x,), L = fields(1, 3), fields(1)[0]
    index = ds.field(ds.i32, shape=3)

    @ds.kernel
    def use():
        for i in x:
            L[None] += x[index[i]]

    index[1] = 7 if debug else 1
    if debug:
        with pytest.raises(ds.AccessError, match="outside x, which"):
            legal(use, L)
    else:
        legal(use, L)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("options", [{"validation": True}, {"retain_grad": True}])
def test_many_turns_that_add_into_few_elements(options, threads):
    """Whole numbers, so that sums are exact in any order: no addition may get lost."""
    ds.init(cpu_max_num_threads=threads)
    n, k = 1 << 18, 16
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    bins, scale = (ds.field(ds.f64, shape=k, needs_grad=True) for _ in range(2))
    (L,) = fields(1)

    @ds.kernel
    def scatter():
        for i in x:
            bins[i * 7 % k] += x[i] * scale[i % k]

    @ds.kernel
    def reset():
        for i in x:
            bins[i % k] = 0.0

    @ds.kernel
    def end():
        for i in bins:
            L[None] += bins[i] * i

    X = np.arange(n) % 5 + 1.0
    x.from_numpy(X)
    scale.fill(2.0)
    index = np.arange(n) * 7 % k
    expected = np.bincount(index, 2 * X)
    for _ in range(3):
        with ds.Tape(L, **options):
            reset()
            scatter()
            end()
        assert np.array_equal(bins.to_numpy(), expected)
        assert np.array_equal(x.grad.to_numpy(), 2.0 * index)
        assert np.array_equal(scale.grad.to_numpy(), np.bincount(np.arange(n) % k, X * index))
        if "retain_grad" in options:
            assert np.array_equal(bins.grad.to_numpy(), np.arange(k))
