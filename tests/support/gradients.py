"""Fields to test with, central differences, and a check of gradients against them."""

import numpy as np

import diffsim as ds


def field(shape=(), *, n=None, grad=True, dtype=ds.f64, **options):
    """A field of f64 scalars, or of vectors (n) or matrices (n a pair), with a gradient."""
    if n is None:
        return ds.field(dtype, shape=shape, needs_grad=grad, **options)
    if isinstance(n, tuple):
        return ds.Matrix.field(*n, dtype=dtype, shape=shape, needs_grad=grad, **options)
    return ds.Vector.field(n, dtype=dtype, shape=shape, needs_grad=grad, **options)


def numbers(*shape, seed=0, lo=-1.0, hi=1.0):
    """Random numbers that are the same in every run."""
    return np.random.default_rng([seed, *shape]).uniform(lo, hi, shape)


def central(f, x, h=1e-5):
    """Gradient of f (array -> number) at x by central differences."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        ends = []
        for step in (h, -h):
            moved = x.copy()
            moved[i] += step
            ends.append(f(moved))
        gradient[i] = (ends[0] - ends[1]) / (2 * h)
    return gradient


def check(program, loss, *inputs, reset=(), rel=1e-6, h=1e-5):
    """The tape's gradients of a program to these fields equal central differences.

    Args:
        program: launches kernels; adds to the loss, which is 0 before.
        reset: fields to set to 0 before each run (those that the program adds to).
    """
    start = [f.to_numpy() for f in inputs]

    def run():
        for f in reset:
            f.fill(0)
        program()

    with ds.Tape(loss):
        run()
    found = [f.grad.to_numpy() for f in inputs]
    for f, x, gradient in zip(inputs, start, found, strict=True):

        def value(moved, f=f):
            f.from_numpy(moved)
            loss.fill(0)
            run()
            return loss[None]

        expected = central(value, x, h)
        f.from_numpy(x)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(gradient, expected, rtol=rel, atol=rel * scale)
    return found


def check_along(program, loss, inputs, rel=1e-6, h=1e-5, seed=0):
    """The tape's derivative along a random direction of all inputs equals central differences."""
    random = np.random.default_rng(seed)
    start = [f.to_numpy() for f in inputs]
    ways = [random.standard_normal(x.shape) for x in start]

    def move(step):
        for f, x, way in zip(inputs, start, ways, strict=True):
            f.from_numpy(x + step * way)

    with ds.Tape(loss):
        program()
    found = sum(float((f.grad.to_numpy() * way).sum()) for f, way in zip(inputs, ways, strict=True))
    ends = []
    for step in (h, -h):
        move(step)
        loss.fill(0)
        program()
        ends.append(loss[None])
    move(0.0)
    expected = (ends[0] - ends[1]) / (2 * h)
    assert expected != 0
    np.testing.assert_allclose(found, expected, rtol=rel)
    return found
