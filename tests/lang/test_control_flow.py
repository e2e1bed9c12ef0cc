"""Loops and branches. Most functions here run twice: by Python itself, and compiled."""

import linecache
import random

import numpy as np
import pytest


def agrees(ds, function, *calls):
    """A function of whole numbers gives in a kernel what Python gives."""
    compiled = ds.func(function)
    count = function.__code__.co_argcount

    if count == 1:

        @ds.kernel
        def launch(a: ds.i32) -> ds.i64:
            return ds.cast(compiled(a), ds.i64)
    else:

        @ds.kernel
        def launch(a: ds.i32, b: ds.i32) -> ds.i64:
            return ds.cast(compiled(a, b), ds.i64)

    for call in calls:
        arguments = call if isinstance(call, tuple) else (call,)
        assert launch(*arguments) == function(*arguments), arguments


# ---- serial loops, as Python runs them


def test_range_of_one_to_three_arguments(cpu):
    def visits(a, b):
        s = 0
        for i in range(a):
            s = (10 * s + i) % 10007
        for i in range(b, a):
            s = (3 * s + i) % 10007
        for i in range(b, a, 2):
            s = (3 * s + i) % 10007
        for i in range(a, b, -3):
            s = (7 * s - i) % 10007
        for i in range(b, a, 5):
            s = (2 * s + i) % 10007
        return s

    agrees(cpu, visits, (5, 2), (0, 0), (-3, 4), (6, -5), (7, 7), (1, 0), (8, -1))


def test_python_values_after_loop_variable_is_changed(cpu):
    def visits(n):
        s = 0
        for i in range(n):
            i += 10
            s += i
            i = 0
        return s

    agrees(cpu, visits, 0, 1, 5)


def test_nested_loops_with_break_and_continue(cpu):
    def pairs(n, m):
        found = 0
        for i in range(n):
            if i % 3 == 2:
                continue
            for j in range(m):
                if j > i:
                    break
                if (i + j) % 2 == 0:
                    continue
                for k in range(j, -1, -1):
                    if k == 1:
                        break
                    found += 100 * i + 10 * j + k
            else_part = 1
            found += else_part
        return found

    agrees(cpu, pairs, (0, 0), (1, 1), (5, 3), (8, 8), (-1, 4))


def test_while_with_break_continue_and_compound_condition(cpu):
    def steps(n, m):
        a, b, turns = n, m, 0
        while a > 0 and turns < 50:
            turns += 1
            if a == b:
                break
            if a % 2 == 0:
                a //= 2
                continue
            while b < a:
                b += 3
                if b % 5 == 0:
                    break
            a -= 1
        return 10000 * turns + 100 * a + b

    agrees(cpu, steps, (0, 0), (7, 7), (40, 1), (33, -20), (1, 100))


def test_while_true_ends_by_break_or_return(cpu):
    def search(n, m):
        k = 0
        while True:
            k += 1
            if k * k > n:
                break
            if k == m:
                return -k
        return k

    agrees(cpu, search, (50, 100), (50, 3), (0, 1), (10000, 77))


def test_return_from_loops_inside_of_loops(cpu):
    def first_factor(n, m):
        if n < 2:
            return 0
        for i in range(2, n):
            for j in range(2, n):
                if i * j == n:
                    return 100 * i + j
                if i * j > n:
                    break
            if i > m:
                return -1
        return 1

    agrees(cpu, first_factor, (1, 9), (7, 9), (12, 9), (35, 9), (35, 2), (97, 200))


def test_return_in_branches_skips_the_rest(cpu):
    def kind(n):
        if n < 0:
            return -1
        elif n == 0:
            return 0
        if n % 2 == 0:
            if n % 4 == 0:
                return 4
        else:
            return 1
        n += 1000
        return n

    agrees(cpu, kind, -5, 0, 1, 2, 4, 6)


def test_merges_of_branches(cpu):
    def merge(a, b):
        x, y = a, b
        if a > b:
            x = b
            z = 1
        elif a == b:
            z = 2
            y += 5
        else:
            x, y = y, x
            z = 3
            if b > 10:
                z *= 7
        w = z
        if a > 3:
            w += x
        return 10000 * x + 100 * y + w

    agrees(cpu, merge, (1, 2), (2, 1), (3, 3), (4, 20), (9, 9))


def test_conditional_expressions_nest(cpu):
    def choose(a, b):
        return (a if a > b else b if b > 5 else -1) + (1 if a == 0 else 2 if b == 0 else 3)

    agrees(cpu, choose, (0, 0), (1, 0), (0, 6), (0, 3), (-1, 9))


def test_chained_comparisons(cpu):
    def chain(a, b):
        s = 0
        if 0 <= a < b:
            s += 1
        if 0 < a <= b < 10:
            s += 2
        if a == b == 3:
            s += 4
        if a < b > 5:
            s += 8
        if not 0 < a < 5:
            s += 16
        return s

    agrees(cpu, chain, (0, 0), (1, 2), (3, 3), (2, 12), (5, 5), (-1, 6))


def test_booleans_are_numbers_as_in_python(cpu):
    def count(a, b):
        big = a > b
        odd = a % 2 == 1
        both = (big and odd) or b == 0
        s = 0
        if both:
            s += 1
        if big or not odd:
            s += 2
        if a and not b:
            s += 4
        return s

    agrees(cpu, count, (3, 1), (4, 1), (1, 3), (0, 0), (5, 0))


def test_swaps_and_unpacking(cpu):
    def fibonacci(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        (c, d), e = (a, b), 3
        [f, g] = [c + 1, d + 1]
        h = i = f * g
        return h + i + e

    agrees(cpu, fibonacci, 0, 1, 2, 10, 20)


def test_python_names_hold_over_list_comprehensions(cpu):
    def comprehend(a, b):
        i = 1000
        v = [a * i + b for i in range(5) if i % 2 == 0]
        w = [x + y for x, y in zip(v, [1, 2, 3], strict=True)]
        return sum(w) + len(v) * i + max(w) + w[1]

    agrees(cpu, comprehend, (2, 3), (-4, 1))


def test_assignments_of_many_forms(cpu):
    def operators(a, b):
        s = a
        s += b
        s -= 3
        s *= 2
        s //= 3
        s %= 17
        s <<= 2
        s >>= 1
        s |= 5
        s &= 29
        s ^= 3
        s **= 2
        return s

    agrees(cpu, operators, (1, 2), (100, -7), (-50, 3), (0, 0))


def test_numbers_made_known_before_a_loop_change_in_it(cpu):
    def grow(n):
        a, b, c = 1, 2, 3
        for i in range(n):
            if i == 2:
                a = b
            elif i == 3:
                b = c
            a, c = c, a
        return 100 * a + 10 * b + c

    agrees(cpu, grow, 0, 1, 3, 4, 5)


def _random_program(seed):
    """A function of two whole numbers made of nested loops and branches; every loop ends."""
    rng = random.Random(seed)
    lines = ["def f(a, b):", "    c = 1", "    d = a", "    t = 0"]
    names = ["a", "b", "c", "d"]

    def number():
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(names)
        if kind < 0.7:
            return str(rng.randint(-5, 9))
        if kind < 0.9:
            return f"({number()} {rng.choice('+-*')} {number()}) % {rng.randint(2, 99)}"
        return f"({number()} if {test()} else {number()})"

    def test():
        kind = rng.random()
        if kind < 0.6:
            return f"{number()} {rng.choice(['<', '<=', '==', '!=', '>', '>='])} {number()}"
        if kind < 0.75:
            return f"{number()} < {number()} <= {number()}"
        if kind < 0.85:
            return f"not ({test()})"
        return f"({test()} {rng.choice(['and', 'or'])} {test()})"

    def block(indent, depth, loops):
        for _ in range(rng.randint(1, 4)):
            statement(indent, depth, loops)

    def statement(indent, depth, loops):
        pad = "    " * indent
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            if loops and rng.random() < 0.2:
                lines.append(f"{pad}if {test()}:")
                lines.append(f"{pad}    {rng.choice(['break', 'continue', f'return {number()}'])}")
            elif rng.random() < 0.2:
                x, y = rng.sample(names, 2)
                lines.append(f"{pad}{x}, {y} = {number()}, {number()}")
            elif rng.random() < 0.3:
                name = rng.choice(names)
                lines.append(f"{pad}{name} += {number()}")
                lines.append(f"{pad}{name} %= 1009")  # the compiled numbers have 32 bits
            else:
                lines.append(f"{pad}{rng.choice(names)} = {number()}")
        elif kind < 0.65:
            lines.append(f"{pad}if {test()}:")
            block(indent + 1, depth - 1, loops)
            if rng.random() < 0.3:
                lines.append(f"{pad}elif {test()}:")
                block(indent + 1, depth - 1, loops)
            if rng.random() < 0.5:
                lines.append(f"{pad}else:")
                block(indent + 1, depth - 1, loops)
        elif kind < 0.85:
            step = rng.choice(["", "", ", 2", ", -1"])
            bounds = f"{number()} % 7, {number()} % 9"
            lines.append(
                f"{pad}for {rng.choice(['i', 'j', 'k'])}{indent} in range({bounds}{step}):"
            )
            block(indent + 1, depth - 1, True)
        else:
            lines.append(f"{pad}while {test()}:")
            lines.append(f"{pad}    t += 1")
            lines.append(f"{pad}    if t > 40:")
            lines.append(f"{pad}        break")
            block(indent + 1, depth - 1, True)

    for _ in range(rng.randint(2, 5)):
        statement(1, 3, False)
    lines.append("    return (a + 3 * b + 7 * c + 11 * d + 13 * t) % 100003")
    return "\n".join(lines) + "\n"


def _defined(text, file):
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {}
    exec(compile(text, file, "exec"), space)
    return space["f"]


_GRID = [(a, b) for a in (-3, 0, 1, 6) for b in (-1, 2, 5)]


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_python(cpu, seed):
    text = _random_program(seed)
    f = _defined(text, f"<random program {seed}>")
    try:
        expected = [f(*call) for call in _GRID]
    except ValueError:  # pragma: no cover - a range step of 0 does not occur
        return
    compiled = cpu.func(f)
    results = cpu.field(cpu.i64, shape=len(_GRID))
    arguments = cpu.Vector.field(2, cpu.i64, shape=len(_GRID))
    arguments.from_numpy(np.array(_GRID))

    @cpu.kernel
    def launch():
        for i in results:
            results[i] = compiled(arguments[i][0], arguments[i][1])

    launch()
    assert results.to_numpy().tolist() == expected, text


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
            for i in range(k):  # serial: inside of a while
                s += i
            k -= 1
        if s > 10:
            for i in range(10):  # serial: inside of a branch
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
    (special,) = kernel.specials.values()
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
            with pytest.raises(ds.KernelTypeError, match=f"block_dim can not be the number {n}"):
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


# ---- while compiling


def test_static_for(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=8)
    table = [3, 1, 4]

    @ds.kernel
    def unroll():
        for k in ds.static(range(3)):
            x[k] = table[k]
        for k, t in ds.static(enumerate(table)):
            x[3 + k] += t * (k + 1)
        for i, j in ds.static(ds.ndrange(2, (1, 3))):
            x[6] += 10 * i + j
        for a, b in ds.static(zip([1, 2], [5, 7], strict=True)):
            x[7] += a * b

    unroll()
    assert x.to_numpy().tolist() == [3, 1, 4, 3, 2, 12, 1 + 2 + 11 + 12, 19]


def test_static_for_over_functions_and_fields(cpu):
    ds = cpu
    a, b = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=5)

    @ds.func
    def double(v):
        return 2 * v

    @ds.func
    def square(v):
        return v * v

    @ds.kernel
    def run():
        for f in ds.static([a, b]):
            for i in range(f.shape[0]):
                for function in ds.static((double, square)):
                    f[i] += function(i + 1)

    run()
    assert a.to_numpy().tolist() == [2 * k + k * k for k in range(1, 4)]
    assert b.to_numpy().tolist() == [2 * k + k * k for k in range(1, 6)]


def test_static_if_leaves_the_other_branch_untranslated(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=2)
    fast = False

    @ds.kernel
    def run(mode: ds.template()):
        if ds.static(fast):
            x[0] = there_is_no_such_name  # noqa: F821
        else:
            x[0] = 1
        if ds.static(mode == "up"):
            x[1] = 1
        elif ds.static(mode == "down"):
            x[1] = -1
        else:
            x[1] = nor_this  # noqa: F821

    run("up")
    assert x.to_numpy().tolist() == [1, 1]
    run("down")
    assert x.to_numpy().tolist() == [1, -1]


def test_static_condition_in_an_expression(cpu):
    ds = cpu

    @ds.kernel
    def pick(n: ds.template(), a: ds.f32) -> ds.f32:
        return a * 2 if ds.static(n > 2) else a.there_is_no_such_attribute

    assert pick(3, 4.0) == 8.0


# ---- what is not evaluated


def test_and_or_do_not_load_what_does_not_decide(cpu):
    ds = cpu
    ds.init(debug=True)
    x = ds.field(ds.i32, shape=10)
    x.from_numpy(np.arange(10, dtype=np.int32))
    hits = ds.field(ds.i32, shape=6)

    @ds.kernel
    def probe(low: ds.i32, high: ds.i32):
        for i in range(low, high):
            if 0 <= i and i < 10 and x[i] > 3:
                hits[0] += 1
            if i < 0 or i >= 10 or x[i] > 3:
                hits[1] += 1
            if not (i < 0 or i >= 10) and (x[i] == 2 or x[i] == 3):
                hits[2] += 1
            hits[3] += x[i] if 0 <= i < 10 else 0
            if 0 <= i < 10:
                hits[4] += x[i]
        k = low
        while k < 10 and (k < 0 or x[k] < 7):
            k += 1
        hits[5] = k

    probe(-5, 15)
    assert hits.to_numpy().tolist() == [6, 16, 2, 45, 45, 7]


def test_chains_do_not_load_what_does_not_decide(cpu):
    ds = cpu
    ds.init(debug=True)
    x = ds.field(ds.i32, shape=10)
    x.from_numpy(np.arange(10, dtype=np.int32) - 4)
    hits = ds.field(ds.i32, shape=())

    @ds.kernel
    def probe(low: ds.i32):
        for i in range(low, 10):
            if -1 < i <= x[i] + 5 < 8:
                hits[None] += 1

    probe(-5)
    assert hits[None] == sum(-1 < i <= i - 4 + 5 < 8 for i in range(10))


def test_functions_are_not_called_where_they_do_not_decide(cpu):
    ds = cpu
    calls = ds.field(ds.i32, shape=())

    @ds.func
    def told(v):
        calls[None] += 1
        return v > 0

    @ds.kernel
    def run(a: ds.i32) -> ds.i32:
        s = 0
        if a > 0 and told(a):
            s += 1
        if a > 0 or told(a):
            s += 2
        s += 4 if a > 5 or (a > 3 and told(a)) else 0
        return s

    assert [run(a) for a in (-1, 2, 4, 9)] == [0, 3, 7, 7]
    assert calls[None] == 1 + 1 + 2 + 1


# ---- conditions that do something


def test_condition_of_a_while_that_writes(cpu):
    ds = cpu
    calls = ds.field(ds.i32, shape=())

    @ds.func
    def told(v):
        calls[None] += 1
        return v

    @ds.kernel
    def run(n: ds.i32) -> ds.i32:
        s = 0
        k = 0
        while told(k) < n and told(s) < 20:
            k += 1
            if told(k) % 3 == 0:
                continue
            while told(s) % 4 != 3:
                s += 1
            s += k
        return s * 100 + k

    def by_python(n):
        count = s = k = 0
        while True:
            count += 1
            if not k < n:
                break
            count += 1
            if not s < 20:
                break
            k += 1
            count += 1
            if k % 3 == 0:
                continue
            count += 1
            while s % 4 != 3:
                s += 1
                count += 1
            s += k
        return s * 100 + k, count

    for n in (0, 1, 4, 50):
        calls[None] = 0
        assert (run(n), calls[None]) == by_python(n)


def test_condition_of_a_while_that_changes_a_local(cpu):
    ds = cpu

    @ds.func
    def next_of(v: ds.template()):
        v += 1
        return v

    @ds.kernel
    def run() -> ds.i32:
        a, s = 0, 0
        while next_of(a) < 5:
            s += a
        return s * 100 + a

    assert run() == (1 + 2 + 3 + 4) * 100 + 5


def test_condition_of_a_while_that_prints(cpu, capfd):
    ds = cpu

    @ds.func
    def shown(v):
        print("v =", v)
        return v

    @ds.kernel
    def run():
        k = 0
        while shown(k) < 2:
            k += 1

    run()
    assert capfd.readouterr().out.split("\n") == ["v = 0", "v = 1", "v = 2", ""]


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
def test_condition_of_a_while_that_draws(cpu):
    """Each draw is a new number: the turns have a geometric distribution, apart from what the body draws."""
    ds = cpu
    n = 20_000
    turns, total = ds.field(ds.i32, shape=n), ds.field(ds.f64, shape=n)

    @ds.kernel
    def run():
        for i in turns:
            k, s = 0, 0.0
            while ds.random(ds.f64) < 0.5 and k < 40:
                s += ds.random(ds.f64)
                k += 1
            turns[i] = k
            total[i] = s

    run()
    found = np.bincount(turns.to_numpy(), minlength=8)[:8] / n
    exact = 0.5 ** np.arange(1, 9)
    assert (abs(found - exact) < 5 * np.sqrt(exact / n)).all()
    drawn = turns.to_numpy().sum()
    assert abs(total.to_numpy().sum() / drawn - 0.5) < 5 / np.sqrt(12 * drawn)
