#define STEPS 100
#define LANES 16
static long n;
static real *start, *mu;
static const real H = 0.02;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    mu = in[1];
}

/* One step of LANES oscillators; k holds the four slopes of v, y the four places. */
#define RATE(x, v) (m[l] * (1 - (x) * (x)) * (v) - (x))
static inline void step(real *restrict x, real *restrict v, const real *restrict m) {
    for (int l = 0; l < LANES; l++) {
        real x1 = x[l], v1 = v[l], a1 = RATE(x1, v1);
        real x2 = x1 + H / 2 * v1, v2 = v1 + H / 2 * a1, a2 = RATE(x2, v2);
        real x3 = x1 + H / 2 * v2, v3 = v1 + H / 2 * a2, a3 = RATE(x3, v3);
        real x4 = x1 + H * v3, v4 = v1 + H * a3, a4 = RATE(x4, v4);
        x[l] = x1 + H / 6 * (v1 + 2 * v2 + 2 * v3 + v4);
        v[l] = v1 + H / 6 * (a1 + 2 * a2 + 2 * a3 + a4);
    }
}

static inline void load(long i, real *x, real *v, real *m) {
    for (long l = 0; l < LANES; l++) {
        long at = i + l < n ? i + l : n - 1;
        x[l] = start[2 * at]; v[l] = start[2 * at + 1]; m[l] = mu[at];
    }
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i += LANES) {
        real x[LANES], v[LANES], m[LANES];
        load(i, x, v, m);
        for (int t = 0; t < STEPS; t++) step(x, v, m);
        for (long l = 0; l < LANES && i + l < n; l++) loss += x[l] * x[l] + v[l] * v[l];
    }
    return loss / n;
}

/* Of an acceleration's adjoint s at (x, v): what x, v and m get. */
#define PULL(s, x, v, gx, gv) do { \
    real s_ = s; gx += s_ * (-2 * m[l] * (x) * (v) - 1); gv += s_ * m[l] * (1 - (x) * (x)); \
    gm[l] += s_ * (1 - (x) * (x)) * (v); } while (0)

static inline void step_adjoint(const real *restrict x, const real *restrict v, const real *restrict m,
                                real *restrict gx, real *restrict gv, real *restrict gm) {
    for (int l = 0; l < LANES; l++) {
        real x1 = x[l], v1 = v[l], a1 = RATE(x1, v1);
        real x2 = x1 + H / 2 * v1, v2 = v1 + H / 2 * a1, a2 = RATE(x2, v2);
        real x3 = x1 + H / 2 * v2, v3 = v1 + H / 2 * a2, a3 = RATE(x3, v3);
        real x4 = x1 + H * v3, v4 = v1 + H * a3;
        real X = gx[l], V = gv[l], p = H / 6 * X, q = H / 6 * V;
        real X4 = 0, V4 = p, X3 = 0, V3 = 2 * p, X2 = 0, V2 = 2 * p, X1 = X, V1 = V + p;
        PULL(q, x4, v4, X4, V4);
        V3 += H * X4;
        PULL(2 * q + H * V4, x3, v3, X3, V3);
        V2 += H / 2 * X3;
        PULL(2 * q + H / 2 * V3, x2, v2, X2, V2);
        V1 += H / 2 * X2;
        PULL(q + H / 2 * V2, x1, v1, X1, V1);
        gx[l] = X1 + X4 + X3 + X2;
        gv[l] = V1 + V4 + V3 + V2;
    }
}

void backward(void **grad) {
    real *gs = grad[0], *gmu = grad[1];
    #pragma omp parallel for
    for (long i = 0; i < n; i += LANES) {
        real x[STEPS + 1][LANES], v[STEPS + 1][LANES], m[LANES], gx[LANES], gv[LANES], gm[LANES] = {0};
        load(i, x[0], v[0], m);
        for (int t = 0; t < STEPS; t++) {
            memcpy(x[t + 1], x[t], sizeof x[t]);
            memcpy(v[t + 1], v[t], sizeof v[t]);
            step(x[t + 1], v[t + 1], m);
        }
        for (int l = 0; l < LANES; l++) { gx[l] = 2 * x[STEPS][l] / n; gv[l] = 2 * v[STEPS][l] / n; }
        for (int t = STEPS - 1; t >= 0; t--) step_adjoint(x[t], v[t], m, gx, gv, gm);
        for (long l = 0; l < LANES && i + l < n; l++) {
            gs[2 * (i + l)] = gx[l]; gs[2 * (i + l) + 1] = gv[l]; gmu[i + l] = gm[l];
        }
    }
}
