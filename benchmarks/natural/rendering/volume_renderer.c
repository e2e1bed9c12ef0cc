#define VIEWS 2
#define SAMPLES 64
#define F32 (sizeof(real) == 4)
#define SQRT(a) (F32 ? sqrtf(a) : sqrt(a))
static long n;
static real *density, *goal, *image;
static const real LENGTH = 2.4 / SAMPLES;

void setup(long size, void **in) {
    n = size;
    density = in[0];
    goal = in[1];
    image = memory(VIEWS * 4 * n * n);
}

struct ray { real eye[3], way[3]; };

static inline struct ray look(real s, real c, long i, long j) {
    real x = (i + (real)0.5) / n - 1, y = (j + (real)0.5) / n - 1;
    real a = c * x - s, b = -s * x - c, l = SQRT(a * a + y * y + b * b);
    return (struct ray){{(real)0.5 + (real)1.2 * s, (real)0.5, (real)0.5 + (real)1.2 * c}, {a / l, y / l, b / l}};
}

/* The cell at a sample, or -1 outside of the box. */
static inline long cell(const struct ray *r, int k) {
    real t = (k + (real)0.5) * LENGTH;
    real x = r->eye[0] + t * r->way[0], y = r->eye[1] + t * r->way[1], z = r->eye[2] + t * r->way[2];
    if (!(x >= 0 && x < 1 && y >= 0 && y < 1 && z >= 0 && z < 1)) return -1;
    return ((int)(x * n) * n + (int)(y * n)) * n + (int)(z * n);
}

double forward(void) {
    double loss = 0;
    for (int v = 0; v < VIEWS; v++) {
        real angle = (real)0.5 + v, s = F32 ? sinf(angle) : sin(angle), c = F32 ? cosf(angle) : cos(angle);
        #pragma omp parallel for
        for (long i = 0; i < 2 * n; i++) for (long j = 0; j < 2 * n; j++) {
            struct ray r = look(s, c, i, j);
            real sum = 0;
            for (int k = 0; k < SAMPLES; k++) {
                long at = cell(&r, k);
                if (at >= 0) sum += density[at] * LENGTH;
            }
            image[(v * 2 * n + i) * 2 * n + j] = sum;
        }
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < VIEWS * 4 * n * n; k++) loss += (image[k] - goal[k]) * (image[k] - goal[k]);
    return loss / (n * n);
}

void backward(void **grad) {
    real *g = grad[0];
    memset(g, 0, n * n * n * sizeof(real));
    for (int v = 0; v < VIEWS; v++) {
        real angle = (real)0.5 + v, s = F32 ? sinf(angle) : sin(angle), c = F32 ? cosf(angle) : cos(angle);
        #pragma omp parallel for reduction(+ : g[:n * n * n])
        for (long i = 0; i < 2 * n; i++) for (long j = 0; j < 2 * n; j++) {
            struct ray r = look(s, c, i, j);
            long pixel = (v * 2 * n + i) * 2 * n + j;
            real miss = 2 * (image[pixel] - goal[pixel]) / (n * n) * LENGTH;
            for (int k = 0; k < SAMPLES; k++) {
                long at = cell(&r, k);
                if (at >= 0) g[at] += miss;
            }
        }
    }
}
