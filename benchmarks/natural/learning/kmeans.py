"""The k-means objective: squared distance of each point to its nearest centre; gradient of centres."""

SIZES = (1000, 10000, 80000)
CENTRES, D = 100, 16


def given(n, random):
    return dict(points=random.standard_normal((n, D)), centres=random.standard_normal((CENTRES, D)))


def work(n):
    return n * CENTRES, 0.64, 3 * D


def program(ti, n, shapes):
    points = ti.field(float, shape=(n, D), needs_grad=True)
    centres = ti.field(float, shape=(CENTRES, D), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def cost():
        for i in range(n):
            best = 1e30
            for c in range(CENTRES):
                far = 0.0
                for d in range(D):
                    far += (points[i, d] - centres[c, d]) ** 2
                best = ti.min(best, far)
            loss[None] += best / n

    return cost, loss, dict(points=points, centres=centres)


TAICHI = dict(ad_stack_size=128)
