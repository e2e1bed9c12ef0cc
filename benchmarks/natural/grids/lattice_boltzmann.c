#define STEPS 8
static long n;
static real *start, *f, *g;
static const int SX[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, SY[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
static const real W[9] = {4.0 / 9, 1.0 / 9, 1.0 / 9, 1.0 / 9, 1.0 / 9, 1.0 / 36, 1.0 / 36, 1.0 / 36, 1.0 / 36};

void setup(long size, void **in) {
    n = size;
    start = in[0];
    f = memory((STEPS + 1) * n * n * 9);
    g = memory((STEPS + 1) * n * n * 9);
}

static inline long wrap(long i) { return i < 0 ? i + n : i >= n ? i - n : i; }

/* Where the densities of a row's cells come from; each place is the source of one cell and speed alone. */
#define ROWS long rows[3] = {9 * n * wrap(i - 1), 9 * n * i, 9 * n * wrap(i + 1)}
#define COLUMNS long columns[3] = {9 * wrap(j - 1), 9 * j, 9 * wrap(j + 1)}
#define SOURCE(k) (rows[1 - SX[k]] + columns[1 - SY[k]] + k)

static inline real pull(const real *from, const long *rows, const long *columns, real *pulled, real *u, real *v) {
    real density = 0, a = 0, b = 0;
    for (int k = 0; k < 9; k++) {
        pulled[k] = from[SOURCE(k)];
        density += pulled[k];
        a += SX[k] * pulled[k];
        b += SY[k] * pulled[k];
    }
    *u = a / density;
    *v = b / density;
    return density;
}

static void step(const real *restrict from, real *restrict to) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        ROWS;
        for (long j = 0; j < n; j++) {
            COLUMNS;
            real pulled[9], u, v, density = pull(from, rows, columns, pulled, &u, &v);
            for (int k = 0; k < 9; k++) {
                real along = SX[k] * u + SY[k] * v;
                real rest = 1 + 3 * along + (real)4.5 * along * along - (real)1.5 * (u * u + v * v);
                to[9 * (i * n + j) + k] = (real)0.4 * pulled[k] + (real)0.6 * W[k] * density * rest;
            }
        }
    }
}

static void step_adjoint(const real *restrict from, const real *restrict later, real *restrict to) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        ROWS;
        for (long j = 0; j < n; j++) {
            COLUMNS;
            const real *s = later + 9 * (i * n + j);
            real pulled[9], u, v, density = pull(from, rows, columns, pulled, &u, &v), gd = 0, gu = 0, gv = 0;
            for (int k = 0; k < 9; k++) {
                real along = SX[k] * u + SY[k] * v, e = (real)0.6 * W[k] * s[k], r = density * e;
                gd += e * (1 + 3 * along + (real)4.5 * along * along - (real)1.5 * (u * u + v * v));
                gu += r * ((3 + 9 * along) * SX[k] - 3 * u);
                gv += r * ((3 + 9 * along) * SY[k] - 3 * v);
            }
            gu /= density;
            gv /= density;
            gd -= gu * u + gv * v;
            for (int k = 0; k < 9; k++) to[SOURCE(k)] = (real)0.4 * s[k] + gd + SX[k] * gu + SY[k] * gv;
        }
    }
}

double forward(void) {
    double loss = 0;
    long m = 9 * n * n;
    memcpy(f, start, m * sizeof(real));
    for (long t = 0; t < STEPS; t++) step(f + t * m, f + (t + 1) * m);
    const real *last = f + STEPS * m;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += (last[9 * k + 1] - last[9 * k + 3]) * (last[9 * k + 1] - last[9 * k + 3]);
    return loss / (n * n);
}

void backward(void **grad) {
    long m = 9 * n * n;
    const real *last = f + STEPS * m;
    real *end = g + STEPS * m;
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) {
        real s = 2 * (last[9 * k + 1] - last[9 * k + 3]) / (n * n);
        for (int q = 0; q < 9; q++) end[9 * k + q] = q == 1 ? s : q == 3 ? -s : 0;
    }
    for (long t = STEPS - 1; t >= 0; t--) step_adjoint(f + t * m, g + (t + 1) * m, g + t * m);
    memcpy(grad[0], g, m * sizeof(real));
}
