"""Several tangents at once: each is a block of memory in the layout of its field, apart from the others."""

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.layout import block_stride
from diffsim.runtime.fields.adjoints import make_dual

pytestmark = pytest.mark.usefixtures("quick_code")

PAGE = 4096


def square(x, y):
    @ds.kernel
    def f():
        for k in ds.grouped(x):
            y[k] = x[k] * x[k]

    return f


def check(x, run, outputs, count, derivative):
    """Compare tangents of elementwise functions, and look for what has spilled into other tangents."""
    values = np.random.default_rng(1).uniform(0.5, 1.5, x.shape + x.element)
    x.from_numpy(values)
    seeds = np.random.default_rng(2).normal(size=(count, *values.shape))
    with ds.ad.FwdMode(param=x, seed=seeds) as forward:
        run()
    for y in outputs:
        np.testing.assert_allclose(forward.tangents(y), derivative(values) * seeds, rtol=1e-12)


@pytest.mark.parametrize("size", [4, 8])
def test_blocks_are_far_from_each_other_within_a_page(size):
    """All that the processor compares of two addresses is where they are in their pages."""
    for scalars in (PAGE // size, 5000, 1 << 20, 512 * 511):
        step = block_stride(scalars, size)
        assert scalars <= step <= scalars + 2 * PAGE // size
        places = [k * step * size % PAGE for k in range(8)]
        apart = [abs(a - b) for a, b in itertools.combinations(places, 2)]
        assert min(min(d, PAGE - d) for d in apart) >= 64
    assert block_stride(PAGE // size - 1, size) == PAGE // size - 1


@pytest.mark.parametrize("shape", [3, 511, 512, 513, (2, 3, 171)])
@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
@pytest.mark.parametrize("count", [3, 8])
def test_fields_of_any_layout(cpu, shape, layout, count):
    x, y = (ds.Vector.field(3, ds.f64, shape=shape, layout=layout) for _ in range(2))
    check(x, square(x, y), [y], count, lambda v: 2 * v)


@pytest.mark.parametrize("axes", [ds.ij, ds.axes(1, 0)])
def test_orders_of_axes(cpu, axes):
    x, y = ds.field(ds.f64), ds.field(ds.f64)
    ds.root.dense(axes, (40, 30)).place(x)
    ds.root.dense(ds.ij, x.shape).place(y)
    check(x, square(x, y), [y], 4, lambda v: 2 * v)


@pytest.mark.parametrize("shape", [2, 511, 512, (3, 400)])
@pytest.mark.parametrize("element", [(), (3,)])
@pytest.mark.parametrize("count", [3, 8])
def test_fields_as_arguments(cpu, shape, element, count):
    """A field that one kernel captures and another one is given has one dual, and arrays of any size fit."""
    dtype = ds.types.vector(3, ds.f64) if element else ds.f64
    axes = 2 if isinstance(shape, tuple) else 1
    array = ds.types.ndarray(dtype=dtype, ndim=axes)

    def made(shape):
        if element:
            return ds.Vector.field(3, ds.f64, shape=shape)
        return ds.field(ds.f64, shape=shape)

    @ds.kernel
    def double(a: array, b: array):
        for k in ds.grouped(a):
            b[k] = 2.0 * a[k]

    x, y, z = (made(shape) for _ in range(3))
    small, smaller = (made(tuple(2 for _ in x.shape)) for _ in range(2))
    first = square(x, y)

    def run():
        double(small, smaller)
        first()
        double(y, z)

    check(x, run, [z], count, lambda v: 4 * v)


def test_other_memories_are_left_alone(cpu):
    """What a kernel writes to tangents stays in their blocks."""
    x, y = ds.field(ds.f64, shape=513), ds.field(ds.f64, shape=513)

    @ds.kernel
    def ends():
        for i in range(513):
            if i == 0 or i == 512:
                y[i] = x[i]

    seeds = np.random.default_rng(3).normal(size=(5, 513))
    with ds.ad.FwdMode(param=x, seed=seeds) as forward:
        ends()
    want = np.zeros((5, 513))
    want[:, [0, 512]] = seeds[:, [0, 512]]
    np.testing.assert_array_equal(forward.tangents(y), want)


@pytest.mark.usefixtures("cpu")
def test_rows_of_blocks_are_spans():
    """What a tape on a GPU saves of a dual: the same scalars as NumPy finds there."""
    x = ds.field(ds.f64, shape=(3, 5))
    layout = make_dual(x, 4).storage.layout
    found = layout.view(np.arange(layout.count, dtype=float))[1:3, :, :, 0]
    span = layout.part(0, 0, 1, 2)
    scalars = span.bytes // 8
    starts = [(span.address + k * span.step) // 8 for k in range(span.count)]
    want = [np.arange(s, s + scalars) for s in starts]
    np.testing.assert_array_equal(np.moveaxis(found, -1, 0).reshape(4, -1), want)
