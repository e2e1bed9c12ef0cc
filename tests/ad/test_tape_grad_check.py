"""`ds.Tape(loss, grad_check=[x])`: the gradients of a block against differences of its replays."""

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def program():
    """Overwritten vectors, many weights, random numbers; a `share` of the gradient gets lost."""
    x = ds.Vector.field(2, ds.f64, shape=3, needs_grad=True)
    w = ds.field(ds.f64, shape=150, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def move(share: ds.f64):
        for i in x:
            kept = x[i].x * (1.0 - share) + ds.stop_grad(x[i].x) * share
            x[i] = ds.Vector([kept * x[i].y, x[i].y + 0.1 * ds.random(ds.f64)])

    @ds.kernel
    def total(share: ds.f64):
        for i in x:
            loss[None] += x[i].x ** 2 + 3.0 * x[i].y
        for i in w:
            kept = w[i] * (1.0 - share) + ds.stop_grad(w[i]) * share
            loss[None] += ds.sin(kept) * i

    x.from_numpy(np.arange(6).reshape(3, 2) / 4 + 0.5)
    w.from_numpy(np.linspace(-2, 2, 150))
    return x, w, loss, move, total


def test_right_gradients_pass(program):
    x, w, loss, move, total = program
    start = x.to_numpy()
    with ds.Tape(loss, grad_check=[x, w, loss], in_place="save") as tape:
        for _ in range(3):
            move(0.0)
        total(0.0)
    ends = [f.to_numpy() for f in (x, w, loss, x.grad, w.grad)]
    np.testing.assert_allclose(w.grad.to_numpy(), np.cos(np.linspace(-2, 2, 150)) * np.arange(150))
    assert x.grad.to_numpy().all()
    # Nothing is left of the check: the tape goes on.
    tape.zero()
    tape.backward()
    again = [f.to_numpy() for f in (x, w, loss, x.grad, w.grad)]
    assert all(map(np.array_equal, ends, again))
    # Another block of the same tape is compared anew, from its own start.
    x.from_numpy(start / 2)
    with tape:
        move(0.0)
        total(0.0)


@pytest.mark.parametrize(("which", "named"), [(0, r"x\[0\]\[0\]"), (1, r"w\[\d+\]")])
def test_wrong_gradients_are_refused(program, which, named):
    x, w, loss, move, total = program
    tape = ds.Tape(loss, grad_check=[(x, w)[which]], in_place="save")
    with pytest.raises(ds.AutodiffError, match=rf"d loss\[None\] / d {named} is .* by") as e:
        with tape:
            move(0.5)
            total(0.5)
    assert e.value.text.strip() == "with tape:"


def test_blocks_that_cannot_be_compared(program):
    x, _, loss, _, total = program
    with pytest.raises(ds.AutodiffError, match="grad_check moves x before the block") as e:
        with ds.Tape(loss, grad_check=x):
            x[1] = [2.0, 3.0]
            total(0.0)
    assert e.value.hint == "set x before the block"
    with pytest.raises(ds.AutodiffError, match="grad_check runs the block of the tape again, and"):
        with ds.Tape(loss, grad_check=x):
            total(0.0)
            ds.stop_grad(x)


def test_options(program):
    x, _, loss, _, _ = program
    plain = ds.field(ds.f64, shape=2)
    for wrong, message in [
        (lambda: ds.Tape(grad_check=[x]), "has no loss"),
        (lambda: ds.Tape(loss, False, grad_check=x), "clear_gradients=False"),
        (lambda: ds.Tape(loss, grad_check=[3]), r"not \[3\]"),
        (lambda: ds.Tape(loss, grad_check=[plain]), "plain has no gradient"),
        (lambda: ds.Tape(loss, grad_check=x, retain_grad=[x]), "leave one of them out"),
    ]:
        with pytest.raises(ds.DiffsimError, match=message):
            wrong()
