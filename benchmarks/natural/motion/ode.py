"""Runge and Kutta's method in one kernel: 100 steps of van der Pol's oscillator a lane."""

SIZES = (1000, 10000, 80000)
STEPS = 100
TAICHI = dict(ad_stack_size=128)


def given(n, random):
    return dict(start=random.standard_normal((n, 2)), mu=random.uniform(0.5, 1.5, n))


def work(n):
    return n * STEPS, 0.2, 50


def program(ti, n, shapes):
    dt = 0.02
    start = ti.Vector.field(2, float, shape=n, needs_grad=True)
    mu = ti.field(float, shape=n, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def rate(y, m):
        return ti.Vector([y[1], m * (1.0 - y[0] * y[0]) * y[1] - y[0]])

    @ti.kernel
    def solve():
        for i in range(n):
            y = start[i]
            for _ in range(STEPS):
                k1 = rate(y, mu[i])
                k2 = rate(y + 0.5 * dt * k1, mu[i])
                k3 = rate(y + 0.5 * dt * k2, mu[i])
                k4 = rate(y + dt * k3, mu[i])
                y += dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
            loss[None] += y.norm_sqr() / n

    return solve, loss, dict(start=start, mu=mu)
