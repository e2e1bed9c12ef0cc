"""Serial loops and branches. Most functions here run twice: by Python itself, and compiled."""

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


def test_loops_in_loops_with_one_name(cpu):
    def visits(a, b):
        s = 0
        for _ in range(a):
            for _ in range(b):
                for _ in range(2):
                    s += 1
        for i in range(a):
            i = 2 * i
            for i in range(b):
                n = i
                for i in range(n):
                    s += 10 * i
                if s > 400:
                    break
        return s

    agrees(cpu, visits, (0, 3), (2, 3), (3, 5), (4, 6))


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
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_agree_with_python(cpu, seed, request):
    if seed % 2:  # half of them as users run them
        request.getfixturevalue("quick_code")
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


def test_an_early_end_of_an_outermost_loop_runs_it_in_order(cpu):
    ds = cpu
    x = ds.field(ds.f64, 10, needs_grad=True)
    loss = ds.field(ds.f64, (), needs_grad=True)
    x.from_numpy(np.arange(10.0))

    @ds.kernel
    def find(a: ds.f64) -> ds.i32:
        for i in x:
            if x[i] >= a:
                return i
        return -1

    @ds.kernel
    def squares(a: ds.f64):
        for i in range(10):
            if x[i] >= a:
                break
            loss[None] += x[i] ** 2
        for i in range(10):
            loss[None] += x[i]

    with pytest.warns(UserWarning, match="this return ends the loop early") as seen:
        assert (find(4.5), find(100.0)) == (5, -1)
    assert len(seen) == 1  # once
    with pytest.warns(UserWarning, match="this break ends the loop early"), ds.Tape(loss):
        squares(4.0)
    assert loss[None] == 14 + 45
    assert x.grad.to_numpy().tolist() == [1, 3, 5, 7, 1, 1, 1, 1, 1, 1]


def test_break_leaves_all_axes(cpu):
    ds = cpu

    def boxes(n, m):
        c = 0
        for k in range(2):
            for i, j in ds.ndrange((1, n), m):
                if i * j > 5:
                    break
                if j == 1:
                    continue
                c += 100 * i + j + k
        return c

    agrees(ds, boxes, (4, 5), (0, 3), (3, 0), (3, -2), (2, 100), (-3, -3))


def test_a_return_at_an_element(cpu):
    ds = cpu
    y = ds.field(ds.f64, (3, 4), offset=(-1, 2))
    y.from_numpy(np.arange(12.0).reshape(3, 4))

    @ds.kernel
    def find(least: ds.f64) -> ds.types.vector(2, ds.i32):
        ds.loop_config(serialize=True)
        for I in ds.grouped(y):
            if y[I] >= least:
                return I
        return [-99, -99]

    assert [find(v).to_list() for v in (0.0, 7.0, 20.0)] == [[-1, 2], [0, 5], [-99, -99]]


def test_gradient_through_a_break_out_of_two_axes(cpu):
    ds = cpu
    x = ds.field(ds.f64, (3, 4), needs_grad=True)
    y = ds.field(ds.f64, (), needs_grad=True)
    numbers = np.linspace(0.5, 1.6, 12).reshape(3, 4)
    x.from_numpy(numbers)

    @ds.kernel
    def add(limit: ds.f64):
        s = ds.f64(1.0)
        ds.loop_config(serialize=True)
        for i, j in x:
            if s > limit:
                break
            s *= 1.0 + x[i, j]
        y[None] += s

    for limit in (10.0, 0.5, 1e9):
        y[None] = 0.0
        with ds.Tape(y):
            add(limit)
        factors = 1.0 + numbers.ravel()
        products = np.cumprod(np.concatenate([[1.0], factors]))
        n = next((k for k, p in enumerate(products) if p > limit), 12)
        want = np.where(np.arange(12) < n, products[n] / factors, 0.0)
        assert y[None] == pytest.approx(products[n], rel=1e-13)
        np.testing.assert_allclose(x.grad.to_numpy().ravel(), want, rtol=1e-13)
