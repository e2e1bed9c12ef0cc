"""What kernels compute on a real GPU: every type, layout and size of block, sums, mathematics."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("t", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"])
def test_every_type(gpu, t):
    ds = gpu
    dtype = getattr(ds, t)
    n = 10007
    x, y = ds.field(dtype, shape=n), ds.field(dtype, shape=n)
    values = (np.arange(n) % 101).astype(dtype.numpy)
    x.from_numpy(values)

    @ds.kernel
    def triple():
        for i in x:
            y[i] = x[i]
            if x[i] < 40:
                y[i] += ds.cast(2 * x[i], dtype)

    triple()
    assert (y.to_numpy() == np.where(values < 40, 3 * values, values)).all()
    y.fill(7)
    assert (y.to_numpy() == 7).all()
    y[5] = 9
    assert (y[4], y[5], y[6]) == (7, 9, 7)


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_vectors_in_both_layouts(gpu, layout):
    ds = gpu
    x = ds.Vector.field(3, ds.f64, shape=(5, 4), layout=getattr(ds.Layout, layout))
    values = np.arange(60.0).reshape(5, 4, 3)
    x.from_numpy(values)
    assert (x.to_numpy() == values).all()
    x[2, 1] = [1, 2, 3]
    values[2, 1] = [1, 2, 3]
    assert (x.to_numpy() == values).all()
    assert x[2, 1].to_list() == [1, 2, 3]
    x.fill(ds.Vector([4.0, 5.0, 6.0]))
    assert (x.to_numpy() == [4, 5, 6]).all()

    @ds.kernel
    def turn():
        for i, j in x:
            x[i, j] = ds.Vector([x[i, j][1], x[i, j][2], i + 10.0 * j])

    turn()
    i, j = np.meshgrid(range(5), range(4), indexing="ij")
    expected = np.stack([np.full((5, 4), 5), np.full((5, 4), 6), i + 10 * j], axis=-1)
    assert (x.to_numpy() == expected).all()


@pytest.mark.parametrize("n", [1, 16, 32, 64, 96, 128, 512, 1024])
@pytest.mark.parametrize("deterministic", [False, True])
def test_blocks_of_every_size(gpu, n, deterministic):
    """Sums, additions to small fields, stencils and saved values, and their gradients."""
    ds = gpu
    ds.init(arch=ds.cuda, deterministic=deterministic)
    lanes, bins, turns = 20_011, 24, 140
    x, y, z = (ds.field(ds.f64, shape=lanes, needs_grad=True) for _ in range(3))
    some = ds.field(ds.f64, shape=bins, needs_grad=True)
    drive = ds.field(ds.f64, shape=turns, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def run(k: ds.i32):
        ds.loop_config(block_dim=n)
        for i in range(1, lanes - 1):
            y[i] = x[i - 1] * x[i + 1]
        ds.loop_config(block_dim=n)
        for i in y:
            a = y[i]
            for j in range(k):
                a = a + 0.01 * ds.sin(a) * drive[j]
            z[i] = a
        ds.loop_config(block_dim=n)
        for i in z:
            some[(7 * i) % bins] += z[i]
        ds.loop_config(block_dim=n)
        for i in z:
            loss[None] += z[i] ** 2
        for i in some:
            loss[None] += i * some[i]

    rng = np.random.default_rng(n)
    values, forces = rng.normal(size=lanes), rng.normal(size=turns)
    x.from_numpy(values)
    drive.from_numpy(forces)
    with ds.Tape(loss):
        run(turns)
    a = np.zeros(lanes)
    a[1:-1] = values[:-2] * values[2:]
    states = [a]
    for force in forces:
        states.append(states[-1] + 0.01 * np.sin(states[-1]) * force)
    end, places = states[-1], 7 * np.arange(lanes) % bins
    expected = (end**2).sum() + (np.arange(bins) * np.bincount(places, end, bins)).sum()
    np.testing.assert_allclose(loss[None], expected, rtol=1e-11)
    adjoint, gradient = 2 * end + places, np.zeros(turns)
    for j in reversed(range(turns)):
        gradient[j] = (adjoint * 0.01 * np.sin(states[j])).sum()
        adjoint = adjoint * (1 + 0.01 * np.cos(states[j]) * forces[j])
    exact = np.zeros(lanes)
    exact[:-2] += adjoint[1:-1] * values[2:]
    exact[2:] += adjoint[1:-1] * values[:-2]
    np.testing.assert_allclose(x.grad.to_numpy(), exact, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(drive.grad.to_numpy(), gradient, rtol=1e-9, atol=1e-9)


def test_sums_and_returned_values(gpu):
    ds = gpu
    n = 1 << 20
    x = ds.field(ds.f64, shape=n)
    values = np.random.default_rng(1).normal(size=n)
    x.from_numpy(values)

    @ds.kernel
    def total() -> ds.f64:
        s = ds.f64(0.0)
        for i in x:
            s += x[i]
        return s

    @ds.kernel
    def ends() -> ds.types.vector(2, ds.f64):
        return ds.Vector([x[0], x[n - 1]])

    for _ in range(3):
        assert abs(total() - values.sum()) < 1e-9 * n
    assert ends().to_list() == [values[0], values[-1]]


def test_bounds_from_fields_and_arguments(gpu):
    ds = gpu
    n = ds.field(ds.i32, shape=())
    hits = ds.field(ds.i32, shape=100)

    @ds.kernel
    def count(first: ds.i32):
        n[None] += 10
        for i in range(first, n[None]):
            hits[i] += 1

    for k in range(1, 6):
        count(5 * k)
    expected = np.zeros(100, int)
    for k in range(1, 6):
        expected[5 * k : 10 * k] += 1
    assert (hits.to_numpy() == expected).all()


def test_mathematics_is_numpys(gpu):
    ds = gpu
    n = 1000
    x, y = ds.field(ds.f64, shape=n), ds.field(ds.f64, shape=(8, n))
    values = np.linspace(0.1, 3, n)
    x.from_numpy(values)

    @ds.kernel
    def run():
        for i in x:
            y[0, i] = ds.sin(x[i])
            y[1, i] = ds.exp(x[i])
            y[2, i] = ds.log(x[i])
            y[3, i] = ds.sqrt(x[i])
            y[4, i] = ds.atan2(x[i], 2.0)
            y[5, i] = ds.tanh(x[i])
            y[6, i] = x[i] ** 2.5
            y[7, i] = x[i] // 0.7

    run()
    expected = [
        np.sin(values),
        np.exp(values),
        np.log(values),
        np.sqrt(values),
        np.arctan2(values, 2),
        np.tanh(values),
        values**2.5,
        values // 0.7,
    ]
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=4e-16 * 4)


def test_the_same_bits_in_every_run(gpu):
    """Sums, additions to shared elements and the adjoint's; with deterministic=True."""
    ds = gpu
    ds.init(arch=ds.cuda, deterministic=True)
    n = 30011
    x = ds.field(ds.f32, shape=n, needs_grad=True)
    w = ds.field(ds.f32, shape=5, needs_grad=True)
    bins = ds.field(ds.f32, shape=7, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    x.from_numpy(np.random.default_rng(1).normal(size=n).astype(np.float32))
    w.from_numpy(np.linspace(0.5, 2, 5).astype(np.float32))

    @ds.kernel
    def measure():
        for i in x:
            bins[i % 7] += w[i % 5] * ds.sin(x[i])
            loss[None] += w[i % 3] * x[i] * x[i]

    @ds.kernel
    def close():
        for k in bins:
            loss[None] += bins[k] ** 2

    found = set()
    for _ in range(50):
        bins.fill(0)
        with ds.Tape(loss):
            measure()
            close()
        parts = (bins, loss, x.grad, w.grad)
        found.add(b"".join(f.to_numpy().tobytes() for f in parts))
    assert len(found) == 1


def test_debug_mode_names_field_index_and_line(gpu):
    ds = gpu
    ds.init(arch=ds.cuda, debug=True)
    x = ds.field(ds.f32, shape=100)

    @ds.kernel
    def outside(k: ds.i32):
        for i in x:
            if i == 42:
                x[i + k] = 1.0

    outside(1)
    with pytest.raises(ds.AccessError, match=r"142.*x") as caught:
        outside(100)
    assert "x[i + k] = 1.0" in str(caught.value)
    outside(2)
    assert x[43] == 1
    assert x[44] == 1
