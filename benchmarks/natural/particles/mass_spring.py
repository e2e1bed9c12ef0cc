"""DiffTaichi's robot of springs, enlarged: ends in index fields, forces added to both, a time axis."""

import numpy as np

SIZES = (32, 256, 724)
STEPS = 8


def given(n, random):
    i, j = np.mgrid[: n - 1, : n - 1].reshape(2, -1)
    a = i * n + j
    ends = np.concatenate([np.stack([a, a + k], 1) for k in (1, n, n + 1)]).astype(np.int32)
    start = np.mgrid[:n, :n].reshape(2, -1).T / n
    return dict(start=start, stiffness=random.uniform(50, 100, len(ends)), ends=ends)


def work(n):
    return 3 * (n - 1) ** 2 * STEPS, 28, 25


def program(ti, n, shapes):
    count, dt = n * n, 1e-3
    springs = 3 * (n - 1) ** 2
    x = ti.Vector.field(2, float, shape=(STEPS + 1, count), needs_grad=True)
    v = ti.Vector.field(2, float, shape=(STEPS + 1, count), needs_grad=True)
    force = ti.Vector.field(2, float, shape=(STEPS, count), needs_grad=True)
    start = ti.Vector.field(2, float, shape=count, needs_grad=True)
    stiffness = ti.field(float, shape=springs, needs_grad=True)
    ends = ti.Vector.field(2, ti.i32, shape=springs)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for p in start:
            x[0, p] = start[p]
            v[0, p] = ti.Vector([0.0, 0.0])
        for t, p in force:
            force[t, p] = ti.Vector([0.0, 0.0])

    @ti.kernel
    def pull(t: ti.i32):
        for s in ends:
            a, b = ends[s][0], ends[s][1]
            way = x[t, a] - x[t, b]
            length = way.norm() + 1e-4
            f = stiffness[s] * (length - 1.1 / n) / length * way
            force[t, a] += -f
            force[t, b] += f

    @ti.kernel
    def move(t: ti.i32):
        for p in start:
            speed = 0.99 * v[t, p] + dt * (force[t, p] + ti.Vector([0.0, -9.8]))
            place = x[t, p]
            if place[1] < 0.1 and speed[1] < 0:
                speed = ti.Vector([0.0, 0.0])
            v[t + 1, p] = speed
            x[t + 1, p] = place + dt * speed

    @ti.kernel
    def compare():
        for p in start:
            loss[None] += x[STEPS, p].norm_sqr() / count

    def run():
        begin()
        for t in range(STEPS):
            pull(t)
            move(t)
        compare()

    return run, loss, dict(start=start, stiffness=stiffness, ends=ends)
