"""Components of elements and rows of fields that Python writes."""

import copy
import itertools

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check, field, numbers

SHAPES = [(), (3,), (2, 3), (2, 3, 2)]
ELEMENTS = [2, (2, 3)]


@pytest.fixture(autouse=True)
def _f64(cpu, quick_code):
    ds.init(default_fp=ds.f64)


def parts(shape):
    """All components of an element, and some slices and lists of them."""
    yield from (i if len(i) > 1 else i[0] for i in np.ndindex(*shape))
    yield 0
    yield slice(None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", ELEMENTS)
@pytest.mark.parametrize("layout", [None, ds.Layout.SOA])
def test_components(shape, n, layout):
    x = field(shape, n=n, layout=layout)
    expected = numbers(*shape, *((n,) if isinstance(n, int) else n))
    x.from_numpy(expected)
    value = itertools.count(10.0)
    for index in np.ndindex(*shape):
        for part in parts(x.element):
            x[index][part] = v = next(value)
            expected[index][part] = v
        x[index][0] += 0.5
        expected[index][0] += 0.5
    np.testing.assert_array_equal(x.to_numpy(), expected)


def test_axes_in_another_order():
    x = ds.Vector.field(2, ds.f64)
    ds.root.dense(ds.j, 3).dense(ds.i, 2).place(x)
    for i, j in np.ndindex(2, 3):
        x[i, j].y = 10.0 * i + j
    np.testing.assert_array_equal(x.to_numpy()[..., 1], [[0, 1, 2], [10, 11, 12]])
    x[1] = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(x.to_numpy()[1], np.arange(6.0).reshape(3, 2))
    assert x[0, 2].y == 2.0


def test_a_vector_that_was_read_writes_through():
    x = field(2, n=2)
    v = x[0]
    v[1] = 3.0
    v.x = 2.0
    assert x[0].to_list() == v.to_list() == [2.0, 3.0]
    x[1][0] = 9.0  # another element
    v.xy = [4.0, 5.0]
    assert x[0].to_list() == [4.0, 5.0]
    own = copy.copy(v)
    own[0] = 7.0
    (v + 0.0)[0] = 7.0
    assert x[0].to_list() == [4.0, 5.0]


def test_a_vector_that_is_out_of_date_is_no_way_to_write():
    x = field(2, n=2)

    @ds.kernel
    def step():
        for i in x:
            x[i] += 1.0

    v, w = x[0], x[1]
    step()
    assert v.to_list() == [0.0, 0.0]
    with pytest.raises(ds.FieldError, match=r"x\[0\] has changed"):
        v[0] = 5.0
    assert x[0].to_list() == [1.0, 1.0]
    w = x[1]
    w[1] = 5.0
    assert x[1].to_list() == [1.0, 5.0]


def test_a_vector_outlives_its_field():
    v = field(2, n=2)[1]
    v[0] = 5.0
    assert v.to_list() == [5.0, 0.0]


def test_vectors_of_structs():
    ball = ds.types.struct(p=ds.types.vector(2, ds.f64), m=ds.f64)
    x = ball.field(shape=2)
    x[1].p[1] = 3.0
    x[1].p.x -= 1.0
    assert x.p.to_numpy().tolist() == [[0, 0], [-1, 3]]


def test_a_component_that_is_set_after_the_block_is_noticed():
    x, loss = field(2, n=2), field()

    @ds.kernel
    def squares():
        for i in x:
            loss[None] += x[i].norm_sqr()

    tape = ds.Tape()
    with tape:
        squares()
    x[0].y = 2.0
    with pytest.raises(ds.GlobalDataAccessError, match=r"x\[0\].y = 2.0"):
        tape.backward(loss)


def test_a_component_on_a_tape_is_refused():
    """The other one is computed: as a part of the write it would be a constant."""
    x, y, loss = field(n=2), field(), field()

    @ds.kernel
    def make():
        x[None] = ds.Vector([y[None], 2 * y[None]])

    with pytest.raises(ds.FieldError, match="while a tape records"):
        with ds.Tape(loss):
            make()
            x[None][1] = 3.0


ROWS = [((2, 3), None), ((2, 3), 2), ((2, 3, 2), None), ((2, 3, 2), (2, 2))]


@pytest.mark.parametrize(("shape", "n"), ROWS)
@pytest.mark.parametrize("how", ["number", "slice", "dots", "list"])
def test_rows(shape, n, how):
    x = field(shape, n=n)
    expected = numbers(*shape, *x.element)
    x.from_numpy(expected)
    for depth in range(1, len(shape)):
        first = (1,) * depth
        row = numbers(*shape[depth:], *x.element, seed=depth)
        key = {"slice": (*first, slice(None)), "dots": (*first, ...)}.get(how, first)
        x[key if len(key) > 1 else key[0]] = row.tolist() if how == "list" else row
        expected[first] = row
    np.testing.assert_array_equal(x.to_numpy(), expected)


def test_a_row_is_all_or_nothing():
    x = field((2, 3), dtype=ds.i32, grad=False)
    for row in (
        [1, 2],
        [1, 2, 2**40],
        [1.0, 2.0, 3.0],
        1,
        [[1, 2, 3]],
        np.ma.array([1, 2, 3], mask=1),
    ):
        with pytest.raises(ds.ArgumentError):
            x[1] = row
    for key in (2, -1, slice(0, 1), (slice(None), 1), 1.0, "a"):
        with pytest.raises((ds.FieldError, ds.AccessError)):
            x[key] = [1, 2, 3]
    assert not x.to_numpy().any()


def test_a_row_of_a_time_axis_leaves_the_others_as_they_were():
    """Versions: a new state of step 2 is no change of what step 0 has read."""
    x, y = field((3, 2)), field((3, 2))

    @ds.kernel
    def step(t: ds.i32):
        for i in range(2):
            y[t, i] = x[t, i] ** 2

    x[0] = [3.0, 4.0]
    step(0)
    x[2] = [5.0, 6.0]
    y.grad[0] = [1.0, 1.0]
    step.grad(0)
    assert x.grad.to_numpy()[0].tolist() == [6.0, 8.0]
    step(1)
    x[1] = [1.0, 1.0]
    with pytest.raises(ds.GlobalDataAccessError, match="as it was when the kernel ran"):
        step.grad(1)


def test_rows_on_a_tape():
    """A row that is set is an input, a computed one that is overwritten has no effect any more."""
    x, w, loss = field((3, 2)), field(2), field()
    w.from_numpy(numbers(2))

    @ds.kernel
    def fill(t: ds.i32):
        for i in w:
            x[t, i] = w[i] ** 2

    @ds.kernel
    def total():
        for i, j in x:
            loss[None] += x[i, j] ** 2 * (i + 1)

    def program():
        fill(0)
        fill(1)
        x[1] = [0.5, 0.25]
        x[2] = np.array([2.0, 3.0])
        total()

    check(program, loss, w)
    tape = ds.Tape(loss)
    with tape:
        program()
    assert x.grad.to_numpy()[2].tolist() == [12.0, 18.0]
    first = w.grad.to_numpy()
    w.from_numpy(2 * w.to_numpy())
    tape.replay()
    tape.backward()
    assert x.to_numpy()[1:].tolist() == [[0.5, 0.25], [2.0, 3.0]]
    np.testing.assert_allclose(w.grad.to_numpy(), 8 * first)


def test_numbers_that_python_computed_from_a_tape_are_no_row():
    x, y, loss = field((2, 2)), field(2), field()
    with pytest.raises(ds.AutodiffError, match="constant"):
        with ds.Tape(loss):
            x[0] = 2 * y.to_numpy()
