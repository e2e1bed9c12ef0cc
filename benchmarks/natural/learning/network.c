#define IN 8
#define H 64
#define TANH(a) (sizeof(real) == 4 ? tanhf(a) : tanh(a))
static long n;
static real *x, *goal, *w1, *w2, *w3, *h1, *h2, *out;

void setup(long size, void **in) {
    n = size;
    x = in[0];
    goal = in[1];
    w1 = in[2];
    w2 = in[3];
    w3 = in[4];
    h1 = memory(n * H);
    h2 = memory(n * H);
    out = memory(n);
}

/* Weights with the neurons last, so that rows are vectors. */
static real t1[IN][H], t2[H][H];

double forward(void) {
    double loss = 0;
    for (int j = 0; j < H; j++) {
        for (int k = 0; k < IN; k++) t1[k][j] = w1[j * IN + k];
        for (int k = 0; k < H; k++) t2[k][j] = w2[j * H + k];
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) {
        real a[H] = {0}, b[H] = {0}, total = 0;
        for (int k = 0; k < IN; k++) for (int j = 0; j < H; j++) a[j] += t1[k][j] * x[i * IN + k];
        for (int j = 0; j < H; j++) h1[i * H + j] = a[j] = TANH(a[j]);
        for (int k = 0; k < H; k++) for (int j = 0; j < H; j++) b[j] += t2[k][j] * a[k];
        for (int j = 0; j < H; j++) h2[i * H + j] = b[j] = TANH(b[j]);
        for (int j = 0; j < H; j++) total += w3[j] * b[j];
        out[i] = total;
        loss += (total - goal[i]) * (total - goal[i]);
    }
    return loss / n;
}

void backward(void **grad) {
    real *g1 = grad[2], *g2 = grad[3], *g3 = grad[4];
    memset(g1, 0, H * IN * sizeof(real));
    memset(g2, 0, H * H * sizeof(real));
    memset(g3, 0, H * sizeof(real));
    #pragma omp parallel
    {
        real o1[IN][H] = {{0}}, o2[H][H] = {{0}}, o3[H] = {0};
        #pragma omp for
        for (long i = 0; i < n; i++) {
            const real *a = h1 + i * H, *b = h2 + i * H;
            real s = 2 * (out[i] - goal[i]) / n, e[H], d[H];
            for (int j = 0; j < H; j++) { o3[j] += s * b[j]; e[j] = s * w3[j] * (1 - b[j] * b[j]); }
            for (int j = 0; j < H; j++) for (int k = 0; k < H; k++) o2[j][k] += e[j] * a[k];
            for (int k = 0; k < H; k++) d[k] = 0;
            for (int j = 0; j < H; j++) for (int k = 0; k < H; k++) d[k] += e[j] * w2[j * H + k];
            for (int k = 0; k < H; k++) d[k] *= 1 - a[k] * a[k];
            for (int k = 0; k < IN; k++) for (int j = 0; j < H; j++) o1[k][j] += d[j] * x[i * IN + k];
        }
        #pragma omp critical
        for (int j = 0; j < H; j++) {
            g3[j] += o3[j];
            for (int k = 0; k < H; k++) g2[j * H + k] += o2[j][k];
            for (int k = 0; k < IN; k++) g1[j * IN + k] += o1[k][j];
        }
    }
}
