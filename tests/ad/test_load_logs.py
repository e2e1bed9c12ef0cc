"""Tasks that change what they have read, again and again: their adjoints read a log of their loads.

Sweeps in order, contact loops and elements that only a launch knows the owner of, with lifted rules.
Gradients are compared with central differences, and with a program that keeps each state in a row of its own.
"""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers
from tests.support.source import line_of, make

N = 5


@pytest.fixture
def lifted(cpu, quick_code):
    ds.init(default_fp=ds.f64, rules="lifted")
    yield
    ds.init()


IN_ORDER = "    ds.loop_config(serialize=True)\n"

PROGRAMS = {
    "repeated sweeps": IN_ORDER
    + """
    for k in range(3):
        for i in range(1, N - 1):
            x[i] = ds.sin(x[i - 1] * p[i] + x[i]) + 0.3 * x[i + 1] ** 2
""",
    "statements in order": """
    a = p[0]
    if a > 0:
        for k in range(2):
            for i in range(N - 1, 0, -1):
                x[i - 1] = a * x[i] * x[i - 1]
""",
    "branches": IN_ORDER
    + """
    for k in range(3):
        for i in range(1, N):
            if x[i] > 0.3:
                x[i] = x[i] * x[i - 1] * p[i] + 0.2
            else:
                x[i - 1] = ds.sin(x[i - 1]) + p[i] * x[i] ** 2
                for j in range(i):
                    x[j] *= x[i]
""",
    "computed indices": IN_ORDER
    + """
    for q in range(3 * N):
        i, j = (7 * q) % N, (q * q + 1) % N
        x[i] = ds.sin(x[j] * p[i]) + 0.1 * x[i] ** 2
""",
    "until it is small": IN_ORDER
    + """
    for _ in range(1):
        r, k = 1.0, 0
        while r > 0.05 and k < 10:
            r = 0.0
            for i in range(1, N - 1):
                new = ds.sin(0.5 * x[i - 1] * p[i] + 0.3 * x[i + 1])
                r = ds.max(r, ds.abs(new - x[i]))
                x[i] = new
            k += 1
""",
    "until elements are small": IN_ORDER
    + """
    for i in range(1, N):
        while x[i] > 0.1 and x[i - 1] < 5.0:
            x[i] *= p[i] * x[i]
            x[i - 1] += x[i] * x[i - 1]
""",
    "until a sum is small": IN_ORDER
    + """
    for _ in range(1):
        while norm() > 0.3:
            for i in range(1, N):
                x[i] = x[i] * ds.cos(x[i - 1]) * p[i]
                x[i - 1] *= 0.7 * x[i]
""",
    "links of a rope": IN_ORDER
    + """
    for k in range(3):
        for i in range(N - 1):
            d = x[i + 1] - x[i]
            c = ds.abs(d) - 0.2 * p[i]
            x[i] += 0.35 * c * d
            x[i + 1] -= 0.35 * c * d
""",
    "a tridiagonal system in place": """
    for i in b:
        b[i] = 2 + p[i]
    ds.loop_config(serialize=True)
    for i in range(1, N):
        w = -0.7 / b[i - 1]
        b[i] += 0.7 * w
        x[i] -= w * x[i - 1]
    x[N - 1] /= b[N - 1]
    ds.loop_config(serialize=True)
    for q in range(1, N):
        i = N - 1 - q
        x[i] = (x[i] + 0.7 * x[i + 1]) / b[i]
""",
    "a stack": IN_ORDER
    + """
    for i in range(N):
        b[top[None]] = p[i] * x[i]
        top[None] += 1
        if top[None] > 2:
            top[None] -= 1
            b[top[None] - 1] *= b[top[None]]
    for i in range(N):
        x[i] = b[0] * b[1]
        top[None] = 0
""",
    "places in a row": IN_ORDER
    + """
    for i in range(N):
        k = ds.atomic_add(top[None], 2)
        x[k % N] = ds.sin(x[(k + 1) % N] * p[i]) + x[k % N] ** 2
    for i in range(1):
        top[None] = 0
""",
    "contacts of each body": """
    for i in range(N):
        b[i] = p[i]
    for i in range(N):
        for j in range(N):
            d = x[i] - x[j]
            if j != i and ds.abs(d) < 0.3:
                b[i] += 0.3 * d * b[i] * b[i] - 0.1 * b[i]
    for i in range(N):
        x[i] += b[i]
""",
    "owners that the launch knows": """
    for i in range(N):
        k = at[i]
        x[k] = p[i] * (1.5 + i) * x[k]
        x[k] *= x[k]
        for _ in range(2):
            x[k] = ds.sin(x[k]) * x[k]
""",
    "rows of their own": """
    for i in range(N):
        for k in range(3):
            for j in range(1, 3):
                m[i, j] = ds.sin(m[i, j - 1] * p[i] + m[i, j + 1])
                m[i, j - 1] *= m[i, j]
        x[i] += m[i, 2] * m[i, 1]
    for i, j in m:
        m[i, j] = 0.3 * p[i] + j
""",
    "what a later loop reads": IN_ORDER
    + """
    for i in range(N - 1):
        q = x[i]
        x[at[i]] = ds.sin(q) * p[i]
        at[i] = i
    for i in range(N):
        b[i] = x[at[i]] * x[i]
    for i in range(N):
        x[i] += b[i]
""",
    "what versions are computed of": IN_ORDER
    + """
    for i in range(2):
        q = b[at[i]] * m[1, i]
        b[3] += q
        for j in range(3):
            for k in range(2):
                m[j, k] += p[k]
    for i in range(N):
        x[i] = ds.tanh(b[i])
    for i in range(N):
        b[i] = 0.2 * p[i]
""",
    "no iterations": IN_ORDER
    + """
    for k in range(top[None] - 2, top[None]):
        for i in range(k + 3, 1):
            x[i] = ds.sin(x[i]) * x[i + 1] * p[i]
        for i in range(1, k + N):
            x[i] = ds.sin(x[i - 1]) * p[i] + x[i] ** 2
""",
}


def space():
    """The fields of the programs; `p` is what gradients are wanted of."""
    made = {
        "ds": ds,
        "N": N,
        "p": field(N),
        "x": ds.field(ds.f64, shape=N),
        "b": ds.field(ds.f64, shape=N),
        "m": ds.field(ds.f64, shape=(N, 4)),
        "at": ds.field(ds.i32, shape=N),
        "top": ds.field(ds.i32, shape=()),
        "loss": field(),
    }
    made["p"].from_numpy(0.5 + 0.1 * numbers(N))
    x = made["x"]

    @ds.func
    def norm():
        s = 0.0
        for i in range(N):
            if x[i] > 0.1:
                s += x[i] ** 2
        return s

    return made | {"norm": norm}


def program(s, body, launches=2):
    """A program of launches of a kernel with this body."""
    make(f"@ds.kernel\ndef step():\n{body}", s)
    x, m, loss = s["x"], s["m"], s["loss"]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2 * (1 + 0.1 * i)

    def run():
        x.from_numpy(0.3 + 0.1 * numbers(N, seed=3))
        m.from_numpy(0.4 + 0.2 * numbers(N, 4, seed=4))
        s["b"].from_numpy(0.4 + 0.2 * numbers(N, seed=5))
        s["at"].from_numpy(np.array([3, 0, 4, 1, 2], np.int32))
        s["top"].fill(0)
        for _ in range(launches):
            s["step"]()
        measure()

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(lifted, name):
    s = space()
    check(program(s, PROGRAMS[name]), s["loss"], s["p"])


@pytest.mark.parametrize("name", ["branches", "until elements are small", "rows of their own"])
@pytest.mark.parametrize(
    "options", [{"debug": True}, {"deterministic": True}, {"cpu_max_num_threads": 1}]
)
def test_options(cpu, quick_code, name, options):
    ds.init(default_fp=ds.f64, rules="lifted", **options)
    s = space()
    check(program(s, PROGRAMS[name]), s["loss"], s["p"])
    ds.init()


def solver(steps):
    """Gauss-Seidel sweeps on a row of a time axis; the time and the number of sweeps are arguments."""
    x, p, loss = ds.field(ds.f64, shape=(steps + 1, N)), field(N), field()
    p.from_numpy(0.5 + 0.1 * numbers(N))

    @ds.kernel
    def sweep(t: ds.i32, times: ds.i32):
        for i in range(N):
            x[t + 1, i] = x[t, i]
        ds.loop_config(serialize=True)
        for k in range(times):
            for i in range(1, N - 1):
                x[t + 1, i] = ds.sin(x[t + 1, i - 1] * p[i] + x[t + 1, i + 1]) + x[t, i] ** 2

    @ds.kernel
    def measure():
        for i in range(N):
            loss[None] += x[steps, i] ** 2

    def run():
        x.from_numpy(0.3 + 0.1 * numbers(steps + 1, N, seed=3))
        for t in range(steps):
            sweep(t, 2 * t)
        measure()

    return run, loss, p, x


def test_rows_of_a_time_axis(lifted):
    run, loss, p, _ = solver(3)
    check(run, loss, p)


def test_only_the_row_is_copied(lifted):
    """The state of other times does not grow the copies that a launch makes on the way back."""
    run, loss, _, _ = solver(3)
    tape = ds.Tape(loss)
    with tape:
        run()
    # Each launch saves what its sweeps overwrite: one row, not the field.
    assert tape.stats().saved_bytes == 3 * N * 8


def test_replays(lifted):
    run, loss, p, _ = solver(3)
    tape = ds.Tape(loss)
    with tape:
        run()
    for seed in range(2):
        p.from_numpy(0.5 + 0.1 * numbers(N, seed=seed))
        tape.replay()
        tape.backward()
        replayed = p.grad.to_numpy()
        with ds.Tape(loss):
            run()
        assert (p.grad.to_numpy() == replayed).all()


@pytest.mark.parametrize("name", ["branches", "what a later loop reads"])
def test_checkpoints(lifted, name):
    s = space()
    run = program(s, PROGRAMS[name], launches=1)
    x, loss, p = s["x"], s["loss"], s["p"]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 3

    def stored():
        for _ in range(6):
            s["step"]()

    def checkpointed():
        ds.ad.checkpoint(lambda t: s["step"](), 6, [x, s["b"], s["at"]], snapshots=2)

    gradients = []
    for go in (stored, checkpointed):
        with ds.Tape(loss):
            run()
            go()
            measure()
        gradients.append(p.grad.to_numpy())
    assert np.abs(gradients[0]).max() > 1e-3
    np.testing.assert_array_equal(*gradients)


def test_vectors_and_their_components(lifted):
    """Impulses between balls, one pair after the other."""
    p, loss = field(N), field()
    p.from_numpy(0.5 + 0.1 * numbers(N))
    x, v = (ds.Vector.field(2, ds.f64, shape=N) for _ in range(2))

    @ds.kernel
    def solve():
        ds.loop_config(serialize=True)
        for k in range(3):
            for i in range(N):
                for j in range(i):
                    d = x[i] - x[j]
                    away = d / d.norm()
                    speed = (v[i] - v[j]).dot(away)
                    if d.norm() < 0.8 and speed < 0.1:
                        push = -(1 + p[i]) * speed * 0.5
                        v[i] += push * away
                        v[j] -= push * away
                v[i].y *= 0.9 * p[i] + v[i].x

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += v[i].x + v[i].y ** 2

    def run():
        x.from_numpy(0.4 * numbers(N, 2))
        v.from_numpy(0.4 * numbers(N, 2, seed=5))
        solve()
        measure()

    check(run, loss, p)


def test_as_with_a_row_for_each_state(lifted):
    """To the last bit the gradient of the same statements on rows that are never overwritten."""
    n, times = 6, 4
    p, loss = field(n), field()
    p.from_numpy(0.5 + 0.1 * numbers(n))
    x, rows = ds.field(ds.f64, shape=n), field((times * n + 1, n))

    @ds.kernel
    def sweep():
        ds.loop_config(serialize=True)
        for k in range(times):
            for i in range(1, n - 1):
                x[i] = ds.sin(x[i - 1] * p[i]) + x[i + 1] * x[i + 1]

    @ds.kernel
    def one(t: ds.i32, i: ds.i32):
        for j in range(n):
            rows[t + 1, j] = rows[t, j]
            if j == i:
                rows[t + 1, j] = ds.sin(rows[t, i - 1] * p[i]) + rows[t, i + 1] * rows[t, i + 1]

    @ds.kernel
    def measure(t: ds.i32):
        for i in range(n):
            loss[None] += x[i] + rows[t, i]

    start, found = 0.3 + 0.1 * numbers(n, seed=3), []
    for in_place in (True, False):
        rows.from_numpy(np.zeros(rows.shape) if in_place else np.tile(start, (times * n + 1, 1)))
        x.from_numpy(start if in_place else np.zeros(n))
        with ds.Tape(loss):
            if in_place:
                sweep()
                measure(times * n)
            else:
                t = 0
                for _ in range(times):
                    for i in range(1, n - 1):
                        one(t, i)
                        t += 1
                measure(t)
        found.append(p.grad.to_numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-13)
    assert np.abs(found[0]).max() > 1e-3


# ---- what stays refused


def test_without_a_tape_and_by_the_rules(cpu, quick_code):
    ds.init(default_fp=ds.f64)
    x, loss = field(N), field()

    @ds.kernel
    def sweep():
        ds.loop_config(serialize=True)
        for k in range(2):
            for i in range(1, N):
                x[i] = ds.sin(x[i - 1])

    @ds.kernel
    def measure():
        loss[None] = x[N - 1]

    with pytest.raises(ds.AutodiffError, match=r'rules="lifted"'), ds.Tape(loss):
        sweep()
        measure()
    with ds.Tape(loss, in_place="save"):
        sweep()
        measure()
    x.grad.fill(1.0)
    sweep()
    with pytest.raises(ds.AutodiffError, match=r"x\[1\] is read and written in one launch"):
        sweep.grad()


def test_owners_that_meet(lifted):
    p, x, loss = field(N), ds.field(ds.f64, shape=N), field()
    at = ds.field(ds.i32, shape=N)

    @ds.kernel
    def scale():
        for i in range(N):
            k = at[i]
            x[k] = p[i]
            x[k] *= x[k]

    @ds.kernel
    def measure():
        for i in range(N):
            loss[None] += x[i]

    def run():
        scale()
        measure()

    p.from_numpy(0.5 + 0.1 * numbers(N))
    at.from_numpy(np.arange(N, dtype=np.int32)[::-1].copy())
    check(run, loss, p)
    at.from_numpy(np.array([0, 1, 2, 1, 4], np.int32))
    with pytest.raises(ds.GlobalDataAccessError) as caught, ds.Tape(loss):
        run()
    text = str(caught.value)
    assert "iteration 1" in text
    assert "x[1]" in text
    assert f"line {line_of(scale, 'x[k] *= x[k]')}" in text


def test_neighbours_of_a_parallel_loop(lifted):
    """A race is none that a log could tell the order of."""
    x, loss = field(N), field()

    @ds.kernel
    def sweep():
        for i in range(1, N):
            for k in range(2):
                x[i] = ds.sin(x[i - 1]) * x[i]
        for i in range(N):
            loss[None] += x[i]

    with pytest.raises(ds.GlobalDataAccessError, match="no defined gradient"), ds.Tape(loss):
        sweep()


def test_loads_of_funcs_with_given_gradients(lifted):
    """Such a call has no place in the log: what it loads and the sweep changes is refused, not looked up."""
    x, loss = field(N), field()

    @ds.func
    def probe(f, k):
        return f[k] ** 2

    @ds.func_grad(probe)
    def adj_probe(f, k, adj):
        ds.adjoint[f][k] += 2 * f[k] * adj

    @ds.kernel
    def sweep():
        ds.loop_config(serialize=True)
        for k in range(2):
            for i in range(1, N):
                x[i] = ds.sin(x[i]) + probe(x, i - 1)

    @ds.kernel
    def end():
        for i in x:
            loss[None] += x[i]

    with pytest.raises(ds.GlobalDataAccessError, match="the gradient needs x"), ds.Tape(loss):
        sweep()
        end()
