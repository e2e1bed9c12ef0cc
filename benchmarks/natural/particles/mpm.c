#define STEPS 8
static long n, count;
static real *x0, *v0, *x, *v, *C, *F, *grid_v, *grid_m, *grid_u, *gx, *gv, *gC, *gF, *gu, *gg;
static const real DT = 1e-4;

void setup(long size, void **in) {
    n = size;
    count = n * n;
    x0 = in[0];
    v0 = in[1];
    x = memory((STEPS + 1) * 2 * count);
    v = memory((STEPS + 1) * 2 * count);
    C = memory((STEPS + 1) * 4 * count);
    F = memory((STEPS + 1) * 4 * count);
    grid_v = memory(STEPS * 2 * n * n);
    grid_m = memory(STEPS * n * n);
    grid_u = memory(STEPS * 2 * n * n);
    gx = memory(2 * count);
    gv = memory(2 * count);
    gC = memory(4 * count);
    gF = memory(4 * count);
    gu = memory(2 * n * n);
    gg = memory(3 * n * n);
}

/* Of a particle: its first node, the place seen from there, what three nodes of each axis count. */
struct stencil { long base; real fx[2], w[3][2]; };

static inline struct stencil around(const real *at) {
    struct stencil s;
    int base[2];
    for (int a = 0; a < 2; a++) {
        base[a] = at[a] * n - (real)0.5;
        real f = s.fx[a] = at[a] * n - base[a];
        s.w[0][a] = (real)0.5 * ((real)1.5 - f) * ((real)1.5 - f);
        s.w[1][a] = (real)0.75 - (f - 1) * (f - 1);
        s.w[2][a] = (real)0.5 * (f - (real)0.5) * (f - (real)0.5);
    }
    s.base = base[0] * n + base[1];
    return s;
}

/* What a place gets by way of the weights (`way` per axis) and of the distances to nodes. */
static inline void to_place(const struct stencil *s, real way[3][2], const real *far, real *g) {
    for (int a = 0; a < 2; a++) {
        real f = s->fx[a];
        g[a] += n * (way[0][a] * (f - (real)1.5) - 2 * way[1][a] * (f - 1) + way[2][a] * (f - (real)0.5) - far[a]);
    }
}

static inline void affine_of(const real *N, const real *c, real *A) {
    real J = N[0] * N[3] - N[1] * N[2], same = 50 * J * (J - 1) - 50;
    A[0] = c[0] - DT * (50 * (N[0] * N[0] + N[1] * N[1]) + same);
    A[1] = c[1] - DT * 50 * (N[0] * N[2] + N[1] * N[3]);
    A[2] = c[2] - DT * 50 * (N[0] * N[2] + N[1] * N[3]);
    A[3] = c[3] - DT * (50 * (N[2] * N[2] + N[3] * N[3]) + same);
}

static void to_grid(long t) {
    const real *X = x + t * 2 * count, *V = v + t * 2 * count;
    real *momentum = grid_v + t * 2 * n * n, *mass = grid_m + t * n * n;
    #pragma omp parallel for reduction(+ : momentum[:2 * n * n], mass[:n * n])
    for (long p = 0; p < count; p++) {
        struct stencil s = around(X + 2 * p);
        const real *c = C + 4 * (t * count + p), *f = F + 4 * (t * count + p);
        real *N = F + 4 * ((t + 1) * count + p), A[4];
        real m[4] = {1 + DT * c[0], DT * c[1], DT * c[2], 1 + DT * c[3]};
        N[0] = m[0] * f[0] + m[1] * f[2]; N[1] = m[0] * f[1] + m[1] * f[3];
        N[2] = m[2] * f[0] + m[3] * f[2]; N[3] = m[2] * f[1] + m[3] * f[3];
        affine_of(N, c, A);
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            real d0 = (i - s.fx[0]) / n, d1 = (j - s.fx[1]) / n, w = s.w[i][0] * s.w[j][1];
            long node = s.base + i * n + j;
            momentum[2 * node] += w * (V[2 * p] + A[0] * d0 + A[1] * d1);
            momentum[2 * node + 1] += w * (V[2 * p + 1] + A[2] * d0 + A[3] * d1);
            mass[node] += w;
        }
    }
}

/* Walls hold what would leave: 0 for a component that is held. */
static inline void free_of(long i, long j, const real *u, real *is) {
    is[0] = !((i < 3 && u[0] < 0) || (i > n - 3 && u[0] > 0));
    is[1] = !((j < 3 && u[1] < 0) || (j > n - 3 && u[1] > 0));
}

static void on_grid(long t) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        long at = (t * n + i) * n + j;
        real m = grid_m[at] + (real)1e-10, u[2] = {grid_v[2 * at] / m, grid_v[2 * at + 1] / m - DT * (real)9.8}, is[2];
        free_of(i, j, u, is);
        grid_u[2 * at] = is[0] * u[0];
        grid_u[2 * at + 1] = is[1] * u[1];
    }
}

static void to_particles(long t) {
    const real *X = x + t * 2 * count, *U = grid_u + t * 2 * n * n;
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        struct stencil s = around(X + 2 * p);
        real a[2] = {0}, c[4] = {0};
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            real w = s.w[i][0] * s.w[j][1], d0 = i - s.fx[0], d1 = j - s.fx[1];
            const real *u = U + 2 * (s.base + i * n + j);
            a[0] += w * u[0]; a[1] += w * u[1];
            c[0] += w * u[0] * d0; c[1] += w * u[0] * d1;
            c[2] += w * u[1] * d0; c[3] += w * u[1] * d1;
        }
        for (int k = 0; k < 2; k++) {
            v[2 * ((t + 1) * count + p) + k] = a[k];
            x[2 * ((t + 1) * count + p) + k] = X[2 * p + k] + DT * a[k];
        }
        for (int k = 0; k < 4; k++) C[4 * ((t + 1) * count + p) + k] = 4 * n * c[k];
    }
}

double forward(void) {
    double loss = 0;
    memcpy(x, x0, 2 * count * sizeof(real));
    memcpy(v, v0, 2 * count * sizeof(real));
    for (long p = 0; p < count; p++) F[4 * p] = F[4 * p + 3] = 1;
    memset(grid_v, 0, STEPS * 2 * n * n * sizeof(real));
    memset(grid_m, 0, STEPS * n * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        to_grid(t);
        on_grid(t);
        to_particles(t);
    }
    const real *X = x + STEPS * 2 * count, *V = v + STEPS * 2 * count;
    #pragma omp parallel for reduction(+ : loss)
    for (long p = 0; p < count; p++)
        loss += X[2 * p] + (real)0.1 * (V[2 * p] * V[2 * p] + V[2 * p + 1] * V[2 * p + 1]);
    return loss / count;
}

static void to_particles_adjoint(long t) {
    const real *X = x + t * 2 * count, *U = grid_u + t * 2 * n * n;
    memset(gu, 0, 2 * n * n * sizeof(real));
    #pragma omp parallel for reduction(+ : gu[:2 * n * n])
    for (long p = 0; p < count; p++) {
        struct stencil s = around(X + 2 * p);
        const real a0 = gv[2 * p] + DT * gx[2 * p], a1 = gv[2 * p + 1] + DT * gx[2 * p + 1];
        real way[3][2] = {{0}}, far[2] = {0}, c[4];
        for (int k = 0; k < 4; k++) c[k] = 4 * n * gC[4 * p + k];
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            real w = s.w[i][0] * s.w[j][1], d0 = i - s.fx[0], d1 = j - s.fx[1];
            long node = 2 * (s.base + i * n + j);
            real e0 = a0 + c[0] * d0 + c[1] * d1, e1 = a1 + c[2] * d0 + c[3] * d1;
            real of = e0 * U[node] + e1 * U[node + 1];
            gu[node] += w * e0;
            gu[node + 1] += w * e1;
            way[i][0] += of * s.w[j][1];
            way[j][1] += of * s.w[i][0];
            far[0] += w * (c[0] * U[node] + c[2] * U[node + 1]);
            far[1] += w * (c[1] * U[node] + c[3] * U[node + 1]);
        }
        to_place(&s, way, far, gx + 2 * p);
    }
}

static void on_grid_adjoint(long t) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        long k = i * n + j, at = t * n * n + k;
        real m = grid_m[at] + (real)1e-10, a = grid_v[2 * at] / m, b = grid_v[2 * at + 1] / m;
        real u[2] = {a, b - DT * (real)9.8}, is[2];
        free_of(i, j, u, is);
        gg[3 * k] = is[0] * gu[2 * k] / m;
        gg[3 * k + 1] = is[1] * gu[2 * k + 1] / m;
        gg[3 * k + 2] = -(gg[3 * k] * a + gg[3 * k + 1] * b);
    }
}

/* From the gradient of the affine matrix, A = C - DT stress(N), N = (1 + DT C) F. */
static inline void strain_adjoint(const real *N, const real *c, const real *f, const real *gA, real *gc, real *gf) {
    real J = N[0] * N[3] - N[1] * N[2], same = -DT * 50 * (2 * J - 1) * (gA[0] + gA[3]), k = -DT * 50;
    real off = gA[1] + gA[2], m[4] = {1 + DT * c[0], DT * c[1], DT * c[2], 1 + DT * c[3]};
    real gN[4] = {
        gf[0] + k * (2 * gA[0] * N[0] + off * N[2]) + same * N[3],
        gf[1] + k * (2 * gA[0] * N[1] + off * N[3]) - same * N[2],
        gf[2] + k * (off * N[0] + 2 * gA[3] * N[2]) - same * N[1],
        gf[3] + k * (off * N[1] + 2 * gA[3] * N[3]) + same * N[0],
    };
    gf[0] = m[0] * gN[0] + m[2] * gN[2]; gf[1] = m[0] * gN[1] + m[2] * gN[3];
    gf[2] = m[1] * gN[0] + m[3] * gN[2]; gf[3] = m[1] * gN[1] + m[3] * gN[3];
    gc[0] = gA[0] + DT * (gN[0] * f[0] + gN[1] * f[1]); gc[1] = gA[1] + DT * (gN[0] * f[2] + gN[1] * f[3]);
    gc[2] = gA[2] + DT * (gN[2] * f[0] + gN[3] * f[1]); gc[3] = gA[3] + DT * (gN[2] * f[2] + gN[3] * f[3]);
}

static void to_grid_adjoint(long t) {
    const real *X = x + t * 2 * count, *V = v + t * 2 * count;
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        struct stencil s = around(X + 2 * p);
        const real *c = C + 4 * (t * count + p), *N = F + 4 * ((t + 1) * count + p);
        real A[4], gA[4] = {0}, way[3][2] = {{0}}, far[2] = {0}, own[2] = {0};
        affine_of(N, c, A);
        for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) {
            real d0 = (i - s.fx[0]) / n, d1 = (j - s.fx[1]) / n, w = s.w[i][0] * s.w[j][1];
            const real *e = gg + 3 * (s.base + i * n + j);
            real of = e[0] * (V[2 * p] + A[0] * d0 + A[1] * d1) + e[1] * (V[2 * p + 1] + A[2] * d0 + A[3] * d1) + e[2];
            own[0] += w * e[0]; own[1] += w * e[1];
            gA[0] += w * e[0] * d0; gA[1] += w * e[0] * d1;
            gA[2] += w * e[1] * d0; gA[3] += w * e[1] * d1;
            way[i][0] += of * s.w[j][1];
            way[j][1] += of * s.w[i][0];
        }
        for (int k = 0; k < 2; k++) {
            gv[2 * p + k] = own[k];
            far[k] = (A[k] * own[0] + A[2 + k] * own[1]) / n;
        }
        to_place(&s, way, far, gx + 2 * p);
        strain_adjoint(N, c, F + 4 * (t * count + p), gA, gC + 4 * p, gF + 4 * p);
    }
}

void backward(void **grad) {
    memset(gC, 0, 4 * count * sizeof(real));
    memset(gF, 0, 4 * count * sizeof(real));
    for (long p = 0; p < count; p++) {
        gx[2 * p] = (real)1 / count;
        gx[2 * p + 1] = 0;
        for (int k = 0; k < 2; k++) gv[2 * p + k] = (real)0.2 * v[2 * (STEPS * count + p) + k] / count;
    }
    for (long t = STEPS - 1; t >= 0; t--) {
        to_particles_adjoint(t);
        on_grid_adjoint(t);
        to_grid_adjoint(t);
    }
    memcpy(grad[0], gx, 2 * count * sizeof(real));
    memcpy(grad[1], gv, 2 * count * sizeof(real));
}
