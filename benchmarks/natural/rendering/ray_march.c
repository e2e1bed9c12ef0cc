#define BALLS 8
#define MARCHES 64
#define F32 (sizeof(real) == 4)
#define SQRT(a) (F32 ? sqrtf(a) : sqrt(a))
#define EXP(a) (F32 ? expf(a) : exp(a))
static long n;
static real *balls, *image;

void setup(long size, void **in) {
    n = size;
    balls = in[0];
    image = memory(n * n);
}

static inline void look(long i, long j, real *way) {
    real x = (i + (real)0.5) / n - (real)0.5, y = (j + (real)0.5) / n - (real)0.5, l = SQRT(x * x + y * y + 1);
    way[0] = x / l; way[1] = y / l; way[2] = 1 / l;
}

/* To the nearest ball along a ray that begins at (0, 0, -3); `which` is it, or -1. */
static inline real distance(real t, const real *way, int *which) {
    real nearest = 9, p[3] = {t * way[0], t * way[1], t * way[2] - 3};
    *which = -1;
    for (int b = 0; b < BALLS; b++) {
        const real *o = balls + 4 * b;
        real x = p[0] - o[0], y = p[1] - o[1], z = p[2] - o[2];
        real d = SQRT(x * x + y * y + z * z) - o[3];
        if (d < nearest) { nearest = d; *which = b; }
    }
    return nearest;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for schedule(dynamic)
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real way[3], t = 0;
        int which;
        look(i, j, way);
        for (int m = 0; m < MARCHES; m++) {
            real d = distance(t, way, &which);
            if (d < (real)1e-3 || t > 6) break;
            t += d;
        }
        image[i * n + j] = EXP((real)-0.3 * t);
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n * n; k++) loss += image[k] * image[k];
    return loss / (n * n);
}

/* Marches again, keeps where it was and what was nearest, and goes back. */
void backward(void **grad) {
    real *g = grad[0], own[4 * BALLS] = {0};
    #pragma omp parallel for schedule(dynamic) reduction(+ : own)
    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {
        real way[3], at[MARCHES], t = 0;
        int which[MARCHES], count = 0;
        look(i, j, way);
        for (; count < MARCHES; count++) {
            real d = distance(t, way, which + count);
            if (d < (real)1e-3 || t > 6) break;
            at[count] = t;
            t += d;
        }
        real s = (real)-0.6 * image[i * n + j] * image[i * n + j] / (n * n);
        for (int m = count - 1; m >= 0; m--) {
            if (which[m] < 0) continue;
            const real *o = balls + 4 * which[m];
            real *to = own + 4 * which[m];
            real x = at[m] * way[0] - o[0], y = at[m] * way[1] - o[1], z = at[m] * way[2] - 3 - o[2];
            real f = s / SQRT(x * x + y * y + z * z);
            to[0] -= f * x; to[1] -= f * y; to[2] -= f * z; to[3] -= s;
            s += f * (x * way[0] + y * way[1] + z * way[2]);
        }
    }
    memcpy(g, own, sizeof own);
}
