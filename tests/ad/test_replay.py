"""Replayed tapes: the values and gradients of a record made anew, or an error."""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field, numbers
from tests.support.pendulums import Pendulums, same

pytestmark = pytest.mark.usefixtures("quick_code")

# ---- values and gradients


def test_replayed_is_recorded_anew(cpu):
    p = Pendulums()
    tape = p.record()
    first = p.results()
    tape.replay()
    assert tape.stats().entries == 31
    tape.backward()
    assert same(p.results(), first)
    assert tape._replay._reverse.valid  # natively, not entry by entry
    for seed in range(1, 4):
        p.length.from_numpy(numbers(5, seed=seed, lo=0.5, hi=2.0))
        p.control[3] = 0.1 * seed
        p.angle[0, 2] = 0.2 * seed
        tape.replay()
        tape.backward()
        replayed = p.results()
        p.record()
        assert same(p.results(), replayed)
        assert not same(replayed, first)


@pytest.mark.parametrize(("dtype", "rel"), [(ds.f32, 1e-6), (ds.f64, 1e-14)])
def test_the_gradient_in_closed_form(cpu, dtype, rel):
    """a (u^8 + v^8), by three squarings of a vector."""
    x = ds.Vector.field(2, dtype, shape=4, needs_grad=True)
    a, loss = field(dtype=dtype), field(dtype=dtype)

    @ds.kernel
    def square(k: ds.i32):
        for c in ds.static(range(2)):
            x[k + 1][c] = x[k][c] ** 2

    @ds.kernel
    def end():
        loss[None] = a[None] * (x[3][0] + x[3][1])

    tape = ds.Tape(loss)
    with tape:
        for k in range(3):
            square(k)
        end()
    for u, v, w in ((1.5, 0.5, 2.0), (0.5, -1.25, -3.0)):
        x[0], a[None] = [u, v], w
        tape.replay()
        tape.backward()
        assert loss[None] == pytest.approx(w * (u**8 + v**8), rel=rel)
        found = x.grad.to_numpy()[0]
        assert found == pytest.approx([8 * w * u**7, 8 * w * v**7], rel=rel)
        assert a.grad[None] == pytest.approx(u**8 + v**8, rel=rel)


def test_random_numbers_are_those_of_the_record(cpu):
    x, y, loss = field(100), field(100), field()

    @ds.kernel
    def shake():
        for i in x:
            y[i] = x[i] * ds.random(ds.f64)

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i] ** 2

    x.fill(1.0)
    tape = ds.Tape(loss)
    with tape:
        shake()
        add()
    random = y.to_numpy()
    assert np.unique(random).size == 100
    with ds.Tape(loss):  # other random numbers, and another launch of the same kernel
        shake()
        add()
    assert not np.array_equal(y.to_numpy(), random)
    x.from_numpy(numbers(100))
    tape.replay()
    tape.backward()
    np.testing.assert_array_equal(y.to_numpy(), x.to_numpy() * random)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * random**2 * x.to_numpy(), rtol=1e-14)


@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
def test_writes_from_python_are_those_of_the_record(cpu, layout):
    x = ds.Vector.field(2, ds.f64, shape=(3, 2), needs_grad=True, layout=layout)
    y = ds.Vector.field(2, ds.f64, shape=(3, 2), needs_grad=True, layout=layout)
    z = field((3, 2))
    w, loss = field((3, 2), dtype=ds.f32), field()
    count = ds.field(ds.i32, shape=2)

    @ds.kernel
    def multiply():
        for i, j in x:
            y[i, j] *= x[i, j].sum()

    @ds.kernel
    def add():
        for i, j in y:
            z[i, j] += y[i, j][0] * (i + 1) + y[i, j][1] + count[1]

    @ds.kernel
    def end():
        for i, j in w:
            loss[None] += w[i, j] ** 2

    values = numbers(3, 2)

    def run():
        y.fill([1.0, -2.0])
        y[1, 1] = [0.5, 0.25]
        count[1] = 7
        multiply()
        z.from_numpy(values)
        y[2, 0] = 3.0
        add()
        values[:] = 0  # what was given to from_numpy is kept
        z[0, 0] = -0.0
        w.copy_from(z)  # f64 to f32
        end()
        w.fill(0)

    def results():
        fields = (loss, x, y, z, w, count, x.grad, y.grad, z.grad, w.grad)
        return [f.to_numpy() for f in fields]

    x.from_numpy(numbers(3, 2, 2))
    tape = ds.Tape(loss, in_place="save")
    kept = values.copy()
    with tape:
        run()
    recorded = results()
    assert np.abs(x.grad.to_numpy()).min(axis=2).max() > 0.1
    for f in (y, z, w):
        f.fill(9.0)
    count[1] = -1
    tape.replay()
    tape.backward()
    assert same(results(), recorded)
    assert np.signbit(z[0, 0])
    x.from_numpy(numbers(3, 2, 2, seed=5))
    tape.replay()
    tape.backward()
    replayed = results()
    values[:] = kept
    with ds.Tape(loss, in_place="save"):
        run()
    assert same(results(), replayed)


def test_kernels_over_integers_are_part_of_the_record(cpu):
    """A table that an integer kernel makes, and reads back."""
    x, loss = field(4), field()
    order, count = ds.field(ds.i32, shape=4), ds.field(ds.i32, shape=())

    @ds.kernel
    def sort():
        for i in x:
            place = 0
            for k in ds.static(range(4)):
                if x[k] < x[i]:
                    place += 1
            order[place] = i

    @ds.kernel
    def tell():
        count[None] = order[0]

    @ds.kernel
    def take():
        for i in x:
            loss[None] += x[order[i]] * (i + 1)

    x.from_numpy(np.array([4.0, 3.0, 2.0, 1.0]))
    tape = ds.Tape(loss)
    with tape:
        sort()
        tell()
        take()
    assert x.grad.to_numpy().tolist() == [4, 3, 2, 1]
    x.from_numpy(np.array([2.0, 1.0, 4.0, 3.0]))
    tape.replay()
    tape.backward()
    assert loss[None] == 1 + 4 + 9 + 16
    assert x.grad.to_numpy().tolist() == [2, 1, 4, 3]
    assert count[None] == 1


def test_copies(cpu):
    """Copies forward and back: between layouts and types, and where no gradient flows."""
    soa = dict(dtype=ds.f64, shape=(3, 4), needs_grad=True, layout=ds.Layout.SOA)
    x, y = ds.Vector.field(2, **soa), field((3, 4), n=2)
    z, loss, held = field((3, 4), n=2, dtype=ds.f32), field(), field((3, 4), n=2)

    @ds.kernel
    def cube():
        for i, j in y:
            for c in ds.static(range(2)):
                loss[None] += (y[i, j][c] ** 3 + 10 * z[i, j][c]) * held[i, j][c]

    def run():
        y.copy_from(x)
        z.copy_from(y)
        with ds.ad.no_grad():
            held.copy_from(x)
        cube()

    tape = ds.Tape(loss)
    x.from_numpy(numbers(3, 4, 2))
    with tape:
        run()
    for seed in range(2):
        given = numbers(3, 4, 2, seed=seed)
        x.from_numpy(given)
        tape.replay()
        tape.backward()
        np.testing.assert_allclose(x.grad.to_numpy(), (3 * given**2 + 10) * given, rtol=1e-6)
        np.testing.assert_allclose(loss[None], np.sum(given**4 + 10 * given**2), rtol=1e-6)


def test_arrays(cpu):
    """ds.ndarray arguments; the same kernel for several of them."""
    one, two = (ds.ndarray(ds.f64, 3, needs_grad=True) for _ in range(2))
    loss = field()

    @ds.kernel
    def weigh(x: ds.types.ndarray(), w: ds.types.vector(2, ds.f64), flag: bool):
        for i in x:
            loss[None] += w[0] * x[i] ** 2 + (w[1] if flag else 0.0)

    tape = ds.Tape(loss)
    weights = [2.0, 1.0]
    with tape:
        weigh(one, weights, False)
        weights[:] = [5.0, 7.0]
        weigh(two, weights, True)
        weights[:] = [0.0, 0.0]
    one.from_numpy(np.array([1.0, 2.0, 3.0]))
    two.from_numpy(np.array([-1.0, 0.0, 1.0]))
    tape.replay()
    tape.backward()
    assert loss[None] == 2 * 14 + 5 * 2 + 3 * 7
    assert one.grad.to_numpy().tolist() == [4, 8, 12]
    assert two.grad.to_numpy().tolist() == [-10, 0, 10]


def test_gradients_are_cleared_or_not_as_on_entry(cpu):
    x, loss = field(2), field()

    @ds.kernel
    def squares():
        for i in x:
            loss[None] += x[i] ** 2

    x.from_numpy(np.array([1.0, 2.0]))
    for clear, expected in ((True, [2, 4]), (False, [6, 12])):
        x.grad.fill(0)
        tape = ds.Tape(loss, clear_gradients=clear)
        with tape:
            squares()
        for _ in range(2):
            tape.replay()
            tape.backward()
        assert x.grad.to_numpy().tolist() == expected
    tape = ds.Tape()
    x.grad.fill(0)
    loss.fill(0)
    with tape:
        squares()
    x.from_numpy(np.array([3.0, 4.0]))
    tape.replay()
    assert loss[None] == 5 + 25  # a tape without a loss clears nothing
    tape.backward(loss)
    tape.backward(grads={loss: 10.0})
    assert x.grad.to_numpy().tolist() == [66, 88]
    tape.zero()
    tape.replay()
    tape.backward(loss)
    assert x.grad.to_numpy().tolist() == [6, 8]


def test_several_blocks(cpu):
    x, loss = field(), field()

    @ds.kernel
    def add(k: ds.f64):
        loss[None] += k * x[None]

    tape = ds.Tape()
    for k in (1.0, 10.0):
        with tape:
            add(k)
    loss.fill(0)
    x[None] = 2.0
    tape.replay()
    tape.backward(loss)
    assert (loss[None], x.grad[None]) == (22, 11)


# ---- programs that overwrite their state


@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
def test_in_place(cpu, layout):
    """A rotation by a matrix of cosines, the state overwritten in each of ten steps."""
    state = ds.Vector.field(2, ds.f64, shape=(2, 3), needs_grad=True, layout=layout)
    turn, loss = field(3), field()

    @ds.kernel
    def rotate(k: ds.i32, to: ds.i32):
        for i in range(3):
            c, s = ds.cos(turn[i]), ds.sin(turn[i])
            a, b = state[k, i][0], state[k, i][1]
            state[to, i] += ds.Vector([c * a - s * b, s * a + c * b]) * state[k, i].norm()

    @ds.kernel
    def halve():
        for i in range(3):
            state[0, i] = ds.sin(state[0, i])

    @ds.kernel
    def end():
        for k, i in state:
            loss[None] += state[k, i].dot(state[k, i])

    def run():
        for k in range(6):
            rotate(k % 2, 1 - k % 2)
            halve()
            if k == 3:
                state[0, 1] = [0.5, 0.25]
        end()

    start = 0.3 * numbers(2, 3, 2)

    def results():
        return [f.to_numpy() for f in (loss, state, turn.grad, state.grad)]

    tape = ds.Tape(loss, in_place="save")
    state.from_numpy(start)
    with tape:
        run()
    assert tape.stats().saved > 6
    for seed in range(3):
        turn.from_numpy(numbers(3, seed=seed))
        state.from_numpy(start * (1 + 0.1 * seed))
        tape.replay()
        tape.backward()
        replayed = results()
        tape.backward()  # again: what was put back is as it was
        assert tape._replay._reverse.valid  # natively
        assert np.array_equal(state.to_numpy(), replayed[1])
        np.testing.assert_allclose(turn.grad.to_numpy(), 2 * replayed[2], rtol=1e-14)
        state.from_numpy(start * (1 + 0.1 * seed))
        with ds.Tape(loss, in_place="save"):
            run()
        assert same(results(), replayed)


# ---- the promise


def test_a_write_after_the_replay_is_noticed(cpu):
    p = Pendulums()
    tape = p.record()
    tape.replay()
    p.angle[7, 0] = 0.0
    with pytest.raises(ds.GlobalDataAccessError, match="step needs angle") as caught:
        tape.backward()
    assert "p.angle[7, 0] = 0.0" in str(caught.value)
    tape.replay()
    p.angle[p.steps, 0] = 1.0  # read by measure
    with pytest.raises(ds.GlobalDataAccessError, match=r"measure needs"):
        tape.backward()
    tape.replay()
    p.speed.fill(0.0)  # no adjoint loads it
    tape.backward()
    expected = p.length.grad.to_numpy()
    tape.replay()
    p.angle[0, 0] = p.angle[0, 0]  # a write is a write
    with pytest.raises(ds.GlobalDataAccessError):
        tape.backward()
    tape.replay()
    tape.backward()
    assert np.array_equal(p.length.grad.to_numpy(), expected)


def test_a_write_to_a_row_that_nobody_needs_is_fine(cpu):
    x, loss = field(4), field()

    @ds.kernel
    def square(t: ds.i32):
        loss[None] += x[t] ** 2

    x.fill(3.0)
    tape = ds.Tape(loss)
    with tape:
        for t in range(3):
            square(t)
    tape.replay()
    x[3] = 7.0
    tape.backward()
    assert x.grad.to_numpy().tolist() == [6, 6, 6, 0]
    x[2] = 7.0
    with pytest.raises(ds.GlobalDataAccessError):
        tape.backward()


def test_a_record_against_the_rules_is_refused(cpu):
    """Without a loss nothing was checked when it was recorded."""
    x, loss = field(3), field()

    @ds.kernel
    def squares():
        for i in x:
            loss[None] += x[i] ** 2

    @ds.kernel
    def stop():
        for i in x:
            x[i] = 0.0

    tape = ds.Tape()
    with tape:
        squares()
        stop()
    tape.replay()
    with pytest.raises(ds.GlobalDataAccessError, match="the kernel stop has changed it"):
        tape.backward(loss)


def test_something_recorded_after_the_replay(cpu):
    p = Pendulums()
    tape = p.record()
    tape.replay()
    tape.record_func(lambda: None, [p.length])
    with pytest.raises(ds.AutodiffError, match="recorded something more since its last replay"):
        tape.backward()
    with pytest.raises(ds.AutodiffError, match="gradient of its own"):
        tape.replay()


def test_a_broken_chain_is_refused(cpu):
    x, y, loss = field(), field(grad=False), field()

    @ds.kernel
    def copy():
        y[None] = 2 * x[None]

    @ds.kernel
    def end():
        loss[None] = y[None]

    tape = ds.Tape()
    with tape:
        copy()
        end()
    tape.replay()
    for _ in range(2):
        with pytest.raises(ds.MissingGradientError, match="y is given a value"):
            tape.backward(loss)


def test_two_tapes(cpu):
    """A replay overwrites what the adjoints of another tape need; other tapes do not matter."""
    p, q = Pendulums(), Pendulums(steps=10)
    one, two, other = p.record(), p.record(), q.record()
    expected = None
    for _ in range(2):
        one.replay()
        other.replay()
        one.backward()
        if expected is not None:
            assert same(p.results(), expected)
        expected = p.results()
        p.length[0] += 0.0
    one.replay()
    two.replay()
    two.backward()
    assert same(p.results(), expected)
    one.replay()
    two.replay()
    with pytest.raises(ds.GlobalDataAccessError):
        one.backward()
    with ds.Tape(p.loss):
        p.run()
    assert same(p.results(), expected)
    with pytest.raises(ds.GlobalDataAccessError):
        two.backward()


def test_a_gradient_of_one_kernel_after_a_replay(cpu):
    """`kernel.grad` belongs to the last launch, be it a replayed one, or is refused."""
    p = Pendulums()
    tape = p.record()
    p.length[0] = 0.1
    tape.replay()
    p.loss.grad[None] = 10.0
    p.measure.grad()
    np.testing.assert_allclose(p.angle.grad.to_numpy()[-1], 20 * p.angle.to_numpy()[-1], rtol=1e-14)
    with pytest.raises(ds.GlobalDataAccessError):
        p.step.grad(3, 0.01)


def test_random_numbers_of_one_kernel_after_a_replay(cpu):
    x, y = field(3), field(3)

    @ds.kernel
    def shake(k: ds.f64):
        for i in x:
            y[i] = k * x[i] * ds.random(ds.f64)

    x.fill(1.0)
    tape = ds.Tape()
    with tape:
        shake(2.0)
    shake(2.0)
    for program in (tape.replay, lambda: shake(2.0), tape.replay):
        program()
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        shake.grad(2.0)
        assert np.array_equal(x.grad.to_numpy(), y.to_numpy())


def test_errors_in_replayed_kernels(cpu):
    ds.init(default_fp=ds.f64, debug=True)
    x, loss, index = field(3), field(), ds.field(ds.i32, shape=2)

    @ds.kernel
    def pick(k: ds.i32):
        loss[None] += x[index[k]] ** 2

    x.from_numpy(np.array([1.0, 2.0, 3.0]))
    tape = ds.Tape(loss)
    with tape:
        pick(0)
        pick(1)
    index[1] = 5
    for _ in range(2):
        with pytest.raises(ds.AccessError, match="index 5") as caught:
            tape.replay()
        assert "loss[None] += x[index[k]] ** 2" in str(caught.value)
        with pytest.raises(ds.AutodiffError, match="did not run to its end"):
            tape.backward()
    index[1] = 2
    tape.replay()
    tape.backward()
    assert x.grad.to_numpy().tolist() == [2, 0, 6]


def test_an_error_on_the_way_back(cpu):
    """An adjoint that fails leaves what was put back as it was."""
    ds.init(default_fp=ds.f64, debug=True)
    x, loss, index = field(3), field(), ds.field(ds.i32, shape=())

    @ds.kernel
    def sine():
        for i in x:
            x[i] = ds.sin(x[i])

    @ds.kernel
    def pick():
        loss[None] = x[index[None]]

    start = numbers(3)
    x.from_numpy(start)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        pick()
        sine()
        sine()
    tape.replay()
    final = x.to_numpy()
    index.storage.fill(9)  # behind the versions' back: a faulty index in the adjoint only
    with pytest.raises(ds.AccessError):
        tape.backward()
    assert np.array_equal(x.to_numpy(), final)
    index.storage.fill(1)
    tape.backward()
    assert np.array_equal(x.to_numpy(), final)
