"""Arrival times of a front with a speed at each cell, all cells relaxed at once; gradient of the speed."""

SIZES = (48, 384, 1088)
STEPS = 12


def given(n, random):
    return dict(slow=1.0 + random.random((n, n)))


def work(n):
    return n * n * STEPS, 12, 20


def program(ti, n, shapes):
    T = ti.field(float, shape=(STEPS + 1, n, n), needs_grad=True)
    slow = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def get(t, i, j):
        value = 100.0
        if i >= 0 and j >= 0 and i < n and j < n:
            value = T[t, i, j]
        return value

    @ti.kernel
    def begin():
        for i, j in slow:
            far = ti.abs(i - n // 2) + ti.abs(j - n // 2)
            T[0, i, j] = 1.6 * far

    @ti.kernel
    def relax(t: ti.i32):
        for i, j in slow:
            a = ti.min(get(t, i - 1, j), get(t, i + 1, j))
            b = ti.min(get(t, i, j - 1), get(t, i, j + 1))
            s = slow[i, j]
            new = 0.0
            if ti.abs(a - b) >= s:
                new = ti.min(a, b) + s
            else:
                new = 0.5 * (a + b + ti.sqrt(2.0 * s * s - (a - b) ** 2))
            T[t + 1, i, j] = ti.min(T[t, i, j], new)

    @ti.kernel
    def compare():
        for i, j in slow:
            loss[None] += T[STEPS, i, j] / (n * n)

    def run():
        begin()
        for t in range(STEPS):
            relax(t)
        compare()

    return run, loss, dict(slow=slow)
