"""NumPy arrays as arguments: strides, byte order, elements, aliases, clamped indices; against NumPy."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import central

pytestmark = pytest.mark.usefixtures("quick_code")


@ds.kernel
def number(a: ds.types.ndarray()):
    for i, j in ds.ndrange(a.shape[0], a.shape[1]):
        a[i, j] = 2 * a[i, j] + 10 * i + j


@ds.kernel
def add(a: ds.types.ndarray(), b: ds.types.ndarray()):
    for i in a:
        a[i] += 10 * b[i] + 1


@ds.kernel
def total(a: ds.types.ndarray()) -> ds.f64:
    s = ds.f64(0)
    for I in ds.grouped(a):
        s += a[I]
    return s


@ds.kernel
def squares(a: ds.types.ndarray(), loss: ds.types.ndarray()):
    for i in a:
        loss[None] += a[i] ** 2


# Ways to get at a part of a table of 8 x 9 numbers, each a view of it.
VIEWS = {
    "all": lambda t: t,
    "transposed": lambda t: t.T,
    "steps": lambda t: t[1::3, ::2],
    "backwards": lambda t: t[::-1, ::-1],
    "a column": lambda t: t[:, 3:4],
    "rows": lambda t: t[2:5],
    "one row": lambda t: t[4][None, ::2],
    "moved axes": lambda t: np.moveaxis(t.reshape(2, 4, 9), 0, 2)[:, 1],
}


@pytest.mark.parametrize("dtype", ["f4", ">f8", "i4", ">i8", "<u4"])
def test_views_are_changed_in_place(cpu, dtype):
    for what, view in VIEWS.items():
        table = np.arange(72).reshape(8, 9).astype(dtype)
        want = table.copy()
        a, b = view(table), view(want)
        i, j = np.indices(b.shape)
        b[...] = 2 * b + 10 * i + j
        number(a)
        assert np.array_equal(table, want), what
        assert table.dtype == dtype


def test_fortran_order_and_unaligned(cpu):
    a = np.asfortranarray(np.ones((3, 4)))
    number(a)
    raw = np.zeros(8 * 12 + 1, np.uint8)
    b = raw[1:].view(np.float64).reshape(3, 4)
    b[...] = 1.0
    assert not b.flags.aligned
    number(b)
    i, j = np.indices((3, 4))
    assert np.array_equal(a, 2 + 10 * i + j)
    assert np.array_equal(a, b)


def test_read_only_arrays_are_read(cpu):
    a = np.broadcast_to(np.arange(3.0), (4, 3))
    assert total(a) == 12.0
    locked = np.arange(4.0)
    locked.flags.writeable = False
    assert total(locked) == 6.0
    for wrong in (locked, locked[::2]):
        with pytest.raises(ds.KernelTypeError, match="read-only, and the kernel writes to it"):
            add(wrong, np.ones(4))
    assert locked.tolist() == [0, 1, 2, 3]


def test_elements_that_overlap_are_refused_where_written(cpu):
    a = np.arange(6.0)
    windows = np.lib.stride_tricks.as_strided(a, (2, 4), (8, 8))
    assert total(windows) == 6.0 + 10.0
    with pytest.raises(ds.KernelTypeError, match="elements of the array share memory"):
        number(windows)
    assert a.tolist() == [0, 1, 2, 3, 4, 5]


def test_aliases_of_strided_arrays(cpu):
    a = np.arange(8.0)
    # One array twice is one memory, however often the view is made anew.
    add(a[::2], a[::2])
    assert a.tolist() == [1, 1, 23, 3, 45, 5, 67, 7]
    # Neighbours in one table have no element in common.
    a[:] = range(8)
    add(a[::2], a[1::2])
    assert a.tolist() == [11, 1, 33, 3, 55, 5, 77, 7]
    for one, other in [(a[::2], a[::-2]), (a[:4], a[::2]), (a[::3], a[:3])]:
        kept = a.copy()
        if np.shares_memory(one, other):
            with pytest.raises(ds.KernelTypeError, match="overlap, and the kernel writes"):
                add(one, other)
            assert np.array_equal(a, kept)
        else:
            add(one, other)
            assert not np.array_equal(a, kept)


def test_a_view_of_a_field_counts_as_the_field(cpu):
    x = ds.field(ds.f64, shape=6, needs_grad=True)
    view = np.from_dlpack(x)[::2]
    if not view.flags.writeable:
        pytest.skip("this NumPy's from_dlpack gives read-only arrays")  # as all before 2.1
    before = x.versions.latest
    add(view, np.ones(3))
    assert x.to_numpy().tolist() == [11, 0, 11, 0, 11, 0]
    assert x.versions.latest > before
    with ds.Tape(), pytest.raises(ds.AutodiffError, match="is the memory of x"):
        add(view, np.ones(3))
    with pytest.raises(ds.KernelTypeError, match="overlap"):
        add(x, np.from_dlpack(x)[::-1])


def test_a_chain_through_a_strided_array_is_found_broken(cpu):
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    loss = ds.ndarray(ds.f64, (), needs_grad=True)
    table = np.zeros(6)

    @ds.kernel
    def out(a: ds.types.ndarray()):
        for i in x:
            a[i] = 2 * x[i]

    with pytest.raises(ds.MissingGradientError), ds.Tape(loss):
        out(table[::2])
        squares(table[::2], loss)


def test_gradients_with_strided_constants(cpu):
    """A tape keeps what a strided array was; the gradient flows to the other argument."""
    w = ds.ndarray(ds.f64, 4, needs_grad=True)
    loss = ds.ndarray(ds.f64, (), needs_grad=True)
    table = np.arange(8.0).reshape(4, 2)

    @ds.kernel
    def weigh(a: ds.types.ndarray(), w: ds.types.ndarray(), loss: ds.types.ndarray()):
        for i in w:
            loss[None] += a[i] * w[i] ** 2

    w.from_numpy(np.array([1.0, 2.0, 3.0, 4.0]))
    with ds.Tape(loss):
        weigh(table[:, 1], w, loss)
        table[:] = np.nan
    assert w.grad.to_numpy().tolist() == [2, 12, 30, 56]
    table[:, 1] = [1, 1, 1, 1]
    w.grad.fill(0)
    loss.grad.fill(1)
    weigh(table[:, 1], w, loss)
    weigh.grad(table[:, 1], w, loss)
    assert w.grad.to_numpy().tolist() == [2, 4, 6, 8]


def test_elements_of_annotations(cpu):
    @ds.kernel
    def by_dim(a: ds.types.ndarray(element_dim=1)):
        for i in a:
            a[i] = a[i].yx

    @ds.kernel
    def by_shape(a: ds.types.ndarray(dtype=ds.f64, element_shape=(2, 2))):
        for i in a:
            a[i] = a[i] @ a[i]

    a = np.arange(6.0).reshape(2, 3).T
    by_dim(a)
    assert a.tolist() == [[3, 0], [4, 1], [5, 2]]
    m = np.asfortranarray(np.arange(12.0).reshape(3, 2, 2))
    want = m @ m
    by_shape(m)
    assert np.array_equal(m, want)
    by_shape(made := ds.Matrix.ndarray(2, 2, ds.f64, 1))
    assert not made.to_numpy().any()
    wrong = [
        (by_dim, np.zeros(()), "of 1 axes"),
        (by_dim, np.zeros((2, 0)), "of 1 axes"),
        (by_shape, np.zeros((3, 2)), "is a 2x2 matrix of f64, and the array has"),
        (by_shape, ds.Vector.ndarray(2, ds.f64, 3), r"has shape \(2, 2\)"),
    ]
    for kernel, array, message in wrong:
        with pytest.raises(ds.KernelTypeError, match=message):
            kernel(array)


def test_needs_grad_of_an_annotation(cpu):
    @ds.kernel
    def k(a: ds.types.ndarray(needs_grad=True)):
        for i in a:
            a[i] = 1.0

    k(ds.ndarray(ds.f32, 2, needs_grad=True))
    for wrong in (np.zeros(2), ds.ndarray(ds.f32, 2)):
        with pytest.raises(ds.KernelTypeError, match="needs a gradient, and this array has none"):
            k(wrong)


@ds.kernel
def clamped(a: ds.types.ndarray(boundary="clamp"), b: ds.types.ndarray(), loss: ds.types.ndarray()):
    for i, j in b:
        b[i, j] = 2 * a[i - 2, j] + a[i, j + 3] * a[i, j] + a[9, -9]
    for i, j in b:
        loss[None] += b[i, j] ** 2


@ds.kernel
def gathered(
    a: ds.types.ndarray(), b: ds.types.ndarray(boundary="clamp"), loss: ds.types.ndarray()
):
    for i, j in a:
        b[2 * i - 3, j - 1] += a[i, j] ** 2
    for i, j in b:
        loss[None] += b[i, j] ** 3


def clamped_in_numpy(a):
    def c(*index):
        return a[tuple(np.clip(index, 0, np.array(a.shape) - 1))]

    b = [2 * c(i - 2, j) + c(i, j + 3) * c(i, j) + c(9, -9) for i, j in np.ndindex(a.shape)]
    return np.sum(np.square(b))


def gathered_in_numpy(a):
    b = np.zeros(a.shape)
    for i, j in np.ndindex(a.shape):
        b[np.clip(2 * i - 3, 0, 3), np.clip(j - 1, 0, 2)] += a[i, j] ** 2
    return np.sum(b**3)


@pytest.mark.parametrize("arch", ["cpu", "python"])
@pytest.mark.parametrize(
    ("kernel", "reference"), [(clamped, clamped_in_numpy), (gathered, gathered_in_numpy)]
)
def test_clamped_indices_and_their_gradients(cpu, kernel, reference, arch):
    ds.init(arch=getattr(ds, arch), debug=True)
    a, b = (ds.ndarray(ds.f64, (4, 3), needs_grad=True) for _ in range(2))
    loss = ds.ndarray(ds.f64, (), needs_grad=True)
    start = np.random.default_rng(1).normal(size=(4, 3))
    a.from_numpy(start)
    with ds.Tape(loss):
        kernel(a, b, loss)
    assert loss[None] == pytest.approx(reference(start), rel=1e-13)
    np.testing.assert_allclose(a.grad.to_numpy(), central(reference, start), rtol=1e-7, atol=1e-7)


def test_clamped_indices_of_every_type(cpu):
    @ds.kernel
    def read(
        a: ds.types.ndarray(boundary="clamp"),
        b: ds.types.ndarray(),
        k: ds.u32,
        m: ds.i64,
        q: ds.u8,
    ):
        b[0] = a[k - ds.u32(5)]
        b[1] = a[m]
        b[2] = a[-m]
        b[3] = a[q]
        b[4] = a[k]

    b = np.zeros(5)
    read(np.arange(4.0) + 10, b, 2, 2**40, 200)
    assert b.tolist() == [13, 13, 10, 13, 12]
    # One array under two names: each keeps its own boundary.
    a = np.arange(5.0)
    read(a, a, 1, 2**40, 200)
    assert a.tolist() == [4, 4, 4, 4, 4]
    with pytest.raises(ds.KernelTypeError, match="a of read has no elements"):
        read(np.zeros(0), b, 2, 0, 0)
