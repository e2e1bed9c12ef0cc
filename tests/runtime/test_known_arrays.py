"""Launches with arrays at places that were there before, arrays of equal shapes, and memory they share."""

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime import compiler

pytestmark = pytest.mark.usefixtures("quick_code")


@ds.kernel
def add(a: ds.types.ndarray(), b: ds.types.ndarray()):
    for i in a:
        a[i] += 10 * b[i] + 1


@ds.kernel
def shift(a: ds.types.ndarray(), b: ds.types.ndarray()):
    for i, j in a:
        h, w = b.shape[0], b.shape[1]
        a[i, j] = b[(i + 1) % h, j] + 2 * b[i % h, (j - 1) % w] + h


def shifted(a, b):
    h, w = b.shape
    i, j = np.indices(a.shape)
    return b[(i + 1) % h, j] + 2 * b[i % h, (j - 1) % w] + h


def test_overlaps_are_refused_after_launches_that_were_fine(cpu):
    table = np.arange(12.0)
    for _ in range(3):
        for a, b in [(table[:4], table[4:8]), (table[4:8], table[:4]), (table[8:], table[4:8])]:
            expected = a + 10 * b + 1
            add(a, b)
            np.testing.assert_array_equal(a, expected)
        before = table.copy()
        with pytest.raises(ds.KernelTypeError, match="the arrays a and b of add overlap"):
            add(table[:4], table[2:6])
        np.testing.assert_array_equal(table, before)
    # The same view twice is one memory.
    add(table[:4], table[:4])
    np.testing.assert_array_equal(table[:4], 11 * before[:4] + 1)


def test_arrays_that_have_changed_since_are_looked_at_again(cpu):
    a, whole = np.arange(6.0), np.full(6, 3)
    b = whole.view(np.float64)  # nearly 0
    add(a, b)
    a.flags.writeable = False
    with pytest.raises(ds.KernelTypeError, match="read-only"):
        add(a, b)
    a.flags.writeable = True
    add(a, b)
    np.testing.assert_array_equal(a, np.arange(6.0) + 2)
    a.shape = (2, 3)
    with pytest.raises(ds.KernelTypeError, match="b has 1 axis"):
        add(a, b)
    a.shape = (6,)
    add(a, whole)  # the same place, other numbers
    np.testing.assert_array_equal(a, np.arange(6.0) + 33)


def test_arrays_of_equal_shapes_are_compiled_for_and_others_too(cpu):
    random = np.random.default_rng(0)
    for of_a, of_b in [((4, 5), (4, 5)), ((3, 5), (4, 5)), ((4, 5), (4, 5)), ((1, 1), (1, 1))]:
        a, b = np.zeros(of_a), random.standard_normal(of_b)
        for _ in range(2):
            shift(a, b)
            np.testing.assert_allclose(a, shifted(a, b), rtol=1e-12)
    assert len(shift.specializations) == 3


def test_a_kernel_is_compiled_for_a_few_combinations_of_equal_shapes(cpu):
    @ds.kernel
    def lengths(
        a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.types.ndarray(), d: ds.types.ndarray()
    ):
        for i in a:
            a[i] = 1000 * a.shape[0] + 100 * b.shape[0] + 10 * c.shape[0] + d.shape[0]

    for k in range(16):
        sizes = [2, 2 + (k & 1), 2 + (k >> 1 & 1), 2 + 2 * (k >> 2)]
        arrays = [np.zeros(n) for n in sizes]
        for _ in range(2):
            lengths(*arrays)
            expected = sum(n * 10**p for n, p in zip(sizes, (3, 2, 1, 0), strict=True))
            np.testing.assert_array_equal(arrays[0], expected)
    assert len(lengths.specializations) <= 5


def test_the_first_shapes_are_numbers_in_the_code(cpu):
    shift.forget()
    for n in (20, 30, 40):
        a, b = np.zeros((n, n)), np.random.default_rng(n).standard_normal((n, n))
        shift(a, b)
        np.testing.assert_allclose(a, shifted(a, b), rtol=1e-12)
        text = shift.ir(after="vectorize", args=(a, b))
        assert ("shape[" in text) == (n > 20)
    assert len(shift.specializations) == 2


def test_arrays_of_several_shapes_take_turns(cpu, monkeypatch):
    """Each launch finds its code without a search through all there are."""

    @ds.kernel
    def ends(k: ds.template(), a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            a[i] += 10 * k * b[b.shape[0] - 1 - i] + a.shape[0]

    launches = []
    for n, k in itertools.product((7, 33, 5), (1, 2)):
        numbers = np.arange(1.0, n + 1)
        made = ds.ndarray(ds.f64, n)
        made.from_numpy(numbers)
        expected = 10 * k * numbers[::-1] + n
        launches += [
            (k, np.zeros(n), numbers, expected),
            (k, ds.ndarray(ds.f64, n), made, expected),
        ]

    def turn():
        for k, a, b, expected in launches:
            a.fill(0.0)
            ends(k, a, b)
            found = a if isinstance(a, np.ndarray) else a.to_numpy()
            np.testing.assert_array_equal(found, expected)

    for _ in range(3):
        turn()
    monkeypatch.setattr(type(ends), "_run", None)  # the slow way
    turn()


def test_gradients_of_arrays_of_several_shapes(cpu):
    """Each launch is differentiated with the shapes that it had, on tapes and by `kernel.grad`."""
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def energy(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in range(1, x.shape[0]):
            loss[None] += y[i] * (x[i] - x[i - 1]) ** 2 / x.shape[0]

    states = [(ds.ndarray(ds.f64, n, needs_grad=True), np.linspace(1, 2, n)) for n in (20, 3, 41)]
    for x, _ in states:
        x.from_numpy(np.sin(np.arange(x.shape[0])))
    for by_hand in (False, True, False):
        loss[None] = 0.0
        for x, _ in states:
            x.grad.fill(0.0)
        if by_hand:
            for x, y in states:
                energy(x, y)
            loss.grad[None] = 1.0
            for x, y in states[::-1]:
                energy.grad(x, y)
        else:
            with ds.Tape(loss):
                for x, y in states:
                    energy(x, y)
        for x, y in states:
            slopes = 2 * y[1:] * np.diff(x.to_numpy()) / len(y)
            expected = np.concatenate([[0.0], slopes]) - np.concatenate([slopes, [0.0]])
            np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12)


def test_code_is_not_bound_to_arrays_of_another_shape(cpu):
    @ds.kernel
    def fill(a: ds.types.ndarray()):
        for i, j in a:
            a[i, j] = 1.0

    fill(np.zeros((2, 3)))
    (special,) = fill.specializations.values()
    mem = special.arguments.arrays["a"]._mem
    with pytest.raises(ds.KernelStateError, match=r"a had shape \(2, 3\).*has shape \(3, 2\) now"):
        special.executable.bind_numpy(mem, np.zeros((3, 2)))


def test_additions_to_an_array_of_known_shape_are_private(cpu):
    """As those to a field: an array of unknown size cannot be copied for each thread."""

    @ds.kernel
    def count(where: ds.types.ndarray(), bins: ds.types.ndarray()):
        for i in where:
            bins[where[i]] += 1.0

    count.forget()
    where = np.random.default_rng(0).integers(0, 10, 5000, dtype=np.int32)
    bins = np.zeros(10)
    count(where, bins)
    np.testing.assert_array_equal(bins, np.bincount(where, minlength=10))
    (special,) = count.specializations.values()
    lowered = compiler.ir_after(special.ir, "privatize")
    assert [p.mem.name for t in lowered.tasks for p in t.privatized] == ["bins"]


def test_gradients_of_arrays_that_take_turns(cpu):
    """The adjoint is bound to other arrays at each launch of it, with gradients of their own."""
    states = [ds.ndarray(ds.f64, 5, needs_grad=True) for _ in range(4)]
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step(x: ds.types.ndarray(), y: ds.types.ndarray(), k: ds.f64):
        for i in x:
            y[i] = x[i] * x[i] * k + x[(i + 1) % x.shape[0]]

    @ds.kernel
    def total(x: ds.types.ndarray()):
        for i in x:
            loss[None] += x[i]

    start = np.linspace(0.1, 0.9, 5)
    for _ in range(3):
        states[0].from_numpy(start)
        with ds.ad.Tape(loss):
            for k in range(3):
                step(states[k], states[k + 1], 0.5 + k)
            total(states[3])
        x, rows = [start], []
        for k in range(3):
            rows.append(np.diag(2 * (0.5 + k) * x[-1]) + np.roll(np.eye(5), 1, axis=1))
            x.append((0.5 + k) * x[-1] ** 2 + np.roll(x[-1], -1))
        expected = np.ones(5) @ rows[2] @ rows[1] @ rows[0]
        np.testing.assert_allclose(states[0].grad.to_numpy(), expected, rtol=1e-12)


def test_an_array_that_is_the_memory_of_a_gradient_is_refused_by_the_adjoint(cpu):
    """It would change under the adjoint's loads; the kernel itself writes to neither."""
    x = ds.ndarray(ds.f64, 4, needs_grad=True)
    y = ds.ndarray(ds.f64, 4, needs_grad=True)
    given = np.from_dlpack(x.grad)

    @ds.kernel
    def scale(x: ds.types.ndarray(), y: ds.types.ndarray(), c: ds.types.ndarray()):
        for i in x:
            y[i] = c[i] * x[i]

    x.fill(2.0)
    scale(x, y, given)
    y.grad.fill(1.0)
    with pytest.raises(ds.KernelTypeError, match="overlap"):
        scale.grad(x, y, given)
    scale(x, y, given.copy() + 3)
    np.testing.assert_array_equal(y.to_numpy(), np.full(4, 6.0))
