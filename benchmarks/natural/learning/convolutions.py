"""Two convolutions of 8 channels, a rectifier and the largest of 2 × 2; gradient of weights and picture."""

SIZES = (16, 96, 272)
CHANNELS = 8


def given(n, random):
    return dict(
        image=random.standard_normal((n, n, CHANNELS)),
        w1=0.1 * random.standard_normal((CHANNELS, CHANNELS, 3, 3)),
        b1=0.1 * random.standard_normal(CHANNELS),
        w2=0.1 * random.standard_normal((CHANNELS, CHANNELS, 3, 3)),
    )


def work(n):
    return n * n, 4 * CHANNELS * 4, CHANNELS * CHANNELS * 9 * 2 * 1.25


def program(ti, n, shapes):
    m = n // 2
    image = ti.field(float, shape=(n, n, CHANNELS), needs_grad=True)
    w1 = ti.field(float, shape=(CHANNELS, CHANNELS, 3, 3), needs_grad=True)
    b1 = ti.field(float, shape=CHANNELS, needs_grad=True)
    w2 = ti.field(float, shape=(CHANNELS, CHANNELS, 3, 3), needs_grad=True)
    hidden = ti.field(float, shape=(n, n, CHANNELS), needs_grad=True)
    pooled = ti.field(float, shape=(m, m, CHANNELS), needs_grad=True)
    out = ti.field(float, shape=(m, m, CHANNELS), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def first():
        for i, j, o in hidden:
            total = b1[o]
            for c in range(CHANNELS):
                for a in range(3):
                    for b in range(3):
                        k, l = i + a - 1, j + b - 1
                        if 0 <= k < n and 0 <= l < n:
                            total += w1[o, c, a, b] * image[k, l, c]
            hidden[i, j, o] = ti.max(total, 0.0)

    @ti.kernel
    def pool():
        for i, j, c in pooled:
            best = hidden[2 * i, 2 * j, c]
            for a in ti.static(range(2)):
                for b in ti.static(range(2)):
                    best = ti.max(best, hidden[2 * i + a, 2 * j + b, c])
            pooled[i, j, c] = best

    @ti.kernel
    def second():
        for i, j, o in out:
            total = 0.0
            for c in range(CHANNELS):
                for a in range(3):
                    for b in range(3):
                        k, l = i + a - 1, j + b - 1
                        if 0 <= k < m and 0 <= l < m:
                            total += w2[o, c, a, b] * pooled[k, l, c]
            out[i, j, o] = total

    @ti.kernel
    def compare():
        for i, j, o in out:
            loss[None] += out[i, j, o] ** 2 / (n * n)

    def run():
        first()
        pool()
        second()
        compare()

    return run, loss, dict(image=image, w1=w1, b1=b1, w2=w2)
