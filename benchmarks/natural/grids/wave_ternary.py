"""Waves on a square: the same with a ternary; gradient of the start."""

SIZES = (64, 512, 1448)
STEPS = 16
C = "wave"


def given(n, random):
    return dict(start=random.standard_normal((n, n)))


def work(n):
    """Cells, bytes and operations of all steps."""
    return n * n * STEPS, 12, 8


def program(ti, n, shapes):
    u = ti.field(float, shape=(STEPS + 2, n, n), needs_grad=True)
    start = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def get(t, i, j):
        return u[t, i, j] if 0 <= i < n and 0 <= j < n else 0.0

    @ti.kernel
    def begin():
        for i, j in start:
            u[0, i, j] = start[i, j]
            u[1, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            around = get(t, i - 1, j) + get(t, i + 1, j) + get(t, i, j - 1) + get(t, i, j + 1)
            bend = around - 4.0 * get(t, i, j)
            u[t + 1, i, j] = 2.0 * u[t, i, j] - u[t - 1, i, j] + 0.2 * bend

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += u[STEPS + 1, i, j] ** 2 / (n * n)

    def run():
        begin()
        for t in range(1, STEPS + 1):
            step(t)
        compare()

    return run, loss, dict(start=start)
