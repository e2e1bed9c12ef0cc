#define TIMES 16
#define LAYERS 2
#define F32 (sizeof(real) == 4)
#define TANH(a) (F32 ? tanhf(a) : tanh(a))
#define SIGMOID(a) (1 / (1 + (F32 ? expf(-(a)) : exp(-(a)))))
static long n;
static real *x, *weights, *biases, *hidden, *cell, *kept, *gh, *gc;

void setup(long size, void **in) {
    n = size;
    x = in[0];
    weights = in[1];
    biases = in[2];
    hidden = memory((TIMES + 1) * (LAYERS + 1) * n);
    cell = memory((TIMES + 1) * LAYERS * n);
    kept = memory(TIMES * LAYERS * 5 * n);
    gh = memory((LAYERS + 1) * n);
    gc = memory(LAYERS * n);
}

/* `kept` are the four gates of each number and the tanh of its cell. */
static void step(long t, long l) {
    const real *above = hidden + ((t + 1) * (LAYERS + 1) + l) * n, *before = hidden + (t * (LAYERS + 1) + l + 1) * n;
    const real *w = weights + l * 4 * n, *b = biases + l * 4 * n, *c = cell + (t * LAYERS + l) * n;
    real *h = hidden + ((t + 1) * (LAYERS + 1) + l + 1) * n, *d = cell + ((t + 1) * LAYERS + l) * n;
    real *k = kept + (t * LAYERS + l) * 5 * n;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        real forget = SIGMOID(above[i] * w[i] + b[i]), in = SIGMOID(before[i] * w[n + i] + b[n + i]);
        real out = SIGMOID(above[i] * w[2 * n + i] + b[2 * n + i]);
        real change = TANH(before[i] * w[3 * n + i] + b[3 * n + i]);
        d[i] = c[i] * forget + in * change;
        real top = TANH(d[i]);
        h[i] = out * top;
        k[i] = forget; k[n + i] = in; k[2 * n + i] = out; k[3 * n + i] = change; k[4 * n + i] = top;
    }
}

double forward(void) {
    double loss = 0;
    for (long t = 0; t < TIMES; t++) {
        memcpy(hidden + (t + 1) * (LAYERS + 1) * n, x + t * n, n * sizeof(real));
        for (long l = 0; l < LAYERS; l++) step(t, l);
        const real *h = hidden + ((t + 1) * (LAYERS + 1) + LAYERS) * n;
        #pragma omp parallel for reduction(+ : loss)
        for (long i = 0; i < n; i++) {
            real miss = h[i] - (real)0.5 * x[t * n + i];
            loss += miss * miss;
        }
    }
    return loss / n;
}

/* `gh` and `gc` hold what later times give; a layer takes its own from them and leaves what it gives. */
static void step_adjoint(long t, long l, real *restrict gw, real *restrict gb) {
    const real *above = hidden + ((t + 1) * (LAYERS + 1) + l) * n, *before = hidden + (t * (LAYERS + 1) + l + 1) * n;
    const real *restrict w = weights + l * 4 * n, *c = cell + (t * LAYERS + l) * n;
    const real *restrict k = kept + (t * LAYERS + l) * 5 * n;
    real *restrict h = gh + (l + 1) * n, *restrict under = gh + l * n, *restrict d = gc + l * n;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        real forget = k[i], in = k[n + i], out = k[2 * n + i], change = k[3 * n + i], top = k[4 * n + i];
        real s = d[i] + h[i] * out * (1 - top * top);
        real f = s * c[i] * forget * (1 - forget), e = s * change * in * (1 - in);
        real o = h[i] * top * out * (1 - out), m = s * in * (1 - change * change);
        gw[i] += f * above[i]; gw[n + i] += e * before[i];
        gw[2 * n + i] += o * above[i]; gw[3 * n + i] += m * before[i];
        gb[i] += f; gb[n + i] += e; gb[2 * n + i] += o; gb[3 * n + i] += m;
        d[i] = s * forget;
        h[i] = e * w[n + i] + m * w[3 * n + i];
        under[i] += f * w[i] + o * w[2 * n + i];
    }
}

void backward(void **grad) {
    real *gw = grad[1], *gb = grad[2];
    memset(gw, 0, LAYERS * 4 * n * sizeof(real));
    memset(gb, 0, LAYERS * 4 * n * sizeof(real));
    memset(gh, 0, (LAYERS + 1) * n * sizeof(real));
    memset(gc, 0, LAYERS * n * sizeof(real));
    for (long t = TIMES - 1; t >= 0; t--) {
        const real *h = hidden + ((t + 1) * (LAYERS + 1) + LAYERS) * n;
        #pragma omp parallel for
        for (long i = 0; i < n; i++) gh[LAYERS * n + i] += 2 * (h[i] - (real)0.5 * x[t * n + i]) / n;
        for (long l = LAYERS - 1; l >= 0; l--) step_adjoint(t, l, gw + l * 4 * n, gb + l * 4 * n);
    }
}
