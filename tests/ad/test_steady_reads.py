"""Steady tapes whose blocks read fields in Python, or launch kernels that return numbers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import diffsim as ds


class Kernels:
    """The loss is a times the sum of x ** 2; `product` returns x[0] * x[1]."""

    def __init__(self):
        self.x = x = ds.field(ds.f64, 3, needs_grad=True)
        self.y = y = ds.field(ds.f64, 3, needs_grad=True)
        self.loss = loss = ds.field(ds.f64, (), needs_grad=True)
        x.from_numpy(np.array([1.0, 2.0, 3.0]))

        @ds.kernel
        def copy():
            for i in x:
                y[i] = x[i]

        @ds.kernel
        def square(a: ds.f64):
            for i in y:
                loss[None] += a * y[i] ** 2

        @ds.kernel
        def product(a: ds.f64) -> ds.f64:
            return a * x[0] * x[1]

        @ds.kernel
        def both(a: ds.f64) -> ds.f64:
            for i in x:
                loss[None] += a * x[i]
            return x[0] * x[2]

        self.copy, self.square, self.product, self.both = copy, square, product, both


@pytest.fixture
def k(cpu, quick_code):
    return Kernels()


def turns(count, turn):
    """Run that many turns; return how many of them end as steady tapes."""
    return sum(turn(n)._steady is not None for n in range(count))


def test_numbers_are_read_in_the_block(k):
    seen = []

    def turn(n):
        with ds.Tape(k.loss) as tape:
            k.copy()
            part = k.y[1] / 4 + 1
            seen.append((part, part > 1.25, f"{k.y[2]:.1f}"))
            k.square(float(n))
            seen.append(k.loss[None])
        np.testing.assert_allclose(k.x.grad.to_numpy(), 2.0 * n * k.x.to_numpy())
        return tape

    assert turns(12, turn) == 10
    assert seen[-2:] == [(1.5, True, "3.0"), 14.0 * 11]


def test_arrays_are_read_in_the_block(k):
    def turn(n):
        with ds.Tape(k.loss) as tape:
            k.copy()
            size = np.abs(k.y.to_numpy()).max()
            if size > 2.0:
                k.square(float(n))
        np.testing.assert_allclose(k.x.grad.to_numpy(), 2.0 * n * k.x.to_numpy())
        return tape

    assert turns(12, turn) == 10


@pytest.mark.parametrize("form", ["element", "arithmetic", "array", "vector"])
def test_what_was_read_is_no_constant_of_the_turn(k, form):
    """In each turn that stores it, whatever the turns before were; and a constant in a later one."""
    v = ds.Vector.field(2, ds.f64, 2, needs_grad=True)
    ways = {
        "element": lambda: (k.y[0], lambda a: k.y.__setitem__(1, a)),
        "arithmetic": lambda: (2.0 * k.y[0] + 1.0, lambda a: k.y.__setitem__(1, a)),
        "array": lambda: (k.y.to_numpy(), k.y.from_numpy),
        "vector": lambda: (v[0], lambda a: v.__setitem__(1, a)),
    }
    read, kept = ways[form], []

    def turn(stores):
        with ds.Tape(k.loss) as tape:
            k.copy()
            found, store = read()
            kept.append(found)
            if stores:
                store(found)
            k.square(0.5)
        return tape

    for n in range(12):
        if n % 4 == 3:
            with pytest.raises(ds.AutodiffError, match=r"Python took|Python made"):
                turn(True)
            continue
        turn(False)
        np.testing.assert_allclose(k.x.grad.to_numpy(), k.x.to_numpy())
    assert turns(3, lambda _: turn(False)) > 0
    (_, store), last = read(), kept[-1]
    with ds.Tape(k.loss):
        store(last)  # of a turn that is over
        k.square(0.5)
    assert k.loss[None] > 0.0


def test_a_write_after_a_read_is_looked_at(k):
    """Python may have made the number that it writes of what it has read, in ways that leave no mark."""

    def turn(*, reads):
        with ds.Tape(k.loss) as tape:
            number = float(k.x[0]).hex() if reads else "0x1p1"
            k.y[0] = float.fromhex(number)
            k.square(0.5)
        return tape

    assert turns(6, lambda _: turn(reads=False)) == 4
    for _ in range(4):
        with pytest.raises(ds.AutodiffError, match="x was read"):
            turn(reads=True)
        turn(reads=False)


def test_what_kernels_return_is_looked_at(k):
    seen = []

    def turn(n):
        with ds.Tape(k.loss) as tape:
            seen.append(k.both(float(n)))
            k.copy()
            seen.append(k.product(2.0) > 3.0)
            k.square(0.5)
        np.testing.assert_allclose(k.x.grad.to_numpy(), n + k.x.to_numpy())
        return tape

    assert turns(12, turn) == 10
    assert [s.value for s in seen[::2]] == [3.0] * 12
    assert seen[1::2] == [True] * 12


def test_what_a_kernel_returns_is_the_loss(k):
    before = []

    def turn(n):
        with ds.Tape() as tape:
            r = k.product(float(n))
        tape.zero()
        tape.backward(r)
        steady = tape._steady is not None
        np.testing.assert_allclose(k.x.grad.to_numpy(), [2.0 * n, n, 0.0])
        tape.backward(r)  # adds
        np.testing.assert_allclose(k.x.grad.to_numpy(), [4.0 * n, 2.0 * n, 0.0])
        for other in before:
            with pytest.raises(ds.AutodiffError, match="another tape"):
                tape.backward(other)
        before[:] = [*before[-2:], r]
        return steady

    assert sum(turn(n) for n in range(12)) > 4


def test_followed_numbers_after_the_tape_unfolds(k):
    """A turn goes on with what no turn before did: gradients flow through Python as ever."""

    def turn(n, goes_on):
        with ds.Tape(k.loss) as tape:
            r = k.both(0.0)
            seen = k.x[1]
            k.copy()
            if goes_on:
                k.y[0] = r * 2.0 + seen * r  # x0 x2 (2 + x1)
            k.square(0.5)
        x = k.x.to_numpy()
        slope = x.copy()
        if goes_on:
            y = x[0] * x[2] * (2.0 + x[1])
            slope = np.array([x[2] * (2.0 + x[1]), x[0] * x[2], x[0] * (2.0 + x[1])]) * y
            slope[1:] += x[1:]
        np.testing.assert_allclose(k.x.grad.to_numpy(), slope)
        return tape

    for n in range(16):
        turn(n, n % 5 == 4)
    assert turns(4, lambda n: turn(n, False)) > 1


def test_a_returned_number_of_another_turn_is_refused(k):
    kept = []

    def turn(old):
        with ds.Tape(k.loss):
            kept.append(k.both(1.0))
            if old is not None:
                k.y[0] = old
            k.copy()

    for _ in range(5):
        turn(None)
    with pytest.raises(ds.AutodiffError, match="belongs to another tape"):
        turn(kept[2])
    assert float(kept[3]) == 3.0  # outside of a tape it is a number


def test_nothing_is_kept_alive(k):
    kept = []

    def run():
        b = ds.field(ds.f64, 2, needs_grad=True)

        @ds.kernel
        def total() -> ds.f64:
            for i in b:
                k.loss[None] += b[i]
            return b[0]

        for _ in range(6):
            with ds.Tape(k.loss):
                kept.append((total(), b[1]))
        return weakref.ref(b)

    gone = run()
    gc.collect()
    assert gone() is None
    assert len(kept) == 6


def test_long_tapes_are_read(k):
    """28 launches: a native pass, and a read of the loss in each turn."""

    def turn(n):
        with ds.Tape(k.loss) as tape:
            k.copy()
            for _ in range(27):
                k.square(float(n))
            assert k.loss[None] == 27 * n * 14.0
        np.testing.assert_allclose(k.x.grad.to_numpy(), 54.0 * n * k.x.to_numpy())
        return tape

    assert turns(8, turn) == 6
