"""`vec3(1, 2, 3)`, `vec3.field(...)`, `v.zyx`: names that Taichi programs use, against NumPy."""

import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, DtypeError, KernelTypeError
from tests.support.gradients import check, field, numbers

vec2, vec3 = ds.types.vector(2, ds.f64), ds.types.vector(3, ds.f64)
mat2 = ds.types.matrix(2, 2, ds.f64)
ivec2 = ds.types.vector(2, ds.i32)

MADE = {
    "numbers": (lambda: vec3(1, 0.1, 3), [1, 0.1, 3]),
    "one for all": (lambda: vec3(0.1), [0.1, 0.1, 0.1]),
    "a list": (lambda: vec3([1, 2, 0.3]), [1, 2, 0.3]),
    "a vector": (lambda: vec3(vec3(1, 2, 3)), [1, 2, 3]),
    "a vector and a number": (lambda: vec3(vec2(1, 0.2), 3), [1, 0.2, 3]),
    "a matrix of numbers": (lambda: mat2(1, 2, 3, 0.4), [[1, 2], [3, 0.4]]),
    "rows": (lambda: mat2([1, 2], [3, 0.4]), [[1, 2], [3, 0.4]]),
    "vectors as rows": (lambda: mat2(vec2(1, 2), vec2(3, 0.4)), [[1, 2], [3, 0.4]]),
    "a list of rows": (lambda: mat2([[1, 2], [3, 0.4]]), [[1, 2], [3, 0.4]]),
    "a matrix of one number": (lambda: mat2(0.1), [[0.1, 0.1], [0.1, 0.1]]),
    "whole numbers of floats": (lambda: ivec2(1.7, 2), [1, 2]),
}


@pytest.mark.parametrize("name", MADE)
def test_in_python(name):
    make, expected = MADE[name]
    assert make().to_list() == expected


@pytest.mark.parametrize("fp", [ds.f32, ds.f64])
def test_in_kernels(fp):
    """With all digits of f64, whatever the default float is."""
    ds.init(default_fp=fp)
    v, m, w = vec3.field(shape=5), mat2.field(shape=5), ivec2.field(shape=())

    @ds.kernel
    def run(x: ds.f64):
        v[0], v[1], v[2] = vec3(1, 0.1, x), vec3(0.1), vec3(x)
        v[3], v[4] = vec3([1, x, 0.3]), vec3(vec2(x, 0.2), 3)
        m[0], m[1] = mat2(1, x, 3, 0.4), mat2([1, x], [3, 0.4])
        m[2], m[3] = mat2(vec2(1, x), vec2(3, 0.4)), mat2([[1, x], [3, 0.4]])
        m[4] = mat2(x)
        w[None] = ivec2(x, 2)

    run(1.7)
    rows = [[1, 0.1, 1.7], [0.1] * 3, [1.7] * 3, [1, 1.7, 0.3], [1.7, 0.2, 3]]
    assert v.to_numpy().tolist() == rows
    assert m.to_numpy().tolist() == [[[1, 1.7], [3, 0.4]]] * 4 + [[[1.7, 1.7], [1.7, 1.7]]]
    assert w[None].to_list() == [1, 2]


def test_gradients():
    ds.init(default_fp=ds.f64)
    x, loss = field(3), field()
    x.from_numpy(numbers(3))

    @ds.kernel
    def run():
        a = vec3(vec2(x[0], 2), x[1])
        m = mat2([x[0], 0.1], [x[1], x[2]])
        b = a.zyx * vec3(x[2])
        loss[None] = a.dot(b) + m.determinant() + b.xxy.norm_sqr() * a.yx.sum()

    check(run, loss, x)


def test_fields_of_a_type():
    f = vec3.field(shape=(2, 3), needs_grad=True)
    g = ds.field(mat2, shape=4)
    h = vec2.ndarray(5, needs_grad=True)
    assert (f.shape, f.n, f.dtype, f.needs_grad) == ((2, 3), 3, ds.f64, True)
    assert (g.shape, g.n, g.m, g.dtype) == ((4,), 2, 2, ds.f64)
    assert (h.shape, h.grad.n) == ((5,), 2)
    placed = vec3.field()
    ds.root.dense(ds.i, 4).place(placed)
    assert placed.to_numpy().shape == (4, 3)
    with pytest.raises(DtypeError, match="i32 cannot have a gradient"):
        ivec2.field(shape=2, needs_grad=True)


@pytest.mark.parametrize("elements", [(), (1, 2), ("a", "b", "c"), ([1, 2],)])
def test_what_makes_no_vector(elements):
    with pytest.raises(KernelTypeError, match="a vector of 3 f64 cannot be made of"):
        vec3(*elements)


def test_elements_by_several_names():
    v = ds.Vector([1.0, 2.0, 3.0, 4.0])
    assert v.wzy.to_list() == [4, 3, 2]
    assert v.xx.norm() == pytest.approx(2**0.5)
    with pytest.raises(AttributeError):
        vec2(1, 2).xz
    with pytest.raises(AttributeError):
        mat2(1).xy


def test_on_a_tape_they_remember_where_they_come_from():
    ds.init(default_fp=ds.f64)
    v, w = field(2, n=3), field(2, n=2)
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        w[0] = v[0].zx
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        w[0] = vec2(v[0].x, 1)
