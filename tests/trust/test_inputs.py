"""Inputs that Python sets in a tape's block: their gradients are those of inputs that were set before it."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field

X = np.array([1.0, 2.0, 3.0])


class Program:
    """y = x^2 and z = y^3, the losses 2 x^2 p and z."""

    def __init__(self):
        ds.init(default_fp=ds.f64)
        x, y, self.bare = field(3), field(3), ds.field(ds.f64, 3)
        p, loss = field(), field()
        self.x, self.y, self.p, self.loss = x, y, p, loss
        self.bare.from_numpy(X)

        @ds.kernel
        def spring():
            for i in x:
                loss[None] += 2 * p[None] * x[i] ** 2

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        @ds.kernel
        def cube():
            for i in y:
                loss[None] += y[i] ** 3

        @ds.kernel
        def one(t: ds.i32, w: ds.f64):
            loss[None] += w * x[t] ** 2

        @ds.kernel
        def reset():
            for i in x:
                x[i] = 0.0

        @ds.kernel
        def shrink():
            for i in x:
                x[i] *= 0.5

        self.spring, self.square, self.cube = spring, square, cube
        self.one, self.reset, self.shrink = one, reset, shrink


@pytest.fixture
def p():
    return Program()


WRITES = {
    "from_numpy": lambda p: p.x.from_numpy(X),
    "assign": lambda p: p.x.assign(X),
    "elements": lambda p: [p.x.__setitem__(i, X[i]) for i in range(3)],
    "filled before": lambda p: (p.x.fill(7.0), WRITES["elements"](p)),
    "copy_from": lambda p: p.x.copy_from(p.bare),
    "ds.copy": lambda p: ds.copy(p.x, p.bare),
    "parts": lambda p: (
        ds.copy(p.x, p.bare, count=2),
        ds.copy(p.x, p.bare, dest_offset=2, src_offset=2, count=1),
    ),
    "stop_grad": lambda p: p.x.from_numpy(ds.stop_grad(X)),
    "mark_written": lambda p: (np.from_dlpack(p.x).__setitem__(..., X), p.x.mark_written()),
}


@pytest.mark.parametrize("in_place", ["refuse", "save"])
@pytest.mark.parametrize("how", WRITES)
def test_all_ways_to_set_an_input(p, how, in_place):
    p.x.fill(-1.0)
    with ds.Tape(p.loss, in_place=in_place):
        WRITES[how](p)
        p.p[None] = 1.5
        p.spring()
    np.testing.assert_allclose(p.x.grad.to_numpy(), 6 * X, rtol=1e-14)
    assert p.p.grad[None] == pytest.approx(28.0)


def test_vectors():
    ds.init(default_fp=ds.f64)
    v = ds.Vector.field(2, ds.f64, shape=3, needs_grad=True)
    loss = field()

    @ds.kernel
    def energy():
        for i in v:
            loss[None] += v[i].dot(v[i])

    with ds.Tape(loss):
        v.fill(1.0)
        v[1] = ds.Vector([3.0, 4.0])
        energy()
    assert v.grad.to_numpy().tolist() == [[2, 2], [6, 8], [2, 2]]


def test_a_row_for_each_step(p):
    """Each element is set when its step comes: launches that stay within other rows do not use it."""
    with ds.Tape(p.loss):
        for t in range(3):
            p.x[t] = X[t]
            p.one(t, 2.0)
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 4 * X)


FILLS = {
    "fill": lambda p: p.x.fill(7.0),
    "from_numpy": lambda p: p.x.from_numpy(7 * X),
    "copy_from": lambda p: p.x.copy_from(p.bare),
    "ds.copy": lambda p: ds.copy(p.x, p.bare, count=3),
    "no_grad": lambda p: _without_gradients(lambda: p.x.fill(7.0)),
    "elements in no_grad": lambda p: _without_gradients(lambda: WRITES["elements"](p)),
    "copy in no_grad": lambda p: _without_gradients(lambda: p.x.copy_from(p.bare)),
    "part in no_grad": lambda p: _without_gradients(lambda: ds.copy(p.x, p.bare, count=3)),
    "stop_grad": lambda p: ds.stop_grad(p.x),
}


def _without_gradients(write):
    with ds.ad.no_grad():
        write()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("then", ["element", "last", "run", "all"])
@pytest.mark.parametrize("how", FILLS)
def test_each_element_is_judged_by_itself(p, how, then, used):
    """All elements are set, after element 0 was used or not; then some of them again."""
    plain = list(FILLS).index(how) < 4
    p.x.from_numpy(X)
    tape = ds.Tape(p.loss, in_place="save")
    with tape:
        if used:
            p.one(0, 100.0)
        FILLS[how](p)
        {
            "element": lambda: p.x.__setitem__(1, 5.0),
            "last": lambda: [p.x.__setitem__(k, 5.0) for k in (2, 1, 2)],
            "run": lambda: ds.copy(p.x, p.bare, dest_offset=1, count=2),
            "all": lambda: p.x.fill(5.0),
        }[then]()
        for k in range(3):
            p.one(k, 1.0)
        values = p.x.to_numpy()
        again = {"element": [1], "last": [1, 2], "run": [1, 2], "all": [0, 1, 2]}[then]
        want = 2 * values * (plain | np.isin(np.arange(3), again))
        if used:
            want[0] = 200.0  # of the value that element 0 was first used with
    np.testing.assert_allclose(p.x.grad.to_numpy(), want, rtol=1e-14)
    if how in ("ds.copy", "part in no_grad", "stop_grad") or then == "run":
        return  # has no replay
    p.x.from_numpy(X)
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(p.x.grad.to_numpy(), want, rtol=1e-14)


@pytest.mark.parametrize("then", [lambda c: c.fill(2.0), lambda c: c.__setitem__(None, 2.0)])
@pytest.mark.parametrize("constant", ["fill", "element", "stop_grad"])
def test_a_number_after_a_constant(p, constant, then):
    p.x.from_numpy(X)
    with ds.Tape(p.loss):
        with ds.ad.no_grad():
            p.p.fill(1.0) if constant == "fill" else p.p.__setitem__(None, 1.0)
        if constant == "stop_grad":
            ds.stop_grad(p.p)
        then(p.p)
        p.spring()
    assert p.p.grad[None] == 28.0


def test_what_was_copied_is_used_and_no_more(p):
    """A copy of some elements uses these."""
    z = field(3)
    p.p[None] = 1.0
    with ds.Tape(p.loss, in_place="save"):
        p.x.from_numpy(X)
        ds.copy(z, p.x, src_offset=1, count=2)
        p.x[0] = 5.0
        p.x[2] = 6.0
        p.spring()
        ds.copy(p.x, z, src_offset=0, count=1)
        p.one(0, 1.0)
    assert p.x.grad.to_numpy().tolist() == [20.0, 4 * 2.0 + 2 * 2.0, 0.0]


@pytest.mark.parametrize("first", [5.0, 0.0])
def test_the_gradient_is_that_of_the_first_value(p, first):
    """One element with other values: x.grad is that of the value which it was first used with."""
    p.x.fill(first)
    with ds.Tape(p.loss, in_place="save"):
        p.one(0, 1.0)
        p.x[0] = 3.0
        p.one(0, 10.0)
    assert p.x.grad.to_numpy().tolist() == [2 * first, 0, 0]
    with ds.Tape(p.loss, in_place="save"):
        p.x[0] = first
        p.one(0, 1.0)
        p.x[0] = 3.0
        p.one(0, 10.0)
    assert p.x.grad.to_numpy().tolist() == [2 * first, 0, 0]


@pytest.mark.parametrize("before", ["reset", "shrink"])
def test_no_gradient_flows_to_before_the_write(p, before):
    """A kernel that wrote the element before: its adjoint sees the gradient 0."""
    p.x.from_numpy(X)
    with ds.Tape(p.loss):
        getattr(p, before)()
        p.x[1] = 3.0
        p.p.fill(1.0)
        p.spring()
    want = 2 * 2 * 0.5 * 0.5 * X  # of 2 (x / 2)^2
    want[1] = 0
    np.testing.assert_array_equal(p.x.grad.to_numpy(), want if before == "shrink" else 0 * X)


def test_constants_that_are_meant(p):
    """In no_grad, and after ds.stop_grad(x), what is set is no input."""
    p.p[None] = 1.0
    with ds.Tape(p.loss):
        with ds.ad.no_grad():
            p.x.from_numpy(X)
        p.spring()
    assert not p.x.grad.to_numpy().any()
    with ds.Tape(p.loss):
        p.x.from_numpy(X)
        ds.stop_grad(p.x)
        p.spring()
    assert not p.x.grad.to_numpy().any()


def test_overwritten_by_a_kernel_later(p):
    """The state that Python sets, and that is halved in place: of 2 (x / 2)^2."""
    with ds.Tape(p.loss, in_place="save"):
        p.x.from_numpy(X)
        p.p[None] = 1.0
        p.shrink()
        p.spring()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), X)


def test_several_passes_add_up(p):
    tape = ds.Tape()
    with tape:
        p.x.from_numpy(X)
        p.square()
    for k in (1, 2, 3):
        tape.backward(grads={p.y: 1.0})
        np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * k * X)
    tape.zero()
    tape.backward(grads={p.y: 1.0, p.x: 10.0})
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * X + 10)


def test_a_second_block(p):
    """It is the same record: what the first block used is no input of the second."""
    tape = ds.Tape(in_place="save")
    with tape:
        p.x.from_numpy(X)
        p.one(0, 1.0)
    with tape:
        p.x[0] = 5.0
        p.x[2] = 4.0
        p.one(0, 1.0)
        p.one(2, 1.0)
    p.x.grad.fill(0)
    tape.backward(grads={p.loss: 1.0})
    assert p.x.grad.to_numpy().tolist() == [2, 0, 8]


def test_replays(p):
    tape = ds.Tape(p.loss)
    with tape:
        p.x.from_numpy(X)
        p.p[None] = 1.0
        p.spring()
    for _ in range(2):
        p.x.fill(9.0)
        tape.replay()
        tape.backward()
        np.testing.assert_array_equal(p.x.grad.to_numpy(), 4 * X)
        assert p.p.grad[None] == 28


def test_retained(p):
    """An input's gradient is there anyway; where the element has a second value it is refused as ever."""
    with ds.Tape(p.loss, retain_grad=True):
        p.x.from_numpy(X)
        p.square()
        p.cube()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 6 * X**5)
    np.testing.assert_array_equal(p.y.grad.to_numpy(), 3 * X**4)

    def twice():
        with ds.Tape(p.loss, in_place="save", retain_grad=[p.x]):
            for _ in range(2):
                p.x.from_numpy(X)
                p.one(0, 1.0)

    with pytest.raises(ds.AutodiffError, match="several values"):
        twice()


def test_checkpoints(p):
    """Set before a rollout it is an input; the steps of a rollout set none."""

    def step(t):
        p.shrink()

    with ds.Tape(p.loss):
        p.x.from_numpy(X)
        p.p[None] = 1.0
        ds.ad.checkpoint(step, 3, [p.x], snapshots=1)
        p.spring()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 4 * X / 64)

    def sets(t):
        p.x[0] = 8.0
        p.shrink()

    p.x.from_numpy(X)
    with ds.Tape(p.loss):
        p.p[None] = 1.0
        ds.ad.checkpoint(sets, 3, [p.x], snapshots=1)
        p.spring()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), [0, *(4 * X / 64)[1:]])


def test_gradcheck_moves_what_the_function_finds(p):
    """It overwrites x[0], whatever that was: differences and gradient are 0."""

    def program():
        p.x[0] = 3.0
        p.square()

    p.x.from_numpy(X)
    assert ds.ad.gradcheck(program, [p.x], [p.y])


# ---- several tapes


def chain(p, write):
    """y = x^2 on one tape; the sum of y^3 on another one, which writes to y first."""
    first, second = ds.Tape(), ds.Tape()
    p.x.from_numpy(X)
    p.loss[None] = 0
    with first:
        p.square()
    with second:
        write()
        p.cube()
    second.backward(p.loss)
    return first


@pytest.mark.parametrize(
    "seed",
    [
        lambda grad: grad,
        lambda grad: grad.to_numpy(),
        lambda grad: 0.5 * grad.to_numpy(),
        lambda grad: np.clip(grad.to_numpy(), -1, 1),
        lambda grad: [float(v) / 3 for v in grad.to_numpy()],
    ],
    ids=["the field", "an array", "scaled", "clipped", "a list"],
)
def test_the_gradient_does_not_go_back_to_an_earlier_tape(p, seed):
    first = chain(p, lambda: p.y.__setitem__(1, 5.0))
    np.testing.assert_array_equal(p.y.grad.to_numpy(), [3, 75, 3 * 81])
    given = seed(p.y.grad)
    with pytest.raises(ds.AutodiffError, match="value that Python set") as caught:
        first.backward(grads={p.y: given})
    assert "first = chain(p, lambda" in str(caught.value)
    assert not p.x.grad.to_numpy().any()
    p.y.grad[1] = 0.0
    first.backward(grads={p.y: p.y.grad})
    np.testing.assert_array_equal(p.x.grad.to_numpy(), [6, 0, 6 * 3**5])


def test_nor_to_an_earlier_launch(p):
    chain(p, lambda: p.y.__setitem__(1, 5.0))
    with pytest.raises(ds.AutodiffError, match="value that Python set"):
        p.square.grad()
    p.y.grad.fill(1.0)  # another gradient, given by hand
    p.square.grad()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * X)


def test_a_boundary_that_is_meant_as_a_constant(p):
    def write():
        with ds.ad.no_grad():
            p.y[1] = 5.0

    first = chain(p, write)
    first.backward(grads={p.y: p.y.grad})
    np.testing.assert_array_equal(p.x.grad.to_numpy(), [6, 0, 6 * 3**5])


def test_tapes_one_after_the_other_that_set_the_same_input(p):
    """Each iteration records anew, as in training; the last one's gradient stands."""
    for k in (1.0, 2.0, 3.0):
        with ds.Tape(p.loss, in_place="save"):
            p.x.fill(k)
            p.p[None] = 1.0
            p.shrink()
            p.spring()
        np.testing.assert_array_equal(p.x.grad.to_numpy(), k)


def test_losses_that_are_set_to_0_in_their_blocks(p):
    """Two records of one loss: each pass starts from its gradient 1, whatever the other one left."""
    tapes = [ds.Tape(), ds.Tape()]
    p.x.from_numpy(X)
    for k, tape in enumerate(tapes):
        with tape:
            p.loss[None] = 0.0
            p.one(k, 1.0)
    tapes[1].backward(p.loss)
    assert p.loss.grad[None] == 1
    p.x.grad.fill(0.0)
    tapes[0].backward(p.loss)
    assert p.x.grad.to_numpy().tolist() == [2, 0, 0]


@pytest.mark.parametrize("seed", [lambda g: g, lambda g: g[None], lambda g: 0.1 * g[None]])
def test_a_chain_of_single_numbers(seed):
    """a = x^2, then 2 a + a^2 of an a that is set: x.grad is not asked for by mistake."""
    ds.init(default_fp=ds.f64)
    x, a, loss = field(), field(), field()

    @ds.kernel
    def square():
        a[None] = x[None] ** 2

    @ds.kernel
    def end():
        loss[None] += 2 * a[None] + a[None] ** 2

    first, second = ds.Tape(), ds.Tape()
    x[None] = 3.0
    with first:
        square()
    with second:
        a[None] = 4.0
        end()
    second.backward(loss)
    assert a.grad[None] == 10
    with pytest.raises(ds.AutodiffError, match="value that Python set"):
        first.backward(grads={a: seed(a.grad)})
    assert x.grad[None] == 0


def test_a_number_for_the_whole_of_what_was_set_may_start_a_pass(p):
    """Tapes that set the same field take turns, each with a gradient of its own."""
    tapes = [ds.Tape(), ds.Tape()]
    for tape in tapes:
        with tape:
            p.x.from_numpy(X)
            p.shrink()
    for k, tape in enumerate(tapes * 2):
        tape.backward(grads={p.x: 2.0})
        np.testing.assert_array_equal(p.x.grad.to_numpy(), np.full(3, k + 1.0))
