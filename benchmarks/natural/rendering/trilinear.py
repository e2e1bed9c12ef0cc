"""A grid in space read at points, mixed of eight cells; gradients of the grid and of the points."""

SIZES = (16, 128, 256)


def given(n, random):
    goal = random.standard_normal(n**3 // 2)
    return dict(
        grid=random.standard_normal((n, n, n)),
        points=random.uniform(0, 1, (len(goal), 3)),
        goal=goal,
    )


def work(n):
    return n**3 // 2, 48, 40


def program(ti, n, shapes):
    grid = ti.field(float, shape=(n, n, n), needs_grad=True)
    points = ti.Vector.field(3, float, shape=n**3 // 2, needs_grad=True)
    goal = ti.field(float, shape=n**3 // 2)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def sample(p):
        at = ti.max(0.0, ti.min(p * n - 0.5, n - 1.001))
        base = ti.floor(at).cast(int)
        w = at - base
        value = 0.0
        for a, b, c in ti.static(ti.ndrange(2, 2, 2)):
            share = (w[0] if a else 1 - w[0]) * (w[1] if b else 1 - w[1])
            share *= w[2] if c else 1 - w[2]
            value += share * grid[base[0] + a, base[1] + b, base[2] + c]
        return value

    @ti.kernel
    def compare():
        for k in points:
            loss[None] += (sample(points[k]) - goal[k]) ** 2 / goal.shape[0]

    return compare, loss, dict(grid=grid, points=points, goal=goal)
