"""Gradients of atomic minima and maxima: they go to the update that won, and to nobody else."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.reverse.backward import sweep
from diffsim.errors import AutodiffError, GlobalDataAccessError
from tests.support.gradients import check, field, numbers
from tests.support.source import make


@pytest.fixture(autouse=True)
def _f64(quick_code):
    ds.init(default_fp=ds.f64)


@ds.func
def bumpy(a):
    return ds.sin(3 * a) * a - ds.exp(-a * a) / (1.5 + a)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_largest_and_smallest(kind, shift):
    """Of negative, mixed and positive values, against central differences."""
    x, top, loss = field(7), field(), field()
    x.from_numpy(numbers(7))
    update = ds.atomic_max if kind == "max" else ds.atomic_min

    @ds.kernel
    def extreme():
        for i in x:
            update(top[None], bumpy(x[i]) + shift)

    @ds.kernel
    def end():
        loss[None] += top[None] ** 2

    def program():
        top[None] = -1000.0 if kind == "max" else 1000.0
        extreme()
        end()

    (g,) = check(program, loss, x)
    assert np.count_nonzero(g) == 1


@pytest.mark.parametrize("where", ["python", "kernel", "same kernel"])
@pytest.mark.parametrize("start", [-9.0, 0.7, 9.0])
def test_what_was_there_before_may_win(where, start):
    x, s, top, loss = field(5), field(), field(), field()
    x.from_numpy(np.array([0.1, 0.6, -0.2, 0.5, 0.3]))
    s[None] = start

    @ds.kernel
    def begin():
        top[None] = 2 * s[None]

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], 2 * x[i])

    @ds.kernel
    def both():
        top[None] = 2 * s[None]
        for i in x:
            ds.atomic_max(top[None], 2 * x[i])

    @ds.kernel
    def end():
        loss[None] += 5 * top[None]

    with ds.Tape(loss):
        if where == "same kernel":
            both()
        elif where == "kernel":
            begin()
            largest()
        else:
            top[None] = 2 * start
            largest()
        end()
    wins = start > 0.6
    want = np.zeros(5)
    want[1] = 0 if wins else 10
    assert x.grad.to_numpy().tolist() == want.tolist()
    if where != "python":
        assert s.grad[None] == (10 if wins else 0)
    assert top.grad[None] == (5 if where == "python" and wins else 0)  # an input that Python sets


def test_an_input_that_wins_keeps_its_gradient():
    x, top, loss = field(3), field(), field()
    top[None] = 5.0

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i])

    @ds.kernel
    def end():
        loss[None] += 3 * top[None]

    with ds.Tape(loss):
        largest()
        end()
    assert top.grad[None] == 3
    assert not x.grad.to_numpy().any()


def test_a_constant_that_wins_takes_the_gradient_away():
    x, y, loss = field(4), field(4), field()
    x.from_numpy(np.array([-1.0, 2.0, 0.0, -3.0]))

    @ds.kernel
    def rectify():
        for i in x:
            y[i] = x[i]
            ds.atomic_max(y[i], 0.0)

    @ds.kernel
    def end():
        for i in y:
            loss[None] += y[i] * (i + 1)

    with ds.Tape(loss):
        rectify()
        end()
    assert x.grad.to_numpy().tolist() == [0, 2, 0, 0]
    assert not y.grad.to_numpy().any()


@pytest.mark.parametrize("threads", [1, 4])
def test_of_equals_one_gets_all(threads):
    ds.init(default_fp=ds.f64, cpu_max_num_threads=threads)
    n = 200_000
    x, top, loss = field(n), field(3), field()
    values = np.zeros(n)
    values[::7] = 1.0
    x.from_numpy(values)

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[i % 3], x[i])

    @ds.kernel
    def end():
        for k in top:
            loss[None] += top[k] * (k + 1)

    with ds.Tape(loss):
        top.fill(-1)
        largest()
        end()
    g = x.grad.to_numpy()
    for k in range(3):
        mine = g[k::3]
        assert np.count_nonzero(mine) == 1
        assert mine.sum() == k + 1
        assert values[k::3][mine != 0] == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_of_equals_the_first_turn_wins(threads):
    """Where all turns update one element, named by constants, arguments, or a local."""
    ds.init(default_fp=ds.f64, cpu_max_num_threads=threads)
    x, top, loss = field((300, 500)), field((3, 2)), field()

    @ds.kernel
    def over_both(t: ds.i32, first: ds.i32):
        for i, j in ds.ndrange((first, 300), (first + 2, 500)):
            ds.atomic_max(top[t + 1, 0], x[i, j])

    @ds.kernel
    def local():
        low = 9.0
        for i in range(300):
            for j in range(500):
                ds.atomic_min(low, x[i, j])
        loss[None] += low

    values = np.zeros((300, 500))
    for i, j in [(2, 499), (2, 400), (3, 1), (290, 3), (1, 2), (2, 3), (150, 250)]:
        values[i, j] = 1
    x.from_numpy(values)
    tape = ds.Tape()
    with tape:
        top.fill(-1)
        over_both(1, 2)
    tape.backward(grads={top: 1})
    assert np.argwhere(x.grad.to_numpy()).tolist() == [[2, 400]]
    assert x.grad[2, 400] == 1
    values[values == 0] = 2
    x.from_numpy(values)
    with ds.Tape(loss):
        local()
    # In one turn the last update wins: (1, 2) is the only one of turn 1.
    assert np.argwhere(x.grad.to_numpy()).tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", [ds.f32, ds.f64])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_computed_somebody_wins(dtype, seed):
    """The adjoint computes each value again, in other code, and must come by the same bits."""
    rng = np.random.default_rng(seed)
    n, groups = 4001, 40
    functions = ["ds.sin({})", "ds.cos({})", "ds.exp({})", "ds.log(1.5 + {} * {})", "ds.tanh({})"]
    functions += ["ds.sqrt(2 + {} * {})", "ds.atan2({}, 1.5 + {} * {})", "({} * a + b * {})"]
    functions += [
        "({} / (b * b + 0.3) + {} * {})",
        "(2 + {} * {}) ** b",
        "({} - 0.1 * {} * {} * b)",
    ]
    text = "a"
    for _ in range(int(rng.integers(2, 7))):
        text = str(rng.choice(functions)).replace("{}", f"({text})" if len(text) < 200 else "a")
    update = str(rng.choice(["atomic_max", "atomic_min"]))
    space = {"ds": ds, "n": n, "groups": groups}
    for name, shape in {"x": n, "y": n, "o": n, "top": groups, "loss": ()}.items():
        space[name] = ds.field(dtype, shape, needs_grad=True)
    make(
        f"""
@ds.kernel
def extreme():
    for i in range(n):
        a, b = x[i], y[i]
        c = {text}
        ds.{update}(top[i % groups], c + o[i])

@ds.kernel
def end():
    for k in range(groups):
        loss[None] += top[k]
""",
        space,
    )
    for name in "xyo":
        space[name].from_numpy(rng.uniform(-1, 1, n).astype(dtype.numpy))
    with ds.Tape(space["loss"]):
        space["top"].fill(-np.inf if update == "atomic_max" else np.inf)
        space["extreme"]()
        space["end"]()
    assert np.isfinite(space["top"].to_numpy()).all()
    g = np.pad(space["o"].grad.to_numpy(), (0, -n % groups)).reshape(-1, groups)
    assert (g.sum(0) == 1).all(), text
    assert ((g == 0) | (g == 1)).all(), text


def test_fast_math_too():
    ds.init(default_fp=ds.f32, fast_math=True)
    n = 1000
    x, o, top, loss = (ds.field(ds.f32, s, needs_grad=True) for s in (n, n, 10, ()))
    x.from_numpy(numbers(n).astype(np.float32))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[i % 10], (x[i] * 1.7 + 0.3) * x[i] + ds.sin(x[i]) / 3.0 + o[i])

    @ds.kernel
    def end():
        for k in top:
            loss[None] += top[k]

    with ds.Tape(loss):
        top.fill(-9)
        largest()
        end()
    assert o.grad.to_numpy().reshape(-1, 10).sum(0).tolist() == [1.0] * 10


def test_components_of_vectors():
    x, low, high, loss = field(6, n=3), field(n=3), field(n=3), field()
    x.from_numpy(numbers(6, 3))

    @ds.kernel
    def box():
        for i in x:
            for k in ds.static(range(3)):
                ds.atomic_min(low[None][k], x[i][k])
                ds.atomic_max(high[None][k], x[i][k] * x[i][(k + 1) % 3])

    @ds.kernel
    def end():
        loss[None] += (high[None] - low[None]).norm_sqr()

    def program():
        low.fill(9)
        high.fill(-9)
        box()
        end()

    check(program, loss, x)


def test_rows_in_a_loop_inside():
    a, most, loss = field((4, 6)), field(4), field()
    a.from_numpy(numbers(4, 6))

    @ds.kernel
    def rows():
        for i in range(4):
            most[i] = -9.0
            for j in range(6):
                ds.atomic_max(most[i], ds.sin(5 * a[i, j]))

    @ds.kernel
    def end():
        for i in most:
            loss[None] += most[i] ** 2 * (i + 1)

    check(lambda: (rows(), end()), loss, a)


def test_a_local_of_the_kernel():
    x, loss = field(6), field()
    x.from_numpy(numbers(6))

    @ds.kernel
    def spread():
        low, high = 9.0, -9.0
        for i in x:
            ds.atomic_min(low, ds.sin(3 * x[i]))
            ds.atomic_max(high, x[i] ** 3)
        loss[None] += (high - low) ** 2

    check(spread, loss, x)


def test_two_loops_update_the_same():
    x, y, top, loss = field(4), field(4), field(), field()
    x.from_numpy(numbers(4))
    y.from_numpy(numbers(4, seed=1))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i] ** 2)
        for i in y:
            ds.atomic_max(top[None], y[i] ** 2)
            ds.atomic_max(top[None], 0.9 * y[i] * x[i])

    @ds.kernel
    def end():
        loss[None] += top[None] ** 2

    def program():
        top[None] = -9.0
        largest()
        end()

    for seed in range(1, 5):
        y.from_numpy(numbers(4, seed=seed))
        check(program, loss, x, y)


@pytest.mark.parametrize("how", ["save", "checkpoint"])
def test_over_time_steps(how):
    """The highest point of a trajectory; the state is overwritten."""
    q, p, top, loss = field(3), field(3), field(3), field()
    q.from_numpy(numbers(3))
    p.from_numpy(numbers(3, seed=2))
    start = q.to_numpy(), p.to_numpy()

    @ds.kernel
    def move():
        for i in q:
            p[i] += -0.3 * ds.sin(q[i])

    @ds.kernel
    def drift():
        for i in q:
            q[i] += 0.3 * p[i]

    @ds.kernel
    def measure():
        for i in q:
            ds.atomic_max(top[i], q[i] ** 2)

    @ds.kernel
    def end():
        for i in top:
            loss[None] += top[i] * (i + 1)

    def step(t):
        move()
        drift()
        measure()

    def run(a, b, tape=None):
        q.from_numpy(a)
        p.from_numpy(b)
        top.fill(0)
        loss[None] = 0
        with tape or ds.ad.no_grad():
            if tape and how == "checkpoint":
                ds.ad.checkpoint(step, 20, state=[q, p, top], snapshots=3)
            else:
                for t in range(20):
                    step(t)
            end()
        return loss[None]

    run(*start, ds.Tape(loss, in_place="save"))
    found = q.grad.to_numpy(), p.grad.to_numpy()
    for k in range(2):
        for i in range(3):
            ends = []
            for h in (1e-6, -1e-6):
                moved = [a.copy() for a in start]
                moved[k][i] += h
                ends.append(run(*moved))
            assert found[k][i] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-6)


def test_a_checkpointed_maximum_belongs_to_the_state():
    x, top, loss = field(2), field(), field()

    @ds.kernel
    def measure():
        for i in x:
            ds.atomic_max(top[None], x[i] ** 2)

    with pytest.raises(AutodiffError, match="top may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(lambda t: measure(), 1, state=[x])


def test_later_launches_are_refused_or_kept():
    x, top, loss = field(3), field(), field()
    x.from_numpy(np.array([0.3, 0.9, 0.5]))

    @ds.kernel
    def measure(scale: ds.f64):
        for i in x:
            ds.atomic_max(top[None], scale * x[i])

    @ds.kernel
    def end():
        loss[None] += 2 * top[None]

    def program():
        top[None] = -9.0
        measure(2.0)
        measure(3.0)
        measure(-1.0)
        end()

    with pytest.raises(GlobalDataAccessError, match="needs top as it was"), ds.Tape(loss):
        program()
    with ds.Tape(loss, in_place="save"):
        program()
    assert x.grad.to_numpy().tolist() == [0, 6, 0]


def test_nan_never_wins():
    x, top, loss = field(3), field(), field()
    x.from_numpy(np.array([1.0, np.nan, 0.5]))

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(top[None], x[i])

    @ds.kernel
    def end():
        loss[None] += top[None]

    with ds.Tape(loss):
        top[None] = -1.0
        largest()
        end()
    assert x.grad.to_numpy().tolist() == [1, 0, 0]


def test_an_array_argument():
    x = ds.ndarray(ds.f64, 5, needs_grad=True)
    top = ds.ndarray(ds.f64, 2, needs_grad=True)
    loss = field()
    x.from_numpy(numbers(5))

    @ds.kernel
    def largest(a: ds.types.ndarray(), m: ds.types.ndarray()):
        for i in a:
            ds.atomic_max(m[i % 2], a[i] ** 2)

    @ds.kernel
    def end(m: ds.types.ndarray()):
        for i in m:
            loss[None] += m[i] * (i + 1)

    def program():
        top.fill(-1)
        largest(x, top)
        end(top)

    check(program, loss, x)


REFUSED = {
    "an addition after it": """
    for i in x:
        ds.atomic_max(m[i], x[i])
        m[i] += y[i]
""",
    "an addition by other turns": """
    for i in x:
        ds.atomic_max(m[0], x[i])
        m[0] += y[i]
""",
    "a minimum after it": """
    for i in x:
        ds.atomic_max(m[0], x[i])
    for i in x:
        ds.atomic_min(m[0], y[i])
""",
    "a store in a later loop": """
    for i in x:
        ds.atomic_max(m[0], x[i])
    for i in x:
        y[i] = m[0]
    for i in x:
        m[i] = 2 * x[i]
""",
    "read between two": """
    for i in x:
        ds.atomic_max(m[0], x[i])
    for i in x:
        z[i] = m[0]
    for i in x:
        ds.atomic_max(m[0], y[i])
""",
    "read by the same turn between": """
    for i in x:
        ds.atomic_max(m[i], x[i])
        z[i] = m[i]
        ds.atomic_max(m[i], y[i])
""",
    "the largest so far": """
    for i in x:
        for k in range(3):
            ds.atomic_max(m[i], y[k])
            z[i] += m[i]
""",
    "the value before is used": """
    for i in x:
        z[i] = ds.atomic_max(m[i], x[i])
""",
    "the value before chooses": """
    for i in x:
        if ds.atomic_max(m[i], x[i]) > 0:
            z[i] = y[i]
""",
    "a sum of the same kernel": """
    s = 0.0
    for i in x:
        s += x[i]
    for i in x:
        ds.atomic_max(m[0], s * y[i])
""",
    "something made of such a sum": """
    s = 0.0
    for i in x:
        s += x[i]
    t = s / 3
    for i in x:
        ds.atomic_max(m[0], t * y[i])
""",
    "a local that is added to": """
    s = -9.0
    for i in x:
        ds.atomic_max(s, x[i])
    for i in x:
        s += y[i]
    z[0] += s
""",
    "read and squared before": """
    for i in x:
        z[i] = m[i] ** 2
    for i in x:
        ds.atomic_max(m[i], y[i])
""",
}


# What a tape that saves launches loop by loop.
LOOP_BY_LOOP = [
    "a minimum after it",
    "a store in a later loop",
    "read between two",
    "a sum of the same kernel",
    "something made of such a sum",
    "a local that is added to",
    "read and squared before",
]


@pytest.mark.parametrize(
    ("name", "in_place"),
    [
        (n, how)
        for n in REFUSED
        for how in ("refuse", "save")
        if how == "refuse" or n not in LOOP_BY_LOOP
    ],
)
def test_refused(name, in_place):
    space = {"ds": ds, **{f: field(4) for f in "xyzm"}, "loss": field()}
    make(f"@ds.kernel\ndef k():{REFUSED[name]}", space)
    tape = ds.Tape(in_place=in_place)
    with pytest.raises(AutodiffError) as info:
        with tape:
            space["k"]()
        tape.backward(grads={space["z"]: 1, space["m"]: 1})
    assert info.value.span is not None


ALLOWED = {
    "an addition before it": "m[i] += y[i]\n        ds.atomic_max(m[i], 0.3 * x[i])",
    "a store before it": "m[i] = y[i]\n        ds.atomic_max(m[i], 0.3 * x[i])",
    "read before it": "z[i] = 2 * m[i]\n        ds.atomic_max(m[i], x[i])",
    "read after it": "ds.atomic_max(m[i], x[i] * y[i])\n        z[i] = m[i] ** 2",
    "in a branch": "if y[i] > 0:\n            ds.atomic_max(m[i], x[i] * y[i])",
    "other elements": "ds.atomic_max(m[2 * i], x[i])\n        m[2 * i + 1] += y[i]",
    "to and fro": "ds.atomic_max(m[2 * i], x[i])\n        ds.atomic_min(m[2 * i + 1], y[i])",
    "the old value ignored": "a = ds.atomic_max(m[i], x[i])\n        z[i] = y[i]",
}


@pytest.mark.parametrize(
    ("name", "in_place"), [(n, how) for n in ALLOWED for how in ("refuse", "save")]
)
def test_allowed(name, in_place):
    fields = {f: field(4) for f in "xyz"} | {"m": field(8)}
    space = {"ds": ds, **fields}
    make(f"@ds.kernel\ndef k():\n    for i in range(4):\n        {ALLOWED[name]}\n", space)
    compare(fields, space["k"], in_place)


@pytest.mark.parametrize("name", LOOP_BY_LOOP)
def test_loop_by_loop(name):
    fields = {f: field(4) for f in "xyzm"}
    space = {"ds": ds, **fields}
    make(f"@ds.kernel\ndef k():{REFUSED[name]}", space)
    compare(fields, space["k"], "save")


def compare(fields, kernel, in_place):
    """Compare gradients with central differences of a weighted sum of everything."""
    start = {n: numbers(*f.shape, seed=k) for k, (n, f) in enumerate(fields.items())}
    weights = {n: numbers(*f.shape, seed=9 + k) for k, (n, f) in enumerate(fields.items())}

    def load(values):
        for n, f in fields.items():
            f.from_numpy(values[n])

    def value(values):
        load(values)
        kernel()
        return sum((fields[n].to_numpy() * w).sum() for n, w in weights.items())

    load(start)
    tape = ds.Tape(in_place=in_place)
    with tape:
        kernel()
    for n, f in fields.items():
        f.grad.from_numpy(weights[n])
    sweep(tape.entries, tape.recorder.integrity)
    for n, f in fields.items():
        found = f.grad.to_numpy()
        for j in range(found.size):
            ends = []
            for h in (1e-6, -1e-6):
                moved = {m: v.copy() for m, v in start.items()}
                moved[n][j] += h
                ends.append(value(moved))
            want = (ends[0] - ends[1]) / 2e-6
            assert found[j] == pytest.approx(want, abs=1e-6), (n, j)


def test_a_maximum_after_an_addition_in_steps(cpu):
    """What the addition left in an earlier step decides the maximum: the field belongs to the state."""
    x, y, z, loss = (ds.field(ds.f64, n, needs_grad=True) for n in (3, 3, 3, ()))

    @ds.kernel
    def step():
        for i in x:
            y[i] += x[i]
        for i in x:
            ds.atomic_max(y[i], 2 * x[i])
        for i in x:
            z[i] = z[i] * x[i]

    with pytest.raises(ds.AutodiffError, match="y may carry something"), ds.Tape(loss):
        ds.ad.checkpoint(lambda t: step(), 3, state=[z])
