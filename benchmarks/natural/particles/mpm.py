"""MLS-MPM in the plane, an elastic block, grid and particles with a time axis."""

SIZES = (24, 96, 272)
STEPS = 8


def given(n, random):
    p = n * n
    return dict(x0=0.3 + 0.4 * random.random((p, 2)), v0=random.standard_normal((p, 2)))


def work(n):
    return n * n * STEPS, 200, 400


def program(ti, n, shapes):
    count, dx, dt = n * n, 1 / n, 1e-4
    x = ti.Vector.field(2, float, shape=(STEPS + 1, count), needs_grad=True)
    v = ti.Vector.field(2, float, shape=(STEPS + 1, count), needs_grad=True)
    C = ti.Matrix.field(2, 2, float, shape=(STEPS + 1, count), needs_grad=True)
    F = ti.Matrix.field(2, 2, float, shape=(STEPS + 1, count), needs_grad=True)
    grid_v = ti.Vector.field(2, float, shape=(STEPS, n, n), needs_grad=True)
    grid_m = ti.field(float, shape=(STEPS, n, n), needs_grad=True)
    grid_u = ti.Vector.field(2, float, shape=(STEPS, n, n), needs_grad=True)
    x0 = ti.Vector.field(2, float, shape=count, needs_grad=True)
    v0 = ti.Vector.field(2, float, shape=count, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for p in x0:
            x[0, p] = x0[p]
            v[0, p] = v0[p]
            F[0, p] = ti.Matrix([[1.0, 0.0], [0.0, 1.0]])
            C[0, p] = ti.Matrix([[0.0, 0.0], [0.0, 0.0]])

    @ti.kernel
    def clear():
        for t, i, j in grid_m:
            grid_m[t, i, j] = 0.0
            grid_v[t, i, j] = ti.Vector([0.0, 0.0])

    @ti.kernel
    def to_grid(t: ti.i32):
        for p in x0:
            base = ti.cast(x[t, p] * n - 0.5, ti.i32)
            fx = x[t, p] * n - ti.cast(base, float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new = (ti.Matrix([[1.0, 0.0], [0.0, 1.0]]) + dt * C[t, p]) @ F[t, p]
            F[t + 1, p] = new
            J = new.determinant()
            stress = 50.0 * (new @ new.transpose()) + ti.Matrix([[1.0, 0.0], [0.0, 1.0]]) * (
                50.0 * J * (J - 1) - 50.0
            )
            affine = -(dt * 4 * n * n * dx * dx * 0.25) * stress + C[t, p]
            for i, j in ti.static(ti.ndrange(3, 3)):
                offset = ti.Vector([i, j])
                dpos = (ti.cast(offset, float) - fx) * dx
                weight = w[i][0] * w[j][1]
                grid_v[t, base + offset] += weight * (v[t, p] + affine @ dpos)
                grid_m[t, base + offset] += weight

    @ti.kernel
    def on_grid(t: ti.i32):
        for i, j in ti.ndrange(n, n):
            u = grid_v[t, i, j] / (grid_m[t, i, j] + 1e-10)
            u[1] -= dt * 9.8
            if i < 3 and u[0] < 0:
                u[0] = 0.0
            if i > n - 3 and u[0] > 0:
                u[0] = 0.0
            if j < 3 and u[1] < 0:
                u[1] = 0.0
            if j > n - 3 and u[1] > 0:
                u[1] = 0.0
            grid_u[t, i, j] = u

    @ti.kernel
    def to_particles(t: ti.i32):
        for p in x0:
            base = ti.cast(x[t, p] * n - 0.5, ti.i32)
            fx = x[t, p] * n - ti.cast(base, float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = ti.Vector([0.0, 0.0])
            new_C = ti.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ti.static(ti.ndrange(3, 3)):
                dpos = ti.cast(ti.Vector([i, j]), float) - fx
                g_v = grid_u[t, base[0] + i, base[1] + j]
                weight = w[i][0] * w[j][1]
                new_v += weight * g_v
                new_C += 4 * weight * g_v.outer_product(dpos) * n
            v[t + 1, p] = new_v
            x[t + 1, p] = x[t, p] + dt * new_v
            C[t + 1, p] = new_C

    @ti.kernel
    def compare():
        for p in x0:
            loss[None] += (x[STEPS, p][0] + 0.1 * v[STEPS, p].norm_sqr()) / count

    def run():
        begin()
        clear()
        for t in range(STEPS):
            to_grid(t)
            on_grid(t)
            to_particles(t)
        compare()

    return run, loss, dict(x0=x0, v0=v0)
