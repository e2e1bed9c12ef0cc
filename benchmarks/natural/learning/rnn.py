"""A recurrent network over 12 times: states with a time axis, a loop over neurons; weights' gradients."""

SIZES = (32, 256, 2048)
TIMES, HIDDEN = 12, 48
TAICHI = dict(ad_stack_size=64)


def given(n, random):
    return dict(
        x=random.standard_normal((TIMES, n)),
        u=random.standard_normal(HIDDEN),
        w=random.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5,
        b=random.standard_normal(HIDDEN),
    )


def work(n):
    return TIMES * n * HIDDEN, 8, 2 * HIDDEN + 30


def program(ti, n, shapes):
    x = ti.field(float, shape=(TIMES, n))
    u = ti.field(float, shape=HIDDEN, needs_grad=True)
    w = ti.field(float, shape=(HIDDEN, HIDDEN), needs_grad=True)
    b = ti.field(float, shape=HIDDEN, needs_grad=True)
    h = ti.field(float, shape=(TIMES + 1, n, HIDDEN), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def step(t: ti.i32):
        for i, j in ti.ndrange(n, HIDDEN):
            total = b[j] + u[j] * x[t, i]
            for k in range(HIDDEN):
                total += w[j, k] * h[t, i, k]
            h[t + 1, i, j] = ti.tanh(total)

    @ti.kernel
    def compare():
        for i, j in ti.ndrange(n, HIDDEN):
            loss[None] += h[TIMES, i, j] ** 2 / n

    def run():
        for t in range(TIMES):
            step(t)
        compare()

    return run, loss, dict(x=x, u=u, w=w, b=b)
