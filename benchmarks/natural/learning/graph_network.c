#define F 16
#define LAYERS 2
static long n, edges_count;
static real *start, *w, *u, *h, *m, *g, *gm, *before;
static int *edges;

void setup(long size, void **in) {
    n = size;
    edges_count = 6 * n;
    start = in[0];
    w = in[1];
    u = in[2];
    edges = in[3];
    h = memory((LAYERS + 1) * n * F);
    m = memory(LAYERS * n * F);
    g = memory(n * F);
    gm = memory(n * F);
    before = memory(n * F);
}

static inline real squash(real v) { return sizeof(real) == 4 ? tanhf(v) : tanh(v); }

static void transpose(real to[F][F], const real *of) {
    for (int k = 0; k < F; k++)
        for (int j = 0; j < F; j++) to[j][k] = of[k * F + j];
}

double forward(void) {
    double loss = 0;
    memcpy(h, start, n * F * sizeof(real));
    memset(m, 0, LAYERS * n * F * sizeof(real));
    for (int l = 0; l < LAYERS; l++) {
        const real *H = h + l * n * F;
        real *M = m + l * n * F, *N = h + (l + 1) * n * F, wt[F][F], ut[F][F];
        transpose(wt, w + l * F * F);
        transpose(ut, u + l * F * F);
        #pragma omp parallel for
        for (long e = 0; e < edges_count; e++) {
            long a = edges[2 * e], b = edges[2 * e + 1];
            real s[F] = {0};
            for (int j = 0; j < F; j++) {
                real d = H[a * F + j] - H[b * F + j];
                for (int k = 0; k < F; k++) s[k] += wt[j][k] * d;
            }
            for (int k = 0; k < F; k++) add(M + b * F + k, MAX(s[k], 0));
        }
        #pragma omp parallel for
        for (long i = 0; i < n; i++) {
            real s[F];
            for (int k = 0; k < F; k++) s[k] = H[i * F + k];
            for (int j = 0; j < F; j++)
                for (int k = 0; k < F; k++) s[k] += ut[j][k] * M[i * F + j];
            for (int k = 0; k < F; k++) N[i * F + k] = squash(s[k]);
        }
    }
    const real *last = h + LAYERS * n * F;
    for (long k = 0; k < n * F; k++) loss += last[k] * last[k];
    return loss / n;
}

void backward(void **grad) {
    real *gw = grad[1], *gu = grad[2];
    const real *last = h + LAYERS * n * F;
    memset(gw, 0, LAYERS * F * F * sizeof(real));
    memset(gu, 0, LAYERS * F * F * sizeof(real));
    for (long k = 0; k < n * F; k++) g[k] = 2 * last[k] / n;
    for (int l = LAYERS - 1; l >= 0; l--) {
        const real *H = h + l * n * F, *M = m + l * n * F, *W = w + l * F * F, *U = u + l * F * F;
        real *GW = gw + l * F * F, *GU = gu + l * F * F, wt[F][F];
        transpose(wt, W);
        #pragma omp parallel for reduction(+ : GU[: F * F])
        for (long i = 0; i < n; i++) {
            real s[F], r[F] = {0};
            for (int k = 0; k < F; k++) {
                real y = H[(n + i) * F + k];
                before[i * F + k] = s[k] = g[i * F + k] * (1 - y * y);
            }
            for (int k = 0; k < F; k++)
                for (int j = 0; j < F; j++) {
                    r[j] += s[k] * U[k * F + j];
                    GU[k * F + j] += s[k] * M[i * F + j];
                }
            for (int j = 0; j < F; j++) gm[i * F + j] = r[j];
        }
        #pragma omp parallel for reduction(+ : GW[: F * F])
        for (long e = 0; e < edges_count; e++) {
            long a = edges[2 * e], b = edges[2 * e + 1];
            real s[F] = {0}, d[F], r[F] = {0};
            for (int j = 0; j < F; j++) {
                d[j] = H[a * F + j] - H[b * F + j];
                for (int k = 0; k < F; k++) s[k] += wt[j][k] * d[j];
            }
            for (int k = 0; k < F; k++) s[k] = s[k] > 0 ? gm[b * F + k] : 0;
            for (int k = 0; k < F; k++)
                for (int j = 0; j < F; j++) {
                    r[j] += s[k] * W[k * F + j];
                    GW[k * F + j] += s[k] * d[j];
                }
            for (int j = 0; j < F; j++) {
                add(before + a * F + j, r[j]);
                add(before + b * F + j, -r[j]);
            }
        }
        memcpy(g, before, n * F * sizeof(real));
    }
    memcpy(grad[0], g, n * F * sizeof(real));
}
