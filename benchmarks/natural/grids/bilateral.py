"""A bilateral filter of a picture, 7 × 7 neighbours; gradient of the picture."""

SIZES = (32, 256, 724)
R = 3


def given(n, random):
    return dict(image=random.random((n, n)), noise=random.random((n, n)))


def work(n):
    return n * n, 8, 49 * 20


def program(ti, n, shapes):
    image = ti.field(float, shape=(n, n), needs_grad=True)
    noise = ti.field(float, shape=(n, n))
    out = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def filter():
        for i, j in image:
            total, weights = 0.0, 0.0
            lo_k, hi_k = ti.max(0, i - R), ti.min(n, i + R + 1)
            lo_l, hi_l = ti.max(0, j - R), ti.min(n, j + R + 1)
            for k in range(lo_k, hi_k):
                for l in range(lo_l, hi_l):
                    near = ((k - i) ** 2 + (l - j) ** 2) / (2.0 * R * R)
                    w = ti.exp(-near - (image[k, l] - image[i, j]) ** 2 / 0.1)
                    total += w * image[k, l]
                    weights += w
            out[i, j] = total / weights

    @ti.kernel
    def compare():
        for i, j in image:
            loss[None] += (out[i, j] - noise[i, j]) ** 2 / (n * n)

    def run():
        filter()
        compare()

    return run, loss, dict(image=image, noise=noise)
