"""Advection by tracing back, values mixed of four cells; gradients of the start and of the wind."""

SIZES = (64, 512, 1448)
STEPS = 8


def given(n, random):
    return dict(start=random.standard_normal((n, n)), wind=2.0 * random.standard_normal((n, n, 2)))


def work(n):
    return n * n * STEPS, 16, 30


def program(ti, n, shapes):
    q = ti.field(float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.field(float, shape=(n, n), needs_grad=True)
    wind = ti.Vector.field(2, float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def sample(t, x, y):
        x = ti.max(0.0, ti.min(x, n - 1.001))
        y = ti.max(0.0, ti.min(y, n - 1.001))
        i, j = int(x), int(y)
        a, b = x - i, y - j
        low = (1 - b) * q[t, i, j] + b * q[t, i, j + 1]
        high = (1 - b) * q[t, i + 1, j] + b * q[t, i + 1, j + 1]
        return (1 - a) * low + a * high

    @ti.kernel
    def begin():
        for i, j in start:
            q[0, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            q[t + 1, i, j] = sample(t, i - wind[i, j][0], j - wind[i, j][1])

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += q[STEPS, i, j] ** 2 / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start, wind=wind)
