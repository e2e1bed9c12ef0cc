"""A serial loop with a nonlinear carried value in a parallel one: 64 iterations of x = x*x/2 + c over 1M f32.

Its gradient with respect to x and c needs every intermediate value.
"""

import numpy as np
from harness import bind, main

ITERATIONS = 64


def data(b):
    n, r = b.size(1 << 20, 1 << 16), np.random.default_rng(3)
    x, c = r.random(n) * 2 - 1, 1.9 * r.random(n) - 1.45
    return n, x.astype(np.float32), c.astype(np.float32)


def reference(x, c):
    """Value and derivatives, carried forward in f64."""
    x, c, dx, dc = x.astype(np.float64), c.astype(np.float64), 1.0, 0.0
    for _ in range(ITERATIONS):
        dx, dc, x = x * dx, x * dc + 1, x * x / 2 + c
    return dict(y=x, dx=dx, dc=dc)


def check(b, hx, hc, y, gx, gc):
    exact = b.reference(lambda: reference(hx, hc))
    b.check("forward", y, exact.y)
    b.check("backward", np.array([gx, gc]), np.array([exact.dx, exact.dc]))


def api(b):
    """Taichi 1.7.4 crashes when more than 30 iterations are reversed, unless its stack is made larger."""
    ds = b.api(taichi=dict(ad_stack_size=80))
    n, hx, hc = data(b)
    start, c, y = (ds.field(ds.f32, shape=n, needs_grad=True) for _ in range(3))

    @ds.kernel
    def iterate():
        for i in start:
            x = start[i]
            for _ in range(ITERATIONS):
                x = x * x * 0.5 + c[i]
            y[i] = x

    def clear():
        start.grad.fill(0.0)
        c.grad.fill(0.0)
        y.grad.fill(1.0)
        ds.sync()

    def forward():
        iterate()
        ds.sync()

    def backward():
        iterate.grad()
        ds.sync()

    start.from_numpy(hx)
    c.from_numpy(hc)
    b.time("forward", forward)
    b.time("backward", backward, before=clear)
    check(b, hx, hc, y.to_numpy(), start.grad.to_numpy(), c.grad.to_numpy())


def warp(b):
    """One launch per iteration: Warp differentiates the loop as one kernel too, but not correctly."""
    wp = b.warp()
    n, hx, hc = data(b)
    Array = wp.array(dtype=float)

    @wp.kernel
    def step(x: Array, c: Array, y: Array):
        i = wp.tid()
        y[i] = x[i] * x[i] * 0.5 + c[i]

    x = [wp.zeros(n, dtype=float, requires_grad=True) for _ in range(ITERATIONS + 1)]
    x[0].assign(hx)
    c = wp.array(hc, dtype=float, requires_grad=True)
    seed = wp.full(n, 1.0, dtype=float)
    tape = wp.Tape()

    def forward():
        tape.reset()
        with tape:
            for k in range(ITERATIONS):
                wp.launch(step, dim=n, inputs=[x[k], c], outputs=[x[k + 1]])

    b.time("forward", forward)
    b.time("backward", lambda: tape.backward(grads={x[ITERATIONS]: seed}), before=tape.zero)
    check(b, hx, hc, x[ITERATIONS].numpy(), x[0].grad.numpy(), c.grad.numpy())


def numba(b):
    nb = b.numba()
    n, hx, hc = data(b)

    @nb.njit(parallel=True, fastmath=True)
    def iterate(start, c, y):
        half = np.float32(0.5)
        for i in nb.prange(start.shape[0]):
            x = start[i]
            for _ in range(ITERATIONS):
                x = x * x * half + c[i]
            y[i] = x

    y = np.zeros(n, np.float32)
    b.time("forward", lambda: iterate(hx, hc, y))
    b.check("forward", y, b.reference(lambda: reference(hx, hc)).y)


SOURCE = r"""
void iterate(long n, const float *restrict start, const float *restrict c, float *restrict y) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) {
        float x = start[i];
        for (int k = 0; k < 64; k++) x = x * x * 0.5f + c[i];
        y[i] = x;
    }
}
void iterate_grad(long n, const float *restrict start, const float *restrict c,
                  const float *restrict gy, float *restrict gx, float *restrict gc) {
    #pragma omp parallel for
    for (long b = 0; b < n; b += 64) {
        float kept[65][64], g[64], sum[64];
        for (int i = 0; i < 64; i++) { kept[0][i] = start[b + i]; g[i] = gy[b + i]; sum[i] = 0; }
        for (int k = 0; k < 64; k++) for (int i = 0; i < 64; i++)
            kept[k + 1][i] = kept[k][i] * kept[k][i] * 0.5f + c[b + i];
        for (int k = 63; k >= 0; k--) for (int i = 0; i < 64; i++) {
            sum[i] += g[i];
            g[i] *= kept[k][i];
        }
        for (int i = 0; i < 64; i++) { gx[b + i] += g[i]; gc[b + i] += sum[i]; }
    }
}
"""


def c(b):
    """The adjoint by hand keeps the values of 64 elements at a time, in the first-level cache."""
    library = b.c(SOURCE)
    n, hx, hc = data(b)
    y, gy, gx, gc = (np.zeros(n, np.float32) for _ in range(4))

    def clear():
        gx[:] = gc[:] = 0
        gy[:] = 1

    b.time("forward", bind(library.iterate, n, hx, hc, y))
    b.time("backward", bind(library.iterate_grad, n, hx, hc, gy, gx, gc), before=clear)
    check(b, hx, hc, y, gx, gc)


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
