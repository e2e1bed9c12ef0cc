"""Arguments and results of kernels that consist of several values: structs and tuples."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, KernelSyntaxError, KernelTypeError
from tests.support.gradients import check, field

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
vec3 = ds.types.vector(3, ds.f64)


@ds.dataclass
class Spin:
    count: ds.i64
    axis: vec3


@ds.dataclass
class Ball:
    spin: Spin
    radius: ds.f32
    on: ds.u1

    @ds.func
    def area(self):
        return self.radius * self.radius * self.spin.count


@ds.kernel
def turned(b: Ball, k: ds.i32 = 2) -> Ball:
    c = b
    c.spin.count *= k
    c.spin.axis.y += c.area() / c.spin.count
    c.on = not c.on
    return c


def ball(count=3, **others):
    return Ball(spin=Spin(count=count, axis=[1, 2, 3]), radius=0.5, **others)


def test_structs_as_arguments_and_results():
    # Integers of 64 bits come through exactly, with their sign.
    for count in (3, -(2**62) + 1, 2**62 - 1):
        found = turned(ball(count), k=1)
        assert (found.spin.count, found.radius, found.on) == (count, 0.5, True)
        np.testing.assert_allclose(found.spin.axis.to_numpy(), [1, 2.25, 3])
    assert turned(ball(on=True)).spin.count == 6
    stored = Ball.field(shape=2)
    stored[1] = ball(5)
    assert turned(stored[1]).spin.count == 10
    assert "parallel" not in turned.ir(args=(ball(), 1))
    with pytest.raises(KernelTypeError, match="b of turned is a Ball, not the number 3"):
        turned(3)


def test_types_of_a_tuple():
    types = (ds.u64, ds.i64, ds.f32, vec3, ds.u1, int, ds.types.matrix(2, 2, ds.i32))

    @ds.kernel
    def several(x: ds.f64) -> types:
        m = ds.Matrix([[1, 2], [3, 4]])
        return ds.u64(2**63 + 5), ds.i64(-5), ds.f32(x), ds.Vector([1.0, 2.0, x]), x > 0, 3, m

    a, b, c, v, on, n, m = several(1.5)
    assert (a, b, c, on, n) == (2**63 + 5, -5, 1.5, True, 3)
    assert (type(a), type(c), type(on)) == (int, float, bool)
    assert v.to_list() == [1, 2, 1.5]
    assert m.to_list() == [[1, 2], [3, 4]]
    with pytest.raises(KernelSyntaxError, match="not a type"):

        @ds.kernel
        def wrong() -> (ds.i32, str):
            return 1, 2.0

        wrong()


def test_gradients_and_tangents_of_several_results():
    x, loss = field(2), field()
    weights = ball()

    @ds.kernel
    def measure(k: ds.i32) -> tuple[ds.f64, vec3, ds.i32]:
        return x[0] * x[1], ds.Vector([x[0], x[1] * x[1], 1.0]), k

    @ds.kernel
    def collect(s: ds.f64, v: vec3, k: ds.i32, b: Ball):
        loss[None] += s * v[0] * b.radius + v[1] * k + b.spin.axis.dot(v)

    def program():
        s, v, k = measure(4)
        assert k == 4
        collect(s * v[2], v, k, weights)

    x.from_numpy(np.array([2.0, 3.0]))
    check(program, loss, x)
    gradient = x.grad.to_numpy()
    for k in range(2):
        seed = np.eye(2)[k]
        loss.fill(0)
        with ds.ad.FwdMode(loss=loss, param=x, seed=seed.tolist()):
            program()
        np.testing.assert_allclose(loss.dual[None], gradient[k])
    # A launch by hand has the same gradient, and the kernel compiles for a GPU.
    for f in (x, loss):
        f.grad.fill(0)
    loss.grad[None] = 1.0
    collect(0.0, [0.0, 0.0, 0.0], 0, weights)
    collect.grad(0.0, [0.0, 0.0, 0.0], 0, weights)
    assert "entry" in turned.ptx(args=(ball(), 1))


def test_what_a_tape_would_lose_is_refused():
    x, loss = field(2), field()

    @ds.kernel
    def made() -> Spin:
        return Spin(count=1, axis=[x[0], x[1], 0.0])

    @ds.kernel
    def use(s: Spin):
        loss[None] += s.axis[0] * x[0]

    with pytest.raises(AutodiffError, match="constants on a tape"), ds.Tape(loss):
        made()
    with (
        pytest.raises(AutodiffError, match="a number that Python took from x"),
        ds.Tape(loss),
    ):
        use(Spin(count=1, axis=[x[0], 0, 0]))
    assert made().count == 1
