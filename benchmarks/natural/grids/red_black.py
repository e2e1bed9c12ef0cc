"""Poisson's equation by Gauss and Seidel's method in place, red cells then black ones."""

SIZES = (96, 1024, 2896)
SWEEPS = 8


def given(n, random):
    return dict(b=random.standard_normal((n, n)))


def work(n):
    return n * n * SWEEPS, 24, 5


def program(ti, n, shapes):
    x = ti.field(float, shape=(n, n), needs_grad=True)
    b = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for i, j in x:
            x[i, j] = 0.0

    @ti.kernel
    def sweep(color: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            if (i + j) % 2 == color:
                around = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
                x[i, j] = 0.25 * (around + b[i, j])

    @ti.kernel
    def compare():
        for i, j in x:
            loss[None] += x[i, j] ** 2 / (n * n)

    def run():
        begin()
        for _ in range(SWEEPS):
            sweep(0)
            sweep(1)
        compare()

    return run, loss, dict(b=b)
