"""Replays of tapes with solves: values and gradients of new inputs; what is refused; random programs."""

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import solves
from tests.support.gradients import field, numbers

N = 4


class World:
    """p -> b -> x by a solve or a root -> loss."""

    def __init__(self):
        self.p, self.b, self.x, self.r = p, b, x, r = [field(N) for _ in range(4)]
        self.rate = rate = field(grad=False)
        self.loss = loss = field()
        rate.fill(1.0)

        @ds.kernel
        def make():
            for i in p:
                b[i] = ds.sin(p[i]) + 2.0

        @ds.kernel
        def residual(scale: ds.f64):
            for i in r:
                r[i] += x[i] ** 3 * scale + rate[None] * x[i] - b[i]

        @ds.kernel
        def decay(scale: ds.f64):
            for i in p:
                b[i] = b[i] * scale

        @ds.kernel
        def measure():
            for i in x:
                loss[None] += (i + 1) * x[i]

        self.make, self.residual, self.decay, self.measure = make, residual, decay, measure
        self.scale = 1.0
        p.from_numpy(numbers(N))

    def root(self):
        ds.ad.implicit_root(lambda: self.residual(self.scale), unknown=self.x, output=self.r)

    def record(self, solve, spoil=lambda: None, **options):
        tape = ds.Tape(self.loss, **options)
        with tape:
            self.make()
            solve()
            self.measure()
            spoil()
        return tape

    def slope_by_hand(self):
        """d loss / d p of the root: 3 x^2 dx + dx = cos(p) dp."""
        x, p = self.x.to_numpy(), self.p.to_numpy()
        return np.arange(1, N + 1) * np.cos(p) / (3 * x**2 + self.rate[None])


@pytest.fixture
def world(cpu, quick_code):
    return World()


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(cpu, quick_code, seed):
    text = solves.make(seed)
    for way in ("save", "replay") if seed % 2 else ("lifted", "replay"):
        assert solves.verdict(text, seed, way) == "right", text


def test_a_matrix_is_as_recorded_if_it_is_an_array_and_as_it_is_if_it_is_a_field(world):
    a = numbers(N, N) + 3 * np.eye(N)
    was = a.copy()
    tape = world.record(lambda: ds.ad.linear_solve(a, world.b, world.x))
    a[:] = 7.0
    world.p.from_numpy(numbers(N, seed=5))
    tape.replay()
    tape.backward()
    seed, p = np.linalg.solve(was.T, np.arange(1, N + 1)), world.p.to_numpy()
    np.testing.assert_allclose(world.p.grad.to_numpy(), seed * np.cos(p), rtol=1e-12)
    # Entries in a field, in places of another field; one of the places is an array.
    entries, columns = field(N), ds.field(ds.i32, shape=N)
    rows = np.arange(N)
    entries.fill(2.0)
    columns.from_numpy(np.arange(N, dtype=np.int32))
    tape = world.record(lambda: ds.ad.linear_solve((entries, [rows, columns]), world.b, world.x))
    rows[:] = 0
    entries.fill(4.0)
    columns.from_numpy(np.arange(N, dtype=np.int32)[::-1].copy())
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(world.x.to_numpy(), (np.sin(p) + 2)[::-1] / 4)
    np.testing.assert_allclose(entries.grad.to_numpy(), -np.arange(N, 0, -1) * (np.sin(p) + 2) / 16)


def test_a_root_again_and_again(world):
    tape = world.record(world.root)
    for k in range(3):
        world.p.from_numpy(numbers(N, seed=k))
        tape.replay()
        tape.backward()
        np.testing.assert_allclose(world.p.grad.to_numpy(), world.slope_by_hand(), rtol=1e-10)
        x = world.x.to_numpy()
        np.testing.assert_allclose(x**3 + x, np.sin(world.p.to_numpy()) + 2, rtol=1e-10)


def test_an_observed_backward_pass_after_a_replay(world):
    """Hooks look at each adjoint: the pass is the tape's own, with what the replay has kept."""
    tape = world.record(world.root)
    steps = []
    tape.on_backward(lambda step, grads: steps.append(step))
    world.p.from_numpy(numbers(N, seed=2))
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(world.p.grad.to_numpy(), world.slope_by_hand(), rtol=1e-10)
    assert steps == [2, 1, 0]


def test_what_the_function_reads_may_not_change_after_the_replay(world):
    tape = world.record(world.root)
    tape.replay()
    world.rate.fill(2.0)
    with pytest.raises(ds.GlobalDataAccessError, match="needs rate as it was"):
        tape.backward()
    # On the tape it is saved; what is set before a replay counts.
    tape = world.record(world.root, lambda: world.rate.fill(9.0), in_place="save")
    np.testing.assert_allclose(
        world.p.grad.to_numpy() * (3 * world.x.to_numpy() ** 2 + 2),
        np.arange(1, N + 1) * np.cos(world.p.to_numpy()),
    )
    world.rate.fill(5.0)
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(
        world.p.grad.to_numpy() * (3 * world.x.to_numpy() ** 2 + 5),
        np.arange(1, N + 1) * np.cos(world.p.to_numpy()),
    )
    assert world.rate[None] == 9.0


def test_a_function_that_is_another_one_now_is_refused(world):
    tape = world.record(world.root)
    world.scale = 2.0
    with pytest.raises(ds.AutodiffError, match="a replay would solve another equation"):
        tape.replay()
    with pytest.raises(ds.AutodiffError, match="did not run to its end"):
        tape.backward()
    world.scale = 1.0
    tape.replay()
    tape.backward()
    np.testing.assert_allclose(world.p.grad.to_numpy(), world.slope_by_hand(), rtol=1e-10)


def test_arguments_of_a_replay(world):
    """Kernels of the record get a new number; those that a function launches cannot."""

    def solve():
        world.decay(0.5)
        ds.ad.linear_solve(2 * np.eye(N), world.b, world.x)

    tape = world.record(solve, in_place="save")
    tape.replay(scale=3.0)
    tape.backward()
    p = world.p.to_numpy()
    np.testing.assert_allclose(world.p.grad.to_numpy(), 1.5 * np.arange(1, N + 1) * np.cos(p))
    tape = world.record(world.root)
    with pytest.raises(ds.AutodiffError, match="scale is an argument of residual") as raised:
        tape.replay(scale=3.0)
    assert "implicit_root(lambda" in str(raised.value)
    assert "0-D field" in str(raised.value)


def test_a_solve_that_fails_in_a_replay(world):
    matrix = field((N, N))
    matrix.from_numpy(np.eye(N))
    tape = world.record(lambda: ds.ad.linear_solve(matrix, world.b, world.x))
    matrix.fill(1.0)
    with pytest.raises(ds.SolveError, match="singular"):
        tape.replay()
    with pytest.raises(ds.AutodiffError, match="did not run to its end"):
        tape.backward()
    matrix.from_numpy(2 * np.eye(N))
    tape.replay()
    tape.backward()
    expected = 0.5 * np.arange(1, N + 1) * np.cos(world.p.to_numpy())
    np.testing.assert_allclose(world.p.grad.to_numpy(), expected)


def test_what_a_tape_with_a_solve_holds_and_that_it_is_not_saved(world, tmp_path):
    tape = world.record(lambda: ds.ad.linear_solve(np.eye(N), world.b, world.x))
    # The matrix, its factors and the scaled copy of it, the solution.
    assert tape.stats().held_bytes == 8 * (N * N + 2 * N * N + N)
    with pytest.raises(ds.AutodiffError, match="linear_solve solves in Python") as raised:
        tape.save(str(tmp_path / "tape.npz"))
    assert "ds.ad.linear_solve(np.eye(N)" in str(raised.value)
    assert not list(tmp_path.iterdir())
