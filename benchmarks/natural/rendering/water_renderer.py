"""DiffTaichi's water renderer: waves in a pool with guarded neighbours, then refraction and a texture."""

SIZES = (64, 256, 724)
STEPS = 32


def given(n, random):
    return dict(start=0.1 * random.standard_normal((n, n)), floor=random.uniform(0, 1, (n, n, 3)))


def work(n):
    return n * n * STEPS, 12, 15


def program(ti, n, shapes):
    height = ti.field(float, shape=(STEPS + 2, n, n), needs_grad=True)
    seen = ti.Vector.field(3, float, shape=(n, n), needs_grad=True)
    start = ti.field(float, shape=(n, n), needs_grad=True)
    floor = ti.Vector.field(3, float, shape=(n, n))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def at(t, i, j):
        return height[t, ti.max(0, ti.min(i, n - 1)), ti.max(0, ti.min(j, n - 1))]

    @ti.func
    def laplacian(t, i, j):
        around = at(t, i - 1, j) + at(t, i + 1, j) + at(t, i, j - 1) + at(t, i, j + 1)
        return around - 4 * height[t, i, j]

    @ti.func
    def gradient(t, i, j):
        return 0.5 * ti.Vector(
            [at(t, i + 1, j) - at(t, i - 1, j), at(t, i, j + 1) - at(t, i, j - 1)]
        )

    @ti.func
    def look(x, y):
        x = ti.max(0.0, ti.min(x, n - 1.001))
        y = ti.max(0.0, ti.min(y, n - 1.001))
        i, j = int(x), int(y)
        a, b = x - i, y - j
        low = (1 - b) * floor[i, j] + b * floor[i, j + 1]
        high = (1 - b) * floor[i + 1, j] + b * floor[i + 1, j + 1]
        return (1 - a) * low + a * high

    @ti.kernel
    def begin():
        for i, j in start:
            height[0, i, j] = start[i, j]
            height[1, i, j] = start[i, j]

    @ti.kernel
    def step(t: ti.i32):
        for i, j in start:
            speed = 0.99 * (height[t, i, j] - height[t - 1, i, j])
            height[t + 1, i, j] = height[t, i, j] + speed + 0.2 * laplacian(t, i, j)

    @ti.kernel
    def render(t: ti.i32):
        for i, j in start:
            slope = gradient(t, i, j)
            normal = ti.Vector([-slope[0], -slope[1], 1.0]).normalized()
            turn = normal[2] / 1.333 - ti.sqrt(1 - (1 - normal[2] ** 2) / 1.333**2)
            way = turn * normal - ti.Vector([0.0, 0.0, 1.0]) / 1.333
            deep = 10.0 + height[t, i, j]
            seen[i, j] = look(i - deep * way[0] / way[2], j - deep * way[1] / way[2])

    @ti.kernel
    def compare():
        for i, j in start:
            loss[None] += (seen[i, j] - floor[i, j]).norm_sqr() / (n * n)

    def run():
        begin()
        for t in range(1, STEPS + 1):
            step(t)
        render(STEPS + 1)
        compare()

    return run, loss, dict(start=start, floor=floor)
