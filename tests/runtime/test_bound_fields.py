"""Launches with combinations of fields that were there before: nothing that is kept of them may be stale."""

import threading
from unittest import mock

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.binding import bound_fields
from diffsim.runtime.binding.bound_fields import BoundFields
from diffsim.runtime.kernels import launch_function

pytestmark = pytest.mark.usefixtures("quick_code")


def arrays(count, *, grad=True, n=3):
    made = [ds.ndarray(ds.f64, n, needs_grad=grad) for _ in range(count)]
    for k, a in enumerate(made):
        a.from_numpy(np.arange(n) + 1.0 + k)
    return made


@pytest.fixture
def kernels(cpu):
    """A kernel without numbers and one with, each with the number of the combinations that it knows."""
    known = []
    begin = BoundFields.__init__

    def noted(self, *args):
        begin(self, *args)
        known.append(self)

    with mock.patch.object(BoundFields, "__init__", noted):

        @ds.kernel
        def square(a: ds.types.ndarray(), b: ds.types.ndarray()):
            for i in a:
                b[i] = a[i] * a[i]

        @ds.kernel
        def scale(a: ds.types.ndarray(), b: ds.types.ndarray(), t: ds.f64, k: ds.i8):
            for i in a:
                b[i] += t * a[i] * a[i] + k

        yield square, scale, lambda: sum(len(one.known) for one in known)


def test_a_combination_is_known_when_it_was_launched_a_few_times(kernels):
    square, scale, known = kernels
    a, b, c = arrays(3)
    for k in range(8):
        # At the first ones there are no native functions yet, or they do not know the fields.
        assert known() in ((0,) if k < 2 else (0, 2) if k < 7 else (2,))
        square(a, b)
        scale(b, c, 0.5, k)
    square(b, a)
    square(np.ones(3), np.ones(3))
    np.testing.assert_array_equal(a.to_numpy(), [1, 16, 81])


def test_numbers_that_are_not_plain_are_converted_or_refused(kernels):
    _, scale, _known = kernels
    a, b = arrays(2, grad=False)
    for _ in range(7):
        scale(a, b, 0.0, 0)
    before = b.to_numpy()
    for t, k in [(np.float32(0.5), 1), (2, np.int8(-3)), (True, 0), (np.array(0.25), 127)]:
        b.from_numpy(before)
        scale(a, b, t, k)
        np.testing.assert_array_equal(b.to_numpy(), before + float(t) * a.to_numpy() ** 2 + int(k))
    for t, k in [("1", 0), (1.0, 128), (1.0, 0.5), (None, 0)]:
        with pytest.raises(TypeError):
            scale(a, b, t, k)
    with pytest.raises(ds.KernelTypeError, match=r"overlap|same memory"):
        scale(a, np.from_dlpack(a), 1.0, 0)


def test_what_changed_since_a_launch_is_refused(kernels):
    square, scale, _ = kernels
    a, b = arrays(2)
    for turn in range(7):
        square(a, b)
        scale(a, b, 0.5, 1)
        b.grad.fill(1.0)
        a[1] = 5.0 + turn
        for call in (lambda: square.grad(a, b), lambda: scale.grad(a, b, 0.5, 1)):
            with pytest.raises(ds.GlobalDataAccessError, match="since"):
                call()
        a.grad.fill(0.0)
        square(a, b)
        square.grad(a, b)
        np.testing.assert_array_equal(a.grad.to_numpy(), 2 * a.to_numpy())
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def total(a: ds.types.ndarray()):
        for i in a:
            loss[None] += a[i] ** 2

    for turn in range(8):
        with ds.Tape() as tape:
            square(a, b)
            total(b)
            if turn > 5:
                b[0] = 1.0
                square(b, a)
        if turn > 5:
            with pytest.raises(ds.GlobalDataAccessError):
                tape.backward(loss)
        else:
            tape.zero()
            tape.backward(loss)
            np.testing.assert_allclose(a.grad.to_numpy(), 4 * a.to_numpy() ** 3)


def test_an_array_gets_rows_after_its_combination_is_known(cpu):
    """The first kernel that moves along an axis makes the rows; stamps of the whole become those of rows."""
    h = ds.ndarray(ds.f64, shape=(4, 3), needs_grad=True)
    h.fill(2.0)

    @ds.kernel
    def second(h: ds.types.ndarray()):
        for i in range(3):
            h[1, i] = h[0, i] ** 2

    for _ in range(7):
        second(h)

    @ds.kernel
    def along(h: ds.types.ndarray(), t: ds.i32):
        for i in range(3):
            h[t + 1, i] = h[t, i] ** 2

    for _ in range(3):
        for t in range(3):
            along(h, t)
    h.grad.fill(0.0)
    h.grad[3, 0] = 1.0
    for t in (2, 1, 0):
        along.grad(h, t)
    assert h.grad[0, 0] == 8 * 2.0**7
    for t in range(3):
        along(h, t)
    second(h)  # row 1
    along.grad(h, 2)
    with pytest.raises(ds.GlobalDataAccessError, match="kernel second"):
        along.grad(h, 1)


def test_calls_by_hand_belong_to_launches_of_their_combination(kernels):
    """Each call takes one launch with the same fields off the end, as long as these have read the same."""
    _, scale, _ = kernels
    a, b, c = arrays(3)
    for _ in range(3):
        for x in (a, b):
            scale(x, c, 2.0, 0)
            scale(x, c, 2.0, 1)
        c.grad.fill(1.0)
        a.grad.fill(0.0)
        b.grad.fill(0.0)
        for x in (b, a):
            scale.grad(x, c, 2.0, 1)
            scale.grad(x, c, 2.0, 0)
            np.testing.assert_array_equal(x.grad.to_numpy(), 8 * x.to_numpy())
    with pytest.raises(ds.AutodiffError, match="not launched"):
        scale.grad(b, a, 2.0, 0)


def test_histories_that_are_forgotten_begin_anew(kernels, monkeypatch):
    square, scale, known = kernels
    monkeypatch.setattr(launch_function, "_MOST_STAMPS", 4)
    a, b, c = arrays(3)
    for turn in range(6):
        square(a, b)
        scale(a, b, 0.5 + turn, 0)
        b.grad.fill(1.0)
        a.grad.fill(0.0)
        square.grad(a, b)
        np.testing.assert_array_equal(a.grad.to_numpy(), 2 * a.to_numpy())
    assert scale.specializations
    for x in (a, b, c):
        for y in (a, b, c):
            if x is not y:
                square(x, y)
    square(a, b)
    a.grad.fill(0.0)
    b.grad.fill(1.0)
    square.grad(a, b)
    np.testing.assert_array_equal(a.grad.to_numpy(), 2 * a.to_numpy())
    assert known() <= 9


def test_a_session_or_a_gradient_that_begins_ends_what_is_known(kernels):
    square, _, known = kernels
    a, b = arrays(2, grad=False)
    for _ in range(8):
        square(a, b)
    assert known() == 1
    ds.field(ds.f64, shape=3, needs_grad=True)
    square(a, b)
    ds.init(arch=ds.cpu)
    assert known() == 0
    a, b = arrays(2)
    for _ in range(8):
        square(a, b)
        np.testing.assert_array_equal(b.to_numpy(), [1, 4, 9])
    with ds.Tape() as tape:
        square(a, b)
    tape.backward(grads={b: 1.0})
    np.testing.assert_array_equal(a.grad.to_numpy(), [2, 4, 6])


def test_arrays_that_are_made_for_each_launch_are_not_kept(kernels, monkeypatch):
    square, _, known = kernels
    monkeypatch.setattr(bound_fields, "_MOST", 4)
    last, *_ = kept = arrays(6)
    for _ in range(20):
        a = ds.ndarray(ds.f64, 3, needs_grad=True)
        square(last, a)
        last = a
    assert known() == 0
    for _ in range(3):
        for x in kept[1:]:
            square(kept[0], x)
            square(kept[0], x)
            np.testing.assert_array_equal(x.to_numpy(), [1, 4, 9])
    assert 0 < known() <= 4


def test_threads_with_combinations_of_their_own(kernels):
    _, scale, known = kernels
    made = arrays(8, grad=False)

    def work(k):
        for _ in range(300):
            scale(made[2 * k], made[2 * k + 1], 0.5, k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert known() == 4
    for k in range(4):
        start = np.arange(3) + 1.0 + 2 * k
        expected = start + 1 + 300 * (0.5 * start**2 + k)
        np.testing.assert_allclose(made[2 * k + 1].to_numpy(), expected, rtol=1e-12)
