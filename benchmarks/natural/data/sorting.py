"""Bitonic sorting in place, a launch per stage; gradient of a weighted sum of the sorted numbers."""

SIZES = (1 << 10, 1 << 16, 1 << 19)


def given(n, random):
    return dict(x=random.standard_normal(n), weight=random.standard_normal(n))


def work(n):
    stages = (n.bit_length() - 1) * n.bit_length() // 2
    return n * stages, 8, 4


def program(ti, n, shapes):
    x = ti.field(float, shape=n, needs_grad=True)
    y = ti.field(float, shape=n, needs_grad=True)
    weight = ti.field(float, shape=n)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for i in x:
            y[i] = x[i]

    @ti.kernel
    def stage(k: ti.i32, j: ti.i32):
        for i in x:
            other = i ^ j
            if other > i:
                a, b = y[i], y[other]
                if (a > b) == ((i & k) == 0):
                    y[i] = b
                    y[other] = a

    @ti.kernel
    def add_up():
        for i in x:
            loss[None] += weight[i] * y[i] / n

    def run():
        begin()
        k = 2
        while k <= n:
            j = k // 2
            while j > 0:
                stage(k, j)
                j //= 2
            k *= 2
        add_up()

    return run, loss, dict(x=x, weight=weight)
