static long n, m;
static real *x;
static int *faces;

void setup(long size, void **in) {
    n = size;
    m = 2 * (n - 1) * (n - 1);
    x = in[0];
    faces = in[1];
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long f = 0; f < m; f++) {
        const int *v = faces + 3 * f;
        const real *a = x + 2 * v[0], *b = x + 2 * v[1], *c = x + 2 * v[2];
        real d0 = b[0] - a[0], d1 = b[1] - a[1], e0 = c[0] - a[0], e1 = c[1] - a[1];
        real J = d0 * e1 - e0 * d1, l;
        J = J < 0 ? -J : J;
        J = MAX(J, (real)0.1);
        l = sizeof(real) == 4 ? logf(J) : log(J);
        real strain = d0 * d0 + d1 * d1 + e0 * e0 + e1 * e1;
        loss += (real)0.5 * ((real)0.5 * (strain - 2) - l + 2 * l * l);
    }
    return loss;
}

void backward(void **grad) {
    real *g = grad[0];
    memset(g, 0, 2 * n * n * sizeof(real));
    #pragma omp parallel for
    for (long f = 0; f < m; f++) {
        const int *v = faces + 3 * f;
        const real *a = x + 2 * v[0], *b = x + 2 * v[1], *c = x + 2 * v[2];
        real d0 = b[0] - a[0], d1 = b[1] - a[1], e0 = c[0] - a[0], e1 = c[1] - a[1];
        real det = d0 * e1 - e0 * d1, J = det < 0 ? -det : det, k = 0;
        if (J > (real)0.1) {
            real l = sizeof(real) == 4 ? logf(J) : log(J);
            k = (real)0.5 * (4 * l - 1) / det;
        }
        real p0 = (real)0.5 * d0 + k * e1, p1 = (real)0.5 * d1 - k * e0;
        real q0 = (real)0.5 * e0 - k * d1, q1 = (real)0.5 * e1 + k * d0;
        real *ga = g + 2 * v[0], *gb = g + 2 * v[1], *gc = g + 2 * v[2];
        add(gb, p0); add(gb + 1, p1); add(gc, q0); add(gc + 1, q1);
        add(ga, -p0 - q0); add(ga + 1, -p1 - q1);
    }
}
