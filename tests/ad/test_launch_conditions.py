"""Gradients that a launch decides about: by its arguments, or by the numbers in index fields."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.repeat.steady import Steady
from diffsim.errors import GlobalDataAccessError
from diffsim.runtime.kernels import launch_checks
from tests.fuzz import launches
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")


def whole(values):
    made = ds.field(ds.i32, shape=np.shape(values))
    made.from_numpy(np.array(values, np.int32))
    return made


@pytest.fixture
def traced(monkeypatch):
    """The launches whose indices were written down."""
    found = []
    run = launch_checks.TraceRun.accesses

    def counted(self, args):
        found.append(args)
        return run(self, args)

    monkeypatch.setattr(launch_checks.TraceRun, "accesses", counted)
    return found


def summed(x, loss):
    """A kernel that adds up a field, each element with a weight of its own."""
    weights = ds.field(ds.f64, shape=x.shape)
    weights.from_numpy(numbers(*x.shape, seed=7))

    @ds.kernel
    def total():
        for I in ds.grouped(x):
            loss[None] += weights[I] * x[I]

    return total


# ---- arguments


def test_rows_of_two_arguments(traced):
    y, loss = field((6, 4)), field()

    @ds.kernel
    def step(t: ds.i32, u: ds.i32):
        for i in range(4):
            y[u, i] = ds.sin(y[t, i])

    total = summed(y, loss)
    start = numbers(6, 4)

    def program():
        step(0, 1)
        step(1, np.int64(5))
        step(3, 2)
        total()

    y.from_numpy(start)
    check(program, loss, y)
    assert not traced  # the arguments decide
    error = refused(lambda: (step(0, 1), step(3, 3), total()), loss, GlobalDataAccessError)
    assert "t = 3, u = 3: y[3, 0] is read and written in one launch" in error.message
    assert error.span.line == line_of(step, "y[u, i] =")
    assert not np.isnan(y.grad.to_numpy()).any()  # refused before the pass began
    with ds.Tape(loss, in_place="save"):
        step(3, 3)
        total()


def test_a_read_of_a_row_and_a_write_of_its_neighbours():
    x, loss = field((3, 5)), field()

    @ds.kernel
    def shifted(t: ds.i32, s: ds.i32):
        for i in range(4):
            x[s, i + 1] = x[t, i] ** 2

    total = summed(x, loss)
    x.from_numpy(numbers(3, 5))
    check(lambda: (shifted(0, 2), total()), loss, x)
    error = refused(lambda: (shifted(1, 1), total()), loss, GlobalDataAccessError)
    assert "s = 1, t = 1: iteration 1 of this parallel loop reads x[1, 1], and iteration 0" in (
        error.message
    )


def test_ranges_from_arguments(traced):
    minor, loss = field(40), field()

    @ds.kernel
    def coarsen(here: ds.i32, below: ds.i32, n: ds.i32, m: ds.i32):
        for i, c in ds.ndrange(n, m):
            minor[below + i * m + c] = ds.sin(minor[here + i]) * (c + 1)

    total = summed(minor, loss)
    minor.from_numpy(numbers(40))
    # A kernel per level: each reads a range, and fills one after it.
    check(lambda: (coarsen(0, 4, 4, 2), total()), loss, minor)
    check(lambda: (coarsen(30, 0, 10, 3), total()), loss, minor)
    with ds.Tape(loss, in_place="save"):
        coarsen(0, 4, 4, 2)
        coarsen(4, 12, 8, 3)
        total()
    error = refused(lambda: (coarsen(0, 3, 4, 2), total()), loss, GlobalDataAccessError)
    assert "below = 3, here = 0, m = 2, n = 4: iteration" in error.message
    assert "minor[3]" in error.message
    # Neither an empty range nor one in the gaps of the other meets it.
    for n, m in ((0, 3), (3, -1), (-2, 3)):
        check(lambda n=n, m=m: (coarsen(5, 5, n, m), total()), loss, minor)
    traced.clear()

    @ds.kernel
    def strided(a: ds.i32, b: ds.i32):
        for i in range(8):
            minor[3 * i + a] = minor[3 * i + b] ** 2

    for a, b in ((0, 1), (2, 0), (0, 17)):
        check(lambda a=a, b=b: (strided(a, b), total()), loss, minor)
    assert traced  # the ranges overlap, and the elements do not
    error = refused(lambda: (strided(4, 1), total()), loss, GlobalDataAccessError)
    assert "a = 4, b = 1: iteration 1 of this parallel loop reads minor[4]" in error.message


def test_loops_of_one_kernel_after_each_other():
    x, loss = field(24), field()

    @ds.kernel
    def two(a: ds.i32, b: ds.i32):
        for i in range(6):
            x[12 + i] = x[a + i] ** 2
        for i in range(6):
            x[b + i] = 1.5 * i

    total = summed(x, loss)
    x.from_numpy(numbers(24))
    check(lambda: (two(0, 6), total()), loss, x)
    error = refused(lambda: (two(0, 5), total()), loss, GlobalDataAccessError)
    assert "a = 0, b = 5: x[5] is read and written" in error.message


def test_numbers_that_do_not_fit_into_32_bits():
    x, loss = field(8), field()

    @ds.kernel
    def far(a: ds.i64, b: ds.i64, k: ds.i64):
        for i in range(4):
            x[a * k + i] = x[b * k + i] ** 2

    total = summed(x, loss)
    x.from_numpy(numbers(8))
    check(lambda: (far(4, 0, 1), total()), loss, x)
    # 2^32 * 2^32 is 0 in 64 bits: as numbers the ranges are far apart, and out of bounds.
    big = 2**32
    assert "x[0]" in refused(lambda: (far(0, 0, big), total()), loss).message


def test_all_kernels_of_a_tape_are_in_one_error():
    x, out, loss = field((4, 3)), field(8), field()
    slot = whole([1, 1, 2])

    @ds.kernel
    def step(t: ds.i32, u: ds.i32):
        for i in range(3):
            x[u, i] = x[t, i] ** 2

    @ds.kernel
    def scatter():
        for i in range(3):
            out[slot[i]] = x[3, i]

    total = summed(out, loss)
    error = refused(lambda: (step(0, 1), step(2, 2), step(3, 3), scatter(), total()), loss)
    assert isinstance(error, GlobalDataAccessError)
    assert "refused for 2 reasons" in error.message
    assert "t = 2, u = 2: x[2, 0]" in error.message
    assert "iterations 0 and 1 of this parallel loop both store out[1]" in error.message


def test_parameters_named_as_those_of_a_launch_function():
    x = field((4, 3))
    x.from_numpy(numbers(4, 3))

    @ds.kernel
    def step(_args: ds.i32, _since: ds.i32, _k: ds.i32):
        for i in range(3):
            x[_args, i] = _k * x[_since, i] ** 2

    x.grad.fill(1.0)
    step(1, 2, 3)
    step.grad(1, 2, 3)
    np.testing.assert_allclose(x.grad.to_numpy()[2], 1 + 6 * x.to_numpy()[2])
    tape = ds.Tape()
    with tape:
        step(1, 2, 3)
    tape.backward(grads={x: np.ones((4, 3))})


def test_a_gradient_without_a_tape():
    y = field((3, 4))

    @ds.kernel
    def step(t: ds.i32, u: ds.i32):
        for i in range(4):
            y[u, i] = y[t, i] ** 2

    y.from_numpy(numbers(3, 4))
    step(0, 1)
    y.grad.fill(0.0)
    y.grad.from_numpy(np.eye(3, 4, 1))
    step.grad(0, 1)
    expected = np.eye(3, 4, 1)
    expected[0] += 2 * y.to_numpy()[0] * expected[1]
    expected[1] = 0
    np.testing.assert_allclose(y.grad.to_numpy(), expected)
    step(2, 2)
    with pytest.raises(GlobalDataAccessError, match=r"t = 2, u = 2: y\[2, 0\]"):
        step.grad(2, 2)
    np.testing.assert_allclose(y.grad.to_numpy(), expected)


# ---- index fields


def scatter_program(n=8, size=20):
    x, out, loss = field(n), field(size), field()
    slot = whole(np.random.default_rng(3).permutation(size)[:n])

    @ds.kernel
    def scatter():
        for i in x:
            out[slot[i]] = x[i] ** 2

    x.from_numpy(numbers(n))
    return x, slot, scatter, summed(out, loss), loss


def test_stores_through_an_index_field(traced):
    x, slot, scatter, total, loss = scatter_program()
    check(lambda: (scatter(), total()), loss, x)
    for _ in range(5):
        with ds.Tape(loss):
            scatter()
            scatter()
            total()
    assert len(traced) == 1  # once for a version of the index field
    slot[6], slot[3] = 5, 5
    error = refused(lambda: (scatter(), total()), loss, GlobalDataAccessError)
    assert "iterations 3 and 6 of this parallel loop both store out[5]" in error.message
    assert error.span.line == line_of(scatter, "out[slot[i]]")
    scatter()
    with pytest.raises(GlobalDataAccessError, match="iterations 3 and 6"):
        scatter.grad()


def test_an_index_field_that_changes(traced):
    x, slot, scatter, total, loss = scatter_program()
    orders = [np.random.default_rng(k).permutation(20)[:8].astype(np.int32) for k in range(3)]

    def program():
        for order in orders:
            slot.from_numpy(order)
            scatter()
        total()

    error = refused(program, loss, GlobalDataAccessError)
    assert "needs slot as it was" in error.message
    with ds.Tape(loss, in_place="save"):
        program()
    found = x.grad.to_numpy()

    def value(values):
        x.from_numpy(values)
        loss.fill(0)
        program()
        return loss[None]

    start = x.to_numpy()
    for k in range(8):
        step = 1e-6 * np.eye(8)[k]
        wanted = (value(start + step) - value(start - step)) / 2e-6
        assert found[k] == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    # Restored in the middle of the pass, the second order is found to be wrong.
    orders[1][2] = orders[1][7]
    with pytest.raises(
        GlobalDataAccessError, match="iterations 2 and 7 of this parallel loop both"
    ):
        with ds.Tape(loss, in_place="save"):
            program()


def test_a_replay_asks_for_new_numbers():
    x, slot, scatter, total, loss = scatter_program()
    tape = ds.Tape(loss)
    with tape:
        scatter()
        total()
    for order in ([1, 3, 5, 7, 9, 11, 13, 15], [15, 13, 11, 9, 7, 5, 3, 1]):
        slot.from_numpy(np.array(order, np.int32))
        tape.replay()
        tape.backward()
        found = x.grad.to_numpy()
        with ds.Tape(loss):
            scatter()
            total()
        np.testing.assert_array_equal(found, x.grad.to_numpy())
        tape.replay()
    slot[1] = slot[4]
    tape.replay()
    with pytest.raises(GlobalDataAccessError, match="iterations 1 and 4"):
        tape.backward()


def test_a_replay_of_rows():
    y, loss = field((6, 4)), field()

    @ds.kernel
    def step(t: ds.i32, u: ds.i32):
        for i in range(4):
            y[u, i] = ds.sin(y[t, i])

    total = summed(y, loss)
    tape = ds.Tape(loss)
    with tape:
        step(0, 4)
        step(4, 2)
        total()
    start = numbers(6, 4, seed=2)
    y.from_numpy(start)
    tape.replay()
    tape.backward()
    found = y.grad.to_numpy()
    y.from_numpy(start)
    with ds.Tape(loss):
        step(0, 4)
        step(4, 2)
        total()
    np.testing.assert_array_equal(found, y.grad.to_numpy())


def test_steps_of_a_checkpointed_rollout():
    y, loss = field(12), field()
    back = whole(np.random.default_rng(5).permutation(12))

    @ds.kernel
    def shuffle(t: ds.i32):
        for i in range(12):
            y[back[i]] = ds.sin(other[i]) + 0.1 * t

    @ds.kernel
    def keep():
        for i in range(12):
            other[i] = y[i]

    other = field(12)
    total = summed(y, loss)
    start = numbers(12)

    def step(t):
        keep()
        shuffle(t)

    y.from_numpy(start)
    with ds.Tape(loss, in_place="save"):
        for t in range(6):
            step(t)
        total()
    expected = y.grad.to_numpy()
    y.from_numpy(start)
    with ds.Tape(loss):
        ds.ad.checkpoint(step, 6, [y, other], schedule="equidistant", snapshots=2)
        total()
    np.testing.assert_allclose(y.grad.to_numpy(), expected, rtol=1e-13)


# ---- what indices are made of


def test_indices_of_many_kinds():
    x, out, loss = field(12), field((6, 8)), field()
    a, mask, offset = whole([0, 2, 1]), whole([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]), whole(3)
    cell = ds.field(ds.f64, shape=12)
    cell.from_numpy(np.random.default_rng(1).permutation(12) + 0.25)

    @ds.kernel
    def two_loads(s: ds.i32):
        for i, j in ds.ndrange(3, 4):
            out[a[i] + s, 2 * j + s] = x[4 * i + j] ** 2

    @ds.kernel
    def masked():
        first = offset[None]
        for i in range(12):
            if mask[i] == 1:
                p = int(cell[i])
                out[p % 3 + first, p // 3] = x[i] ** 2

    @ds.kernel
    def inner(n: ds.i32):
        for i in range(n):
            for j in range(a[i] + 1):
                out[2 * a[i] + (j > 1), j] = x[3 * i + j] ** 2

    total = summed(out, loss)
    x.from_numpy(numbers(12))
    for launch in (lambda: two_loads(0), lambda: two_loads(1), masked, lambda: inner(3)):
        check(lambda launch=launch: (launch(), total()), loss, x, reset=[out])
    cell[3] = cell[2]
    error = refused(lambda: (masked(), total()), loss, GlobalDataAccessError)
    assert "iterations 2 and 3 of this parallel loop both store out[" in error.message
    cell[3], cell[1] = 20.5, cell[2]
    mask[3] = 0
    check(lambda: (masked(), total()), loss, x, reset=[out])  # 1 and 3 do not store
    a[2] = 2
    error = refused(lambda: (two_loads(1), total()), loss, GlobalDataAccessError)
    assert "s = 1: iterations (1, 0) and (2, 0) of this parallel loop both store out[3, 1]" in (
        error.message
    )
    inner(1)
    error = refused(lambda: (inner(3), total()), loss, GlobalDataAccessError)
    assert "n = 3: iterations 1 and 2 of this parallel loop both store out[4, 0]" in error.message
    check(lambda: (inner(2), total()), loss, x, reset=[out])


def test_vectors_and_their_components():
    v, w, loss = field(6, n=2), field(6, n=2), field()
    p, q = whole([3, 1, 0, 5, 4, 2]), whole([1, 0, 2, 3, 5, 4])

    @ds.kernel
    def parts():
        for i in v:
            w[p[i]].x = v[i].x ** 2
            w[q[i]].y = v[i].y * v[i].x

    @ds.kernel
    def part_and_whole():
        for i in v:
            w[p[i]] = v[i] * 2
            w[q[i]].y = v[i].y * v[i].x

    @ds.kernel
    def total():
        for i in w:
            loss[None] += w[i].x * i + w[i].y * w[i].y

    v.from_numpy(numbers(6, 2))
    check(lambda: (parts(), total()), loss, v)
    error = refused(lambda: (part_and_whole(), total()), loss, GlobalDataAccessError)
    assert "of this parallel loop both store w[" in error.message


def test_arrays_as_arguments():
    out, loss = field(9), field()
    x = ds.ndarray(ds.f64, shape=5, needs_grad=True)
    x.from_numpy(numbers(5))

    @ds.kernel
    def scatter(x: ds.types.ndarray(), slot: ds.types.ndarray(dtype=ds.i32, ndim=1)):
        for i in range(x.shape[0]):
            out[slot[i]] = x[i] ** 2

    total = summed(out, loss)
    order = np.array([4, 8, 0, 2, 1], np.int32)
    with ds.Tape(loss):
        scatter(x, order)
        total()
    found = x.grad.to_numpy()
    weight = np.array([central_difference(scatter, total, x, order, loss, k) for k in range(5)])
    np.testing.assert_allclose(found, weight, rtol=1e-6, atol=1e-8)
    bad = np.array([4, 8, 0, 2, 8], np.int32)
    error = refused(lambda: (scatter(x, bad), total()), loss, GlobalDataAccessError)
    assert "iterations 1 and 4 of this parallel loop both store out[8]" in error.message
    same = ds.ndarray(ds.i32, shape=5)
    same.from_numpy(bad)
    refused(lambda: (scatter(x, same), total()), loss, GlobalDataAccessError)
    same.from_numpy(order)
    with ds.Tape(loss):
        scatter(x, same)
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), found)


def central_difference(scatter, total, x, order, loss, k):
    start, ends = x.to_numpy(), []
    for step in (1e-6, -1e-6):
        moved = start.copy()
        moved[k] += step
        x.from_numpy(moved)
        loss.fill(0)
        scatter(x, order)
        total()
        ends.append(loss[None])
    x.from_numpy(start)
    return (ends[0] - ends[1]) / 2e-6


def test_reads_through_an_index_field_beside_writes():
    x, loss = field(10), field()
    left, right = whole([0, 1, 2, 3]), whole([5, 4, 9, 7])

    @ds.kernel
    def pairs():
        for k in range(4):
            x[left[k]] = x[right[k]] ** 2

    total = summed(x, loss)
    x.from_numpy(numbers(10))
    check(lambda: (pairs(), total()), loss, x)
    right[2] = 1
    error = refused(lambda: (pairs(), total()), loss, GlobalDataAccessError)
    assert (
        "iteration 2 of this parallel loop reads x[1], and iteration 1 writes it" in error.message
    )
    right[2] = 2  # the same iteration's own element, which the square needs
    error = refused(lambda: (pairs(), total()), loss, GlobalDataAccessError)
    assert "x[2] is read and written in one launch" in error.message
    with ds.Tape(loss, in_place="save"):
        pairs()
        total()


def test_an_index_field_that_the_kernel_itself_fills():
    x, out, slot, loss = field(8), field(16), whole(np.zeros(8)), field()

    @ds.kernel
    def two_loops(shift: ds.i32, period: ds.i32):
        for i in x:
            slot[i] = (i + shift) % period
        for i in x:
            out[slot[i] * 2] = x[i] ** 2

    total = summed(out, loss)
    x.from_numpy(numbers(8))
    check(lambda: (two_loops(3, 8), total()), loss, x)
    error = refused(lambda: (two_loops(3, 7), total()), loss, GlobalDataAccessError)
    assert "iterations 0 and 7 of this parallel loop both store out[6]" in error.message
    with ds.Tape(loss, in_place="save"):
        two_loops(1, 8)
        two_loops(2, 8)
        total()
    expected = np.zeros(8)
    np.testing.assert_array_less(expected, np.abs(x.grad.to_numpy()) + 1e-300)


def test_arithmetic_that_the_analysis_does_not_follow(traced):
    x, out, grid, loss = field(6), field(11), field((6, 6)), field()

    @ds.kernel
    def permuted():
        for i in x:
            out[(i * i) % 11] = x[i] ** 2

    @ds.kernel
    def folded():
        for i in x:
            out[(i * i) % 8] = x[i] ** 2

    @ds.kernel
    def sweep(color: ds.i32):
        for i, j in ds.ndrange((1, 5), (1, 5)):
            if (i * i + j) % 2 == color:
                grid[i, j] = ds.sin(grid[i - 1, j] + grid[i, j + 1]) + grid[i, j]

    total, area = summed(out, loss), summed(grid, loss)
    x.from_numpy(numbers(6))
    check(lambda: (permuted(), total()), loss, x)
    for _ in range(3):
        with ds.Tape(loss):
            permuted()
            total()
    assert len(traced) == 1
    error = refused(lambda: (folded(), total()), loss, GlobalDataAccessError)
    assert "iterations 0 and 4 of this parallel loop both store out[0]" in error.message
    grid.from_numpy(numbers(6, 6))
    check(lambda: (sweep(1), area()), loss, grid)
    with ds.Tape(loss, in_place="save"):
        sweep(0)
        sweep(1)
        area()


@pytest.mark.parametrize("whole_vector", [False, True])
def test_a_zero_with_a_sign_is_another_argument(whole_vector):
    x, y, slot, loss = field(5), field(5), whole(np.arange(5)), field()

    @ds.kernel
    def number(a: ds.f64):
        for i in x:
            y[slot[i] if 1.0 / a > 0 else 0] = x[i] ** 2

    @ds.kernel
    def vector(a: ds.types.vector(2, ds.f64)):
        for i in x:
            y[slot[i] if 1.0 / a[1] > 0 else 0] = x[i] ** 2

    def write(a):
        vector(ds.Vector([1.0, a])) if whole_vector else number(a)

    total = summed(y, loss)
    x.from_numpy(numbers(5))
    check(lambda: (write(0.0), total()), loss, x)
    error = refused(lambda: (write(-0.0), total()), loss, GlobalDataAccessError)
    assert "iterations 0 and 1 of this parallel loop both store y[0]" in error.message


def test_a_form_without_conditions_is_preferred(traced):
    w, v, x, loss = field(6, n=2), field(6, n=2), field(6), field()
    flag = whole([1, 0, 1, 1, 0, 0])

    @ds.kernel
    def begin():
        for i in v:
            v[i] = ds.sin(w[i])

    @ds.kernel
    def walls():
        for i in v:
            g = v[i] * 0.5
            if flag[i] == 1:
                v[i] = g + x[i]
                v[i].y = v[i].x * 0.3
            else:
                v[i] = g

    @ds.kernel
    def total():
        for i in v:
            loss[None] += v[i].x * i + v[i].y * v[i].y

    w.from_numpy(numbers(6, 2))
    x.from_numpy(numbers(6, seed=3))
    check(lambda: (begin(), walls(), total()), loss, w, x)
    assert not traced


def test_what_no_launch_can_tell_is_refused():
    x, out, slot, loss = field(8), field(8), whole(np.arange(8)), field()

    @ds.kernel
    def own_numbers():
        for i in x:
            slot[i] = 7 - slot[i]
            out[slot[i]] = x[i] ** 2

    @ds.kernel
    def by_chance():
        for i in x:
            out[ds.random(ds.i32) % 8] = x[i] ** 2

    total = summed(out, loss)
    for kernel in (own_numbers, by_chance):
        error = refused(lambda kernel=kernel: (kernel(), total()), loss, GlobalDataAccessError)
        assert "two iterations of this parallel loop may write the same element" in error.message


@pytest.mark.parametrize("seed", range(5, 11))
def test_random_loops(seed):
    text = launches.make(seed)
    for how in ("refuse", "save"):
        assert launches.verdict(text, seed, how) in ("right", "refused", "invalid"), text


def test_the_random_loops_are_of_both_kinds():
    found = set()
    for seed in range(20, 30):
        found.add(launches.verdict(launches.make(seed), seed))
        if found >= {"right", "refused"}:
            return
    pytest.fail(f"all of them: {found}")


def test_an_index_field_that_is_written_before_each_turn_and_in_it():
    """A tape that repeats its recording restores what Python wrote before this turn, not the first one."""
    x, y, loss, place = field(4), field(4), field(), whole([0, 1, 2, 3])

    @ds.kernel
    def spread():
        for i in x:
            y[place[i]] = ds.sin(x[i])
        for i in x:
            place[i] = 0

    total = summed(y, loss)
    x.from_numpy(numbers(4))

    def turn(places):
        place.from_numpy(np.array(places, np.int32))
        with ds.Tape(loss, in_place="save") as tape:
            spread()
            total()
        return tape

    weights = numbers(4, seed=7)
    for places in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        turn(places)
        assert np.allclose(x.grad.to_numpy(), weights[places] * np.cos(numbers(4)))
    with pytest.raises(GlobalDataAccessError, match=r"iterations 0 and 2 .* both store"):
        turn([1, 0, 1, 3])
    tape = turn([1, 0, 2, 3])
    # A replay begins with what is there now, too.
    place.from_numpy(np.array([1, 0, 1, 3], np.int32))
    tape.replay()
    with pytest.raises(GlobalDataAccessError, match=r"iterations 0 and 2 .* both store"):
        tape.backward()


def test_turns_that_come_to_rest(monkeypatch):
    """A steady tape asks before its pass, too: what is refused leaves the gradients as they were."""
    x, y, loss, place = field(4), field(6), field(), whole([0, 1, 2, 3])

    @ds.kernel
    def spread():
        for i in x:
            y[place[i]] = ds.sin(x[i])

    total = summed(y, loss)
    x.from_numpy(numbers(4))
    weights = numbers(6, seed=7)
    steady = []
    end = Steady.end
    monkeypatch.setattr(Steady, "end", lambda *a, **b: steady.append(end(*a, **b)) or steady[-1])

    def turn(places):
        place.from_numpy(np.array(places, np.int32))
        with ds.Tape(loss):
            spread()
            total()

    def right(places):
        return np.allclose(x.grad.to_numpy(), weights[places] * np.cos(numbers(4)))

    for places in (
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [5, 0, 2, 4],
        [5, 0, 2, 4],
        [1, 5, 0, 2],
        [0, 1, 2, 3],
    ):
        turn(places)
        assert right(places)
    assert steady[-2:] == [True, True]
    for _ in range(2):
        with pytest.raises(
            GlobalDataAccessError, match=r"iterations 0 and 2 .* both store"
        ) as caught:
            turn([1, 0, 1, 3])
        assert caught.value.span.line == line_of(spread, "y[place[i]] =")
        assert not np.isnan(x.grad.to_numpy()).any()  # refused before the pass began
    turn([4, 3, 2, 1])
    assert right([4, 3, 2, 1])
