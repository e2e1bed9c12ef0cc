"""Flow on a torus by the lattice Boltzmann method (D2Q9, one relaxation time), pulled from neighbours."""

SIZES = (24, 256, 724)
STEPS = 8
SPEEDS = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
WEIGHTS = (4 / 9, 1 / 9, 1 / 9, 1 / 9, 1 / 9, 1 / 36, 1 / 36, 1 / 36, 1 / 36)


def given(n, random):
    return dict(start=(1 + 0.1 * random.standard_normal((n, n, 9))) * WEIGHTS)


def work(n):
    return n * n * STEPS, 72, 120


def program(ti, n, shapes):
    f = ti.Vector.field(9, float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.Vector.field(9, float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for i, j in start:
            f[0, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            density, u, v = 0.0, 0.0, 0.0
            pulled = ti.Vector([0.0 for _ in range(9)])
            for k in ti.static(range(9)):
                here = f[t, (i + n - SPEEDS[k][0]) % n, (j + n - SPEEDS[k][1]) % n][k]
                pulled[k] = here
                density += here
                u += SPEEDS[k][0] * here
                v += SPEEDS[k][1] * here
            u /= density
            v /= density
            for k in ti.static(range(9)):
                along = SPEEDS[k][0] * u + SPEEDS[k][1] * v
                rest = 1 + 3 * along + 4.5 * along * along - 1.5 * (u * u + v * v)
                f[t + 1, i, j][k] = 0.4 * pulled[k] + 0.6 * WEIGHTS[k] * density * rest

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += (f[STEPS, i, j][1] - f[STEPS, i, j][3]) ** 2 / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start)
