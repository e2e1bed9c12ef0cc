"""Potential energy of 4096 bodies, all pairs, summed in a local variable; and its gradient.

diffsim keeps the order of floating-point arithmetic unless it is told not to, so it is measured both
ways; the others have fast arithmetic on wherever they offer it.
"""

import numpy as np
from harness import bind, main

SOFT = 1e-3  # softening, squared [m^2]


def data(b):
    n = b.size(4096, 1024)
    return n, np.random.default_rng(0).random((n, 3), np.float32), (n * n * 1e-9, "Gpair")


def reference(n, x):
    """Closed form, f64."""
    x = x.astype(np.float64)
    energy, gradient = 0.0, np.zeros_like(x)
    for i in range(n):
        d = x[i] - x
        r2 = (d * d).sum(1) + SOFT
        energy += (-0.5 / n / np.sqrt(r2)).sum()
        gradient[i] = (d * (1 / n / r2**1.5)[:, None]).sum(0)
    return dict(energy=energy, gradient=gradient)


def api(b):
    """Taichi 1.7.4 crashes when such a loop is reversed, unless its stack is made large enough."""
    both = ((True, ""), (False, ", without fast_math")) if b.diffsim else ((True, ""),)
    for fast, name in both:
        ds = b.api(
            diffsim=dict(fast_math=fast),
            taichi=dict(ad_stack_size=b.size(4096, 1024) + 4),
        )
        energies(b, ds, name)


def energies(b, ds, name):
    n, hx, work = data(b)
    x = ds.Vector.field(3, ds.f32, shape=n, needs_grad=True)
    energy = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def compute():
        for i in range(n):
            e = 0.0
            for j in range(n):
                d = x[i] - x[j]
                e += -0.5 / ds.sqrt(d.dot(d) + SOFT)
            energy[None] += e * (1.0 / n)

    def clear():
        energy[None] = 0.0
        ds.sync()

    def clear_grad():
        x.grad.fill(0.0)
        energy.grad[None] = 1.0
        ds.sync()

    def forward():
        compute()
        ds.sync()

    def backward():
        compute.grad()
        ds.sync()

    x.from_numpy(hx)
    b.time("forward" + name, forward, before=clear, work=work, like="forward")
    b.time("backward" + name, backward, before=clear_grad, work=work, like="backward")
    exact = b.reference(lambda: reference(n, hx))
    b.check("forward" + name, energy[None], exact.energy)
    b.check("backward" + name, x.grad.to_numpy(), exact.gradient)


def warp(b):
    wp = b.warp()
    n, hx, work = data(b)

    @wp.kernel
    def compute(x: wp.array(dtype=wp.vec3), energy: wp.array(dtype=float)):
        i = wp.tid()
        e = wp.float32(0.0)
        for j in range(x.shape[0]):
            d = x[i] - x[j]
            e += -0.5 / wp.sqrt(wp.dot(d, d) + SOFT)
        wp.atomic_add(energy, 0, e * (1.0 / float(x.shape[0])))

    x = wp.array(hx, dtype=wp.vec3, requires_grad=True)
    energy = wp.zeros(1, dtype=float, requires_grad=True)
    tape = wp.Tape()

    def forward():
        tape.reset()
        with tape:
            wp.launch(compute, dim=n, inputs=[x], outputs=[energy])

    b.time("forward", forward, before=energy.zero_, work=work)
    b.time("backward", lambda: tape.backward(energy), before=tape.zero, work=work)
    exact = b.reference(lambda: reference(n, hx))
    b.check("forward", energy.numpy()[0], exact.energy)
    b.check("backward", x.grad.numpy(), exact.gradient)


def numba(b):
    nb = b.numba()
    n, hx, work = data(b)

    @nb.njit(parallel=True, fastmath=True)
    def compute(x, y, z):
        half, soft, e = np.float32(-0.5), np.float32(SOFT), np.float32(0)
        for i in nb.prange(x.shape[0]):
            s = np.float32(0)
            for j in range(x.shape[0]):
                dx, dy, dz = x[i] - x[j], y[i] - y[j], z[i] - z[j]
                s += half / np.sqrt(dx * dx + dy * dy + dz * dz + soft)
            e += s
        return e / x.shape[0]

    parts = [np.ascontiguousarray(a) for a in hx.T]
    b.time("forward", lambda: compute(*parts), work=work)
    b.check("forward", compute(*parts), b.reference(lambda: reference(n, hx)).energy)


SOURCE = r"""
#include <math.h>
float energy(long n, const float *restrict x, const float *restrict y, const float *restrict z) {
    float e = 0;
    #pragma omp parallel for reduction(+ : e)
    for (long i = 0; i < n; i++) {
        float s = 0;
        for (long j = 0; j < n; j++) {
            float dx = x[i] - x[j], dy = y[i] - y[j], dz = z[i] - z[j];
            s += -0.5f / sqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
        }
        e += s;
    }
    return e / n;
}
void gradient(long n, const float *restrict x, const float *restrict y, const float *restrict z,
              float *restrict g) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        float gx = 0, gy = 0, gz = 0;
        for (long j = 0; j < n; j++) {
            float dx = x[i] - x[j], dy = y[i] - y[j], dz = z[i] - z[j];
            float r2 = dx * dx + dy * dy + dz * dz + 1e-3f, q = 1 / (r2 * sqrtf(r2));
            gx += dx * q; gy += dy * q; gz += dz * q;
        }
        g[3 * i] += gx / n; g[3 * i + 1] += gy / n; g[3 * i + 2] += gz / n;
    }
}
"""


def c(b):
    """One array per coordinate; the adjoint by hand uses the symmetry of pairs, so it only gathers."""
    from ctypes import c_float

    library = b.c(SOURCE)
    n, hx, work = data(b)
    parts = [np.ascontiguousarray(a) for a in hx.T]
    g = np.zeros_like(hx)
    energy = bind(library.energy, n, *parts, returns=c_float)

    def clear():
        g[:] = 0

    b.time("forward", energy, work=work)
    b.time("backward", bind(library.gradient, n, *parts, g), before=clear, work=work)
    exact = b.reference(lambda: reference(n, hx))
    b.check("forward", energy(), exact.energy)
    b.check("backward", g, exact.gradient)


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
