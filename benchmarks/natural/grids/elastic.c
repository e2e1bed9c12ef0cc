#define STEPS 8
static long n;
static const real DT = 0.2;
static real *push, *rho, *lam, *mu, *damp;
static real *vx, *vy, *sxx, *syy, *sxy;
static real *gvx, *gvy, *gxx, *gyy, *gxy; /* gradients of the state of one time */
static real *ex, *ey, *es, *fx, *fy;      /* those of strains and forces */

static real sponge(long i, long j) {
    long far = MIN(MIN(i, j), MIN(n - 1 - i, n - 1 - j));
    return far < 8 ? exp(-0.002 * (8 - far) * (8 - far)) : 1;
}

void setup(long size, void **in) {
    n = size;
    push = in[0], rho = in[1], lam = in[2], mu = in[3];
    real **histories[] = {&vx, &vy, &sxx, &syy, &sxy};
    for (int k = 0; k < 5; k++) *histories[k] = memory((STEPS + 1) * n * n);
    real **single[] = {&damp, &gvx, &gvy, &gxx, &gyy, &gxy, &ex, &ey, &es, &fx, &fy};
    for (int k = 0; k < 11; k++) *single[k] = memory(n * n);
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) damp[i * n + j] = sponge(i, j);
}

/* The arrays do not overlap (`ivdep`): they are more than gcc would test for. After the start rims stay 0. */
static void velocities(long t) {
    long now = t * n * n, next = now + n * n;
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) {
        const real *X = sxx + now + i * n, *Y = syy + now + i * n, *S = sxy + now + i * n;
        const real *u = vx + now + i * n, *v = vy + now + i * n, *d = damp + i * n, *r = rho + i * n;
        real *u_next = vx + next + i * n, *v_next = vy + next + i * n;
        #pragma GCC ivdep
        for (long j = 1; j < n - 1; j++) {
            real ax = X[j] - X[j - n] + S[j] - S[j - 1], ay = S[j + n] - S[j] + Y[j + 1] - Y[j];
            u_next[j] = d[j] * (u[j] + DT / r[j] * ax);
            v_next[j] = d[j] * (v[j] + DT / r[j] * ay);
        }
    }
}

static void stresses(long t) {
    long now = t * n * n, next = now + n * n;
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) {
        const real *X = sxx + now + i * n, *Y = syy + now + i * n, *S = sxy + now + i * n;
        const real *u = vx + next + i * n, *v = vy + next + i * n, *d = damp + i * n, *L = lam + i * n, *M = mu + i * n;
        real *X_next = sxx + next + i * n, *Y_next = syy + next + i * n, *S_next = sxy + next + i * n;
        #pragma GCC ivdep
        for (long j = 1; j < n - 1; j++) {
            real exx = u[j + n] - u[j], eyy = v[j] - v[j - 1], exy = u[j + 1] - u[j] + v[j] - v[j - n];
            real l = L[j], m = M[j];
            X_next[j] = d[j] * (X[j] + DT * ((l + 2 * m) * exx + l * eyy));
            Y_next[j] = d[j] * (Y[j] + DT * ((l + 2 * m) * eyy + l * exx));
            S_next[j] = d[j] * (S[j] + DT * m * exy);
        }
    }
}

double forward(void) {
    double loss = 0;
    memcpy(vx, push, n * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        velocities(t);
        stresses(t);
    }
    const real *u = vx + STEPS * n * n, *v = vy + STEPS * n * n;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += u[k] * u[k] + v[k] * v[k];
    return loss / (n * n);
}

/* Velocities take what strains give, and give to forces. */
static void velocities_adjoint(long t, real *restrict g_rho) {
    long now = t * n * n;
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) {
        const real *X = sxx + now + i * n, *Y = syy + now + i * n, *S = sxy + now + i * n;
        const real *d = damp + i * n, *r = rho + i * n, *a = ex + i * n, *b = ey + i * n, *c = es + i * n;
        real *gu = gvx + i * n, *gv = gvy + i * n, *gr = g_rho + i * n, *p = fx + i * n, *q = fy + i * n;
        #pragma GCC ivdep
        for (long j = 1; j < n - 1; j++) {
            real ax = X[j] - X[j - n] + S[j] - S[j - 1], ay = S[j + n] - S[j] + Y[j + 1] - Y[j];
            real hu = d[j] * (gu[j] + a[j - n] - a[j] + c[j - 1] - c[j]);
            real hv = d[j] * (gv[j] + b[j] - b[j + 1] + c[j] - c[j + n]), light = DT / r[j];
            gu[j] = hu;
            gv[j] = hv;
            p[j] = light * hu;
            q[j] = light * hv;
            gr[j] -= light / r[j] * (hu * ax + hv * ay);
        }
    }
}

/* Stresses take what forces give, and give to strains. */
static void stresses_adjoint(long t, real *restrict g_lam, real *restrict g_mu) {
    long next = (t + 1) * n * n;
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) {
        const real *u = vx + next + i * n, *v = vy + next + i * n, *d = damp + i * n, *L = lam + i * n, *M = mu + i * n;
        const real *p = fx + i * n, *q = fy + i * n;
        real *gX = gxx + i * n, *gY = gyy + i * n, *gS = gxy + i * n, *gl = g_lam + i * n, *gm = g_mu + i * n;
        real *a = ex + i * n, *b = ey + i * n, *c = es + i * n;
        #pragma GCC ivdep
        for (long j = 1; j < n - 1; j++) {
            real exx = u[j + n] - u[j], eyy = v[j] - v[j - 1], exy = u[j + 1] - u[j] + v[j] - v[j - n];
            real hx = d[j] * (gX[j] + p[j] - p[j + n]), hy = d[j] * (gY[j] + q[j - 1] - q[j]);
            real hs = d[j] * (gS[j] + p[j] - p[j + 1] + q[j - n] - q[j]), l = L[j], m = M[j];
            gX[j] = hx;
            gY[j] = hy;
            gS[j] = hs;
            a[j] = DT * ((l + 2 * m) * hx + l * hy);
            b[j] = DT * ((l + 2 * m) * hy + l * hx);
            c[j] = DT * m * hs;
            gl[j] += DT * (hx + hy) * (exx + eyy);
            gm[j] += DT * (2 * (hx * exx + hy * eyy) + hs * exy);
        }
    }
}

/* The loss knows no stress, so that the last ones have no gradient. */
void backward(void **grad) {
    const real *u = vx + STEPS * n * n, *v = vy + STEPS * n * n;
    real *zero[] = {grad[1], grad[2], grad[3], gxx, gyy, gxy, ex, ey, es};
    for (int k = 0; k < 9; k++) memset(zero[k], 0, n * n * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) {
        gvx[k] = 2 * u[k] / (n * n);
        gvy[k] = 2 * v[k] / (n * n);
    }
    for (long t = STEPS - 1; t >= 0; t--) {
        velocities_adjoint(t, grad[1]);
        if (t) stresses_adjoint(t - 1, grad[2], grad[3]);
    }
    memcpy(grad[0], gvx, n * n * sizeof(real));
}
