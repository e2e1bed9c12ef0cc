"""A layer of n x n weights, unrolled by ti.static: what compiling costs."""

SIZES = (8, 16, 24)
BATCH = 256


def given(n, random):
    return dict(x=random.standard_normal((BATCH, n)), w=random.standard_normal((n, n)) / n**0.5)


def work(n):
    return BATCH * n, 8, 2 * n + 30


def program(ti, n, shapes):
    x = ti.field(float, shape=(BATCH, n), needs_grad=True)
    w = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def layer():
        for i in range(BATCH):
            for j in ti.static(range(n)):
                total = 0.0
                for k in ti.static(range(n)):
                    total += w[j, k] * x[i, k]
                loss[None] += ti.tanh(total) / BATCH

    return layer, loss, dict(x=x, w=w)
