"""Shallow water on a torus, Lax and Friedrichs' method; gradient of the state at the start."""

SIZES = (32, 384, 1088)
STEPS = 12


def given(n, random):
    start = 0.1 * random.standard_normal((n, n, 3))
    start[..., 0] += 1.0
    return dict(start=start)


def work(n):
    return n * n * STEPS, 24, 60


def program(ti, n, shapes):
    q = ti.Vector.field(3, float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.Vector.field(3, float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def flux_x(s):
        u = s[1] / s[0]
        return ti.Vector([s[1], s[1] * u + 4.9 * s[0] * s[0], s[2] * u])

    @ti.func
    def flux_y(s):
        v = s[2] / s[0]
        return ti.Vector([s[2], s[1] * v, s[2] * v + 4.9 * s[0] * s[0]])

    @ti.kernel
    def begin():
        for i, j in start:
            q[0, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            west, east = q[t, (i + n - 1) % n, j], q[t, (i + 1) % n, j]
            south, north = q[t, i, (j + n - 1) % n], q[t, i, (j + 1) % n]
            mean = 0.25 * (west + east + south + north)
            change = flux_x(east) - flux_x(west) + flux_y(north) - flux_y(south)
            q[t + 1, i, j] = mean - 0.05 * change

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += (q[STEPS, i, j][0] - 1.0) ** 2 / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start)
