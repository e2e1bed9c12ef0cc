#define STEPS 8
static long n;
static real *start, *wind, *q, *g;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    wind = in[1];
    q = memory((STEPS + 1) * n * n);
    g = memory((STEPS + 1) * n * n);
}

static inline real inside(real x) { return MAX(0, MIN(x, n - (real)1.001)); }

double forward(void) {
    double loss = 0;
    memcpy(q, start, n * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        const real *restrict from = q + t * n * n;
        real *restrict to = q + (t + 1) * n * n;
        #pragma omp parallel for
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
            real x = inside(i - wind[2 * (i * n + j)]), y = inside(j - wind[2 * (i * n + j) + 1]);
            int k = x, l = y;
            real a = x - k, b = y - l;
            const real *c = from + k * n + l;
            to[i * n + j] = (1 - a) * ((1 - b) * c[0] + b * c[1]) + a * ((1 - b) * c[n] + b * c[n + 1]);
        }
    }
    const real *last = q + STEPS * n * n;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += last[k] * last[k];
    return loss / (n * n);
}

void backward(void **grad) {
    real *gw = grad[1];
    const real *last = q + STEPS * n * n;
    memset(g, 0, STEPS * n * n * sizeof(real));
    memset(gw, 0, 2 * n * n * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) g[STEPS * n * n + k] = 2 * last[k] / (n * n);
    for (long t = STEPS - 1; t >= 0; t--) {
        const real *restrict from = q + t * n * n, *restrict later = g + (t + 1) * n * n;
        real *restrict to = g + t * n * n;
        #pragma omp parallel for
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
            long at = i * n + j;
            real px = i - wind[2 * at], py = j - wind[2 * at + 1], x = inside(px), y = inside(py);
            int k = x, l = y;
            real a = x - k, b = y - l, s = later[at];
            const real *c = from + k * n + l;
            real *o = to + k * n + l;
            add(o, s * (1 - a) * (1 - b));
            add(o + 1, s * (1 - a) * b);
            add(o + n, s * a * (1 - b));
            add(o + n + 1, s * a * b);
            if (px == x) gw[2 * at] -= s * ((1 - b) * (c[n] - c[0]) + b * (c[n + 1] - c[1]));
            if (py == y) gw[2 * at + 1] -= s * ((1 - a) * (c[1] - c[0]) + a * (c[n + 1] - c[n]));
        }
    }
    memcpy(grad[0], g, n * n * sizeof(real));
}
