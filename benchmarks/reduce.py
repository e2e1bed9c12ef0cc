"""Sum and maximum of 64M f32, written as atomic updates of one number.

GB/s counts 4 bytes per element forward and 8 for the gradient of the sum (an update).
"""

import numpy as np
from harness import bind, main


def data(b):
    """Numbers whose sum is known: whole periods of 1024 steps from 0.5."""
    n = b.size(64 << 20, 4 << 20)
    x = np.resize(0.5 + (np.arange(1 << 18) % 1024).astype(np.float32) / 1024, n)
    return n, x, n * (0.5 + 1023 / 2048), (4e-9 * n, "GB"), (8e-9 * n, "GB")


def api(b):
    ds = b.api()
    n, values, exact, forward, backward = data(b)
    x = ds.field(ds.f32, shape=n, needs_grad=True)
    s = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def total():
        for i in x:
            s[None] += x[i]

    @ds.kernel
    def largest():
        for i in x:
            ds.atomic_max(s[None], x[i])

    def clear():
        s[None] = 0.0
        ds.sync()

    def clear_grad():
        x.grad.fill(0.0)
        s.grad[None] = 1.0
        ds.sync()

    def done(kernel):
        def run():
            kernel()
            ds.sync()

        return run

    x.from_numpy(values)
    b.time("sum forward", done(total), before=clear, work=forward)
    b.check("sum forward", s[None], exact)
    b.time("sum backward", done(total.grad), before=clear_grad, work=backward)
    b.check("sum backward", x.grad.to_numpy(), np.ones(n, np.float32))
    b.time("maximum", done(largest), before=clear, work=forward)
    b.check("maximum", s[None], values[:1024].max())


def warp(b):
    wp = b.warp()
    n, values, exact, forward, backward = data(b)

    @wp.kernel
    def total(x: wp.array(dtype=float), s: wp.array(dtype=float)):
        wp.atomic_add(s, 0, x[wp.tid()])

    @wp.kernel
    def largest(x: wp.array(dtype=float), s: wp.array(dtype=float)):
        wp.atomic_max(s, 0, x[wp.tid()])

    x = wp.array(values, dtype=float, requires_grad=True)
    s = wp.zeros(1, dtype=float, requires_grad=True)
    tape = wp.Tape()
    with tape:
        wp.launch(total, dim=n, inputs=[x], outputs=[s])

    def done(kernel):
        return lambda: wp.launch(kernel, dim=n, inputs=[x], outputs=[s])

    b.time("sum forward", done(total), before=s.zero_, work=forward)
    b.check("sum forward", s.numpy()[0], exact)
    b.time("sum backward", lambda: tape.backward(s), before=tape.zero, work=backward)
    b.check("sum backward", x.grad.numpy(), np.ones(n, np.float32))
    b.time("maximum", done(largest), before=s.zero_, work=forward)
    b.check("maximum", s.numpy()[0], values[:1024].max())


def numba(b):
    nb = b.numba()
    _, x, exact, forward, _ = data(b)

    @nb.njit(parallel=True, fastmath=True)
    def total(x):
        s = np.float32(0)
        for i in nb.prange(x.shape[0]):
            s += x[i]
        return s

    b.time("sum forward", lambda: total(x), work=forward)
    b.check("sum forward", total(x), exact)


SOURCE = r"""
float total(long n, const float *restrict x) {
    float s = 0;
    #pragma omp parallel for simd reduction(+ : s)
    for (long i = 0; i < n; i++) s += x[i];
    return s;
}
void total_grad(long n, float gs, float *restrict gx) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) gx[i] += gs;
}
float largest(long n, const float *restrict x) {
    float s = 0;
    #pragma omp parallel for simd reduction(max : s)
    for (long i = 0; i < n; i++) s = x[i] > s ? x[i] : s;
    return s;
}
"""


def c(b):
    from ctypes import c_float

    library = b.c(SOURCE)
    n, x, exact, forward, backward = data(b)
    g = np.zeros_like(x)
    total = bind(library.total, n, x, returns=c_float)
    largest = bind(library.largest, n, x, returns=c_float)

    def clear():
        g[:] = 0

    b.time("sum forward", total, work=forward)
    b.check("sum forward", total(), exact)
    b.time("sum backward", bind(library.total_grad, n, 1.0, g), before=clear, work=backward)
    b.check("sum backward", g, np.ones(n, np.float32))
    b.time("maximum", largest, work=forward)
    b.check("maximum", largest(), x[:1024].max())


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
