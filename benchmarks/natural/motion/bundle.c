#define F32 (sizeof(real) == 4)
#define SIN(a) (F32 ? sinf(a) : sin(a))
#define COS(a) (F32 ? cosf(a) : cos(a))
#define SQRT(a) (F32 ? sqrtf(a) : sqrt(a))
static long n;
static real *cameras, *points, *seen;
static int *which;

void setup(long size, void **in) {
    n = size;
    cameras = in[0];
    points = in[1];
    seen = in[2];
    which = in[3];
}

/* What a projection goes through; `error` comes of it. */
struct view { real axis[3], angle, s, c, along, cross[3], z, p[2], square, bent, error[2]; };

static inline struct view project(const real *cam, const real *x, const real *goal) {
    struct view v;
    real square = cam[0] * cam[0] + cam[1] * cam[1] + cam[2] * cam[2] + (real)1e-12;
    v.angle = SQRT(square);
    v.s = SIN(v.angle);
    v.c = COS(v.angle);
    real *a = v.axis, y[3];
    for (int k = 0; k < 3; k++) a[k] = cam[k] / v.angle;
    v.along = a[0] * x[0] + a[1] * x[1] + a[2] * x[2];
    v.cross[0] = a[1] * x[2] - a[2] * x[1];
    v.cross[1] = a[2] * x[0] - a[0] * x[2];
    v.cross[2] = a[0] * x[1] - a[1] * x[0];
    for (int k = 0; k < 3; k++) y[k] = x[k] * v.c + v.cross[k] * v.s + a[k] * v.along * (1 - v.c) + cam[3 + k];
    v.z = y[2];
    v.p[0] = y[0] / y[2];
    v.p[1] = y[1] / y[2];
    v.square = v.p[0] * v.p[0] + v.p[1] * v.p[1];
    v.bent = 1 + cam[8] * v.square + cam[9] * v.square * v.square;
    for (int k = 0; k < 2; k++) v.error[k] = cam[6] * v.bent * v.p[k] + cam[7] - goal[k];
    return v;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n; k++) {
        struct view v = project(cameras + 10 * which[2 * k], points + 3 * which[2 * k + 1], seen + 2 * k);
        loss += v.error[0] * v.error[0] + v.error[1] * v.error[1];
    }
    return loss / n;
}

void backward(void **grad) {
    real *gc = grad[0], *gp = grad[1];
    long many = n / 10, more = n / 5 * 3;
    memset(gc, 0, many * sizeof(real));
    memset(gp, 0, more * sizeof(real));
    #pragma omp parallel for reduction(+ : gc[:many], gp[:more])
    for (long k = 0; k < n; k++) {
        const real *cam = cameras + 10 * which[2 * k], *x = points + 3 * which[2 * k + 1];
        real *g = gc + 10 * which[2 * k], *gx = gp + 3 * which[2 * k + 1];
        struct view v = project(cam, x, seen + 2 * k);
        const real *a = v.axis;
        real e0 = 2 * v.error[0] / n, e1 = 2 * v.error[1] / n, dot = e0 * v.p[0] + e1 * v.p[1];
        real bent = cam[6] * dot, square = bent * (cam[8] + 2 * cam[9] * v.square);
        real p0 = cam[6] * v.bent * e0 + 2 * square * v.p[0], p1 = cam[6] * v.bent * e1 + 2 * square * v.p[1];
        real y[3] = {p0 / v.z, p1 / v.z, -(p0 * v.p[0] + p1 * v.p[1]) / v.z};
        g[6] += v.bent * dot;
        g[7] += e0 + e1;
        g[8] += bent * v.square;
        g[9] += bent * v.square * v.square;
        real ya = y[0] * a[0] + y[1] * a[1] + y[2] * a[2], yx = y[0] * x[0] + y[1] * x[1] + y[2] * x[2];
        real yc = y[0] * v.cross[0] + y[1] * v.cross[1] + y[2] * v.cross[2], h = 1 - v.c;
        real xy[3] = {x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]};
        real ay[3] = {y[1] * a[2] - y[2] * a[1], y[2] * a[0] - y[0] * a[2], y[0] * a[1] - y[1] * a[0]};
        real to[3], turn = yc * v.c - (yx - ya * v.along) * v.s;
        for (int q = 0; q < 3; q++) to[q] = v.s * xy[q] + h * (v.along * y[q] + ya * x[q]);
        turn -= (to[0] * a[0] + to[1] * a[1] + to[2] * a[2]) / v.angle;
        for (int q = 0; q < 3; q++) {
            g[q] += to[q] / v.angle + turn * a[q];
            g[3 + q] += y[q];
            gx[q] += v.c * y[q] + v.s * ay[q] + h * ya * a[q];
        }
    }
}
