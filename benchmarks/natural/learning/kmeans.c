#define CENTRES 100
#define D 16
static long n;
static real *points, *centres;

void setup(long size, void **in) {
    n = size;
    points = in[0];
    centres = in[1];
}

static inline real nearest(const real *p, int *which) {
    real best = (real)1e30;
    for (int c = 0; c < CENTRES; c++) {
        real far = 0;
        for (int d = 0; d < D; d++) far += (p[d] - centres[c * D + d]) * (p[d] - centres[c * D + d]);
        if (far < best) { best = far; *which = c; }
    }
    return best;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++) { int c = 0; loss += nearest(points + i * D, &c); }
    return loss / n;
}

void backward(void **grad) {
    real *gp = grad[0], *gc = grad[1];
    memset(gc, 0, CENTRES * D * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        int c = 0;
        nearest(points + i * D, &c);
        for (int d = 0; d < D; d++) {
            real s = 2 * (points[i * D + d] - centres[c * D + d]) / n;
            gp[i * D + d] = s;
            add(gc + c * D + d, -s);
        }
    }
}
