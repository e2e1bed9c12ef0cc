"""What Python does between launches: no gradient gets lost in it silently."""

import copy
import math
import pickle

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.fields.read_values import TrackedArray
from tests.support.gradients import field

X = np.array([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


class Program:
    """loss = sum of y, and y = x^2 where `square` is launched."""

    def __init__(self):
        self.x, self.y, self.loss = field(3, name="x"), field(3, name="y"), field(name="loss")
        self.bare, self.energy = field(3, grad=False), field(name="energy")
        self.x.from_numpy(X)

    @ds.kernel
    def square(self):
        for i in self.x:
            self.y[i] = self.x[i] ** 2

    @ds.kernel
    def add(self):
        for i in self.y:
            self.loss[None] += self.y[i]

    @ds.kernel
    def seed(self):
        for i in self.y:
            self.y.grad[i] += 2.0 * self.y[i]

    @ds.kernel
    def clear(self):
        for i in self.y:
            self.y.grad[i] = 0.0

    @ds.kernel
    def measure(self):
        for i in self.y:
            self.energy[None] += self.y[i]

    @ds.kernel
    def weigh(self, weights: ds.types.ndarray()):
        for i in self.x:
            self.loss[None] += weights[i] * self.x[i]

    @ds.kernel
    def add_bare(self):
        for i in self.bare:
            self.loss[None] += self.bare[i]


@pytest.fixture
def p():
    return Program()


# ---- gradients that are set in the block


def in_no_grad(act):
    with ds.ad.no_grad():
        act()


SEEDS = {
    "an element": lambda p: p.y.grad.__setitem__(0, 3.0),
    "fill": lambda p: p.y.grad.fill(3.0),
    "from_numpy": lambda p: p.y.grad.from_numpy(np.ones(3)),
    "a copy": lambda p: p.y.grad.copy_from(p.x),
    "a kernel": lambda p: p.seed(),
    "in no_grad": lambda p: in_no_grad(lambda: p.y.grad.fill(3.0)),
    "a kernel in no_grad": lambda p: in_no_grad(p.seed),
    "of the loss": lambda p: p.loss.grad.__setitem__(None, 2.0),
}


@pytest.mark.parametrize("how", SEEDS)
@pytest.mark.parametrize("when", ["own loss", "later"])
def test_a_gradient_set_in_the_block_is_refused(p, how, when):
    tape = ds.Tape(p.loss if when == "own loss" else None)
    with pytest.raises(
        ds.AutodiffError, match=r"grad was set in the block[\s\S]*grads={"
    ) as caught:
        with tape:
            p.square()
            SEEDS[how](p)
            p.add()
        tape.backward(p.loss)
    assert caught.value.span.file == __file__
    if how == "a kernel":
        assert "p.y.grad" in caught.value.span.text() or "self.y.grad" in caught.value.span.text()


def test_the_advice_works(p):
    """y = x^2 with the gradient of another library's loss."""
    tape = ds.Tape()
    with tape:
        p.square()
    tape.backward(grads={p.y: np.array([3.0, 0.0, 1.0])})
    np.testing.assert_array_equal(p.x.grad.to_numpy(), [6.0, 0.0, 6.0])


def test_gradients_that_are_cleared_or_those_of_inputs_may_be_set(p):
    p.clear()
    with ds.Tape(p.loss):
        p.x.grad[1] = 5.0  # x is not computed on the tape: the pass adds to it
        p.square()
        p.clear()
        p.y.grad.fill(0.0)
        p.add()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * X + [0.0, 5.0, 0.0])


@pytest.mark.parametrize("how", ["fill", "a kernel", "a copy", "cleared"])
def test_a_gradient_set_in_a_step_of_a_rollout_is_refused(p, how):
    """The steps run again in the backward pass, and would write over the gradients on their way."""

    @ds.kernel
    def step():
        for i in p.x:
            p.x[i] = 2.0 * p.x[i]

    def run(t):
        step()
        if how == "cleared":
            p.x.grad.fill(0.0)
        else:
            SEEDS[how](p)

    with pytest.raises(ds.AutodiffError, match="set in a step of a checkpointed rollout"):
        with ds.Tape(p.loss):
            ds.ad.checkpoint(run, 3, state=[p.x])
            p.square()
            p.add()


def test_writes_in_no_grad_in_a_step_of_a_rollout(p):
    def step(t):
        with ds.ad.no_grad():
            p.bare[0] = 1.0
            p.bare.fill(2.0)
        p.square()

    with ds.Tape(p.loss):
        ds.ad.checkpoint(step, 2, state=[p.y])
        p.add()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * X)


# ---- losses that nothing leads to


def set_loss(p, value):
    p.loss[None] = value


CONSTANT = {
    "math": lambda p: (p.square(), p.add(), set_loss(p, math.sqrt(p.loss[None]))),
    "a plain array": lambda p: (p.square(), set_loss(p, np.array(p.y.to_numpy()).sum())),
    "nothing": lambda p: None,
    "launches that do not reach it": lambda p: p.square(),
    "of fields without a gradient": lambda p: p.add_bare(),
    "a constant": lambda p: (p.square(), p.add(), set_loss(p, 3.0)),
}


@pytest.mark.parametrize("how", CONSTANT)
def test_a_loss_that_nothing_leads_to_is_refused(p, how):
    with pytest.raises(ds.AutodiffError, match="loss loss depends on nothing") as caught:
        with ds.Tape(p.loss):
            CONSTANT[how](p)
    shown = str(caught.value)
    if how in ("math", "a plain array"):
        assert "was read out here" in shown
    if how in ("math", "a plain array", "a constant"):
        assert "loss was set here" in shown
    if how == "of fields without a gradient":
        assert "self.loss[None] += self.bare[i]" in shown


@pytest.mark.parametrize(
    "how", ["the loss", "a value", "no_grad", "a clone", "launched in no_grad", "backward"]
)
def test_a_loss_that_is_meant_to_be_a_constant(p, how):
    tape = ds.Tape(p.loss)
    with tape:
        if how == "the loss":
            ds.stop_grad(p.loss)
        elif how == "a value":
            p.square()
            p.loss[None] = ds.stop_grad(p.y.to_numpy().sum())
        elif how == "a clone":
            p.loss.copy_from(ds.clone(p.energy, needs_grad=False))
        elif how == "launched in no_grad":
            p.square()
            in_no_grad(p.add)
        else:
            in_no_grad(lambda: set_loss(p, 2.0))
    assert not p.x.grad.to_numpy().any()


def test_a_loss_of_an_earlier_record_of_the_same_tape_is_no_excuse(p):
    tape = ds.Tape(p.loss)
    with tape:
        p.square()
        ds.stop_grad(p.loss)
    with pytest.raises(ds.AutodiffError, match="depends on nothing"), tape:
        p.square()


# ---- arrays that Python takes out


def sum_in_place(p):
    total = np.zeros(3)
    total += p.x.to_numpy()
    return total


ARRAYS = {
    "a function": lambda p: np.sin(p.x.to_numpy()),
    "the array": lambda p: p.x.to_numpy(),
    "arithmetic": lambda p: 2.0 * p.x.to_numpy() + 1,
    "with another array": lambda p: X * p.x.to_numpy(),
    "added up in place": sum_in_place,
    "a slice": lambda p: p.x.to_numpy()[::-1],
    "put together": lambda p: np.concatenate([p.x.to_numpy()[1:], [1.0]]),
    "a norm": lambda p: np.full(3, 1.0) * np.linalg.norm(p.x.to_numpy()),
    "a product": lambda p: np.eye(3) @ p.x.to_numpy(),
    "a copy": lambda p: copy.deepcopy(p.x.to_numpy()),
    "clipped": lambda p: p.x.to_numpy().clip(0, 2),
    "a choice": lambda p: np.where(X > 1, p.x.to_numpy(), 0.0),
    "means": lambda p: np.ones(3) * p.x.to_numpy().mean(),
    "stacked": lambda p: np.stack([p.x.to_numpy(), X]).sum(axis=0),
    "a number of it": lambda p: X * p.x.to_numpy()[1],
    "a function of an element": lambda p: X * np.sqrt(p.x[1]),
}


@pytest.mark.parametrize("how", ARRAYS)
def test_what_numpy_makes_of_a_field_is_refused(p, how):
    with pytest.raises(
        ds.AutodiffError, match="y is given an array that Python took from x"
    ) as caught:
        with ds.Tape(p.loss):
            p.y.from_numpy(ARRAYS[how](p))
            p.add()
            p.square()
    assert "from_numpy" in caught.value.span.text()


NUMBERS = {
    "a sum": lambda p: p.y.to_numpy().sum(),
    "a product of vectors": lambda p: p.y.to_numpy().dot(X),
    "an element": lambda p: p.y.to_numpy()[0],
    "an item": lambda p: p.y.to_numpy().item(1),
    "a root": lambda p: np.sqrt(p.y[0]),
    "a trace": lambda p: np.diag(p.y.to_numpy()).trace(),
}


@pytest.mark.parametrize("how", NUMBERS)
def test_numbers_that_numpy_makes_are_refused(p, how):
    with pytest.raises(ds.AutodiffError, match="a number that Python took from y"):
        with ds.Tape(p.loss):
            p.square()
            p.add()
            p.loss[None] = NUMBERS[how](p)


def test_an_array_as_an_argument_is_refused(p):
    with pytest.raises(ds.AutodiffError, match="an array that Python took from x"), ds.Tape(p.loss):
        p.weigh(p.x.to_numpy())
    with ds.Tape(p.loss):
        p.weigh(ds.stop_grad(p.x.to_numpy()))
    np.testing.assert_array_equal(p.x.grad.to_numpy(), X)


def test_through_a_field_without_gradient(p):
    with pytest.raises(ds.MissingGradientError, match="has no gradient"), ds.Tape(p.loss):
        p.bare.from_numpy(2 * p.x.to_numpy())
        p.add_bare()
        p.square()
        p.add()


def test_what_other_libraries_make_of_a_field_is_refused_if_it_leads_nowhere_else(p):
    with pytest.raises(ds.AutodiffError, match="x was read out in Python, and y, which") as caught:
        with ds.Tape(p.loss):
            p.y.from_numpy(np.sin(np.array(p.x.to_numpy())))  # stands for another library
            p.add()
    assert "p.x.to_numpy()" in caught.value.span.text()
    with pytest.raises(ds.AutodiffError, match="x was read out in Python, and y, which"):
        with ds.Tape(p.loss):
            p.y[0] = math.sin(p.x[0])
            p.add()
    with pytest.raises(ds.AutodiffError, match="x was read out in Python, and y, which"):
        tape = ds.Tape()
        with tape:
            p.y[0] = math.sin(p.x[0])
        tape.backward(grads={p.y: 1.0})


def test_a_loss_that_goes_on_after_python_computed_it_is_refused(p):
    with pytest.raises(ds.AutodiffError, match="loss was read out in Python, and loss, which"):
        with ds.Tape(p.loss):
            p.square()
            p.add()
            p.loss[None] = math.sqrt(p.loss[None])
            p.add()
    with ds.Tape(p.loss):  # set to 0 after a look: a new sum
        p.square()
        p.add()
        assert p.loss[None] > 0
        p.loss[None] = 0.0
        p.add()
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2 * X)


def test_a_gradient_that_the_user_records(p):
    tape = ds.Tape(p.loss)
    with tape:
        p.y.from_numpy(np.sin(p.x.to_numpy()))
        tape.record_func(
            lambda: p.x.grad.from_numpy(np.cos(p.x.to_numpy()) * p.y.grad.to_numpy()), [p.x, p.y]
        )
        p.add()
    np.testing.assert_allclose(p.x.grad.to_numpy(), np.cos(X))


def plot(p):
    shown = [p.x.to_numpy(), p.y.to_numpy().max(), p.y[0], p.loss[None]]
    assert f"{shown[0]} {shown[0]!r}" == f"{X} {X!r}"
    assert pickle.loads(pickle.dumps(shown[0])).tolist() == X.tolist()
    assert type(pickle.loads(pickle.dumps(shown[0]))) is np.ndarray
    assert (shown[0] > 1).tolist() == [False, True, True]
    assert type(np.array(shown[0])) is np.ndarray
    assert np.argmax(shown[0]) == 2
    p.bare.from_numpy(shown[0])
    p.kept = shown[0]


def resets(p):
    """Episodes, each from a state that Python sets; x.grad is that of the first."""
    for _ in range(2):
        p.x.from_numpy(X)
        p.square()
        p.add()
        plot(p)


RIGHT = {
    "looked at": (lambda p: (p.square(), plot(p), p.add()), 2 * X),
    "a reset after a look": (lambda p: (plot(p), p.x.from_numpy(X), p.square(), p.add()), 2 * X),
    "cleared": (lambda p: (p.y.to_numpy(), p.square(), p.add(), p.y.fill(0.0)), 2 * X),
    "episodes": (resets, 2 * X),
    "in no_grad": (
        lambda p: (in_no_grad(lambda: p.y.from_numpy(np.sin(p.x.to_numpy()))), p.add()),
        0 * X,
    ),
    "a constant": (
        lambda p: (p.y.from_numpy(ds.stop_grad(np.sin(p.x.to_numpy()))), p.add()),
        0 * X,
    ),
    "a value that is not used": (
        lambda p: (p.y.from_numpy(np.sin(p.x.to_numpy())), p.square(), p.add(), p.y.fill(1.0)),
        2 * X,
    ),
    "looked at in no_grad": (
        lambda p: (in_no_grad(p.energy.to_numpy), p.y.from_numpy(X), p.add()),
        0 * X,
    ),
}


@pytest.mark.parametrize("how", RIGHT)
def test_what_is_right_is_allowed(p, how):
    program, expected = RIGHT[how]
    with ds.Tape(p.loss, in_place="save"):
        program(p)
    np.testing.assert_array_equal(p.x.grad.to_numpy(), expected)


def test_the_array_of_a_single_number_is_an_array(p):
    with ds.Tape():
        made = p.loss.to_numpy()
        assert made.shape == ()
        assert made.tobytes() == np.zeros(()).tobytes()
        assert float(made) == 0.0
    with pytest.raises(ds.AutodiffError, match="that Python took from loss"), ds.Tape(p.loss):
        p.square()
        p.add()
        p.loss[None] = p.loss.to_numpy() + 1


def test_arrays_are_plain_where_no_tape_follows(p):
    assert type(p.x.to_numpy()) is np.ndarray
    with ds.Tape():
        assert type(p.bare.to_numpy()) is np.ndarray
        with ds.ad.no_grad():
            assert type(p.x.to_numpy()) is np.ndarray
        kept = p.x.to_numpy()
        assert type(kept) is TrackedArray
    assert type(kept * 2) is np.ndarray
    assert type(kept.sum()) is np.float64
    with ds.Tape(p.loss):
        p.y.from_numpy(kept)  # of an ended tape
        p.add()
    assert p.loss[None] == X.sum()


def test_no_memory_for_copies_is_explained(p, monkeypatch):
    def fail(self, *args):
        raise MemoryError

    storage = type(p.x.storage)
    tape = ds.Tape(p.loss)
    with tape:
        p.square()
        p.add()
    p.y.grad.fill(1.0)
    monkeypatch.setattr(storage, "snapshot", fail)
    with pytest.raises(
        ds.AutodiffError, match=r"no memory to save y\.grad: it takes 24 bytes[\s\S]*zero"
    ):
        tape.backward(p.loss)
    with pytest.raises(
        ds.OutOfMemoryError, match=r"no memory for the tape to keep what was written to x"
    ):
        with ds.Tape(p.loss):
            p.x.from_numpy(X)
    with (
        pytest.raises(ds.AutodiffError, match=r"no memory to save x[\s\S]*snapshots="),
        ds.Tape(p.loss),
    ):
        ds.ad.checkpoint(lambda t: p.square(), 3, state=[p.x])
