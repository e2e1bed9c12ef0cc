"""Funcs, arguments and results of kernels, classes, captured values, where sources come from."""

import doctest
import linecache
import math
import runpy
import types

import numpy as np
import pytest

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

    with pytest.raises(cpu.DiffsimError, match="inside of kernels"):
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


def test_arrays_of_any_size_use_one_compiled_kernel(cpu):
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
    assert len(double.specials) == 1  # none was compiled for a size


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
    wrong = [np.zeros(3), np.zeros((3, 3), "f4"), np.zeros(6, "f4")[::2], locked, [1.0, 2.0], 3.0]
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


def test_many_parameters(cpu):
    ds = cpu
    names = [f"a{k}" for k in range(40)]
    text = "@ds.kernel\ndef f({}) -> ds.i64:\n    return {}\n".format(
        ", ".join(f"{n}: ds.i32" for n in names), " + ".join(names)
    )
    f = from_cell(text, "<forty parameters>", ds=ds)["f"]
    assert f(*range(40)) == sum(range(40))


# ---- classes


def test_objects_of_a_class_have_fields_and_numbers_of_their_own(cpu):
    ds = cpu

    @ds.data_oriented
    class Counter:
        step = 1

        def __init__(self, n, step=None):
            self.n = n
            if step is not None:
                self.step = step
            self.x = ds.field(ds.i32, shape=n)
            self.table = [1, 2, 3]
            self.scale = ds.Vector([1, 10])

        @ds.func
        def next(self, i, v):
            return v + self.step * (i + self.table[2])

        @ds.kernel
        def run(self, times: ds.i32):
            for i in range(self.n):
                for _ in range(times):
                    self.x[i] = self.next(i, self.x[i])

        @ds.kernel
        def total(self) -> ds.i32:
            s = 0
            for i in self.x:
                s += self.x[i] * self.scale[1]
            return s

        @staticmethod
        @ds.func
        def helper(a):
            return a + 1

        @ds.kernel
        def helped(self) -> ds.i32:
            return self.helper(self.n)

        def both(self, times):
            self.run(times)
            return self.total()

    a, b = Counter(3), Counter(4, step=100)
    assert a.both(2) == 10 * sum(2 * (i + 3) for i in range(3))
    assert b.both(1) == 10 * sum(100 * (i + 3) for i in range(4))
    assert a.both(1) == 10 * sum(3 * (i + 3) for i in range(3))
    assert (a.helped(), b.helped()) == (4, 5)


def test_inherited_kernels(cpu):
    ds = cpu

    @ds.data_oriented
    class Base:
        def __init__(self):
            self.x = ds.field(ds.f32, shape=2)

        @ds.func
        def rule(self, i):
            return 1.0 * i

        @ds.kernel
        def run(self):
            for i in self.x:
                self.x[i] = self.rule(i)

    @ds.data_oriented
    class Derived(Base):
        @ds.func
        def rule(self, i):
            return 5.0 + i

    base, derived = Base(), Derived()
    base.run()
    derived.run()
    assert base.x.to_numpy().tolist() == [0, 1]
    assert derived.x.to_numpy().tolist() == [5, 6]


def test_objects_in_objects(cpu):
    ds = cpu

    @ds.data_oriented
    class Grid:
        def __init__(self, n):
            self.x = ds.field(ds.f32, shape=n)

        @ds.func
        def put(self, i, v):
            self.x[i] = v

    @ds.data_oriented
    class Solver:
        def __init__(self):
            self.grids = [Grid(2), Grid(3)]
            self.main = self.grids[0]

        @ds.kernel
        def run(self):
            self.main.put(1, 9.0)
            for i in self.main.x:
                self.main.x[i] += 1
            for i in self.grids[1].x:
                self.grids[1].put(i, i)

    solver = Solver()
    solver.run()
    assert solver.main.x.to_numpy().tolist() == [1, 10]
    assert solver.grids[1].x.to_numpy().tolist() == [0, 1, 2]


def test_a_field_of_an_object_may_be_replaced(cpu):
    ds = cpu

    @ds.data_oriented
    class Box:
        def __init__(self):
            self.x = ds.field(ds.i32, shape=2)

        @ds.kernel
        def add(self):
            for i in self.x:
                self.x[i] += 1

    box = Box()
    box.add()
    first, box.x = box.x, ds.field(ds.i32, shape=4)
    box.add()
    assert first.to_numpy().tolist() == [1, 1]
    assert box.x.to_numpy().tolist() == [1, 1, 1, 1]


def test_a_kernel_that_is_a_method_needs_its_object(cpu):
    ds = cpu

    @ds.data_oriented
    class Box:
        @ds.kernel
        def run(self):
            pass

    with pytest.raises(ds.KernelTypeError, match="method"):
        Box.run()


# ---- captured values


def test_closures(cpu):
    ds = cpu

    def make(scale, x):
        @ds.func
        def scaled(v):
            return scale * v

        @ds.kernel
        def run():
            for i in x:
                x[i] += scaled(1.0)

        return run

    a, b = ds.field(ds.f32, shape=2), ds.field(ds.f32, shape=2)
    one, two = make(1.5, a), make(-2.0, b)
    one()
    two()
    one()
    assert a.to_numpy().tolist() == [3, 3]
    assert b.to_numpy().tolist() == [-2, -2]


def test_captured_constants_of_many_kinds(cpu):
    ds = cpu
    whole, number, flag, words = 3, 2.5, True, "abc"
    pair, table = (1, 2.0), [10, 20, [30]]
    array, grid = np.array([1.5, 2.5]), np.array([[1, 2], [3, 4]])
    config = types.SimpleNamespace(deep=types.SimpleNamespace(value=7))

    @ds.kernel
    def run() -> ds.f64:
        s = ds.f64(0.0)
        if ds.static(flag and words == "abc"):
            s += whole * number
        s += pair[0] + pair[1] + table[1] + table[2][0] + len(table)
        s += array[1] + grid[1, 0] + config.deep.value
        return s

    assert run() == 7.5 + 3 + 20 + 30 + 3 + 2.5 + 3 + 7


@pytest.mark.parametrize(
    ("first", "second"), [(1.5, 2.5), (3, 4), ([1, 2], [1, 3]), (True, False), ((1,), (2,))]
)
def test_a_changed_constant_is_refused(cpu, first, second):
    ds = cpu
    constant = first
    x = ds.field(ds.f64, shape=())

    @ds.kernel
    def run():
        x[None] = constant if ds.static(not isinstance(constant, (list, tuple))) else constant[0]

    run()
    constant = type(first)(first)  # equal, perhaps another object
    run()
    constant = second
    with pytest.raises(ds.KernelStateError, match="constant was"):
        run()
    ds.init()
    run()


def test_a_list_or_array_changed_in_place_is_refused(cpu):
    ds = cpu
    table, array, v = [1, 2], np.array([1.0, 2.0]), ds.Vector([1.0, 2.0])
    nested, pair, mixed = [[1, 2], [3]], (0, [1, 2]), [np.array([1.0, 2.0]), ds.Vector([1, 2])]
    x = ds.field(ds.f64, shape=7)

    @ds.kernel
    def run():
        x[0] = table[0]
        x[1] = array[0]
        x[2] = v[0]
        x[3] = nested[0][0]
        x[4] = pair[1][0]
        x[5] = mixed[0][0]
        x[6] = mixed[1][0]

    run()
    run()
    for thing in (table, array, v, nested[0], pair[1], mixed[0], mixed[1]):
        thing[0] = 5
        with pytest.raises(ds.KernelStateError):
            run()
        thing[0] = 1
        run()
    nested[1].append(4)
    with pytest.raises(ds.KernelStateError):
        run()
    assert x.to_numpy().tolist() == [1] * 7


def test_replaced_fields_and_funcs_are_used(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=2)

    @ds.func
    def constant(i):
        return 1.0

    rule = constant

    @ds.kernel
    def run():
        for i in x:
            x[i] = rule(i)

    run()
    first = x
    x = ds.field(ds.f32, shape=3)
    run()
    assert first.to_numpy().tolist() == [1, 1]
    assert x.to_numpy().tolist() == [1, 1, 1]

    @ds.func
    def linear(i):
        return 2.0 * i

    rule = linear

    run()
    assert x.to_numpy().tolist() == [0, 2, 4]


def test_local_names_hide_outer_ones(cpu):
    ds = cpu
    value = 5

    @ds.kernel
    def run(a: ds.i32) -> ds.i32:
        max = a + 1
        ds_ = max * 2
        return ds_ + value

    assert run(3) == 13


# ---- sources


def from_cell(text, file, **names):
    """Run text as a notebook does: compiled under a name that linecache knows."""
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = dict(names, __name__="__main__")
    exec(compile(text, file, "exec"), space)
    return space


@pytest.mark.filterwarnings("ignore::diffsim.PrecisionLoss")
def test_string_annotations(cpu):
    ds = cpu
    text = """from __future__ import annotations
import diffsim as ds

x = ds.field(ds.f32, shape=3)

@ds.func
def half(v: ds.u8):  # converts
    return v / 2

@ds.kernel
def run(a: ds.f32, f: ds.template(), b: ds.types.ndarray(), v: "ds.types.vector(2, ds.f32)") -> ds.f32:
    for i in f:
        f[i] = half(ds.i32(a) + 256) + v[1]
        b[i] = 1
    return a
"""
    space = from_cell(text, "<string annotations>")
    b = np.zeros(3)
    assert space["run"](5.0, space["x"], b, [1.0, 2.0]) == 5.0
    assert space["x"].to_numpy().tolist() == [4.5] * 3
    assert b.tolist() == [1] * 3


def test_notebook_cells(cpu):
    ds = cpu
    cell = "@ds.kernel\ndef f() -> ds.i32:\n    return {}\n"
    first = from_cell(cell.format(1), "<ipython-input-1>", ds=ds)["f"]
    second = from_cell("# a comment\n\n" + cell.format(2), "<ipython-input-2>", ds=ds)["f"]
    assert (first(), second()) == (1, 2)


def test_a_cell_that_was_run_again(cpu):
    ds = cpu
    cell = "@ds.kernel\ndef f() -> ds.i32:\n    return {}\n"
    first = from_cell(cell.format(1), "<ipython-input-3>", ds=ds)["f"]
    second = from_cell(cell.format(2), "<ipython-input-3>", ds=ds)["f"]
    assert (first(), second()) == (1, 2)


def _documented():
    """A function with an example.

    >>> import diffsim as ds
    >>> @ds.kernel
    ... def triple(a: ds.i32) -> ds.i32:
    ...     return 3 * a
    >>> triple(5)
    15
    """


def test_doctests(cpu):
    runner = doctest.DocTestRunner(verbose=False)
    (example,) = doctest.DocTestFinder().find(_documented, globs={})
    assert runner.run(example).failed == 0


def load(tmp_path, text):
    """The names that a file with this text defines."""
    file = tmp_path / "long_program.py"
    file.write_text("import diffsim as ds\n" + text)
    return runpy.run_path(str(file))


def test_long_chains_of_elifs(cpu, tmp_path):
    n = 800
    text = (
        "x = ds.field(ds.f64, 2, needs_grad=True)\nloss = ds.field(ds.f64, (), needs_grad=True)\n"
    )
    text += "@ds.kernel\ndef step(k: ds.i32):\n    if k == 0:\n        loss[None] = 0.0\n"
    text += "".join(f"    elif k == {k}:\n        loss[None] = {k} * x[1]\n" for k in range(1, n))
    made = load(tmp_path, text)
    made["x"].fill(2.0)
    for k in (3, n - 1):
        made["step"](k)
        assert made["loss"][None] == 2.0 * k


def test_gradient_of_a_long_chain_of_elifs(cpu, tmp_path):
    n = 150
    text = (
        "x = ds.field(ds.f64, 2, needs_grad=True)\nloss = ds.field(ds.f64, (), needs_grad=True)\n"
    )
    text += "@ds.kernel\ndef step(k: ds.i32):\n    if k == 0:\n        loss[None] = 0.0\n"
    text += "".join(f"    elif k == {k}:\n        loss[None] = {k} * x[1]\n" for k in range(1, n))
    made = load(tmp_path, text)
    for k in (3, n - 1):
        with cpu.Tape(made["loss"]):
            made["step"](k)
        assert made["x"].grad.to_numpy().tolist() == [0.0, k]


def test_long_chains_of_funcs(cpu, tmp_path):
    n = 200
    text = (
        "x = ds.field(ds.f64, (), needs_grad=True)\nloss = ds.field(ds.f64, (), needs_grad=True)\n"
    )
    text += "@ds.func\ndef f0(a):\n    return a\n"
    for k in range(1, n):
        text += f"@ds.func\ndef f{k}(a):\n    if a > 100.0:\n        a = 3.0\n"
        text += f"    return f{k - 1}(a) + 0.5 * a\n"
    text += f"@ds.kernel\ndef step():\n    loss[None] = f{n - 1}(x[None])\n"
    made = load(tmp_path, text)
    made["x"][None] = 2.0
    with cpu.Tape(made["loss"]):
        made["step"]()
    assert made["loss"][None] == 2.0 * (1 + 0.5 * (n - 1))
    assert made["x"].grad[None] == 1 + 0.5 * (n - 1)


def test_funcs_of_one_name_are_no_recursion(cpu):
    ds = cpu
    out = ds.field(ds.f64, ())

    def around(inner):
        @ds.func
        def layer(a):
            return inner(a) + 1.0

        return layer

    @ds.func
    def layer(a):
        return a

    made = layer
    for _ in range(200):
        made = around(made)

    @ds.kernel
    def run():
        out[None] = made(2.0)

    run()
    assert out[None] == 202.0
    for _ in range(200):
        made = around(made)

    @ds.kernel
    def too_many():
        out[None] = made(2.0)

    with pytest.raises(ds.KernelSyntaxError, match="by a chain of more than 256 funcs"):
        too_many()


def test_functions_made_by_exec_are_refused(cpu):
    ds = cpu
    text = "@ds.kernel\ndef f():\n    pass\n"
    with pytest.raises(ds.KernelSyntaxError, match="source of f is not available"):
        exec(compile(text, "<text>", "exec"), {"ds": ds})
    space = {"ds": ds, "__name__": "__main__"}
    with pytest.raises(ds.KernelSyntaxError):
        exec(compile(text, __file__, "exec"), space)


def test_kernels_in_strange_places(cpu):
    ds = cpu
    made = []
    for k in range(2):
        if True:
            # fmt: off
            @ds.kernel
            def deep() -> ds.i32:
                # a comment less indented
            # like this one
                s = (1 +
        2)
                text = """
a string that begins a line
"""
                return s + k  # noqa: B023

            # fmt: on
            assert deep() == 3 + k
            made.append(deep)

    @ds.kernel  # a comment
    def one_line() -> ds.i32:
        return 7

    assert one_line() == 7


def test_decorators_on_wrong_things(cpu):
    ds = cpu
    with pytest.raises(ds.KernelSyntaxError, match="lambda"):
        ds.kernel(lambda: None)
    with pytest.raises(ds.DiffsimError):
        ds.kernel(5)
    with pytest.raises(ds.DiffsimError):
        ds.func(len)

    @ds.kernel
    def k():
        pass

    with pytest.raises(ds.DiffsimError):
        ds.kernel(k)


def test_a_kernel_keeps_name_and_documentation(cpu):
    ds = cpu

    @ds.kernel
    def documented(a: ds.f32):
        """What it does."""

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert "documented" in repr(documented)
    documented(1.0)


def test_rounding_to_a_type(cpu):
    ds = cpu

    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(5, ds.i32):
        v = ds.floor(ds.Vector([x, -x]), ds.i32)
        return [
            ds.floor(x, dtype=ds.i32),
            ds.ceil(x, int),
            ds.round(x, ds.i32),
            v[1],
            ds.trunc(-x, dtype=int),
        ]

    for x in (2.25, 2.75, -0.5, 3.0):
        want = [math.floor(x), math.ceil(x), round(x), math.floor(-x), math.trunc(-x)]
        assert run(x).to_list() == want
