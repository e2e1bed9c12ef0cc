#define STEPS 10
static long n;
static real *start, *nu, *w, *g, *columns;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    nu = in[1];
    w = memory((STEPS + 1) * n * n * 2);
    g = memory((STEPS + 1) * n * n * 2);
    columns = memory(n);
}

/* A cell, and those to its west, east, south and north. */
typedef struct { const real *c, *w, *e, *s, *m; } around;

static inline around at(const real *from, long i, long j, long south, long north) {
    const real *row = from + 2 * n * i;
    const real *west = from + 2 * n * (i ? i - 1 : n - 1), *east = from + 2 * n * (i < n - 1 ? i + 1 : 0);
    return (around){row + 2 * j, west + 2 * j, east + 2 * j, row + 2 * south, row + 2 * north};
}

static inline void cell(real *restrict o, around x, real nu) {
    real u = x.c[0], v = x.c[1];
    for (int k = 0; k < 2; k++) {
        real c = x.c[k], dx = u > 0 ? c - x.w[k] : x.e[k] - c, dy = v > 0 ? c - x.s[k] : x.m[k] - c;
        o[k] = c + (real)0.1 * (nu * (x.e[k] + x.w[k] + x.m[k] + x.s[k] - 4 * c) - u * dx - v * dy);
    }
}

static void step(real *restrict to, const real *restrict from, real nu) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        real *o = to + 2 * n * i;
        cell(o, at(from, i, 0, n - 1, 1), nu);
        for (long j = 1; j < n - 1; j++) cell(o + 2 * j, at(from, i, j, j - 1, j + 1), nu);
        cell(o + 2 * (n - 1), at(from, i, n - 1, n - 2, 0), nu);
    }
}

/* What a cell gets from itself and from the neighbours that it is upwind of; returns the viscosity's part. */
static inline real cell_adjoint(real *restrict o, around h, around x, real nu) {
    real u = x.c[0], v = x.c[1], du = 0, dv = 0, sum = 0;
    real west = nu + MAX(-x.w[0], 0), east = nu + MAX(x.e[0], 0);
    real south = nu + MAX(-x.s[1], 0), north = nu + MAX(x.m[1], 0);
    real self = 4 * nu + MAX(u, -u) + MAX(v, -v);
    for (int k = 0; k < 2; k++) {
        real c = x.c[k], s = h.c[k];
        du += s * (u > 0 ? c - x.w[k] : x.e[k] - c);
        dv += s * (v > 0 ? c - x.s[k] : x.m[k] - c);
        sum += s * (x.e[k] + x.w[k] + x.m[k] + x.s[k] - 4 * c);
        o[k] = s + (real)0.1 * (west * h.w[k] + east * h.e[k] + south * h.s[k] + north * h.m[k] - self * s);
    }
    o[0] -= (real)0.1 * du;
    o[1] -= (real)0.1 * dv;
    return (real)0.1 * sum;
}

/* The viscosity's gradient is summed column by column. */
static void step_adjoint(real *restrict to, const real *restrict later, const real *restrict from, real nu,
                         real *restrict sums) {
    #pragma omp parallel for reduction(+ : sums[:n])
    for (long i = 0; i < n; i++) {
        real *o = to + 2 * n * i;
        sums[0] += cell_adjoint(o, at(later, i, 0, n - 1, 1), at(from, i, 0, n - 1, 1), nu);
        #pragma GCC ivdep /* more arrays than gcc would test for overlaps */
        for (long j = 1; j < n - 1; j++)
            sums[j] += cell_adjoint(o + 2 * j, at(later, i, j, j - 1, j + 1), at(from, i, j, j - 1, j + 1), nu);
        sums[n - 1] += cell_adjoint(o + 2 * (n - 1), at(later, i, n - 1, n - 2, 0), at(from, i, n - 1, n - 2, 0), nu);
    }
}

double forward(void) {
    double loss = 0;
    long size = 2 * n * n;
    memcpy(w, start, size * sizeof(real));
    for (long t = 0; t < STEPS; t++) step(w + (t + 1) * size, w + t * size, nu[0]);
    const real *last = w + STEPS * size;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < size; k++) loss += last[k] * last[k];
    return loss / (n * n);
}

void backward(void **grad) {
    double sum = 0;
    long size = 2 * n * n;
    real *g_nu = grad[1];
    memset(columns, 0, n * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < size; k++) g[STEPS * size + k] = 2 * w[STEPS * size + k] / (n * n);
    for (long t = STEPS - 1; t >= 0; t--)
        step_adjoint(t ? g + t * size : grad[0], g + (t + 1) * size, w + t * size, nu[0], columns);
    for (long j = 0; j < n; j++) sum += columns[j];
    g_nu[0] = sum;
}
