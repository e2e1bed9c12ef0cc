"""Funcs, arguments and results of kernels."""

import types

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("quick_code")

# ---- funcs


def test_funcs_call_funcs_with_defaults_and_keywords(cpu):
    ds = cpu

    @ds.func
    def line(x, slope=2.0, offset: ds.f64 = 1.0):
        return slope * x + offset

    @ds.func
    def twice(f, x, offset=0.5):
        return f(f(x, offset=offset), 3)

    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(5, ds.f64):
        return [line(x), line(x, 3), line(x, offset=4), line(offset=5, x=x), twice(line, x)]

    x = 1.5
    assert run(x).to_list() == [2 * x + 1, 3 * x + 1, 2 * x + 4, 2 * x + 5, 3 * (2 * x + 0.5) + 1]


def test_funcs_return_several_values(cpu):
    ds = cpu

    @ds.func
    def polar(x, y):
        return ds.sqrt(x * x + y * y), ds.atan2(y, x)

    @ds.func
    def nested(a):
        return (a, a + 1), [a + 2, a + 3]

    @ds.func
    def chosen(a):
        if a > 0:
            return a, ds.Vector([a, 2 * a])
        return -a, ds.Vector([0.0, a])

    @ds.kernel
    def run(a: ds.f64) -> ds.types.vector(7, ds.f64):
        r, phi = polar(a, 2.0)
        (b, c), d = nested(a)
        s, v = chosen(a)
        return [r, phi, b + 10 * c + 100 * d[0] + 1000 * d[1], s, v[0], v[1], polar(3.0, 4.0)[0]]

    for a in (1.5, -0.5):
        v = [a, 2 * a] if a > 0 else [0, a]
        sum_ = a + 10 * (a + 1) + 100 * (a + 2) + 1000 * (a + 3)
        expected = [np.hypot(a, 2), np.arctan2(2, a), sum_, abs(a), *v, 5]
        np.testing.assert_allclose(run(a).to_numpy(), expected, 1e-14)


def test_an_underscore_throws_values_of_any_type_away(cpu):
    ds = cpu

    @ds.func
    def parts(x):
        return ds.Vector([x, x]), 3 * x, x > 0

    @ds.kernel
    def run(x: ds.f64) -> ds.f64:
        _, y, _ = parts(x)
        ds.loop_config(serialize=True)
        for _ in range(2):
            v, _, _ = parts(y)
            y += v[0]
        return y

    assert run(2.0) == 24


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
def test_an_underscore_that_is_read_is_a_local(cpu):
    ds = cpu

    @ds.func
    def parts(x):
        return x, 3 * x

    @ds.kernel
    def run(x: ds.f64) -> ds.f64:
        _ = 1.0
        a, _ = parts(x)
        return a + _

    assert run(2.0) == 8


def test_funcs_write_to_fields_and_return_nothing(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=4)

    @ds.func
    def put(f, i, v):
        """Docstrings are fine."""
        if v < 0:
            return
        f[i] = v

    @ds.kernel
    def run():
        for i in x:
            put(x, i, i - 1.0)

    run()
    assert x.to_numpy().tolist() == [0, 0, 1, 2]


def test_func_parameters_are_locals(cpu):
    ds = cpu

    @ds.func
    def spoil(n, v):
        n += 5
        v = v * n
        return v

    @ds.kernel
    def run(n: ds.i32) -> ds.i32:
        v = 3
        w = spoil(n, v)
        return 100 * n + 10 * v + w

    assert run(2) == 200 + 30 + 21


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
def test_func_annotations_convert(cpu):
    ds = cpu

    @ds.func
    def half(n: ds.f64):
        return n / 2

    @ds.func
    def low(n: ds.u8):
        return n

    @ds.kernel
    def run(n: ds.i32) -> ds.types.vector(2, ds.f64):
        return [half(n), low(n)]

    assert run(259).to_list() == [129.5, 3]


def test_templates_in_funcs(cpu):
    ds = cpu
    a, b = ds.field(ds.i32, shape=3), ds.field(ds.i32, shape=3)
    a.fill(2)

    @ds.func
    def copy(source: ds.template(), target: ds.template(), times: ds.template()):
        for i in range(source.shape[0]):
            for _ in ds.static(range(times)):
                target[i] += source[i]

    @ds.kernel
    def run():
        copy(a, b, 3)

    run()
    assert b.to_numpy().tolist() == [6, 6, 6]


def test_a_func_can_not_be_called_from_python(cpu):
    @cpu.func
    def f(x):
        return x

    with pytest.raises(cpu.DiffsimError, match="inside kernels"):
        f(1)


def test_recursion_is_refused(cpu):
    ds = cpu

    @ds.func
    def factorial(n):
        return n * factorial(n - 1)

    @ds.kernel
    def run() -> ds.i32:
        return factorial(3)

    with pytest.raises(ds.KernelSyntaxError, match="calls itself"):
        run()


# ---- arguments and results


@pytest.mark.parametrize("name", "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 u1".split())
def test_scalar_arguments_and_results(cpu, name):
    ds = cpu
    t = getattr(ds, name)

    @ds.kernel
    def same(first: ds.i8, a: t, last: ds.i8) -> t:
        return a

    if name[0] == "f":
        values = [0.0, -1.5, 1e30, float("inf"), 3, np.float32(0.5), np.int64(7), np.array(2.5)]
    elif name == "u1":
        values = [True, False, 1, 0, np.bool_(True)]
    else:
        info = np.iinfo(("int" if name[0] == "i" else "uint") + name[1:])
        values = [info.min, info.max, 0, 1, np.int64(5), True, np.uint8(7), np.array(3)]
    for v in values:
        found = same(-1, v, -2)
        assert found == (np.float32(v) if name == "f32" else v)
        assert type(found) is {"f": float, "i": int, "u": int}[name[0]] or type(found) is bool
    if name == "u1":
        with pytest.raises(ds.KernelTypeError):
            same(0, 1.5, 0)
    elif name not in ("f32", "f64"):
        for v in (info.max + 1, info.min - 1, 1.5, 2.0):
            with pytest.raises(ds.KernelTypeError):
                same(0, v, 0)
    for v in ("1", None, 1j, [1], ds.Vector([1, 2])):
        with pytest.raises(ds.KernelTypeError):
            same(0, v, 0)


def test_f32_arguments_are_rounded(cpu):
    ds = cpu

    @ds.kernel
    def same(a: ds.f32) -> ds.f64:
        return a

    assert same(0.1) == float(np.float32(0.1))
    assert same(1e300) == np.inf


def test_vector_and_matrix_arguments(cpu):
    ds = cpu

    @ds.kernel
    def apply(
        A: ds.types.matrix(2, 3, ds.f64), v: ds.types.vector(3, ds.f32), n: ds.i32
    ) -> ds.types.vector(2, ds.f64):
        return A @ v * n

    A, v = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, -1.0])
    expected = (2 * A @ v).tolist()
    field = ds.Vector.field(3, ds.f32, shape=1)
    field[0] = v
    for a in (A, A.tolist(), ds.Matrix(A), A.astype("f4"), tuple(map(tuple, A.astype(int)))):
        for w in (v, v.tolist(), tuple(v), ds.Vector(v), field[0]):
            assert apply(a, w, 2).to_list() == expected
    with pytest.raises(ds.KernelTypeError):
        apply(A.T, v, 2)
    with pytest.raises(ds.KernelTypeError):
        apply(A, 1.0, 2)


def test_matrix_results(cpu):
    ds = cpu

    @ds.kernel
    def outer(v: ds.types.vector(2, ds.i32)) -> ds.types.matrix(2, 3, ds.i64):
        return [[v[0], v[1], 1], [v[1], v[0] * v[1], 2]]

    found = outer([3, 5])
    assert found.to_list() == [[3, 5, 1], [5, 15, 2]]
    assert found.to_numpy().dtype == np.int64


def test_keyword_and_default_arguments(cpu):
    ds = cpu

    @ds.kernel
    def f(a: ds.i32, b: ds.i32 = 20, c: ds.i32 = 300) -> ds.i32:
        return a + b + c

    assert [f(1), f(1, 2), f(1, c=3), f(b=5, a=1), f(1, 2, 3)] == [321, 303, 24, 306, 6]
    for wrong in ((), (1, 2, 3, 4)):
        with pytest.raises(ds.KernelTypeError):
            f(*wrong)
    with pytest.raises(ds.KernelTypeError, match="no parameter d"):
        f(1, d=4)
    with pytest.raises(ds.KernelTypeError, match="twice"):
        f(1, a=4)


def test_template_arguments(cpu):
    ds = cpu
    a = ds.field(ds.f32, shape=(2, 3))
    b = ds.field(ds.i32, shape=5)

    @ds.func
    def double(x):
        return 2 * x

    @ds.func
    def square(x):
        return x * x

    @ds.kernel
    def fill(f: ds.template(), n: ds.template(), g: ds.template(), add: ds.i32):
        for I in ds.grouped(f):
            for _ in ds.static(range(n)):
                f[I] += g(3) + add

    fill(a, 2, double, 1)
    fill(b, 1, square, 0)
    fill(b, 1, square, 5)
    fill(b, 2, double, 0)
    fill(a, n=0, g=double, add=100)
    assert (a.to_numpy() == 14).all()
    assert (b.to_numpy() == 9 + 14 + 12).all()


def test_template_objects_and_strings(cpu):
    ds = cpu
    config = types.SimpleNamespace(size=3, name="up", inner=types.SimpleNamespace(scale=0.5))

    @ds.kernel
    def run(c: ds.template(), mode: ds.template()) -> ds.f64:
        s = ds.f64(0.0)
        for i in range(c.size):
            s += c.inner.scale
        if ds.static(mode == c.name):
            s += 100
        return s

    assert run(config, "up") == 101.5
    assert run(config, "down") == 1.5


def test_template_annotation_without_brackets(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=2)

    @ds.kernel
    def run(f: ds.template):
        f[1] = 7

    run(x)
    assert x[1] == 7


@pytest.mark.parametrize("dtype", "f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?".split())
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 1, 2, 3)])
def test_numpy_arrays_are_changed_in_place(cpu, dtype, shape):
    ds = cpu
    a = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    before = a.copy()

    @ds.kernel
    def flip(x: ds.types.ndarray()) -> ds.i32:
        count = 0
        for I in ds.grouped(x):
            if x[I] != 0:
                count += 1
                x[I] = ds.cast(0, x.dtype)
            else:
                x[I] = ds.cast(1, x.dtype)
        return count

    assert flip(a) == (before != 0).sum()
    assert ((a != 0) == (before == 0)).all()


def test_arrays_of_any_size_use_two_compiled_kernels(cpu):
    ds = cpu

    @ds.kernel
    def double(x: ds.types.ndarray(dtype=ds.f64, ndim=2)) -> ds.i32:
        for i, j in x:
            x[i, j] *= 2
        return x.shape[0] * 1000 + x.shape[1]

    for shape in [(1, 1), (3, 5), (200, 7), (0, 4)]:
        a = np.random.default_rng(0).random(shape)
        b = a.copy()
        assert double(b) == shape[0] * 1000 + shape[1]
        assert (b == 2 * a).all()
    assert len(double.specializations) == 2  # for the first size, and for all others


def test_two_arrays_and_scalars_between(cpu):
    ds = cpu

    @ds.kernel
    def axpy(y: ds.types.ndarray(), a: ds.f32, x: ds.types.ndarray(), shift: ds.i32):
        for i in range(x.shape[0]):
            y[i + shift] += a * x[i]

    x, y = np.arange(4, dtype="f4"), np.ones(6, "f4")
    axpy(y, 2.0, x, 2)
    assert y.tolist() == [1, 1, 1, 3, 5, 7]
    axpy(x, 1.0, x, 0)
    assert x.tolist() == [0, 2, 4, 6]


def test_arrays_of_vectors(cpu):
    ds = cpu
    vec, mat = ds.types.vector(2, ds.f64), ds.types.matrix(2, 2, ds.f64)

    @ds.kernel
    def turn(x: ds.types.ndarray(dtype=vec, ndim=1), A: ds.types.ndarray(dtype=mat)):
        for i in x:
            x[i] = A[0] @ x[i]

    x, A = np.arange(6.0).reshape(3, 2), np.array([[[0.0, -1.0], [1.0, 0.0]]])
    turn(x, A)
    assert x.tolist() == [[-1, 0], [-3, 2], [-5, 4]]
    with pytest.raises(ds.KernelTypeError):
        turn(np.zeros((3, 3)), A)


def test_wrong_arrays_are_refused(cpu):
    ds = cpu

    @ds.kernel
    def f(x: ds.types.ndarray(dtype=ds.f32, ndim=1)):
        for i in x:
            x[i] = 0

    locked = np.zeros(3, "f4")
    locked.flags.writeable = False
    wrong = [np.zeros(3), np.zeros((3, 3), "f4"), locked, [1.0, 2.0], 3.0]
    for a in [*wrong, np.zeros(2, complex), np.array(["a"])]:
        with pytest.raises(ds.KernelTypeError):
            f(a)


def test_ds_ndarray(cpu):
    ds = cpu
    x = ds.ndarray(ds.f32, shape=(3, 4))
    v = ds.Vector.ndarray(2, ds.f64, shape=3)
    w = ds.ndarray(ds.types.vector(2, ds.f64), 3)

    @ds.kernel
    def number(a: ds.types.ndarray()):
        for i, j in a:
            a[i, j] = 10 * i + j

    @ds.kernel
    def add(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            a[i] += b[i] + [i, 1.0]

    number(x)
    assert (x.to_numpy() == 10 * np.arange(3)[:, None] + np.arange(4)).all()
    x[1, 1] = -5.0
    assert x[1, 1] == -5.0
    w.fill([1.0, 2.0])
    add(v, w)
    assert v.to_numpy().tolist() == [[1, 3], [2, 3], [3, 3]]


def test_a_field_can_be_passed_as_an_array(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=3)

    @ds.kernel
    def fill(a: ds.types.ndarray()):
        for i in a:
            a[i] = i

    fill(x)
    assert x.to_numpy().tolist() == [0, 1, 2]


def test_parameters_may_have_any_name(cpu):
    ds = cpu

    @ds.kernel
    def f(_session: ds.i32, _now: ds.i32, __call: ds.i32, session: ds.i32, _: ds.i32) -> ds.i32:
        return _session + 10 * _now + 100 * __call + 1000 * session + 10000 * _

    assert f(1, 2, 3, 4, 5) == 54321


def test_whole_fields_that_are_parameters_are_filled(cpu):
    """As fields are that a kernel names itself, under Taichi's name for the number, too."""
    ds = cpu
    x, v = ds.field(ds.f64, (2, 3)), ds.Vector.field(2, ds.f64, 3)

    @ds.func
    def refill(a: ds.template(), number):
        a.fill(number)

    @ds.kernel
    def clear(a: ds.template(), number: ds.f64):
        a.fill(val=number)
        refill(v, [number, 2.0])

    clear(x, 3.0)
    assert x.to_numpy().tolist() == [[3.0] * 3] * 2
    assert v.to_numpy().tolist() == [[3.0, 2.0]] * 3
    clear(v, 1.0)
    assert v.to_numpy().tolist() == [[1.0, 2.0]] * 3


def test_functions_without_a_decorator_are_funcs(cpu):
    ds = cpu
    x, loss = (ds.field(ds.f64, shape, needs_grad=True) for shape in (4, ()))
    x.fill(2)

    def zeros():
        return ds.Vector([0.0, 0.0])

    def at_most(a, high=1.0):
        if a > high:
            return high
        return a

    class Model:
        k = 3.0

        def scale(self, a):
            return a * self.k

    model = Model()

    @ds.kernel
    def run():
        for i in x:
            loss[None] += (
                zeros().x + at_most(x[i]) + at_most(x[i], high=5.0) ** 2 + model.scale(x[i])
            )

    with ds.Tape(loss):
        run()
    assert loss[None] == 4 * (1 + 4 + 6)
    assert x.grad.to_numpy().tolist() == [4 + 3] * 4


def test_a_function_without_a_decorator_that_is_replaced(cpu):
    ds = cpu

    def one():
        return 1.0

    def two():
        return 2.0

    uses = [one]

    @ds.kernel
    def run() -> ds.f32:
        return uses[0]()

    assert run() == 1
    uses[0] = two
    assert run() == 2


def test_a_function_that_changes_its_parameter_needs_a_decorator(cpu):
    ds = cpu

    def more(a: ds.template()):
        a += 1.0

    @ds.kernel
    def run() -> ds.f32:
        s = 1.0
        more(s)
        return s

    with pytest.raises(ds.KernelSyntaxError, match="more changes its parameter a"):
        run()
