"""Elastic waves on staggered grids, with a sponge; gradient of density, stiffness and start."""

SIZES = (48, 384, 1088)
STEPS = 8


def given(n, random):
    return dict(
        push=random.standard_normal((n, n)),
        rho=1.0 + random.random((n, n)),
        lam=0.5 + random.random((n, n)),
        mu=0.5 + random.random((n, n)),
    )


def work(n):
    return n * n * STEPS, 60, 60


def program(ti, n, shapes):
    def grid(*shape):
        return ti.field(float, shape=(*shape, n, n), needs_grad=True)

    vx, vy = grid(STEPS + 1), grid(STEPS + 1)
    sxx, syy, sxy = grid(STEPS + 1), grid(STEPS + 1), grid(STEPS + 1)
    push, rho, lam, mu = grid(), grid(), grid(), grid()
    loss = ti.field(float, shape=(), needs_grad=True)
    dt = 0.2

    @ti.func
    def sponge(i, j):
        far = ti.min(i, j, n - 1 - i, n - 1 - j)
        damp = 1.0
        if far < 8:
            damp = ti.exp(-0.002 * (8 - far) ** 2)
        return damp

    @ti.kernel
    def begin():
        for i, j in push:
            vx[0, i, j] = push[i, j]
            vy[0, i, j] = 0.0
            sxx[0, i, j] = 0.0
            syy[0, i, j] = 0.0
            sxy[0, i, j] = 0.0

    @ti.kernel
    def velocities(t: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            ax = sxx[t, i, j] - sxx[t, i - 1, j] + sxy[t, i, j] - sxy[t, i, j - 1]
            ay = sxy[t, i + 1, j] - sxy[t, i, j] + syy[t, i, j + 1] - syy[t, i, j]
            damp = sponge(i, j)
            vx[t + 1, i, j] = damp * (vx[t, i, j] + dt / rho[i, j] * ax)
            vy[t + 1, i, j] = damp * (vy[t, i, j] + dt / rho[i, j] * ay)

    @ti.kernel
    def stresses(t: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            exx = vx[t + 1, i + 1, j] - vx[t + 1, i, j]
            eyy = vy[t + 1, i, j] - vy[t + 1, i, j - 1]
            exy = vx[t + 1, i, j + 1] - vx[t + 1, i, j] + vy[t + 1, i, j] - vy[t + 1, i - 1, j]
            l, m, damp = lam[i, j], mu[i, j], sponge(i, j)
            sxx[t + 1, i, j] = damp * (sxx[t, i, j] + dt * ((l + 2 * m) * exx + l * eyy))
            syy[t + 1, i, j] = damp * (syy[t, i, j] + dt * ((l + 2 * m) * eyy + l * exx))
            sxy[t + 1, i, j] = damp * (sxy[t, i, j] + dt * m * exy)

    @ti.kernel
    def compare():
        for i, j in push:
            loss[None] += (vx[STEPS, i, j] ** 2 + vy[STEPS, i, j] ** 2) / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            velocities(t)
            stresses(t)
        compare()

    return run, loss, dict(push=push, rho=rho, lam=lam, mu=mu)
