"""Parallel loops: over ranges, fields and arrays."""

import numpy as np
import pytest

# ---- parallel loops


def test_parallel_range_with_run_time_bounds(cpu):
    ds = cpu
    seen = ds.field(ds.i32, shape=40)

    @ds.kernel
    def up(a: ds.i32, b: ds.i32):
        for i in range(a, b):
            seen[i] += 1

    @ds.kernel
    def down(a: ds.i32, b: ds.i32):
        for i in range(a, b, -3):
            seen[i] += 1

    for a, b in [(0, 40), (3, 5), (5, 5), (9, 2), (39, 40)]:
        seen.fill(0)
        up(a, b)
        assert np.flatnonzero(seen.to_numpy()).tolist() == list(range(a, b))
        seen.fill(0)
        down(b - 1, a)
        assert np.flatnonzero(seen.to_numpy()).tolist() == sorted(range(b - 1, a, -3))
    assert seen.to_numpy().max() <= 1


def test_ranges_with_a_step_that_begin_at_a_computed_number(cpu):
    ds = cpu
    seen = ds.field(ds.i32, shape=40)
    first = ds.field(ds.i32, shape=())

    @ds.kernel
    def computed(a: ds.i32):
        for i in range(a * a + 1, 40, 2):
            seen[i] += 1

    @ds.kernel
    def read():
        begin = first[None] + 1
        for i in range(begin, 40, 3):
            seen[i] += 1
            first[None] = 0

    @ds.kernel
    def read_in_the_head():
        for i in range(first[None], 40, 3):
            seen[i] += 1

    computed(3)
    assert np.flatnonzero(seen.to_numpy()).tolist() == list(range(10, 40, 2))
    seen.fill(0)
    first[None] = 4
    read()
    assert np.flatnonzero(seen.to_numpy()).tolist() == list(range(5, 40, 3))
    with pytest.raises(ds.KernelSyntaxError, match="in a line before"):
        read_in_the_head()


def test_ndrange_with_bounds(cpu):
    ds = cpu
    seen = ds.field(ds.i32, shape=(5, 6, 4))

    @ds.kernel
    def visit(n: ds.i32, first: ds.i32):
        for i, j, k in ds.ndrange(n, (first, 5), 3):
            seen[i, j, k] += 100 * i + 10 * j + k + 1

    visit(4, 2)
    expected = np.zeros((5, 6, 4), int)
    for i in range(4):
        for j in range(2, 5):
            for k in range(3):
                expected[i, j, k] = 100 * i + 10 * j + k + 1
    assert (seen.to_numpy() == expected).all()
    visit(0, 0)
    visit(3, 5)
    visit(-2, 1)
    assert (seen.to_numpy() == expected).all()


def test_ndrange_of_negative_bounds_and_one_axis(cpu):
    ds = cpu
    sums = ds.field(ds.i32, shape=3)

    @ds.kernel
    def visit():
        for i in ds.ndrange((-4, 3)):
            sums[0] += i
        for i, j in ds.ndrange((-2, 2), (-1, 2)):
            sums[1] += i * i + 10 * j
        for I in ds.grouped(ds.ndrange((1, 3), 4)):
            sums[2] += 10 * I[0] + I[1]

    visit()
    assert sums[0] == sum(range(-4, 3))
    assert sums[1] == sum(i * i + 10 * j for i in range(-2, 2) for j in range(-1, 2))
    assert sums[2] == sum(10 * i + j for i in range(1, 3) for j in range(4))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (2, 3, 2, 4)])
def test_loops_over_fields_of_any_rank(cpu, shape):
    ds = cpu
    x, y = ds.field(ds.i32, shape=shape), ds.field(ds.i32, shape=shape)

    @ds.kernel
    def number(f: ds.template()):
        for I in ds.grouped(f):
            s = 0
            for k in ds.static(range(len(shape))):
                s = s * 10 + I[k]
            f[I] = s

    @ds.kernel
    def one():
        for i in y:
            y[i] = i

    @ds.kernel
    def two():
        for i, j in y:
            y[i, j] = 10 * i + j

    @ds.kernel
    def three():
        for i, j, k in y:
            y[i, j, k] = 100 * i + 10 * j + k

    @ds.kernel
    def four():
        for i, j, k, l in y:
            y[i, j, k, l] = 1000 * i + 100 * j + 10 * k + l

    expected = sum(10 ** (len(shape) - 1 - k) * axis for k, axis in enumerate(np.indices(shape)))
    number(x)
    [one, two, three, four][len(shape) - 1]()
    assert (x.to_numpy() == expected).all()
    assert (y.to_numpy() == expected).all()


def test_one_name_for_all_indices(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=(3, 4))

    @ds.kernel
    def visit():
        for index in x:
            x[index] = 1 + index[0] * 10 + index[1]

    visit()
    assert (x.to_numpy() == 1 + 10 * np.arange(3)[:, None] + np.arange(4)).all()


def test_neighbours_by_computed_index_vectors(cpu):
    ds = cpu
    x, y = ds.field(ds.f32, shape=(6, 5)), ds.field(ds.f32, shape=(6, 5))
    a = np.random.default_rng(0).random((6, 5)).astype(np.float32)
    x.from_numpy(a)

    @ds.kernel
    def neighbours():
        for I in ds.grouped(ds.ndrange((1, 5), (1, 4))):
            for D in ds.static(ds.grouped(ds.ndrange((-1, 2), (-1, 2)))):
                y[I] += x[I + D]

    neighbours()
    expected = np.zeros((6, 5))
    for i in range(1, 5):
        for j in range(1, 4):
            expected[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum()
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-5)


def test_grouped_ranges_are_unrolled(cpu):
    """Their vectors are constants, which choose items of lists; no loop is left for the rules."""
    ds = cpu
    x, y = (ds.field(ds.f64, shape=n, needs_grad=True) for n in (6, 4))
    centre = ds.field(ds.i32, shape=())

    @ds.kernel
    def weigh():
        for i in range(1, 5):
            w = [x[i] ** 2, 3.0, x[i]]
            total = ds.f64(0)
            for d in ds.static(ds.grouped(ds.ndrange((-1, 2), 2))):
                weight = w[d[0] + 1]
                if ds.static(d.y > 0):
                    weight *= 2
                total += weight * x[i + d[0]]
            y[i - 1] = total

    a = np.random.default_rng(0).random(6)
    x.from_numpy(a)
    weigh()
    inner = a[1:5]
    value = 3 * inner**2 * a[:4] + 9 * inner + 3 * inner * a[2:]
    np.testing.assert_allclose(y.to_numpy(), value)
    y.grad.fill(1)
    weigh.grad()
    expected = np.zeros(6)
    expected[1:5] += 6 * inner * a[:4] + 9 + 3 * a[2:]
    expected[:4] += 3 * inner**2
    expected[2:] += 3 * inner
    np.testing.assert_allclose(x.grad.to_numpy(), expected)

    @ds.kernel
    def unknown():
        for d in ds.static(ds.grouped(ds.ndrange(centre[None], 2))):
            y[d[0]] = 1.0

    @ds.kernel
    def over_a_field():
        for d in ds.static(ds.grouped(x)):
            y[d[0]] = 1.0

    for kernel, words in (unknown, "only at run time"), (over_a_field, "only ranges"):
        with pytest.raises(ds.KernelSyntaxError, match=words):
            kernel()


def test_continue_in_a_parallel_loop(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=20)

    @ds.kernel
    def odd():
        for i in x:
            if i % 2 == 0:
                continue
            x[i] = i
            if i > 10:
                continue
            x[i] += 100

    odd()
    assert x.to_numpy().tolist() == [
        0 if i % 2 == 0 else i if i > 10 else i + 100 for i in range(20)
    ]


def test_loops_over_64_bit_ranges(cpu):
    ds = cpu
    total = ds.field(ds.i64, shape=3)
    far = 2**40

    @ds.kernel
    def visit(a: ds.i64, b: ds.i64):
        for i in range(a, b):
            total[0] += i - a
            for j in range(i, i + 3):
                total[1] += j - i
        for i in range(far, far + 5):
            total[2] += i

    visit(2**35, 2**35 + 100)
    assert total.to_numpy().tolist() == [4950, 300, 5 * far + 10]


def test_many_turns_in_serial_64_bit(cpu):
    ds = cpu

    @ds.kernel
    def count(n: ds.i64) -> ds.i64:
        s = ds.i64(0)
        ds.loop_config(serialize=True)
        for i in range(n):
            s += i
        return s

    assert count(10**6) == sum(range(10**6))


def test_kernel_local_summed_over_lanes(cpu):
    ds = cpu
    x = ds.field(ds.f64, shape=1000)
    x.from_numpy(np.linspace(0, 1, 1000))

    @ds.kernel
    def moments(scale: ds.f64) -> ds.types.vector(3, ds.f64):
        s, q, n = ds.f64(0.0), ds.f64(1.0), 0
        for i in x:
            s += x[i] * scale
            q -= x[i] ** 2
            if x[i] > 0.5:
                n += 1
        return [s, q, n]

    s, q, n = moments(2.0)
    a = np.linspace(0, 1, 1000)
    np.testing.assert_allclose([s, q, n], [2 * a.sum(), 1 - (a**2).sum(), (a > 0.5).sum()], 1e-12)


def test_kernel_local_vector_summed_over_lanes(cpu):
    ds = cpu
    x = ds.Vector.field(3, ds.f64, shape=(8, 9))
    a = np.random.default_rng(1).random((8, 9, 3))
    x.from_numpy(a)

    @ds.kernel
    def total() -> ds.types.vector(3, ds.f64):
        s = ds.Vector([1.0, 2.0, 3.0], ds.f64)
        for I in ds.grouped(x):
            s += x[I]
        return s

    np.testing.assert_allclose(total().to_numpy(), [1, 2, 3] + a.sum((0, 1)), 1e-12)


def test_extrema_of_lanes_by_atomics_on_a_local(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=500)
    a = np.random.default_rng(2).normal(size=500).astype(np.float32)
    x.from_numpy(a)

    @ds.kernel
    def extrema() -> ds.types.vector(2, ds.f32):
        low, high = 1e30, -1e30
        for i in x:
            ds.atomic_min(low, x[i])
            ds.atomic_max(high, x[i])
        return [low, high]

    assert extrema().to_list() == [a.min(), a.max()]


def test_bits_collected_over_lanes(cpu):
    ds = cpu

    @ds.kernel
    def bits(n: ds.i32) -> ds.types.vector(3, ds.i32):
        a, b, c = 0, -1, 0
        for i in range(n):
            a |= 1 << i
            b &= ~(1 << i)
            c ^= i
        return [a, b, c]

    xor = 0
    for i in range(20):
        xor ^= i
    assert bits(20).to_list() == [2**20 - 1, -(2**20), xor]


def test_parallel_then_serial_then_parallel(cpu):
    ds = cpu
    x, y = ds.field(ds.f64, shape=100), ds.field(ds.f64, shape=100)
    count = ds.field(ds.i32, shape=())
    a = np.random.default_rng(3).random(100)
    x.from_numpy(a)

    @ds.kernel
    def standardize(bias: ds.f64) -> ds.f64:
        count[None] += 1
        s = ds.f64(0.0)
        for i in x:
            s += x[i]
        mean = s / 100
        q = ds.f64(0.0)
        for i in x:
            q += (x[i] - mean) ** 2
        deviation = ds.sqrt(q / 100)
        if deviation > 1e6:
            deviation = ds.f64(1.0)
        count[None] += 10
        for i in x:
            y[i] = (x[i] - mean) / deviation + bias
        count[None] += 100
        return mean

    assert standardize(0.5) == pytest.approx(a.mean(), rel=1e-12)
    np.testing.assert_allclose(y.to_numpy(), (a - a.mean()) / a.std() + 0.5, rtol=1e-12)
    assert count[None] == 111


def test_kernel_level_while_and_branches(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=10)

    @ds.kernel
    def run(n: ds.i32) -> ds.i32:
        k, s = n, 0
        while k > 0:
            for i in range(k):  # serial: inside a while
                s += i
            k -= 1
        if s > 10:
            for i in range(10):  # serial: inside a branch
                x[i] = s + i
        else:
            x[0] = -1
        return s

    assert run(2) == 1
    assert x[0] == -1
    s = sum(sum(range(k)) for k in range(1, 7))
    assert run(6) == s
    assert x.to_numpy().tolist() == [s + i for i in range(10)]


def test_return_before_the_end_of_a_kernel(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=4)

    @ds.kernel
    def run(n: ds.i32) -> ds.i32:
        if n < 0:
            return -1
        for i in x:
            x[i] = n
        return x[3] + 1

    assert run(-5) == -1
    assert x.to_numpy().tolist() == [0] * 4
    assert run(7) == 8
    assert x.to_numpy().tolist() == [7] * 4


def tasks_of(kernel):
    """Whether each task of a kernel is parallel, and what was said of its blocks."""
    (special,) = kernel.specializations.values()
    return [(bool(t.axes), t.block_dim) for t in special.ir.tasks]


def test_block_dim_is_that_of_the_next_outermost_loop(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=6)
    a = np.zeros(6, np.int32)
    width = 64

    @ds.func
    def count(n):
        found = 0
        for _ in range(n):
            found += 1
        return found

    @ds.kernel
    def run(y: ds.types.ndarray(), size: ds.template()):
        ds.loop_config(block_dim=size)
        n = count(3)  # a func's loops are not the kernel's
        for i in x:
            for j in range(n):
                x[i] += j
        for i in range(n):
            y[i] += 1
        ds.loop_config(block_dim=2 * width, name="pairs")
        ds.loop_config(parallelize=4)
        for i, j in ds.ndrange(3, 2):
            x[2 * i + j] += 1
        for k in ds.static(range(2)):
            ds.loop_config(block_dim=8 << k)
            for I in ds.grouped(x):
                x[I] += k

    run(a, np.int64(1024))
    parallel = [block_dim for is_parallel, block_dim in tasks_of(run) if is_parallel]
    assert parallel == [1024, None, 128, 8, 16]
    assert all(block_dim is None for is_parallel, block_dim in tasks_of(run) if not is_parallel)
    assert x.to_numpy().tolist() == [5] * 6
    assert a.tolist() == [1, 1, 1, 0, 0, 0]


def test_loop_config_stays_with_its_loop(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=6)

    @ds.func
    def fill(k):
        ds.loop_config(serialize=True)
        for i in range(3):
            x[i] += k

    @ds.kernel
    def run():
        fill(1)
        for i in x:
            ds.loop_config(serialize=True)
            for j in range(2):
                x[i] += j
        for i in x:
            x[i] += 10

    run()
    assert [is_parallel for is_parallel, _ in tasks_of(run)] == [False, True, True]
    assert x.to_numpy().tolist() == [12, 12, 12, 11, 11, 11]


def test_blocks_may_have_these_threads(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=3)
    allowed = [1, 2, 4, 8, 16, *range(32, 1025, 32)]
    for n in range(-1, 1100):

        @ds.kernel
        def run(n: ds.template()):
            ds.loop_config(block_dim=n)
            for i in x:
                x[i] = n

        if n in allowed:
            run(n)
            assert tasks_of(run) == [(True, n)]
        elif n % 7 == 0 or n in (-1, 0, 3, 48, 1025, 1056):
            with pytest.raises(ds.KernelTypeError, match=f"block_dim cannot be the number {n}"):
                run(n)


def test_loop_config_serialize(cpu):
    ds = cpu
    x = ds.field(ds.i64, shape=1000)

    @ds.kernel
    def fibonacci() -> ds.i32:
        x[0] = 1
        x[1] = 1
        last = 0
        ds.loop_config(serialize=True)
        for i in range(2, 1000):
            x[i] = (x[i - 1] + x[i - 2]) % 1000007
            last = i
            if i == 900:
                break
        for i in range(3):  # a parallel one again
            x[997 + i] += 5
        return last

    assert fibonacci() == 900
    expected = [1, 1]
    for i in range(2, 901):
        expected.append((expected[i - 1] + expected[i - 2]) % 1000007)
    assert x.to_numpy().tolist() == [*expected, *[0] * 96, 5, 5, 5]


# ---- loops over fields with another order in memory


def test_loops_over_fields_follow_the_memory(cpu):
    """The fastest axis in memory is the last of the loop; indices and gradients stay those of the program."""
    ds = cpu
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x = ds.field(ds.f64, (3, 4, 5), order="kij", offset=(1, -2, 0), needs_grad=True)
    y = ds.field(ds.f64, (3, 4, 5), order="jki", offset=(1, -2, 0), needs_grad=True)

    @ds.kernel
    def by_name():
        for i, j, k in x:
            y[i, j, k] = (100 * i + 10 * j + k) * x[i, j, k] ** 2

    @ds.kernel
    def grouped():
        for I in ds.grouped(y):
            y[I] = (100 * I[0] + 10 * I.y + I[2]) * x[I] ** 2

    i, j, k = np.meshgrid(np.arange(1, 4), np.arange(-2, 2), np.arange(5), indexing="ij")
    factor = 100 * i + 10 * j + k
    given = np.linspace(0.5, 1.5, 60).reshape(3, 4, 5)
    for kernel, order in ((by_name, "kij"), (grouped, "jki")):
        x.from_numpy(given)
        tape = ds.Tape()
        with tape:
            kernel()
        np.testing.assert_allclose(y.to_numpy(), factor * given**2, rtol=1e-14)
        tape.backward(grads={y: 1.0})
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * factor * given, rtol=1e-14)
        tape.zero()
        names = "ijk" if kernel is by_name else ("I0", "I1", "I2")
        head = next(line for line in kernel.ir().splitlines() if "parallel" in line)
        places = [head.index(f"%{names['ijk'.index(axis)]} ") for axis in order]
        assert places == sorted(places), head


def test_iterations_are_named_as_written(cpu):
    ds = cpu
    x = ds.field(ds.f32, (3, 5), order="ji", needs_grad=True)
    index = ds.field(ds.i32, (3, 5), order="ji")
    y = ds.field(ds.f32, 15, needs_grad=True)

    @ds.kernel
    def scatter():
        for i, j in x:
            y[index[i, j]] = x[i, j]

    places = np.arange(15, dtype=np.int32).reshape(3, 5)
    places[2, 1] = places[0, 3]
    index.from_numpy(places)
    scatter()
    with pytest.raises(
        ds.GlobalDataAccessError, match=r"iterations \((2, 1|0, 3)\) and \((2, 1|0, 3)\)"
    ):
        scatter.grad()


def test_serial_loops_over_fields_follow_the_memory(cpu):
    ds = cpu
    x = ds.field(ds.i32, (2, 3), order="ji")
    count = ds.field(ds.i32, ())

    @ds.kernel
    def number():
        ds.loop_config(serialize=True)
        for i, j in x:
            x[i, j] = count[None]
            count[None] += 1

    number()
    assert x.to_numpy().tolist() == [[0, 2, 4], [1, 3, 5]]  # as Taichi's loops
