#define STEPS 12
static long n;
static real *start, *q, *g;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    q = memory((STEPS + 1) * n * n * 3);
    g = memory((STEPS + 1) * n * n * 3);
}

static const real G = 4.9, K = 0.05;

static void step(real *restrict out, const real *restrict in) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *W = in + 3 * n * ((i + n - 1) % n), *E = in + 3 * n * ((i + 1) % n), *C = in + 3 * n * i;
        for (long j = 0; j < n; j++) {
            const real *w = W + 3 * j, *e = E + 3 * j;
            const real *s = C + 3 * (j ? j - 1 : n - 1), *m = C + 3 * (j < n - 1 ? j + 1 : 0);
            real *o = out + 3 * (n * i + j);
            real ue = e[1] / e[0], uw = w[1] / w[0], vn = m[2] / m[0], vs = s[2] / s[0];
            o[0] = (real)0.25 * (w[0] + e[0] + s[0] + m[0]) - K * (e[1] - w[1] + m[2] - s[2]);
            o[1] = (real)0.25 * (w[1] + e[1] + s[1] + m[1])
                - K * (e[1] * ue + G * e[0] * e[0] - w[1] * uw - G * w[0] * w[0] + m[1] * vn - s[1] * vs);
            o[2] = (real)0.25 * (w[2] + e[2] + s[2] + m[2])
                - K * (e[2] * ue - w[2] * uw + m[2] * vn + G * m[0] * m[0] - s[2] * vs - G * s[0] * s[0]);
        }
    }
}

/* What a cell's four neighbours make of it: the mean, and the fluxes' transposed Jacobians. */
static void step_adjoint(real *restrict out, const real *restrict in, const real *restrict state) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *W = in + 3 * n * ((i + n - 1) % n), *E = in + 3 * n * ((i + 1) % n), *C = in + 3 * n * i;
        for (long j = 0; j < n; j++) {
            const real *w = W + 3 * j, *e = E + 3 * j;
            const real *s = C + 3 * (j ? j - 1 : n - 1), *m = C + 3 * (j < n - 1 ? j + 1 : 0);
            const real *x = state + 3 * (n * i + j);
            real *o = out + 3 * (n * i + j), u = x[1] / x[0], v = x[2] / x[0];
            /* this cell is the east of its west, and so on */
            real a0 = K * (e[0] - w[0]), a1 = K * (e[1] - w[1]), a2 = K * (e[2] - w[2]);
            real b0 = K * (m[0] - s[0]), b1 = K * (m[1] - s[1]), b2 = K * (m[2] - s[2]);
            o[0] = (real)0.25 * (w[0] + e[0] + s[0] + m[0]) + a1 * (2 * G * x[0] - u * u) - a2 * u * v
                - b1 * u * v + b2 * (2 * G * x[0] - v * v);
            o[1] = (real)0.25 * (w[1] + e[1] + s[1] + m[1]) + a0 + 2 * a1 * u + a2 * v + b1 * v;
            o[2] = (real)0.25 * (w[2] + e[2] + s[2] + m[2]) + b0 + 2 * b2 * v + a2 * u + b1 * u;
        }
    }
}

double forward(void) {
    double loss = 0;
    long size = 3 * n * n;
    memcpy(q, start, size * sizeof(real));
    for (long t = 0; t < STEPS; t++) step(q + (t + 1) * size, q + t * size);
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += (q[STEPS * size + 3 * k] - 1) * (q[STEPS * size + 3 * k] - 1);
    return loss / (n * n);
}

void backward(void **grad) {
    long size = 3 * n * n;
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) {
        g[STEPS * size + 3 * k] = 2 * (q[STEPS * size + 3 * k] - 1) / (n * n);
        g[STEPS * size + 3 * k + 1] = g[STEPS * size + 3 * k + 2] = 0;
    }
    for (long t = STEPS - 1; t >= 0; t--)
        step_adjoint(t ? g + t * size : grad[0], g + (t + 1) * size, q + t * size);
}
