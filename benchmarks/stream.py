"""Streaming arithmetic over 64M f32: memory speed.

GB/s counts 12 bytes per element forward and 20 for the gradient of triad: one read, two updates.
"""

import numpy as np
from harness import bind, main

S = 1.25


def data(n):
    """Three periodic arrays."""
    i = np.arange(7 * 5 * 3 * 1024)
    parts = 1 + i % 7 / 8, 2 - i % 5 / 4, 1 + i % 3 / 2
    return [np.resize(part.astype(np.float32), n) for part in parts]


def sizes(b):
    n = b.size(64 << 20, 4 << 20)
    return n, (12e-9 * n, "GB"), (20e-9 * n, "GB")


def api(b):
    ds = b.api()
    n, forward, backward = sizes(b)
    x, y, z = (ds.field(ds.f32, shape=n, needs_grad=True) for _ in range(3))

    @ds.kernel
    def saxpy(s: ds.f32):
        for i in x:
            x[i] = s * y[i] + x[i]

    @ds.kernel
    def triad(s: ds.f32):
        for i in x:
            x[i] = y[i] + s * z[i]

    def done(kernel):
        def run():
            kernel(S)
            ds.sync()

        return run

    hy, hz, seed = data(n)
    y.from_numpy(hy)
    z.from_numpy(hz)
    x.grad.from_numpy(seed)
    b.time("triad forward", done(triad), work=forward)
    b.check("triad forward", x.to_numpy(), hy + S * hz)
    b.time("triad backward", done(triad.grad), work=backward)
    y.grad.fill(0.0)
    z.grad.fill(0.0)
    x.grad.from_numpy(seed)
    triad.grad(S)
    b.check("triad backward", z.grad.to_numpy() + y.grad.to_numpy(), seed + S * seed)
    b.time("saxpy forward", done(saxpy), work=forward)
    x.from_numpy(hz)
    saxpy(S)
    b.check("saxpy forward", x.to_numpy(), S * hy + hz)


def warp(b):
    wp = b.warp()
    n, forward, backward = sizes(b)
    Array = wp.array(dtype=float)

    @wp.kernel
    def saxpy(s: float, y: Array, x: Array):
        i = wp.tid()
        x[i] = s * y[i] + x[i]

    @wp.kernel
    def triad(s: float, y: Array, z: Array, x: Array):
        i = wp.tid()
        x[i] = y[i] + s * z[i]

    hy, hz, seed = data(n)
    x = wp.zeros(n, dtype=float, requires_grad=True)
    y, z = (wp.array(a, dtype=float, requires_grad=True) for a in (hy, hz))
    x.grad.assign(seed)

    def adjoint():
        wp.launch(
            triad,
            dim=n,
            inputs=[S, y, z],
            outputs=[x],
            adj_inputs=[0.0, y.grad, z.grad],
            adj_outputs=[x.grad],
            adjoint=True,
        )

    b.time("triad forward", lambda: wp.launch(triad, dim=n, inputs=[S, y, z, x]), work=forward)
    b.check("triad forward", x.numpy(), hy + S * hz)
    b.time("triad backward", adjoint, work=backward)
    y.grad.zero_()
    z.grad.zero_()
    x.grad.assign(seed)
    adjoint()
    b.check("triad backward", z.grad.numpy() + y.grad.numpy(), seed + S * seed)
    b.time("saxpy forward", lambda: wp.launch(saxpy, dim=n, inputs=[S, y, x]), work=forward)
    x.assign(hz)
    wp.launch(saxpy, dim=n, inputs=[S, y, x])
    b.check("saxpy forward", x.numpy(), S * hy + hz)


def numba(b):
    nb = b.numba()
    n, forward, _ = sizes(b)

    @nb.njit(parallel=True, fastmath=True)
    def saxpy(s, y, x):
        for i in nb.prange(x.shape[0]):
            x[i] = s * y[i] + x[i]

    @nb.njit(parallel=True, fastmath=True)
    def triad(s, y, z, x):
        for i in nb.prange(x.shape[0]):
            x[i] = y[i] + s * z[i]

    s, (y, z, _) = np.float32(S), data(n)
    x = np.zeros(n, np.float32)
    b.time("triad forward", lambda: triad(s, y, z, x), work=forward)
    b.check("triad forward", x, y + S * z)
    b.time("saxpy forward", lambda: saxpy(s, y, x), work=forward)
    x[:] = z
    saxpy(s, y, x)
    b.check("saxpy forward", x, S * y + z)


SOURCE = r"""
void triad(long n, float s, const float *restrict y, const float *restrict z, float *restrict x) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) x[i] = y[i] + s * z[i];
}
void triad_grad(long n, float s, const float *restrict gx, float *restrict gy, float *restrict gz) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) { gy[i] += gx[i]; gz[i] += s * gx[i]; }
}
void saxpy(long n, float s, const float *restrict y, float *restrict x) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) x[i] = s * y[i] + x[i];
}
"""


def c(b):
    library = b.c(SOURCE)
    n, forward, backward = sizes(b)
    y, z, gx = data(n)
    x, gy, gz = np.zeros((3, n), np.float32)
    b.time("triad forward", bind(library.triad, n, S, y, z, x), work=forward)
    b.check("triad forward", x, y + S * z)
    adjoint = bind(library.triad_grad, n, S, gx, gy, gz)
    b.time("triad backward", adjoint, work=backward)
    gy[:] = gz[:] = 0
    adjoint()
    b.check("triad backward", gy + gz, gx + S * gx)
    saxpy = bind(library.saxpy, n, S, y, x)
    b.time("saxpy forward", saxpy, work=forward)
    x[:] = z
    saxpy()
    b.check("saxpy forward", x, S * y + z)


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
