"""Launches that keep conditions for their adjoints, where these need no more of what was overwritten."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.record.kept_conditions import known_keeping
from tests.fuzz import conditions
from tests.fuzz.__main__ import trial
from tests.support.gradients import field, numbers

N = 16


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


class Network:
    """A sorting network in place: the gradient by x is the weight of the place that each number goes to."""

    def __init__(self):
        self.x, self.y, self.loss = x, y, loss = field(N), field(N), field()
        self.weight = weight = ds.field(ds.f64, N)
        weight.from_numpy(numbers(N, seed=3))

        @ds.kernel
        def begin():
            for i in x:
                y[i] = x[i]

        @ds.kernel
        def stage(k: ds.i32, j: ds.i32):
            for i in y:
                other = i ^ j
                if other > i:
                    a, b = y[i], y[other]
                    if (a > b) == ((i & k) == 0):
                        y[i] = b
                        y[other] = a

        @ds.kernel
        def total():
            for i in y:
                loss[None] += weight[i] * y[i]

        self.begin, self.stage, self.total = begin, stage, total

    def sort(self, launch):
        for k in (2, 4, 8, 16):
            j = k // 2
            while j:
                launch(k, j)
                j //= 2

    def run(self, between=lambda: None):
        self.begin()
        self.sort(self.stage)
        self.total()
        between()

    def check(self, start):
        expected = np.zeros(N)
        expected[np.argsort(start)] = self.weight.to_numpy()
        np.testing.assert_array_equal(self.x.grad.to_numpy(), expected)
        np.testing.assert_array_equal(self.y.to_numpy(), np.sort(start))


def test_a_sorting_network():
    p = Network()
    for turn in range(4):  # from the second on the recording repeats
        start = numbers(N, seed=turn)
        p.x.from_numpy(start)
        with ds.Tape(p.loss, in_place="save") as tape:
            p.run()
        p.check(start)
        # A byte for each lane and stage, and none of the numbers.
        assert (tape.stats().saved, tape.stats().saved_bytes) == (10, 10 * N)
        # No write of the program's and no number that it follows, so that a pass asks for none.
        assert not tape._known.writes
        assert not tape._known.follows
    start = numbers(N, seed=9)
    p.x.from_numpy(start)
    p.loss[None] = 0.0
    tape.replay()
    tape.backward()
    p.check(start)


def test_what_comes_between():
    """Launches off the tape, other tapes and writes from Python disturb no conditions that a tape has."""
    p = Network()
    tapes, starts = [], [numbers(N, seed=k) for k in range(2)]
    for start in starts:
        p.x.from_numpy(start)
        with ds.Tape(in_place="save") as tape:
            p.run()
        tapes.append(tape)
    p.y.from_numpy(numbers(N, seed=7))
    p.sort(p.stage)
    for tape, start in zip(tapes, starts, strict=True):
        p.x.grad.fill(0.0)
        p.loss.grad[None] = 1.0
        tape.backward(grads={p.loss: 1.0})
        p.y.from_numpy(np.sort(start))
        p.check(start)


def test_a_launch_off_the_tape_in_its_block():
    p = Network()
    for _ in range(3):
        start = numbers(N, seed=4)
        p.x.from_numpy(start)

        def between():
            with ds.ad.no_grad():
                p.sort(p.stage)

        with ds.Tape(p.loss, in_place="save"):
            p.run(between)
        p.check(start)


def _kernel(text):
    """A kernel that changes x in place, on a tape: (gradient by x, whether it kept conditions)."""
    x, loss = field(N), field()
    x.from_numpy(np.concatenate([numbers(N - 4, seed=5) - 0.3, [0.5, 0.25, -0.5, 0.0]]))
    space = {"ds": ds, "x": x, "loss": loss, "N": N}
    from tests.support import source

    source.make(f"@ds.kernel\ndef change():\n    for i in x:\n{text}\n{_TOTAL}", space)
    start = x.to_numpy()
    for _ in range(2):
        x.from_numpy(start)
        with ds.Tape(loss, in_place="save") as tape:
            space["change"]()
            space["change"]()
            space["total"]()
    kept = known_keeping(space["change"]._only(()))
    return start, x.grad.to_numpy(), kept is not None, tape


_TOTAL = """
@ds.kernel
def total():
    for i in x:
        loss[None] += (i + 1.0) * x[i]
"""
WEIGHT = np.arange(1, N + 1)


def test_clamps():
    start, grad, kept, tape = _kernel("        x[i] = ds.min(ds.max(x[i], -0.5), 0.5)")
    # At a tie the derivative goes to the first.
    np.testing.assert_array_equal(grad, WEIGHT * ((start >= -0.5) & (start <= 0.5)))
    assert kept
    assert tape.stats().saved_bytes == 2 * 2 * N


def test_a_rectifier():
    start, grad, kept, _ = _kernel("        if x[i] < 0.0:\n            x[i] = 0.1 * x[i]")
    np.testing.assert_allclose(grad, WEIGHT * np.where(start < 0, 0.01, 1.0), rtol=1e-14)
    assert kept


def test_what_needs_the_numbers():
    start, grad, kept, _ = _kernel("        if x[i] > 0.0:\n            x[i] = x[i] * x[i]")
    np.testing.assert_allclose(grad, WEIGHT * np.where(start > 0, 4 * start**3, 1.0), rtol=1e-14)
    assert not kept


def test_what_needs_nothing():
    _, grad, kept, tape = _kernel("        x[i] = 0.5 * x[i] + 1.0")
    np.testing.assert_allclose(grad, 0.25 * WEIGHT, rtol=1e-14)
    assert not kept
    assert tape.stats().saved == 0


def test_conditions_in_loops_are_copied_as_before():
    text = "        for k in range(3):\n            if x[i] > 0.2 * k:\n                x[i] = 0.9 * x[i]"
    _, grad, kept, _ = _kernel(text)
    assert np.isin(np.round(grad / WEIGHT, 12), np.round(0.9 ** np.arange(7), 12)).all()
    assert not kept


def test_arguments_of_a_replay():
    """The kernel that loads its argument from a field keeps its conditions as well."""
    x, loss = field(N), field()
    start = numbers(N, seed=5) - 0.5

    @ds.kernel
    def change(limit: ds.f64):
        for i in x:
            if x[i] > limit:
                x[i] = limit + 0.5 * (x[i] - limit)

    @ds.kernel
    def total():
        for i in x:
            loss[None] += (i + 1.0) * x[i]

    x.from_numpy(start)
    with ds.Tape(loss, in_place="save") as tape:
        change(0.1)
        change(0.1)
        total()
    for limit in (0.1, -0.2, 0.0):
        x.from_numpy(start)
        loss[None] = 0.0
        tape.replay(limit=limit)
        tape.backward()
        expected = WEIGHT * np.where(start > limit, 0.25, 1.0)
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("snapshots", [1, 2, 8])
def test_in_a_rollout(snapshots):
    p = Network()
    steps = [(k, k >> s) for k in (2, 4, 8, 16) for s in range(1, k.bit_length())]

    def step(t):
        p.stage(*steps[t])

    for turn in range(2):
        start = numbers(N, seed=turn)
        p.x.from_numpy(start)
        with ds.Tape(p.loss, in_place="save"):
            p.begin()
            ds.ad.checkpoint(step, len(steps), state=[p.y], snapshots=snapshots)
            p.total()
        p.check(start)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    for how in ("save", "refuse"):
        assert trial(conditions.make(seed), lambda t: conditions.verdict(t, seed, how)) is None  # noqa: B023
