"""A network on a graph: each edge passes a message of 16 features on, through a matrix; two layers."""

import numpy as np

SIZES = (200, 10000, 80000)
FEATURES = 16
LAYERS = 2


def given(n, random):
    return dict(
        h0=random.standard_normal((n, FEATURES)),
        W=0.2 * random.standard_normal((LAYERS, FEATURES, FEATURES)),
        U=0.2 * random.standard_normal((LAYERS, FEATURES, FEATURES)),
        edges=random.integers(0, n, (6 * n, 2)).astype(np.int32),
    )


def work(n):
    return 6 * n * LAYERS, 200, 600


def program(ti, n, shapes):
    E = 6 * n
    h0 = ti.Vector.field(FEATURES, float, shape=n, needs_grad=True)
    h = ti.Vector.field(FEATURES, float, shape=(LAYERS + 1, n), needs_grad=True)
    m = ti.Vector.field(FEATURES, float, shape=(LAYERS, n), needs_grad=True)
    W = ti.field(float, shape=(LAYERS, FEATURES, FEATURES), needs_grad=True)
    U = ti.field(float, shape=(LAYERS, FEATURES, FEATURES), needs_grad=True)
    edges = ti.Vector.field(2, ti.i32, shape=E)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def init():
        for i in h0:
            h[0, i] = h0[i]
        for l, i in m:
            for k in ti.static(range(FEATURES)):
                m[l, i][k] = 0.0

    @ti.kernel
    def message(l: ti.i32):
        for e in edges:
            a, b = edges[e][0], edges[e][1]
            for k in range(FEATURES):
                s = 0.0
                for j in range(FEATURES):
                    s += W[l, k, j] * (h[l, a][j] - h[l, b][j])
                m[l, b][k] += ti.max(s, 0.0)

    @ti.kernel
    def update(l: ti.i32):
        for i in h0:
            for k in range(FEATURES):
                s = h[l, i][k]
                for j in range(FEATURES):
                    s += U[l, k, j] * m[l, i][j]
                h[l + 1, i][k] = ti.tanh(s)

    @ti.kernel
    def measure():
        for i in h0:
            loss[None] += h[LAYERS, i].norm_sqr() / n

    def run():
        init()
        for l in range(LAYERS):
            message(l)
            update(l)
        measure()

    return run, loss, dict(h0=h0, W=W, U=U, edges=edges)
