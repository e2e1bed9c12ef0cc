"""A network of two hidden layers in kernels, with loops over neurons: gradients of the weights."""

SIZES = (256, 2048, 16384)
IN, HIDDEN = 8, 64


def given(n, random):
    return dict(
        x=random.standard_normal((n, IN)),
        goal=random.standard_normal(n),
        w1=random.standard_normal((HIDDEN, IN)) / IN**0.5,
        w2=random.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5,
        w3=random.standard_normal(HIDDEN) / HIDDEN**0.5,
    )


def work(n):
    return n, 4 * (IN + 4 * HIDDEN), 2 * (IN * HIDDEN + HIDDEN * HIDDEN + HIDDEN) + 40 * HIDDEN


def program(ti, n, shapes):
    x = ti.field(float, shape=(n, IN))
    goal = ti.field(float, shape=n)
    w1 = ti.field(float, shape=(HIDDEN, IN), needs_grad=True)
    w2 = ti.field(float, shape=(HIDDEN, HIDDEN), needs_grad=True)
    w3 = ti.field(float, shape=HIDDEN, needs_grad=True)
    h1 = ti.field(float, shape=(n, HIDDEN), needs_grad=True)
    h2 = ti.field(float, shape=(n, HIDDEN), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def first():
        for i, j in h1:
            total = 0.0
            for k in range(IN):
                total += w1[j, k] * x[i, k]
            h1[i, j] = ti.tanh(total)

    @ti.kernel
    def second():
        for i, j in h2:
            total = 0.0
            for k in range(HIDDEN):
                total += w2[j, k] * h1[i, k]
            h2[i, j] = ti.tanh(total)

    @ti.kernel
    def last():
        for i in goal:
            total = 0.0
            for k in range(HIDDEN):
                total += w3[k] * h2[i, k]
            loss[None] += (total - goal[i]) ** 2 / n

    def run():
        first()
        second()
        last()

    return run, loss, dict(x=x, goal=goal, w1=w1, w2=w2, w3=w3)


TAICHI = dict(ad_stack_size=96)
