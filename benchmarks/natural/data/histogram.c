#define BINS 256
static long n;
static real *x;
static real bins[BINS];

void setup(long size, void **in) {
    n = size;
    x = in[0];
}

double forward(void) {
    double loss = 0;
    memset(bins, 0, sizeof bins);
    #pragma omp parallel
    {
        real own[BINS] = {0};
        #pragma omp for
        for (long i = 0; i < n; i++) {
            real at = x[i] * (BINS - 1);
            int b = MIN((int)at, BINS - 2);
            real w = at - b;
            own[b] += (1 - w) / n;
            own[b + 1] += w / n;
        }
        #pragma omp critical
        for (int b = 0; b < BINS; b++) bins[b] += own[b];
    }
    for (int b = 0; b < BINS; b++) loss += (bins[b] - (real)b / BINS) * (bins[b] - (real)b / BINS);
    return loss;
}

void backward(void **grad) {
    real *g = grad[0], slope[BINS];
    for (int b = 0; b < BINS - 1; b++)
        slope[b] = 2 * (bins[b + 1] - bins[b] - (real)1 / BINS) * (BINS - 1) / n;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) g[i] = slope[MIN((int)(x[i] * (BINS - 1)), BINS - 2)];
}
