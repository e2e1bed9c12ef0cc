"""Gradients of `ds.math` against central differences, and what they are at ties and edges."""

import numpy as np
import pytest

import diffsim as ds
from diffsim import math as tm
from tests.support.gradients import central, check, field, numbers
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("quick_code")

# name: the call, of vectors a and b of 3, s in (0.2, 0.8) of 3, a matrix m of 3 x 3, and numbers p and q
CALLS = {
    "clamp": "tm.clamp(a, -0.3, s)",
    "mix": "tm.mix(a, b, s)",
    "mix of numbers": "tm.mix(a, 1.0, q)",
    "step": "tm.step(p, a) * b",
    "smoothstep": "tm.smoothstep(-s, s, a)",
    "smoothstep of numbers": "tm.smoothstep(-0.2, q, a)",
    "fract": "tm.fract(5 * a)",
    "mod": "tm.mod(5 * a, s)",
    "radians": "tm.degrees(tm.radians(a) * p) * 0.01",
    "length": "tm.length(a) * b",
    "length of a number": "tm.length(p) * b",
    "distance": "tm.distance(a, b) * s",
    "dot": "tm.dot(a, b) * s",
    "cross": "tm.cross(a, b)",
    "normalize": "tm.normalize(a)",
    "reflect": "tm.reflect(a, b)",
    "refract": "tm.refract(a, b, q)",
    "refract totally": "tm.refract(0.1 * a, 0.1 * b, q + 1.5) + a",
    "inverse": "tm.inverse(m) @ a",
    "determinant": "tm.determinant(m) * a",
    "translate": "(tm.translate(p, q, p * q) @ tm.vec4(a, q)).xyz",
    "scale": "(tm.scale(p, q, p * q) @ tm.vec4(a, q)).zyx",
    "rotation2d": "tm.vec3(tm.rotation2d(p) @ a.xy, q)",
    "rotation3d": "(tm.rotation3d(p, q, p * q) @ tm.vec4(a, q)).xyz",
    "rot_by_axis": "(tm.rot_by_axis(b, p) @ tm.vec4(a, q)).xyz",
    "rot_yaw_pitch_roll": "(tm.rot_yaw_pitch_roll(p, q, 2 * p) @ tm.vec4(a, q)).xyz",
    "complex numbers": "tm.vec3(tm.cdiv(tm.cmul(a.xy, tm.cconj(b.xy)), tm.cinv(s.xy)), p)",
    "complex functions": "tm.vec3(tm.cexp(a.xy) + tm.csqrt(b.xy), 0) + tm.vec3(0, tm.clog(s.xy))",
    "cpow": "tm.vec3(tm.cpow(a.xy, p), q)",
    "vdir": "tm.vec3(tm.vdir(p), q)",
    "exp2 and log2": "tm.exp2(a) * tm.log2(s)",
    "inversesqrt": "tm.inversesqrt(s)",
    "slices": "tm.rot_by_axis(b, p)[:3, :3] @ a[::-1] + tm.vec3(m[1:, 0] * s[:2], m[0, 2])",
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "in a loop"])
def test_gradients(name, repeated):
    ds.init(default_fp=ds.f64)
    a, b, s, m, p, q = (
        field(4, n=3),
        field(4, n=3),
        field(4, n=3),
        field(n=(3, 3)),
        field(),
        field(),
    )
    a.from_numpy(numbers(4, 3, seed=1))
    b.from_numpy(numbers(4, 3, seed=2))
    s.from_numpy(numbers(4, 3, seed=3, lo=0.2, hi=0.8))
    m.from_numpy(numbers(3, 3, seed=4) + 2 * np.eye(3))
    p[None], q[None] = 0.37, 0.61
    loss = field()
    space = {"ds": ds, "tm": tm, "A": a, "B": b, "S": s, "M": m, "P": p, "Q": q, "loss": loss}
    again = "for k in range(3):\n            " if repeated else ""
    make(
        f"""
@ds.kernel
def run():
    for i in A:
        a, b, s, m, p, q = A[i], B[i], S[i], M[None], P[None], Q[None]
        {again}a = 0.9 * a + 0.3 * ({CALLS[name]})
        loss[None] += a.dot(tm.vec3(0.3, -0.8, 0.5)) + a.norm_sqr()
""",
        space,
    )
    check(space["run"], loss, a, b, s, m, p, q)


def gradients(function, *points):
    """The derivatives of a sum of function(point) with respect to each number of each point, f64."""
    ds.init(default_fp=ds.f64)
    fields = []
    for k in range(len(points[0])):
        first = np.asarray(points[0][k], float)
        fields.append(field(len(points), n=first.shape[0] if first.ndim else None))
        fields[-1].from_numpy(np.array([point[k] for point in points], float))
    loss = field()
    names = ", ".join(f"f{k}[i]" for k in range(len(fields)))
    space = {"ds": ds, "function": function, "loss": loss}
    space |= {f"f{k}": f for k, f in enumerate(fields)}
    make(
        f"@ds.kernel\ndef run():\n    for i in f0:\n        loss[None] += function({names})\n",
        space,
    )
    with ds.Tape(loss):
        space["run"]()
    return [f.grad.to_numpy().tolist() for f in fields]


@ds.func
def total(v):
    return v.dot(tm.vec3(1))


@ds.func
def refracted(i, n, eta):
    return total(tm.refract(i, n, eta))


@ds.func
def reflected(x, n):
    return total(tm.reflect(x, n))


@ds.func
def real_root(z):
    return tm.csqrt(z).x


@ds.func
def normalized_with_eps(v):
    return total(v.normalized(1e-9))


def test_clamp_at_its_ends():
    """At both ends x has derivative 1; where all three are equal too; beyond them the end has it."""
    points = [(0, 0, 1), (1, 0, 1), (2, 2, 2), (-1, 0, 1), (5, 0, 1)]
    assert gradients(tm.clamp, *points) == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_smoothstep_beyond_its_edges_and_with_equal_edges():
    points = [(0, 1, -1), (0, 1, 0), (0, 1, 1), (0, 1, 2), (1, 1, 0), (1, 1, 1), (1, 1, 2)]
    assert gradients(tm.smoothstep, *points) == [[0] * 7] * 3
    assert gradients(tm.smoothstep, (0, 2, 1)) == [[-0.375], [-0.375], [0.75]]  # 6t(1 - t) / 2, ...


def test_step_and_fract_and_mod_at_their_jumps():
    assert gradients(tm.step, (1, 1), (0, 1), (1, 0)) == [[0, 0, 0], [0, 0, 0]]
    assert gradients(tm.fract, (2,), (-3,), (0.5,)) == [[1, 1, 1]]
    assert gradients(tm.mod, (6, 2), (-6, 2), (7, 2), (-7, 2)) == [[1] * 4, [-3, 3, -3, 4]]


def test_mod_where_the_quotient_rounds_up_to_a_whole_number():
    """17 times the double 0.1 is more than the double 1.7, and their quotient rounds to 17."""
    assert (1.7 // 0.1, np.floor(1.7 / 0.1)) == (16, 17)
    assert gradients(tm.mod, (1.7, 0.1), (-1.7, 0.1)) == [[1, 1], [-16, 17]]


def test_length_and_distance_at_0():
    zero = [0, 0, 0]
    (found,) = gradients(tm.length, (zero,), ([3, 0, 4],))
    np.testing.assert_allclose(found, [zero, [0.6, 0, 0.8]], rtol=1e-15)
    assert found[0] == zero
    assert gradients(tm.length, (0,), (-2,)) == [[0, -1]]
    a = [1, 2, 3]
    assert gradients(tm.distance, (a, a)) == [[zero], [zero]]


def test_normalize_at_0():
    """The direction of 0 is not a number, as its value; with eps both are finite."""
    ds.init(default_fp=ds.f64)
    v = field(n=3)

    @ds.kernel
    def run() -> tm.vec3:
        return tm.normalize(v[None])

    with np.errstate(all="ignore"):
        assert np.isnan(run().to_numpy()).all()
        assert np.isnan(tm.normalize(ds.Vector([0.0, 0.0])).to_numpy()).all()
    assert np.isfinite(gradients(normalized_with_eps, ([0, 0, 0],))).all()


def test_refract_in_total_reflection_and_at_its_limit():
    """Beyond the limit the result is 0, with derivative 0; at the limit the root has derivative 0."""
    along, up = [1.0, 0, 0], [0, 1.0, 0]
    assert gradients(refracted, (along, up, 2.0)) == [[[0] * 3], [[0] * 3], [0]]
    at_limit = gradients(refracted, (along, up, 1.0))
    # eta x - (eta d + 0) n: to x eta - eta n sum(n), to n -eta x sum(n), to eta sum(x)
    assert at_limit == [[[1, 0, 1]], [[-1, 0, 0]], [1]]


def test_reflect_of_a_normal_that_is_no_unit_vector():
    found = gradients(reflected, ([1, 2, 3], [0, 2, 0]))
    # x - 2 (n . x) n: to x 1 - 2 n sum(n), to n -2 (x sum(n) + n . x)
    assert found == [[[1, -7, 1]], [[-2 * (1 * 2 + 4), -2 * (2 * 2 + 4), -2 * (3 * 2 + 4)]]]


def test_complex_functions_at_0_and_on_the_negative_axis():
    assert gradients(real_root, ([0, 0],)) == [[[0, 0]]]
    (((x, y),),) = gradients(real_root, ([-4, 0],))
    assert (round(x, 12), round(y, 12)) == (0, 0.25)  # d sqrt(z) = dz / (2 * 2j)


# ---- in programs


def test_several_elements_assigned_and_filled():
    ds.init(default_fp=ds.f64)
    x, y, loss = field(3, n=3), field(3, n=3), field()
    x.from_numpy(numbers(3, 3))

    @ds.kernel
    def run():
        for i in x:
            v = tm.vec3(x[i].zx, 0.5)
            v.zy = x[i].yz * v.yx
            if i > 0:
                v.xz *= v.zx
            if i > 1:
                v.fill(x[i].y)
                v.xy += x[i].zz
            y[i].zx = v.xy * x[i].x
            y[i].y = v.z

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i].dot(tm.vec3(1, 2, 3)) + y[i].norm_sqr()

    def program():
        run()
        add()

    check(program, loss, x)


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_a_step_that_overwrites_parts_of_its_state(in_place):
    ds.init(default_fp=ds.f64)
    x, loss = field(4, n=3), field()
    start = numbers(4, 3)

    @ds.kernel
    def step():
        for i in x:
            x[i].xz = tm.mix(x[i].zy, x[i].xx * x[i].y, 0.3)

    @ds.kernel
    def shift():
        for i in x:
            x[i].zy += 0.1 * tm.vec2(1)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += tm.length(x[i])

    def value(at):
        x.from_numpy(at)
        loss[None] = 0
        for _ in range(3):
            step()
            shift()
        measure()
        return loss[None]

    def differentiate():
        x.from_numpy(start)
        loss[None] = 0
        with ds.Tape(loss, in_place="save") if in_place == "save" else ds.Tape(loss):
            for _ in range(3):
                step()
                shift()
            measure()
        return x.grad.to_numpy()

    if in_place == "refuse":
        with pytest.raises(ds.GlobalDataAccessError):
            differentiate()
        return
    found = differentiate()
    np.testing.assert_allclose(found, central(value, start), rtol=1e-6, atol=1e-8)


def test_methods_arguments_and_second_derivatives():
    """In a class, of an array argument, through ds.grad."""
    ds.init(default_fp=ds.f64)

    @ds.func
    def energy(v: tm.vec3) -> ds.f64:
        return tm.smoothstep(0.0, 2.0, tm.length(v)) + tm.dot(v, tm.cross(v.yzx, v.zxy))

    @ds.data_oriented
    class Points:
        def __init__(self):
            self.x = field(3, n=3)
            self.total = field()

        @ds.kernel
        def run(self, w: ds.types.ndarray(dtype=tm.vec3, ndim=1), k: tm.vec2):
            for i in self.x:
                force = ds.grad(energy)(self.x[i])
                self.total[None] += tm.dot(force, w[i]) * k.y + tm.clamp(force.x, k.x, 10.0)

    points = Points()
    points.x.from_numpy(numbers(3, 3))
    w = ds.Vector.ndarray(3, ds.f64, 3, needs_grad=True)
    w.from_numpy(numbers(3, 3, seed=9))
    check(lambda: points.run(w, [0.1, 0.7]), points.total, points.x, w)


def test_of_values_on_a_tape():
    """Arithmetic in Python on what a kernel returns."""
    ds.init(default_fp=ds.f64)
    x, out, loss = field(2), field(), field()
    x.from_numpy(np.array([0.3, 0.8]))

    @ds.kernel
    def read(i: ds.i32) -> ds.f64:
        return x[i] * x[i]

    @ds.kernel
    def add():
        loss[None] += out[None]

    def program():
        a, b = read(0), read(1)
        c = tm.mix(a, b, tm.smoothstep(0.0, 1.0, a)) + tm.fract(3 * b) + tm.degrees(a) * 0.01
        out[None] = c * tm.clamp(b, 0.0, 0.5) + tm.step(a, b) * a
        add()

    check(program, loss, x)
    with (
        pytest.raises(ds.KernelTypeError, match="cannot be computed of a value on a tape"),
        ds.Tape(),
    ):
        tm.isnan(read(0))


@pytest.mark.parametrize(("t", "most"), [(ds.f16, 6e4), (ds.f32, 1e38), (ds.f64, 1e300)])
def test_quotients_by_constants(t, most):
    """Also by those whose reciprocal the type does not hold."""
    x, y = (ds.field(t, shape=(), needs_grad=True) for _ in range(2))

    @ds.kernel
    def divide(c: ds.template()):
        y[None] = x[None] / c

    digits = 2 * np.finfo(t.numpy).eps
    for c in (3.0, -700.0, 1 / most, 1e-3, most):
        c = float(np.asarray(c, t.numpy))
        # A gradient whose quotient is a normal number.
        g = float(np.asarray(min(max(abs(c), 1e-3), 1e3), t.numpy))
        x.grad[None], y.grad[None] = 0.0, g
        divide.grad(c)
        assert np.isclose(x.grad[None], np.asarray(g / c, t.numpy), rtol=digits, atol=0)
