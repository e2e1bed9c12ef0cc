"""A soft histogram: each number adds to its two nearest bins of 256; gradient of the numbers."""

SIZES = (10000, 1000000, 8000000)
BINS = 256


def given(n, random):
    return dict(x=random.uniform(0, 1, n))


def work(n):
    return n, 4, 8


def program(ti, n, shapes):
    x = ti.field(float, shape=n, needs_grad=True)
    bins = ti.field(float, shape=BINS, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def clear():
        for b in bins:
            bins[b] = 0.0

    @ti.kernel
    def count():
        for i in x:
            at = x[i] * (BINS - 1)
            b = ti.min(int(at), BINS - 2)
            w = at - b
            bins[b] += (1 - w) / n
            bins[b + 1] += w / n

    @ti.kernel
    def compare():
        for b in bins:
            loss[None] += (bins[b] - b / BINS) ** 2

    def run():
        clear()
        count()
        compare()

    return run, loss, dict(x=x)
