"""A cloth of springs falls on a ball: eight guarded neighbours, collisions, a time axis."""

SIZES = (32, 192, 543)
STEPS = 12


def given(n, random):
    import numpy as np

    i, j = np.mgrid[:n, :n] / n
    return dict(start=np.stack([i, 0.3 + 0.02 * random.random((n, n)), j], -1))


def work(n):
    return n * n * STEPS, 48, 160


def program(ti, n, shapes):
    dt = 1e-3
    x = ti.Vector.field(3, float, shape=(STEPS + 1, n, n), needs_grad=True)
    v = ti.Vector.field(3, float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.Vector.field(3, float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)
    links = [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]

    @ti.kernel
    def begin():
        for i, j in start:
            x[0, i, j] = start[i, j]
            v[0, i, j] = ti.Vector([0.0, -1.0, 0.0])

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            force = ti.Vector([0.0, -9.8, 0.0])
            for d in ti.static(links):
                if 0 <= i + d[0] < n and 0 <= j + d[1] < n:
                    way = x[t, i + d[0], j + d[1]] - x[t, i, j]
                    rest = (d[0] ** 2 + d[1] ** 2) ** 0.5 / n
                    force += 1000.0 * way.normalized() * (way.norm() / rest - 1.0)
            speed = (v[t, i, j] + dt * force) * 0.999
            out = x[t, i, j] - ti.Vector([0.5, 0.0, 0.5])
            if out.norm() < 0.3:
                normal = out.normalized()
                speed -= ti.min(speed.dot(normal), 0.0) * normal
            v[t + 1, i, j] = speed
            x[t + 1, i, j] = x[t, i, j] + dt * speed

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += x[STEPS, i, j].norm_sqr() / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start)
