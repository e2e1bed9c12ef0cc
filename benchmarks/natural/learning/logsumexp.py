"""Log-sum-exp of rows of 128 numbers, made safe by their maximum."""

SIZES = (200, 10000, 80000)
COLUMNS = 128
TAICHI = dict(ad_stack_size=160)


def given(n, random):
    return dict(x=random.standard_normal((n, COLUMNS)))


def work(n):
    return n * COLUMNS, 4, 20


def program(ti, n, shapes):
    x = ti.field(float, shape=(n, COLUMNS), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def add_up():
        for i in range(n):
            most = x[i, 0]
            for j in range(1, COLUMNS):
                most = ti.max(most, x[i, j])
            total = 0.0
            for j in range(COLUMNS):
                total += ti.exp(x[i, j] - most)
            loss[None] += (most + ti.log(total)) / n

    return add_up, loss, dict(x=x)
