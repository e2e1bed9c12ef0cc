#define STEPS 4
#define FLOOR(a) (sizeof(real) == 4 ? floorf(a) : floor(a))
static long n;
static real *start, *wind, *q, *g;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    wind = in[1];
    q = memory((STEPS + 1) * n * n);
    g = memory((STEPS + 1) * n * n);
}

static inline int inside(long i, long j) { return i >= 0 && i < n && j >= 0 && j < n; }

static inline real get(const real *from, long i, long j) { return inside(i, j) ? from[i * n + j] : 0; }

static inline real cubic(real a, real b, real c, real d, real x) {
    real s = (real)0.5 * (c - a), e = (real)0.5 * (d - b);
    return b + x * (s + x * (3 * (c - b) - 2 * s - e + x * (2 * (b - c) + s + e)));
}

double forward(void) {
    double loss = 0;
    memcpy(q, start, n * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        const real *restrict from = q + t * n * n;
        real *restrict to = q + (t + 1) * n * n;
        #pragma omp parallel for
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
            real x = i - wind[2 * (i * n + j)], y = j - wind[2 * (i * n + j) + 1], row[4];
            real fx = FLOOR(x), fy = FLOOR(y);
            int k = fx, l = fy;
            for (int a = 0; a < 4; a++) {
                int r = k + a - 1;
                row[a] = cubic(get(from, r, l - 1), get(from, r, l), get(from, r, l + 1), get(from, r, l + 2), y - fy);
            }
            to[i * n + j] = cubic(row[0], row[1], row[2], row[3], x - fx);
        }
    }
    const real *last = q + STEPS * n * n;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += last[k] * last[k];
    return loss / (n * n);
}

/* Of four neighbours: what each counts, and how that changes with the place. */
static inline void weigh(real x, real *w, real *slope) {
    w[0] = x * ((real)-0.5 + x * (1 - (real)0.5 * x));
    w[1] = 1 + x * x * ((real)-2.5 + (real)1.5 * x);
    w[2] = x * ((real)0.5 + x * (2 - (real)1.5 * x));
    w[3] = x * x * ((real)-0.5 + (real)0.5 * x);
    slope[0] = (real)-0.5 + x * (2 - (real)1.5 * x);
    slope[1] = x * (-5 + (real)4.5 * x);
    slope[2] = (real)0.5 + x * (4 - (real)4.5 * x);
    slope[3] = x * (-1 + (real)1.5 * x);
}

void backward(void **grad) {
    real *gw = grad[1];
    const real *last = q + STEPS * n * n;
    memset(g, 0, STEPS * n * n * sizeof(real));
    memset(gw, 0, 2 * n * n * sizeof(real));
    #pragma omp parallel for
    for (long k = 0; k < n * n; k++) g[STEPS * n * n + k] = 2 * last[k] / (n * n);
    for (long t = STEPS - 1; t >= 0; t--) {
        const real *restrict from = q + t * n * n, *restrict later = g + (t + 1) * n * n;
        real *to = g + t * n * n;
        #pragma omp parallel for reduction(+ : to[:n * n])
        for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) {
            long at = i * n + j;
            real x = i - wind[2 * at], y = j - wind[2 * at + 1], s = later[at], dx = 0, dy = 0;
            real fx = FLOOR(x), fy = FLOOR(y), u[4], v[4], du[4], dv[4];
            int k = fx, l = fy;
            weigh(x - fx, u, du);
            weigh(y - fy, v, dv);
            for (int a = 0; a < 4; a++) for (int b = 0; b < 4; b++) {
                if (!inside(k + a - 1, l + b - 1)) continue;
                long cell = (k + a - 1) * n + l + b - 1;
                to[cell] += s * u[a] * v[b];
                dx += du[a] * v[b] * from[cell];
                dy += u[a] * dv[b] * from[cell];
            }
            gw[2 * at] -= s * dx;
            gw[2 * at + 1] -= s * dy;
        }
    }
    memcpy(grad[0], g, n * n * sizeof(real));
}
