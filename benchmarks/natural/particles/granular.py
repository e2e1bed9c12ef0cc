"""Discs that push and brake each other; in each step cells are counted, summed up and filled anew."""

import numpy as np

SIZES = (24, 128, 362)
STEPS = 4


def given(n, random):
    p = (np.mgrid[:n, :n].reshape(2, -1).T + 0.5 + 0.3 * random.uniform(-1, 1, (n * n, 2))) / n
    return dict(
        x0=p,
        v0=0.1 * random.standard_normal((n * n, 2)),
        radius=random.uniform(0.4, 0.6, n * n) / n,
    )


def work(n):
    return n * n * STEPS * 12, 16, 30


def program(ti, n, shapes):
    N, dt, kn, g, cells = n * n, 1e-4, 1000.0, -9.8, max(n * 3 // 4, 1)
    x = ti.Vector.field(2, float, shape=(STEPS + 1, N), needs_grad=True)
    v = ti.Vector.field(2, float, shape=(STEPS + 1, N), needs_grad=True)
    x0 = ti.Vector.field(2, float, shape=N, needs_grad=True)
    v0 = ti.Vector.field(2, float, shape=N, needs_grad=True)
    radius = ti.field(float, shape=N, needs_grad=True)
    count = ti.field(ti.i32, shape=(STEPS, cells * cells))
    start = ti.field(ti.i32, shape=(STEPS, cells * cells + 1))
    fill = ti.field(ti.i32, shape=(STEPS, cells * cells))
    ids = ti.field(ti.i32, shape=(STEPS, N))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def cell_of(p):
        c = ti.floor(p * cells, ti.i32)
        return ti.min(ti.max(c, 0), cells - 1)

    @ti.kernel
    def init():
        for i in x0:
            x[0, i] = x0[i]
            v[0, i] = v0[i]

    @ti.kernel
    def sort(t: ti.i32):
        for c in range(cells * cells):
            count[t, c] = 0
            fill[t, c] = 0
        for i in range(N):
            c = cell_of(x[t, i])
            ti.atomic_add(count[t, c[0] * cells + c[1]], 1)
        start[t, 0] = 0
        ti.loop_config(serialize=True)
        for c in range(cells * cells):
            start[t, c + 1] = start[t, c] + count[t, c]
        for i in range(N):
            c = cell_of(x[t, i])
            k = c[0] * cells + c[1]
            ids[t, start[t, k] + ti.atomic_add(fill[t, k], 1)] = i

    @ti.kernel
    def step(t: ti.i32):
        for i in range(N):
            f = ti.Vector([0.0, g])
            c = cell_of(x[t, i])
            for a in range(ti.max(c[0] - 1, 0), ti.min(c[0] + 2, cells)):
                for b in range(ti.max(c[1] - 1, 0), ti.min(c[1] + 2, cells)):
                    k = a * cells + b
                    for m in range(start[t, k], start[t, k + 1]):
                        j = ids[t, m]
                        if j != i:
                            d = x[t, j] - x[t, i]
                            dist = d.norm()
                            overlap = radius[i] + radius[j] - dist
                            if overlap > 0:
                                normal = d / dist
                                vn = (v[t, j] - v[t, i]).dot(normal)
                                f += (-kn * overlap + 0.5 * vn) * normal
            v[t + 1, i] = v[t, i] + dt * f
            x[t + 1, i] = x[t, i] + dt * v[t + 1, i]

    @ti.kernel
    def measure():
        for i in range(N):
            loss[None] += v[STEPS, i].norm_sqr()

    def run():
        init()
        for t in range(STEPS):
            sort(t)
            step(t)
        measure()

    return run, loss, dict(x0=x0, v0=v0, radius=radius)
