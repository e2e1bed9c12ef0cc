"""Sweeps over levels of one field: the record tells ranges apart that the arguments tell."""

from collections import Counter

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.fuzz import levels
from tests.fuzz.__main__ import trial

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


class Tree:
    """Products of a complete binary tree of 15 nodes, from the leaves to the root."""

    def __init__(self):
        self.y = y = ds.field(ds.f64, 15, needs_grad=True)
        self.x = x = ds.field(ds.f64, 15, needs_grad=True)
        self.loss = loss = ds.field(ds.f64, (), needs_grad=True)

        @ds.kernel
        def begin():
            for v in range(15):
                y[v] = x[v]

        @ds.kernel
        def up(first: ds.i32, last: ds.i32):
            for v in range(first, last):
                y[(v - 1) // 2] += y[v] ** 2

        @ds.kernel
        def finish():
            for _ in range(1):
                loss[None] += y[0]

        self.begin, self.up, self.finish = begin, up, finish
        self.start = np.linspace(0.3, 0.6, 15)

    def run(self, *ranges):
        self.begin()
        for first, last in ranges:
            self.up(first, last)
        self.finish()

    def record(self, *ranges):
        self.x.from_numpy(self.start)
        self.loss[None] = 0.0
        with ds.Tape(self.loss) as tape:
            self.run(*ranges)
        return tape

    def check(self, *ranges):
        y, expected = self.start.copy(), np.zeros(15)
        visits = [v for first, last in ranges for v in range(first, last)]
        seen = []
        for v in visits:
            seen.append(y[v])
            y[(v - 1) // 2] += y[v] ** 2
        expected[0] = 1.0
        for v, value in zip(reversed(visits), reversed(seen), strict=True):
            expected[v] += 2 * value * expected[(v - 1) // 2]
        assert np.allclose(self.x.grad.to_numpy(), expected, rtol=1e-12)


LEVELS = (7, 15), (3, 7), (1, 3)


def test_recordings_and_replays():
    tree = Tree()
    for turn in range(5):
        tree.start = tree.start * 0.95
        tape = tree.record(*LEVELS)
        assert tape.recorder.recorded().has_allowed or turn  # natively, from the second one on
        tree.check(*LEVELS)
    for _ in range(3):
        tree.start = tree.start * 0.95
        tree.x.from_numpy(tree.start)
        tape.replay()
        tape.backward()
        tree.check(*LEVELS)


@pytest.mark.parametrize(
    "ranges",
    [
        [(8, 15), (3, 7), (1, 3)],
        [(11, 15), (7, 11), (5, 7), (3, 5), (2, 3), (1, 2)],
        [(7, 15), (3, 3), (3, 7), (9, 9), (1, 3)],  # with empty levels
        [(13, 15), (6, 7), (2, 3)],
        [(1, 3), (7, 15)],  # whose parents nobody has read
    ],
)
def test_ranges_that_are_apart(ranges):
    tree = Tree()
    for _ in range(3):
        tree.record(*ranges)
        tree.check(*ranges)


@pytest.mark.parametrize(
    "ranges", [[(3, 7), (7, 15)], [(3, 7), (13, 15)], [(3, 4), (7, 8)], [(1, 3), (5, 7)]]
)
def test_ranges_that_meet(ranges):
    tree = Tree()
    # The second launch adds to what the first one has read: for (3, 7) and (13, 15) to the element 6 alone.
    with pytest.raises(GlobalDataAccessError, match="has changed it since"):
        tree.record(*ranges)


def test_a_write_from_python_between_levels():
    tree = Tree()
    tree.x.from_numpy(tree.start)
    with pytest.raises(GlobalDataAccessError), ds.Tape(tree.loss):
        tree.begin()
        tree.up(7, 15)
        tree.y[0] = 0.5
        tree.up(1, 3)
        tree.finish()


def test_diagonals_of_a_table():
    n = 6
    u = ds.field(ds.f64, (n, n), needs_grad=True)
    x, loss = (ds.field(ds.f64, s, needs_grad=True) for s in (n, ()))

    @ds.kernel
    def begin():
        for i in range(n):
            u[i, 0] = x[i]

    @ds.kernel
    def diagonal(d: ds.i32, first: ds.i32, last: ds.i32):
        for i in range(first, last):
            u[i, d - i] = u[i - 1, d - i] * u[i, d - i - 1]

    @ds.kernel
    def finish():
        for i in range(1, n):
            loss[None] += u[i, i]

    def run(begins):
        begin()
        for i in range(n):
            u[0, i] = 1.1
        for d in range(2, 2 * n - 1):
            diagonal(d, max(1, d - n + 1), min(n, d))
        for d in begins:
            diagonal(d, 1, 2)
        finish()

    def value(numbers):
        table = np.full((n, n), 1.1, complex)
        table[1:, 0] = numbers[1:]
        for i, j in np.ndindex(n - 1, n - 1):
            table[i + 1, j + 1] = table[i, j + 1] * table[i + 1, j]
        return sum(table[i, i] for i in range(1, n))

    start = np.linspace(0.9, 1.1, n)
    x.from_numpy(start)
    with ds.Tape(loss):
        run([])
    expected = [value(start + 1e-30j * (np.arange(n) == k)).imag / 1e-30 for k in range(n)]
    assert np.allclose(x.grad.to_numpy(), expected, rtol=1e-12)
    with pytest.raises(GlobalDataAccessError), ds.Tape(loss):
        run([2, 3])


def test_random_programs():
    counts = Counter()
    for seed in range(16):
        text = levels.make(seed)
        for how in ("save", "refuse"):
            told = counts if how == "refuse" else None
            found = trial(
                text,
                lambda text, how=how, seed=seed, told=told: levels.verdict(text, seed, how, told),
            )
            assert found is None
    assert counts[True] > 5  # recordings in which the record has allowed an adjoint


class Bodies:
    """Bodies that add the square of their number to that of their parent, level by level."""

    def __init__(self):
        self.parent = parent = ds.field(ds.i32, 8)
        self.y = y = ds.field(ds.f64, 8, needs_grad=True)
        self.x = x = ds.field(ds.f64, 8, needs_grad=True)
        self.loss = loss = ds.field(ds.f64, (), needs_grad=True)

        @ds.kernel
        def begin():
            for b in range(8):
                y[b] = x[b]

        @ds.kernel
        def inwards(first: ds.i32, last: ds.i32):
            for b in range(first, last):
                y[parent[b]] += y[b] ** 2

        @ds.kernel
        def finish():
            for b in range(3):
                loss[None] += y[b]

        self.kernels = begin, inwards, finish
        self.set([0, 0, 0, 2, 1, 2, 4, 3])

    def set(self, parents):
        self.parent.from_numpy(np.array(parents, np.int32))

    def record(self, *ranges, between=lambda: None):
        begin, inwards, finish = self.kernels
        self.start = np.random.default_rng(1).uniform(0.3, 0.6, 8)
        self.x.from_numpy(self.start)
        self.loss[None] = 0.0
        with ds.Tape(self.loss) as tape:
            begin()
            for first, last in ranges:
                inwards(first, last)
                between()
            finish()
        return tape

    def check(self, *ranges):
        parents, y = self.parent.to_numpy(), self.start.copy()
        visits = [b for first, last in ranges for b in range(first, last)]
        values = []
        for b in visits:
            values.append(y[b])
            y[parents[b]] += y[b] ** 2
        expected = np.array([1.0] * 3 + [0.0] * 5)
        for b, value in zip(reversed(visits), reversed(values), strict=True):
            expected[b] += 2 * value * expected[parents[b]]
        assert np.allclose(self.x.grad.to_numpy(), expected, rtol=1e-12)


INWARDS = (6, 8), (3, 6), (1, 3)


def test_parents_from_a_field():
    bodies = Bodies()
    for _ in range(3):
        tape = bodies.record(*INWARDS)
        bodies.check(*INWARDS)
    for parents in ([0, 0, 0, 1, 1, 1, 5, 5], [0, 0, 0, 2, 2, 1, 3, 4]):
        bodies.set(parents)  # the same recording, other elements
        for _ in range(3):
            bodies.record(*INWARDS)
            bodies.check(*INWARDS)
        bodies.x.from_numpy(bodies.start)
        tape.replay()
        tape.backward()
        bodies.check(*INWARDS)


def test_parents_that_have_become_children():
    bodies = Bodies()
    for _ in range(3):
        tape = bodies.record(*INWARDS)
        bodies.check(*INWARDS)
    bodies.set([0, 7, 0, 2, 1, 2, 4, 3])  # the first launch has read what the last one adds to
    for _ in range(2):
        with pytest.raises(GlobalDataAccessError, match="has changed it since"):
            bodies.record(*INWARDS)
    bodies.x.from_numpy(bodies.start)
    tape.replay()
    with pytest.raises(GlobalDataAccessError, match="has changed it since"):
        tape.backward()
    bodies.set([0, 0, 0, 2, 1, 2, 4, 3])
    for _ in range(3):
        bodies.record(*INWARDS)
        bodies.check(*INWARDS)


def test_parents_that_meet_in_a_launch():
    bodies = Bodies()
    for _ in range(3):
        bodies.record(*INWARDS)
        bodies.check(*INWARDS)
    bodies.set([0, 0, 0, 2, 1, 3, 4, 3])  # 3 and 5 are of one level
    for _ in range(2):
        with pytest.raises(GlobalDataAccessError, match="writes it"):
            bodies.record(*INWARDS)


def test_parents_that_change_after_their_launch():
    bodies = Bodies()

    def change():
        bodies.parent[6] = 4  # the same number, but who knows

    for _ in range(2):
        with pytest.raises(GlobalDataAccessError):
            bodies.record(*INWARDS, between=change)


@pytest.mark.parametrize("at", [(6, 5), (3, 5), (6, 3)])
@pytest.mark.parametrize("changes", [False, True])
def test_factors_that_are_overwritten_at_indices(at, changes):
    """Of factors without gradients, an adjoint loads the first four; others are written after them."""
    y = ds.field(ds.f64, 8)
    one, other = ds.field(ds.i32, 1), ds.field(ds.i32, 1)
    x, loss = (ds.field(ds.f64, s, needs_grad=True) for s in (8, ()))

    @ds.kernel
    def use(first: ds.i32, last: ds.i32):
        for i in range(first, last):
            loss[None] += y[i] * x[i]

    @ds.kernel
    def overwrite():
        for i in range(1):
            y[one[i]] = 5.0
            y[other[i]] = 6.0

    def run():
        use(0, 4)
        overwrite()
        if changes:
            one[0] = 7  # whatever was written before, the field says something else now
        use(4, 8)

    for _ in range(3):
        y.from_numpy(np.arange(8.0))
        one[0], other[0] = at
        if min(at) < 4 or changes:
            with pytest.raises(GlobalDataAccessError, match="has changed it since"), ds.Tape(loss):
                run()
            continue
        with ds.Tape(loss):
            run()
        assert x.grad.to_numpy().tolist() == [0, 1, 2, 3, 4, 6, 5, 7]
