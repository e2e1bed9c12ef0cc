"""What Python and NumPy do with fields, vectors and structs: right, or refused with advice; never a lie."""

import math
import operator

import numpy as np
import pytest

OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift,
    operator.rshift, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
CONVERSIONS = [
    float, int, complex, round, abs, bool, len, list, tuple, iter, reversed, range, sum, max, sorted,
    operator.neg, operator.pos, operator.invert, operator.index, math.sin, math.floor,
    lambda x: divmod(x, 1), lambda x: 3 in x, lambda x: f"{x:.3f}",
]  # fmt: skip
OF_ONE_NUMBER = [float, int, complex, round, math.sin, math.floor, CONVERSIONS[-1]]
KINDS = ["scalars", "one", "vectors", "structs", "array", "gradient"]


def make(ds, kind):
    """A field of that kind."""
    x = ds.field(ds.f32, shape=3, needs_grad=True, name="x")
    x.from_numpy(np.array([1, 2, 4], np.float32))
    if kind == "one":
        return ds.field(ds.f64, shape=(), name="x")
    if kind == "vectors":
        return ds.Vector.field(2, ds.f32, shape=(2, 3), name="x")
    if kind == "structs":
        return ds.types.struct(a=ds.f32, b=ds.types.vector(2, ds.f32)).field(shape=3, name="x")
    if kind == "array":
        return ds.ndarray(ds.i32, 4)
    return x.grad if kind == "gradient" else x


def refused(ds, do, *words):
    """The error of doing it: it names this file's line, and has advice."""
    with pytest.raises(ds.DiffsimError) as found:
        do()
    error = found.value
    assert error.hint
    assert error.span.file == __file__
    for word in words:
        assert word in str(error)
    return error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compute", OPERATORS, ids=lambda f: f.__name__)
def test_operators_on_fields_are_refused_from_either_side(cpu, kind, compute):
    x = make(cpu, kind)
    others = [2, 2.5, True, np.float32(2), np.ones(3), [1, 2], cpu.Vector([1.0, 2.0])]
    for other in others:
        for a, b in ((x, other), (other, x)):
            if isinstance(other, list) and a is other and compute is operator.mul:
                continue  # a list times something asks for a whole number: refused below
            error = refused(cpu, lambda a=a, b=b: compute(a, b), "to_numpy()")
            assert isinstance(error, TypeError)
    refused(cpu, lambda: [1, 2] * x)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_no_numbers_and_no_lists(cpu, kind):
    for convert in CONVERSIONS:
        x = make(cpu, kind)
        if kind == "one" and convert in OF_ONE_NUMBER:
            assert convert(x) == convert(x[None])
            continue
        assert isinstance(refused(cpu, lambda c=convert, x=x: c(x)), TypeError)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_equal_to_themselves_and_can_be_keys(cpu, kind):
    x, y = make(cpu, kind), make(cpu, kind)
    assert x == x
    assert x != y
    assert not x == y
    assert x is not None
    assert x != None  # noqa: E711
    assert {x: 1, y: 2}[y] == 2
    assert x in [y, x]
    assert x not in [y]
    assert [y, x].index(x) == 1
    assert len({x, y, x}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_not_there_are_refused(cpu, kind):
    x = make(cpu, kind)
    for name, meant in (("gard", "grad"), ("to_nunpy", "to_numpy"), ("from_nunpy", "from_numpy")):
        refused(
            cpu, lambda name=name: setattr(x, name, 0), meant if kind != "structs" else "members"
        )
        error = refused(cpu, lambda name=name: getattr(x, name))
        assert isinstance(error, AttributeError)
        assert not hasattr(x, name)
    for name in ("fill", "to_numpy", "shape", "grad", "name", "needs_grad"):
        refused(cpu, lambda name=name: setattr(x, name, 3), name)
    assert callable(x.fill)


def test_types_of_fields_stay(cpu):
    x = make(cpu, "scalars")
    for name in ("dtype", "element", "number", "is_grad", "versions"):
        refused(cpu, lambda name=name: setattr(x, name, None), name)
        refused(cpu, lambda name=name: delattr(x, name), name)
    assert x.dtype is cpu.f32


def test_a_class_derived_from_fields_may_have_attributes(cpu):
    class Named(cpu.Field):
        pass

    x = Named(cpu.f32)
    x.place((2,))
    x.unit = "m"
    assert x.unit == "m"
    del x.unit
    refused(cpu, lambda: setattr(x, "fill", 3), "fill")
    refused(cpu, lambda: setattr(x, "dtype", cpu.f64), "dtype")


# ---- NumPy


@pytest.mark.parametrize("kind", ["scalars", "one", "vectors", "array", "gradient"])
def test_numpy_gets_a_copy(cpu, kind):
    x = make(cpu, kind)
    want = x.to_numpy()
    for convert in (np.asarray, np.array, np.asanyarray, np.copy):
        got = convert(x)
        assert got.dtype == want.dtype
        assert (got == want).all()
        got[...] = 7
        assert (x.to_numpy() == want).all()
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True, dtype=np.int8).dtype == np.int8
    if want.shape:  # of a list of numbers NumPy asks for float()
        assert np.array([x, x]).shape == (2, *want.shape)
    refused(cpu, lambda: np.array(x, copy=False), "copy")
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, copy=False)


def test_functions_of_numpy_compute_with_a_copy(cpu):
    x, y = make(cpu, "scalars"), make(cpu, "scalars")
    a = x.to_numpy()
    y.fill(3)
    for f in (
        np.sum,
        np.mean,
        np.max,
        np.sin,
        np.sqrt,
        np.isnan,
        np.cumsum,
        np.linalg.norm,
        np.sort,
        np.shape,
    ):
        assert np.array_equal(f(x), f(a)), f
    assert np.allclose(x, a)
    assert np.array_equal(np.concatenate([x, a, y]), np.concatenate([a, a, y.to_numpy()]))
    assert np.array_equal(np.maximum(x, y), np.maximum(a, 3))
    assert np.add.reduce(x) == a.sum()
    np.testing.assert_allclose(x, a)


def test_numpy_does_not_write_to_a_copy(cpu):
    x = make(cpu, "scalars")
    before = x.to_numpy()
    refused(cpu, lambda: np.copyto(x, np.ones(3)), "from_numpy")
    refused(cpu, lambda: np.put(x, 0, 1), "from_numpy")
    refused(cpu, lambda: np.sin(np.ones(3), out=x), "from_numpy")
    refused(cpu, lambda: np.cumsum(np.ones(3), out=x), "from_numpy")
    refused(cpu, lambda: np.add.at(x, [0], 1), "from_numpy")
    refused(cpu, lambda: np.fill_diagonal(make(cpu, "vectors"), 1), "from_numpy")
    assert (x.to_numpy() == before).all()


def test_on_a_tape_numpy_makes_no_silent_constants(cpu):
    x, loss = make(cpu, "scalars"), cpu.field(cpu.f64, shape=(), needs_grad=True)
    free = cpu.field(cpu.f32, shape=3)
    with cpu.Tape():
        for f in (
            np.sum,
            np.sin,
            np.mean,
            np.sort,
            lambda f: np.concatenate([f, f]),
            np.linalg.norm,
        ):
            with pytest.raises(cpu.AutodiffError, match=r"to_numpy\(\)"):
                loss[None] = f(x)
            f(free)
            f(x.to_numpy())
        assert np.shape(x) == (3,)  # to look is free
        assert np.isfinite(x).all()
        assert np.allclose(x, [1, 2, 4])
        assert (np.asarray(x) == [1, 2, 4]).all()
        assert "1. 2. 4." in str(x)
    assert np.sum(x) == 7


def test_a_field_in_a_list_is_no_number(cpu):
    """NumPy would read it, and a tape would not know."""
    x, one = cpu.Vector.field(2, cpu.f32, shape=3), make(cpu, "one")
    refused(cpu, lambda: x.__setitem__(0, [one, 1.0]))
    refused(cpu, lambda: x.__setitem__(0, one))
    refused(cpu, lambda: x.fill([one, one]))
    refused(cpu, lambda: x.from_numpy([[one, one]] * 3))
    refused(cpu, lambda: cpu.Vector([one, 1.0]))
    refused(cpu, lambda: cpu.Matrix([[one, 1.0], [1.0, 1.0]]))
    refused(cpu, lambda: cpu.Vector([1.0, 2.0]) + [one, one])


def test_matplotlib_draws_fields(cpu):
    plt = pytest.importorskip("matplotlib.pyplot")
    x, y, image = make(cpu, "scalars"), make(cpu, "scalars"), cpu.field(cpu.f32, shape=(4, 5))
    y.from_numpy(np.array([3, 1, 2], np.float32))
    image.from_numpy(np.arange(20, dtype=np.float32).reshape(4, 5))
    figure, axes = plt.subplots()
    (line,) = axes.plot(x, y)
    assert line.get_xydata().tolist() == [[1, 3], [2, 1], [4, 2]]
    assert (axes.imshow(image).get_array() == image.to_numpy()).all()
    assert axes.scatter(x, y, c=y).get_offsets().tolist() == [[1, 3], [2, 1], [4, 2]]
    axes.contour(image)
    axes.bar(x, y)
    axes.hist(x)
    plt.close(figure)


# ---- indices and display


def test_wrong_indices(cpu):
    x, v = make(cpu, "scalars"), cpu.Vector.field(2, cpu.f32, shape=3)
    keys = [
        1.5,
        -1,
        3,
        10**5000,
        True,
        np.True_,
        None,
        ...,
        "a",
        slice(0, 2),
        (0, 0),
        [0, 1],
        np.ones(3) > 0,
    ]
    for key in keys:
        for f in (x, v, make(cpu, "structs")):
            kinds = cpu.FieldError, cpu.AccessError
            assert isinstance(refused(cpu, lambda f=f, key=key: f[key]), kinds)
            refused(cpu, lambda f=f, key=key: f.__setitem__(key, 1.0))


def test_what_fields_look_like(cpu):
    x = make(cpu, "scalars")
    assert repr(x) == "<field x: f32, shape (3,), needs_grad=True>"
    assert str(x) == "<field x: f32, shape (3,), needs_grad=True>\n[1. 2. 4.]"
    assert f"{x}" == str(x)
    assert repr(cpu.field(cpu.f64)) == "<field f64, not placed>"
    assert repr(make(cpu, "array")) == "<ndarray i32, shape (4,)>"
    assert repr(make(cpu, "structs")) == "<field x: struct(a: f32, b: vec2 f32), shape (3,)>"
    assert len(str(cpu.field(cpu.f32, shape=(2000, 1000)))) < 600
    assert "fill" in dir(x)
    assert "gard" not in dir(x)


def test_structs_with_vectors_compare(cpu):
    ball = cpu.types.struct(a=cpu.f32, b=cpu.types.vector(2, cpu.f32))
    x = ball.field(shape=3)
    x[1] = ball(a=1, b=[2, 3])
    x[2] = x[1]
    assert x[1] == x[2]
    assert x[1] == ball(a=1, b=[2, 3])
    assert ball(a=1, b=[2, 3]) == x[1]
    assert x[1] != x[0]
    assert ball(b=[1, 2]) != ball(b=[1, 3])
    refused(cpu, lambda: x[0].shape, "members")
    refused(cpu, lambda: setattr(x[0], "q", 1), "members")
    refused(cpu, lambda: setattr(ball(), "q", 1), "members")


# ---- vectors and matrices


def test_vectors_have_the_operators_of_kernels(cpu):
    v, w = cpu.Vector([7, -5, 3]), cpu.Vector([2, 2, 1])
    for compute in OPERATORS:
        if compute in (operator.matmul, operator.pow, operator.lshift, operator.rshift):
            continue
        want = compute(np.array([7, -5, 3]), np.array([2, 2, 1])).tolist()
        assert compute(v, w).to_list() == want, compute
        assert compute(v, np.array([2, 2, 1])).to_list() == want, compute
        assert compute(np.array([7, -5, 3]), w).to_list() == want, compute
        assert compute(7, w).to_list() == compute(7, np.array([2, 2, 1])).tolist()
        assert compute(np.int64(7), w).to_list() == compute(7, np.array([2, 2, 1])).tolist()
    assert (v**2).to_list() == [49, 25, 9]
    assert (2**w).to_list() == [4, 4, 2]
    assert (v << w).to_list() == [28, -20, 6]
    assert (~v).to_list() == [-8, 4, -4]
    assert (+v).to_list() == [7, -5, 3]
    a = np.array([[1, 2], [3, 4]])
    assert (a @ cpu.Vector([1, 1])).to_list() == [3, 7]
    refused(cpu, lambda: v**-1)
    refused(cpu, lambda: cpu.Vector([1.5, 2.0]) & 1)
    refused(cpu, lambda: v + cpu.Vector([1, 2]))


def test_divisions_by_zero_are_as_in_kernels(cpu):
    """And as quiet: a warning is an error here."""
    zero, one = cpu.Vector([0.0, 0.0]), cpu.Vector([1.0, -1.0])
    assert zero.norm_inv() == math.inf
    assert all(map(math.isnan, zero.normalized()))
    assert (one / zero).to_list() == [math.inf, -math.inf]


def test_elements_of_vectors(cpu):
    v = cpu.Vector([1.0, 2.0, 3.0])
    v.xy = [5.0, 6.0]
    v.z += 1.0
    v.zx += 1.0
    assert v.to_list() == [6.0, 6.0, 5.0]
    assert v.cast(cpu.i32).to_list() == [6, 6, 5]
    assert v.norm(eps=1.0) == math.sqrt(98)
    for name in ("q", "w", "xx", "norms", "entires", "xw"):
        refused(cpu, lambda name=name: setattr(v, name, [1.0, 2.0]), name)
    for name in ("w", "norms", "xw"):
        assert isinstance(refused(cpu, lambda name=name: getattr(v, name), name), AttributeError)
    for key in (None, ..., True, 1.5, "x", 3, (0, 0), 10**5000):
        refused(cpu, lambda key=key: v[key])
        refused(cpu, lambda key=key: v.__setitem__(key, 1.0))
    n = cpu.Vector([1, 2], cpu.u8)
    for value in (2.5, 300, -1, "3", None, 1j, [1, 2, 3], np.nan, 10**400):
        refused(cpu, lambda value=value: n.__setitem__(0, value))
    assert n.to_list() == [1, 2]


def test_on_a_tape_numpy_makes_no_constants_of_vectors(cpu):
    x = cpu.Vector.field(2, cpu.f64, shape=2, needs_grad=True)
    x.fill(1.0)
    with cpu.Tape():
        v = x[0]
        with pytest.raises(cpu.AutodiffError, match="stop_grad"):
            x[1] = np.sin(v)
        with pytest.raises(cpu.AutodiffError, match="stop_grad"):
            x[1] = np.ones(2) * v
        assert np.isfinite(v).all()
    assert np.allclose(np.sin(x[0]), math.sin(1))
