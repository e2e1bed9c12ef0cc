"""Soft dynamic time warping of pairs of series."""

SIZES = (16, 512, 4096)
L = 24


def given(n, random):
    return dict(
        a=random.standard_normal((n, L)).cumsum(1), b=random.standard_normal((n, L)).cumsum(1)
    )


def work(n):
    return n, 4 * L * L, 60 * L * L


def program(ti, n, shapes):
    a = ti.field(float, shape=(n, L), needs_grad=True)
    b = ti.field(float, shape=(n, L), needs_grad=True)
    r = ti.field(float, shape=(n, L + 1, L + 1), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def start():
        for p in range(n):
            for i in range(1, L + 1):
                r[p, i, 0] = 1e4
                r[p, 0, i] = 1e4
            r[p, 0, 0] = 0.0

    @ti.kernel
    def warp():
        for p in range(n):
            for i in range(1, L + 1):
                for j in range(1, L + 1):
                    x = r[p, i - 1, j]
                    y = r[p, i, j - 1]
                    z = r[p, i - 1, j - 1]
                    low = ti.min(x, ti.min(y, z))
                    soft = low - ti.log(ti.exp(low - x) + ti.exp(low - y) + ti.exp(low - z))
                    r[p, i, j] = (a[p, i - 1] - b[p, j - 1]) ** 2 + soft

    @ti.kernel
    def total():
        for p in range(n):
            loss[None] += r[p, L, L] / n

    def run():
        start()
        warp()
        total()

    return run, loss, dict(a=a, b=b)


TAICHI = dict(ad_stack_size=1024)
