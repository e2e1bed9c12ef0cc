"""Poles on carts, held by a linear feedback: a launch per step, states with a time axis."""

SIZES = (512, 4096, 32768)
STEPS = 50


def given(n, random):
    import numpy as np

    return dict(start=0.1 * random.standard_normal((n, 4)), gains=np.array([0.5, 1.0, 12.0, 3.0]))


def work(n):
    return n * STEPS, 32, 70


def program(ti, n, shapes):
    dt = 0.02
    s = ti.Vector.field(4, float, shape=(STEPS + 1, n), needs_grad=True)
    start = ti.Vector.field(4, float, shape=n, needs_grad=True)
    gains = ti.field(float, shape=4, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def begin():
        for i in start:
            s[0, i] = start[i]

    @ti.kernel
    def step(t: ti.i32):
        for i in start:
            y = s[t, i]
            push = 0.0
            for k in ti.static(range(4)):
                push += gains[k] * y[k]
            force = 10.0 * ti.tanh(push / 10.0)
            sin, cos = ti.sin(y[2]), ti.cos(y[2])
            drive = (force + 0.05 * y[3] * y[3] * sin) / 1.1
            turn = (9.81 * sin - cos * drive) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
            go = drive - 0.05 * turn * cos / 1.1
            s[t + 1, i] = y + dt * ti.Vector([y[1], go, y[3], turn])

    @ti.kernel
    def compare():
        for t, i in s:
            loss[None] += (0.3 * s[t, i][0] ** 2 + s[t, i][2] ** 2) / n

    def run():
        begin()
        for t in range(STEPS):
            step(t)
        compare()

    return run, loss, dict(start=start, gains=gains)
