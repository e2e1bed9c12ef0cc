static long n;
static real *x, *y, *weight, *g;
static unsigned char *swapped;

void setup(long size, void **in) {
    n = size;
    x = in[0];
    weight = in[1];
    y = memory(n);
    g = memory(n);
    long bits = __builtin_ctzl(n);
    swapped = calloc(n / 2 * (bits * (bits + 1) / 2), 1);
}

/* Pairs j apart, upwards where bit k of the place is 0; `kept` says which were swapped. No pair is a branch. */
static void stage(long k, long j, unsigned char *restrict kept) {
    #pragma omp parallel for
    for (long base = 0; base < n; base += 2 * j) {
        real *low = y + base, *high = low + j;
        int up = (base & k) == 0;
        for (long i = 0; i < j; i++) {
            real a = low[i], b = high[i];
            low[i] = up ? MIN(a, b) : MAX(a, b);
            high[i] = up ? MAX(a, b) : MIN(a, b);
            kept[base / 2 + i] = (a > b) == up;
        }
    }
}

static void stage_adjoint(long j, const unsigned char *restrict kept) {
    #pragma omp parallel for
    for (long base = 0; base < n; base += 2 * j) {
        real *low = g + base, *high = low + j;
        for (long i = 0; i < j; i++) {
            real swap = kept[base / 2 + i], a = low[i], b = high[i];
            low[i] = swap * b + (1 - swap) * a;
            high[i] = swap * a + (1 - swap) * b;
        }
    }
}

double forward(void) {
    double loss = 0;
    unsigned char *kept = swapped;
    memcpy(y, x, n * sizeof(real));
    for (long k = 2; k <= n; k *= 2) for (long j = k / 2; j > 0; j /= 2, kept += n / 2) stage(k, j, kept);
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) loss += weight[i] * y[i];
    return loss / n;
}

void backward(void **grad) {
    long bits = __builtin_ctzl(n);
    const unsigned char *kept = swapped + n / 2 * (bits * (bits + 1) / 2);
    #pragma omp parallel for
    for (long i = 0; i < n; i++) g[i] = weight[i] / n;
    for (long k = n; k >= 2; k /= 2) for (long j = 1; j < k; j *= 2) stage_adjoint(j, kept -= n / 2);
    memcpy(grad[0], g, n * sizeof(real));
}
