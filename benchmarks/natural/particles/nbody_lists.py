"""Lennard-Jones atoms with neighbour lists that kernels build by a grid; gradients are the forces."""

SIZES = (8, 24, 48)
MOST = 64  # neighbours of an atom, and atoms of a cell


def given(n, random):
    import numpy as np

    places = np.mgrid[:n, :n, :n].reshape(3, -1).T + 0.5
    return dict(x=1.1 * (places + 0.1 * random.uniform(-1, 1, places.shape)))


def work(n):
    return n**3 * 60, 16, 20


def program(ti, n, shapes):
    reach, count = 2.5, n**3
    cells = int(1.1 * n / reach) + 1
    x = ti.Vector.field(3, float, shape=count, needs_grad=True)
    filled = ti.field(ti.i32, shape=(cells, cells, cells))
    inside = ti.field(ti.i32, shape=(cells, cells, cells, MOST))
    near = ti.field(ti.i32, shape=count)
    neighbour = ti.field(ti.i32, shape=(count, 2 * MOST))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def fill():
        for c in ti.grouped(filled):
            filled[c] = 0
        for p in range(count):
            c = ti.cast(x[p] / reach, ti.i32)
            k = ti.atomic_add(filled[c], 1)
            inside[c[0], c[1], c[2], k] = p

    @ti.kernel
    def search():
        for p in range(count):
            c = ti.cast(x[p] / reach, ti.i32)
            found = 0
            for i in range(ti.max(c[0] - 1, 0), ti.min(c[0] + 2, cells)):
                for j in range(ti.max(c[1] - 1, 0), ti.min(c[1] + 2, cells)):
                    for k in range(ti.max(c[2] - 1, 0), ti.min(c[2] + 2, cells)):
                        for m in range(filled[i, j, k]):
                            q = inside[i, j, k, m]
                            if q > p and (x[p] - x[q]).norm() < reach and found < 2 * MOST:
                                neighbour[p, found] = q
                                found += 1
            near[p] = found

    @ti.kernel
    def energy():
        for p in range(count):
            for k in range(near[p]):
                d = x[p] - x[neighbour[p, k]]
                s = 1.0 / d.norm_sqr()
                s3 = s * s * s
                loss[None] += 4.0 * (s3 * s3 - s3)

    def run():
        fill()
        search()
        energy()

    return run, loss, dict(x=x)
