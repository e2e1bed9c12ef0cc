"""`print` in kernels: the text is what Python prints when it runs the same function itself."""

import signal
import threading
import warnings

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AccessError, KernelAssertionError
from diffsim.runtime import print_buffer
from tests.support.gradients import field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")


def both(capsys, function, *args):
    """What a function prints that is run by Python, and as a kernel."""
    function(*args)
    by_python = capsys.readouterr().out
    ds.kernel(function)(*args)
    return by_python, capsys.readouterr().out


def test_what_python_prints(capsys):
    ds.init(default_fp=ds.f64)
    x = field(5)
    x.from_numpy(numbers(5))
    n, name, table = 3, "x", (1, 2.5)

    def run(a: ds.f64, k: ds.i32):
        print()
        print("numbers", k, a, n, -0.0, True, None, table, sep=", ")
        print(name, "of", k, end=" -> ")
        print(f"{k:4d}|{k:<6}|{a:.3f}|{a:+.2e}|{a:>{n + 9}.1f}|{name!r}|{{}}|{k:#x}|{k % 2 == 0}")
        for i in range(5):
            if i != 2:
                print(f"{i}: {x[i]} {x[i] > 0} {x[i]:10.4f} {x[i]=} {x[i] * 2=:.1f}")
            for j in range(i):
                print(i, j, [i + j, x[j]], (i,), *table)
        print("end", end="")

    by_python, by_kernel = both(capsys, run, 1 / 3, 7)
    assert by_python.count("\n") > 15
    assert by_kernel == by_python


def test_vectors_structs_and_funcs(capsys):
    ds.init(default_fp=ds.f64)
    x = ds.Vector.field(2, ds.f64, shape=3)
    x.from_numpy(numbers(3, 2))
    ball = ds.types.struct(pos=ds.types.vector(2, ds.f64), mass=ds.f64)

    @ds.func
    def squared(v):
        print("squared", v)
        return v.dot(v)

    @ds.kernel
    def run():
        for i in range(3):
            p = ball(x[i], 2.0)
            print(p, squared(x[i]), x[i].outer_product(x[i]), f"{x[i]:.2f}")

    run()
    a, want = x.to_numpy(), ""
    for v in a:
        outer = [[float(p * q) for q in v] for p in v]
        want += f"squared {v.tolist()}\n"
        want += f"struct(pos={v.tolist()}, mass=2.0) {float(v @ v)!r} {outer} [{v[0]:.2f}, {v[1]:.2f}]\n"
    assert capsys.readouterr().out == want


@pytest.mark.parametrize(
    "name", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"]
)
def test_every_type(capsys, name):
    ds.init()
    t = getattr(ds, name)
    dtype = np.dtype({"i": "int", "u": "uint", "f": "float"}[name[0]] + name[1:])
    if t.is_float:
        top = np.finfo(dtype)
        values = [
            0.1,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            top.max,
            top.tiny,
            top.smallest_subnormal,
            1 / 3,
        ]
    else:
        top = np.iinfo(dtype)
        values = [0, 1, top.min, top.max, top.max // 3]
    values = np.array(values, dtype)
    x = ds.field(t, shape=len(values))
    x.from_numpy(values)

    @ds.kernel
    def run():
        for i in x:
            print(x[i])

    run()
    assert capsys.readouterr().out.splitlines() == [str(v) for v in values]


def test_lanes_are_in_order(capsys):
    """Whichever thread was first: tasks as they stand, lanes by their indices, and each as it went."""
    ds.init()
    n = 40

    @ds.kernel
    def run():
        print("first")
        for i, j in ds.ndrange((-n, n), (5, 5 + n)):
            print(i, j)
            for k in range((i + j) % 3):
                print(i, j, k)
        print("second")
        for i in range(3):
            print(i)

    run()
    want = ["first"]
    for i in range(-n, n):
        for j in range(5, 5 + n):
            want += [f"{i} {j}", *(f"{i} {j} {k}" for k in range((i + j) % 3))]
    want += ["second", "0", "1", "2"]
    assert capsys.readouterr().out.splitlines() == want


def test_gradients_do_not_print(capsys):
    """And printing is nothing to the kernel simplicity rule, nor to what a gradient is."""
    x, loss = field(4, grad=True), field((), grad=True)
    x.from_numpy(numbers(4))

    @ds.kernel(simplicity="strict")
    def run():
        print("begin", x[0])
        for i in x:
            print(i, x[i])
            for j in range(2):
                print(j)
                loss[None] += x[i] ** 3

    tape = ds.Tape(loss)
    with tape:
        run()
    once = capsys.readouterr().out
    assert once.count("\n") == 1 + 4 + 8
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy() ** 2, rtol=1e-12)
    tape.replay()
    assert capsys.readouterr().out == once
    tape.backward()
    assert capsys.readouterr().out == ""
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy() ** 2, rtol=1e-12)
    loss.grad[None] = 1
    run()
    assert capsys.readouterr().out == once
    run.grad()
    assert capsys.readouterr().out == ""


def test_replays_print_launch_by_launch(capsys):
    x, loss = field(3, grad=True), field((), grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i in x:
            print(t, i)
            loss[None] += t * x[i]

    tape = ds.Tape(loss)
    with tape:
        for t in range(3):
            step(t)
    want = "".join(f"{t} {i}\n" for t in range(3) for i in range(3))
    assert capsys.readouterr().out == want
    tape.replay()
    assert capsys.readouterr().out == want
    tape.backward()
    np.testing.assert_array_equal(x.grad.to_numpy(), 3.0)


def test_more_lines_than_there_is_room_for(capsys, monkeypatch):
    ds.init()
    lanes = 600_000

    @ds.kernel
    def run():
        for i in range(lanes):
            print(i, 2 * i)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    lines = [tuple(map(int, line.split())) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == print_buffer.ROOM // 5  # a number, the task, the lane, and two values
    assert lines == sorted(set(lines))
    assert all(j == 2 * i for i, j in lines)
    assert [str(lanes - len(lines)) in str(w.message) for w in caught] == [True]
    assert caught[0].filename == __file__


def test_a_failed_check_comes_after_what_was_printed(capsys):
    ds.init(debug=True)
    x = ds.field(ds.f32, shape=3)

    @ds.kernel
    def run(k: ds.i32):
        print("k is", k)
        x[k] = 1.0

    with pytest.raises(AccessError):
        run(5)
    assert capsys.readouterr().out == "k is 5\n"


def test_two_threads(capsys):
    ds.init()

    @ds.kernel
    def run(n: ds.i32):
        for i in range(n):
            print(n, i)

    threads = [threading.Thread(target=lambda n=n: [run(n) for _ in range(20)]) for n in (30, 40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lines = [tuple(map(int, line.split())) for line in capsys.readouterr().out.splitlines()]
    assert sorted(lines) == sorted((n, i) for n in (30, 40) for i in range(n) for _ in range(20))


def test_printed_ir():
    ds.init()

    @ds.kernel
    def run(k: ds.i32):
        print(f"k is {k:3d}", 1.5)

    assert "print 'k is {:3d} 1.5\\n', $k" in run.ir()


@pytest.mark.parametrize(
    "options",
    [{}, {"validation": True}, {"retain_grad": True}, {"check_nan": True}, {"in_place": "save"}],
    ids=str,
)
def test_funcs_with_gradients_of_their_own(capsys, options):
    """Their given gradients are parts of adjoints, which print nothing, and right."""
    x, loss = field(3, grad=True), field((), grad=True)
    y = field(3, grad=True)
    x.from_numpy(numbers(3))

    @ds.func
    def square(a):
        print("square", a)
        return a * a

    @ds.func_grad(square)
    def adjoint_of_square(a, g):
        print("adjoint")
        ds.adjoint[a] += 2 * a * g

    @ds.func
    def cube(a):
        return a**3

    @ds.kernel
    def run():
        for i in x:
            y[i] = square(x[i]) + ds.grad(cube)(x[i])

    @ds.kernel
    def add_up():
        for i in y:
            loss[None] += y[i]

    with ds.Tape(loss, **options):
        run()
        add_up()
    a = x.to_numpy()
    assert capsys.readouterr().out == "".join(f"square {v}\n" for v in a)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * a + 6 * a, rtol=1e-12)


def test_loops_that_are_left(capsys):
    """x (x + 1) once or twice, until it is above 5: its derivative is that of the turns taken."""
    x, loss = field(3, grad=True), field((), grad=True)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @ds.kernel
    def run():
        for i in x:
            a = x[i]
            while a < 10:
                print(i, a)
                a *= a + 1
                if a > 5:
                    break
            loss[None] += a

    with ds.Tape(loss):
        run()
    assert capsys.readouterr().out == "0 1.0\n0 2.0\n1 2.0\n2 3.0\n"
    assert x.grad.to_numpy().tolist() == [3 * 5, 5, 7]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers for signals")
@pytest.mark.host
def test_lines_before_an_interrupt(capsys):
    """They are shown, and not with those of the next launch."""
    ds.init()
    x = ds.field(ds.f64, shape=64)

    @ds.kernel
    def run(lanes: ds.i32):
        for i in range(lanes):
            if i == 0:
                print("begun", lanes)
            s = ds.f64(i)
            for k in range(50):
                s = ds.sin(s + k)
            x[i % 64] = s

    run(1)
    assert capsys.readouterr().out == "begun 1\n"
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(2_000_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert capsys.readouterr().out == "begun 2000000000\n"
    run(2)
    assert capsys.readouterr().out == "begun 2\n"


@pytest.mark.parametrize("schedule", ["binomial", "equidistant"])
def test_a_rollout_prints_each_step_once(capsys, schedule):
    """Its backward pass runs steps again, and a gradient written by hand prints what it prints."""
    ds.init(default_fp=ds.f64)
    x, loss = field(), field()

    @ds.kernel
    def step(t: ds.i32):
        print("step", t)
        x[None] = ds.sin(x[None]) + t

    @ds.kernel
    def note():
        print("backward")

    @ds.kernel
    def scale():
        x[None] *= 2.0

    @ds.ad.grad_replaced
    def double():
        scale()

    @ds.ad.grad_for(double)
    def _():
        note()
        x.grad[None] *= 2.0

    @ds.kernel
    def add():
        loss[None] += x[None]

    def run(t):
        step(t)
        double()

    x[None] = 0.5
    with ds.Tape(loss):
        stats = ds.ad.checkpoint(run, 5, state=[x], snapshots=2, schedule=schedule)
        add()
        forward = capsys.readouterr().out
    assert forward == "".join(f"step {t}\n" for t in range(5))
    assert stats.steps_run > 5
    assert capsys.readouterr().out == 5 * "backward\n"
    step(7)
    assert capsys.readouterr().out == "step 7\n"


def test_templates_of_texts(capsys):
    ds.init(arch=ds.cpu)

    @ds.kernel
    def run(a: ds.f64, n: ds.i32):
        v = ds.Vector([a, 2.0])
        print(f"x={a:.2f} y={3} {n:4d}|", "%5.1f%%|%-4d|%s" % (a, n, v))  # noqa: UP031

    run(1.25, 7)
    a, n, v = 1.25, 7, [1.25, 2.0]
    print(f"x={a:.2f} y={3} {n:4d}|", "%5.1f%%|%-4d|%s" % (a, n, v))  # noqa: UP031
    by_kernel, by_python = capsys.readouterr().out.splitlines()
    assert by_kernel == by_python


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_assertions_show_values(arch):
    ds.init(arch=getattr(ds, arch), debug=True)
    x = ds.Vector.field(2, ds.f32, shape=3)
    x.fill(1.5)

    @ds.kernel
    def run(n: ds.i32, a: ds.f64):
        for i in range(3):
            # The text is computed where the assertion fails alone: there is no x[3].
            assert i < n, f"i={i} of {n}: {a:.3f} {x[i % 3]} {i > 1}"
        assert a > 0, "%d of %.1f" % (n, a)  # noqa: UP031

    run(3, 1.0)
    with pytest.raises(KernelAssertionError, match=r"^i=2 of 2: 0.250 \[1.5, 1.5\] True"):
        run(2, 0.25)
    with pytest.raises(KernelAssertionError, match=r"^3 of -2.5"):
        run(3, -2.5)


def test_formats_of_vectors_that_are_known_while_compiling(capsys):
    @ds.kernel
    def show():
        print(f"{ds.Vector([0.1, 2.0]):.2f}", f"{ds.Matrix([[0.5, 2], [1, 3]]):.1f}")

    show()
    assert capsys.readouterr().out == "[0.10, 2.00] [[0.5, 2.0], [1.0, 3.0]]\n"
