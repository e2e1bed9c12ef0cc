"""ADBench's bundle adjustment: cameras and points by indices, projected with radial distortion."""

import numpy as np

SIZES = (1000, 100000, 800000)


def given(n, random):
    cameras = 0.1 * random.standard_normal((n // 100, 10))
    cameras[:, 6:] += [1.0, 0.0, 0.0, 0.0]
    cameras[:, 5] += 5.0
    which = np.stack([random.integers(0, n // 100, n), random.integers(0, n // 5, n)], 1)
    return dict(
        cameras=cameras,
        points=random.standard_normal((n // 5, 3)),
        seen=random.standard_normal((n, 2)),
        which=which.astype(np.int32),
    )


def work(n):
    return n, 70, 100


def program(ti, n, shapes):
    cameras = ti.field(float, shape=(n // 100, 10), needs_grad=True)
    points = ti.Vector.field(3, float, shape=n // 5, needs_grad=True)
    seen = ti.Vector.field(2, float, shape=n)
    which = ti.Vector.field(2, ti.i32, shape=n)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.func
    def rotate(r, x):
        square = r.dot(r) + 1e-12
        angle = ti.sqrt(square)
        axis = r / angle
        s, c = ti.sin(angle), ti.cos(angle)
        return x * c + axis.cross(x) * s + axis * axis.dot(x) * (1 - c)

    @ti.kernel
    def project():
        for k in which:
            c = which[k][0]
            r = ti.Vector([cameras[c, 0], cameras[c, 1], cameras[c, 2]])
            shift = ti.Vector([cameras[c, 3], cameras[c, 4], cameras[c, 5]])
            x = rotate(r, points[which[k][1]]) + shift
            p = ti.Vector([x[0], x[1]]) / x[2]
            square = p.norm_sqr()
            bent = 1 + cameras[c, 8] * square + cameras[c, 9] * square * square
            error = cameras[c, 6] * bent * p + cameras[c, 7] - seen[k]
            loss[None] += error.norm_sqr() / n

    return project, loss, dict(cameras=cameras, points=points, seen=seen, which=which)
