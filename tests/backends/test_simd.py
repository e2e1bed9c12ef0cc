"""Tasks whose lanes run together, as vectors: the same as one lane after the other, and NumPy."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd.simd_width import choose_simd_width
from diffsim.ir.types import converted
from diffsim.passes import pipeline
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.support.lowered import lower

SIZES = [1, 5, 16, 63, 64, 129]


@pytest.fixture
def always(monkeypatch):
    """Everything runs wide that may."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)


def is_wide(kernel, *args):
    """Whether each task of a kernel with axes runs wide."""
    kernel(*args)
    return found_wide(kernel._only(args).ir)


def found_wide(ir):
    found = [t.simd is not None for t in lower(ir).tasks if t.axes]
    assert found
    return all(found)


def floats(n, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).uniform(-1, 1, n).astype(dtype)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_an_inner_loop_and_its_gradient(n, dtype):
    """x = x^2 / 2 + c, 20 times; the derivatives carried forward by hand, in f64."""
    ds.init(arch=ds.cpu)
    t = getattr(ds, dtype)
    x, c, y = (ds.field(t, shape=n, needs_grad=True) for _ in range(3))

    @ds.kernel
    def iterate():
        for i in x:
            z = x[i]
            for _ in range(20):
                z = z * z * 0.5 + c[i]
            y[i] = z

    a, b = floats(n), floats(n, 1) * 0.5
    x.from_numpy(a.astype(x.to_numpy().dtype))
    c.from_numpy(b.astype(x.to_numpy().dtype))
    a, b = x.to_numpy().astype(float), c.to_numpy().astype(float)
    assert is_wide(iterate) == (n >= 8)
    y.grad.fill(1.0)
    iterate.grad()
    dx, dc = 1.0, 0.0
    for _ in range(20):
        dx, dc, a = a * dx, a * dc + 1, a * a / 2 + b
    tolerance = 1e-4 if dtype == "f32" else 1e-12
    np.testing.assert_allclose(y.to_numpy(), a, rtol=tolerance)
    np.testing.assert_allclose(x.grad.to_numpy(), dx, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(c.grad.to_numpy(), dc, rtol=tolerance)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("n", SIZES)
def test_lanes_that_go_different_ways(n):
    """Bounds, branches and while conditions that differ, with what only some lanes may touch."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y = ds.field(ds.f64, shape=n), ds.field(ds.f64, shape=n)
    turns, out = ds.field(ds.i32, shape=n), ds.field(ds.i32, shape=n)

    @ds.kernel
    def ways():
        for i in x:
            s = 0.0
            count = 0
            for k in range(i % 7 - 2, turns[i]):
                if x[(i + k) % n] > 0.0:
                    for m in range(k):
                        s += x[i] * m
                elif k == 3:
                    continue
                else:
                    s -= x[turns[i] % n]
                if s > 6.0:
                    break
                count += 1
            while s > 0.5:
                s *= 0.7
                count += 10
                if count > 60:
                    break
            if i > n - 3:
                s += 2.0
            elif turns[i] > 0:
                count += 100 // turns[i]
            y[i] = s
            out[i] = count

    a, t = floats(n, 2), np.random.default_rng(3).integers(0, 9, n)
    x.from_numpy(a)
    turns.from_numpy(t.astype(np.int32))
    assert is_wide(ways)
    for i in range(n):
        s, count = 0.0, 0
        for k in range(i % 7 - 2, t[i]):
            if a[(i + k) % n] > 0:
                for m in range(k):
                    s += a[i] * m
            elif k == 3:
                continue
            else:
                s -= a[t[i] % n]
            if s > 6:
                break
            count += 1
        while s > 0.5:
            s *= 0.7
            count += 10
            if count > 60:
                break
        if i > n - 3:
            s += 2
        elif t[i] > 0:
            count += 100 // t[i]
        assert y[i] == pytest.approx(s, rel=1e-12)
        assert out[i] == count


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("n", SIZES)
def test_neighbours_that_only_some_lanes_have(n):
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y = ds.field(ds.f64, shape=n, needs_grad=True), ds.field(ds.f64, shape=n, needs_grad=True)

    @ds.kernel
    def smooth():
        for i in x:
            s = 1.0
            for k in range(-3, 4):
                if i + k >= 0 and i + k < n:
                    s = s * ds.cos(x[i + k])
                    if k > 1:
                        y[i] = s
            y[i] = s

    a = floats(n, 12)
    x.from_numpy(a)
    y.grad.fill(1.0)
    assert is_wide(smooth)
    smooth.grad()
    near = [[j for j in range(i - 3, i + 4) if 0 <= j < n] for i in range(n)]
    want = np.array([np.cos(a[j]).prod() for j in near])
    np.testing.assert_allclose(y.to_numpy(), want, rtol=1e-12)
    slope = [-np.tan(a[j]) * sum(want[i] for i in range(n) if j in near[i]) for j in range(n)]
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-11)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", SIZES)
def test_sums_and_scattered_updates(n, threads):
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    at, hits = ds.field(ds.i32, shape=n), ds.field(ds.i32, shape=8)
    most, least = ds.field(ds.i32, shape=8), ds.field(ds.f64, shape=())
    total, shared = ds.Vector.field(2, ds.f64, shape=()), ds.field(ds.f64, shape=5)
    flags, w = ds.field(ds.u8, shape=8), ds.field(ds.f64, shape=n)

    @ds.kernel
    def update():
        for i in at:
            for k in range(5):
                shared[k] += w[i] * k
                if k < at[i]:
                    hits[at[i]] += 1
            ds.atomic_max(most[at[i]], i)
            ds.atomic_min(least[None], w[i])
            ds.atomic_or(flags[at[i]], ds.u8(1) << ds.u8(i % 8))
            total[None] += [w[i], 1.0]

    place, weight = np.random.default_rng(4).integers(0, 8, n).astype(np.int32), floats(n, 5)
    at.from_numpy(place)
    w.from_numpy(weight)
    update()
    assert found_wide(update._only(()).ir)
    last, flag = np.zeros(8, int), np.zeros(8, int)
    np.maximum.at(last, place, np.arange(n))
    np.bitwise_or.at(flag, place, 1 << np.arange(n) % 8)
    counts = np.bincount(place, minlength=8)
    assert (hits.to_numpy() == counts * np.minimum(np.arange(8), 5)).all()
    assert (most.to_numpy() == last).all()
    assert (flags.to_numpy() == flag).all()
    assert least[None] == min(0, weight.min())
    np.testing.assert_allclose(shared.to_numpy(), weight.sum() * np.arange(5), atol=1e-12)
    np.testing.assert_allclose(total[None], [weight.sum(), n], atol=1e-12)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("shape", [(3, 5), (4, 33), (2, 3, 20), (7, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_several_axes_arrays_and_arguments(shape, dtype):
    """ndarrays, whose strides are known at the launch only; a row that no W divides."""
    ds.init(arch=ds.cpu)
    t = ds.f32 if dtype is np.float32 else ds.f64

    @ds.kernel
    def powers(
        a: ds.types.ndarray(dtype=t), b: ds.types.ndarray(dtype=t), n: ds.i32, factor: ds.f64
    ):
        for index in ds.grouped(a):
            s = a[index] * 0
            p = a[index] * 0 + 1
            for k in range(n):
                s += p
                p *= a[index] * ds.cast(factor, t)
            b[index] = s

    a = floats(int(np.prod(shape)), 6, dtype).reshape(shape)
    b = np.zeros(shape, dtype)
    powers(a, b, 6, 0.5)
    want = sum((a.astype(float) * 0.5) ** k for k in range(6))
    np.testing.assert_allclose(b, want, rtol=1e-5 if dtype is np.float32 else 1e-12)


def mixed(n, threads):
    """Values, derivatives and a sum, as bytes."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x, y = ds.field(ds.f32, shape=n, needs_grad=True), ds.field(ds.f32, shape=n, needs_grad=True)
    total = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def mix():
        for i in x:
            z = x[i]
            for _ in range(9):
                z = ds.sin(z) * ds.exp(-z) + ds.tanh(z * z) ** 1.5
            y[i] = z
            total[None] += z

    assert is_wide(mix)
    x.fill(0.7)
    mix()
    y.grad.fill(1.0)
    total.grad[None] = 0.5
    mix.grad()
    assert len(np.unique(y.to_numpy())) == 1
    assert len(np.unique(x.grad.to_numpy())) == 1
    x.from_numpy(np.abs(floats(n, 7, np.float32)))
    total[None] = 0
    mix()
    assert np.isfinite(y.to_numpy()).all()
    return y.to_numpy().tobytes(), x.grad.to_numpy().tobytes(), total[None]


def test_the_same_bits_wherever_an_element_stands():
    """Functions, in every lane, and in chunks for any number of threads."""
    assert len({mixed(1003, threads) for threads in (1, 2, 5)}) == 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("n", SIZES)
def test_gradients_of_loops_that_differ(n):
    """Saved values of a for and a while whose numbers of turns differ, against differences."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    turns = ds.field(ds.i32, shape=n)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def walk():
        for i in x:
            z = x[i]
            for k in range(turns[i], -2, -1):
                for _ in range(k):
                    z = ds.sin(z) + 0.3 * x[(i + k) % n]
                if k % 2 == 0 and z > 0.0:
                    z = z * z
            while z < 2.0:
                z = 1.3 * z + 0.5 * z * z + 0.4
            loss[None] += z * (1 + i % 3)

    a = floats(n, 8)
    turns.from_numpy(np.random.default_rng(9).integers(-3, 5, n).astype(np.int32))
    x.from_numpy(a)
    with ds.Tape(loss):
        walk()
    assert is_wide(walk)
    assert found_wide(walk._only(()).derivative.ir)
    gradient = x.grad.to_numpy()

    def value(at):
        x.from_numpy(at)
        loss[None] = 0
        walk()
        return loss[None]

    direction, h = floats(n, 10), 1e-6
    slope = (value(a + h * direction) - value(a - h * direction)) / (2 * h)
    assert gradient @ direction == pytest.approx(slope, rel=1e-6)


@pytest.mark.usefixtures("always")
def test_lanes_that_depend_on_each_other_run_alone():
    ds.init(arch=ds.cpu)
    x, old = ds.field(ds.f32, shape=64), ds.field(ds.i32, shape=64)
    counter = ds.field(ds.i32, shape=())

    @ds.kernel
    def reads_neighbour():
        for i in range(1, 64):
            for k in range(3):
                x[i] = x[i - 1] + k

    @ds.kernel
    def takes_a_number():
        for i in old:
            for _ in range(2):
                old[i] = ds.atomic_add(counter[None], 1)

    @ds.kernel
    def stores_twice():
        for i in range(63):
            for k in range(2):
                x[i + k] = i

    @ds.kernel
    def keeps_to_itself():
        for i in x:
            for k in range(3):
                x[i] = x[i] * k

    assert not is_wide(reads_neighbour)
    assert not is_wide(takes_a_number)
    assert not is_wide(stores_twice)
    assert is_wide(keeps_to_itself)


def test_where_it_pays():
    """Loops that LLVM vectorizes by itself, straight code and short rows stay as they are."""
    ds.init(arch=ds.cpu)
    x, s = ds.field(ds.f32, shape=(4096, 256)), ds.field(ds.f32, shape=4096)
    short = ds.field(ds.f32, shape=4)

    @ds.kernel
    def rows():
        for i in s:
            for j in range(256):
                s[i] += x[i, j]

    @ds.kernel
    def straight():
        for i in s:
            s[i] = s[i] * 2.0

    @ds.kernel
    def few():
        for i in short:
            z = short[i]
            for _ in range(9):
                z = z * z
            short[i] = z

    @ds.kernel
    def columns():
        for j in range(256):
            z = 0.0
            for i in range(4096):
                z = 0.5 * z + x[i, j]
            s[j] = z

    assert not is_wide(rows)
    assert not is_wide(straight)
    assert not is_wide(few)
    assert is_wide(columns)


def bits(t, n):
    """Results and derivatives of arithmetic and random numbers, and whether it ran wide."""
    ds.init(arch=ds.cpu, random_seed=5)
    x, c, y, noise = (ds.field(t, shape=n, needs_grad=True) for _ in range(4))

    @ds.kernel
    def mix():
        for i in x:
            z = x[i]
            for k in range(30):
                z = z * z * 0.5 + c[i] / (1.0 + z * z) - 0.3 * k
                if z > 3.0:
                    z = ds.sqrt(z + 1.0)
                z = ds.max(z, -2.0) + 0.1 * ds.random(t)
            noise[i] = ds.random(t)
            y[i] = z

    x.from_numpy(floats(n, 13, x.to_numpy().dtype))
    c.from_numpy(floats(n, 14, x.to_numpy().dtype))
    vectors = is_wide(mix)
    y.grad.fill(1.0)
    mix.grad()
    return vectors, [f.to_numpy().tobytes() for f in (y, noise, x.grad, c.grad)]


@pytest.mark.parametrize("t", [ds.f32, ds.f64])
def test_arithmetic_gives_the_bits_of_one_lane_after_the_other(t, monkeypatch):
    together, first = bits(t, 203)
    monkeypatch.setattr(vectorize, "_task", lambda task, has_masks, few: task)
    alone, second = bits(t, 203)
    assert together
    assert not alone
    assert first == second


def test_a_maximum_finds_the_lane_that_reached_it():
    """The adjoint, lane after lane, computes the bits that the vectors gave."""
    ds.init(arch=ds.cpu)
    n = 203
    x, most = ds.field(ds.f32, shape=n, needs_grad=True), ds.field(ds.f32, shape=4, needs_grad=True)

    @ds.kernel
    def highest():
        for i in x:
            z = x[i]
            for _ in range(9):
                z = ds.sin(z) * ds.exp(0.1 * z) + 0.3 * z
            ds.atomic_max(most[i % 4], z)

    a = np.abs(floats(n, 15))
    x.from_numpy(a.astype(np.float32))
    most.fill(-9.0)
    assert is_wide(highest)
    most.grad.fill(1.0)
    highest.grad()
    z, slope = x.to_numpy().astype(float), 1.0
    for _ in range(9):
        slope *= np.exp(0.1 * z) * (np.cos(z) + 0.1 * np.sin(z)) + 0.3
        z = np.sin(z) * np.exp(0.1 * z) + 0.3 * z
    want = np.zeros(n)
    for k in range(4):
        winner = k + 4 * int(np.argmax(z[k::4]))
        want[winner] = slope[winner]
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("always")
def test_text_written_by_hand_runs_alone():
    ds.init(arch=ds.cpu)
    x = ds.field(ds.f64, shape=64)

    @ds.func_native("%r = fmul double %x, %x\nret double %r")
    def square(x: ds.f64) -> ds.f64: ...

    @ds.kernel
    def run():
        for i in x:
            for _ in range(3):
                x[i] = square(x[i]) + 0.1

    x.fill(0.5)
    assert not is_wide(run)
    assert x[63] == pytest.approx(((0.35**2) + 0.1) ** 2 + 0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(8,), (64,), (129,), (3, 40), (2, 64), (300_000,)])
def test_extremes_of_neighbours(shape, dtype):
    """NaN counts as nothing, in whole blocks and in the last one of a row; infinities count."""
    ds.init(arch=ds.cpu)
    t = ds.f32 if dtype == np.float32 else ds.f64
    most, least, middle = (ds.field(t, shape=()) for _ in range(3))
    x = ds.field(t, shape=shape)

    @ds.kernel
    def extremes(y: ds.types.ndarray()):
        for i in ds.grouped(x):
            ds.atomic_max(most[None], x[i])
            ds.atomic_min(least[None], 2 * x[i] - y[i])
            middle[None] += 1

    h = np.random.default_rng(1).normal(size=(2, *shape)).astype(dtype)
    for special, at in ((np.nan, 0), (-np.nan, -1), (np.inf, 5), (-np.inf, 6)):
        h[0].ravel()[at] = special
        most[None], least[None], middle[None] = -np.inf, np.inf, 0
        x.from_numpy(h[0])
        extremes(h[1])
        assert most[None] == np.nanmax(h[0])
        assert least[None] == np.nanmin(2 * h[0] - h[1])
        assert middle[None] == h[0].size
    assert found_wide(extremes._only((h[1],)).ir)
    x.fill(np.nan)
    most[None], least[None] = -3, np.inf
    extremes(h[1])
    assert (most[None], least[None]) == (-3, np.inf)


def test_extremes_that_llvm_finds():
    """Other elements than neighbours, functions, whole numbers: the loop over lanes is left to LLVM."""
    ds.init(arch=ds.cpu)
    x, k = ds.Vector.field(2, ds.f32, shape=100), ds.field(ds.i32, shape=100)
    most, last = ds.field(ds.f32, shape=()), ds.field(ds.i32, shape=())

    @ds.kernel
    def length():
        for i in x:
            ds.atomic_max(most[None], x[i].norm())

    @ds.kernel
    def sine():
        for i in k:
            ds.atomic_max(most[None], ds.sin(ds.f32(k[i])))

    @ds.kernel
    def latest():
        for i in k:
            ds.atomic_max(last[None], k[i])

    h = np.random.default_rng(0).random((100, 2), np.float32)
    x.from_numpy(h)
    k.from_numpy(np.arange(100, dtype=np.int32) - 100)
    last[None] = -500
    assert not any(is_wide(kernel) for kernel in (length, latest))
    assert most[None] == pytest.approx(np.linalg.norm(h, axis=1).max(), rel=1e-6)
    assert last[None] == -1
    most[None] = -1
    assert not is_wide(sine)
    assert most[None] == pytest.approx(np.sin(np.arange(-100.0, 0)).max(), rel=1e-6)


def test_functions_before_scattered_updates():
    """LLVM vectorizes no lanes that may meet; where functions are called, it pays all the same."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n = 1000
    angle, bins = ds.field(ds.f64, shape=n, needs_grad=True), ds.field(ds.f64, shape=40)
    where = ds.field(ds.i32, shape=n)
    angle.from_numpy(floats(n))
    where.from_numpy((np.arange(n) ** 2 % 40).astype(np.int32))

    @ds.kernel
    def scatter():
        for i in angle:
            bins[where[i]] += ds.sin(angle[i]) / (1 + ds.cos(angle[i]))

    @ds.kernel
    def plain():
        for i in angle:
            bins[where[i]] += angle[i]

    assert is_wide(scatter)
    exact = np.zeros(40)
    np.add.at(exact, where.to_numpy(), np.tan(angle.to_numpy() / 2))
    np.testing.assert_allclose(bins.to_numpy(), exact, rtol=1e-12, atol=1e-12)
    assert not is_wide(plain)


@pytest.mark.parametrize("threads", [1, 2])
def test_neighbours_that_add_to_one_element(cpu, threads):
    """The gradient of a convolution's weights: LLVM would add up one lane after the other."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    count, channels, n = 40, 3, 21
    x = ds.field(ds.f64, shape=(count, n + 1))
    w = ds.field(ds.f64, shape=(channels, 2), needs_grad=True)
    y = ds.field(ds.f64, shape=(count, channels, n), needs_grad=True)

    @ds.kernel
    def convolve():
        for b, c, i in y:
            y[b, c, i] = ds.max(w[c, 0] * x[b, i] + w[c, 1] * x[b, i + 1], 0.0)

    given, weights, seed = floats((count, n + 1)), floats((channels, 2), 1), floats(y.shape, 2)
    x.from_numpy(given)
    w.from_numpy(weights)
    convolve()
    y.grad.from_numpy(seed)
    convolve.grad()
    both = np.stack([given[:, :-1], given[:, 1:]], -1)
    passed = seed * (np.einsum("bik,ck->bci", both, weights) > 0)
    exact = np.einsum("bci,bik->ck", passed, both)
    np.testing.assert_allclose(w.grad.to_numpy(), exact, rtol=1e-12)
    assert found_wide(convolve._only(()).derivative.ir)


def test_clearing_a_vector_calls_nothing(cpu):
    """A call of memset for 16 bytes would keep LLVM from vectorizing the lanes of an adjoint."""
    s = ds.Vector.field(4, ds.f32, shape=(3, 64), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i in range(64):
            s[t + 1, i] = s[t, i] * s[t, i]

    step(0)
    made = Jit().optimized(step.grad.llvm())
    assert "@llvm.memset" not in made
    assert re.search(r"fmul contract <\d+ x float>", made)


@pytest.mark.parametrize("t", [ds.i8, ds.i32, ds.i64, ds.u32])
def test_floats_become_integers_as_vectors(t, cpu):
    """Also those that do not fit; LLVM's own conversion is one lane after the other."""
    ends = [np.inf, -np.inf, np.nan, 0.5, -0.5, -1.0, 127.5, -128.5, 2.0**31, -(2.0**31), 2.0**63]
    ends = np.array(ends, np.float32)
    given = np.concatenate([ends, np.nextafter(ends, np.float32(0)), np.float32([1e30, -1e30])])
    x, y = ds.field(ds.f32, shape=len(given)), ds.field(t, shape=len(given))
    x.from_numpy(given)

    @ds.kernel
    def convert():
        for i in x:
            y[i] = ds.cast(x[i], t)

    convert()
    np.testing.assert_array_equal(y.to_numpy(), converted(given, t))
    if t is ds.i32:  # for others it depends on the processor
        assert re.search(r"fptosi <\d+ x float>", Jit().optimized(convert.llvm()))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cells", ["neighbours", "own colour", "mixed"])
def test_sweeps_in_colours(cells, threads):
    """Cells that read those of the other colour run wide; those that read their own one after the other."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads, rules="lifted")
    h, w = 37, 41
    x, b = (ds.field(ds.f64, shape=(h, w), needs_grad=True) for _ in range(2))
    far, near = {"neighbours": (1, 1), "own colour": (1, 2), "mixed": (3, 2)}[cells]

    @ds.kernel
    def sweep(color: ds.i32, n: ds.i32):
        for i, j in ds.ndrange((3, n - 3), (3, w - 3)):
            if (i - j) % 2 == color:
                x[i, j] = 0.3 * (x[i - far, j] + x[i, j + near]) + ds.sin(b[i, j])

    def expected(x, b, color, back=False):
        cells = [(i, j) for i in range(3, h - 3) for j in range(3, w - 3) if (i - j) % 2 == color]
        for i, j in reversed(cells) if back else cells:
            if back:
                g, x[i, j] = x[i, j], 0.0
                x[i - far, j] += 0.3 * g
                x[i, j + near] += 0.3 * g
            else:
                x[i, j] = 0.3 * (x[i - far, j] + x[i, j + near]) + np.sin(b[i, j])
        return x

    start, values = floats((h, w)), floats((h, w), 1)
    x.from_numpy(start)
    b.from_numpy(values)
    has_masks = session.jit.vector_bits >= 512
    assert is_wide(sweep, 1, h) == (has_masks and cells == "neighbours")
    narrow = pipeline.lower(debug=False, deterministic=False, vector_bits=256)
    assert not any(t.simd for t in pipeline.run(sweep._only((1, h)).ir, narrow).tasks)
    if cells != "neighbours":
        return
    np.testing.assert_allclose(x.to_numpy(), expected(start, values, 1), rtol=1e-13)
    # Cells of the other colour gather, those inside wide; the rest clears, and computes nothing for others.
    adjoint = lower(sweep._only((1, h)).derivative.ir)
    assert any(t.simd is not None for t in adjoint.tasks) or not has_masks
    x.grad.from_numpy(start)
    sweep.grad(1, h)
    np.testing.assert_allclose(
        x.grad.to_numpy(), expected(start, values, 1, back=True), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("t", [ds.i8, ds.i32, ds.i64, ds.u8, ds.u32])
def test_quotients_by_powers_of_two(t, cpu):
    """Of all signs, against Python; by 1 and by the largest power of the type as well."""
    ends = t.limits
    numbers = sorted({int(k) for k in (*ends, *range(-9 if ends[0] else 0, 10), ends[1] // 2)})
    powers = (1, 2, 8, 1 << (t.bits - 2))
    x = cpu.field(t, shape=len(numbers))
    found = cpu.Matrix.field(2, len(powers), t, shape=len(numbers))

    @cpu.kernel
    def divide():
        for i in x:
            for k in cpu.static(range(4)):
                found[i][0, k] = x[i] // t(powers[k])
                found[i][1, k] = x[i] % t(powers[k])

    x.from_numpy(np.array(numbers, t.numpy))
    divide()
    wanted = [[[n // p for p in powers], [n % p for p in powers]] for n in numbers]
    np.testing.assert_array_equal(found.to_numpy(), np.array(wanted, t.numpy))


@pytest.mark.parametrize("first", [0, 3])
def test_counters_of_loops_that_lanes_leave_early(first):
    """What counts iterations is one number for all active lanes, in later strips of the loop, too."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, longest = 37, 4000
    table, found = ds.field(ds.f64, shape=longest + first), ds.field(ds.i32, shape=n)
    total, last = ds.field(ds.f64, shape=n), ds.field(ds.i32, shape=n)

    @ds.kernel
    def walk():
        for i in found:
            s, left = 0.0, 7 * i
            for k in range(first, longest + first):
                if found[i] == k:
                    break
                s += table[k] * (1.0 + 0.001 * i) + ds.sqrt(table[longest + first - 1 - k + first])
                left += 1
            total[i] = s
            last[i] = left

    ends = np.random.default_rng(3).integers(0, longest + 500, n).astype("i4")
    numbers = np.random.default_rng(4).uniform(0, 1, longest + first)
    found.from_numpy(ends)
    table.from_numpy(numbers)
    assert is_wide(walk)
    assert "masked.gather" not in walk.llvm()
    there = (ends >= first) & (ends < longest + first)
    stops = np.where(there, ends, longest + first)
    steps, lanes = np.arange(first, longest + first), np.arange(n)
    added = numbers[steps] * (1 + 0.001 * lanes[:, None])
    added += np.sqrt(numbers[longest + 2 * first - 1 - steps])
    exact = np.where(steps < stops[:, None], added, 0).sum(1)
    np.testing.assert_allclose(total.to_numpy(), exact, rtol=1e-12)
    np.testing.assert_array_equal(last.to_numpy(), 7 * lanes + stops - first)


@pytest.mark.parametrize(("count", "in_vectors"), [(4, False), (30, True)])
@pytest.mark.parametrize("in_branches", [False, True])
def test_lanes_with_many_stores_far_apart(cpu, count, in_vectors, in_branches):
    """LLVM would look through all scalar stores of all lanes for vectors, which takes seconds."""
    x = ds.field(ds.f64, shape=45, needs_grad=True)
    y = ds.field(ds.f64, shape=(45, 30), needs_grad=True)

    @ds.kernel
    def powers():
        for i in x:
            t = ds.f64(1.0)
            for k in ds.static(range(count)):
                t = t * x[i] + 1.0
                if ds.static(not in_branches):
                    y[i, k] = t
                elif x[i] > 0.02 * k:
                    y[i, k] = t

    values = np.linspace(0.0, 1.0, 45)
    x.from_numpy(values)
    powers()
    seeds = np.random.default_rng(3).uniform(-1, 1, (45, 30))
    y.grad.from_numpy(seeds)
    powers.grad()
    t, dt, derivative = np.ones(45), np.zeros(45), np.zeros(45)
    for k in range(count):
        t, dt = t * values + 1.0, dt * values + t
        made = (values > 0.02 * k) | (not in_branches)
        np.testing.assert_allclose(y.to_numpy()[:, k], np.where(made, t, 0.0), rtol=1e-12)
        derivative += np.where(made, dt * seeds[:, k], 0.0)
    np.testing.assert_allclose(x.grad.to_numpy(), derivative, rtol=1e-10)
    assert is_wide(powers) == in_vectors


def test_lanes_wait_for_chains(cpu):
    """A loop whose operations wait for each other takes more registers than there are; others do not."""
    x, more = (cpu.Vector.field(k, cpu.f32, shape=512) for k in (5, 9))

    @cpu.kernel
    def chain():
        for i in x:
            y, z = x[i], x[i]
            for _ in range(20):
                for k in cpu.static(range(5)):
                    y[k] = z[k] - y[(k + 4) % 5] * y[k]
            x[i] = y

    @cpu.kernel
    def apart():
        for i in more:
            y, z = more[i], more[i]
            for _ in range(20):
                for k in cpu.static(range(9)):
                    y[k] = z[k] - y[k] * y[k]
            more[i] = y

    jit = Jit(vector_bits=256)
    found = [choose_simd_width(lower(k._only(()).ir).tasks[0], jit) for k in (chain, apart)]
    if jit.vector_bits == 256:
        assert found == [32, 8]
    start = floats((512, 5)).astype("f4") / 8
    x.from_numpy(start)
    chain()
    want = start.astype("f8")
    for _ in range(20):
        for k in range(5):
            want[:, k] = start[:, k] - want[:, (k + 4) % 5] * want[:, k]
    np.testing.assert_allclose(x.to_numpy(), want, rtol=1e-4, atol=1e-6)
