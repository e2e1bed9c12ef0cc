"""Stereo by belief propagation: messages of labels from four sides, soft minima; gradient of the pictures."""

import numpy as np

SIZES = (24, 96, 272)
L, ROUNDS = 8, 4


def given(n, random):
    left, right = (random.uniform(0, 1, (n, n + L)) for _ in range(2))
    return dict(left=left, right=right, smooth=np.array([0.6, 1.5]))


def work(n):
    return n * n * ROUNDS * 4, 4 * L * 5, L * L * 25


def program(ti, n, shapes):
    left = ti.field(float, (n, n + L), needs_grad=True)
    right = ti.field(float, (n, n + L), needs_grad=True)
    smooth = ti.field(float, 2, needs_grad=True)
    cost = ti.field(float, (n, n, L), needs_grad=True)
    msg = ti.field(float, (ROUNDS + 1, 4, n, n, L), needs_grad=True)
    loss = ti.field(float, (), needs_grad=True)
    SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0))

    @ti.kernel
    def matching():
        for i, j, l in cost:
            d = left[i, j + l] - right[i, j]
            cost[i, j, l] = ti.sqrt(d * d + 1e-3)

    @ti.kernel
    def begin():
        for k, i, j, l in ti.ndrange(4, n, n, L):
            msg[0, k, i, j, l] = 0.0

    @ti.func
    def inside(i, j):
        return 0 <= i < n and 0 <= j < n

    @ti.kernel
    def pass_messages(r: ti.i32):
        for i, j in ti.ndrange(n, n):
            # message k at (i, j) came from the neighbour in direction k
            for k in ti.static(range(4)):
                a, b = i + SIDES[k][0], j + SIDES[k][1]
                if inside(a, b):
                    mean = 0.0
                    for l in range(L):
                        total = 0.0
                        for m in range(L):
                            h = cost[a, b, m]
                            for q in ti.static(range(4)):
                                if ti.static(q != (k ^ 1)):
                                    h += msg[r, q, a, b, m]
                            total += ti.exp(-h - smooth[0] * ti.min(ti.abs(l - m), smooth[1]))
                        value = -ti.log(total)
                        msg[r + 1, k, i, j, l] = value
                        mean += value / L
                    for l in range(L):
                        msg[r + 1, k, i, j, l] -= mean
                else:
                    for l in range(L):
                        msg[r + 1, k, i, j, l] = 0.0

    @ti.kernel
    def measure():
        for i, j in ti.ndrange(n, n):
            z = 0.0
            e = 0.0
            for l in range(L):
                h = cost[i, j, l]
                for k in range(4):
                    h += msg[ROUNDS, k, i, j, l]
                z += ti.exp(-h)
                e += l * ti.exp(-h)
            loss[None] += (e / z - 3.0) ** 2 / (n * n)

    def run():
        matching()
        begin()
        for r in range(ROUNDS):
            pass_messages(r)
        measure()

    return run, loss, dict(left=left, right=right, smooth=smooth)
