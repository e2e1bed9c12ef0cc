#define STEPS 16
static long n;
static real *start, *u, *g;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    u = memory((STEPS + 2) * n * n);
    g = memory((STEPS + 2) * n * n);
}

/* a + b at a cell, where b holds the neighbours' sum: rows above and below may be missing */
static void add_step(real *restrict out, const real *restrict a, const real *restrict b, real turn) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *c = b + i * n, *up = i ? c - n : zeros, *down = i < n - 1 ? c + n : zeros;
        for (long j = 0; j < n; j++) {
            real around = up[j] + down[j];
            if (j) around += c[j - 1];
            if (j < n - 1) around += c[j + 1];
            out[i * n + j] = 2 * c[j] + turn * a[i * n + j] + (real)0.2 * (around - 4 * c[j]);
        }
    }
}

double forward(void) {
    double loss = 0;
    memcpy(u, start, n * n * sizeof(real));
    memcpy(u + n * n, start, n * n * sizeof(real));
    for (long t = 1; t <= STEPS; t++) add_step(u + (t + 1) * n * n, u + (t - 1) * n * n, u + t * n * n, -1);
    const real *last = u + (STEPS + 1) * n * n;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += last[k] * last[k];
    return loss / (n * n);
}

/* The step is its own transpose: g[t] = step of g[t + 1], less g[t + 2]. */
void backward(void **grad) {
    real *last = g + (STEPS + 1) * n * n, *u_last = u + (STEPS + 1) * n * n, *out = grad[0];
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) last[k] = 2 * u_last[k] / (n * n);
    for (long t = STEPS; t >= 1; t--)
        add_step(g + t * n * n, t < STEPS ? g + (t + 2) * n * n : none(n * n), g + (t + 1) * n * n, -1);
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) out[k] = g[n * n + k] - g[2 * n * n + k];
}
