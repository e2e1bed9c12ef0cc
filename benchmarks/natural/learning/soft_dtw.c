#define L 24
#define M (L + 1)
#define EXP(a) (sizeof(real) == 4 ? expf(a) : exp(a))
#define LOG(a) (sizeof(real) == 4 ? logf(a) : log(a))
static long n;
static real *a, *b, *table, *soft;

void setup(long size, void **in) {
    n = size;
    a = in[0];
    b = in[1];
    table = memory(n * M * M);
    soft = memory(n * M * M);
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long p = 0; p < n; p++) {
        real(*r)[M] = (real(*)[M])(table + p * M * M), (*least)[M] = (real(*)[M])(soft + p * M * M);
        for (int i = 1; i < M; i++) r[i][0] = r[0][i] = 1e4;
        r[0][0] = 0;
        for (int i = 1; i < M; i++) {
            for (int j = 1; j < M; j++) {
                real x = r[i - 1][j], y = r[i][j - 1], z = r[i - 1][j - 1];
                real low = MIN(x, MIN(y, z)), far = a[p * L + i - 1] - b[p * L + j - 1];
                least[i][j] = low - LOG(EXP(low - x) + EXP(low - y) + EXP(low - z));
                r[i][j] = far * far + least[i][j];
            }
        }
        loss += r[L][L];
    }
    return loss / n;
}

void backward(void **grad) {
    #pragma omp parallel for
    for (long p = 0; p < n; p++) {
        real(*r)[M] = (real(*)[M])(table + p * M * M), (*least)[M] = (real(*)[M])(soft + p * M * M);
        real *ga = (real *)grad[0] + p * L, *gb = (real *)grad[1] + p * L, g[M][M] = {{0}};
        for (int i = 0; i < L; i++) ga[i] = gb[i] = 0;
        g[L][L] = (real)1 / n;
        for (int i = L; i > 0; i--) {
            for (int j = L; j > 0; j--) {
                real own = g[i][j], slope = 2 * own * (a[p * L + i - 1] - b[p * L + j - 1]);
                ga[i - 1] += slope;
                gb[j - 1] -= slope;
                g[i - 1][j] += own * EXP(least[i][j] - r[i - 1][j]);
                g[i][j - 1] += own * EXP(least[i][j] - r[i][j - 1]);
                g[i - 1][j - 1] += own * EXP(least[i][j] - r[i - 1][j - 1]);
            }
        }
    }
}
