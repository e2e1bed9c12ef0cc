"""Copies from Python on a tape: recorded and differentiated, or constants where that is asked for."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")
SHAPES = [((), None), (4, None), ((2, 3), None), (3, 2), ((2, 2), (2, 3))]


def make(shape, n, grad=True, dtype=ds.f64, kind="field"):
    if kind == "array":
        t = dtype if n is None else ds.types.vector(n, dtype)
        return ds.ndarray(t, shape, needs_grad=grad)
    if n is None:
        return ds.field(dtype, shape=shape, needs_grad=grad)
    if isinstance(n, tuple):
        return ds.Matrix.field(*n, dtype=dtype, shape=shape, needs_grad=grad)
    return ds.Vector.field(n, dtype=dtype, shape=shape, needs_grad=grad)


def filled(f, seed=0):
    X = np.random.default_rng(seed).uniform(0.5, 1.5, f.shape + f.element)
    f.from_numpy(X.astype(f.dtype.numpy))
    return f.to_numpy().astype(np.float64)


def grads(tape, y, seed, *fields):
    tape.backward(grads={y: seed})
    return [f.grad.to_numpy() for f in fields]


WAYS = {
    "copy_from": lambda dst, src: dst.copy_from(src),
    "assign": lambda dst, src: dst.assign(src),
    "copy": ds.copy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("shape", "n"), SHAPES)
def test_a_copy_is_the_identity(way, shape, n):
    x, y = make(shape, n), make(shape, n)
    X = filled(x)
    tape = ds.Tape()
    with tape:
        WAYS[way](y, x)
    assert np.array_equal(y.to_numpy(), X)
    W = filled(y, seed=1)
    (g,) = grads(tape, y, W, x)
    assert np.array_equal(g, W)
    assert not y.grad.to_numpy().any()  # taken, as by a store
    (g,) = grads(tape, y, W, x)  # and again: added up
    assert np.array_equal(g, 2 * W)


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_clone_in_a_chain(in_place):
    x, L = make(3, None), make((), None)
    filled(x)

    @ds.kernel
    def square(a: ds.types.ndarray()):
        for i in a:
            L[None] += a[i] ** 2

    a = ds.ndarray(ds.f64, 3, needs_grad=True)
    with ds.Tape(L, in_place=in_place):
        a.copy_from(x)
        b = ds.clone(a)
        square(b)
    assert (b.needs_grad, b.shape, b.dtype) == (True, (3,), ds.f64)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * x.to_numpy(), rtol=1e-15)


def test_clone_of_an_intermediate_value():
    """d/dx of the sum of 2 x over the clone is 2 (as printed in the reference)."""
    x = ds.ndarray(ds.f32, 3, needs_grad=True)
    y = ds.ndarray(ds.f32, 3, needs_grad=True)

    @ds.kernel
    def double(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in x:
            y[i] = x[i] * 2.0

    x.from_numpy(np.arange(3, dtype=np.float32))
    tape = ds.Tape()
    with tape:
        double(x, y)
        z = ds.clone(y, needs_grad=True)
    tape.backward(grads={z: 1.0})
    assert x.grad.to_numpy().tolist() == [2, 2, 2]


def test_clone_without_gradient_is_cut_off():
    """And is no broken chain: the user asked for it."""
    x, y, L = make(3, None), make(3, None), make((), None)
    X = filled(x)
    c = {}

    @ds.kernel
    def use(a: ds.template()):
        for i in x:
            L[None] += a[i] * x[i]

    with ds.Tape(L):
        y.copy_from(x)
        c["cut"] = ds.clone(y, needs_grad=False)
        use(c["cut"])
    assert not c["cut"].needs_grad
    np.testing.assert_array_equal(x.grad.to_numpy(), X)  # of x alone


def test_clone_of_a_field_without_gradient_keeps_the_chain_watched():
    x, mid, L = make(3, None), make(3, None, grad=False), make((), None)
    filled(x)

    @ds.kernel
    def into():
        for i in x:
            mid[i] = 2 * x[i]

    @ds.kernel
    def use(a: ds.template()):
        for i in a:
            L[None] += a[i]

    with pytest.raises(ds.MissingGradientError, match="mid"):
        with ds.Tape(L):
            into()
            use(ds.clone(mid))
    with ds.Tape(L):  # cut on purpose
        into()
        use(ds.clone(mid, needs_grad=False))
    assert not x.grad.to_numpy().any()


@pytest.mark.parametrize("grad", [True, False])
def test_copies_of_and_to_fields_without_gradient(grad):
    x, y, z, L = make(3, None), make(3, None, grad), make(3, None), make((), None)
    filled(x)

    @ds.kernel
    def use():
        for i in z:
            L[None] += z[i] * z[i]

    def run():
        ds.copy(y, x)
        ds.copy(z, y)
        use()

    if grad:
        with ds.Tape(L):
            run()
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * x.to_numpy())
    else:
        with pytest.raises(ds.MissingGradientError, match="is between"):
            with ds.Tape(L):
                run()


def test_a_chain_broken_by_a_partial_copy_stays_broken():
    x, mid, zero, y = make(4, None), make(4, None, False), make(4, None, False), make(4, None)
    filled(x)
    tape = ds.Tape()
    with tape:
        ds.copy(mid, x)
        ds.copy(mid, zero, count=2)  # the other two still come from x
        ds.copy(y, mid)
    with pytest.raises(ds.MissingGradientError):
        tape.backward(grads={y: 1.0})
    tape = ds.Tape()
    with tape:
        ds.copy(mid, x)
        ds.copy(mid, zero)
        ds.copy(y, mid)
    tape.backward(grads={y: 1.0})
    assert not x.grad.to_numpy().any()


@pytest.mark.parametrize("kind", ["field", "array"])
@pytest.mark.parametrize("n", [None, 2])
def test_parts(kind, n):
    """Elements are counted in the order of the indices, whatever the layout."""
    x, y = make((3, 4), n, kind=kind), make(6, n, kind=kind)
    X, Y = filled(x), filled(y, 1)
    tape = ds.Tape()
    with tape:
        ds.copy(y, x, dest_offset=1, src_offset=5, count=3)
    Y[1:4] = X.reshape(12, *X.shape[2:])[5:8]
    assert np.array_equal(y.to_numpy(), Y)
    W = np.random.default_rng(2).random(Y.shape)
    tape.backward(grads={y: W})
    GX = np.zeros_like(X).reshape(12, *X.shape[2:])
    GX[5:8] = W[1:4]
    assert np.array_equal(x.grad.to_numpy(), GX.reshape(X.shape))
    GY = W.copy()
    GY[1:4] = 0
    assert np.array_equal(y.grad.to_numpy(), GY)


def test_other_layouts():
    x = ds.Vector.field(2, ds.f64, shape=5, needs_grad=True, layout=ds.Layout.SOA)
    y = ds.Vector.field(2, ds.f64, shape=5, needs_grad=True)
    X = filled(x)
    tape = ds.Tape()
    with tape:
        z = ds.clone(x)
        ds.copy(y, z, dest_offset=2, count=2)
    assert z.soa
    W = np.random.default_rng(2).random((5, 2))
    assert np.array_equal(y.to_numpy()[2:4], X[:2])
    tape.backward(grads={y: W})
    assert np.array_equal(x.grad.to_numpy(), np.concatenate([W[2:4], np.zeros((3, 2))]))


def test_overlapping_parts_of_one_field():
    """x[1:4] = x[0:3], twice: the adjoint shifts back twice."""
    x = make(5, None)
    X = filled(x)
    tape = ds.Tape()
    with tape:
        ds.copy(x, x, dest_offset=1, count=3)
        ds.copy(x, x, dest_offset=1, count=3)
        ds.copy(x, x)  # nothing
    assert np.array_equal(x.to_numpy(), X[[0, 0, 0, 1, 4]])
    W = np.arange(1.0, 6.0)
    tape.backward(grads={x: W})
    assert np.array_equal(x.grad.to_numpy(), [W[0] + W[1] + W[2], W[3], 0, 0, W[4]])


def test_a_copy_forgets_what_was_there():
    """A program of copies and launches against central differences."""
    x, y, z, L = (make(3, None) for _ in range(4))
    total = make((), None)

    @ds.kernel
    def cube():
        for i in x:
            y[i] = x[i] ** 3

    @ds.kernel
    def add():
        for i in z:
            total[None] += (i + 1) * z[i]

    def run():
        cube()
        ds.copy(z, y)
        ds.copy(z, x, dest_offset=2, src_offset=0, count=1)
        ds.copy(L, z)
        ds.copy(z, L, count=2)
        z[1] = 7.0
        add()

    X = filled(x)
    with ds.Tape(total):
        run()
    np.testing.assert_allclose(x.grad.to_numpy(), [3 * X[0] ** 2 + 3, 0, 0], rtol=1e-14)


def test_between_precisions():
    x, y = make(3, None), make(3, None, dtype=ds.f32)
    z = make(3, None)
    filled(x)
    tape = ds.Tape()
    with tape:
        ds.copy(y, x)
        ds.copy(z, y)
    tape.backward(grads={z: np.array([1.0, 2.0, 3.0])})
    assert x.grad.to_numpy().tolist() == [1, 2, 3]
    assert y.dtype is ds.f32


def test_saved_before_a_copy_overwrites():
    """in_place="save": x is needed by the first launch and overwritten by copies, whole and in part."""
    x, y, L = make(3, None), make(3, None), make((), None)
    X, Y = filled(x), filled(y, 1)

    @ds.kernel
    def square():
        for i in x:
            L[None] += x[i] ** 2

    def run():
        square()
        ds.copy(x, y)
        square()
        ds.copy(x, y, dest_offset=0, src_offset=2, count=1)
        square()
        x.assign([4.0, 5.0, 6.0])
        square()

    with pytest.raises(ds.GlobalDataAccessError, match=r"test_copies\.py"):
        with ds.Tape(L):
            run()
    x.from_numpy(X)
    with ds.Tape(L, in_place="save"):
        run()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * X)
    expected = 2 * Y + 2 * np.array([0, Y[1], Y[2]]) + np.array([0, 0, 2 * Y[2]])
    np.testing.assert_allclose(y.grad.to_numpy(), expected)
    assert x.to_numpy().tolist() == [4, 5, 6]


def test_the_line_of_the_copy_is_named():
    x, y, L = make(3, None), make(3, None), make((), None)

    @ds.kernel
    def square():
        for i in x:
            L[None] += x[i] ** 2

    for k, write in enumerate(
        (
            lambda: ds.copy(x, y),
            lambda: x.assign(y),
            lambda: ds.copy(x, y, count=1),
        )
    ):
        with pytest.raises(ds.GlobalDataAccessError) as caught:
            with ds.Tape(L):
                square()
                write()
        text = str(caught.value)
        assert ("ds.copy(x, y)", "x.assign(y)", "ds.copy(x, y, count=1)")[k] in text
        assert f'File "{__file__}"' in text
        assert str(Path(ds.__file__).parent) not in text, "a line of diffsim's own is shown"


def test_rows_of_a_time_axis():
    """A partial copy of one row of the time axis leaves the other rows alone."""
    x = make((4, 3), None)
    now = make(3, None)
    L = make((), None)
    X = filled(x)

    @ds.kernel
    def step(t: ds.i32):
        for i in now:
            L[None] += x[t, i] ** 2

    step(0)  # x learns its time axis
    x.grad.fill(0)
    now.from_numpy(X[0])
    with ds.Tape(L):
        for t in range(3):
            step(t)
            ds.copy(x, now, dest_offset=3 * (t + 1), count=3)
    np.testing.assert_allclose(x.grad.to_numpy(), [2 * X[0], [0] * 3, [0] * 3, [0] * 3])
    np.testing.assert_allclose(now.grad.to_numpy(), 4 * X[0])


def test_without_gradients_copies_are_constants():
    x, y, L = make(3, None), make(3, None), make((), None)
    filled(x)

    @ds.kernel
    def use():
        for i in y:
            L[None] += y[i] * y[i]

    with ds.Tape(L):
        with ds.ad.no_grad():
            ds.copy(y, x)
            ds.copy(y, x, count=1)
        use()
    assert not x.grad.to_numpy().any()


def test_copies_in_a_function_with_its_own_gradient():
    x, y, L = make(3, None), make(3, None), make((), None)
    filled(x)

    @ds.kernel
    def use():
        for i in y:
            L[None] += y[i] * y[i]

    @ds.ad.grad_replaced
    def forward():
        ds.copy(y, x)

    @ds.ad.grad_for(forward)
    def backward():
        x.grad.from_numpy(10 * y.grad.to_numpy())
        y.grad.fill(0)

    with ds.Tape(L):
        forward()
        use()
    np.testing.assert_allclose(x.grad.to_numpy(), 20 * x.to_numpy())


@pytest.mark.parametrize("partial", [False, True])
def test_copies_in_checkpointed_steps(partial):
    """q -> old -> q in every step; the gradient of q0 is that of q0 * 0.9**n."""
    q, old, L = make(2, None), make(2, None), make((), None)
    n = 7

    @ds.kernel
    def damp():
        for i in q:
            q[i] = 0.9 * old[i] + 0.01 * old[i] ** 2

    @ds.kernel
    def finish():
        L[None] += q[0] + q[1]

    def step(t):
        if partial:
            ds.copy(old, q, count=1)
            ds.copy(old, q, dest_offset=1, src_offset=1)
        else:
            ds.copy(old, q)
        damp()

    def value(q0):
        for _ in range(n):
            q0 = 0.9 * q0 + 0.01 * q0**2
        return q0

    Q = np.array([1.0, 2.0])
    q.from_numpy(Q)
    with ds.Tape(L):
        ds.ad.checkpoint(step, n, state=[q, old], snapshots=2)
        finish()
    h = 1e-6
    expected = [(value(a + h) - value(a - h)) / (2 * h) for a in Q]
    np.testing.assert_allclose(q.grad.to_numpy(), expected, rtol=1e-8)


def test_stop_grad_of_a_field_in_python():
    """What y holds is a constant; what is made from x later is not."""
    x, y, L = make(3, None), make(3, None), make((), None)
    X = filled(x)

    @ds.kernel
    def double():
        for i in x:
            y[i] = 2 * x[i]

    @ds.kernel
    def use():
        for i in y:
            L[None] += y[i] ** 2

    with ds.Tape(L):
        double()
        assert ds.stop_grad(y) is y
        use()
    assert not x.grad.to_numpy().any()
    with ds.Tape(L, in_place="save"):
        double()
        use()
        ds.stop_grad(y)
        double()
        use()
        ds.ad.stop_grad(y)
        use()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * 8 * X)
    assert ds.stop_grad(y) is y  # without a tape: nothing
    assert ds.stop_grad(3.0) == 3.0


def test_stop_grad_of_a_field_in_a_kernel():
    """Taichi's statement: the whole loop, wherever in it the statement stands."""
    x, y, L = make(3, None), make(3, None), make((), None)
    X, Y = filled(x), filled(y, 1)

    @ds.func
    def product(i):
        return x[i] * y[i]

    @ds.kernel
    def use():
        for i in x:
            L[None] += product(i) * x[i]
            ds.stop_grad(x)

    @ds.kernel
    def given(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            ds.stop_grad(b)
            L[None] += a[i] * b[i][0] * b[i].norm()

    with ds.Tape(L):
        use()
    assert not x.grad.to_numpy().any()
    np.testing.assert_allclose(y.grad.to_numpy(), X**2)
    a, b = make(3, None, kind="array"), make(3, 2, kind="array")
    A, B = filled(a), filled(b, 1)
    with ds.Tape(L):
        given(a, b)
    assert not b.grad.to_numpy().any()
    np.testing.assert_allclose(a.grad.to_numpy(), B[:, 0] * np.linalg.norm(B, axis=1))
    assert A.any()


def test_stop_grad_of_a_field_holds_for_the_loop_around_it():
    x, L = make(3, None), make((), None)
    X = filled(x)

    @ds.kernel
    def two():
        for i in x:
            L[None] += x[i] ** 2
        for i in x:
            L[None] += x[i] ** 3
            ds.stop_grad(x)

    @ds.kernel
    def inner():
        for i in range(1):
            s, p = ds.f64(0.0), ds.f64(1.0)
            for k in range(3):
                ds.stop_grad(x)
                s += x[k] ** 2
            k = 0
            while k < 3:
                p *= x[k]
                k += 1
            L[None] += s + p

    @ds.kernel
    def everywhere():
        ds.stop_grad(x)
        for i in x:
            L[None] += x[i] ** 2

    with ds.Tape(L):
        two()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * X)
    with ds.Tape(L):
        inner()
    np.testing.assert_allclose(x.grad.to_numpy(), X.prod() / X)
    with ds.Tape(L):
        everywhere()
    assert not x.grad.to_numpy().any()


def test_stop_grad_of_a_gradient_in_a_kernel():
    x, L = make(3, None), make((), None)
    filled(x)
    x.grad.fill(3)

    @ds.kernel
    def descend():
        for i in x:
            ds.stop_grad(x.grad)
            L[None] += x.grad[i] * x[i]

    descend()
    L.grad.fill(1)
    with pytest.raises(ds.GlobalDataAccessError, match="changes it itself"):
        descend.grad()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, y: ds.copy(x, np.zeros(3)), "copies fields"),
        (lambda x, y: ds.copy(x, y, count=4), "has 3 elements"),
        (lambda x, y: ds.copy(x, y, dest_offset=-1), "has 3 elements"),
        (lambda x, y: ds.copy(x, y, dest_offset=1), "3 elements of y"),
        (lambda x, y: ds.copy(x, y, count=0), "has 3 elements"),
        (lambda x, y: ds.copy(x, y, count=1.5), "whole numbers"),
        (lambda x, y: ds.copy(x, ds.field(ds.i32, shape=3)), "int|float|f64|i32"),
        (lambda x, y: ds.copy(x, ds.Vector.field(2, ds.f64, shape=3), count=1), "shape"),
        (lambda x, y: ds.clone(np.zeros(3)), "takes a field"),
        (lambda x, y: x.assign(np.zeros(4)), "needs an array"),
        (lambda x, y: ds.copy(ds.field(ds.i32, shape=3), x, count=1), "i32"),
    ],
)
def test_refused(wrong, message):
    x, y = make(3, None), make(3, None)
    x.call_it("x")
    y.call_it("y")
    if "int|" in message:
        wrong(x, y)  # integers become floats
        return
    with pytest.raises(ds.ArgumentError, match=message) as caught:
        wrong(x, y)
    assert caught.value.span.file == __file__


def test_structs():
    """A field of structs is copied, cloned and made constant member by member."""
    Body = ds.types.struct(q=ds.types.vector(2, ds.f64), m=ds.f64, tag=ds.i32)
    a, b = (Body.field(shape=3, needs_grad=True) for _ in range(2))
    (L,) = (make((), None),)

    @ds.kernel
    def use(c: ds.template()):
        for i in range(3):
            L[None] += c[i].m * c[i].q.dot(c[i].q)

    @ds.kernel
    def constant():
        for i in range(3):
            ds.stop_grad(a)
            L[None] += a[i].m * a[i].q.x * b[i].m

    for f in (a.q, a.m, a.tag):
        f.fill(2)
    cut = []
    with ds.Tape(L, retain_grad=b):
        ds.copy(b, a)
        use(ds.clone(b))
        cut.append(ds.clone(b, needs_grad=False))
        use(cut[0])
    assert L[None] == 2 * 3 * 16
    assert a.m.grad.to_numpy().tolist() == [8] * 3
    assert b.m.grad.to_numpy().tolist() == [8] * 3
    assert a.q.grad.to_numpy().tolist() == [[8, 8]] * 3
    assert (cut[0].m.needs_grad, cut[0].tag[1]) == (False, 2)
    with ds.Tape(L):
        constant()
    assert not a.m.grad.to_numpy().any()
    assert b.m.grad.to_numpy().tolist() == [4] * 3
    with ds.Tape(L):
        ds.copy(b, a, count=2)
        ds.stop_grad(b)
        use(b)
    assert not a.m.grad.to_numpy().any()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_random_programs_of_copies(seed, in_place):
    """Copies are linear: the gradient is the transpose of the matrix that the program is."""
    rng = np.random.default_rng(seed)
    sizes = [4, 6, 5]
    starts = np.cumsum([0, *sizes])
    fields = [make(n, None) for n in sizes[:2]] + [make(5, None, kind="array")]
    M = np.eye(starts[-1])  # each element as a combination of the first ones
    used = np.zeros(starts[-1], bool)  # what is set before is an input as well
    ends = []
    tape = ds.Tape(in_place=in_place)
    with tape:
        for _ in range(rng.integers(3, 12)):
            a, b = rng.integers(0, 3, 2)
            act = rng.choice(
                ["part", "part", "part", "whole", "clone", "write", "fill", "stop", "off"]
            )
            count = int(rng.integers(1, min(sizes[a], sizes[b]) + 1))
            to, at = (int(rng.integers(0, sizes[k] - count + 1)) for k in (a, b))
            rows = slice(starts[a] + to, starts[a] + to + count)
            source = M[starts[b] + at : starts[b] + at + count].copy()
            whole = slice(starts[a], starts[a + 1])
            if act == "part":
                used[rows] = used[starts[b] + at : starts[b] + at + count] = True
            elif act in ("whole", "clone"):
                used[whole] = True
            if act in ("part", "off"):
                M[rows] = 0 if act == "off" else source
                with ds.ad.no_grad() if act == "off" else contextlib.nullcontext():
                    ds.copy(fields[a], fields[b], dest_offset=to, src_offset=at, count=count)
            elif act == "whole":
                ds.copy(fields[a], fields[a])
            elif act == "clone":
                ends.append((ds.clone(fields[a]), M[whole].copy()))
            elif act == "write":
                fields[a][to] = 3.0
                M[starts[a] + to] = np.eye(starts[-1])[starts[a] + to] * ~used[starts[a] + to]
            elif act == "fill":
                fields[a].fill(2.0)
                M[whole] = np.eye(starts[-1])[whole] * ~used[whole, None]
            else:
                ds.stop_grad(fields[a])
                M[whole] = 0
    ends += [(f, M[starts[k] : starts[k + 1]]) for k, f in enumerate(fields)]
    seeds = [rng.integers(-3, 4, f.shape).astype(float) for f, _ in ends]
    tape.backward(grads={f: w for (f, _), w in zip(ends, seeds, strict=True)})
    expected = sum(w @ m for (_, m), w in zip(ends, seeds, strict=True))
    found = np.concatenate([f.grad.to_numpy() for f in fields])
    np.testing.assert_array_equal(found, expected)
