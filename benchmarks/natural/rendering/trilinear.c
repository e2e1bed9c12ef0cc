static long n, m;
static real *grid, *points, *goal;

void setup(long size, void **in) {
    n = size;
    m = n * n * n / 2;
    grid = in[0];
    points = in[1];
    goal = in[2];
}

static inline real inside(real x) { return MAX(0, MIN(x * n - (real)0.5, n - (real)1.001)); }

static inline long place(const real *p, real *w) {
    real x = inside(p[0]), y = inside(p[1]), z = inside(p[2]);
    int i = x, j = y, k = z;
    w[0] = x - i; w[1] = y - j; w[2] = z - k;
    return (i * n + j) * n + k;
}

static inline real sample(const real *g, const real *w) {
    long a = n * n;
    real l = (1 - w[1]) * ((1 - w[2]) * g[0] + w[2] * g[1]) + w[1] * ((1 - w[2]) * g[n] + w[2] * g[n + 1]);
    real h = (1 - w[1]) * ((1 - w[2]) * g[a] + w[2] * g[a + 1])
        + w[1] * ((1 - w[2]) * g[a + n] + w[2] * g[a + n + 1]);
    return (1 - w[0]) * l + w[0] * h;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < m; k++) {
        real w[3], miss = sample(grid + place(points + 3 * k, w), w) - goal[k];
        loss += miss * miss;
    }
    return loss / m;
}

void backward(void **grad) {
    real *gg = grad[0], *gp = grad[1];
    memset(gg, 0, n * n * n * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < m; k++) {
        real w[3], d[3] = {0};
        const real *p = points + 3 * k;
        long at = place(p, w);
        real miss = 2 * (sample(grid + at, w) - goal[k]) / m;
        for (int a = 0; a < 2; a++) for (int b = 0; b < 2; b++) for (int c = 0; c < 2; c++) {
            real x = a ? w[0] : 1 - w[0], y = b ? w[1] : 1 - w[1], z = c ? w[2] : 1 - w[2];
            long cell = at + (a * n + b) * n + c;
            real v = grid[cell];
            add(gg + cell, miss * x * y * z);
            d[0] += (a ? v : -v) * y * z;
            d[1] += (b ? v : -v) * x * z;
            d[2] += (c ? v : -v) * x * y;
        }
        for (int q = 0; q < 3; q++) {
            real at_ = p[q] * n - (real)0.5;
            gp[3 * k + q] = at_ > 0 && at_ < n - (real)1.001 ? miss * d[q] * n : 0;
        }
    }
}
