"""The shape of ADBench's hand tracking: 22 angles turn bones, skinned points follow; their gradient."""

SIZES = (500, 50000, 400000)
FINGERS, BONES = 5, 4


def given(n, random):
    import numpy as np

    return dict(
        angles=0.3 * random.standard_normal((FINGERS, BONES)),
        rest=random.standard_normal((n, 3)),
        goal=random.standard_normal((n, 3)),
        bone=random.integers(0, FINGERS * BONES, n).astype(np.int32),
    )


def work(n):
    return n, 28, 30


def program(ti, n, shapes):
    angles = ti.field(float, shape=(FINGERS, BONES), needs_grad=True)
    turns = ti.Matrix.field(3, 3, float, shape=FINGERS * BONES, needs_grad=True)
    places = ti.Vector.field(3, float, shape=FINGERS * BONES, needs_grad=True)
    rest = ti.Vector.field(3, float, shape=n)
    goal = ti.Vector.field(3, float, shape=n)
    bone = ti.field(ti.i32, shape=n)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def pose():
        for f in range(FINGERS):
            turn = ti.Matrix([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
            place = ti.Vector([0.1 * f, 0.0, 0.0])
            for b in ti.static(range(BONES)):
                s, c = ti.sin(angles[f, b]), ti.cos(angles[f, b])
                turn = turn @ ti.Matrix([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])
                turns[f * BONES + b] = turn
                places[f * BONES + b] = place
                place = place + turn @ ti.Vector([0.0, 0.0, 0.3])

    @ti.kernel
    def skin():
        for k in rest:
            b = bone[k]
            loss[None] += (turns[b] @ rest[k] + places[b] - goal[k]).norm_sqr() / n

    def run():
        pose()
        skin()

    return run, loss, dict(angles=angles, rest=rest, goal=goal, bone=bone)
