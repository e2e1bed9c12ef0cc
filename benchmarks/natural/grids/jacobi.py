"""Poisson's equation by Jacobi's method, a new array for each sweep; gradient of the right side."""

SIZES = (64, 512, 1448)
SWEEPS = 16


def given(n, random):
    return dict(b=random.standard_normal((n, n)))


def work(n):
    return n * n * SWEEPS, 12, 5


def program(ti, n, shapes):
    x = ti.field(float, shape=(SWEEPS + 1, n, n), needs_grad=True)
    b = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def sweep(k: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            around = x[k, i - 1, j] + x[k, i + 1, j] + x[k, i, j - 1] + x[k, i, j + 1]
            x[k + 1, i, j] = 0.25 * (around + b[i, j])

    @ti.kernel
    def compare():
        for i, j in b:
            loss[None] += x[SWEEPS, i, j] ** 2 / (n * n)

    def run():
        for k in range(SWEEPS):
            sweep(k)
        compare()

    return run, loss, dict(b=b)
