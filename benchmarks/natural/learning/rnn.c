#define TIMES 12
#define H 48
#define TANH(a) (sizeof(real) == 4 ? tanhf(a) : tanh(a))
static long n;
static real *x, *u, *w, *b, *h, *g;

void setup(long size, void **in) {
    n = size;
    x = in[0];
    u = in[1];
    w = in[2];
    b = in[3];
    h = memory((TIMES + 1) * n * H);
    g = memory(n * H);
}

/* Weights with the neurons last, so that rows are vectors. */
static real turned[H][H];

double forward(void) {
    double loss = 0;
    for (int j = 0; j < H; j++) for (int k = 0; k < H; k++) turned[k][j] = w[j * H + k];
    for (long t = 0; t < TIMES; t++) {
        #pragma omp parallel for
        for (long i = 0; i < n; i++) {
            const real *before = h + (t * n + i) * H;
            real total[H];
            for (int j = 0; j < H; j++) total[j] = b[j] + u[j] * x[t * n + i];
            for (int k = 0; k < H; k++) for (int j = 0; j < H; j++) total[j] += turned[k][j] * before[k];
            for (int j = 0; j < H; j++) h[((t + 1) * n + i) * H + j] = TANH(total[j]);
        }
    }
    const real *last = h + TIMES * n * H;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * H; k++) loss += last[k] * last[k];
    return loss / n;
}

void backward(void **grad) {
    real *gu = grad[1], *gw = grad[2], *gb = grad[3];
    memset(gu, 0, H * sizeof(real));
    memset(gw, 0, H * H * sizeof(real));
    memset(gb, 0, H * sizeof(real));
    for (long k = 0; k < n * H; k++) g[k] = 2 * h[TIMES * n * H + k] / n;
    #pragma omp parallel
    {
        real ou[H] = {0}, ow[H][H] = {{0}}, ob[H] = {0};
        for (long t = TIMES - 1; t >= 0; t--) {
            #pragma omp for
            for (long i = 0; i < n; i++) {
                const real *before = h + (t * n + i) * H, *after = before + n * H;
                real e[H], to[H] = {0};
                for (int j = 0; j < H; j++) e[j] = g[i * H + j] * (1 - after[j] * after[j]);
                for (int j = 0; j < H; j++) { ob[j] += e[j]; ou[j] += e[j] * x[t * n + i]; }
                for (int j = 0; j < H; j++) for (int k = 0; k < H; k++) ow[j][k] += e[j] * before[k];
                for (int j = 0; j < H; j++) for (int k = 0; k < H; k++) to[k] += e[j] * w[j * H + k];
                memcpy(g + i * H, to, sizeof to);
            }
        }
        #pragma omp critical
        for (int j = 0; j < H; j++) {
            gu[j] += ou[j];
            gb[j] += ob[j];
            for (int k = 0; k < H; k++) gw[j * H + k] += ow[j][k];
        }
    }
}
