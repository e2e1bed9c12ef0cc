#define MOST 64
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long count, cells;
static real *x;
static int *filled, *inside, *near, *neighbour;
static const real REACH = 2.5;

void setup(long n, void **in) {
    count = n * n * n;
    cells = (int)(1.1 * n / 2.5) + 1;
    x = in[0];
    filled = calloc(cells * cells * cells, sizeof(int));
    inside = calloc(cells * cells * cells * MOST, sizeof(int));
    near = calloc(count, sizeof(int));
    neighbour = calloc(count * 2 * MOST, sizeof(int));
}

static inline void cell(long p, int *c) { for (int k = 0; k < 3; k++) c[k] = x[3 * p + k] / REACH; }

static void fill(void) {
    memset(filled, 0, cells * cells * cells * sizeof(int));
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        int c[3], k;
        cell(p, c);
        long at = (c[0] * cells + c[1]) * cells + c[2];
        #pragma omp atomic capture
        k = filled[at]++;
        inside[at * MOST + k] = p;
    }
}

static void search(void) {
    #pragma omp parallel for
    for (long p = 0; p < count; p++) {
        int c[3], found = 0;
        cell(p, c);
        for (int i = MAX(c[0] - 1, 0); i < MIN(c[0] + 2, cells); i++)
            for (int j = MAX(c[1] - 1, 0); j < MIN(c[1] + 2, cells); j++)
                for (int k = MAX(c[2] - 1, 0); k < MIN(c[2] + 2, cells); k++) {
                    long at = (i * cells + j) * cells + k;
                    for (int m = 0; m < filled[at]; m++) {
                        int q = inside[at * MOST + m];
                        real a = x[3 * p] - x[3 * q], b = x[3 * p + 1] - x[3 * q + 1], d = x[3 * p + 2] - x[3 * q + 2];
                        if (q > p && SQRT(a * a + b * b + d * d) < REACH && found < 2 * MOST)
                            neighbour[p * 2 * MOST + found++] = q;
                    }
                }
        near[p] = found;
    }
}

double forward(void) {
    double loss = 0;
    fill();
    search();
    #pragma omp parallel for reduction(+ : loss)
    for (long p = 0; p < count; p++) {
        real own = 0;
        for (int k = 0; k < near[p]; k++) {
            const real *o = x + 3 * neighbour[p * 2 * MOST + k];
            real a = x[3 * p] - o[0], b = x[3 * p + 1] - o[1], d = x[3 * p + 2] - o[2];
            real s = 1 / (a * a + b * b + d * d), s3 = s * s * s;
            own += 4 * (s3 * s3 - s3);
        }
        loss += own;
    }
    return loss;
}

void backward(void **grad) {
    real *g = grad[0];
    memset(g, 0, 3 * count * sizeof(real));
    #pragma omp parallel for reduction(+ : g[:3 * count])
    for (long p = 0; p < count; p++) {
        real own[3] = {0};
        for (int k = 0; k < near[p]; k++) {
            int q = neighbour[p * 2 * MOST + k];
            real way[3] = {x[3 * p] - x[3 * q], x[3 * p + 1] - x[3 * q + 1], x[3 * p + 2] - x[3 * q + 2]};
            real s = 1 / (way[0] * way[0] + way[1] * way[1] + way[2] * way[2]), s3 = s * s * s;
            real pull = -24 * (2 * s3 * s3 - s3) * s;
            for (int c = 0; c < 3; c++) {
                own[c] += pull * way[c];
                g[3 * q + c] -= pull * way[c];
            }
        }
        for (int c = 0; c < 3; c++) g[3 * p + c] += own[c];
    }
}
