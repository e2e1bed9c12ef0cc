#define STEPS 32
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long n;
static real *start, *ground, *height, *seen, *g;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    ground = in[1];
    height = memory((STEPS + 2) * n * n);
    seen = memory(3 * n * n);
    g = memory((STEPS + 2) * n * n);
}

static inline long clamp(long i) { return MAX(0, MIN(i, n - 1)); }

/* b + 0.99 (b - a) + 0.2 laplacian(b), and its transpose by other factors: at the rim a neighbour is the cell. */
static void step(real *restrict out, const real *restrict a, const real *restrict b) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *c = b + i * n, *up = b + clamp(i - 1) * n, *down = b + clamp(i + 1) * n, *old = a + i * n;
        real *o = out + i * n;
        for (long j = 1; j < n - 1; j++) {
            real around = up[j] + down[j] + c[j - 1] + c[j + 1];
            o[j] = (real)1.99 * c[j] - (real)0.99 * old[j] + (real)0.2 * (around - 4 * c[j]);
        }
        for (long j = 0; j < n; j += n - 1) {
            real around = up[j] + down[j] + c[clamp(j - 1)] + c[clamp(j + 1)];
            o[j] = (real)1.99 * c[j] - (real)0.99 * old[j] + (real)0.2 * (around - 4 * c[j]);
        }
    }
}

/* Of a point on the ground: the cell below and what its neighbours count; 0 in `moves` where it was moved inside. */
static inline long place(real x, real y, real *a, real *b, int *moves) {
    real most = n - (real)1.001, p = MAX(0, MIN(x, most)), q = MAX(0, MIN(y, most));
    int i = p, j = q;
    *a = p - i;
    *b = q - j;
    moves[0] = p == x;
    moves[1] = q == y;
    return 3 * (i * n + j);
}

/* Light is refracted: a slope (p, q) moves what is seen by `deep` times far * (p, q); also far by p² + q². */
static inline real refract(real p, real q, real *slope) {
    const real k = 1 / (real)1.333;
    real square = p * p + q * q, z2 = 1 / (1 + square), z = SQRT(z2), root = SQRT(1 - (1 - z2) * k * k);
    real turn = z * k - root, down = turn * z - k, far = -turn * z / down;
    real dz = (real)-0.5 * z * z2, dturn = dz * k - k * k * z * dz / root, dboth = dturn * z + turn * dz;
    *slope = dboth * k / (down * down);
    return far;
}

double forward(void) {
    double loss = 0;
    long m = n * n;
    memcpy(height, start, m * sizeof(real));
    memcpy(height + m, start, m * sizeof(real));
    for (long t = 1; t <= STEPS; t++) step(height + (t + 1) * m, height + (t - 1) * m, height + t * m);
    const real *h = height + (STEPS + 1) * m;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real p = (real)0.5 * (h[clamp(i + 1) * n + j] - h[clamp(i - 1) * n + j]), a, b, unused;
        real q = (real)0.5 * (h[i * n + clamp(j + 1)] - h[i * n + clamp(j - 1)]);
        real far = refract(p, q, &unused) * (10 + h[i * n + j]);
        int moves[2];
        const real *c = ground + place(i - far * p, j - far * q, &a, &b, moves);
        for (int k = 0; k < 3; k++) {
            real low = (1 - b) * c[k] + b * c[3 + k], high = (1 - b) * c[3 * n + k] + b * c[3 * n + 3 + k];
            seen[3 * (i * n + j) + k] = (1 - a) * low + a * high;
        }
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < 3 * m; k++) loss += (seen[k] - ground[k]) * (seen[k] - ground[k]);
    return loss / m;
}

static void render_adjoint(const real *h, real *to) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        long at = i * n + j, above = clamp(i - 1) * n + j, below = clamp(i + 1) * n + j;
        long left = i * n + clamp(j - 1), right = i * n + clamp(j + 1);
        real p = (real)0.5 * (h[below] - h[above]), q = (real)0.5 * (h[right] - h[left]), a, b, slope;
        real far = refract(p, q, &slope), deep = 10 + h[at], gx = 0, gy = 0;
        int moves[2];
        const real *c = ground + place(i - deep * far * p, j - deep * far * q, &a, &b, moves);
        for (int k = 0; k < 3; k++) {
            real s = 2 * (seen[3 * at + k] - ground[3 * at + k]) / (n * n);
            gx += s * ((1 - b) * (c[3 * n + k] - c[k]) + b * (c[3 * n + 3 + k] - c[3 + k]));
            gy += s * ((1 - a) * (c[3 + k] - c[k]) + a * (c[3 * n + 3 + k] - c[3 * n + k]));
        }
        gx = moves[0] ? -gx : 0;
        gy = moves[1] ? -gy : 0;
        real along = gx * p + gy * q;
        real gp = (real)0.5 * deep * (far * gx + 2 * slope * along * p);
        real gq = (real)0.5 * deep * (far * gy + 2 * slope * along * q);
        add(to + at, far * along);
        add(to + below, gp);
        add(to + above, -gp);
        add(to + right, gq);
        add(to + left, -gq);
    }
}

void backward(void **grad) {
    long m = n * n;
    real *last = g + (STEPS + 1) * m, *out = grad[0];
    memset(last, 0, m * sizeof(real));
    render_adjoint(height + (STEPS + 1) * m, last);
    /* A step is its own transpose. */
    for (long t = STEPS; t >= 1; t--) step(g + t * m, t < STEPS ? g + (t + 2) * m : none(m), g + (t + 1) * m);
    #pragma omp parallel for
    for (long k = 0; k < m; k++) out[k] = g[m + k] - (real)0.99 * g[2 * m + k];
}
