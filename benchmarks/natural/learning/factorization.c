#define D 16
static long n, users, items;
static const int *user, *item;
static real *rating, *p, *q, *bias, *miss;

void setup(long size, void **in) {
    n = size;
    users = MAX(n / 20, 2);
    items = MAX(n / 50, 2);
    user = in[0];
    item = in[1];
    rating = in[2];
    p = in[3];
    q = in[4];
    bias = in[5];
    miss = memory(n);
}

static double squares(const real *x, long count) {
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long e = 0; e < n; e++) {
        const real *a = p + user[e] * D, *b = q + item[e] * D;
        real s = bias[item[e]];
        for (int d = 0; d < D; d++) s += a[d] * b[d];
        miss[e] = s - rating[e];
        loss += miss[e] * miss[e];
    }
    return loss / n + 1e-4 * (squares(p, users * D) + squares(q, items * D));
}

void backward(void **grad) {
    real *gp = grad[3], *gq = grad[4], *gb = grad[5];
    memset(gb, 0, items * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < users * D; i++) gp[i] = (real)2e-4 * p[i];
    #pragma omp parallel for
    for (long i = 0; i < items * D; i++) gq[i] = (real)2e-4 * q[i];
    #pragma omp parallel for
    for (long e = 0; e < n; e++) {
        const real s = 2 * miss[e] / n;
        const real *a = p + user[e] * D, *b = q + item[e] * D;
        real *ga = gp + user[e] * D, *gc = gq + item[e] * D;
        for (int d = 0; d < D; d++) {
            add(ga + d, s * b[d]);
            add(gc + d, s * a[d]);
        }
        add(gb + item[e], s);
    }
}
