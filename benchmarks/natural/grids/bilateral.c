#define R 3
#define EXP(a) (sizeof(real) == 4 ? expf(a) : exp(a))
static long n;
static real *image, *noise, *out, *sum;

void setup(long size, void **in) {
    n = size;
    image = in[0];
    noise = in[1];
    out = memory(n * n);
    sum = memory(n * n);
}

static inline real weight(long a, long b, real d) {
    return EXP(-(a * a + b * b) / (real)(2 * R * R) - d * d / (real)0.1);
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real total = 0, weights = 0, mid = image[i * n + j];
        for (long k = MAX(0, i - R); k < MIN(n, i + R + 1); k++)
            for (long l = MAX(0, j - R); l < MIN(n, j + R + 1); l++) {
                real v = image[k * n + l], w = weight(k - i, l - j, v - mid);
                total += w * v;
                weights += w;
            }
        out[i * n + j] = total / weights;
        sum[i * n + j] = weights;
        real e = out[i * n + j] - noise[i * n + j];
        loss += e * e;
    }
    return loss / (n * n);
}

/* What a cell's own window and the windows around it add to the cell. */
void backward(void **grad) {
    real *g = grad[0];
    memset(g, 0, n * n * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real mid = image[i * n + j], o = out[i * n + j], own = 0;
        real a = 2 * (o - noise[i * n + j]) / (n * n) / sum[i * n + j];
        for (long k = MAX(0, i - R); k < MIN(n, i + R + 1); k++)
            for (long l = MAX(0, j - R); l < MIN(n, j + R + 1); l++) {
                real v = image[k * n + l], d = v - mid, w = a * weight(k - i, l - j, d);
                real e = w * (v - o) * d * 20;
                add(g + k * n + l, w - e);
                own += e;
            }
        add(g + i * n + j, own);
    }
}
