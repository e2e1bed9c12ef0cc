"""Advection by tracing back, values of 16 cells by Catmull and Rom's cubic; cells outside are 0."""

SIZES = (64, 512, 1448)
STEPS = 4


def given(n, random):
    return dict(start=random.standard_normal((n, n)), wind=2.0 * random.standard_normal((n, n, 2)))


def work(n):
    return n * n * STEPS, 16, 90


def program(ti, n, shapes):
    q = ti.field(float, shape=(STEPS + 1, n, n), needs_grad=True)
    start = ti.field(float, shape=(n, n), needs_grad=True)
    wind = ti.Vector.field(2, float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def get(t, i, j):
        value = 0.0
        if i >= 0 and i < n and j >= 0 and j < n:
            value = q[t, i, j]
        return value

    @ti.func
    def cubic(a, b, c, d, x):
        s = 0.5 * (c - a)
        e = 0.5 * (d - b)
        return b + x * (s + x * (3 * (c - b) - 2 * s - e + x * (2 * (b - c) + s + e)))

    @ti.func
    def sample(t, x, y):
        i, j = int(ti.floor(x)), int(ti.floor(y))
        rows = ti.Vector([0.0, 0.0, 0.0, 0.0])
        for k in ti.static(range(4)):
            rows[k] = cubic(
                get(t, i + k - 1, j - 1),
                get(t, i + k - 1, j),
                get(t, i + k - 1, j + 1),
                get(t, i + k - 1, j + 2),
                y - j,
            )
        return cubic(rows[0], rows[1], rows[2], rows[3], x - i)

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
