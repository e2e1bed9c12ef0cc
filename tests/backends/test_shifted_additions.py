"""Lanes side by side that add to elements beside theirs: NumPy's sums, and one update of each row."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.vectors import vectorize

ROWS, ROOM = 7, 150
AHEAD = [(0, 1), (-1, 0, 1), (-1, 1), (0, 0), (-2, 0, 2), (-1, 0, 3, 3), (0, 5), (0, 1, 2, 3, 4, 5)]


@pytest.fixture(autouse=True, params=["512", "256"])
def always(request, monkeypatch):
    """Everything runs as vectors that may, of both lengths."""
    monkeypatch.setenv("DIFFSIM_VECTOR_BITS", request.param)
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def numbers(shape, seed):
    # Small whole numbers: sums are exact in any order.
    return np.random.default_rng(seed).integers(-8, 8, shape).astype("f4")


def four():
    field = ds.field(ds.f32, shape=())
    field[None] = 4
    return field


def adder(t, ahead, n=None):
    """Return fields and a kernel in which lane j adds (k + 1) * a[j] to element j + ahead[k], in n columns.

    Divisions, which no lane makes again for another one, keep it from gathering. None: n is an argument.
    """
    x, a = ds.field(t, shape=(ROWS, ROOM)), ds.field(ds.f32, shape=(ROWS, ROOM))

    divisor = four()

    @ds.func
    def put(i, j):
        value = 64 * a[i, j] / divisor[None] / divisor[None] / divisor[None]
        for k, o in ds.static(enumerate(ahead)):
            x[i, j + o] += ds.cast((k + 1) * value, t)

    if n is None:

        @ds.kernel
        def add(columns: ds.i32):
            for i, j in ds.ndrange(ROWS, (2, 2 + columns)):
                put(i, j)

    else:

        @ds.kernel
        def add():
            for i, j in ds.ndrange(ROWS, (2, 2 + n)):
                put(i, j)

    return x, a, add


def check_sums(made, ahead, n, *args):
    """Launch such a kernel for n columns and compare with NumPy's sums."""
    x, a, add = made
    before, given = numbers((ROWS, ROOM), 1), numbers((ROWS, ROOM), n)
    x.from_numpy(before.astype(x.dtype.numpy))
    a.from_numpy(given)
    add(*args)
    want = before.copy()
    for k, o in enumerate(ahead):
        want[:, 2 + o : 2 + n + o] += (k + 1) * given[:, 2 : 2 + n]
    np.testing.assert_array_equal(x.to_numpy(), want)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("t", [ds.f32, ds.f64, ds.i32])
@pytest.mark.parametrize("ahead", AHEAD)
def test_sums(ahead, t, threads):
    """Rows shorter than a vector, of whole blocks, and with last blocks of one lane and of all but one."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads, offline_cache=False)
    made = adder(t, ahead)
    check_sums(made, ahead, 64, 64)
    assert "shufflevector" in made[2].llvm() or len(set(ahead)) == 1
    for n in (0, 1, 2, 3, 31, 33, 64, 65, 127, 129):
        check_sums(made, ahead, n, n)


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("n", [1, 31, 33])
def test_sums_of_rows_of_known_length(ahead, n):
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    check_sums(adder(ds.f32, ahead, n), ahead, n)


def vector_stores(kernel):
    """Return how many vectors the code for one thread stores in a whole block."""
    text = kernel.llvm()
    alone = text[text.index("@alone0") :].split("\n}")[0]
    return len(re.findall(r"^  store <\d+ x float>", alone, re.MULTILINE))


@pytest.mark.parametrize(("ahead", "stores"), [((-1, 0, 1), 1), ((-1, 1), 1), ((0, 1, 60), 2)])
def test_one_update_for_each_element(ahead, stores):
    """Places far apart are updated one after the other."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    *_, add = adder(ds.f32, ahead, 64)
    add()
    assert vector_stores(add) == stores


def test_what_lanes_that_are_not_at_work_would_add():
    """Lanes behind the last one compute NaN, which reaches no element; negative zeros stay what they are."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    n, divisor = 37, four()
    x, a = ds.field(ds.f32, shape=ROOM), ds.field(ds.f32, shape=ROOM)

    @ds.kernel
    def add():
        for j in range(2, 2 + n):
            value = 1.0 / a[j] / divisor[None] / divisor[None] / divisor[None]
            x[j] += value
            x[j - 1] += value

    x.from_numpy(np.full(ROOM, -0.0, "f4"))
    a.from_numpy(np.where(np.arange(ROOM) < 2 + n, -np.inf, 0).astype("f4"))
    add()
    np.testing.assert_array_equal(np.signbit(x.to_numpy()), True)
    np.testing.assert_array_equal(x.to_numpy(), 0)


@pytest.mark.parametrize("ahead", AHEAD)
def test_elements_that_no_lane_adds_to(ahead):
    """They may be another thread's, so not even -0.0 is added: a signalling NaN would become a quiet one."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    x, a, divisor = ds.field(ds.f32, shape=ROOM), ds.field(ds.f32, shape=ROOM), four()

    @ds.kernel
    def add(n: ds.i32):
        for j in range(2, 2 + n):
            value = a[j] / divisor[None] / divisor[None] / divisor[None]
            for o in ds.static(ahead):
                x[j + o] += value

    for n in (1, 2, 3, 4, 33, 64):
        others = np.ones(ROOM, bool)
        for o in ahead:
            others[2 + o : 2 + n + o] = False
        x.from_numpy(np.where(others, 0x7FA00000, 0).astype("u4").view("f4"))
        add(n)
        np.testing.assert_array_equal(x.to_numpy().view("u4")[others], 0x7FA00000)


def test_threads_add_atomically_to_elements_that_they_share():
    """Two rows may be one, on two threads that run the same lanes: no addition may be a load and a store."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=64, offline_cache=False)
    x, a, divisor = ds.field(ds.f32, shape=(64, 4096)), ds.field(ds.f32, shape=4096), four()
    rows = ds.field(ds.i32, shape=64)

    @ds.kernel
    def add():
        for i, j in ds.ndrange(64, (1, 4090)):
            value = a[j] / divisor[None] / divisor[None] / divisor[None]
            x[rows[i], j] += value
            x[rows[i], j - 1] += value

    add()
    text = add.llvm()
    shared = text[text.index("@task0") :].split("\n}")[0]
    # Of whole blocks and of last ones.
    assert shared.count("atomicrmw fadd") == 4


def test_rows_of_arrays_whose_lengths_are_not_known():
    """Places of two rows are compared where strides are known: all numbers arrive in either case."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    divisor = four()

    @ds.kernel
    def add(x: ds.types.ndarray(), a: ds.types.ndarray(), n: ds.i32):
        for i, j in ds.ndrange(ROWS - 1, (2, 2 + n)):
            value = 64 * a[i, j] / divisor[None] / divisor[None] / divisor[None]
            x[i, j] += value
            x[i + 1, j - 1] += 2 * value

    for room in (50, 70):
        given = numbers((ROWS, room), room)
        found, want = np.zeros_like(given), np.zeros_like(given)
        add(found, given, 39)
        want[:-1, 2:41] += given[:-1, 2:41]
        want[1:, 1:40] += 2 * given[:-1, 2:41]
        np.testing.assert_array_equal(found, want)


def test_only_some_lanes():
    """Under a branch elements between those of lanes at work keep their numbers."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    x, a, divisor = ds.field(ds.f32, shape=ROOM), ds.field(ds.f32, shape=ROOM), four()

    @ds.kernel
    def add():
        for j in range(2, 131):
            value = 64 * a[j] / divisor[None] / divisor[None] / divisor[None]
            if value > 2:
                x[j] += value
                x[j + 1] += 2 * value

    before, given = numbers(ROOM, 1), numbers(ROOM, 2)
    x.from_numpy(before)
    a.from_numpy(given)
    add()
    taken = np.where(given > 2, given, 0)[2:131]
    before[2:131] += taken
    before[3:132] += 2 * taken
    np.testing.assert_array_equal(x.to_numpy(), before)


def test_minima_between_additions():
    """Additions of a lane to its own element are not moved across what limits it."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    x, a, divisor = ds.field(ds.f32, shape=ROOM), ds.field(ds.f32, shape=ROOM), four()

    @ds.kernel
    def add():
        for j in range(2, 131):
            value = 64 * a[j] / divisor[None] / divisor[None] / divisor[None]
            x[j] += value
            ds.atomic_min(x[j], 1.0)
            x[j] += 2 * value

    given = numbers(ROOM, 2)
    a.from_numpy(given)
    add()
    want = np.zeros_like(given)
    want[2:131] = (np.minimum(given, 1) + 2 * given)[2:131]
    np.testing.assert_array_equal(x.to_numpy(), want)


def test_gradient_of_a_staggered_grid():
    """What stencils with quotients add to neighbours, beside differences in f64."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    n = 41
    u, rho = (ds.field(ds.f64, shape=(n, n), needs_grad=True) for _ in range(2))
    v = ds.field(ds.f64, shape=(n, n), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step():
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            across = u[i, j + 1] - u[i, j] + u[i, j - 1] - u[i + 1, j]
            v[i, j] = ds.exp(-across / rho[i, j]) / rho[i, j]

    @ds.kernel
    def total():
        for i, j in v:
            loss[None] += v[i, j] ** 2

    random = np.random.default_rng(0)
    given = [random.random((n, n)) + k for k in range(2)]
    away = [random.standard_normal((n, n)) for _ in range(2)]

    def at(h):
        for f, x, d in zip((u, rho), given, away, strict=True):
            f.from_numpy(x + h * d)
        loss[None] = 0
        with ds.Tape(loss):
            step()
            total()
        return loss[None]

    h = 1e-5
    slope = (at(h) - at(-h)) / (2 * h)
    at(0)
    found = sum((f.grad.to_numpy() * d).sum() for f, d in zip((u, rho), away, strict=True))
    assert found == pytest.approx(slope, rel=1e-7)
