"""Poisson's equation by Jacobi's method on arrays that kernels are given; gradient of the right side."""

SIZES = (64, 512, 1448)
SWEEPS = 16
C = "jacobi"


def given(n, random):
    return dict(b=random.standard_normal((n, n)))


def work(n):
    return n * n * SWEEPS, 12, 5


def program(ti, n, shapes):
    x = [ti.ndarray(float, shape=(n, n), needs_grad=True) for _ in range(SWEEPS + 1)]
    b = ti.ndarray(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def sweep(old: ti.types.ndarray(), new: ti.types.ndarray(), b: ti.types.ndarray()):
        for i, j in ti.ndrange((1, old.shape[0] - 1), (1, old.shape[1] - 1)):
            around = old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1]
            new[i, j] = 0.25 * (around + b[i, j])

    @ti.kernel
    def compare(x: ti.types.ndarray()):
        for i, j in x:
            loss[None] += x[i, j] ** 2 / (n * n)

    def run():
        for k in range(SWEEPS):
            sweep(x[k], x[k + 1], b)
        compare(x[SWEEPS])

    return run, loss, dict(b=b)
