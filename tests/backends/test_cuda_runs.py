"""What GPU threads compute, seen on the CPU: kernels, their adjoints, sums in every way they are made."""

import re
from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cuda.codegen import lower
from diffsim.backends.cuda.ptx import assemble, to_ptx
from diffsim.errors import AutodiffError
from diffsim.passes import pipeline
from tests.support.emulated_kernel import Emulated
from tests.support.made_kernels import Maker, Program


@pytest.fixture(autouse=True)
def _f64(quick_code):
    """The CPU's code only says what is right here."""
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    yield
    ds.reset()


# ---- programs made at random


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_made_kernels(tmp_path, seed, deterministic):
    """Kernels and adjoints give what the CPU backend gives, which other tests hold to the truth."""
    random = Random(1000 * seed + deterministic)
    text = Maker(random, random.random() < 0.9).kernel()
    program = Program(text, tmp_path / "made.py")
    try:
        gradients = program.gradients()
    except AutodiffError:
        pytest.skip("refused")
    options = dict(deterministic=deterministic, block_dim=32)
    expected = program.run({})
    forward = Emulated(program.kernel, **options)
    if seed == 1:  # that all rows and statements become PTX is seen in test_cuda_ptx.py
        assert ".entry" in forward.ptx
    program.set()
    forward(grid=3)
    for name, value in expected.items():
        found = program.outputs[name].to_numpy()
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-13, err_msg=text)
    for f in program.inputs.values():
        f.grad.fill(0)
    for name, f in program.outputs.items():
        f.grad.from_numpy(program.seeds[name])
    backward = Emulated(program.kernel, grad=True, **options)
    backward()
    if seed == 1:
        assert ".entry" in backward.ptx
    for name, f in {**program.inputs, **program.outputs}.items():
        np.testing.assert_allclose(
            f.grad.to_numpy(), gradients[name], rtol=1e-10, atol=1e-12, err_msg=text
        )


# ---- rows of lanes


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1100])
def test_lanes_side_by_side(n):
    x, y = (ds.field(ds.f32, shape=n) for _ in range(2))
    total = ds.field(ds.f64, shape=())

    @ds.kernel
    def step(a: ds.f32):
        for i in x:
            y[i] = a * x[i] + y[i]

    @ds.kernel
    def add():
        for i in y:
            total[None] += y[i]

    step(0.0)
    add()
    total[None] = 0.0
    machine = Emulated(step)
    assert machine.code.entries[0].per_thread == 4
    numbers = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    x.from_numpy(numbers[0])
    y.from_numpy(numbers[1])
    machine(1.5, grid=3)
    exact = np.float32(1.5) * numbers[0].astype(np.float64) + numbers[1]
    np.testing.assert_allclose(y.to_numpy(), exact, rtol=1e-6, atol=1e-6)
    Emulated(add)(grid=2)
    np.testing.assert_allclose(total[None], y.to_numpy().astype(np.float64).sum(), rtol=1e-13)


def test_lanes_of_a_box_side_by_side():
    a = ds.field(ds.i32, shape=(9, 11, 13))

    @ds.kernel
    def mark():
        for i, j, k in ds.ndrange((1, 9), (2, 10), 13):
            a[i, j, k] = a[i, j, k] + 100 * i + 10 * j + k

    mark()
    a.fill(0)
    machine = Emulated(mark)
    assert machine.code.entries[0].per_thread > 1
    machine()
    i, j, k = np.meshgrid(*map(np.arange, a.shape), indexing="ij")
    inside = (i >= 1) & (j >= 2) & (j < 10)
    assert (a.to_numpy() == np.where(inside, 100 * i + 10 * j + k, 0)).all()


# ---- small memories that many lanes add to


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64, ds.i32])
def test_copies_in_shared_memory(dtype):
    n, m = 3000, 24
    at = ds.field(ds.i32, shape=n)
    counts = ds.field(dtype, shape=(2, m))
    pairs = ds.Vector.field(2, dtype, shape=m)

    @ds.kernel
    def fill(t: ds.i32):
        for i in at:
            counts[t, at[i]] += 1
            pairs[(3 * i) % m][1] += 2

    fill(0)
    counts.fill(0)
    pairs.fill(0)
    machine = Emulated(fill, block_dim=256)
    code = machine.ptx
    assert code.count("atom.shared.add") == 2
    assert code.count("bar.sync") == 2
    numbers = np.random.default_rng(0).integers(0, m, n)
    at.from_numpy(numbers.astype(np.int32))
    machine(1)
    assert not counts.to_numpy()[0].any()
    assert counts.to_numpy()[1].tolist() == np.bincount(numbers, minlength=m).tolist()
    expected = 2 * np.bincount(3 * np.arange(n) % m, minlength=m)
    assert pairs.to_numpy()[:, 1].tolist() == expected.tolist()
    assert not pairs.to_numpy()[:, 0].any()


def test_few_additions_go_to_memory_directly():
    x = ds.field(ds.f32, shape=1000)
    at = ds.field(ds.i32, shape=20)

    @ds.kernel
    def scatter():
        for i in at:
            x[at[i]] += 1.0

    scatter()
    machine = Emulated(scatter)
    assert "atom.global.add.f32" in machine.ptx
    assert "shared" not in machine.ptx
    x.fill(0.0)
    at.from_numpy(np.arange(20, dtype=np.int32) % 7)
    machine()
    assert x.to_numpy()[:7].tolist() == [3, 3, 3, 3, 3, 3, 2]


# ---- equal bits


def scatters():
    n = 700
    x = ds.field(ds.f32, shape=n)
    at = ds.field(ds.i32, shape=n)
    bins = ds.field(ds.f32, shape=5)
    whole = ds.field(ds.i32, shape=5)
    total, least = ds.field(ds.f32, shape=()), ds.field(ds.f32, shape=())

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i]
            ds.atomic_min(least[None], x[i])

    @ds.kernel
    def spread():
        for i in x:
            bins[at[i]] += x[i]

    @ds.kernel
    def count():
        for i in x:
            whole[at[i]] += 1

    draw = np.random.default_rng(3)
    numbers, places = draw.normal(size=n).astype(np.float32), draw.integers(0, 5, n)

    def reset():
        x.from_numpy(numbers)
        at.from_numpy(places.astype(np.int32))
        for f in (bins, whole, total, least):
            f.fill(0)

    for kernel in (add, spread, count):
        kernel()
    return add, spread, count, bins, whole, total, least, numbers, places, reset


@pytest.mark.parametrize("grid", [1, 2, 5])
def test_sums_in_order(grid):
    add, _, _, _, _, total, least, numbers, _, reset = scatters()
    machine = Emulated(add, deterministic=True)
    assert machine.kinds == ["parallel", "combine"]
    assert "atom." not in machine.ptx
    found = []
    for _ in range(2):
        reset()
        machine(grid=grid)
        found.append(total[None])
        assert least[None] == numbers.min()
    assert found[0] == found[1]
    np.testing.assert_allclose(found[0], numbers.astype(np.float64).sum(), rtol=1e-5)


def test_scatters_in_order():
    _, spread, count, bins, whole, _, _, numbers, places, reset = scatters()
    machine = Emulated(spread, deterministic=True)
    assert machine.kinds == ["serial"]
    assert len(machine.code.ordered) == 1
    reset()
    machine()
    exact = np.zeros(5, np.float32)
    np.add.at(exact, places, numbers)  # one by one, in order
    assert bins.to_numpy().tolist() == exact.tolist()
    machine = Emulated(count, deterministic=True)  # whole numbers are the same in any order
    assert machine.kinds == ["parallel"]
    assert not machine.code.ordered
    machine()
    assert whole.to_numpy().tolist() == np.bincount(places).tolist()


# ---- what the text should and should not have


def test_injective_adjoints_need_no_atomics():
    n = 512
    x, y = (ds.field(ds.f32, shape=(2, n), needs_grad=True) for _ in range(2))
    v = ds.Vector.field(3, ds.f32, shape=n, needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i in range(n):
            y[t, i] = x[t, i] * x[t, i] * v[i].dot(v[i])

    step(0)
    machine = Emulated(step, grad=True)
    assert machine.kinds == ["parallel"]
    assert "atom." not in machine.ptx
    assert ".local" not in machine.ptx
    assert "ld.global.nc" in machine.ptx


def test_stencil_adjoints_need_no_atomics():
    x = ds.field(ds.f32, shape=(2, 64, 64), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange((1, 63), (1, 63)):
            x[t + 1, i, j] = x[t, i - 1, j] + x[t, i + 1, j] + x[t, i, j - 1] - x[t, i, j + 1]

    step(0)
    assert "atom." not in Emulated(step, grad=True).ptx


def test_random_numbers_are_the_cpus():
    x = ds.field(ds.f32, shape=300)
    z = ds.field(ds.f64, shape=300)

    @ds.kernel
    def draw():
        for i in x:
            x[i] = ds.random(ds.f32)
            z[i] = ds.randn(ds.f64) if hasattr(ds, "randn") else ds.random(ds.f64)

    draw()
    (special,) = draw.specializations.values()
    seed = special.executable.params[2] & (2**64 - 1)
    first, second = x.to_numpy(), z.to_numpy()
    x.fill(0.0)
    z.fill(0.0)
    Emulated(draw)(seed=seed)
    assert (x.to_numpy() == first).all()
    np.testing.assert_allclose(z.to_numpy(), second, rtol=1e-14)
    assert len(set(first.tolist())) > 250


@pytest.mark.parametrize("width", [2, 3, 4, 6])
def test_vectors_are_added_to_at_once(width):
    n = 300
    x = ds.Vector.field(width, ds.f32, shape=(2, n))
    at = ds.field(ds.i32, shape=n)

    @ds.kernel
    def scatter(t: ds.i32):
        for i in at:
            x[t, at[i]] += 1.0

    scatter(0)
    (special,) = scatter.specializations.values()
    ir = pipeline.run(special.ir, pipeline.LOWER_CUDA)
    for sm in (75, 80, 90, 100, 120):
        ptx = to_ptx(lower(ir, fast_math=False, sm=sm).text, sm)
        assemble(ptx, sm)
        vectors = {2: ["v2"], 3: [], 4: ["v4"], 6: ["v2", "v2", "v2"]}[width] if sm >= 90 else []
        assert re.findall(r"red\.relaxed\.gpu\.global\.add\.(v\d)\.f32", ptx) == vectors
        left = width - sum(int(v[1]) for v in vectors)
        assert ptx.count("atom.global.add.f32") == left


def test_additions_between_which_something_is_read_stay_in_order():
    x = ds.Vector.field(2, ds.f32, shape=400)
    at = ds.field(ds.i32, shape=400)
    y = ds.field(ds.f32, shape=400)

    @ds.kernel
    def scatter():
        for i in at:
            x[at[i]][0] += 1.0
            y[i] = x[at[i]][1]
            x[at[i]][1] += 1.0

    scatter()
    (special,) = scatter.specializations.values()
    ir = pipeline.run(special.ir, pipeline.LOWER_CUDA)
    ptx = to_ptx(lower(ir, fast_math=False, sm=90).text, 90)
    assert "v2.f32" not in ptx
    assert ptx.count("atom.global.add.f32") == 2


# ---- additions of whole warps


@pytest.mark.parametrize("n", [1, 31, 64, 150])
def test_warps_add_once_to_what_all_lanes_read(n):
    m = 5
    w, x = ds.field(ds.f64, shape=(m, 2), needs_grad=True), ds.field(ds.f64, shape=n)
    count = ds.field(ds.i32, shape=())
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def batch():
        for i in range(n):
            y = x[i]
            for k in range(count[None]):
                y = ds.sin(y * w[k, 0]) + w[k, 1]
            loss[None] += y

    draw = np.random.default_rng(n)
    w.from_numpy(draw.normal(size=(m, 2)))
    x.from_numpy(draw.normal(size=n))
    count[None] = m
    with ds.Tape(loss):
        batch()
    expected = w.grad.to_numpy()
    for room in (1 << 16, 40 * 33, 40 * 7):  # for all, for one warp, for fewer threads than a warp
        machine = Emulated(batch, grad=True)
        machine.blocks.arena = np.zeros(room // 8)
        assert machine.ptx.count("shfl.sync.down.b32") == 2 * 5 * 2
        w.grad.fill(0.0)
        loss.grad[None] = 1.0
        machine()
        np.testing.assert_allclose(w.grad.to_numpy(), expected, rtol=1e-12, atol=1e-14)


def test_lanes_that_go_ways_of_their_own_add_by_themselves():
    w, x = ds.field(ds.f32, shape=4000), ds.field(ds.i32, shape=200)

    @ds.kernel
    def add():
        for i in x:
            for k in range(x[i]):
                w[k] += 1.0
            if x[i] > 2:
                for k in range(3):
                    w[k + 10] += 1.0
            for k in range(4):
                if k > 1:
                    w[k + 20] += 1.0

    add()
    machine = Emulated(add)
    assert machine.code.text.count("call i32 @llvm.nvvm.shfl.sync.down") == 5
    w.fill(0.0)
    x.from_numpy(np.arange(200, dtype=np.int32) % 6)
    machine()
    lanes = np.arange(200) % 6
    exact = np.zeros(4000)
    for k in range(6):
        exact[k] = (lanes > k).sum()
    exact[10:13] = (lanes > 2).sum()
    exact[22:24] = 200
    assert w.to_numpy().tolist() == exact.tolist()


def test_what_one_thread_of_a_warp_computes_is_not_used_by_others():
    x, y = ds.field(ds.f32, shape=(50, 2)), ds.field(ds.f32, shape=(200, 50))

    @ds.kernel
    def add():
        for i in range(200):
            for k in range(40):
                x[k + 3, 1] += 2.0
                y[i, k + 3] = x.shape[0] * 1.0

    add()
    x.fill(0.0)
    y.fill(0.0)
    Emulated(add)()
    assert (x.to_numpy()[3:43, 1] == 400).all()
    assert (y.to_numpy()[:, 3:43] == 50).all()


# ---- several tasks in one launch


@pytest.mark.parametrize("grid", [1, 3, 40])
def test_middle_and_rims_are_one_launch(grid):
    n = 24
    u = ds.field(ds.f64, shape=(2, n, n), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
            u[t + 1, i, j] = u[t, i, j] * u[t, i, j] + around

    step(0)
    numbers = np.random.default_rng(0).normal(size=(2, 2, n, n))
    u.from_numpy(numbers[0])
    step(0)
    u.grad.from_numpy(numbers[1])
    step.grad(0)
    expected = u.grad.to_numpy()
    machine = Emulated(step, grad=True)
    assert len(machine.code.entries) == 2  # all that adds to one state; then the other is cleared
    assert machine.ptx.count("atom.") == 0
    u.from_numpy(numbers[0])
    step(0)
    u.grad.from_numpy(numbers[1])
    machine(0, grid=grid)
    np.testing.assert_allclose(u.grad.to_numpy(), expected, rtol=1e-13)


def entries(kernel, *args):
    kernel(*args)
    return len(Emulated(kernel).code.entries)


def test_what_can_not_run_at_the_same_time_is_not_one_launch():
    n = 40
    x, y, z = (ds.field(ds.f32, shape=n) for _ in range(3))
    w = ds.field(ds.f32, shape=(3, n))
    at = ds.field(ds.i32, shape=n)

    @ds.kernel
    def apart():
        for i in x:
            x[i] = 1.0
        for i in y:
            y[i] = z[i] + 2.0

    @ds.kernel
    def parts():
        for i in range(20):
            x[i] = z[i]
        for i in range(20, 40):
            x[i] = z[39 - i] + x[i]

    @ds.kernel
    def rows(t: ds.i32):
        for i in range(n):
            w[t, i] = 1.0
        for i in range(n):
            w[t + 1, i] = 2.0
        for i in range(n):
            w[t - 1, i] = w[t + 1, i]

    @ds.kernel
    def reads_after():
        for i in x:
            x[i] = 1.0
        for i in y:
            y[i] = x[i]

    @ds.kernel
    def writes_after():
        for i in y:
            y[i] = x[i]
        for i in x:
            x[i] = 1.0

    @ds.kernel
    def neighbours():
        for i in range(20):
            x[i] = 1.0
        for i in range(21, 40):
            x[i - 2] = 2.0

    @ds.kernel
    def anywhere():
        for i in range(20):
            x[i] = 1.0
        for i in range(20, 40):
            x[at[i]] = 2.0

    @ds.kernel
    def chain():
        for i in range(n):
            x[i] = 1.0
        for i in range(n):
            y[i] = 1.0
        for i in range(n):
            z[i] = x[i]

    @ds.kernel
    def other_axis():
        for i in range(3):
            w[i, 0] = 1.0
        for i in range(3, n):
            w[0, i] = w[1, i] + 1.0
        for i in range(3, n):
            w[0, i - 3] = 1.0

    assert entries(apart) == 1
    assert entries(parts) == 1
    assert entries(rows, 1) == 2
    assert entries(reads_after) == 2
    assert entries(writes_after) == 2
    assert entries(neighbours) == 2
    assert entries(anywhere) == 2
    assert entries(chain) == 2
    assert entries(other_axis) == 2
    z.from_numpy(np.arange(n, dtype=np.float32))
    x.fill(5.0)
    Emulated(parts)(grid=1)
    assert x.to_numpy().tolist() == [*range(20), *(k + 5.0 for k in range(19, -1, -1))]


@pytest.mark.parametrize(("m", "n", "grid"), [(10, 514, 1), (13, 600, 3), (23, 700, 50)])
def test_tiles(m, n, grid):
    """Of eight lanes, and where they load more, of four; whole tiles and parts of some."""
    u = ds.field(ds.f64, shape=(2, m, n), needs_grad=True)
    w = ds.field(ds.f64, shape=(3, m, n))
    v = ds.field(ds.f64, shape=(m, n))

    @ds.kernel
    def around():
        for i, j in ds.ndrange((1, m - 1), (1, n - 1)):
            near = u[0, i - 1, j] + u[0, i + 1, j] * u[0, i, j - 1] + u[0, i, j + 1] * u[0, i, j]
            far = u[0, i - 1, j - 1] * u[0, i + 1, j + 1] + u[0, i - 1, j + 1] * u[0, i + 1, j - 1]
            v[i, j] = near - far

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange((1, m - 1), (1, n - 1)):
            u[t + 1, i, j] = u[t, i - 1, j] + 2 * u[t, i + 1, j] + u[t, i, j - 1] * u[t, i, j]

    @ds.kernel
    def shift():
        for k, i, j in ds.ndrange((1, 3), m, (2, n)):
            w[k, i, j] = w[k, i, j] + k * 1e4 + i * 1e3 + j

    numbers = np.random.default_rng(0).normal(size=(2, 2, m, n))
    results = []
    for emulated in (False, True):
        u.from_numpy(numbers[0])
        u.grad.from_numpy(numbers[1])
        w.fill(0.0)
        v.fill(0.0)
        if emulated:
            for kernel in (around, shift):
                Emulated(kernel, block_dim=64)(grid=grid)
            Emulated(step, block_dim=64)(0, grid=grid)
            Emulated(step, grad=True, block_dim=64)(0, grid=grid)
        else:
            around()
            shift()
            step(0)
            step.grad(0)
        results.append([f.to_numpy() for f in (u, u.grad, v, w)])
    for cpu, gpu in zip(*results, strict=True):
        np.testing.assert_allclose(gpu, cpu, rtol=1e-12, atol=1e-14)
