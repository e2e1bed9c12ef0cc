"""Gradients given for funcs: `@ds.func_grad`, wherever a func can be called."""

import contextlib

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central, check, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)


@pytest.fixture
def cube():
    """x**3, whose gradient is given ten times too large, so that one sees which one was taken."""

    @ds.func
    def cube(x):
        return x * x * x

    @ds.func_grad(cube)
    def adj_cube(x, adj_y):
        ds.adjoint[x] += 30.0 * x * x * adj_y

    return cube


def gradient(program, loss, *inputs):
    with ds.Tape(loss):
        program()
    found = [f.grad.to_numpy() for f in inputs]
    return found[0] if len(found) == 1 else found


def test_the_given_gradient_is_taken(cube):
    x, y, loss = field(4), field(4), field()
    x.from_numpy(numbers(4))

    @ds.kernel
    def run():
        for i in x:
            y[i] = 2.0 * cube(3.0 * x[i]) + x[i]

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i]

    def program():
        run()
        add()

    got = gradient(program, loss, x)
    v = x.to_numpy()
    np.testing.assert_allclose(loss[None], (2 * (3 * v) ** 3 + v).sum())
    np.testing.assert_allclose(got, 2 * 30 * (3 * v) ** 2 * 3 + 1)
    y.grad.fill(1.0)
    x.grad.fill(0.0)
    run()
    run.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), got)


def test_a_right_gradient_agrees_with_differences():
    x, loss = field(5), field()
    x.from_numpy(numbers(5, lo=0.5, hi=2.0))

    @ds.func
    def root(x):
        s = x
        while abs(s * s - x) > 1e-14 * x:
            s = 0.5 * (s + x / s)
        return s

    @ds.func_grad(root)
    def adj_root(x, s, adj_s):
        ds.adjoint[x] += adj_s / (2.0 * s)

    @ds.kernel(simplicity="strict")  # the loop is never reversed, so the rule does not count it
    def run():
        for i in x:
            loss[None] += ds.sin(root(x[i])) * x[i]

    check(run, loss, x)
    assert "scratch" not in run.grad.ir()


def test_several_inputs_and_outputs_vectors_and_matrices():
    a, v, s, loss = field(2, n=(2, 2)), field(2, n=2), field(2), field()
    for f in (a, v, s):
        f.from_numpy(numbers(*f.to_numpy().shape))

    @ds.func
    def pair(m, w, k: ds.i32, t=0.5):
        return m @ w * t, t * w[0] + k

    @ds.func_grad(pair)
    def adj_pair(m, w, k, t, adj_p, adj_q):
        ds.adjoint[m] += t * adj_p.outer_product(w)
        ds.adjoint[w] += t * m.transpose() @ adj_p
        ds.adjoint[w][0] += t * adj_q
        ds.adjoint[t] += adj_p.dot(m @ w) + adj_q * w.x

    @ds.kernel
    def run():
        for i in s:
            p, q = pair(a[i], t=s[i] * s[i], k=i, w=v[i])
            loss[None] += p.dot(p) * q + p.x
            r, _ = pair(a[i], [s[i], v[i].y], 2)
            loss[None] += r.y**2

    check(run, loss, a, v, s)


def test_components_and_matrix_elements_of_adjoints():
    v, loss = field(3, n=3), field()
    v.from_numpy(numbers(3, 3))

    @ds.func
    def mix(w):
        return w.x * w.y + w.z**2, ds.Matrix([[w.x, 0.0], [w.y, w.z]])

    @ds.func_grad(mix)
    def adj_mix(w, g, adj_m):
        ds.adjoint[w].x += g * w.y + adj_m[0, 0]
        ds.adjoint[w].y += g * w.x
        ds.adjoint[w][1] -= -adj_m[1, 0]
        for k in ds.static(range(1)):
            ds.adjoint[w][2 + k] += 2 * g * w.z + adj_m[1, 1]

    @ds.kernel
    def run():
        for i in v:
            a, m = mix(v[i])
            loss[None] += a**2 + m.determinant() + m[1, 0] ** 3

    check(run, loss, v)


@pytest.mark.parametrize("serial", [False, True])
def test_in_branches_and_loops(serial):
    x, n, loss = field(6), ds.field(ds.i32, shape=6), field()
    x.from_numpy(numbers(6, lo=0.2, hi=1.2))
    n.from_numpy(np.arange(6, dtype=np.int32))

    @ds.func
    def smooth(a, b):
        return a * ds.exp(-b)

    @ds.func_grad(smooth)
    def adj_smooth(a, b, g):
        e = ds.exp(-b)
        if a > 100.0:
            ds.adjoint[a] += 1000.0
        else:
            for _ in range(2):
                ds.adjoint[a] += 0.5 * g * e
        k = 0
        while k < 4:
            if k % 2 == 1:
                ds.adjoint[b] -= 0.5 * g * a * e
            k += 1

    @ds.kernel
    def run():
        if ds.static(serial):
            ds.loop_config(serialize=True)
        for i in x:
            s = x[i]
            for k in range(n[i]):
                if s > 0.3:
                    s = smooth(s, x[i] * s)
                else:
                    s += smooth(x[i], s)
            t = s
            while t < 2.0:
                t += 0.3 + smooth(t, s)
                if t > 1.7:
                    break
            loss[None] += s * t

    check(run, loss, x)


def test_fields_as_parameters_captured_and_arrays():
    table, x, loss = field(5), field(3, n=2), field()
    table.from_numpy(numbers(5))
    x.from_numpy(numbers(3, 2))
    others = ds.ndarray(ds.f64, shape=4, needs_grad=True)
    others.from_numpy(numbers(4, seed=3))

    @ds.func
    def look_up(a, i, w):
        return a[i] * w + table[i + 1] * w**2 + x[i].y * w

    @ds.func_grad(look_up)
    def adj_look_up(a, i, w, g):
        ds.adjoint[a][i] += g * w
        ds.adjoint[table][i + 1] += g * w**2
        ds.adjoint[x][i].y += 0.5 * g * w
        ds.adjoint[x][i][1] -= -0.5 * g * w
        ds.adjoint[w] += g * (a[i] + 2 * w * table[i + 1] + x[i].y)

    @ds.kernel
    def run(a: ds.types.ndarray()):
        for i in x:
            loss[None] += look_up(a, i, x[i].x) * 2.0 + look_up(table, i, x[i].y)

    check(lambda: run(others), loss, table, x)
    got = others.grad.to_numpy()
    w = x.to_numpy()[:, 0]
    np.testing.assert_allclose(got, [*(2 * w), 0.0])


def test_funcs_inside_of_funcs(cube):
    """A gradient that is given hides those of the funcs inside; a func without one does not."""
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def plain(a):
        return 2.0 * cube(a)

    @ds.func
    def outer(a):
        return 5.0 * cube(a)

    @ds.func_grad(outer)
    def adj_outer(a, g):
        ds.adjoint[a] += g * cube(a)  # not its derivative: easy to tell

    @ds.kernel
    def run():
        for i in x:
            loss[None] += plain(x[i]) + outer(x[i]) * 1.0

    got = gradient(run, loss, x)
    v = x.to_numpy()
    np.testing.assert_allclose(got, 60 * v**2 + v**3)


def test_a_gradient_may_call_its_func():
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def grow(a):
        return ds.exp(2 * a)

    @ds.func_grad(grow)
    def adj_grow(a, g):
        ds.adjoint[a] += 2 * g * grow(a)

    @ds.kernel
    def run():
        for i in x:
            loss[None] += grow(x[i]) ** 2

    check(run, loss, x)


def test_methods_templates_and_values_of_the_object():
    @ds.data_oriented
    class Spring:
        def __init__(self, stiffness):
            self.stiffness = stiffness
            self.rest = field()
            self.x = field(3)
            self.loss = field()

        @ds.func
        def energy(self, x, n):
            return self.stiffness * (x - self.rest[None]) ** n

        @ds.func_grad(energy)
        def adj_energy(self, x, n, g):
            slope = g * n * self.stiffness * (x - self.rest[None]) ** (n - 1)
            ds.adjoint[x] += slope
            ds.adjoint[self.rest][None] -= slope

        @ds.kernel
        def run(self, n: ds.template()):
            for i in self.x:
                self.loss[None] += self.energy(self.x[i], n)

    for stiffness, n in ((1.0, 2), (3.0, 2), (3.0, 3)):
        model = Spring(stiffness)
        model.rest[None] = 0.3
        model.x.from_numpy(numbers(3))
        check(lambda m=model, n=n: m.run(n), model.loss, model.x, model.rest)


def test_kernel_level_values_and_several_tasks(cube):
    """The adjoint makes the temporary anew before it starts."""
    x, y, loss = field(4), field(4), field()
    x.from_numpy(numbers(4))

    @ds.kernel
    def run():
        s = 0.0
        for i in x:
            s += cube(x[i])
        t = cube(s)
        for i in x:
            loss[None] += t * x[i]

    got = gradient(run, loss, x)
    v = x.to_numpy()
    s = (v**3).sum()
    np.testing.assert_allclose(got, s**3 + v.sum() * 30 * s**2 * 30 * v**2)


def test_a_vector_of_constants_has_no_derivative():
    x, loss = field(3), field()

    @ds.func
    def along(p, a):
        return p.x * a * a

    @ds.func_grad(along)
    def adj_along(p, a, y, adj_y):
        ds.adjoint[p] += adj_y * ds.Vector([a * a, 0.0])
        ds.adjoint[a] += adj_y * 2.0 * a * p.x

    @ds.kernel
    def f():
        for i in x:
            loss[None] += along(ds.Vector([2.0, 1.0]), x[i])

    x.from_numpy(np.array([1.0, -2.0, 0.5]))
    with ds.Tape(loss):
        f()
    assert x.grad.to_numpy().tolist() == [4.0, -8.0, 2.0]


def test_constants_integers_and_unused_results(cube):
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def split(a, k):
        return a * 2.0, k * 2, 1.5

    @ds.func_grad(split)
    def adj_split(a, k, g, adj_k, adj_c):
        ds.adjoint[a] += 2.0 * g + adj_k + adj_c

    @ds.kernel
    def run():
        for i in x:
            a, k, c = split(x[i], i)
            loss[None] += a * c + k
            cube(2.0)
            _, m, _ = split(x[i] * x[i], 3)
            loss[None] += m + cube(0.5)

    # The adjoint of the constant 1.5 is a: the gradient asked for it.
    got = gradient(run, loss, x)
    np.testing.assert_allclose(got, 2.0 * 1.5 + 2.0 * x.to_numpy())


def test_in_place_and_checkpoint(cube):
    x, loss, k = field(3), field(), field()
    start = numbers(3)

    @ds.kernel
    def step():
        for i in x:
            x[i] = 0.5 * cube(x[i]) + 0.9 * x[i]

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    expected, v = np.ones(3), start.copy()
    for _ in range(6):
        expected *= 15 * v**2 + 0.9
        v = 0.5 * v**3 + 0.9 * v
    expected *= 2 * v
    x.from_numpy(start)
    with ds.Tape(loss, in_place="save"):
        for _ in range(6):
            step()
        measure()
    np.testing.assert_allclose(x.grad.to_numpy(), expected)
    x.from_numpy(start)
    with ds.Tape(loss):
        ds.ad.checkpoint(lambda t: step(), 6, state=[x], snapshots=2)
        measure()
    np.testing.assert_allclose(x.grad.to_numpy(), expected)
    assert k[None] == 0


def test_what_only_the_gradient_reads_must_still_be_there():
    """The body is linear; the gradient reads a field, which the access rules must see."""
    x, c, y, loss = field(3), field(3, grad=False), field(3), field()
    x.from_numpy(numbers(3))
    c.fill(2.0)

    @ds.func
    def scaled(a, i):
        return a * 2.0

    @ds.func_grad(scaled)
    def adj_scaled(a, i, g):
        ds.adjoint[a] += c[i] * g

    @ds.kernel
    def run():
        for i in x:
            y[i] = scaled(x[i], i)

    @ds.kernel
    def change():
        for i in c:
            c[i] = 5.0

    @ds.kernel
    def both():
        for i in x:
            y[i] = scaled(x[i], i)
            c[i] = 5.0

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i]

    with pytest.raises(ds.GlobalDataAccessError, match="needs c as it was"):
        with ds.Tape(loss):
            run()
            add()
            change()
    with pytest.raises(ds.GlobalDataAccessError, match="needs c as it was"):
        with ds.Tape(loss):
            both()
            add()
    for program in ([run, add, change], [both, add]):
        c.fill(2.0)
        with ds.Tape(loss, in_place="save"):
            for k in program:
                k()
        np.testing.assert_allclose(x.grad.to_numpy(), 2.0)


def test_checkpoint_sees_what_only_the_gradient_reads():
    x, c, loss = field(3), field(3, grad=False), field()

    @ds.func
    def scaled(a, i):
        return 0.9 * a

    @ds.func_grad(scaled)
    def adj_scaled(a, i, g):
        ds.adjoint[a] += c[i] * g

    @ds.kernel
    def bump():
        for i in c:
            c[i] += 1.0

    @ds.kernel
    def scale():
        for i in x:
            x[i] = scaled(x[i], i)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    def step(t):
        bump()
        scale()

    for state, right in (([x, c], True), ([x], False)):
        x.fill(1.0)
        c.fill(1.0)
        with contextlib.nullcontext() if right else pytest.raises(ds.AutodiffError, match="c may"):
            with ds.Tape(loss):
                ds.ad.checkpoint(step, 5, state=state, snapshots=2)
                measure()
            np.testing.assert_allclose(x.grad.to_numpy(), 2 * 3 * 4 * 5 * 6)


def test_a_field_that_only_the_gradient_names():
    """Its gradient is cleared and filled like any other on the tape."""
    x, table, loss = field(3), field(3), field()
    x.from_numpy(numbers(3))

    @ds.func
    def same(i):
        return 2.0 * i

    @ds.func_grad(same)
    def adj_same(i, g):
        ds.adjoint[table][i] += g * x[i]

    @ds.kernel
    def run():
        for i in x:
            loss[None] += same(i)

    for _ in range(2):
        np.testing.assert_allclose(gradient(run, loss, table), x.to_numpy())


def test_no_chain_is_cut_without_a_word(cube):
    table, plain, x, y, loss = field(3), field(3, grad=False), field(3), field(3), field()

    @ds.func
    def look_up(i, w):
        return table[i] * w

    @ds.func_grad(look_up)
    def adj_look_up(i, w, g):
        ds.adjoint[w] += g * table[i]

    @ds.kernel
    def run():
        for i in x:
            loss[None] += look_up(i, x[i])

    with pytest.raises(ds.AutodiffError, match="depends on table, and the gradient given for it"):
        with ds.Tape(loss):
            run()

    @ds.func
    def record(i, w):
        y[i] = w
        return 2.0 * w

    @ds.func_grad(record)
    def adj_record(i, w, g):
        ds.adjoint[w] += 2.0 * g

    @ds.kernel
    def run_record():
        for i in x:
            loss[None] += record(i, x[i])

    with pytest.raises(ds.AutodiffError, match="record has a gradient of its own and changes y"):
        with ds.Tape(loss):
            run_record()

    @ds.func
    def from_plain(i):
        return plain[i] ** 2

    @ds.func_grad(from_plain)
    def adj_from_plain(i, g):
        pass

    @ds.kernel
    def fill():
        for i in x:
            plain[i] = x[i]

    @ds.kernel
    def read():
        for i in x:
            loss[None] += from_plain(i)

    with pytest.raises(ds.MissingGradientError, match="plain is given a value"):
        with ds.Tape(loss):
            fill()
            read()


def test_no_gradient_and_detached(cube):
    x, y, loss = field(3), field(3), field()
    x.from_numpy(numbers(3))

    @ds.kernel
    def fill():
        for i in x:
            y[i] = cube(x[i])

    @ds.kernel
    def add():
        for i in x:
            loss[None] += y[i] * x[i]

    with ds.Tape(loss):
        with ds.ad.no_grad():
            fill()
        add()
    np.testing.assert_allclose(x.grad.to_numpy(), y.to_numpy())


def test_a_gradient_given_late_is_taken():
    x, loss = field(2), field()

    @ds.func
    def double(a):
        return 2.0 * a

    @ds.kernel
    def run():
        for i in x:
            loss[None] += double(x[i])

    assert (gradient(run, loss, x) == 2.0).all()

    @ds.func_grad(double)
    def adj_double(a, g):
        ds.adjoint[a] += 3.0 * g

    assert (gradient(run, loss, x) == 3.0).all()


def test_random_numbers_are_drawn_as_before():
    """The number of draws inside the call is known after it."""
    x, loss = field(50), field()
    x.fill(1.0)

    @ds.func
    def noisy(a):
        s = 0.0
        while ds.random() < 0.5:
            s += ds.random()
        return a * (1.0 + s), s

    @ds.func_grad(noisy)
    def adj_noisy(a, b, s, adj_b, adj_s):
        ds.adjoint[a] += (1.0 + s) * adj_b

    @ds.kernel
    def run():
        for i in x:
            b, _ = noisy(x[i])
            loss[None] += b * ds.random()

    got = gradient(run, loss, x)
    np.testing.assert_allclose(got.sum(), loss[None])


def test_precision_of_f32(cube):
    x, loss = field(4, dtype=ds.f32), field(dtype=ds.f32)
    x.from_numpy(numbers(4).astype(np.float32))

    @ds.kernel
    def run():
        for i in x:
            loss[None] += cube(x[i])

    np.testing.assert_allclose(
        gradient(run, loss, x), 30 * x.to_numpy().astype(np.float64) ** 2, rtol=1e-5
    )


def test_forward_code_is_that_of_the_plain_func(cube):
    x, y = field(3), field(3)

    @ds.func
    def plain_cube(x):
        return x * x * x

    @ds.kernel
    def one():
        for i in x:
            y[i] = cube(x[i])

    @ds.kernel
    def other():
        for i in x:
            y[i] = plain_cube(x[i])

    def code(text):
        return [line.partition(";")[0].rstrip() for line in text.splitlines()[1:]]

    assert code(one.ir(after="privatize")) == code(other.ir(after="privatize"))


def test_differences_disagree_where_the_gradient_is_wrong(cube):
    """The check itself: central differences see the factor of ten."""
    x, loss = field(2), field()
    x.from_numpy(numbers(2))

    @ds.kernel
    def run():
        for i in x:
            loss[None] += cube(x[i])

    def value(moved):
        x.from_numpy(moved)
        loss.fill(0)
        run()
        return loss[None]

    got = gradient(run, loss, x)
    np.testing.assert_allclose(got, 10 * central(value, x.to_numpy()), rtol=1e-6)


def test_arguments_that_are_read_from_fields():
    """A 0-D field given for a number has a gradient through calls, and through what a gradient asks for."""
    x, t, loss = field(3), field(), field()
    x.from_numpy(numbers(3))
    t[None] = 0.7

    @ds.func
    def f(a, b):
        return a * b * b

    @ds.func_grad(f)
    def adj_f(a, b, g):
        ds.adjoint[a] += g * b * b
        ds.adjoint[b] += 2.0 * g * a * b

    @ds.func
    def h(a, b):
        return 3.0 * a

    @ds.func_grad(h)
    def adj_h(a, b, g):
        ds.adjoint[a] += g * b  # of no use to the body

    @ds.kernel
    def run(t: ds.f64):
        for i in x:
            loss[None] += f(x[i], t) + ds.grad(f)(x[i], t)[1]

    @ds.kernel
    def read_by_the_gradient_alone(t: ds.f64):
        for i in x:
            loss[None] += h(x[i], t)

    check(lambda: run(t), loss, x, t)
    np.testing.assert_allclose(gradient(lambda: read_by_the_gradient_alone(t), loss, x), 0.7)
