"""Kernels as methods, captured values, where sources come from."""

import doctest
import functools
import linecache
import math
import runpy
import types

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("quick_code")

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


def test_functions_made_by_exec_under_the_name_of_a_file(cpu):
    ds = cpu
    text = "@ds.kernel\ndef f():\n    pass\n"
    with pytest.raises(ds.KernelSyntaxError):
        exec(compile(text, __file__, "exec"), {"ds": ds, "__name__": "__main__"})


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


def test_many_parameters(cpu):
    ds = cpu
    names = [f"a{k}" for k in range(40)]
    text = "@ds.kernel\ndef f({}) -> ds.i64:\n    return {}\n".format(
        ", ".join(f"{n}: ds.i32" for n in names), " + ".join(names)
    )
    f = from_cell(text, "<forty parameters>", ds=ds)["f"]
    assert f(*range(40)) == sum(range(40))


def test_a_decorator_above_a_kernel_of_a_class(cpu):
    """It passes the object as the first argument, as Python does for functions."""

    ds = cpu

    def passing_on(function):
        @functools.wraps(function)
        def call(*args, **options):
            return function(*args, **options)

        return call

    @ds.data_oriented
    class Row:
        def __init__(self, factor):
            self.factor = factor
            self.x = ds.field(ds.f64, shape=3, needs_grad=True)
            self.total = ds.field(ds.f64, shape=(), needs_grad=True)
            self.x.from_numpy(np.arange(3.0))

        @passing_on
        @ds.kernel
        def add(self, a: ds.f64, b: ds.f64 = 2.0):
            for i in self.x:
                self.total[None] += a * b * self.factor * self.x[i] ** 2

    one, other = Row(1.0), Row(10.0)
    for row in (one, other):
        with ds.Tape(row.total):
            row.add(3.0)
            row.add(b=1.0, a=2.0)
        assert row.total[None] == 8.0 * 5.0 * row.factor
        assert row.x.grad.to_numpy().tolist() == [0.0, 16.0 * row.factor, 32.0 * row.factor]
    with pytest.raises(ds.KernelTypeError, match="was called on its class"):
        vars(Row)["add"](3.0, 1.0)
    with pytest.raises(ds.KernelTypeError, match="a is missing"):
        one.add()


def test_objects_that_are_indexed(cpu):
    """`grid[i]` of an object calls the func of its class, in kernels and from Python, with its gradient."""
    ds = cpu

    @ds.data_oriented
    class Grid:
        def __init__(self, n):
            self.values = ds.field(ds.f64, shape=n, needs_grad=True)
            self.width = 0.5

        @ds.pyfunc
        def __getitem__(self, i):
            return self.values[i] * self.scaled(2)

        @ds.pyfunc
        def scaled(self, a):
            return a * self.width

    grid, y = Grid(4), ds.field(ds.f64, shape=(4, 2), needs_grad=True)

    @ds.kernel
    def square(g: ds.template()):
        for i in range(3):
            names = [1.0, 3.0]
            for k in ds.static(ds.ndrange(2)):  # tuples of one number
                y[i, k] = g[i + 1] ** 2 * names[k] + k[0]

    grid.values.from_numpy(np.arange(4.0))
    square(grid)
    assert (grid[3], grid.scaled(4)) == (3.0, 2.0)
    assert y.to_numpy()[2].tolist() == [9.0, 28.0]
    y.grad.fill(1)
    square.grad(grid)
    assert grid.values.grad.to_numpy().tolist() == [0.0, 8.0, 16.0, 24.0]
