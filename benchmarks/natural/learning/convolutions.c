#define C 8
static long n, m;
static real *image, *w1, *b1, *w2, *hidden, *pooled, *out, *ghidden, *gpooled, *gout;
typedef real Weights[3][3][C][C];

void setup(long size, void **in) {
    n = size;
    m = n / 2;
    image = in[0];
    w1 = in[1];
    b1 = in[2];
    w2 = in[3];
    hidden = memory(n * n * C);
    pooled = memory(m * m * C);
    out = memory(m * m * C);
    ghidden = memory(n * n * C);
    gpooled = memory(m * m * C);
    gout = memory(m * m * C);
}

/* Weights with the channels that are summed before those that are made; for the adjoint, mirrored. */
static void turn(const real *w, Weights t, int back) {
    for (int o = 0; o < C; o++) for (int c = 0; c < C; c++)
        for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) {
            real v = w[((o * C + c) * 3 + a) * 3 + b];
            if (back) t[2 - a][2 - b][o][c] = v;
            else t[a][b][c][o] = v;
        }
}

static void convolve(long n, const real *x, Weights t, const real *bias, real *y, int rectify) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real s[C];
        for (int o = 0; o < C; o++) s[o] = bias[o];
        for (long k = MAX(0, i - 1); k < MIN(n, i + 2); k++)
            for (long l = MAX(0, j - 1); l < MIN(n, j + 2); l++)
                for (int c = 0; c < C; c++)
                    for (int o = 0; o < C; o++) s[o] += t[k - i + 1][l - j + 1][c][o] * x[(k * n + l) * C + c];
        for (int o = 0; o < C; o++) y[(i * n + j) * C + o] = rectify ? MAX(s[o], 0) : s[o];
    }
}

double forward(void) {
    static Weights t;
    double loss = 0;
    turn(w1, t, 0);
    convolve(n, image, t, b1, hidden, 1);
    #pragma omp parallel for
    for (long i = 0; i < m; i++) for (long j = 0; j < m; j++) for (int c = 0; c < C; c++) {
        const real *h = hidden + (2 * i * n + 2 * j) * C + c;
        pooled[(i * m + j) * C + c] = MAX(MAX(h[0], h[C]), MAX(h[n * C], h[n * C + C]));
    }
    turn(w2, t, 0);
    convolve(m, pooled, t, zeros, out, 0);
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < m * m * C; k++) loss += out[k] * out[k];
    return loss / (n * n);
}

static void weights_back(long n, const real *x, const real *g, real *gw) {
    memset(gw, 0, C * C * 9 * sizeof(real));
    #pragma omp parallel
    {
        Weights own;
        memset(own, 0, sizeof own);
        #pragma omp for
        for (long i = 0; i < n; i++) for (long j = 0; j < n; j++)
            for (long k = MAX(0, i - 1); k < MIN(n, i + 2); k++)
                for (long l = MAX(0, j - 1); l < MIN(n, j + 2); l++)
                    for (int o = 0; o < C; o++)
                        for (int c = 0; c < C; c++)
                            own[k - i + 1][l - j + 1][o][c] += x[(k * n + l) * C + c] * g[(i * n + j) * C + o];
        #pragma omp critical
        for (int o = 0; o < C; o++) for (int c = 0; c < C; c++)
            for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
                gw[((o * C + c) * 3 + a) * 3 + b] += own[a][b][o][c];
    }
}

void backward(void **grad) {
    static Weights t;
    real *gbias = grad[2];
    #pragma omp parallel for
    for (long k = 0; k < m * m * C; k++) gout[k] = 2 * out[k] / (n * n);
    turn(w2, t, 1);
    convolve(m, gout, t, zeros, gpooled, 0);
    weights_back(m, pooled, gout, grad[3]);
    memset(ghidden, 0, n * n * C * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < m; i++) for (long j = 0; j < m; j++) for (int c = 0; c < C; c++) {
        long first = (2 * i * n + 2 * j) * C + c, best = first;
        for (int q = 1; q < 4; q++) {
            long at = first + (q & 1) * C + (q >> 1) * n * C;
            if (hidden[at] > hidden[best]) best = at;
        }
        ghidden[best] = hidden[best] > 0 ? gpooled[(i * m + j) * C + c] : 0;
    }
    memset(gbias, 0, C * sizeof(real));
    for (long k = 0; k < n * n; k++) for (int c = 0; c < C; c++) gbias[c] += ghidden[k * C + c];
    turn(w1, t, 1);
    convolve(n, ghidden, t, zeros, grad[0], 0);
    weights_back(n, image, ghidden, grad[1]);
}
