"""Derivatives by a complex step: against closed forms, NumPy's own complex step, and what is refused."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.jacobians.arguments import subject
from diffsim.ad.jacobians.differences import columns
from diffsim.ad.jacobians.program import Program
from tests.support.source import line_of

H = 1e-30


@pytest.fixture(autouse=True)
def double(cpu, quick_code):
    ds.init(default_fp=ds.f64)


def field(shape, values=None, dtype=ds.f64, element=()):
    make = ds.field if not element else lambda *a, **k: ds.Vector.field(*element, *a, **k)
    f = make(dtype, shape, needs_grad=True)
    if values is not None:
        f.from_numpy(np.asarray(values, dtype.numpy))
    return f


def jacobian(function, inputs, outputs):
    """The Jacobian of each pair by the complex step alone."""
    with Program(subject(function, inputs, outputs, None)) as program:
        return columns(program, "complex", None, None)


def close(have, want, rel=1e-14):
    assert np.abs(have - want).max() <= rel * np.abs(want).max(), np.abs(have - want).max()


@ds.func
def smooth(x):
    return ds.exp(ds.sin(x)) / (1 + x * x)


@ds.func
def pieces(x):
    return ds.abs(ds.cos(3 * x)) + ds.max(x, 0.7) * ds.min(x * x, 0.7)


@ds.func
def powers(x):
    return (-x) ** 3.0 + x**2.5 + 2.0**x


@ds.func
def angles(x):
    return ds.atan2(x, 0.5 - x) + ds.asin(x / 2)


@ds.func
def remainders(x):
    return ds.erf(x) + x % 0.3 + ds.floor(5 * x) * x


@ds.func
def special(x):
    return ds.lgamma(x) + ds.rsqrt(x) + ds.log2(x)


@ds.func
def sides(x):
    return ds.tanh(x) if x < 0.9 else ds.sqrt(x)


FUNCTIONS = [smooth, pieces, powers, angles, remainders, special, sides]
EULER = 0.57721566490153286061


def closed(k, x):
    if k == 0:
        e = np.exp(np.sin(x))
        return e * np.cos(x) / (1 + x * x) - 2 * x * e / (1 + x * x) ** 2
    if k == 1:
        low = np.where(x > 0.7, 1, 0) * np.minimum(x * x, 0.7)
        high = np.maximum(x, 0.7) * np.where(x * x < 0.7, 2 * x, 0)
        return -3 * np.sin(3 * x) * np.sign(np.cos(3 * x)) + low + high
    if k == 2:
        return -3 * x * x + 2.5 * x**1.5 + np.log(2) * 2**x
    if k == 3:
        return 0.5 / (x * x + (0.5 - x) ** 2) + 1 / np.sqrt(4 - x * x)
    if k == 4:
        return 2 / np.sqrt(np.pi) * np.exp(-x * x) + 1 + np.floor(5 * x)
    if k == 5:  # digamma from its series
        n = np.arange(1, 200001)
        digamma = [-EULER + (1 / n - 1 / (n + t - 1)).sum() + (t - 1) / 200000.5 for t in x]
        return np.array(digamma) - 0.5 * x**-1.5 + 1 / (x * np.log(2))
    return np.where(x < 0.9, 1 / np.cosh(x) ** 2, 0.5 / np.sqrt(x))


def test_closed_forms():
    x = field(5, [0.31, 0.62, 0.93, 1.12, 1.7])
    y = field((5, len(FUNCTIONS)))

    @ds.kernel
    def each():
        for i in x:
            for k in ds.static(range(len(FUNCTIONS))):
                y[i, k] = FUNCTIONS[k](x[i])

    J = jacobian(each, [x], [y])[x, y].reshape(5, -1, 5)
    for k in range(len(FUNCTIONS)):
        want = closed(k, x.to_numpy())
        have = np.diag(J[:, k])
        close(have, want, 1e-10 if k == 5 else 1e-14)
        assert np.count_nonzero(J[:, k]) == np.count_nonzero(want)


class Chain:
    """Masses on springs in place, with a branch, a loop, a random kick and an atomic energy."""

    n, steps, dt = 3, 3, 0.05

    def __init__(self, dtype=ds.f64):
        n, dt = self.n, self.dt
        x, v = field(n, dtype=dtype, element=(2,)), field(n, dtype=dtype, element=(2,))
        k, energy = field(n, dtype=dtype), field((), dtype=dtype)
        self.kick = kick = ds.field(dtype, shape=n)
        self.x, self.v, self.k, self.energy = x, v, k, energy
        rng = np.random.default_rng(3)
        self.start = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.uniform(1, 2, n)
        for f, a in zip((x, v, k), self.start, strict=True):
            f.from_numpy(a)

        @ds.kernel
        def draw():
            for i in kick:
                kick[i] = ds.random()

        @ds.kernel
        def step(h: dtype):
            for i in range(n):
                force = 0 * v[i] + ds.Vector([0.0, -1.0])
                for j in range(n):
                    if j != i:
                        d = x[j] - x[i]
                        length = d.norm()
                        if length < 2.0:
                            force += k[i] * (length - 1.0) * d / length
                v[i] += h * (force + kick[i] * v[i])
            for i in range(n):
                x[i] += h * v[i]

        @ds.kernel
        def add():
            for i in range(n):
                energy[None] += 0.5 * v[i].dot(v[i]) + x[i].y

        self.draw, self.step, self.add = draw, step, add

    def run(self):
        self.draw()
        self.kicks = self.kick.to_numpy()
        for _ in range(self.steps):
            self.step(self.dt)
        self.energy[None] = 0.0
        self.add()

    def in_numpy(self, x, v, k):
        kick = self.kicks
        for _ in range(self.steps):
            force = np.zeros((self.n, 2), complex) + [0.0, -1.0]
            for i in range(self.n):
                for j in range(self.n):
                    d = x[j] - x[i]
                    length = np.sqrt(d[0] * d[0] + d[1] * d[1])
                    if j != i and length.real < 2.0:
                        force[i] += k[i] * (length - 1.0) * d / length
            v = v + self.dt * (force + kick[:, None] * v)
            x = x + self.dt * v
        return 0.5 * (v * v).sum() + x[:, 1].sum()

    def slopes_in_numpy(self):
        """The derivatives of the energy by x, v and k."""
        made = []
        for place, start in enumerate(self.start):
            slopes = np.zeros(start.shape)
            for at in np.ndindex(start.shape):
                moved = [a.astype(complex) for a in self.start]
                moved[place][at] += H * 1j
                slopes[at] = self.in_numpy(*moved).imag / H
            made.append(slopes.reshape(-1))
        return made


def test_a_program_in_place_equals_numpys_complex_step():
    c = Chain()
    J = jacobian(c.run, [c.x, c.v, c.k], [c.energy])
    for f, want in zip((c.x, c.v, c.k), c.slopes_in_numpy(), strict=True):
        close(J[f, c.energy][0], want)
    assert (c.energy[None], c.kick.to_numpy().any()) == (0, False)
    assert ds.ad.gradcheck(c.run, [c.x, c.v, c.k], [c.energy], differences="complex")
    assert ds.ad.gradcheck(c.run, [c.x], [c.energy], differences="complex", directions=2)


def test_rounded_programs_take_the_branches_that_they_take():
    """f32: real parts are those of the launch, derivatives those of the rounded program."""
    ds.init(default_fp=ds.f32)
    c = Chain(ds.f32)
    assert ds.ad.gradcheck(c.run, [c.x, c.v, c.k], [c.energy], differences="complex")
    with ds.Tape() as tape:
        c.run()
    assert ds.ad.gradcheck_tape(tape, differences="complex", max_inputs_per_var=2)


class Small:
    """y = x**2 and total = sum of y."""

    def __init__(self):
        x, y, total = self.x, self.y, self.total = field(3, [0.5, 1.0, 2.0]), field(3), field(())
        self.z = field(3)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        @ds.kernel
        def add():
            for i in y:
                total[None] += y[i]

        self.square, self.add = square, add

    def jacobian(self, function, output=None):
        output = self.y if output is None else output
        return jacobian(function, [self.x], [output])[self.x, output]

    def check(self, function):
        return ds.ad.gradcheck(
            function, [self.x], [self.total], differences="complex", show_summary=False
        )


@pytest.fixture
def small():
    return Small()


def test_values_that_differ_by_the_step_alone_are_equal():
    """The square of a step is no part of a real number, whatever is compared with it."""
    x, y = field(3, [0.0, 0.0, 2.0]), field(3)

    @ds.kernel
    def compare():
        for i in x:
            if x[i] * x[i] == 0.0:
                y[i] = 3.0 * x[i]
            else:
                y[i] = ds.sqrt(x[i] * x[i])

    assert np.array_equal(jacobian(compare, [x], [y])[x, y], np.diag([3.0, 3.0, 1.0]))


def test_writes_and_copies_between_launches(small):
    def run():
        small.square()
        small.z.copy_from(small.y)
        small.z[1] = 7.0
        small.y.fill(0.0)

    assert np.array_equal(small.jacobian(run, small.z), np.diag([1.0, 0.0, 4.0]))
    assert not small.jacobian(run).any()


def test_what_is_declared_constant_is_constant(small):
    x, y = small.x, small.y

    @ds.kernel
    def half():
        for i in x:
            y[i] = ds.stop_grad(x[i]) * x[i]

    @ds.kernel
    def twice():
        for i in y:
            y[i] += x[i] * x[i]

    def run():
        half()
        with ds.ad.no_grad():
            twice()

    assert np.array_equal(small.jacobian(run), np.diag([0.5, 1.0, 2.0]))
    assert ds.ad.gradcheck(run, [x], [y], differences="complex", show_summary=False)


def test_a_wrong_gradient_is_found(small):
    x, y = small.x, small.y

    @ds.func
    def cube(a):
        return a**3

    @ds.func_grad(cube)
    def cube_adjoint(a, g):
        ds.adjoint[a] += (3 + 1e-10) * a**2 * g

    @ds.kernel
    def cubes():
        for i in x:
            y[i] = cube(x[i])

    assert np.allclose(small.jacobian(cubes), np.diag(3 * x.to_numpy() ** 2), rtol=1e-15)
    with pytest.raises(ds.AutodiffError, match=r"d y\[0\] / d x\[0\] is .* by a complex step"):
        ds.ad.gradcheck(cubes, [x], [y], differences="complex", show_summary=False)


def test_arrays_and_arguments():
    a, b = ds.ndarray(ds.f64, 3, needs_grad=True), ds.ndarray(ds.f64, 3, needs_grad=True)
    a.from_numpy(np.array([1.0, 2.0, 3.0]))
    weights = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    @ds.kernel
    def weigh(
        a: ds.types.ndarray(),
        w: ds.types.ndarray(),
        m: ds.types.matrix(2, 2, ds.f64),
        b: ds.types.ndarray(),
    ):
        for i in a:
            c = m @ ds.Vector([a[i] * w[i, 0], w[i, 1]])
            b[i] = c[0] * c[1]

    m = [[1.0, 2.0], [3.0, 4.0]]
    J = jacobian(lambda: weigh(a, weights, m, b), [a], [b])[a, b]
    x, (u, v) = np.array([1.0, 2.0, 3.0]), weights.T
    close(J, np.diag(u * (3 * u * x + 4 * v) + 3 * u * (u * x + 2 * v)), 1e-15)


# ---- refusals


def refused(small, function, text, line):
    with pytest.raises(ds.AutodiffError, match=text) as caught:
        small.check(function)
    assert caught.value.span.line == line
    assert 'differences="ridders"' in str(caught.value)


def test_what_python_computes_is_refused(small):
    total = small.total

    @ds.kernel
    def summed() -> float:
        s = 0.0
        for i in range(3):
            s += small.x[i]
        return s

    def returned():
        total[None] = 2.0 * summed()

    refused(small, returned, "has no complex step", line_of(returned, "total"))


def test_solves_are_refused(small):
    x, total = small.x, small.total
    solution = field(3)

    def solve():
        ds.ad.linear_solve(np.diag([1.0, 2.0, 4.0]), x, solution)
        total[None] = 0.0
        add()

    @ds.kernel
    def add():
        for i in solution:
            total[None] += solution[i]

    refused(small, solve, "linear_solve has no complex step", line_of(solve, "linear_solve"))


def test_values_that_python_sets_from_fields_are_refused(small):
    def through_python():
        small.square()
        small.z[0] = float(np.sqrt(small.y.to_numpy().max()))
        small.add()

    refused(small, through_python, "fields are read out in Python", line_of(through_python, "sqrt"))


@pytest.mark.parametrize("in_python", [False, True])
def test_functions_with_gradients_of_their_own(small, in_python):
    """What kernels do in them is followed; what Python does is not."""

    @ds.ad.grad_replaced
    def forward():
        if in_python:
            small.y.from_numpy(small.x.to_numpy() ** 2)
        else:
            small.square()

    @ds.ad.grad_for(forward)
    def backward():
        small.square.grad()

    def run():
        forward()
        small.add()

    if in_python:
        refused(small, run, "forward has no complex step", line_of(run, "forward()"))
    else:
        assert small.check(run)


def test_checkpointed_rollouts():
    x, total = field(2, [0.5, 1.5]), field(())

    @ds.kernel
    def step():
        for i in x:
            x[i] = ds.sin(x[i])

    @ds.kernel
    def add():
        for i in x:
            total[None] += x[i]

    def run():
        ds.ad.checkpoint(lambda t: step(), 3, state=[x])
        add()

    a = np.array([0.5, 1.5])
    want = np.cos(a) * np.cos(np.sin(a)) * np.cos(np.sin(np.sin(a)))
    close(jacobian(run, [x], [total])[x, total][0], want)
