"""The rows of `run.py` in Warp, whose language is another one than diffsim's and Taichi's.

Adjoints are launches of a kernel's adjoint, as a `wp.Tape` makes them. Sums are of tiles, as Warp's manual
has them. What Warp's adjoints read and write may be less than what the table counts: they do not clear the
gradient of what a kernel has overwritten.
"""

import functools

import mpm
import numpy as np
from heat import K
from rows import SOFT

COLUMN = "Warp"
TILE = 1024  # numbers that a block adds up


def ends(*arrays):
    """The first and the last number of each array."""
    return [float(a[k : k + 1].numpy()[0]) for a in arrays for k in (0, len(a) - 1)]


def streams(b, wp):
    n = b.size(1 << 28, 1 << 12)
    Array = wp.array(dtype=float)

    @wp.kernel(module="unique")
    def saxpy(a: float, x: Array, y: Array):
        i = wp.tid()
        y[i] = a * x[i] + y[i]

    @wp.kernel(module="unique")
    def triad(a: float, x: Array, y: Array, z: Array):
        i = wp.tid()
        z[i] = x[i] + a * y[i]

    x, y, z = (wp.full(n, v, dtype=float, requires_grad=True) for v in (1.0, 2.0, 0.0))

    def adjoint(kernel, a, *arrays):
        grads = [0.0, *(array.grad for array in arrays)]
        wp.launch(kernel, dim=n, inputs=[a, *arrays], adj_inputs=grads, adjoint=True)

    row = b.row(f"saxpy, {n:.3g} elements")
    wp.launch(saxpy, dim=n, inputs=[3.0, x, y])
    if b.right(row, COLUMN, ends(y), np.array([5.0, 5.0])):
        forward = functools.partial(wp.launch, saxpy, dim=n, inputs=[0.0, x, y])
        row.seconds[COLUMN] = b.time(forward, wp.synchronize)
    y.grad.fill_(2.0)
    adjoint(saxpy, 3.0, x, y)
    row = b.row(f"saxpy, its gradient, {n:.3g} elements")
    if b.right(row, COLUMN, ends(y.grad, x.grad), np.array([2.0, 2.0, 6.0, 6.0])):
        row.seconds[COLUMN] = b.time(lambda: adjoint(saxpy, 0.0, x, y), wp.synchronize)
    row = b.row(f"triad, {n:.3g} elements")
    y.fill_(2.0)
    forward = functools.partial(wp.launch, triad, dim=n, inputs=[3.0, x, y, z])
    forward()
    if b.right(row, COLUMN, ends(z), np.array([7.0, 7.0])):
        row.seconds[COLUMN] = b.time(forward, wp.synchronize)
    for array, value in ((x, 1.0), (y, 1.0), (z, 2.0)):
        array.grad.fill_(value)
    adjoint(triad, 3.0, x, y, z)
    row = b.row(f"triad, its gradient, {n:.3g} elements")
    if b.right(row, COLUMN, ends(x.grad, y.grad), np.array([3.0, 3.0, 7.0, 7.0])):
        row.seconds[COLUMN] = b.time(lambda: adjoint(triad, 0.0, x, y, z), wp.synchronize)


def sums(b, wp):
    n = b.size(1 << 30, 1 << 12)
    Array = wp.array(dtype=float)

    @wp.kernel(module="unique")
    def add(x: Array, total: Array):
        part = wp.tile_load(x, shape=TILE, offset=wp.tid() * TILE)
        wp.tile_atomic_add(total, wp.tile_sum(part), offset=0)

    x = wp.full(n, 0.5, dtype=float, requires_grad=True)
    total = wp.zeros(1, dtype=float, requires_grad=True)

    def launch(**adjoint):
        inputs = dict(inputs=[x], outputs=[total], block_dim=256)
        wp.launch_tiled(add, dim=[n // TILE], **inputs, **adjoint)

    def back():
        launch(adj_inputs=[x.grad], adj_outputs=[total.grad], adjoint=True)

    launch()
    row = b.row(f"sum, {n:.3g} elements")
    if b.right(row, COLUMN, total.numpy(), np.array([0.5 * n])):
        row.seconds[COLUMN] = b.time(launch, wp.synchronize)
    total.grad.fill_(3.0)
    back()
    row = b.row(f"sum, {n:.3g} elements, gradient")
    if b.right(row, COLUMN, ends(x.grad), np.array([3.0, 3.0])):
        total.grad.zero_()
        row.seconds[COLUMN] = b.time(back, wp.synchronize)


def heat(b, wp):
    n = b.size(8192, 1024)
    Plane = wp.array2d(dtype=float)

    @wp.kernel(module="unique")
    def step(s: Plane, d: Plane):
        a, c = wp.tid()
        i = a + 1
        j = c + 1
        around = s[i - 1, j] + s[i + 1, j] + s[i, j - 1] + s[i, j + 1]
        d[i, j] = s[i, j] + K * (around - 4.0 * s[i, j])

    first, ones = np.ones((n, n), np.float32), np.ones((n, n), np.float32)
    first[1, 1] = 2.0
    s, d = (wp.array(a, dtype=float, requires_grad=True) for a in (first, ones))

    def launch(**adjoint):
        wp.launch(step, dim=(n - 2, n - 2), inputs=[s], outputs=[d], **adjoint)

    def back():
        launch(adj_inputs=[s.grad], adj_outputs=[d.grad], adjoint=True)

    launch()
    row = b.row(f"heat, {n} x {n}, a step")
    if b.right(row, COLUMN, d.numpy()[1, 1:3], np.array([2 - 4 * K, 1 + K])):
        row.seconds[COLUMN] = b.time(launch, wp.synchronize)
    ones.fill(0.0)
    ones[1, 1] = 1.0
    d.grad.assign(ones)
    back()
    row = b.row(f"heat, {n} x {n}, its gradient")
    grad = s.grad.numpy()
    if b.right(row, COLUMN, [grad[1, 1], grad[1, 2], grad[0, 1]], np.array([1 - 4 * K, K, K])):
        row.seconds[COLUMN] = b.time(back, wp.synchronize)


def bodies(b, wp):
    n = b.size(65536, 128)
    hx = np.random.default_rng(0).random((n, 3), np.float32)
    d = hx.astype(np.float64) - hx[0]
    exact = (d / n * (((d * d).sum(1) + SOFT) ** -1.5)[:, None]).sum(0)
    x = wp.array(hx, dtype=wp.vec3)
    a, mass = wp.zeros_like(x), wp.full(n, 1.0 / n, dtype=float)
    Vectors, Numbers = wp.array(dtype=wp.vec3), wp.array(dtype=float)
    for fast in (False, True):

        @wp.kernel(module="unique", module_options={"fast_math": fast}, enable_backward=False)
        def pull(x: Vectors, mass: Numbers, a: Vectors):
            i = wp.tid()
            here = x[i]
            total = wp.vec3()
            for j in range(x.shape[0]):
                d = x[j] - here
                near = 1.0 / wp.sqrt(wp.dot(d, d) + SOFT)
                total += (mass[j] * near * near * near) * d
            a[i] = total

        run = functools.partial(wp.launch, pull, dim=n, inputs=[x, mass, a])
        run()
        row = b.row(f"n-body, {n} bodies{', fast_math' if fast else ''}")
        if b.right(row, COLUMN, a.numpy()[0], exact, 1e-3):
            row.seconds[COLUMN] = b.time(run, wp.synchronize)


def particles(b, wp):
    n, cells = b.size(1 << 22, 1 << 10), b.size(1024, 64)
    mpm.resize(cells, 2, 2e-5, n)
    x = mpm.scattered(n)
    sim = mpm.WarpSimulation(wp, n)
    shares = mpm.shares(x)
    for places, words in ((x, ""), (mpm.by_cell(x), ", by cell")):
        stepped(b, wp, sim, places, words)
        added(b, wp, sim, shares, words)


def stepped(b, wp, sim, x, words):
    n, v = len(x), (1.0, -1.0)
    means, sums = mpm.together(x, v)
    sim.load(x, np.tile(np.array(v, np.float32), (n, 1)))
    sim.clear()
    steps, measure = wp.Tape(), wp.Tape()
    with steps:
        sim.steps()
    with measure:
        sim.measure()
    row = b.row(f"MPM, {n:.3g} particles{words}, a step")
    found = mpm.over_particles(np.mean, sim.x[mpm.T].numpy(), sim.v[mpm.T].numpy())
    if b.right(row, COLUMN, found / means, np.ones(3), 1e-3):
        row.seconds[COLUMN] = b.time(sim.steps, wp.synchronize) / mpm.T
    sim.clear()
    sim.steps()
    sim.measure()
    steps.zero()
    measure.backward(sim.loss)
    steps.backward()
    row = b.row(f"MPM, {n:.3g} particles{words}, gradient of a step")
    found = mpm.over_particles(np.sum, sim.x[0].grad.numpy(), sim.v[0].grad.numpy())
    if b.right(row, COLUMN, found / sums, np.ones(3), 1e-3):
        row.seconds[COLUMN] = b.time(steps.backward, wp.synchronize) / mpm.T
    steps.zero()


def added(b, wp, sim, shares, words):
    n, per_cell = sim.n, wp.constant(mpm.INV)

    @wp.kernel(module="unique", enable_backward=False)
    def add(
        at: wp.array(dtype=wp.vec2),
        momentum: wp.array2d(dtype=wp.vec2),
        mass: wp.array2d(dtype=float),
    ):
        p = wp.tid()
        k = int(at[p][0] * per_cell - 0.5)
        l = int(at[p][1] * per_cell - 0.5)
        for i in range(3):
            for j in range(3):
                wp.atomic_add(momentum, k + i, l + j, wp.vec2(1.0, 2.0))
                wp.atomic_add(mass, k + i, l + j, 1.0)

    momentum, mass = sim.momentum[0], sim.mass[0]
    run = functools.partial(wp.launch, add, dim=n, inputs=[sim.x[0], momentum, mass])
    row = b.row(f"MPM, {n:.3g} particles{words}, its additions alone")
    sim.clear()
    run()
    found = np.concatenate([momentum.numpy().ravel(), mass.numpy().ravel()])
    exact = np.concatenate([np.outer(shares, [1.0, 2.0]).ravel(), shares.ravel()])
    if b.right(row, COLUMN, found, exact, 0.0):
        row.seconds[COLUMN] = b.time(run, wp.synchronize)


def launches(b, wp):
    @wp.kernel(module="unique", enable_backward=False)
    def empty(x: wp.array(dtype=float)):
        x[wp.tid()] = 1.0

    x = wp.zeros(1, dtype=float)

    def run():
        wp.launch(empty, dim=1, inputs=[x])

    def both():
        run()
        wp.synchronize()

    b.row("launch of a kernel with one lane").seconds[COLUMN] = b.time(run, wp.synchronize)
    b.row("the same, with a wait after it").seconds[COLUMN] = b.time(both, wp.synchronize)


CASES = (streams, sums, heat, particles, launches, bodies)
