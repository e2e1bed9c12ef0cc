"""Vortex particles with Gaussian cores, all pairs, along a time axis."""

SIZES = (128, 1024, 2896)
STEPS = 4


def given(n, random):
    return dict(x0=random.standard_normal((n, 2)), gamma=random.standard_normal(n) / n)


def work(n):
    return n * n * STEPS, 1, 12


def program(ti, n, shapes):
    x = ti.Vector.field(2, float, shape=(STEPS + 1, n), needs_grad=True)
    x0 = ti.Vector.field(2, float, shape=n, needs_grad=True)
    gamma = ti.field(float, shape=n, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def induced(d):
        r2 = d.norm_sqr() + 1e-4
        return ti.Vector([-d.y, d.x]) / r2 * (1.0 - ti.exp(-r2 / 0.01)) / 6.2831853

    @ti.kernel
    def init():
        for i in x0:
            x[0, i] = x0[i]

    @ti.kernel
    def step(t: ti.i32):
        for i in range(n):
            u = ti.Vector([0.0, 0.0])
            for j in range(n):
                u += gamma[j] * induced(x[t, i] - x[t, j])
            x[t + 1, i] = x[t, i] + 0.05 * u

    @ti.kernel
    def measure():
        for i in range(n):
            loss[None] += x[STEPS, i].norm_sqr() / n

    def run():
        init()
        for t in range(STEPS):
            step(t)
        measure()

    return run, loss, dict(x0=x0, gamma=gamma)
