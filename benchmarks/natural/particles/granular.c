#define STEPS 4
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long count, cells;
static real *x[STEPS + 1], *v[STEPS + 1], *radius, *push;
static int *first[STEPS], *order[STEPS], *taken;
static const real DT = 1e-4, STIFF = 1000, BRAKE = 0.5, GRAVITY = -9.8;

void setup(long n, void **in) {
    count = n * n;
    cells = MAX(n * 3 / 4, 1);
    x[0] = in[0];
    v[0] = in[1];
    radius = in[2];
    push = memory(2 * count);
    taken = calloc(cells * cells, sizeof(int));
    for (int t = 0; t < STEPS; t++) {
        x[t + 1] = memory(2 * count);
        v[t + 1] = memory(2 * count);
        first[t] = calloc(cells * cells + 1, sizeof(int));
        order[t] = calloc(count, sizeof(int));
    }
}

static inline long along(real a) { return MIN(MAX((long)(a * cells), 0), cells - 1); }

static inline long cell(const real *p) { return along(p[0]) * cells + along(p[1]); }

static void sort(int t) {
    const real *X = x[t];
    memset(taken, 0, cells * cells * sizeof(int));
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        #pragma omp atomic
        taken[cell(X + 2 * p)]++;
    }
    for (long c = 0; c < cells * cells; c++) first[t][c + 1] = first[t][c] + taken[c];
    memset(taken, 0, cells * cells * sizeof(int));
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        long c = cell(X + 2 * p);
        int k;
        #pragma omp atomic capture
        k = taken[c]++;
        order[t][first[t][c] + k] = p;
    }
}

/* Discs p and q: whether they touch; the direction from one to the other, how far it is, how hard it pulls p. */
struct contact { real n[2], far, force; };

static inline int touch(const real *X, const real *V, long p, long q, struct contact *c) {
    real d0 = X[2 * q] - X[2 * p], d1 = X[2 * q + 1] - X[2 * p + 1], reach = radius[p] + radius[q];
    real square = d0 * d0 + d1 * d1;
    if (q == p || square >= reach * reach) return 0;
    c->far = SQRT(square);
    c->n[0] = d0 / c->far;
    c->n[1] = d1 / c->far;
    real apart = (V[2 * q] - V[2 * p]) * c->n[0] + (V[2 * q + 1] - V[2 * p + 1]) * c->n[1];
    c->force = BRAKE * apart - STIFF * (reach - c->far);
    return 1;
}

static void step(int t) {
    const real *X = x[t], *V = v[t];
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        long a = along(X[2 * p]), b = along(X[2 * p + 1]);
        real f0 = 0, f1 = GRAVITY;
        for (long i = MAX(a - 1, 0); i < MIN(a + 2, cells); i++) {
            /* a row's cells follow each other, and so do their discs */
            int end = first[t][i * cells + MIN(b + 2, cells)];
            for (int m = first[t][i * cells + MAX(b - 1, 0)]; m < end; m++) {
                struct contact c;
                if (!touch(X, V, p, order[t][m], &c)) continue;
                f0 += c.force * c.n[0];
                f1 += c.force * c.n[1];
            }
        }
        real v0 = V[2 * p] + DT * f0, v1 = V[2 * p + 1] + DT * f1;
        v[t + 1][2 * p] = v0;
        v[t + 1][2 * p + 1] = v1;
        x[t + 1][2 * p] = X[2 * p] + DT * v0;
        x[t + 1][2 * p + 1] = X[2 * p + 1] + DT * v1;
    }
}

double forward(void) {
    double loss = 0;
    for (int t = 0; t < STEPS; t++) {
        sort(t);
        step(t);
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < 2 * count; k++) loss += v[STEPS][k] * v[STEPS][k];
    return loss;
}

/* Forces of a pair are opposite, so that each disc gathers what both get, from the difference of their adjoints. */
static void step_adjoint(int t, real *gx, real *gv, real *gr) {
    const real *X = x[t], *V = v[t];
    #pragma omp parallel for
    for (long k = 0; k < 2 * count; k++) {
        gv[k] += DT * gx[k];
        push[k] = DT * gv[k];
    }
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        long a = along(X[2 * p]), b = along(X[2 * p + 1]);
        real gx0 = 0, gx1 = 0, gv0 = 0, gv1 = 0, own = 0;
        for (long i = MAX(a - 1, 0); i < MIN(a + 2, cells); i++) {
            int end = first[t][i * cells + MIN(b + 2, cells)];
            for (int m = first[t][i * cells + MAX(b - 1, 0)]; m < end; m++) {
                struct contact c;
                long q = order[t][m];
                if (!touch(X, V, p, q, &c)) continue;
                real e0 = push[2 * p] - push[2 * q], e1 = push[2 * p + 1] - push[2 * q + 1];
                real h = e0 * c.n[0] + e1 * c.n[1];
                real n0 = c.force * e0 + BRAKE * h * (V[2 * q] - V[2 * p]);
                real n1 = c.force * e1 + BRAKE * h * (V[2 * q + 1] - V[2 * p + 1]);
                real same = n0 * c.n[0] + n1 * c.n[1];
                gx0 += STIFF * h * c.n[0] + (n0 - same * c.n[0]) / c.far;
                gx1 += STIFF * h * c.n[1] + (n1 - same * c.n[1]) / c.far;
                gv0 += h * c.n[0];
                gv1 += h * c.n[1];
                own += h;
            }
        }
        gx[2 * p] -= gx0;
        gx[2 * p + 1] -= gx1;
        gv[2 * p] -= BRAKE * gv0;
        gv[2 * p + 1] -= BRAKE * gv1;
        gr[p] -= STIFF * own;
    }
}

void backward(void **grad) {
    real *gx = grad[0], *gv = grad[1], *gr = grad[2];
    memset(gx, 0, 2 * count * sizeof(real));
    memset(gr, 0, count * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < 2 * count; k++) gv[k] = 2 * v[STEPS][k];
    for (int t = STEPS - 1; t >= 0; t--) step_adjoint(t, gx, gv, gr);
}
