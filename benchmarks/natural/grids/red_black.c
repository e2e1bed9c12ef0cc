#define SWEEPS 8
static long n;
static real *b, *x, *g;

void setup(long size, void **in) {
    n = size;
    b = in[0];
    x = memory(n * n);
    g = memory(n * n);
}

double forward(void) {
    double loss = 0;
    memset(x, 0, n * n * sizeof(real));
    for (long k = 0; k < 2 * SWEEPS; k++) {
        #pragma omp parallel for
        for (long i = 1; i < n - 1; i++) for (long j = 1 + (i + 1 + k) % 2; j < n - 1; j += 2) {
            real *c = x + i * n + j;
            c[0] = (real)0.25 * (c[-n] + c[n] + c[-1] + c[1] + b[i * n + j]);
        }
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += x[k] * x[k];
    return loss / (n * n);
}

/* Cells of one colour give to the other: each gathers from its neighbours, which are then cleared. */
void backward(void **grad) {
    real *gb = grad[0];
    memset(gb, 0, n * n * sizeof(real));
    #pragma omp parallel for
    for (long i = 1; i < n - 1; i++) for (long j = 1; j < n - 1; j++) g[i * n + j] = 2 * x[i * n + j] / (n * n);
    for (long k = 2 * SWEEPS - 1; k >= 0; k--) {
        #pragma omp parallel for
        for (long i = 1; i < n - 1; i++) for (long j = 1 + (i + k) % 2; j < n - 1; j += 2) {
            real *c = g + i * n + j;
            c[0] += (real)0.25 * (c[-n] + c[n] + c[-1] + c[1]);
        }
        #pragma omp parallel for
        for (long i = 1; i < n - 1; i++) for (long j = 1 + (i + 1 + k) % 2; j < n - 1; j += 2) {
            gb[i * n + j] += (real)0.25 * g[i * n + j];
            g[i * n + j] = 0;
        }
    }
}
