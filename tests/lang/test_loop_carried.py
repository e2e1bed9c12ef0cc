"""Locals of the kernel that its loops change: private to an iteration, reductions, or carried."""

import warnings

import numpy as np
import pytest

import diffsim as ds

A = np.array([1.5, 5.0, 2.0, 4.0, 3.0])
VEC = ds.types.struct(a=ds.f64, b=ds.i32)


def kernels():
    """Kernels by name; each with the same in NumPy, and whether its loop runs in order."""
    x = ds.field(ds.f64, 5, needs_grad=True)
    y = ds.field(ds.f64, 5, needs_grad=True)
    loss = ds.field(ds.f64, (), needs_grad=True)
    made = {}

    def add(expected, *, in_order):
        return lambda function: made.update(
            {function.__name__: (ds.kernel(function), expected, in_order)}
        )

    @add(lambda a: 2 * a[0] + (a**3).sum() + a[1] ** 2, in_order=False)
    def private():
        r = x[0] * 2
        loss[None] += r
        for i in x:
            r = x[i] * x[i]
            r *= x[i]
            loss[None] += r
        r = x[1]
        loss[None] += r * r

    @add(lambda a: np.where(a > 2.5, a, 2 * a).sum() + 7, in_order=False)
    def private_in_branches():
        j, k = 7, x[0]
        for i in x:
            if x[i] > 2.5:
                k = x[i]
            else:
                k = 2.0 * x[i]
            y[i] = k
            for j in range(1):  # another j
                loss[None] += y[i]
        loss[None] += 7.0

    @add(lambda a: a.sum() ** 2, in_order=False)
    def sums():
        total, parts = 0.0, VEC(a=0.0, b=0)
        for i in x:
            total += x[i]
            parts.a -= x[i]
        loss[None] -= total * parts.a

    @add(lambda a: a.max() ** 2, in_order=True)
    def largest():
        best = 0.0
        for i in x:
            if x[i] > best:
                best = x[i]
        loss[None] += best * best

    @add(lambda a: np.cumprod(a).sum(), in_order=True)
    def product():
        p = 1.0
        for i in range(5):
            p *= x[i]
            loss[None] += p

    @add(lambda a: a[4] ** 2, in_order=True)
    def last():
        found = x[0]
        for i in range(5):
            found = x[i]
        loss[None] += found * found

    @add(lambda a: np.cumsum(a).sum() ** 2, in_order=True)
    def running_sum():
        total, all = 0.0, ds.Vector([0.0, 0.0])
        for i in range(5):
            total += x[i]
            all[1] += total
        loss[None] += all.y * all.y

    @add(lambda a: a[a > 2.5].sum(), in_order=True)
    def private_behind_a_continue():  # in doubt it is carried
        p = x[0]
        for i in x:
            if x[i] > 2.5:
                p = x[i]
            else:
                continue
            loss[None] += p

    return x, loss, made


@pytest.fixture(scope="module")
def program():
    ds.init(default_fp=ds.f64, rules="lifted")
    yield kernels()
    ds.reset()


NAMES = """private private_in_branches sums largest product last running_sum
    private_behind_a_continue""".split()


@pytest.mark.parametrize("name", NAMES)
def test_locals_of_the_kernel(program, name):
    x, loss, made = program
    kernel, expected, in_order = made[name]
    x.from_numpy(A)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ds.Tape(loss):
            kernel()
    assert [w.message.args[0].split(",")[0].partition(" ")[2] for w in said] == in_order * [
        "keeps its value from one iteration to the next"
    ]
    assert loss[None] == pytest.approx(expected(A), rel=1e-14)
    h = 1e-6
    by_steps = [(expected(A + h * way) - expected(A - h * way)) / (2 * h) for way in np.eye(5)]
    np.testing.assert_allclose(x.grad.to_numpy(), by_steps, rtol=1e-7, atol=1e-7)


def test_in_a_strict_session_it_is_an_error():
    ds.init(strict=True)
    x = ds.field(ds.f32, 3)

    @ds.kernel
    def product() -> ds.f32:
        p = 1.0
        for i in x:
            p *= x[i]
        return p

    with pytest.raises(ds.KernelSyntaxError, match="p belongs to the kernel"):
        product()
    ds.reset()


def test_a_loop_that_is_said_to_be_parallel_stays_it(cpu):
    x = ds.field(ds.f32, 3)

    @ds.kernel
    def largest() -> ds.f32:
        best = 0.0
        ds.loop_config(block_dim=64)
        for i in x:
            best = max(best, x[i])
        return best

    with pytest.raises(ds.KernelSyntaxError, match="best belongs to the kernel"):
        largest()


def test_a_loop_takes_the_name_of_an_index_around_it(cpu):
    x = ds.field(ds.f64, (3, 4), needs_grad=True)
    loss = ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def pairs():
        for a, b in ds.ndrange(3, 4):
            for b in range(4):
                for a in range(b):
                    if a < 3:
                        loss[None] += (b + 1) * x[a, b]

    with ds.Tape(loss):
        pairs()
    expected = np.zeros((3, 4))
    for _ in range(12):
        for b in range(4):
            expected[:b, b] += b + 1
    np.testing.assert_array_equal(x.grad.to_numpy(), expected)

    @ds.kernel
    def reads():
        for a, b in ds.ndrange(3, 4):
            for b in range(4):
                loss[None] += x[a, b]
                for a in range(3):
                    loss[None] += x[a, b]

    with pytest.raises(ds.KernelTypeError, match="a is the index of a loop above"):
        reads()
