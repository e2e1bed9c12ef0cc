#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long count, cells;
static real *x, *rho;
static int *first, *taken, *order;
static const real REACH = 1.6;

void setup(long n, void **in) {
    count = n * n;
    cells = (int)(n / 1.6) + 1;
    x = in[0];
    rho = memory(count);
    first = calloc(cells * cells + 1, sizeof(int));
    taken = calloc(cells * cells, sizeof(int));
    order = calloc(count, sizeof(int));
}

static inline long cell(long p) { return (int)(x[2 * p] / REACH) * cells + (int)(x[2 * p + 1] / REACH); }

static void sort(void) {
    memset(taken, 0, cells * cells * sizeof(int));
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        #pragma omp atomic
        taken[cell(p)]++;
    }
    for (long c = 0; c < cells * cells; c++) first[c + 1] = first[c] + taken[c];
    memset(taken, 0, cells * cells * sizeof(int));
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        long c = cell(p);
        int k;
        #pragma omp atomic capture
        k = taken[c]++;
        order[first[c] + k] = p;
    }
}

/* (1 - q)^4 (1 + 4 q), which is 0 from q = 1 on */
static inline real weight(real r) {
    real q = MIN(r / REACH, 1), h = (1 - q) * (1 - q);
    return h * h * (1 + 4 * q);
}

double forward(void) {
    double loss = 0;
    sort();
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        int a = x[2 * p] / REACH, b = x[2 * p + 1] / REACH;
        real total = 0;
        for (long i = MAX(a - 1, 0); i < MIN(a + 2, cells); i++)
            for (long k = i * cells + MAX(b - 1, 0); k < i * cells + MIN(b + 2, cells); k++)
            for (int m = first[k]; m < first[k + 1]; m++) {
                int q = order[m];
                real u = x[2 * p] - x[2 * q], v = x[2 * p + 1] - x[2 * q + 1];
                if (q != p) total += weight(SQRT(u * u + v * v));
            }
        rho[p] = total;
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long p = 0; p < count; p++) loss += (rho[p] - 1) * (rho[p] - 1);
    return loss / count;
}

/* Both ends of a pair count it, so that each gathers what both densities give; r cancels from the slope. */
void backward(void **grad) {
    real *g = grad[0];
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        int a = x[2 * p] / REACH, b = x[2 * p + 1] / REACH;
        real g0 = 0, g1 = 0;
        for (long i = MAX(a - 1, 0); i < MIN(a + 2, cells); i++)
            for (long k = i * cells + MAX(b - 1, 0); k < i * cells + MIN(b + 2, cells); k++)
            for (int m = first[k]; m < first[k + 1]; m++) {
                int q = order[m];
                real u = x[2 * p] - x[2 * q], v = x[2 * p + 1] - x[2 * q + 1];
                real h = 1 - MIN(SQRT(u * u + v * v) / REACH, 1);
                real s = (rho[p] + rho[q] - 2) * h * h * h;
                g0 += s * u;
                g1 += s * v;
            }
        g[2 * p] = -40 / (REACH * REACH) / count * g0;
        g[2 * p + 1] = -40 / (REACH * REACH) / count * g1;
    }
}
