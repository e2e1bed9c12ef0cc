"""What fields, layouts, tapes and kernels look like in terminals and notebooks, and fields as numbers."""

import base64
import math
import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import ArgumentError, AutodiffError, FieldError, KernelTypeError, OperationError
from tests.support.source import make


def number(dtype=ds.f32, value=1.25, grad=True):
    made = ds.field(dtype, shape=(), needs_grad=grad)
    made[None] = value
    return made


# ---- text


def test_print_shows_values_layout_and_gradient(cpu):
    heat = ds.field(ds.f32, shape=(2, 2), needs_grad=True)
    heat.from_numpy(np.array([[1.0, 2.0], [3.0, 4.5]], np.float32))
    assert str(heat) == (
        "<field heat: f32, shape (2, 2), needs_grad=True>\n[[1.  2. ]\n [3.  4.5]]"
    )
    assert repr(heat) == "<field f32, shape (2, 2), needs_grad=True>"
    apart = ds.Vector.field(2, ds.f32, shape=3, layout=ds.Layout.SOA)
    assert str(apart).startswith("<field apart: vec2 f32, shape (3,), layout SOA>\n[[0. 0.]")
    turned = ds.field(ds.i32)
    ds.root.dense(ds.j, 2).dense(ds.i, 3).place(turned)
    assert str(turned).startswith("<field turned: i32, shape (3, 2), axes in memory (1, 0)>\n")
    many = ds.field(ds.f64, shape=10_000)
    assert str(many).endswith("[0. 0. 0. ... 0. 0. 0.]")


def test_layouts_tapes_and_kernels_have_a_repr(cpu):
    x = ds.field(ds.f32)
    node = ds.root.dense(ds.i, 3).dense(ds.ij, (2, 4))
    assert repr(node) == "ds.root.dense(ds.i, 3).dense(ds.ij, (2, 4))"
    node.place(x)
    assert repr(ds.root) == "ds.root, with\n  <field x: f32, shape (6, 4)>"
    y = ds.field(ds.f32, shape=3, needs_grad=True)

    @ds.kernel
    def fill():
        for i in y:
            y[i] = 1.0

    assert repr(fill) == "<kernel fill>"
    assert repr(fill.grad) == "<gradient of the kernel fill>"
    with ds.Tape() as tape:
        fill()
    assert repr(tape) == "<tape: 1 entry>"


def test_listings_are_shown_as_they_are(cpu):
    y = ds.field(ds.f32, shape=3, needs_grad=True)

    @ds.kernel
    def fill():
        for i in y:
            y[i] = 2.0 * i

    for text in (fill.ir(), fill.llvm(), fill.ptx(), fill.grad.ir(), fill.grad.llvm()):
        assert isinstance(text, str)
        assert repr(text) == text
        assert "\n" in text


# ---- notebooks


def pictures(page):
    return [base64.b64decode(data) for data in re.findall(r"image/png;base64,([^\"]+)\"", page)]


def test_a_field_of_numbers_in_two_dimensions_is_an_image(cpu):
    heat = ds.field(ds.f32, shape=(4, 6))
    heat.from_numpy(np.arange(24, dtype=np.float32).reshape(4, 6) - 3)
    heat[1, 2], heat[0, 0] = math.nan, math.inf
    page = heat._repr_html_()
    (png,) = pictures(page)
    assert png.startswith(b"\x89PNG")
    assert "field heat: f32, shape (4, 6)" in page
    assert "min -2, max 20, 1 NaN, 1 infinite" in page
    heat.fill(math.nan)
    assert "<br>6 NaN" not in heat._repr_html_()
    assert "24 NaN" in heat._repr_html_()


def test_other_fields_are_tables(cpu):
    v = ds.Vector.field(2, ds.f32, shape=3)
    v[1] = [0.5, -2.0]
    page = v._repr_html_()
    assert "<tr><th>1</th><td>0.5</td><td>-2</td></tr>" in page
    assert "min -2, max 0.5, 0 NaN" in page
    long = ds.field(ds.i32, shape=1000)
    assert long._repr_html_().count("<tr>") == 21
    assert "<table><tr><td>1.25</td></tr></table>" in number()._repr_html_()
    assert "not placed" in ds.field(ds.f32)._repr_html_()
    named = ds.field(ds.f32, shape=2, name="a<b")
    assert "a&lt;b" in named._repr_html_()


def test_without_matplotlib_an_image_is_a_table(cpu, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    page = ds.field(ds.f32, shape=(2, 3))._repr_html_()
    assert "<table>" in page
    assert pictures(page) == []


def test_nothing_shown_is_read_by_a_tape(cpu):
    """Looking at a field in a tape's block is free: it is no value that Python takes from it."""
    x, loss = number(), number(value=0.0)

    @ds.kernel
    def square():
        loss[None] = x[None] ** 2

    with ds.Tape(loss):
        x._repr_html_()
        str(x)
        square()
    assert x.grad[None] == 2.5


# ---- numbers


def test_a_field_of_one_number_converts_as_a_0d_array_does(cpu):
    x, n = number(), number(ds.i32, 3, grad=False)
    array = x.to_numpy()
    for convert in (float, int, complex, math.sqrt, "{:.3f}".format):
        assert convert(x) == convert(array)
    assert round(x, 1) == 1.2
    assert f"{x:.1e}" == "1.2e+00"
    assert f"{x}" == "1.25"
    assert "%.2f" % x == "1.25"  # noqa: UP031
    assert list(range(n)) == [0, 1, 2]
    assert [5, 6, 7, 8][n] == 8
    with pytest.raises(TypeError):
        [1, 2][x]


def test_other_fields_do_not(cpu):
    x, v = ds.field(ds.f32, shape=1), ds.Vector.field(1, ds.f32, shape=())
    for field in (x, v):
        for convert in (float, int, round, "{:.3f}".format):
            with pytest.raises(OperationError):
                convert(field)
    with pytest.raises(OperationError, match="neither true nor false"):
        bool(number())


def test_numpy_and_matplotlib_take_fields(cpu):
    figures = pytest.importorskip("matplotlib.figure")
    x = ds.field(ds.f32, shape=(3, 4))
    x.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    v = ds.Vector.field(2, ds.f64, shape=3)
    assert np.mean(x) == 5.5
    assert np.asarray(v, dtype=np.float32).dtype == np.float32
    assert np.array(v, copy=True).shape == (3, 2)
    assert np.asarray(number()).shape == ()
    axes = figures.Figure().subplots()
    np.testing.assert_array_equal(axes.imshow(x).get_array(), x.to_numpy())
    row = ds.field(ds.f32, shape=4)
    assert axes.scatter(row, row).get_offsets().shape == (4, 2)


# ---- where a number would lose a gradient


def test_an_argument_keeps_its_gradient_after_a_launch_with_a_number(cpu):
    """`struct` packs whatever has `__float__`: a field must not become a constant there."""
    x, y = number(value=3.0), number(value=0.0)

    @ds.kernel
    def square(a: ds.f32):
        y[None] = a * a

    square(2.0)
    with ds.Tape(y):
        square(x)
    assert y[None] == 9.0
    assert x.grad[None] == 6.0
    with ds.Tape() as tape:
        square(x)
    x[None] = 4.0
    tape.replay()
    assert y[None] == 16.0


def test_a_field_is_no_element_of_another(cpu):
    x, y = number(), ds.field(ds.f32, shape=2, needs_grad=True)
    for write in (lambda: y.__setitem__(0, x), lambda: y.fill(x), lambda: y.from_numpy([x, x])):
        with pytest.raises(ArgumentError):
            write()
        with pytest.raises(ArgumentError), ds.Tape():
            write()


def test_conversions_in_a_block_are_reads_as_of_the_element(cpu):
    x, loss = number(), number(value=0.0)
    y = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def double():
        y[None] = 2.0 * x[None]

    for read in (
        lambda: float(y),
        lambda: float(y[None]),
        lambda: math.sqrt(y),
        lambda: float(f"{y}"),
    ):
        with pytest.raises(AutodiffError), ds.Tape(loss):
            double()
            loss[None] = read()

    @ds.kernel
    def total():
        loss[None] += 3.0 * y[None]

    with ds.Tape(loss):
        double()
        assert f"{y:.1f} {float(y)}" == "2.5 2.5"  # looking is free
        total()
    assert x.grad[None] == 6.0


@pytest.mark.parametrize(
    "line",
    ["x[0] = float(a)", "x[0] = math.sqrt(a)", "x[0] = round(a)", "x[0] = int(n)", "x[n] = 1.0",
     "x[0] = ds.static(float(a))", "for i in range(n): x[i] = 1.0", "print(f'{a:.2f}')"],
)  # fmt: skip
def test_kernels_bake_no_field_in(line, cpu):
    names = {"ds": ds, "math": math, "a": number(), "n": number(ds.i32, 1, grad=False)}
    names["x"] = ds.field(ds.f32, shape=3, needs_grad=True)
    make(f"@ds.kernel\ndef k():\n    {line}\n", names)
    with pytest.raises(KernelTypeError):
        names["k"]()


# ---- parts


@pytest.mark.parametrize("key", [0, slice(1, 2), (slice(None), 0), (0, ...)])
def test_parts_are_errors_that_name_the_way(key, cpu):
    grid = ds.field(ds.f32, shape=(3, 4))
    is_row = key in (0, (0, ...))  # which can be written
    uses = [lambda: grid[key], lambda: grid.__setitem__(key, np.ones(4))][: 1 if is_row else 2]
    for use in uses:
        with pytest.raises(FieldError) as found:
            use()
        assert "grid.to_numpy()[...]" in found.value.hint
        assert "grid[i, j] = value" in found.value.hint
        assert "grid.from_numpy(array)" in found.value.hint
