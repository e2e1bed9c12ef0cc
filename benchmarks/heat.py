"""Heat conduction, explicit five-point stencil; the rim is held at 0 from the second state on.

100 steps between two f32 states of 2048 x 2048; and 32 steps of 1024 x 1024 in one field with a time
axis, with the gradient of half the sum of squares of the last state with respect to the first one.
"""

import numpy as np
from harness import bind, main

K = 0.2  # dt times diffusivity over dx^2 [1]
T = 32


def start(n):
    i = np.arange(n, dtype=np.float32)
    return np.sin(0.37 * i)[:, None] * np.cos(0.11 * i) + np.float32(0.3)


def states(n):
    u = np.zeros((T + 1, n, n), np.float32)
    u[0] = start(n)
    return u


def sizes(b):
    big, small = b.size(2048, 512), b.size(1024, 256)
    return big, small, (100 * (big - 2) ** 2 * 1e-9, "Gcell")


def laplace(u):
    inner = u[1:-1, 1:-1]
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner


def reference(n):
    """Loss and gradient in f64; the adjoint scatters where the gradients of the others gather."""
    u = start(n).astype(np.float64)
    for _ in range(T):
        u = np.pad(u[1:-1, 1:-1] + K * laplace(u), 1)
    loss, g = 0.5 * (u * u).sum(), u
    for _ in range(T):
        inner, before = g[1:-1, 1:-1], np.zeros_like(g)
        before[1:-1, 1:-1] += (1 - 4 * K) * inner
        for rows, columns in ((0, 1), (2, 1), (1, 0), (1, 2)):
            before[rows : rows + n - 2, columns : columns + n - 2] += K * inner
        g = before
    return dict(loss=loss, gradient=g)


def check_two(b, n, u):
    """Two plain steps; here the rim keeps its first values."""
    exact = start(n).astype(np.float64)
    for _ in range(2):
        exact[1:-1, 1:-1] += K * laplace(exact)
    b.check("100 steps", u, exact)


def check(b, n, loss, gradient):
    exact = b.reference(lambda: reference(n))
    b.check("32 steps forward", loss, exact.loss)
    b.check("32 steps backward", gradient, exact.gradient)


def api(b):
    ds = b.api()
    plain(b, ds)
    differentiated(b, ds)


def plain(b, ds):
    n, _, work = sizes(b)
    p, q = (ds.field(ds.f32, shape=(n, n)) for _ in range(2))

    @ds.kernel
    def step(d: ds.template(), s: ds.template()):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            around = s[i - 1, j] + s[i + 1, j] + s[i, j - 1] + s[i, j + 1]
            d[i, j] = s[i, j] + K * (around - 4.0 * s[i, j])

    def run(pairs=50):
        for _ in range(pairs):
            step(q, p)
            step(p, q)
        ds.sync()

    p.from_numpy(start(n))
    q.from_numpy(start(n))
    run(1)
    check_two(b, n, p.to_numpy())
    b.time("100 steps", run, work=work)


def differentiated(b, ds):
    _, n, _ = sizes(b)
    u = ds.field(ds.f32, shape=(T + 1, n, n), needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
            u[t + 1, i, j] = u[t, i, j] + K * (around - 4.0 * u[t, i, j])

    @ds.kernel
    def energy():
        for i, j in ds.ndrange(n, n):
            loss[None] += 0.5 * u[T, i, j] * u[T, i, j]

    def simulate():
        for t in range(T):
            step(t)
        energy()

    def forward():
        loss[None] = 0.0
        simulate()
        ds.sync()

    def prepare():
        forward()  # a gradient belongs to one launch, and `forward` was timed several times
        u.grad.fill(0.0)
        loss.grad[None] = 1.0
        ds.sync()

    def backward():
        energy.grad()
        for t in reversed(range(T)):
            step.grad(t)
        ds.sync()

    def tape():
        with ds.ad.Tape(loss):
            simulate()
        ds.sync()

    u.from_numpy(states(n))
    b.time("32 steps forward", forward)
    b.time("32 steps backward", backward, before=prepare)
    b.time("32 steps on a Tape, with gradient", tape)
    check(b, n, loss[None], u.grad.to_numpy()[0])


def warp(b):
    wp = b.warp()
    big, n, work = sizes(b)
    Plane = wp.array2d(dtype=float)

    @wp.kernel
    def step(s: Plane, d: Plane):
        a, c = wp.tid()
        i = a + 1
        j = c + 1
        around = s[i - 1, j] + s[i + 1, j] + s[i, j - 1] + s[i, j + 1]
        d[i, j] = s[i, j] + K * (around - 4.0 * s[i, j])

    @wp.kernel
    def energy(u: Plane, loss: wp.array(dtype=float)):
        i, j = wp.tid()
        wp.atomic_add(loss, 0, 0.5 * u[i, j] * u[i, j])

    p, q = (wp.array(start(big), dtype=float) for _ in range(2))
    u = [wp.array(a, dtype=float, requires_grad=True) for a in states(n)]
    loss = wp.zeros(1, dtype=float, requires_grad=True)
    tape = wp.Tape()

    def run(pairs=50):
        for _ in range(pairs):
            wp.launch(step, dim=(big - 2, big - 2), inputs=[p, q])
            wp.launch(step, dim=(big - 2, big - 2), inputs=[q, p])

    def forward():
        tape.reset()
        loss.zero_()
        with tape:
            for t in range(T):
                wp.launch(step, dim=(n - 2, n - 2), inputs=[u[t]], outputs=[u[t + 1]])
            wp.launch(energy, dim=(n, n), inputs=[u[T]], outputs=[loss])

    def both():
        tape.zero()
        forward()
        tape.backward(loss)

    run(1)
    check_two(b, big, p.numpy())
    b.time("100 steps", run, work=work)
    b.time("32 steps forward", forward)
    b.time("32 steps backward", lambda: tape.backward(loss), before=tape.zero)
    b.time("32 steps on a Tape, with gradient", both)
    check(b, n, loss.numpy()[0], u[0].grad.numpy())


def numba(b):
    nb = b.numba()
    big, _, work = sizes(b)

    @nb.njit(parallel=True, fastmath=True)
    def step(s, d):
        k, four = np.float32(K), np.float32(4)
        for i in nb.prange(1, s.shape[0] - 1):
            for j in range(1, s.shape[1] - 1):
                around = s[i - 1, j] + s[i + 1, j] + s[i, j - 1] + s[i, j + 1]
                d[i, j] = s[i, j] + k * (around - four * s[i, j])

    p, q = start(big), start(big)

    def run(pairs=50):
        for _ in range(pairs):
            step(p, q)
            step(q, p)

    run(1)
    check_two(b, big, p)
    b.time("100 steps", run, work=work)


SOURCE = r"""
void step(long n, const float *restrict s, float *restrict d) {
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) for (long j = 1; j < n - 1; j++) {
        const float *p = s + i * n + j;
        d[i * n + j] = p[0] + 0.2f * (p[-n] + p[n] + p[-1] + p[1] - 4 * p[0]);
    }
}
static float inner(long n, const float *g, long i, long j) {
    return i < 1 || i > n - 2 || j < 1 || j > n - 2 ? 0 : g[i * n + j];
}
static void edge(long n, const float *g, float *to, long i, long j) {
    to[i * n + j] += inner(n, g, i, j) + 0.2f * (inner(n, g, i - 1, j) + inner(n, g, i + 1, j)
        + inner(n, g, i, j - 1) + inner(n, g, i, j + 1) - 4 * inner(n, g, i, j));
}
void step_grad(long n, const float *restrict g, float *restrict to) {
    #pragma omp parallel for
    for (long i = 2; i < n - 2; i++) for (long j = 2; j < n - 2; j++) {
        const float *p = g + i * n + j;
        to[i * n + j] += p[0] + 0.2f * (p[-n] + p[n] + p[-1] + p[1] - 4 * p[0]);
    }
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        if (i > 1 && i < n - 2 && j == 2) j = n - 2;
        edge(n, g, to, i, j);
    }
}
float energy(long n, const float *restrict u) {
    float sum = 0;
    #pragma omp parallel for simd reduction(+ : sum)
    for (long i = 0; i < n * n; i++) sum += 0.5f * u[i] * u[i];
    return sum;
}
void energy_grad(long n, const float *restrict u, float *restrict g) {
    #pragma omp parallel for simd
    for (long i = 0; i < n * n; i++) g[i] += u[i];
}
"""


def c(b):
    """The adjoint of a step by hand: each cell gathers, and no atomics."""
    from ctypes import c_float

    library = b.c(SOURCE)
    big, n, work = sizes(b)
    p, q, u = start(big), start(big), states(n)
    g = np.zeros_like(u)
    there, back = bind(library.step, big, p, q), bind(library.step, big, q, p)
    steps = [bind(library.step, n, u[t], u[t + 1]) for t in range(T)]
    adjoints = [bind(library.step_grad, n, g[t + 1], g[t]) for t in range(T)]
    energy = bind(library.energy, n, u[T], returns=c_float)
    energy_grad = bind(library.energy_grad, n, u[T], g[T])

    def run(pairs=50):
        for _ in range(pairs):
            there()
            back()

    def forward():
        for step in steps:
            step()
        return energy()

    def clear():
        g[:] = 0

    def backward():
        energy_grad()
        for adjoint in reversed(adjoints):
            adjoint()

    def both():
        clear()
        forward()
        backward()

    run(1)
    check_two(b, big, p)
    b.time("100 steps", run, work=work)
    b.time("32 steps forward", forward)
    b.time("32 steps backward", backward, before=clear)
    b.time("32 steps on a Tape, with gradient", both)
    check(b, n, forward(), g[0])


if __name__ == "__main__":
    main(api=api, c=c, warp=warp, numba=numba)
