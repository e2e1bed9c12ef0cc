"""Adjoints of stencils that clear what they gather from, chunk by chunk: gradients, and zeros behind them."""

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import chunks, trailing_task
from diffsim.backends.cpu import codegen as cpu
from diffsim.backends.native.jit import Jit
from diffsim.runtime.backend import open_backend
from diffsim.runtime.compiler import llvm_text
from tests.support.lowered import lower


@pytest.fixture
def many(monkeypatch):
    """As many chunks as there may be, also of few lanes."""
    monkeypatch.setattr(chunks, "_CHUNK_WORK", 1)
    monkeypatch.setattr(chunks, "_MOST_CHUNKS", 1000)
    monkeypatch.setattr(cpu, "_FEWEST_CHUNKS", 1)
    monkeypatch.setattr(trailing_task, "_LARGE", 0)


BACKWARDS = """
define i64 @backwards(ptr %pool, ptr %task, ptr %params, i64 %n, i64 %chunks) nounwind {
entry:
  %q = udiv i64 %n, %chunks
  %r = urem i64 %n, %chunks
  br label %head
head:
  %left = phi i64 [ %chunks, %entry ], [ %c, %head ]
  %c = sub i64 %left, 1
  %more = call i64 @llvm.umin.i64(i64 %c, i64 %r)
  %size = mul i64 %c, %q
  %begin = add i64 %size, %more
  %longer = icmp ult i64 %c, %r
  %one = zext i1 %longer to i64
  %length = add i64 %q, %one
  %end = add i64 %begin, %length
  call void %task(ptr %params, i64 %begin, i64 %end, i64 %c, i64 0)
  %done = icmp eq i64 %c, 0
  br i1 %done, label %after, label %head
after:
  ret i64 0
}
declare i64 @llvm.umin.i64(i64, i64)
"""


@pytest.fixture(params=[False, True], ids=["upwards", "backwards"])
def order(request, monkeypatch):
    """Chunks one after the other as they are drawn, or the last one first."""
    monkeypatch.setattr("diffsim.backends.cpu.chunks._QUICK_WORK", 0)  # shared, however little
    compile_ = Jit.compile

    def backwards(jit, text, **options):
        if request.param and "define i64 @ds_parallel_for" not in text:
            lines = [x for x in text.splitlines() if not x.startswith("declare i64 @ds_parallel_")]
            text = "\n".join(lines).replace("@ds_parallel_for", "@backwards") + BACKWARDS
        return compile_(jit, text, **options)

    monkeypatch.setattr(Jit, "compile", backwards)
    monkeypatch.setattr(open_backend("cpu", 0).loaded, "values", {})


def follows(kernel, *args):
    """How far tasks of the adjoint are behind, and whether they run so."""
    adjoint = kernel._only(args).derivative.ir
    (reach,) = {t.lag for t in lower(adjoint).tasks if t.lag is not None} or {None}
    assert ("@behind" in llvm_text(adjoint)) == (reach is not None)
    return reach


def stencil(shape, taps, margin):
    """y = the sum of factor * x at the taps, in a box with these margins; returns fields and kernel."""
    x, y = (ds.field(ds.f64, shape=shape, needs_grad=True) for _ in range(2))
    box = tuple((m, n - m) for m, n in zip(margin, shape, strict=True))

    @ds.kernel
    def line():
        for i in range(box[0][0], box[0][1]):
            s = 0.0
            for tap, factor in ds.static(taps):
                s += factor * x[i + tap[0]]
            y[i] = s

    @ds.kernel
    def plane():
        for i, j in ds.ndrange(*box):
            s = 0.0
            for tap, factor in ds.static(taps):
                s += factor * x[i + tap[0], j + tap[1]]
            y[i, j] = s

    @ds.kernel
    def solid():
        for i, j, k in ds.ndrange(*box):
            s = 0.0
            for tap, factor in ds.static(taps):
                s += factor * x[i + tap[0], j + tap[1], k + tap[2]]
            y[i, j, k] = s

    return x, y, (line, plane, solid)[len(shape) - 1]


SHAPES = [
    ((400,), 2, [(-2,), (1,), (0,)]),
    ((37,), 1, [(-1,), (1,)]),
    ((40, 33), 1, [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]),
    ((61, 7), 3, [(3, 1), (-2, -1), (0, 0)]),
    ((29, 9, 8), 1, [(0, 0, 0), (1, 0, 0), (-1, 0, 0), (0, 1, -1), (0, -1, 1)]),
]


@pytest.mark.usefixtures("many", "order")
@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize(("shape", "margin", "taps"), SHAPES)
def test_gathered_and_cleared(shape, margin, taps, threads):
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads, offline_cache=False)
    factors = [k + 0.5 for k in range(len(taps))]
    x, y, step = stencil(shape, list(zip(taps, factors, strict=True)), [margin] * len(shape))
    rng = np.random.default_rng(0)
    want, inside = np.zeros(shape), tuple(slice(margin, n - margin) for n in shape)
    seed = rng.random(shape)
    for tap, factor in zip(taps, factors, strict=True):
        moved = tuple(slice(margin + t, n - margin + t) for t, n in zip(tap, shape, strict=True))
        want[moved] += factor * seed[inside]
    left = seed.copy()
    left[inside] = 0
    for _ in range(20):
        x.grad.fill(0.0)
        y.grad.from_numpy(seed)
        step.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-13)
        assert (y.grad.to_numpy() == left).all()
    assert follows(step) == max(abs(t[0]) for t in taps)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("threads", [1, 4])
def test_bounds_known_at_the_launch(threads):
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    shape = (3, 50, 6)
    u = ds.field(ds.f64, shape=shape, needs_grad=True)

    @ds.kernel
    def step(t: ds.i32, first: ds.i32, last: ds.i32, wide: ds.i32):
        for i, j in ds.ndrange((first, last), (1, wide)):
            u[t + 1, i, j] = u[t, i - 1, j] * 2.0 + u[t, i + 1, j] * 3.0 + u[t, i, j - 1]

    seed = np.random.default_rng(1).random(shape)
    for first, last, wide in itertools.product((1, 7), (0, 8, 9, 12, 49), (1, 2, 6)):
        u.grad.from_numpy(seed)
        step.grad(1, first, last, wide)
        want = seed.copy()
        g = np.zeros_like(seed[2])
        if last > first:
            g[first:last, 1:wide] = seed[2, first:last, 1:wide]
            want[2, first:last, 1:wide] = 0
        want[1, :-1] += 2 * g[1:]
        want[1, 1:] += 3 * g[:-1]
        want[1, :, :-1] += g[:, 1:]
        np.testing.assert_allclose(u.grad.to_numpy(), want, rtol=1e-13)
    assert follows(step, 1, 1, 8, 6) == 1


def test_large_enough_without_help():
    """With the sizes of chunks as they are: half of the sum of squares after two steps of diffusion."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n = 1100
    u = ds.field(ds.f64, shape=(3, n, n), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
            u[t + 1, i, j] = u[t, i, j] + 0.2 * (around - 4.0 * u[t, i, j])

    start = np.random.default_rng(2).random((3, n, n))
    u.from_numpy(start)
    step(0)
    step(1)
    g = u.to_numpy()[2]
    u.grad.from_numpy(np.stack([0 * g, 0 * g, g]))
    step.grad(1)
    step.grad(0)
    rim = np.pad(g[1:-1, 1:-1] * 0, 1, constant_values=1)
    left = g * rim
    for _ in range(2):
        h = np.pad(g[1:-1, 1:-1], 1)
        padded = np.pad(h, 1)
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        g = h + 0.2 * (around - 4.0 * h)
    found = u.grad.to_numpy()
    np.testing.assert_allclose(found[0], g, rtol=1e-12, atol=1e-14)
    assert (found[1][1:-1, 1:-1] == 0).all()
    np.testing.assert_array_equal(found[2], left)
    assert follows(step, 0) == 1


def test_small_fields_are_cleared_afterwards():
    """Where a cache holds what was gathered from."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y, step = stencil((400, 300), [((-1, 0), 2.0), ((1, 0), 3.0)], (1, 1))
    step()
    adjoint = step._only(()).derivative.ir
    assert 1 in {t.lag for t in lower(adjoint).tasks}
    assert "@behind" not in llvm_text(adjoint)
    y.grad.fill(1.0)
    step.grad()
    assert x.grad.to_numpy()[4, 5] == 5
    assert (y.grad.to_numpy()[1:-1, 1:-1] == 0).all()


def test_where_nothing_follows():
    """A one-sided stencil, a clearing that others need, and one that is not the lane's own."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    n = 64
    x, y, z = (ds.field(ds.f64, shape=n, needs_grad=True) for _ in range(3))
    total = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def one_sided():
        for i in range(1, n - 3):
            y[i] = x[i + 1] + x[i + 2]

    @ds.kernel
    def adds():
        for i in range(1, n - 3):
            y[i] = x[i - 1] + x[i + 1]
            total[None] += z[i] * z[i]

    @ds.kernel
    def sums_only():
        for i in range(1, n - 3):
            y[i] += x[i - 1] + x[i + 1]

    one_sided()
    adds()
    sums_only()
    assert follows(one_sided) is None
    assert follows(adds) is None
    assert follows(sums_only) is None
