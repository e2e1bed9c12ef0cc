"""SPH densities: particles sorted into cells by counting, then sums over the nine cells around."""

SIZES = (24, 128, 362)
TAICHI = dict(ad_stack_size=256)


def given(n, random):
    return dict(x=(random.random((n * n, 2)) * 0.5 + grid_points(n, random)) * 1.0)


def grid_points(n, random):
    import numpy as np

    return np.mgrid[:n, :n].reshape(2, -1).T + 0.25


def work(n):
    return n * n * 25, 8, 15


def program(ti, n, shapes):
    reach, cells, count = 1.6, int(n / 1.6) + 1, n * n
    x = ti.Vector.field(2, float, shape=count, needs_grad=True)
    rho = ti.field(float, shape=count, needs_grad=True)
    first = ti.field(ti.i32, shape=cells * cells + 1)
    taken = ti.field(ti.i32, shape=cells * cells)
    order = ti.field(ti.i32, shape=count)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def cell(p):
        return ti.Vector([int(x[p][0] / reach), int(x[p][1] / reach)])

    @ti.kernel
    def sort():
        for c in taken:
            taken[c] = 0
        for p in range(count):
            c = cell(p)
            taken[c[0] * cells + c[1]] += 1
        ti.loop_config(serialize=True)
        for c in range(cells * cells):
            first[c + 1] = first[c] + taken[c]
        for c in taken:
            taken[c] = 0
        for p in range(count):
            c = cell(p)
            k = c[0] * cells + c[1]
            order[first[k] + ti.atomic_add(taken[k], 1)] = p

    @ti.func
    def weight(r):
        q = ti.min(r / reach, 1.0)
        return (1 - q) ** 4 * (1 + 4 * q)

    @ti.kernel
    def weigh():
        for p in range(count):
            c = cell(p)
            total = 0.0
            for i in range(ti.max(c[0] - 1, 0), ti.min(c[0] + 2, cells)):
                for j in range(ti.max(c[1] - 1, 0), ti.min(c[1] + 2, cells)):
                    k = i * cells + j
                    for m in range(first[k], first[k + 1]):
                        q = order[m]
                        if q != p:
                            total += weight((x[p] - x[q]).norm())
            rho[p] = total

    @ti.kernel
    def compare():
        for p in range(count):
            loss[None] += (rho[p] - 1.0) ** 2 / count

    def run():
        sort()
        weigh()
        compare()

    return run, loss, dict(x=x)
