"""Random numbers: their distributions, and what they depend on."""

import numpy as np

# ---- random numbers


def drawn(ds, n=20000, kind="uniform", **options):
    ds.init(**options)
    x = ds.field(ds.f32, shape=(3, n))

    @ds.kernel
    def uniform(k: ds.i32):
        for i in range(n):
            x[k, i] = ds.random()

    @ds.kernel
    def normal(k: ds.i32):
        for i in range(n):
            x[k, i] = ds.randn()

    for k in range(3):
        (uniform if kind == "uniform" else normal)(k)
    return x.to_numpy()


def test_random_numbers_depend_on_the_seed_alone(cpu):
    first = drawn(cpu, random_seed=5, cpu_max_num_threads=1)
    assert (drawn(cpu, random_seed=5, cpu_max_num_threads=4) == first).all()
    assert (drawn(cpu, random_seed=5, cpu_max_num_threads=2, debug=True) == first).all()
    other = drawn(cpu, random_seed=6)
    assert (other == first).mean() < 0.01
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (first[a] == first[b]).mean() < 0.01
        assert abs(np.corrcoef(first[a], first[b])[0, 1]) < 0.03
        assert abs(np.corrcoef(first[a], other[b])[0, 1]) < 0.03


def test_random_numbers_are_uniform(cpu):
    x = drawn(cpu, random_seed=1).ravel().astype(float)
    assert x.min() >= 0
    assert x.max() < 1
    counts, _ = np.histogram(x, 50, (0, 1))
    chi_squared = ((counts - len(x) / 50) ** 2 / (len(x) / 50)).sum()
    assert 20 < chi_squared < 90  # 49 degrees of freedom
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.02
    assert len(np.unique(x)) > 0.99 * len(x)


def test_normal_numbers_have_the_right_moments(cpu):
    x = drawn(cpu, kind="normal", random_seed=2).ravel().astype(float)
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.02
    assert abs(x.var() - 1) < 0.03
    assert abs((x**3).mean()) < 0.06
    assert abs((x**4).mean() - 3) < 0.2
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.01


def test_random_numbers_of_other_types_and_places(cpu):
    ds = cpu
    ds.init(random_seed=3)
    n = 4000
    whole, wide = ds.field(ds.i32, shape=n), ds.field(ds.f64, shape=n)
    small, pairs = ds.field(ds.u8, shape=n), ds.Vector.field(2, ds.f32, shape=(40, 100))

    @ds.func
    def two():
        return ds.Vector([ds.random(), ds.random()])

    @ds.kernel
    def draw():
        for i in whole:
            whole[i] = ds.random(ds.i32)
            if i % 2 == 0:
                wide[i] = ds.random(ds.f64)
            for _ in range(3):
                small[i] = ds.random(ds.u8)
        for i, j in pairs:
            pairs[i, j] = two()
        for i in range(n):
            if i % 2 == 1:
                wide[i] = ds.random(ds.f64)

    draw()
    a = whole.to_numpy().astype(float)
    assert a.min() < -(2**31) * 0.99
    assert a.max() > 2**31 * 0.99
    assert abs(a.mean()) < 0.05 * 2**31
    assert len(np.unique(wide.to_numpy())) == n
    assert abs(wide.to_numpy().mean() - 0.5) < 0.03
    assert len(np.unique(small.to_numpy())) == 256
    p = pairs.to_numpy().reshape(-1, 2)
    assert abs(np.corrcoef(p.T)[0, 1]) < 0.06
    assert len(np.unique(p)) > 0.99 * p.size


def test_draws_outside_of_parallel_loops(cpu):
    ds = cpu
    x = ds.field(ds.f64, shape=30)

    @ds.kernel
    def draw():
        x[0] = ds.random(ds.f64)
        x[1] = ds.random(ds.f64)
        k = 2
        while k < 10:
            x[k] = ds.random(ds.f64)
            k += 1
        for i in range(10, 20):
            x[i] = ds.random(ds.f64)
        for i in range(20, 30):
            x[i] = ds.random(ds.f64)

    draw()
    assert len(np.unique(x.to_numpy())) == 30
