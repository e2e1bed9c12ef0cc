"""Burgers' equation on a torus, upwind by the sign; gradient of the start and of the viscosity."""

SIZES = (64, 512, 1448)
STEPS = 10


def given(n, random):
    return dict(start=0.5 * random.standard_normal((n, n, 2)), nu=0.05 + 0.05 * random.random(1))


def work(n):
    return n * n * STEPS, 16, 50


def program(ti, n, shapes):
    w = ti.Vector.field(2, float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.Vector.field(2, float, shape=(n, n), needs_grad=True)
    nu = ti.field(float, shape=1, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for i, j in start:
            w[0, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            im, ip = (i - 1 + n) % n, (i + 1) % n
            jm, jp = (j - 1 + n) % n, (j + 1) % n
            c = w[t, i, j]
            dx = w[t, ip, j] - c
            if c[0] > 0:
                dx = c - w[t, im, j]
            dy = w[t, i, jp] - c
            if c[1] > 0:
                dy = c - w[t, i, jm]
            lap = w[t, ip, j] + w[t, im, j] + w[t, i, jp] + w[t, i, jm] - 4.0 * c
            w[t + 1, i, j] = c + 0.1 * (nu[0] * lap - c[0] * dx - c[1] * dy)

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += w[STEPS, i, j].norm_sqr() / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start, nu=nu)
