#define STEPS 4
#define TURN ((real)6.2831853)
static long n;
static real *start, *strength, *x, *g, *before;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    strength = in[1];
    x = memory((STEPS + 1) * 2 * n);
    g = memory(2 * n);
    before = memory(2 * n);
}

static inline real exponential(real v) { return sizeof(real) == 4 ? expf(v) : exp(v); }

double forward(void) {
    double loss = 0;
    memcpy(x, start, 2 * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        const real *X = x + t * 2 * n;
        real *N = x + (t + 1) * 2 * n;
        #pragma omp parallel for
        for (long i = 0; i < n; i++) {
            real u = 0, v = 0;
            for (long j = 0; j < n; j++) {
                real a = X[2 * i] - X[2 * j], b = X[2 * i + 1] - X[2 * j + 1];
                real square = a * a + b * b + (real)1e-4;
                real k = strength[j] * (1 - exponential(-square / (real)0.01)) / (square * TURN);
                u -= b * k;
                v += a * k;
            }
            N[2 * i] = X[2 * i] + (real)0.05 * u;
            N[2 * i + 1] = X[2 * i + 1] + (real)0.05 * v;
        }
    }
    const real *last = x + STEPS * 2 * n;
    for (long k = 0; k < 2 * n; k++) loss += last[k] * last[k];
    return loss / n;
}

void backward(void **grad) {
    real *gs = grad[1];
    const real *last = x + STEPS * 2 * n;
    memset(gs, 0, n * sizeof(real));
    for (long k = 0; k < 2 * n; k++) g[k] = 2 * last[k] / n;
    for (long t = STEPS - 1; t >= 0; t--) {
        const real *X = x + t * 2 * n;
        memcpy(before, g, 2 * n * sizeof(real));
        #pragma omp parallel for
        for (long i = 0; i < n; i++) {
            real gu = (real)0.05 * g[2 * i], gv = (real)0.05 * g[2 * i + 1], sa = 0, sb = 0;
            for (long j = 0; j < n; j++) {
                real a = X[2 * i] - X[2 * j], b = X[2 * i + 1] - X[2 * j + 1];
                real q = 1 / (a * a + b * b + (real)1e-4), e = exponential(-1 / (q * (real)0.01));
                real f = (1 - e) * q / TURN, along = a * gv - b * gu;
                real d = 2 * along * strength[j] * (100 * e - (1 - e) * q) * q / TURN;
                real ga = strength[j] * f * gv + d * a, gb = d * b - strength[j] * f * gu;
                add(gs + j, along * f);
                sa += ga;
                sb += gb;
                add(before + 2 * j, -ga);
                add(before + 2 * j + 1, -gb);
            }
            add(before + 2 * i, sa);
            add(before + 2 * i + 1, sb);
        }
        memcpy(g, before, 2 * n * sizeof(real));
    }
    memcpy(grad[0], g, 2 * n * sizeof(real));
}
