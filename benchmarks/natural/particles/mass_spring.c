#define STEPS 8
static long n, count, springs;
static real *start, *stiffness, *x, *v, *force, *gx, *gv;
static int *ends;

void setup(long size, void **in) {
    n = size;
    count = n * n;
    springs = 3 * (n - 1) * (n - 1);
    start = in[0];
    stiffness = in[1];
    ends = in[2];
    x = memory((STEPS + 1) * count * 2);
    v = memory((STEPS + 1) * count * 2);
    force = memory(STEPS * count * 2);
    gx = memory((STEPS + 1) * count * 2);
    gv = memory((STEPS + 1) * count * 2);
}

static inline real length_of(const real *way) {
    real r2 = way[0] * way[0] + way[1] * way[1];
    return sizeof(real) == 4 ? sqrtf(r2) : sqrt(r2);
}

double forward(void) {
    double loss = 0;
    memcpy(x, start, 2 * count * sizeof(real));
    memset(v, 0, 2 * count * sizeof(real));
    memset(force, 0, STEPS * 2 * count * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        real *X = x + t * 2 * count, *F = force + t * 2 * count;
        #pragma omp parallel for
        for (long s = 0; s < springs; s++) {
            int a = ends[2 * s], b = ends[2 * s + 1];
            real way[2] = {X[2 * a] - X[2 * b], X[2 * a + 1] - X[2 * b + 1]};
            real l = length_of(way) + (real)1e-4, k = stiffness[s] * (l - (real)1.1 / n) / l;
            add(F + 2 * a, -k * way[0]); add(F + 2 * a + 1, -k * way[1]);
            add(F + 2 * b, k * way[0]); add(F + 2 * b + 1, k * way[1]);
        }
        #pragma omp parallel for
        for (long p = 0; p < count; p++) {
            real a = (real)0.99 * v[2 * (t * count + p)] + (real)1e-3 * F[2 * p];
            real b = (real)0.99 * v[2 * (t * count + p) + 1] + (real)1e-3 * (F[2 * p + 1] - (real)9.8);
            if (X[2 * p + 1] < (real)0.1 && b < 0) a = b = 0;
            real *V = v + 2 * ((t + 1) * count + p), *N = x + 2 * ((t + 1) * count + p);
            V[0] = a; V[1] = b;
            N[0] = X[2 * p] + (real)1e-3 * a; N[1] = X[2 * p + 1] + (real)1e-3 * b;
        }
    }
    const real *last = x + STEPS * 2 * count;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < 2 * count; k++) loss += last[k] * last[k];
    return loss / count;
}

void backward(void **grad) {
    real *gs = grad[1], *gf = none(2 * count);
    memset(gs, 0, springs * sizeof(real));
    memset(gv + STEPS * 2 * count, 0, 2 * count * sizeof(real));
    for (long k = 0; k < 2 * count; k++) gx[STEPS * 2 * count + k] = 2 * x[STEPS * 2 * count + k] / count;
    for (long t = STEPS - 1; t >= 0; t--) {
        real *X = x + t * 2 * count, *F = force + t * 2 * count, *V = v + t * 2 * count;
        real *g = gx + t * 2 * count, *h = gv + t * 2 * count;
        #pragma omp parallel for
        for (long p = 0; p < count; p++) {
            real b = (real)0.99 * V[2 * p + 1] + (real)1e-3 * (F[2 * p + 1] - (real)9.8);
            int held = X[2 * p + 1] < (real)0.1 && b < 0;
            for (int k = 0; k < 2; k++) {
                long at = 2 * p + k;
                real s = held ? 0 : h[2 * count + at] + (real)1e-3 * g[2 * count + at];
                g[at] = g[2 * count + at];
                h[at] = (real)0.99 * s;
                gf[at] = (real)1e-3 * s;
            }
        }
        #pragma omp parallel for
        for (long s = 0; s < springs; s++) {
            int a = ends[2 * s], b = ends[2 * s + 1];
            real way[2] = {X[2 * a] - X[2 * b], X[2 * a + 1] - X[2 * b + 1]};
            real r = length_of(way), l = r + (real)1e-4, rest = (real)1.1 / n, q = (l - rest) / l;
            real e[2] = {gf[2 * b] - gf[2 * a], gf[2 * b + 1] - gf[2 * a + 1]};
            real along = e[0] * way[0] + e[1] * way[1];
            gs[s] += along * q;
            real k = stiffness[s] * q, d = stiffness[s] * along * rest / (l * l * r);
            for (int c = 0; c < 2; c++) {
                real w = k * e[c] + d * way[c];
                add(g + 2 * a + c, w);
                add(g + 2 * b + c, -w);
            }
        }
    }
    memcpy(grad[0], gx, 2 * count * sizeof(real));
}
