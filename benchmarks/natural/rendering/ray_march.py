"""Rays march to balls by their distance and stop early; gradients of the centres."""

SIZES = (64, 256, 720)
BALLS = 8
MARCHES = 64


def given(n, random):
    balls = random.uniform(-0.7, 0.7, (BALLS, 4))
    balls[:, 3] = 0.3
    return dict(balls=balls)


def work(n):
    return n * n, 4, 20 * BALLS * 8


def program(ti, n, shapes):
    balls = ti.Vector.field(4, float, shape=BALLS, needs_grad=True)
    image = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def distance(p):
        nearest = 9.0
        for b in range(BALLS):
            ball = balls[b]
            nearest = ti.min(nearest, (p - ti.Vector([ball[0], ball[1], ball[2]])).norm() - ball[3])
        return nearest

    @ti.kernel
    def render():
        for i, j in image:
            eye = ti.Vector([0.0, 0.0, -3.0])
            way = ti.Vector([(i + 0.5) / n - 0.5, (j + 0.5) / n - 0.5, 1.0]).normalized()
            t = 0.0
            for _ in range(MARCHES):
                d = distance(eye + t * way)
                if d < 1e-3 or t > 6.0:
                    break
                t += d
            image[i, j] = ti.exp(-0.3 * t)

    @ti.kernel
    def compare():
        for i, j in image:
            loss[None] += image[i, j] ** 2 / (n * n)

    def run():
        render()
        compare()

    return run, loss, dict(balls=balls)
