#define BATCH 256
#define MOST 64
#define TANH(a) (sizeof(real) == 4 ? tanhf(a) : tanh(a))
static long n;
static real *x, *w, *out;

void setup(long size, void **in) {
    n = size;
    x = in[0];
    w = in[1];
    out = memory(BATCH * n);
}

double forward(void) {
    double loss = 0;
    /* weights with the neurons last, so that rows are vectors */
    real turned[MOST * MOST];
    for (int j = 0; j < n; j++) for (int k = 0; k < n; k++) turned[k * n + j] = w[j * n + k];
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < BATCH; i++) {
        real total[MOST] = {0};
        for (int k = 0; k < n; k++) for (int j = 0; j < n; j++) total[j] += turned[k * n + j] * x[i * n + k];
        for (int j = 0; j < n; j++) loss += out[i * n + j] = TANH(total[j]);
    }
    return loss / BATCH;
}

void backward(void **grad) {
    real *gx = grad[0], *gw = grad[1];
    memset(gw, 0, n * n * sizeof(real));
    #pragma omp parallel
    {
        real own[MOST * MOST] = {0};
        #pragma omp for
        for (long i = 0; i < BATCH; i++) {
            const real *row = x + i * n;
            real e[MOST], to[MOST] = {0};
            for (int j = 0; j < n; j++) e[j] = (1 - out[i * n + j] * out[i * n + j]) / BATCH;
            for (int j = 0; j < n; j++) for (int k = 0; k < n; k++) {
                own[j * n + k] += e[j] * row[k];
                to[k] += e[j] * w[j * n + k];
            }
            memcpy(gx + i * n, to, n * sizeof(real));
        }
        #pragma omp critical
        for (int k = 0; k < n * n; k++) gw[k] += own[k];
    }
}
