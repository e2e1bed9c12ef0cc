/* gcc takes roots in vectors if they leave errno alone. */
__attribute__((const)) float sqrtf(float);
__attribute__((const)) double sqrt(double);
#define STEPS 12
#define FAR 100
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
static long n, pitch, size;
static real *slow, *T, *g, *ga, *gb;

/* Two cells more on each side, so that no cell needs a guard: far away, and without a gradient. */
void setup(long side, void **in) {
    n = side;
    pitch = n + 4;
    size = pitch * pitch;
    slow = in[0];
    T = memory((STEPS + 1) * size);
    g = memory(size);
    ga = memory(size);
    gb = memory(size);
    for (long k = 0; k < (STEPS + 1) * size; k++) T[k] = FAR;
}

/* Where both neighbours count, abs(d) < s and the root is above s. */
static inline real root(real d, real s) { return SQRT(MAX(2 * s * s - d * d, s * s)); }

/* Both count where that is earlier: if abs(d) >= s, so that the root is s, it is not. */
static inline real arrival(real a, real b, real s, real r) { return MIN(MIN(a, b) + s, (real)0.5 * (a + b + r)); }

static void relax(real *restrict to, const real *restrict from) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const real *c = from + (i + 2) * pitch + 2, *slowness = slow + i * n;
        real *out = to + (i + 2) * pitch + 2;
        for (long j = 0; j < n; j++) {
            real a = MIN(c[j - pitch], c[j + pitch]), b = MIN(c[j - 1], c[j + 1]), s = slowness[j];
            out[j] = MIN(c[j], arrival(a, b, s, root(a - b, s)));
        }
    }
}

/* What each cell gives: to itself, to the slowness, and (ga, gb) to the earlier neighbour of each direction.
   Of equal arrivals the old one counts. */
static void give(const real *restrict from, real *restrict gs) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        long row = (i + 2) * pitch + 2;
        const real *c = from + row, *slowness = slow + i * n;
        real *own = g + row, *to_a = ga + row, *to_b = gb + row, *to_s = gs + i * n;
        #pragma GCC ivdep
        for (long j = 0; j < n; j++) {
            real a = MIN(c[j - pitch], c[j + pitch]), b = MIN(c[j - 1], c[j + 1]), s = slowness[j];
            real d = a - b, r = root(d, s), one = fabs(d) >= s, half = (real)0.5 * d / r;
            real h = c[j] <= arrival(a, b, s, r) ? 0 : own[j];
            to_a[j] = h * (one ? (a < b ? 1 : 0) : (real)0.5 - half);
            to_b[j] = h * (one ? (a < b ? 0 : 1) : (real)0.5 + half);
            to_s[j] += h * (one ? 1 : s / r);
            own[j] -= h;
        }
    }
}

/* A cell takes from each neighbour that has chosen it of two. */
static void take(const real *restrict from) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        long row = (i + 2) * pitch + 2, p = pitch;
        const real *c = from + row, *a = ga + row, *b = gb + row;
        real *own = g + row;
        #pragma GCC ivdep
        for (long j = 0; j < n; j++) {
            real west = c[j - 2 * p] < c[j] ? 0 : a[j - p], east = c[j] < c[j + 2 * p] ? a[j + p] : 0;
            real south = c[j - 2] < c[j] ? 0 : b[j - 1], north = c[j] < c[j + 2] ? b[j + 1] : 0;
            own[j] += west + east + south + north;
        }
    }
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++)
        T[(i + 2) * pitch + j + 2] = (real)1.6 * (labs(i - n / 2) + labs(j - n / 2));
    for (long t = 0; t < STEPS; t++) relax(T + (t + 1) * size, T + t * size);
    const real *last = T + STEPS * size;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) loss += last[(i + 2) * pitch + j + 2];
    return loss / (n * n);
}

void backward(void **grad) {
    memset(grad[0], 0, n * n * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) g[(i + 2) * pitch + j + 2] = (real)1 / (n * n);
    for (long t = STEPS - 1; t >= 0; t--) {
        give(T + t * size, grad[0]);
        if (t) take(T + t * size);
    }
}
