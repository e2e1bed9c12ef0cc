#define STEPS 12
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long n;
static real *start, *x, *v, *held, *gx, *gv, *gf;
static const real DT = 1e-3;
static const int LINKS[8][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}, {-1, -1}, {-1, 1}, {1, -1}, {1, 1}};

void setup(long size, void **in) {
    n = size;
    start = in[0];
    x = memory((STEPS + 1) * 3 * n * n);
    v = memory((STEPS + 1) * 3 * n * n);
    held = memory(STEPS * n * n);
    gx = memory((STEPS + 1) * 3 * n * n);
    gv = memory((STEPS + 1) * 3 * n * n);
    gf = memory(3 * n * n);
}

static inline int outside(long i, long j) { return i < 0 || i >= n || j < 0 || j >= n; }

/* The way from the cell's ball, its length; 0 if it does not touch. */
static inline real touch(const real *at, real *out) {
    out[0] = at[0] - (real)0.5; out[1] = at[1]; out[2] = at[2] - (real)0.5;
    real l = SQRT(out[0] * out[0] + out[1] * out[1] + out[2] * out[2]);
    return l < (real)0.3 ? l : 0;
}

/* `held` keeps how fast a particle wanted to go into the ball. */
static void step(const real *X, const real *V, real *N, real *W, real *keep) {
    const real tight[2] = {n, n / (real)sqrt(2)};
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        const real *at = X + 3 * (i * n + j);
        real force[3] = {0, (real)-9.8, 0}, speed[3], out[3];
        for (int d = 0; d < 8; d++) {
            if (outside(i + LINKS[d][0], j + LINKS[d][1])) continue;
            const real *to = at + 3 * (LINKS[d][0] * n + LINKS[d][1]);
            real way[3] = {to[0] - at[0], to[1] - at[1], to[2] - at[2]};
            real l = SQRT(way[0] * way[0] + way[1] * way[1] + way[2] * way[2]);
            real k = 1000 * (tight[d >= 4] - 1 / l);
            for (int c = 0; c < 3; c++) force[c] += k * way[c];
        }
        for (int c = 0; c < 3; c++) speed[c] = (V[3 * (i * n + j) + c] + DT * force[c]) * (real)0.999;
        real l = touch(at, out), into = 0;
        if (l > 0) {
            into = MIN((speed[0] * out[0] + speed[1] * out[1] + speed[2] * out[2]) / l, 0);
            for (int c = 0; c < 3; c++) speed[c] -= into * out[c] / l;
        }
        keep[i * n + j] = into;
        for (int c = 0; c < 3; c++) {
            W[3 * (i * n + j) + c] = speed[c];
            N[3 * (i * n + j) + c] = at[c] + DT * speed[c];
        }
    }
}

double forward(void) {
    double loss = 0;
    long m = 3 * n * n;
    memcpy(x, start, m * sizeof(real));
    for (long k = 0; k < n * n; k++) v[3 * k + 1] = -1;
    for (long t = 0; t < STEPS; t++)
        step(x + t * m, v + t * m, x + (t + 1) * m, v + (t + 1) * m, held + t * n * n);
    const real *last = x + STEPS * m;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < m; k++) loss += last[k] * last[k];
    return loss / (n * n);
}

/* Before the springs: what forces and speeds get, and places by way of the ball. */
static void collide_adjoint(const real *X, const real *W, const real *keep, const real *gN, const real *gW,
                            real *g, real *h) {
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) {
        real s[3], out[3], into = keep[k];
        for (int c = 0; c < 3; c++) {
            g[3 * k + c] = gN[3 * k + c];
            s[c] = gW[3 * k + c] + DT * gN[3 * k + c];
        }
        if (into < 0) {
            real l = touch(X + 3 * k, out), along = 0, deep = 0, to[3];
            for (int c = 0; c < 3; c++) { out[c] /= l; along += s[c] * out[c]; }
            for (int c = 0; c < 3; c++) {
                to[c] = -into * s[c] - along * (W[3 * k + c] + into * out[c]);
                deep += to[c] * out[c];
            }
            for (int c = 0; c < 3; c++) {
                g[3 * k + c] += (to[c] - deep * out[c]) / l;
                s[c] -= along * out[c];
            }
        }
        for (int c = 0; c < 3; c++) {
            h[3 * k + c] = (real)0.999 * s[c];
            gf[3 * k + c] = DT * (real)0.999 * s[c];
        }
    }
}

/* A spring pulls both of its ends by the same symmetric matrix, so that each end gathers. */
static void springs_adjoint(const real *X, real *g) {
    const real tight[2] = {n, n / (real)sqrt(2)};
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        const real *at = X + 3 * (i * n + j), *f = gf + 3 * (i * n + j);
        real sum[3] = {0};
        for (int d = 0; d < 8; d++) {
            if (outside(i + LINKS[d][0], j + LINKS[d][1])) continue;
            long by = 3 * (LINKS[d][0] * n + LINKS[d][1]);
            real way[3], e[3], square = 0, along = 0;
            for (int c = 0; c < 3; c++) {
                way[c] = at[by + c] - at[c];
                e[c] = f[by + c] - f[c];
                square += way[c] * way[c];
                along += way[c] * e[c];
            }
            real l = SQRT(square), k = 1000 * (tight[d >= 4] - 1 / l), m = 1000 * along / (square * l);
            for (int c = 0; c < 3; c++) sum[c] += k * e[c] + m * way[c];
        }
        for (int c = 0; c < 3; c++) g[3 * (i * n + j) + c] += sum[c];
    }
}

void backward(void **grad) {
    long m = 3 * n * n;
    memset(gv + STEPS * m, 0, m * sizeof(real));
    for (long k = 0; k < m; k++) gx[STEPS * m + k] = 2 * x[STEPS * m + k] / (n * n);
    for (long t = STEPS - 1; t >= 0; t--) {
        collide_adjoint(x + t * m, v + (t + 1) * m, held + t * n * n, gx + (t + 1) * m, gv + (t + 1) * m,
                        gx + t * m, gv + t * m);
        springs_adjoint(x + t * m, gx + t * m);
    }
    memcpy(grad[0], gx, m * sizeof(real));
}
