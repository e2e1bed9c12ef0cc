#define COLUMNS 128
#define EXP(a) (sizeof(real) == 4 ? expf(a) : exp(a))
static long n;
static real *x;

void setup(long size, void **in) {
    n = size;
    x = in[0];
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) {
        const real *r = x + i * COLUMNS;
        real most = r[0], total = 0;
        for (int j = 1; j < COLUMNS; j++) most = MAX(most, r[j]);
        for (int j = 0; j < COLUMNS; j++) total += EXP(r[j] - most);
        loss += most + log(total);
    }
    return loss / n;
}

void backward(void **grad) {
    real *g = grad[0];
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *r = x + i * COLUMNS;
        real most = r[0], total = 0, *out = g + i * COLUMNS;
        for (int j = 1; j < COLUMNS; j++) most = MAX(most, r[j]);
        for (int j = 0; j < COLUMNS; j++) total += out[j] = EXP(r[j] - most);
        real scale = 1 / (total * n);
        for (int j = 0; j < COLUMNS; j++) out[j] *= scale;
    }
}
