"""Long bodies cut into parts: the same as in one function, and NumPy."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import outline
from diffsim.passes.vectors import vectorize
from diffsim.runtime.compiler import llvm_text
from tests.support.lowered import lower

SIZES = [1, 16, 37]


@pytest.fixture
def short(monkeypatch):
    """Parts of three statements."""
    monkeypatch.setattr(outline, "_LONGEST", 4)
    monkeypatch.setattr(outline, "_MOST_NESTED", 4)
    monkeypatch.setattr(outline, "_PART", 3)


@pytest.fixture(params=[False, True], ids=["alone", "together"])
def together(request, monkeypatch):
    """Lanes one after the other, and as vectors."""
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    if not request.param:
        monkeypatch.setattr(vectorize, "may_run_together", lambda task, has_masks: False)
    return request.param


def functions(text):
    """The lines of each function, by its name."""
    return {
        re.search(r"@(\w+)", f)[1]: f.count("\n") for f in f"\n{text}".split("\ndefine ")[1:]
    }  # fmt: skip


def floats(n, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, n)


def orbit(n, turns, dtype=ds.f64):
    """Turns of p, q = A (p, q) along a static loop: the kernel and its fields."""
    x, v, y = (ds.Vector.field(2, dtype, shape=n, needs_grad=True) for _ in range(3))

    @ds.kernel
    def run():
        for i in x:
            p = x[i]
            q = v[i]
            for _ in ds.static(range(turns)):
                q -= 0.01 * p
                p += 0.01 * q
            y[i] = p

    return x, v, y, run


@pytest.mark.filterwarnings("ignore:more than 500 iterations")
@pytest.mark.parametrize(("n", "turns"), [(3, 600), (40, 1000)])
def test_many_turns_and_their_gradient(n, turns):
    """Linear turns: their matrix to the power of their number, and its transpose."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, v, y, run = orbit(n, turns)
    x.from_numpy(a := floats((n, 2)))
    v.from_numpy(b := floats((n, 2), 1))
    run()
    y.grad.fill(1.0)
    run.grad()
    step = np.array([[1.0, 0.01], [0.0, 1.0]]) @ np.array([[1.0, 0.0], [-0.01, 1.0]])
    top = np.linalg.matrix_power(step, turns)[0]
    np.testing.assert_allclose(y.to_numpy(), top[0] * a + top[1] * b, rtol=1e-11)
    np.testing.assert_allclose(x.grad.to_numpy(), top[0], rtol=1e-11)
    np.testing.assert_allclose(v.grad.to_numpy(), top[1], rtol=1e-11)
    ir = run._only(()).ir
    (task,) = lower(ir).tasks
    assert (task.simd is not None) == (n >= 8)
    found = functions(llvm_text(ir))
    assert sum(name.startswith("part") for name in found) == -(
        -len(task.body.stmts) // outline._PART
    )
    assert max(found.values()) < 2 * outline._PART


def test_branches_count_with_what_is_in_them():
    """A few hundred branches, one after the other: NumPy, with the derivative carried forward."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n, turns = 40, 240
    x, y = ds.field(ds.f64, shape=n, needs_grad=True), ds.field(ds.f64, shape=n)
    z = ds.field(ds.f64, shape=n, needs_grad=True)

    @ds.kernel
    def run():
        for i in x:
            a = x[i]
            for j in ds.static(range(turns)):
                if a > 0.4 + 0.002 * j:
                    a = ds.sin(a) * y[i]
                else:
                    a = ds.sqrt(a * a + y[i] + 0.1 * (j % 3))
            z[i] = a

    x.from_numpy(a := floats(n))
    y.from_numpy(b := np.abs(floats(n, 1)))
    run()
    z.grad.fill(1.0)
    run.grad()
    slope, taken = np.ones(n), np.zeros(n)
    for j in range(turns):
        above = a > 0.4 + 0.002 * j
        root = np.sqrt(a * a + b + 0.1 * (j % 3))
        slope *= np.where(above, np.cos(a) * b, a / root)
        a = np.where(above, np.sin(a) * b, root)
        taken += above
    assert ((taken > 20) & (taken < turns - 20)).any()
    np.testing.assert_allclose(z.to_numpy(), a, rtol=1e-11)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-9, atol=1e-300)
    adjoint = run._only(()).derivative.ir
    assert max(len(t.body.stmts) for t in lower(adjoint).tasks) < outline._LONGEST
    found = functions(llvm_text(adjoint))
    assert sum(name.startswith("part") for name in found) > 5
    assert max(found.values()) < sum(found.values()) / 5


def test_lanes_that_llvm_would_take_too_long_for():
    """Long lanes run together, short ones where they load what an index tells."""
    ds.init(arch=ds.cpu)
    at = ds.field(ds.i32, shape=64)
    x, y = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=64)

    def unrolled(turns, *, scattered):
        @ds.kernel
        def run():
            for i in x:
                z = x[i]
                if ds.static(scattered):
                    z = y[at[i]]
                for _ in ds.static(range(turns)):
                    z = z * z + 0.5
                x[i] = z

        run()
        (task,) = lower(run._only(()).ir).tasks
        return task.simd is not None

    assert not unrolled(200, scattered=False)
    assert unrolled(400, scattered=False)
    assert unrolled(20, scattered=True)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("n", SIZES)
def test_whatever_is_handed_on(n, together):
    """Indices, flags, words and floats, across branches and loops, with sums and scattered updates."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    at = ds.field(ds.i32, shape=n)
    x, y, z = ds.field(ds.f64, shape=(2, n)), ds.field(ds.f64, shape=n), ds.field(ds.f64, shape=n)
    hits, long = ds.field(ds.i32, shape=8), ds.field(ds.i64, shape=n)
    total = ds.field(ds.f64, shape=())

    @ds.kernel
    def mix(row: ds.i32, scale: ds.f32):
        for i in at:
            last = n - 1 - i
            here = 2 * i - i
            a = x[row, i]
            b = x[1 - row, last]
            k = at[i]
            positive = a > b
            big = ds.cast(k, ds.i64) * 3_000_000_000 + here
            small = ds.cast(a, ds.f32)
            ds.atomic_add(hits[k], 1)
            c = a * b
            if positive:
                c = c + b
                for j in range(k):
                    c += a * j
            d = x[row, here] + ds.sin(c)
            total[None] += d
            y[i] = d * scale
            z[i] = ds.select(positive, ds.cast(small, ds.f64), b)
            long[i] = big + k

    places = np.random.default_rng(2).integers(0, 8, n).astype(np.int32)
    at.from_numpy(places)
    x.from_numpy(values := floats((2, n), 3))
    mix(1, 2.0)
    a, b = values[1], values[0, ::-1]
    c = np.where(a > b, a * b + b + a * places * (places - 1) / 2, a * b)
    d = a + np.sin(c)
    ir = mix._only((1, 2.0)).ir
    assert (lower(ir).tasks[0].simd is not None) == together
    assert sum(name.startswith("part") for name in functions(llvm_text(ir))) > 5
    np.testing.assert_allclose(y.to_numpy(), 2 * d, rtol=1e-12, atol=1e-14)
    want = np.where(a > b, a.astype(np.float32), b)
    np.testing.assert_allclose(z.to_numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(total[None], d.sum(), rtol=1e-11, atol=1e-12)
    i = np.arange(n, dtype=np.int64)
    assert (long.to_numpy() == places * np.int64(3_000_000_001) + i).all()
    assert (hits.to_numpy() == np.bincount(places, minlength=8)).all()


@pytest.mark.usefixtures("short", "together")
@pytest.mark.parametrize("threads", [1, 3])
def test_what_all_lanes_add_to(threads):
    """Weights that all lanes read, and the gradients that they add to copies of them."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    n = 20_000
    w, x = ds.field(ds.f64, shape=7, needs_grad=True), ds.field(ds.f64, shape=n)
    at, loss = ds.field(ds.i32, shape=n), ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def layer():
        for i in x:
            s = 0.0
            for k in ds.static(range(6)):
                s += w[k] * w[at[i]] * x[i]
            loss[None] += s * s

    at.from_numpy(places := np.random.default_rng(4).integers(0, 7, n).astype(np.int32))
    w.from_numpy(weights := floats(7, 5))
    x.from_numpy(a := floats(n, 6))
    layer()
    loss.grad[None] = 1.0
    layer.grad()
    own = weights[places] * a
    s = weights[:6].sum() * own
    np.testing.assert_allclose(loss[None], (s * s).sum(), rtol=1e-11)
    through = np.bincount(places, 2 * s * weights[:6].sum() * a, 7)
    through[:6] += (2 * s * own).sum()
    np.testing.assert_allclose(w.grad.to_numpy(), through, rtol=1e-10)


@pytest.mark.usefixtures("short", "together")
@pytest.mark.parametrize("n", SIZES)
def test_blocks_in_loops_and_what_their_adjoints_saved(n):
    """z = z^2 / 2 + c[i + k] in a loop, unrolled four times; the derivative carried forward, in NumPy."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y = ds.field(ds.f64, shape=n, needs_grad=True), ds.field(ds.f64, shape=n, needs_grad=True)
    c = ds.field(ds.f64, shape=n + 3)

    @ds.kernel
    def turns(m: ds.i32):
        for i in x:
            z = x[i]
            for k in range(m):
                for _ in ds.static(range(4)):
                    z = z * z * 0.5 + c[i + k]
            y[i] = z

    x.from_numpy(a := floats(n, 8))
    c.from_numpy(b := 0.4 * floats(n + 3, 9))
    turns(3)
    y.grad.fill(1.0)
    turns.grad(3)
    slope = np.ones(n)
    for k in range(3):
        for _ in range(4):
            a, slope = a * a / 2 + b[k : k + n], a * slope
    np.testing.assert_allclose(y.to_numpy(), a, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-10, atol=1e-14)
    adjoint = turns._only((3,)).derivative.ir
    assert sum(name.startswith("part") for name in functions(llvm_text(adjoint))) > 5


@pytest.mark.usefixtures("short", "together")
@pytest.mark.parametrize("n", SIZES)
def test_both_sides_of_a_branch(n, monkeypatch):
    """Each is cut, the code around them is not; both find the same index, and yield a number."""
    monkeypatch.setattr(outline, "_LONGEST", 10)
    monkeypatch.setattr(outline, "_MOST_NESTED", 10)
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    at, out = ds.field(ds.i32, shape=n), ds.field(ds.i32, shape=n)
    x, y = ds.field(ds.f64, shape=8), ds.field(ds.f64, shape=n)

    @ds.kernel
    def sides():
        for i in at:
            k = at[i]
            s, m = 0.0, 0
            if k > 3:
                for j in ds.static(range(4)):
                    s += x[k] * x[j]
                    m += k * j
            else:
                for j in ds.static(range(4)):
                    s -= x[k] + x[j]
                    m -= k + j
            y[i] = s + x[k]
            out[i] = m + k

    at.from_numpy(k := np.random.default_rng(10).integers(0, 8, n).astype(np.int32))
    x.from_numpy(a := floats(8, 11))
    sides()
    want = np.where(k > 3, a[k] * a[:4].sum(), -4 * a[k] - a[:4].sum()) + a[k]
    np.testing.assert_allclose(y.to_numpy(), want, rtol=1e-12, atol=1e-14)
    assert (out.to_numpy() == np.where(k > 3, 6 * k, -4 * k - 6) + k).all()


@pytest.mark.usefixtures("short")
def test_serial_code():
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x = ds.field(ds.f64, shape=4)

    @ds.kernel
    def serial(n: ds.i32) -> ds.f64:
        a = x[n]
        for k in ds.static(range(9)):
            a = a * 0.5 + x[(n + k) % 4]
        return a

    x.from_numpy(values := floats(4, 7))
    found = serial(2)
    a = values[2]
    for k in range(9):
        a = a * 0.5 + values[(2 + k) % 4]
    assert found == pytest.approx(a, rel=1e-13)
    assert any(name.startswith("part") for name in functions(llvm_text(serial._only((2,)).ir)))
