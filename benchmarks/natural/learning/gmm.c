#define K 25
#define D 10
#define EXP(a) (sizeof(real) == 4 ? expf(a) : exp(a))
static long n;
static real *alpha, *mean, *q, *low, *x, *terms;

void setup(long size, void **in) {
    n = size;
    alpha = in[0];
    mean = in[1];
    q = in[2];
    low = in[3];
    x = in[4];
    terms = memory(n * K);
}

static real diagonal[K][D], weight[K];

static void prepare(void) {
    for (int k = 0; k < K; k++) {
        weight[k] = alpha[k];
        for (int a = 0; a < D; a++) {
            weight[k] += q[k * D + a];
            diagonal[k][a] = EXP(q[k * D + a]);
        }
    }
}

static inline real rows(const real *p, int k, real *c, real *row) {
    const real *L = low + k * D * D;
    real square = 0;
    for (int a = 0; a < D; a++) c[a] = p[a] - mean[k * D + a];
    for (int a = 0; a < D; a++) {
        row[a] = diagonal[k][a] * c[a];
        for (int b = 0; b < a; b++) row[a] += L[a * D + b] * c[b];
        square += row[a] * row[a];
    }
    return weight[k] - (real)0.5 * square;
}

double forward(void) {
    double loss = 0;
    prepare();
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) {
        real c[D], row[D], *t = terms + i * K, most = (real)-1e30, total = 0;
        for (int k = 0; k < K; k++) { t[k] = rows(x + i * D, k, c, row); most = MAX(most, t[k]); }
        for (int k = 0; k < K; k++) total += EXP(t[k] - most);
        loss += most + log(total);
    }
    return loss / n;
}

void backward(void **grad) {
    real *ga = grad[0], *gm = grad[1], *gq = grad[2], *gl = grad[3];
    memset(ga, 0, K * sizeof(real));
    memset(gm, 0, K * D * sizeof(real));
    memset(gq, 0, K * D * sizeof(real));
    memset(gl, 0, K * D * D * sizeof(real));
    prepare();
    #pragma omp parallel
    {
        real oa[K] = {0}, om[K][D] = {{0}}, oq[K][D] = {{0}}, ol[K][D][D] = {{{0}}};
        #pragma omp for
        for (long i = 0; i < n; i++) {
            const real *t = terms + i * K;
            real most = (real)-1e30, total = 0, c[D], row[D], gc[D];
            for (int k = 0; k < K; k++) most = MAX(most, t[k]);
            for (int k = 0; k < K; k++) total += EXP(t[k] - most);
            for (int k = 0; k < K; k++) {
                real s = EXP(t[k] - most) / (total * n);
                rows(x + i * D, k, c, row);
                oa[k] += s;
                for (int a = 0; a < D; a++) {
                    real r = -s * row[a];
                    oq[k][a] += s + r * c[a] * diagonal[k][a];
                    gc[a] = r * diagonal[k][a];
                    for (int b = 0; b < a; b++) {
                        ol[k][a][b] += r * c[b];
                        gc[b] += r * low[(k * D + a) * D + b];
                    }
                }
                for (int a = 0; a < D; a++) om[k][a] -= gc[a];
            }
        }
        #pragma omp critical
        for (int k = 0; k < K; k++) {
            ga[k] += oa[k];
            for (int a = 0; a < D; a++) {
                gm[k * D + a] += om[k][a];
                gq[k * D + a] += oq[k][a];
                for (int b = 0; b < D; b++) gl[(k * D + a) * D + b] += ol[k][a][b];
            }
        }
    }
}
