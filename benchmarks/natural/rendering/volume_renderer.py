"""DiffTaichi's volume renderer: rays through a box of densities, the nearest cell at each sample."""

SIZES = (16, 64, 128)
VIEWS = 2
SAMPLES = 64


def given(n, random):
    return dict(
        density=random.uniform(0, 1, (n, n, n)), goal=random.uniform(0, 9, (VIEWS, 2 * n, 2 * n))
    )


def work(n):
    return VIEWS * 4 * n * n * SAMPLES, 4, 20


def program(ti, n, shapes):
    density = ti.field(float, shape=(n, n, n), needs_grad=True)
    image = ti.field(float, shape=(VIEWS, 2 * n, 2 * n), needs_grad=True)
    goal = ti.field(float, shape=(VIEWS, 2 * n, 2 * n))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def inside(p):
        return 0.0 <= p[0] < 1.0 and 0.0 <= p[1] < 1.0 and 0.0 <= p[2] < 1.0

    @ti.kernel
    def clear():
        for v, i, j in image:
            image[v, i, j] = 0.0

    @ti.kernel
    def render(v: ti.i32, angle: float):
        for i, j in ti.ndrange(2 * n, 2 * n):
            x, y = (i + 0.5) / n - 1, (j + 0.5) / n - 1
            s, c = ti.sin(angle), ti.cos(angle)
            way = ti.Vector([c * x - s, y, -s * x - c]).normalized()
            eye = ti.Vector([0.5 + 1.2 * s, 0.5, 0.5 + 1.2 * c])
            for k in range(SAMPLES):
                p = eye + (k + 0.5) * (2.4 / SAMPLES) * way
                if inside(p):
                    cell = int(p * n)
                    image[v, i, j] += density[cell] * (2.4 / SAMPLES)

    @ti.kernel
    def compare():
        for v, i, j in image:
            loss[None] += (image[v, i, j] - goal[v, i, j]) ** 2 / (n * n)

    def run():
        clear()
        for v in range(VIEWS):
            render(v, 0.5 + v)
        compare()

    return run, loss, dict(density=density, goal=goal)
