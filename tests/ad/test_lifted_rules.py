"""`ds.init(rules="lifted")`: programs that break the rules of gradients, unmodified."""

import os

import numpy as np
import pytest

import diffsim as ds
from tests.support import forked
from tests.support.gradients import check, numbers
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code")

N = 5


@pytest.fixture
def lifted(cpu):
    ds.init(default_fp=ds.f64, rules="lifted")
    yield ds
    ds.init()


def scalar(**options):
    return ds.field(ds.f64, shape=(), **options)


def points(**options):
    return ds.field(ds.f64, shape=N, **options)


# ---- the switch


@pytest.mark.parametrize("value", ["loose", "", None, True, 1, "Lifted"], ids=str)
def test_other_values_are_refused(cpu, value):
    with pytest.raises(ds.OptionError, match="the option rules cannot be") as caught:
        ds.init(rules=value)
    assert "'enforced', 'lifted'" in caught.value.hint


PROGRAM = """
import diffsim as ds
{init}
x = ds.field(ds.f32, shape=(), needs_grad=True)
loss = ds.field(ds.f32, shape=(), needs_grad=True)
@ds.kernel
def cube():
    for i in range(1):
        a = 1.0
        for k in range(3):
            a *= x[None]
        x[None] = a
@ds.kernel
def end():
    loss[None] = x[None]
x[None] = 2.0
try:
    with ds.Tape(loss):
        cube()
        end()
    print(x.grad[None])
except ds.AutodiffError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("init", "variable", "printed"),
    [
        ("", "lifted", "12.0"),
        ("ds.init()", "lifted", "12.0"),
        ('ds.init(rules="enforced")', "lifted", "GlobalDataAccessError"),
        ('ds.init(rules="lifted")', "", "12.0"),
        ("", "", "GlobalDataAccessError"),
    ],
)
@pytest.mark.host
def test_the_argument_wins_over_the_environment(tmp_path, init, variable, printed):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(init=init))
    environment = {**os.environ, "DIFFSIM_RULES": variable}
    done = forked.run(script, folder=tmp_path, environment=environment, warnings="error")
    assert done.stdout.strip() == printed, done.stderr


def test_the_narrower_option_wins(lifted):
    x, loss = scalar(needs_grad=True), scalar(needs_grad=True)

    @ds.kernel(simplicity="strict")
    def strict():
        for i in range(1):
            a = 1.0
            for k in range(3):
                a *= x[None]
            loss[None] += a

    @ds.kernel
    def square():
        x[None] = x[None] ** 2

    with pytest.raises(ds.KernelSimplicityError):
        with ds.Tape(loss):
            strict()
    with pytest.raises(ds.GlobalDataAccessError):
        with ds.Tape(loss, in_place="refuse"):
            square()
    with pytest.raises(ds.GlobalDataAccessError):
        with ds.Tape(loss, validation=True):
            square()
    ds.init(rules="lifted", kernel_simplicity="strict", default_fp=ds.f64)

    @ds.kernel
    def plain():
        for i in range(1):
            a = 1.0
            for k in range(3):
                a *= x[None]
            loss[None] += a

    with pytest.raises(ds.KernelSimplicityError):
        with ds.Tape(loss):
            plain()


def test_a_tape_made_before_init_follows_the_session_of_its_block(cpu):
    x, loss = scalar(needs_grad=True), scalar(needs_grad=True)
    tape = ds.Tape(loss)
    ds.init(default_fp=ds.f64, rules="lifted")

    @ds.kernel
    def square():
        x[None] = x[None] ** 2

    @ds.kernel
    def end():
        loss[None] = x[None]

    x[None] = 3.0
    with tape:
        square()
        square()
        end()
    assert x.grad[None] == 4 * 3.0**3


# ---- fields without needs_grad


class Chain:
    """z += y**2; y = sin(x) / 2 + y, in a loop: z reads y before it depends on x, and after."""

    def __init__(self, **options):
        self.x = points(needs_grad=True)
        self.y, self.z = points(**options), points(**options)
        self.loss = scalar(needs_grad=True)
        x, y, z, loss = self.x, self.y, self.z, self.loss

        @ds.kernel
        def collect():
            for i in z:
                z[i] += y[i] ** 2

        @ds.kernel
        def move():
            for i in x:
                y[i] = ds.sin(x[i]) * 0.5 + y[i]

        @ds.kernel
        def total():
            for i in z:
                loss[None] += z[i]

        self.kernels = collect, move, total
        x.from_numpy(numbers(N))

    def run(self):
        collect, move, total = self.kernels
        self.y.fill(0.1)
        self.z.fill(0.0)
        for _ in range(3):
            collect()
            move()
        collect()
        total()


def test_fields_on_the_way_are_lent_gradients(lifted):
    p = Chain()
    first = check(p.run, p.loss, p.x)[0]
    assert p.y.grad is None
    assert not p.y.needs_grad
    tape = ds.Tape(p.loss)
    with tape:
        p.run()
    # The first recording had launches of `collect` for which y was constant; later ones have none.
    np.testing.assert_allclose(p.x.grad.to_numpy(), first, rtol=1e-14)
    stats = tape.stats()
    assert stats.adjoint_bytes == 8 * 2 * N
    assert stats.saved_bytes > 0


def test_several_backward_passes_and_a_replay(lifted):
    p = Chain()
    tape = ds.Tape()
    with tape:
        p.run()
    tape.backward(p.loss)
    once = p.x.grad.to_numpy()
    tape.backward(p.loss)
    np.testing.assert_allclose(p.x.grad.to_numpy(), 2 * once, rtol=1e-14)
    tape.zero()
    p.x.from_numpy(numbers(N, seed=1))
    tape.replay()
    tape.backward(p.loss)
    replayed = p.x.grad.to_numpy()
    check(p.run, p.loss, p.x)
    with ds.Tape(p.loss):
        p.run()
    np.testing.assert_allclose(replayed, p.x.grad.to_numpy(), rtol=1e-14)


def test_enforced_again_the_chain_is_refused_again(lifted):
    p = Chain()
    tape = ds.Tape()
    with tape:
        p.run()
    ds.init(default_fp=ds.f64)
    with pytest.raises(ds.AutodiffError, match="was called since"):
        tape.backward(p.loss)
    with pytest.raises(ds.MissingGradientError):
        with ds.Tape(p.loss, in_place="save"):
            p.run()
    ds.init(default_fp=ds.f64, rules="lifted")
    check(p.run, p.loss, p.x)


def test_a_gradient_that_is_declared_later(lifted):
    x, loss = points(needs_grad=True), scalar(needs_grad=True)
    y = ds.field(ds.f64)
    ds.root.dense(ds.i, N).place(y)

    @ds.kernel
    def f():
        for i in x:
            y[i] = x[i] ** 2

    @ds.kernel
    def g():
        for i in y:
            loss[None] += ds.sin(y[i])

    x.from_numpy(numbers(N))

    def run():
        f()
        g()

    check(run, loss, x)
    assert y.grad is None
    ds.root.lazy_grad()
    check(run, loss, x)
    assert y.grad is not None


def test_struct_members_arrays_and_copies(lifted):
    Cell = ds.types.struct(a=ds.f64, v=ds.types.vector(2, ds.f64), n=ds.i32)
    x, loss = points(needs_grad=True), scalar()
    cells, copied = Cell.field(shape=N), points()
    array = ds.ndarray(ds.f64, N)

    @ds.kernel
    def fill():
        for i in x:
            cells[i].a = x[i] ** 2
            cells[i].v = ds.Vector([x[i], 2.0 * x[i]])
            cells[i].n = i

    @ds.kernel
    def to_array(out: ds.types.ndarray()):
        for i in x:
            out[i] = cells[i].a * cells[i].v.dot(cells[i].v) + cells[i].n

    @ds.kernel
    def end():
        for i in copied:
            loss[None] += copied[i] ** 2

    def run():
        fill()
        to_array(array)
        copied.copy_from(array)
        end()

    x.from_numpy(numbers(N))
    check(run, loss, x)
    assert array.grad is None
    assert cells.grad is None


def test_a_numpy_array_on_the_way_is_still_refused(lifted):
    x, loss = points(needs_grad=True), scalar(needs_grad=True)
    array = np.zeros(N)

    @ds.kernel
    def f(out: ds.types.ndarray()):
        for i in x:
            out[i] = x[i] ** 2

    @ds.kernel
    def g(a: ds.types.ndarray()):
        for i in x:
            loss[None] += a[i]

    with pytest.raises(ds.MissingGradientError):
        with ds.Tape(loss):
            f(array)
            g(array)


def test_a_value_that_a_kernel_returned(lifted):
    x, y, loss = points(needs_grad=True), scalar(), scalar()

    @ds.kernel
    def total() -> ds.f64:
        s = 0.0
        for i in range(N):
            s += x[i] ** 2
        return s

    @ds.kernel
    def end():
        loss[None] = y[None] ** 2

    def run():
        y[None] = total() * 0.5
        end()

    x.from_numpy(numbers(N))
    check(run, loss, x)


def test_without_a_tape_a_lent_gradient_is_not_used(lifted):
    p = Chain()
    move = p.kernels[1]
    move()
    with pytest.raises(ds.MissingGradientError):
        move.grad()
    with ds.Tape(p.loss):
        p.run()
    move()
    with pytest.raises(ds.MissingGradientError):
        move.grad()


def test_code_with_a_gradient_of_its_own_can_not_use_one(lifted):
    p = Chain()

    @ds.ad.grad_replaced
    def step():
        p.kernels[1]()

    @ds.ad.grad_for(step)
    def backward():
        p.x.grad.fill(0.0)

    def run():
        p.kernels[0]()
        step()
        p.kernels[0]()
        p.kernels[2]()

    for _ in range(2):
        with pytest.raises(ds.MissingGradientError):
            with ds.Tape(p.loss):
                run()
        with ds.Tape(p.loss):  # lends y its gradient
            p.run()


def test_a_checkpointed_rollout(lifted):
    k, loss = scalar(needs_grad=True), scalar()
    q, p, force = points(), points(), points()

    @ds.kernel
    def forces():
        for i in q:
            force[i] = -k[None] * q[i] ** 3

    @ds.kernel
    def move():
        for i in q:
            p[i] += 0.1 * force[i]
            q[i] += 0.1 * p[i]

    @ds.kernel
    def end():
        for i in q:
            loss[None] += q[i] ** 2

    def step(t):
        forces()
        move()

    def run():
        q.from_numpy(np.linspace(-1.0, 1.0, N))
        p.fill(0.0)
        ds.ad.checkpoint(step, 7, state=[q, p], snapshots=2)
        end()

    k[None] = 2.0
    check(run, loss, k)


def test_integers_on_the_way_stay_constants(lifted):
    x, n, loss = points(needs_grad=True), ds.field(ds.i32, shape=N), scalar()

    @ds.kernel
    def count():
        for i in x:
            n[i] = ds.cast(ds.floor(10.0 * x[i]), ds.i32)

    @ds.kernel
    def use():
        for i in x:
            loss[None] += n[i] * x[i]

    def run():
        count()
        use()

    x.from_numpy(numbers(N))
    with ds.Tape(loss):
        run()
    np.testing.assert_array_equal(x.grad.to_numpy(), n.to_numpy())


def test_launches_without_gradient_are_constants(lifted):
    p = Chain()
    with ds.Tape(p.loss):
        p.run()
        with ds.ad.no_grad():
            p.kernels[1]()
        p.z.fill(0.0)
        p.kernels[0]()
        p.kernels[2]()
    inside = p.x.grad.to_numpy()

    def run():  # the sum of the program so far, and of y with its last change taken as a constant
        p.run()

    check(run, p.loss, p.x)
    with ds.Tape(p.loss):
        p.run()
    # What `no_grad` stored ends the chain, and z was set to 0: nothing of the second sum depends on x.
    np.testing.assert_allclose(inside, p.x.grad.to_numpy(), rtol=1e-14)


# ---- loops in order


def test_gauss_seidel_in_order(lifted):
    n = 5
    p, loss = ds.field(ds.f64, shape=2, needs_grad=True), scalar(needs_grad=True)
    p.from_numpy(np.array([0.6, 0.4]))
    y = ds.field(ds.f64, shape=n)

    @ds.kernel
    def sweep():
        ds.loop_config(serialize=True)
        for i in range(1, n):
            y[i] = ds.sin(y[i - 1]) * y[i] + p[1]

    @ds.kernel
    def start():
        for i in y:
            y[i] = p[0] * (1.0 + 0.3 * i)

    @ds.kernel
    def measure():
        for i in y:
            loss[None] += y[i] ** 2

    def run():
        start()
        for _ in range(4):
            sweep()
        measure()

    check(run, loss, p)


SWEEPS = {
    "in two dimensions": """
    for i, j in ds.ndrange((1, N - 1), (1, N - 1)):
        q[i, j] += p[1] * (ds.sin(q[i + 1, j] + q[i - 1, j] + q[i, j + 1] + q[i, j - 1]) - q[i, j])
""",
    "backwards": """
    for k in range(1, N):
        q[0, N - 1 - k] = ds.cos(q[0, N - k]) * q[0, N - 1 - k] ** 2
""",
    "until it is small": """
    for i in range(1, N):
        while q[i, 1] > 0.3:
            q[i, 1] *= q[i, 1] * p[1]
        q[i, 1] += ds.sin(q[i - 1, 1])
""",
}


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_in_order(lifted, name):
    p, loss = ds.field(ds.f64, shape=2, needs_grad=True), scalar(needs_grad=True)
    p.from_numpy(np.array([0.6, 0.4]))
    q = ds.field(ds.f64, shape=(N, N))
    space = {"ds": ds, "q": q, "p": p, "N": N}
    make(f"@ds.kernel\ndef sweep():\n    ds.loop_config(serialize=True){SWEEPS[name]}", space)

    @ds.kernel
    def start():
        for i, j in q:
            q[i, j] = p[0] * ds.sin(1.0 * i + 2 * j)

    @ds.kernel
    def measure():
        for i, j in q:
            loss[None] += q[i, j] ** 2 * (i + 1)

    def run():
        start()
        for _ in range(3):
            space["sweep"]()
        measure()

    check(run, loss, p)


def test_the_switch_is_not_advised_where_a_race_would_be_left(cpu):
    """With a gradient for y the launch is refused still: iterations read what others write."""
    x = cpu.field(cpu.f64, shape=4, needs_grad=True)
    y = cpu.field(cpu.f64, shape=4)
    loss = cpu.field(cpu.f64, shape=(), needs_grad=True)

    @cpu.kernel
    def spread(k: cpu.i32):
        for i in range(4):
            y[i] = x[i] + y[k]

    @cpu.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    with pytest.raises(cpu.MissingGradientError, match="y with needs_grad=True") as caught:
        with cpu.Tape(loss):
            spread(2)
            total()
    assert "rules=" not in caught.value.hint
    assert not caught.value.is_lifted
