"""Energy of a neo-Hookean mesh of triangles, whose corners stand in an index field; forces."""

import numpy as np

SIZES = (48, 512, 1448)


def given(n, random):
    i, j = np.mgrid[: n - 1, : n - 1].reshape(2, -1)
    a = i * n + j
    faces = np.concatenate([np.stack([a, a + n, a + 1], 1), np.stack([a + n + 1, a + 1, a + n], 1)])
    x = np.mgrid[:n, :n].reshape(2, -1).T + 0.1 * random.uniform(-1, 1, (n * n, 2))
    return dict(x=x, faces=faces.astype(np.int32))


def work(n):
    return 2 * (n - 1) ** 2, 24, 40


def program(ti, n, shapes):
    x = ti.Vector.field(2, float, shape=n * n, needs_grad=True)
    faces = ti.Vector.field(3, ti.i32, shape=2 * (n - 1) ** 2)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def energy():
        for f in faces:
            a, b, c = faces[f][0], faces[f][1], faces[f][2]
            d, e = x[b] - x[a], x[c] - x[a]
            F = ti.Matrix([[d[0], e[0]], [d[1], e[1]]])
            J = ti.max(ti.abs(F.determinant()), 0.1)
            strain = (F.transpose() @ F).trace()
            loss[None] += 0.5 * (0.5 * (strain - 2.0) - ti.log(J) + 2.0 * ti.log(J) ** 2)

    return energy, loss, dict(x=x, faces=faces)
