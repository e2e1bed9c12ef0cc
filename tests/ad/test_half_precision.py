"""Gradients of f16 programs: f32, right where f16 would overflow, vanish or stop growing."""

import numpy as np
import pytest

from tests.fuzz import halves


def halves_of(ds, shape=(), element=None, values=None):
    """A field of f16 with a gradient."""
    t = ds.types.vector(element, ds.f16) if element else ds.f16
    f = ds.field(t, shape, needs_grad=True)
    if values is not None:
        f.from_numpy(np.asarray(values, np.float16))
    return f


def test_a_gradient_is_a_field_of_f32(cpu):
    ds = cpu
    x = halves_of(ds, 3)
    v = ds.Vector.field(2, ds.f16, 3, needs_grad=True, needs_dual=True)
    a = ds.ndarray(ds.f16, 3, needs_grad=True)
    assert [f.grad.dtype for f in (x, v, a)] == [ds.f32] * 3
    assert v.dual.dtype is ds.f32
    assert v.grad.to_numpy().shape == (3, 2)
    y, z = ds.field(ds.f16), ds.field(ds.f16)
    ds.root.dense(ds.i, 4).place(y, y.grad)
    ds.root.dense(ds.i, 4).place(z)
    ds.root.lazy_grad()
    assert (y.grad.dtype, z.grad.dtype, y.dtype) == (ds.f32, ds.f32, ds.f16)
    y.copy_from(y.grad)  # rounds, as NumPy does


def test_sums_of_many_and_of_small_terms(cpu, quick_code):
    ds = cpu
    n = 5000  # in f16 a sum of ones stays at 2048
    x, w = halves_of(ds, n, values=np.ones(n)), halves_of(ds, values=1e-3)
    loss = ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += w[None] * x[i] * 1e-4

    with ds.Tape(loss):
        run()
    scale = float(np.float16(1e-4))
    assert w.grad[None] == pytest.approx(n * scale, rel=1e-5)
    # 1e-7: below the least step of f16 there is.
    assert x.grad[7] == pytest.approx(float(np.float16(1e-3)) * scale, rel=1e-5)


def test_factors_out_of_range(cpu, quick_code):
    """1 / x^3 is 125000 at 0.02, and infinite in f16; the derivative as a whole is not."""
    ds = cpu
    x, y = halves_of(ds, values=0.02), halves_of(ds)

    @ds.kernel
    def run():
        y[None] = ds.rsqrt(x[None] * x[None]) * 1e-3

    with ds.Tape(y):
        run()
    a = float(np.float16(0.02))
    square = float(np.float16(a * a))
    want = -0.5 * square**-1.5 * 2 * a * float(np.float16(1e-3))
    assert x.grad[None] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_rules_of_functions(cpu, quick_code, arch):
    """Derivatives are taken at the rounded numbers, and not rounded themselves."""
    ds = cpu
    ds.init(arch=getattr(ds, arch))
    values = np.array([0.3, 2.5, 4.0], np.float16)
    x, y = halves_of(ds, 3, values=values), halves_of(ds, 6)

    @ds.kernel
    def run():
        for i in range(1):
            y[0] = ds.tanh(x[2])  # 1 but for 7e-4; of the rounded result the rule would make 0.001
            y[1] = ds.exp(x[1]) / x[0]
            y[2] = ds.pow(x[0], x[1])
            y[3] = ds.atan2(x[0], x[1])
            y[4] = ds.cast(ds.cast(x[0], ds.f64) * 3.0, ds.f16)
            y[5] = ds.max(x[0], x[1]) % 0.7

    a, b, c = values.astype(float)
    exp = float(np.float16(np.exp(np.float32(b))))
    want = [
        [0, 0, 1 / np.cosh(c) ** 2],
        [-exp / a**2, np.exp(b) / a, 0],
        [b * a ** (b - 1), a**b * np.log(a), 0],
        [b / (a * a + b * b), -a / (a * a + b * b), 0],
        [3, 0, 0],
        [0, 1, 0],
    ]
    jacobian = ds.ad.jacobian(run, x, y)[x, y]
    assert np.allclose(jacobian, want, rtol=2e-5, atol=1e-7)
    assert np.allclose(ds.ad.jacobian(run, x, y, mode="forward")[x, y], want, rtol=2e-5, atol=1e-7)


def test_given_gradients_and_gradients_in_kernels(cpu, quick_code):
    ds = cpu
    x, y, z = halves_of(ds, 2, values=[0.5, 300.0]), halves_of(ds, 2), halves_of(ds, 2)
    loss = ds.field(ds.f32, (), needs_grad=True)

    @ds.func
    def cube(a):
        return a * a * a * 1e-4

    @ds.func_grad(cube)
    def cube_grad(a, g):
        ds.adjoint[a] += g * 3e-4 * ds.cast(a, ds.f32) ** 2

    @ds.func
    def square(a):
        return a * a

    @ds.kernel
    def run():
        for i in x:
            y[i] = cube(x[i] * 0.5)
            slope = ds.grad(square)(x[i])
            z[i] = ds.cast(slope, ds.f16)
        for i in x:
            loss[None] += y[i] + z[i]

    with ds.Tape(loss):
        run()
    assert z.to_numpy().tolist() == [1.0, 600.0]
    want = [0.5 * 3e-4 * (0.5 * a) ** 2 + 2 for a in (0.5, 300.0)]
    assert x.grad.to_numpy() == pytest.approx(want, rel=1e-4)


def test_second_derivatives(cpu, quick_code):
    ds = cpu
    x, h = halves_of(ds, 2, values=[0.5, 1.25]), halves_of(ds, 2)
    loss = ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def square():
        for i in x:
            h[i] = x[i] * x[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += h[i] * h[i]

    def run():
        loss[None] = 0
        square()
        total()

    # (x^2)^2, and both squares are numbers of f16
    assert ds.ad.hessian(run, x, loss=loss) == pytest.approx(np.diag([3.0, 18.75]), rel=1e-5)


def test_what_a_kernel_takes_and_returns(cpu, quick_code):
    ds = cpu
    x = halves_of(ds, 3, values=[1.0, 2.0, 0.5])

    @ds.kernel
    def weighed(a: ds.f16) -> ds.types.vector(2, ds.f16):
        s = ds.Vector([0.0, 0.0], ds.f16)
        for i in ds.static(range(3)):
            s += ds.Vector([x[i] * x[i] * a, x[i]])
        return s

    loss = halves_of(ds)
    with ds.Tape(loss):
        v = weighed(0.1)
        loss[None] = v[0] * v[1]
    a = float(np.float16(0.1))
    v0, v1 = (float(np.float16(f)) for f in (v[0], v[1]))
    want = [2 * q * a * v1 + v0 for q in (1.0, 2.0, 0.5)]
    assert x.grad.to_numpy() == pytest.approx(want, rel=1e-3)
    assert v1 == 3.5
    x.grad.fill(0)
    weighed(0.1)
    weighed.grad(0.1, returned=[0.0, 1e-6])
    assert x.grad.to_numpy() == pytest.approx([1e-6] * 3)


def test_state_changed_in_place_checkpoints_and_files(cpu, quick_code, tmp_path):
    ds = cpu
    start = [0.5, -0.25, 0.75]
    x = halves_of(ds, 3, values=start)
    loss = ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def step():
        for i in x:
            x[i] = x[i] * x[i] * 0.5 + x[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    def slopes():
        found = []
        for q in np.array(start, np.float16):
            slope = 1.0
            for _ in range(6):
                half = np.float16(np.float16(q * q) * np.float16(0.5))
                slope *= 1 + float(q)
                q = half + q
            found.append(slope)
        return found

    def once(tape_of):
        x.from_numpy(np.array(start, np.float16))
        with ds.Tape(loss, in_place="save") as tape:
            tape_of()
            total()
        return tape, x.grad.to_numpy()

    def plain():
        for _ in range(6):
            step()

    tape, found = once(plain)
    assert found == pytest.approx(slopes(), rel=1e-5)
    _, kept = once(lambda: ds.ad.checkpoint(lambda t: step(), 6, [x], snapshots=2))
    assert kept.tolist() == found.tolist()
    x.from_numpy(np.array(start, np.float16))
    tape.replay()
    tape.backward()
    assert x.grad.to_numpy().tolist() == found.tolist()
    x.from_numpy(np.array(start, np.float16))
    tape.save(tmp_path / "tape.npz")
    loaded = ds.load_tape(tmp_path / "tape.npz")
    loaded.replay()
    loaded.backward()
    there = loaded.fields["x"]
    assert (there.dtype, there.grad.dtype) == (ds.f16, ds.f32)
    assert there.grad.to_numpy().tolist() == found.tolist()


def test_comparisons_by_differences_are_refused(cpu, quick_code):
    ds = cpu
    x, h = ds.field(ds.f32, 3, needs_grad=True), halves_of(ds, 3)
    loss = ds.field(ds.f32, (), needs_grad=True)
    x.from_numpy(np.array([0.5, 1.0, 1.5], np.float32))

    @ds.kernel
    def run():
        for i in x:
            h[i] = ds.cast(ds.sin(x[i]), ds.f16)
        for i in x:
            loss[None] += h[i] * x[i]

    def function():
        loss[None] = 0
        run()

    for how in ({}, {"differences": "ridders"}, {"directions": 2}, {"eps": 0.1}):
        with pytest.raises(ds.AutodiffError, match="h is of f16: the rounding of its numbers") as e:
            ds.ad.gradcheck(function, x, loss, **how)
        assert 'differences="complex"' in str(e.value)
    with pytest.raises(ds.AutodiffError, match="h is of f16"):
        ds.ad.jacobian_fd(function, x, loss)
    assert ds.ad.gradcheck(function, x, loss, differences="complex", show_summary=False)


def test_equations_in_it_are_refused(cpu):
    ds = cpu
    b, x = halves_of(ds, 2), halves_of(ds, 2)
    with pytest.raises(ds.FieldError, match="f32 or f64, and b is of f16"):
        ds.ad.linear_solve(np.eye(2), b, x)


def test_optimisers_keep_their_means_in_f32(cpu):
    ds = cpu
    x, loss = halves_of(ds, 3, 2), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += ((x[i] - 1.5) * 1e-3).norm_sqr()  # squares of gradients: 1e-12

    opt = ds.optim.Adam([x], lr=0.1)
    for _ in range(60):
        with ds.Tape(loss):
            run()
        opt.step()
    assert np.abs(x.to_numpy() - 1.5).max() < 0.1
    assert {f.dtype for fs in opt.moments.values() for f in fs.values()} == {ds.f32}


@pytest.mark.parametrize("seed", [2, 3, 4, 7])
def test_random_programs(cpu, quick_code, seed):
    assert halves.verdict(halves.make(seed), seed, vectors=bool(seed % 2)) in ("right", "invalid")
