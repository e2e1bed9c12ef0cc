"""Forward mode as a program uses it: `ds.ad.FwdMode`, its seeds, what Python reads and writes in a block."""

import math
import pickle
import threading

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def squares(cpu):
    """x, y, loss without duals, and the kernels y = x**2 and loss += sum of y."""
    x, y = ds.field(ds.f64, shape=3), ds.field(ds.f64, shape=3)
    loss = ds.field(ds.f64, shape=())
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def square():
        for i in range(3):
            y[i] = x[i] ** 2

    @ds.kernel
    def total():
        for i in range(3):
            loss[None] += y[i]

    return x, y, loss, square, total


def test_one_seed(squares):
    x, y, loss, square, total = squares
    with ds.ad.FwdMode(loss=loss, param=x, seed=[1.0, 0.0, 0.5]) as forward:
        square()
        total()
    assert loss[None] == 14
    assert loss.dual[None] == 2 + 3
    assert list(forward.tangents(y)) == [2, 0, 3]
    assert loss.needs_dual
    assert not y.needs_dual
    # A seed is for its block, as in Taichi.
    assert not x.dual.to_numpy().any()


@pytest.mark.parametrize("many", [1, 2, 3, 4, 5, 8])
def test_several_seeds_in_one_run(squares, many):
    x, y, loss, square, total = squares
    seeds = np.random.default_rng(1).normal(size=(many, 3))
    with ds.ad.FwdMode(loss, x, seed=seeds) as forward:
        square()
        total()
    jacobian = np.diag(2 * x.to_numpy())
    np.testing.assert_allclose(forward.tangents(y), seeds @ jacobian, rtol=1e-15)
    np.testing.assert_allclose(forward.tangents(loss), (seeds @ jacobian).sum(1), rtol=1e-15)
    assert loss[None] == 14


def test_several_seeds_have_no_dual(squares):
    x, _, loss, square, total = squares
    with ds.ad.FwdMode(loss, x, seed=np.eye(3)):
        square()
        total()
    with pytest.raises(
        ds.FieldError, match=r"(?s)several seeds at once.*forward\.tangents\(loss\)"
    ):
        loss.dual
    ds.clear_all_dual()
    assert loss.dual[None] == 0
    with ds.ad.FwdMode(loss, x, seed=[0, 0, 1]):
        square()
        total()
    assert loss.dual[None] == 6


def test_several_params_and_losses(cpu):
    a, b = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=2)
    product, ratio = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=())
    a[None] = 3.0
    b.from_numpy(np.array([5.0, 7.0]))

    @ds.kernel
    def compute():
        product[None] = a[None] * b[0] * b[1]
        ratio[None] = b[1] / a[None]

    expected = 35 * 1 + 3 * 7 * 2 - 3 * 5, -7 / 9 - 1 / 3
    for param, seed in (
        ([a, b], [1.0, [2.0, -1.0]]),
        ({a: 1.0, b: [2.0, -1.0]}, None),
        ({b: np.array([2.0, -1.0]), a: None}, None),
    ):
        with ds.ad.FwdMode([product, ratio], param, seed):
            compute()
        assert (product.dual[None], ratio.dual[None]) == pytest.approx(expected, rel=1e-15)
    with ds.ad.FwdMode((product, ratio), {a: [1.0, 0.0], b: [[0.0, 0.0], [1.0, 0.0]]}) as forward:
        compute()
    assert forward.tangents(product) == pytest.approx([35, 21])


@pytest.mark.parametrize(
    ("shape", "element", "seed"),
    [
        ((), (), None),
        ((), (), 2.0),
        ((1,), (), None),
        ((1,), (), [1.0]),
        ((2, 3), (), np.arange(6.0)),
        ((2, 3), (), np.arange(6.0).reshape(2, 3)),
        ((2,), (3,), np.arange(6.0).reshape(2, 3)),
        ((), (2, 2), [1.0, 2.0, 3.0, 4.0]),
        ((), (2, 2), [[1, 2], [3, 4]]),
    ],
)
def test_shapes_of_seeds(cpu, shape, element, seed):
    if element:
        x = ds.Vector.field(3, ds.f64, shape=shape)
        x = x if element == (3,) else ds.Matrix.field(2, 2, ds.f64, shape=shape)
    else:
        x = ds.field(ds.f64, shape=shape)
    y = ds.clone(x)

    @ds.kernel
    def double():
        if ds.static(len(shape) > 0):
            for i in ds.grouped(x):
                y[i] = 2.0 * x[i]
        else:
            y[None] = 2.0 * x[None]

    with ds.ad.FwdMode(loss=y, param=x, seed=seed):
        double()
    given = np.ones(shape + element) if seed is None else np.reshape(seed, shape + element)
    np.testing.assert_array_equal(y.dual.to_numpy(), 2 * given)


@pytest.mark.parametrize(
    ("param", "seed", "message"),
    [
        ("x", None, "seed is missing"),
        ("x", [1.0, 2.0], r"the seed of x has the shape \(3,\)"),
        ("x", 1.0, r"the seed of x has the shape \(3,\)"),
        ("x", np.ones((2, 4)), r"the seed of x has the shape \(3,\)"),
        ("x", "up", r"the seed of x has the shape \(3,\)"),
        ("x", np.ones((0, 3)), r"the seed of x has the shape \(3,\)"),
        ("x", np.ones((9, 3)), r"(?s)9 seeds.*up to 8.*once for each 8"),
        ("[x, x]", [[1, 2, 3]] * 2, "given twice"),
        ("[x, y]", [1, 2, 3], "one seed for each"),
        ("[x, y]", [np.ones(3), np.ones((2, 3))], "different numbers of seeds"),
        ("{x: [1, 2, 3]}", [1, 2, 3], "seed is given twice"),
        ("n", [1, 2, 3], r"(?s)n, given as param, has no tangent.*only floats"),
        ("None", [1, 2, 3], "param is missing"),
        ("[]", [[1, 2, 3]], "param is missing"),
        ("x.dual", [1, 2, 3], r"given as param, has no tangent: it is a dual"),
        ("3.0", None, "param is a field"),
    ],
)
def test_seeds_that_do_not_fit(cpu, param, seed, message):
    x = ds.field(ds.f64, shape=3, needs_dual=True)
    y, n = ds.field(ds.f64, shape=3), ds.field(ds.i32, shape=3)
    assert x is not y is not n
    given = eval(param)
    with pytest.raises(ds.ArgumentError, match=message):
        ds.ad.FwdMode(y, given, seed)


def test_duals_are_cleared_on_entry_or_not(squares):
    x, y, loss, square, total = squares
    for _ in range(2):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            square()
            total()
        assert loss.dual[None] == 12
    # The next block goes on where the first one ended: y has its tangent still.
    with ds.ad.FwdMode(loss, clear_gradients=False):
        total()
    assert loss.dual[None] == 24
    y.fill(5.0)  # constants, for which what y was lent is no tangent
    with ds.ad.FwdMode(loss, clear_gradients=False):
        total()
    assert loss.dual[None] == 24


def test_a_block_without_a_param(squares):
    x, _, loss, square, total = squares
    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
        square()
    x.dual.fill(1.0)
    with pytest.raises(ds.ArgumentError, match="param is missing, and no dual was set"):
        with ds.ad.FwdMode(loss):  # which clears what was set before it
            square()
            total()
    with ds.ad.FwdMode(loss):
        x.dual.fill(1.0)
        square()
        total()
    # The values of both blocks are added up, the tangents are those of the last.
    assert loss.dual[None] == 12


def test_a_param_that_is_changed_in_place(cpu):
    state = ds.field(ds.f64, shape=2)
    state.from_numpy(np.array([1.0, 2.0]))

    @ds.kernel
    def step():
        for i in range(2):
            state[i] = state[i] * state[i]

    with ds.ad.FwdMode(param=state, seed=[1, 1]) as forward:
        for _ in range(3):
            step()
    np.testing.assert_allclose(forward.tangents(state), [8, 8 * 2.0**7])
    np.testing.assert_allclose(state.dual.to_numpy(), [8, 8 * 2.0**7])


def test_an_empty_block_and_independent_kernels(cpu):
    """As Taichi's programs have them: nothing depends on the param, and that is no error."""
    c, d = ds.field(float, shape=()), ds.field(float, shape=())

    @ds.kernel
    def nothing():
        pass

    with ds.ad.FwdMode(loss=d, param=c):
        nothing()
    assert d.dual[None] == 0


# ---- what Python writes in the block


def test_constants_have_no_tangent(squares):
    x, y, loss, square, total = squares
    for write in (
        lambda: y.fill(2.0),
        lambda: y.from_numpy(np.ones(3)),
        lambda: [y.__setitem__(i, 4.0) for i in range(3)],
        lambda: ds.stop_grad(y),
        lambda: y.assign(np.ones(3)),
        lambda: y.copy_from(ds.field(ds.f64, shape=3)),
    ):
        for seed in ([1, 1, 1], np.ones((3, 3))):
            with ds.ad.FwdMode(loss, x, seed=seed) as forward:
                square()
                write()
                total()
            assert not forward.tangents(loss).any()
            assert not forward.tangents(y).any()


@pytest.mark.parametrize("seed", [[1.0, 1.0, 1.0], np.ones((2, 3))])
def test_one_element_of_many(squares, seed):
    x, y, loss, square, total = squares
    with ds.ad.FwdMode(loss, x, seed=seed) as forward:
        square()
        y[1] = 10.0
        total()
    assert np.all(forward.tangents(loss) == 2 + 6)
    assert loss[None] == 1 + 10 + 9


@pytest.mark.parametrize("seed", [[1.0, 2.0, 3.0], np.arange(6.0).reshape(2, 3)])
def test_copies_take_tangents_along(squares, seed):
    x, y, _, _, _ = squares
    z = ds.field(ds.f32, shape=(2, 3))
    with ds.ad.FwdMode(param=x, seed=seed) as forward:
        y.copy_from(x)
        ds.copy(z, x, dest_offset=2, count=3)
        w = ds.clone(x)
        found = [forward.tangents(f) for f in (y, z, w)]
    want = np.asarray(seed, float)
    np.testing.assert_array_equal(found[0], want)
    np.testing.assert_array_equal(found[2], want)
    flat = found[1].reshape(*want.shape[:-1], 6)
    np.testing.assert_array_equal(flat[..., 2:5], want)
    assert not flat[..., :2].any()


def test_inputs_that_are_set_in_the_block(cpu):
    """As on a tape (ADR 0027): the tangent belongs to the value that the block uses first."""
    u, total = ds.field(ds.f64, shape=4), ds.field(ds.f64, shape=())

    @ds.kernel
    def step(t: ds.i32):
        total[None] += u[t] * u[t]

    with ds.ad.FwdMode(total, u, seed=[1, 1, 1, 1]):
        for t in range(4):
            u[t] = t + 1.0
            step(t)
    assert total.dual[None] == 2 * (1 + 2 + 3 + 4)
    total[None] = 0.0
    with ds.ad.FwdMode(total, u, seed=[1, 1, 1, 1]):
        step(0)
        u[0] = 5.0  # the seed was for the value before
        u[1] = 6.0
        step(0)
        step(1)
    assert total.dual[None] == 2 * 1 + 12
    total[None] = 0.0
    with ds.ad.FwdMode(total, u, seed=[1, 1, 1, 1]):
        with ds.ad.no_grad():
            u[0] = 5.0
        u[1] = 6.0
        step(1)
        step(0)
    assert total.dual[None] == 12
    total[None] = 0.0
    with ds.ad.FwdMode(total, u, seed=[1, 1, 1, 1]):
        with ds.ad.no_grad():
            u[0] = 5.0
        u.from_numpy(np.array([5.0, 6.0, 7.0, 8.0]))  # inputs again: nothing has used them
        step(1)
        step(0)
    assert total.dual[None] == 12 + 10


def test_no_grad_is_constant(squares):
    x, y, loss, square, total = squares
    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]) as forward:
        square()
        total()
        with ds.ad.no_grad():
            square()
    assert loss.dual[None] == 12
    assert not forward.tangents(y).any()


# ---- values in Python


def test_returned_values_carry_tangents(cpu):
    x, y = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=())
    out = ds.Vector.field(2, ds.f64, shape=())
    x[None] = 2.0

    @ds.kernel
    def cube() -> ds.f64:
        return x[None] ** 3

    @ds.kernel
    def both(a: ds.f64) -> ds.types.vector(2, ds.f64):
        return ds.Vector([a * x[None], a])

    @ds.kernel
    def count() -> ds.i32:
        return ds.cast(x[None], ds.i32)

    for seed in (1.0, [1.0, 2.0]):
        factor = np.asarray(seed)
        with ds.ad.FwdMode([y, out], x, seed) as forward:
            value = cube()
            more = ds.sin(value) + value * value / 3.0 - abs(value)
            vector = both(more)
            y[None] = more
            y[None] += value
            out[None] = vector
            assert count() == 2
        dv = 12.0
        dm = dv * (math.cos(8) + 16 / 3 - 1)
        m = math.sin(8) + 64 / 3 - 8
        assert float(more) == pytest.approx(m)
        np.testing.assert_allclose(forward.tangents(value), dv * factor)
        np.testing.assert_allclose(forward.tangents(more), dm * factor, rtol=1e-14)
        np.testing.assert_allclose(forward.tangents(y), (dm + dv) * factor, rtol=1e-14)
        want = np.multiply.outer(factor, [dm * 2 + m, dm])
        np.testing.assert_allclose(forward.tangents(vector), want, rtol=1e-14)
        np.testing.assert_allclose(forward.tangents(out), want, rtol=1e-14)


def test_fields_in_place_of_numbers(cpu):
    dt, y = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=())
    dt[None] = 3.0

    @ds.kernel
    def scale(a: ds.f64):
        y[None] = a * a

    with ds.ad.FwdMode(y, dt):
        scale(dt)
    assert y.dual[None] == 6
    with ds.ad.FwdMode(y, dt):
        scale(3.0)
    assert y.dual[None] == 0


def test_numbers_that_python_takes_are_refused(squares):
    x, y, loss, square, total = squares
    out = ds.field(ds.f64, shape=3)

    @ds.kernel
    def scale(a: ds.f64):
        for i in range(3):
            y[i] = a * x[i]

    @ds.kernel
    def unrolled(a: ds.template()):
        y[0] = a * 1.0

    def block(act):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            square()
            act()
            total()

    for act, message in {
        lambda: out.__setitem__(0, y[0] * 2.0): "out is given a number that Python took from y",
        lambda: out.fill(y[0]): "out is given a number that Python took from y",
        lambda: out.from_numpy(np.sin(y.to_numpy())): "that Python took from y",
        lambda: scale(y[1] + 1.0): "that Python took from y",
        lambda: unrolled(y[1]): "that Python took from y",
        lambda: np.sum(y): "np.sum of the field y",
    }.items():
        with pytest.raises(ds.AutodiffError, match=message):
            block(act)
    # Looking is free, and constants on purpose are.
    for act in (
        lambda: print(y[0], y.to_numpy().max(), y[0] > 1),
        lambda: out.__setitem__(0, ds.stop_grad(y[0])),
        lambda: out.__setitem__(0, float(y[0])),
        lambda: scale(ds.stop_grad(y[1])),
    ):
        block(act)


def test_a_field_whose_dual_is_zero_is_free(squares):
    x, y, loss, square, total = squares
    z = ds.field(ds.f64, shape=3, needs_dual=True)
    z.fill(2.0)
    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
        y[0] = z[0] * 2.0
        square()
        total()
    assert loss.dual[None] == 12


def test_what_other_libraries_make_of_it(cpu):
    x, loss = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=())
    y, z = ds.field(ds.f64, shape=()), ds.field(ds.f64, shape=())
    x[None] = 2.0

    @ds.kernel
    def square():
        y[None] = x[None] ** 2

    @ds.kernel
    def to_loss():
        loss[None] += z[None] + x[None]

    with pytest.raises(
        ds.AutodiffError, match=r"(?s)y, which has a tangent, was read out.*z, which"
    ):
        with ds.ad.FwdMode(loss, x):
            square()
            z[None] = math.sin(y[None])
            to_loss()
    with ds.ad.FwdMode(loss, x):
        square()
        z[None] = ds.stop_grad(math.sin(y[None]))
        to_loss()
    assert loss.dual[None] == 1


# ---- what has a dual and what is lent one


def test_lent_duals_are_found_in_the_order_of_the_program(cpu):
    """In the second iteration the first kernel reads what the last one was lent a dual for."""
    x, a, b = (ds.field(ds.f64, shape=()) for _ in range(3))
    x[None] = 3.0

    @ds.kernel
    def first():
        a[None] = b[None] + 1.0

    @ds.kernel
    def second():
        b[None] = a[None] * x[None]

    for _ in range(2):
        b[None] = 0.0
        with ds.ad.FwdMode(b, x):
            for _ in range(3):
                first()
                second()
        assert b[None] == 3 + 9 + 27
        assert b.dual[None] == 1 + 2 * 3 + 3 * 9


def test_arrays_are_lent_duals_and_numpy_has_none(cpu):
    x = ds.ndarray(ds.f64, 3)
    y = ds.ndarray(ds.f64, 3)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def square(u: ds.types.ndarray(), v: ds.types.ndarray()):
        for i in range(3):
            v[i] = u[i] * u[i]

    for seed in (np.ones(3), np.ones((2, 3))):
        with ds.ad.FwdMode(param=x, seed=seed) as forward:
            square(x, y)
            square(y, x)
            square(np.ones(3), y)
        assert np.all(forward.tangents(x) == [4, 4 * 8, 4 * 27])
        assert not forward.tangents(y).any()
        x.from_numpy(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(
        ds.MissingGradientError, match=r"(?s)another library has no dual.*v\[i\] = "
    ):
        with ds.ad.FwdMode(param=x, seed=np.ones(3)):
            square(x, np.ones(3))
    # One array in both places is one memory.
    with ds.ad.FwdMode(param=x, seed=np.ones(3)) as forward:
        square(x, x)
    assert list(forward.tangents(x)) == [2, 4, 6]


def test_gradients_are_fields_with_tangents_too(cpu):
    """A step of gradient descent, in which the gradient is data."""
    x = ds.field(ds.f64, shape=2, needs_grad=True)
    x.grad.from_numpy(np.array([3.0, 4.0]))

    @ds.kernel
    def descend():
        for i in range(2):
            x[i] -= 0.5 * x.grad[i]

    with ds.ad.FwdMode(x, x.grad, seed=[1, 2]):
        descend()
    assert list(x.dual.to_numpy()) == [-0.5, -1]


# ---- refused, and side by side


def test_blocks_are_not_nested(squares):
    x, _, loss, square, total = squares
    forward = ds.ad.FwdMode(loss, x, seed=[1, 1, 1])
    loss_of_tape = ds.field(ds.f64, shape=(), needs_grad=True)
    tape = ds.Tape(loss_of_tape)
    with forward:
        for other in (ds.ad.FwdMode(loss, x, seed=[1, 1, 1]), tape):
            with pytest.raises(ds.AutodiffError, match="forward mode is on already"), other:
                pass
        square()
        total()
    assert loss.dual[None] == 12
    with ds.Tape():
        with pytest.raises(ds.AutodiffError, match="a tape is recording already"), forward:
            pass


def test_reverse_mode_inside_is_refused(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    y = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def square():
        y[None] = x[None] ** 2

    with ds.Tape() as tape:
        square()
    with ds.ad.FwdMode(y, x):
        square()
        for act in (
            square.grad,
            square.jvp,
            lambda: tape.backward(grads={y: 1.0}),
            tape.replay,
        ):
            with pytest.raises(ds.AutodiffError, match=r"forward mode"):
                act()


def test_given_gradients_have_no_tangent(squares):
    x, _, loss, square, total = squares

    @ds.ad.grad_replaced
    def own():
        square()

    with pytest.raises(ds.AutodiffError, match=r"(?s)own has a gradient of its own.*    own\(\)"):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            own()
    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
        with ds.ad.no_grad():
            own()
        total()
    assert loss.dual[None] == 0


def test_rollouts_simply_run(cpu):
    x = ds.field(ds.f64, shape=())
    x[None] = 1.5

    @ds.kernel
    def step():
        x[None] = x[None] * x[None]

    with ds.ad.FwdMode(x, x):
        ds.ad.checkpoint(lambda t: step(), 4, [x])
    assert x.dual[None] == pytest.approx(16 * 1.5**15)


def test_the_session_may_not_be_reset_inside(squares):
    x, _, loss, square, _ = squares
    with pytest.raises(ds.AutodiffError, match=r"ds\.init\(\)"):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            square()
            ds.init(arch=ds.cpu)


def test_an_error_ends_the_block(squares):
    x, _, loss, square, total = squares
    with pytest.raises(ZeroDivisionError):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            square()
            raise ZeroDivisionError
    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
        square()
        total()
    assert loss.dual[None] == 12


def test_tangents_are_those_of_the_last_block(squares):
    x, y, loss, square, _ = squares
    one, two = (ds.ad.FwdMode(loss, x, seed=[1, 1, 1]) for _ in range(2))
    with pytest.raises(ds.AutodiffError, match="before the block has run"):
        one.tangents(y)
    with one:
        square()
    with two:
        square()
    with pytest.raises(ds.AutodiffError, match="another block"):
        one.tangents(y)
    with pytest.raises(ds.FieldError, match="of a field or a returned value"):
        two.tangents(3.0)
    with one:  # a block may be entered again
        square()
    assert list(one.tangents(y)) == [2, 4, 6]
    assert not one.tangents(ds.field(ds.i32, shape=2)).any()


def test_shown_and_not_copied(squares):
    x, _, loss, _, _ = squares
    assert repr(ds.ad.FwdMode(loss, x, seed=np.eye(3))) == "<forward mode by x, 3 seeds>"
    with pytest.raises(ds.DiffsimError, match="forward mode"):
        pickle.dumps(ds.ad.FwdMode(loss, x, seed=[1, 1, 1]))


def test_threads_have_blocks_of_their_own(squares):
    x, _, loss, square, total = squares
    caught = []

    def other(act):
        def run():
            try:
                act()
            except ds.AutodiffError as error:
                caught.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    own = ds.field(ds.f64, shape=())

    def second():
        with ds.ad.FwdMode(own, own):
            pass

    with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
        square()
        other(second)  # would clear the duals of this one
        other(lambda: own.fill(1.0))
        total()
    assert loss.dual[None] == 12
    assert "while another thread computes tangents" in str(caught[0])
    with pytest.raises(ds.AutodiffError, match=r"(?s)y was written by .* in another thread"):
        with ds.ad.FwdMode(loss, x, seed=[1, 1, 1]):
            square()
            other(square)
            total()


def test_repeated_launches_with_other_arguments(cpu):
    """The quick way of a launch that is known is for plain numbers, and for inputs that were used before."""
    x, y = ds.field(ds.f64, 2), ds.field(ds.f64, 2)

    @ds.kernel
    def scale(a: ds.f64):
        for i in x:
            y[i] = a * x[i]

    @ds.kernel
    def own(k: ds.i32, a: ds.f64):
        y[k] = a * x[k]

    x.from_numpy(np.array([0.5, 2.0]))
    with ds.ad.FwdMode(param=x, seed=[1.0, 1.0]) as forward:
        scale(2.0)
        scale(3.0)
        with pytest.raises(
            ds.AutodiffError, match="a kernel is given a number that Python took from y"
        ):
            scale(y[0])
        assert forward.tangents(y).tolist() == [3.0, 3.0]
        x[1] = 7.0  # used, so no input any more
        scale(np.float64(4.0))
        assert forward.tangents(y).tolist() == [4.0, 0.0]
    x.from_numpy(np.array([0.5, 2.0]))
    with ds.ad.FwdMode(param=x, seed=[1.0, 1.0]) as forward:
        own(0, 2.0)
        own(0, 3.0)
        x[1] = 7.0  # not used before: an input
        own(1, 4.0)
        assert forward.tangents(y).tolist() == [3.0, 4.0]
