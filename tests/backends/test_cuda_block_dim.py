"""Blocks of the size that the user gave, in everything that the threads of a block do together."""

import functools
import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cuda.ptx import assemble, to_ptx
from tests.support.emulated_kernel import Emulated

every = pytest.mark.parametrize("n", [1, 8, 32, 64, 96, 128, 512, 1024])
ASSEMBLED = {1, 64, 96, 1024}  # of the others only what the threads compute is looked at
few = pytest.mark.parametrize("n", [1, 8, 32, 96, 128])


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    yield
    ds.reset()


@functools.cache
def ptx_of(text):
    return to_ptx(text, 90)


@functools.cache
def assembled(ptx):
    assemble(ptx, 90)


class Sized(Emulated):
    """A kernel whose parallel loops have blocks of n threads; ptxas takes it, and the PTX says so."""

    def __init__(self, kernel, n, **options):
        super().__init__(kernel, block_dim=256, **options)
        parallel = [e for e in self.code.entries if e.kind == "parallel"]
        assert parallel
        assert {e.block_dim for e in parallel} == {n}
        if n not in ASSEMBLED:
            return
        for e in self.code.entries:
            code = self.ptx[self.ptx.index(f".visible .entry {e.name}(") :]
            assert re.search(r"\.maxntid (\d+)\n", code)[1] == str(e.block_dim)
        assembled(self.ptx)

    @property
    def ptx(self):
        return ptx_of(self.code.text)


def rng(seed=0):
    return np.random.default_rng(seed)


@every
@pytest.mark.parametrize("deterministic", [False, True])
def test_sums(n, deterministic):
    """Sums, least and largest, of several types, over a number of lanes that fills no block."""
    lanes = n + 37
    x = ds.field(ds.f64, shape=lanes, needs_grad=True)
    total = ds.field(ds.f64, shape=(), needs_grad=True)
    single, tiny = ds.field(ds.f32, shape=()), ds.field(ds.u8, shape=())
    least = ds.field(ds.f32, shape=())

    @ds.kernel
    def add():
        ds.loop_config(block_dim=n)
        for i in x:
            total[None] += x[i] * x[i]
            single[None] += ds.cast(i, ds.f32)
            tiny[None] += ds.cast(i, ds.u8)
            ds.atomic_min(least[None], ds.cast(x[i], ds.f32))

    values = rng(n).normal(size=lanes)
    x.from_numpy(values)
    add()
    found = []
    machine = Sized(add, n, deterministic=deterministic)
    for _ in range(1 + deterministic):
        for f in (total, single, tiny, least):
            f.fill(0)
        machine(grid=2)
        assert machine.kinds == ["parallel", "combine"][: 1 + deterministic]
        np.testing.assert_allclose(total[None], (values**2).sum(), rtol=1e-13)
        assert single[None] == lanes * (lanes - 1) // 2
        assert tiny[None] == lanes * (lanes - 1) // 2 % 256
        assert least[None] == values.astype(np.float32).min()
        found.append(total[None])
    assert found.count(found[0]) == len(found)
    total.grad[None] = 2.0
    Sized(add, n, grad=True, deterministic=deterministic)()
    np.testing.assert_allclose(x.grad.to_numpy(), 4 * values, rtol=1e-15)


@every
def test_copies_of_small_fields(n):
    """Blocks add to copies in shared memory; their adjoint reads the small field's gradient."""
    lanes, m = 3 * n + 700, 24
    x, at = ds.field(ds.f64, shape=lanes, needs_grad=True), ds.field(ds.i32, shape=lanes)
    bins = ds.field(ds.f64, shape=m, needs_grad=True)
    weights = ds.field(ds.f64, shape=m, needs_grad=True)

    @ds.kernel
    def fill():
        ds.loop_config(block_dim=n)
        for i in x:
            bins[at[i]] += x[i] * weights[(5 * i) % m]

    values, places, factors = (
        rng(1).normal(size=lanes),
        rng(2).integers(0, m, lanes),
        rng(3).random(m),
    )
    x.from_numpy(values)
    at.from_numpy(places.astype(np.int32))
    weights.from_numpy(factors)
    fill()
    bins.fill(0)
    machine = Sized(fill, n)
    # Small blocks have few additions for each element of a copy.
    assert ("_copy0" in machine.ptx) == (n >= 64)
    machine()
    mine = factors[5 * np.arange(lanes) % m]
    np.testing.assert_allclose(bins.to_numpy(), np.bincount(places, values * mine, m), rtol=1e-12)
    seed = rng(4).normal(size=m)
    bins.grad.from_numpy(seed)
    Sized(fill, n, grad=True)()
    np.testing.assert_allclose(x.grad.to_numpy(), seed[places] * mine, rtol=1e-14)
    expected = np.bincount(5 * np.arange(lanes) % m, seed[places] * values, m)
    np.testing.assert_allclose(weights.grad.to_numpy(), expected, rtol=1e-12)


@few
def test_scatters_in_order(n):
    """With deterministic=True one thread adds in order, whatever the blocks should have been."""
    lanes = 300
    x, bins = ds.field(ds.f32, shape=lanes), ds.field(ds.f32, shape=5)

    @ds.kernel
    def fill():
        ds.loop_config(block_dim=n)
        for i in x:
            bins[(7 * i) % 5] += x[i]

    values = rng(5).normal(size=lanes).astype(np.float32)
    x.from_numpy(values)
    fill()
    bins.fill(0)
    machine = Emulated(fill, deterministic=True)
    assert [(e.kind, e.block_dim) for e in machine.code.entries] == [("serial", 1)]
    machine()
    exact = np.zeros(5, np.float32)
    np.add.at(exact, 7 * np.arange(lanes) % 5, values)
    assert bins.to_numpy().tolist() == exact.tolist()


@few
def test_old_values_of_atomics(n):
    lanes = n + 45
    count, order = ds.field(ds.i32, shape=()), ds.field(ds.i32, shape=lanes)

    @ds.kernel
    def queue():
        ds.loop_config(block_dim=n)
        for i in order:
            order[ds.atomic_add(count[None], 1)] = i

    queue()
    count[None] = 0
    machine = Sized(queue, n)
    assert "atom.global.add" in machine.ptx  # blocks run side by side, those of one thread too
    machine()
    assert sorted(order.to_numpy()) == list(range(lanes))


@few
def test_warps_fold_what_all_lanes_add_to(n):
    """An N-body sum: in the adjoint all lanes of a warp add to the same body at a time."""
    lanes, m = n + 19, 6
    x = ds.field(ds.f64, shape=lanes, needs_grad=True)
    body, force = (
        ds.field(ds.f64, shape=m, needs_grad=True),
        ds.field(ds.f64, shape=lanes, needs_grad=True),
    )

    @ds.kernel
    def pull(k: ds.i32):
        ds.loop_config(block_dim=n)
        for i in x:
            for j in range(k):
                force[i] += x[i] * body[j] ** 2

    values, bodies, seed = (
        rng(6).normal(size=lanes),
        rng(7).normal(size=m),
        rng(8).normal(size=lanes),
    )
    x.from_numpy(values)
    body.from_numpy(bodies)
    pull(m)
    force.fill(0)
    Sized(pull, n)(m)
    np.testing.assert_allclose(force.to_numpy(), values * (bodies**2).sum(), rtol=1e-13)
    force.grad.from_numpy(seed)
    machine = Sized(pull, n, grad=True)
    assert ("shfl.sync" in machine.ptx) == (n > 1)
    machine(m, grid=3)
    np.testing.assert_allclose(x.grad.to_numpy(), seed * (bodies**2).sum(), rtol=1e-13)
    np.testing.assert_allclose(
        body.grad.to_numpy(), 2 * bodies * (seed * values).sum(), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("room", ["all", "some", "a few", "one"])
def test_saved_values_of_loops(n, room):
    """Only as many threads take lanes as find room in the arena: whole warps, or part of one."""
    lanes, turns = n + 30, 40
    x, y = (ds.field(ds.f64, shape=lanes, needs_grad=True) for _ in range(2))
    drive = ds.field(ds.f64, shape=turns, needs_grad=True)

    @ds.kernel
    def iterate(k: ds.i32):
        ds.loop_config(block_dim=n)
        for i in x:
            z = x[i]
            for j in range(k):
                z = z + 0.01 * ds.sin(z) * drive[j]
            y[i] = z

    values, seed = rng(9).normal(size=lanes), rng(10).normal(size=lanes)
    forces = rng(11).normal(size=turns)
    x.from_numpy(values)
    drive.from_numpy(forces)
    iterate(turns)
    y.fill(0)
    z = [values]
    for force in forces:
        z.append(z[-1] + 0.01 * np.sin(z[-1]) * force)
    Sized(iterate, n)(turns)
    np.testing.assert_allclose(y.to_numpy(), z[-1], rtol=1e-12)
    adjoint, gradient = seed.copy(), np.zeros(turns)
    for j in reversed(range(turns)):
        gradient[j] = (adjoint * 0.01 * np.sin(z[j])).sum()
        adjoint += adjoint * 0.01 * np.cos(z[j]) * forces[j]
    y.grad.from_numpy(seed)
    machine = Sized(iterate, n, grad=True)
    assert machine.code.layout.arena_bytes is not None
    assert ("shfl.sync" in machine.ptx) == (n > 1)  # warps fold what they add to drive.grad[j]
    threads = {"all": 4 * 1024, "some": 2 * n + 5, "a few": max(1, n // 2 + 3), "one": 1}[room]
    cells = turns + 1  # what each turn and its one segment start from
    machine.blocks.arena = np.zeros(threads * cells + cells // 2)
    machine(turns, grid=3)
    np.testing.assert_allclose(x.grad.to_numpy(), adjoint, rtol=1e-11)
    np.testing.assert_allclose(drive.grad.to_numpy(), gradient, rtol=1e-11, atol=1e-13)


@every
def test_rows_of_lanes_side_by_side(n):
    lanes = 11 * n + 5
    x, y = (ds.field(ds.f64, shape=lanes, needs_grad=True) for _ in range(2))

    @ds.kernel
    def step(a: ds.f64):
        ds.loop_config(block_dim=n)
        for i in x:
            y[i] = a * x[i] + y[i]

    values = rng(11).normal(size=(3, lanes))
    x.from_numpy(values[0])
    step(0.0)
    y.from_numpy(values[1])
    machine = Sized(step, n)
    assert machine.code.entries[0].per_thread == 4
    machine(1.5)
    # The product may be rounded or not, so what counts is the size of the terms, not of their sum.
    terms = abs(1.5 * values[0]) + abs(values[1])
    error = abs(y.to_numpy() - (1.5 * values[0] + values[1]))
    assert (error <= np.finfo(np.float64).eps * terms).all()
    y.grad.from_numpy(values[2])
    Sized(step, n, grad=True)(1.5)
    np.testing.assert_allclose(x.grad.to_numpy(), 1.5 * values[2], rtol=1e-15)


@every
def test_stencils_and_tiles(n):
    """The middle and the rims of a stencil's adjoint are one launch; long rows go in tiles."""
    height, width = 11, 2100
    x, y = (ds.field(ds.f64, shape=(height, width), needs_grad=True) for _ in range(2))

    @ds.kernel
    def step():
        ds.loop_config(block_dim=n)
        for i, j in ds.ndrange((1, height - 1), (1, width - 1)):
            y[i, j] = x[i - 1, j] + 2 * x[i + 1, j] + 3 * x[i, j - 1] + 4 * x[i, j + 1]

    values, seed = rng(12).normal(size=(2, height, width))
    x.from_numpy(values)
    step()
    y.fill(0)
    machine = Sized(step, n)
    machine(grid=3)
    expected = np.zeros((height, width))
    a = values
    expected[1:-1, 1:-1] = a[:-2, 1:-1] + 2 * a[2:, 1:-1] + 3 * a[1:-1, :-2] + 4 * a[1:-1, 2:]
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-14, atol=1e-14)
    y.grad.from_numpy(seed)
    machine = Sized(step, n, grad=True)
    assert "atom." not in machine.ptx
    machine(grid=3)
    inner = np.zeros((height, width))
    inner[1:-1, 1:-1] = seed[1:-1, 1:-1]
    expected = np.zeros((height, width))
    expected[:-1] += inner[1:]
    expected[1:] += 2 * inner[:-1]
    expected[:, :-1] += 3 * inner[:, 1:]
    expected[:, 1:] += 4 * inner[:, :-1]
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14, atol=1e-14)


def test_loops_of_one_kernel_have_blocks_of_their_own():
    """Loops that could be one launch are only if their blocks agree; sums find the right ones."""
    a, b, c, d = (ds.field(ds.f64, shape=300, needs_grad=True) for _ in range(4))
    total = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def run(n: ds.i32):
        ds.loop_config(block_dim=64)
        for i in a:
            a[i] = 1.0
        ds.loop_config(block_dim=64)
        for i in b:
            b[i] = 2.0
        ds.loop_config(block_dim=128)
        for i in c:
            c[i] = 3.0
        for i in d:
            d[i] = 4.0
        ds.loop_config(block_dim=32)
        for i in range(n):
            total[None] += a[i] + b[i] + c[i] + d[i]

    run(0)
    for f in (a, b, c, d):
        f.fill(0)
    machine = Emulated(run, block_dim=256)
    assert [e.block_dim for e in machine.code.entries] == [64, 128, 256, 32]
    machine(300)
    assert total[None] == 3000
    assert all((f.to_numpy() == k + 1).all() for k, f in enumerate((a, b, c, d)))
    joined = Emulated(run, block_dim=128)
    assert [e.block_dim for e in joined.code.entries] == [64, 128, 32]
    total[None] = 0.0
    joined(300)
    assert total[None] == 3000


def test_ptx_shows_it():
    x = ds.field(ds.f32, shape=100, needs_grad=True)
    y = ds.field(ds.f32, shape=100, needs_grad=True)

    @ds.kernel
    def run():
        ds.loop_config(block_dim=192)
        for i in x:
            y[i] = 2 * x[i]
        for i in x:
            ds.atomic_add(y[0], x[i])

    run()
    assert re.findall(r"\.maxntid (\d+)\n", run.ptx()) == ["192", "256"]
    assert re.findall(r"\.maxntid (\d+)\n", run.grad.ptx()) == ["256", "192"]
    ds.init(arch=ds.cpu, default_gpu_block_dim=64)
    run()
    assert re.findall(r"\.maxntid (\d+)\n", run.ptx()) == ["192", "64"]
