"""`ds.math`: values of its functions against NumPy, and its types, which follow the defaults."""

import math

import numpy as np
import pytest

import diffsim as ds
from diffsim import math as tm
from diffsim.errors import AutodiffError, KernelTypeError
from tests.support.gradients import field, numbers
from tests.support.source import make

# ---- values

X, Y, T = numbers(3, seed=1), numbers(3, seed=2), numbers(3, seed=3, lo=0, hi=1)
N = X / np.linalg.norm(X)
I = -N + 0.2 * Y
I = I / np.linalg.norm(I)
Z, W = np.array([0.3, -1.2]), np.array([-0.7, 0.4])


def hermite(a, b, x):
    t = np.clip((x - a) / (b - a), 0, 1)
    return 3 * t**2 - 2 * t**3


def snell(i, n, eta):
    """The refracted direction by angles: the part along the surface grows by eta."""
    along = i - i.dot(n) * n
    sine = eta * np.linalg.norm(along)
    return eta * along - math.sqrt(1 - sine**2) * n


def turn(axis, angle):
    """The clockwise turn about a coordinate axis, 4 x 4."""
    c, s = math.cos(angle), math.sin(angle)
    made = np.eye(4)
    j, k = (axis + 1) % 3, (axis + 2) % 3
    made[j, j], made[j, k], made[k, j], made[k, k] = c, s, -s, c
    return made


def about(axis, angle):
    """The clockwise turn about an axis, 4 x 4: the exponential of its cross product's matrix."""
    x, y, z = -angle * axis / np.linalg.norm(axis)
    made = np.eye(4)
    generator = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    w, v = np.linalg.eig(generator)
    made[:3, :3] = (v @ np.diag(np.exp(w)) @ np.linalg.inv(v)).real
    return made


def c(z):
    return complex(*z)


def pair(z):
    return [z.real, z.imag]


A = numbers(3, 3, seed=5)
CASES = [
    ("clamp", (X, -0.2, 0.4), np.clip(X, -0.2, 0.4)),
    ("clamp", (X, -T, T), np.clip(X, -T, T)),
    ("clamp", (5, 0, 3), 3),
    ("mix", (X, Y, T), X * (1 - T) + Y * T),
    ("mix", (X, Y, 0.25), 0.75 * X + 0.25 * Y),
    ("mix", (2.0, 4.0, 0.25), 2.5),
    ("step", (0.1, X), np.where(X < 0.1, 0, 1)),
    ("step", (X, X), np.ones(3)),
    ("smoothstep", (-0.5, 0.7, X), hermite(-0.5, 0.7, X)),
    ("smoothstep", (0.7, -0.5, X), hermite(0.7, -0.5, X)),
    ("smoothstep", (-3.0, -2.0, X), np.ones(3)),
    ("fract", (3 * X,), 3 * X - np.floor(3 * X)),
    ("fract", (-0.25,), 0.75),
    ("mod", (3 * X, 0.7), np.mod(3 * X, 0.7)),
    ("mod", (-3, 5), 2),
    ("radians", (180.0 * X,), np.pi * X),
    ("degrees", (np.pi * X,), 180 * X),
    ("length", (X,), np.linalg.norm(X)),
    ("length", (-2.0,), 2.0),
    ("distance", (X, Y), np.linalg.norm(X - Y)),
    ("dot", (X, Y), X @ Y),
    ("cross", (X, Y), np.cross(X, Y)),
    ("cross", (Z, W), Z[0] * W[1] - Z[1] * W[0]),
    ("normalize", (X,), X / np.linalg.norm(X)),
    ("reflect", (I, N), (np.eye(3) - 2 * np.outer(N, N)) @ I),
    ("refract", (I, N, 0.7), snell(I, N, 0.7)),
    ("refract", (I, N, 1 / 0.7), snell(I, N, 1 / 0.7)),
    ("refract", (I, N, 100.0), np.zeros(3)),
    ("inverse", (A,), np.linalg.inv(A)),
    ("determinant", (A,), np.linalg.det(A)),
    ("eye", (3,), np.eye(3)),
    ("translate", (1, 2.5, 3), [[1, 0, 0, 1], [0, 1, 0, 2.5], [0, 0, 1, 3], [0, 0, 0, 1]]),
    ("scale", (1, 2.5, 3), np.diag([1, 2.5, 3, 1])),
    ("rotation2d", (math.pi / 6,), [[3**0.5 / 2, -0.5], [0.5, 3**0.5 / 2]]),
    ("rot_by_axis", (X, 0.7), about(X, 0.7)),
    ("rot_yaw_pitch_roll", (0.3, -0.4, 0.5), turn(2, 0.5) @ turn(0, -0.4) @ turn(1, 0.3)),
    ("rotation3d", (-0.4, 0.5, 0.3), turn(2, 0.5) @ turn(0, -0.4) @ turn(1, 0.3)),
    ("vdir", (0.7,), [math.cos(0.7), math.sin(0.7)]),
    ("cconj", (Z,), pair(c(Z).conjugate())),
    ("cmul", (Z, W), pair(c(Z) * c(W))),
    ("cinv", (Z,), pair(1 / c(Z))),
    ("cdiv", (Z, W), pair(c(Z) / c(W))),
    ("csqrt", (Z,), pair(c(Z) ** 0.5)),
    ("csqrt", (np.zeros(2),), [0, 0]),
    ("cpow", (Z, -1.7), pair(c(Z) ** -1.7)),
    ("cexp", (Z,), pair(np.exp(c(Z)))),
    ("clog", (Z,), pair(np.log(c(Z)))),
    ("inversesqrt", (T,), 1 / np.sqrt(T)),
    ("exp2", (X,), 2**X),
    ("log2", (T,), np.log(T) / math.log(2)),
    ("log2", (8.0,), 3.0),
    ("max", (X, Y, 0.1), np.maximum(np.maximum(X, Y), 0.1)),
    ("atan2", (X, Y), np.arctan2(X, Y)),
]


def given(a):
    return a if isinstance(a, (int, float)) else ds.Matrix(a)


@pytest.mark.parametrize(("name", "args", "expected"), CASES)
def test_in_python(name, args, expected):
    ds.init(default_fp=ds.f64)
    found = getattr(tm, name)(*map(given, args))
    assert isinstance(found, (int, float, ds.Matrix))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("fp", [ds.f32, ds.f64])
@pytest.mark.parametrize(("name", "args", "expected"), CASES)
def test_in_kernels(name, args, expected, fp):
    """Of vectors known at run time only, and of constants."""
    ds.init(default_fp=fp)
    space = {"ds": ds, "tm": tm, "out": of_type(np.shape(expected), fp), "math": math}
    read, fixed = [], []
    for k, a in enumerate(args):
        if isinstance(a, np.ndarray):
            space[f"x{k}"], space[f"c{k}"] = of_type(a.shape, fp), ds.Matrix(a)
            space[f"x{k}"][None] = a
        read.append(f"x{k}[None]" if isinstance(a, np.ndarray) else repr(a))
        fixed.append(f"c{k}" if isinstance(a, np.ndarray) else repr(a))
    rel = 1e-13 if fp is ds.f64 else 4e-6
    for given_as in (read, fixed):
        text = f"@ds.kernel\ndef run():\n    out[None] = tm.{name}({', '.join(given_as)})\n"
        make(text, space)
        space["run"]()
        np.testing.assert_allclose(space["out"].to_numpy(), expected, rtol=rel, atol=rel)


def of_type(shape, fp):
    if not shape:
        return ds.field(fp, shape=())
    t = ds.types.vector(*shape, fp) if len(shape) == 1 else ds.types.matrix(*shape, fp)
    return t.field(shape=())


def test_keywords_and_lists():
    ds.init(default_fp=ds.f64)

    @ds.kernel
    def run() -> tm.vec2:
        return tm.mix([0.1, 0.2], y=[1, 2], a=0.5)

    assert run().to_list() == [0.55, 1.1] == tm.mix([0.1, 0.2], a=0.5, y=[1, 2]).to_list()


def test_constants():
    assert (tm.pi, tm.e, tm.inf) == (math.pi, math.e, math.inf)
    assert tm.isnan(tm.nan)
    assert tm.isinf(tm.inf)


def test_whole_numbers_stay_whole_where_the_formula_does():
    n = ds.field(ds.i32, shape=3)

    @ds.kernel
    def run(i: ds.i32):
        n[0], n[1], n[2] = tm.clamp(i, 0, 3), tm.mod(-i, 5), tm.min(i, 2)

    run(7)
    assert n.to_numpy().tolist() == [3, 3, 2]


# ---- types


@pytest.mark.parametrize(("fp", "ip", "up"), [(ds.f32, ds.i32, ds.u32), (ds.f64, ds.i64, ds.u64)])
def test_types_follow_the_defaults_where_they_are_used(fp, ip, up):
    ds.init(default_fp=fp, default_ip=ip)
    assert [t.field(shape=2).dtype for t in (tm.vec2, tm.ivec3, tm.uvec4, tm.mat4)] == [
        fp,
        ip,
        up,
        fp,
    ]
    assert ds.field(tm.mat2, shape=3).dtype is fp
    assert tm.vec3.ndarray(4, needs_grad=True).grad.dtype is fp
    assert tm.vec2(1, 0.1).to_list() == [1, fp.numpy.type(0.1)]
    assert (tm.vec3(0).to_list(), tm.vec3(tm.vec2(1, 2), 3).to_list()) == ([0, 0, 0], [1, 2, 3])
    assert ds.types.struct(v=tm.vec3).members["v"] is ds.types.vector(3, fp)


@ds.func
def third(v: tm.vec3) -> ds.f64:
    return v.z


@ds.kernel
def annotated(a: tm.vec3, m: tm.mat2, x: ds.types.ndarray(dtype=tm.vec2, ndim=1)) -> tm.vec3:
    v: tm.vec2 = m @ x[0]
    return tm.vec3(v, third(a))


def test_annotations_follow_the_defaults_too():
    for fp in (ds.f32, ds.f64, ds.f32):
        ds.init(default_fp=fp)
        x = np.array([[1.0, 0.0]], fp.numpy)
        found = annotated([1, 2, 0.1], [[0.3, 0], [0, 1]], x)
        assert found.to_list() == [fp.numpy.type(0.3), 0, fp.numpy.type(0.1)]
        other = x.astype(np.float32 if fp is ds.f64 else np.float64)
        with pytest.raises(KernelTypeError, match="an element of x of annotated"):
            annotated([1, 2, 0.1], [[0.3, 0], [0, 1]], other)


# ---- parts of vectors


def test_several_elements_are_assigned_at_once():
    """Locals, rows, elements of fields (each index evaluated once), members of structs."""
    ds.init(default_fp=ds.f64)
    body = ds.types.struct(pos=tm.vec3, xy=tm.vec2)
    x, bodies, m = tm.vec3.field(shape=4), body.field(shape=3), tm.mat2.field(shape=())
    n = ds.field(ds.i32, shape=())

    @ds.kernel
    def run(a: tm.vec3) -> tm.mat3:
        v = tm.vec3(1, 2, 3)
        v.zx = a.xy
        v.xy *= 10
        w = tm.vec3(0)
        w.xy = w.zy = 7
        rows = tm.mat3(0)
        rows[1].zx = [a.x, 5]
        x[ds.atomic_add(n[None], 1)].zx = a.yz
        x[1].xy = x[1].yx + 3
        x[1].yz += a.xx
        x[2].fill(4)
        x[2].xz -= 1
        bodies[0].pos.yx = a.xy
        bodies[1].xy = [1, 2]  # a member of that name
        b = bodies[1]
        b.pos.xz = 9
        b.xy += 1
        b.pos.yz += b.xy
        bodies[2] = b
        m[None].fill(2)
        return tm.mat3(v, w, rows[1])

    assert run([1, 2, 4]).to_list() == [[20, 20, 1], [7, 7, 7], [5, 0, 1]]
    assert x.to_numpy().tolist() == [[4, 0, 2], [3, 4, 1], [3, 4, 3], [0, 0, 0]]
    assert n[None] == 1
    assert bodies.pos.to_numpy().tolist() == [[2, 1, 0], [0, 0, 0], [9, 2, 12]]
    assert bodies.xy.to_numpy().tolist() == [[0, 0], [1, 2], [2, 3]]
    assert m[None].to_list() == [[2, 2], [2, 2]]


def test_slices():
    """Of locals, of elements of fields, of results, of slices; with NumPy's meaning."""
    ds.init(default_fp=ds.f64)
    x = ds.Matrix.field(4, 5, ds.f64, shape=2)
    x.from_numpy(numbers(2, 4, 5))
    n = x.to_numpy()
    a = np.arange(1.0, 5.0)

    @ds.kernel
    def run(a: tm.vec4, i: ds.i32) -> tm.mat3:
        m = x[1]
        v = m[:3, :3] @ a[:3] + x[0][1:, 0] + m[i, :-2]
        w = x[1][:2][1]
        return [v, a[::-1][:3], (tm.translate(1, 2, 3)[:3, 3:] @ a[1:2]) * w[4]]

    expected = n[1][:3, :3] @ a[:3] + n[0][1:, 0] + n[1][2, :-2]
    rows = [expected, a[::-1][:3], np.array([1, 2, 3]) * 2 * n[1][1, 4]]
    np.testing.assert_allclose(run(a, 2).to_numpy(), rows, rtol=1e-14)


def test_fill_in_loops_and_branches():
    ds.init(default_fp=ds.f64)
    x = ds.field(ds.f64, shape=6)

    @ds.kernel
    def run():
        for i in x:
            v = tm.vec2(i, 1)
            for k in range(i):
                if k % 2 == 1:
                    v.fill(k)
                v.xy += 1
            x[i] = v.x

    run()
    # the last odd turn k sets k and adds 1; an even one after it adds 1 more
    assert x.to_numpy().tolist() == [0, 2, 2, 3, 4, 5]


def test_additions_to_several_elements_are_atomic():
    total = ds.Vector.field(3, ds.i32, shape=())

    @ds.kernel
    def run():
        for i in range(10000):
            total[None].zx += [i % 2, 1]

    run()
    assert total[None].to_list() == [10000, 0, 5000]


def test_all_and_any():
    found = ds.field(ds.i32, shape=6)

    @ds.kernel
    def run(a: tm.vec3, m: tm.mat2, n: tm.ivec2):
        found[0], found[1] = (a > 0).all(), (a > 0).any()
        found[2], found[3] = (m == m).all(), (m != m).any()
        found[4], found[5] = n.all(), n.any()

    run([1, 0, 2], np.eye(2), [0, 3])
    assert found.to_numpy().tolist() == [0, 1, 1, 0, 0, 1]
    a = ds.Vector([1.0, 0.0, 2.0])
    assert ((a > 0).all(), (a > 0).any(), (a >= 0).all(), (a <= -1).any()) == (
        False,
        True,
        True,
        False,
    )


def test_fill_in_python():
    v, x = ds.Vector([1.0, 2.0]), ds.Vector.field(2, ds.f32, shape=2)
    v.fill(3)
    assert v.to_list() == [3, 3]
    x[1].fill(1.5)
    assert x.to_numpy().tolist() == [[0, 0], [1.5, 1.5]]


# ---- functions of vectors in Python


def test_ops_of_vectors_in_python_are_vectors():
    v = ds.Vector([0.25, -1.0])
    assert ds.abs(v).to_list() == [0.25, 1]
    assert ds.max(v, 0.0, ds.Vector([0.0, 2.0])).to_list() == [0.25, 2]
    assert ds.select(v > 0, v, 0.0).to_list() == [0.25, 0]
    assert (v.to_list(), ds.isnan(v).any()) == ([0.25, -1], False)
    with pytest.raises(
        KernelTypeError, match=r"ds.max cannot combine the shapes \(2,\) and \(3,\)"
    ):
        ds.max(v, ds.Vector([1.0, 2.0, 3.0]))
    with pytest.raises(KernelTypeError, match=r"ds\.sin cannot be computed of"):
        ds.sin(v, v)


@pytest.mark.parametrize(
    "make_it",
    [
        lambda v: ds.sin(v),
        lambda v: ds.max(1.0, v),
        lambda v: tm.normalize(v),
        lambda v: tm.mix([0, 1, 2], v, 0.5),
        lambda v: tm.clamp(v.x, 0.0, 1.0),
        lambda v: tm.translate(v.x, 0.0, v.y),
        lambda v: tm.vec3([v.x, 1.0, 2.0]),
        lambda v: ds.atan2(1.0, v.x),
    ],
)
def test_on_a_tape_vectors_remember_where_they_come_from(make_it):
    """As a constant of the recorded program each would lose the gradient of v."""
    ds.init(default_fp=ds.f64)
    v = field(2, n=3)
    v.fill(0.5)
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        made = make_it(v[0])
        target = (
            field(n=made.shape if len(made.shape) == 2 else made.n)
            if isinstance(made, ds.Matrix)
            else field()
        )
        target[None] = made


@pytest.mark.parametrize(
    "put",
    [
        lambda made, v: made.fill(v.x),
        lambda made, v: made.__setitem__(1, v.x),
        lambda made, v: setattr(made, "z", v.y),
    ],
)
def test_on_a_tape_a_vector_remembers_what_is_put_into_it(put):
    ds.init(default_fp=ds.f64)
    v, w = field(2, n=3), field(2, n=3)
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        made = ds.Vector([0.0, 1.0, 2.0])
        put(made, v[0])
        w[0] = made


def test_a_type_as_a_template_argument():
    for fp in (ds.f32, ds.f64):
        ds.init(default_fp=fp)

        @ds.kernel
        def run(t: ds.template()) -> ds.f64:
            return t(0.1).sum()

        assert run(tm.vec2) == 2 * float(fp.numpy.type(0.1))


def test_what_an_ended_tape_read_does_not_hide_what_this_one_reads():
    ds.init(default_fp=ds.f64)
    v, w = field(2, n=3), field(2, n=3)
    with ds.Tape():
        old, number = v[0], v[0].x
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        w[0] = old + v[1]
    with pytest.raises(AutodiffError, match="that Python took from"), ds.Tape():
        w[0] = [ds.atan2(number, v[1].x), 0, 0]
