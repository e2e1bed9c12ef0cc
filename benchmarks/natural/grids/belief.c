#define EXP(a) (sizeof(real) == 4 ? expf(a) : exp(a))
#define LOG(a) (sizeof(real) == 4 ? logf(a) : log(a))
#define SQRT(a) (sizeof(real) == 4 ? sqrtf(a) : sqrt(a))
#define L 8
#define ROUNDS 4
static long n;
static real *left, *right, *smooth, *cost, *msg, *gcost, *gmsg;
static const int SIDES[4][2] = {{0, 1}, {0, -1}, {1, 0}, {-1, 0}};

static real *at(real *m, int r, int k, long i, long j) { return m + (((r * 4 + k) * n + i) * n + j) * L; }
static int inside(long i, long j) { return 0 <= i && i < n && 0 <= j && j < n; }
static real jump(int l, int m) { return MIN((real)abs(l - m), smooth[1]); }

void setup(long size, void **in) {
    n = size;
    left = in[0];
    right = in[1];
    smooth = in[2];
    cost = memory(n * n * L);
    gcost = memory(n * n * L);
    msg = memory((ROUNDS + 1) * 4 * n * n * L);
    gmsg = memory((ROUNDS + 1) * 4 * n * n * L);
}

/* What a pixel knows without the side that a message goes to. */
static void collect(int r, int but, long i, long j, real *h) {
    for (int m = 0; m < L; m++) {
        h[m] = cost[(i * n + j) * L + m];
        for (int q = 0; q < 4; q++)
            if (q != but) h[m] += at(msg, r, q, i, j)[m];
    }
}

static void send(int r, int k, long i, long j) {
    long a = i + SIDES[k][0], b = j + SIDES[k][1];
    real *out = at(msg, r + 1, k, i, j), h[L], mean = 0;
    if (!inside(a, b)) {
        memset(out, 0, L * sizeof(real));
        return;
    }
    collect(r, k ^ 1, a, b, h);
    for (int l = 0; l < L; l++) {
        real total = 0;
        for (int m = 0; m < L; m++) total += EXP(-h[m] - smooth[0] * jump(l, m));
        out[l] = -LOG(total);
        mean += out[l] / L;
    }
    for (int l = 0; l < L; l++) out[l] -= mean;
}

/* The mean label of a pixel, and the weights of its labels. */
static real label(long i, long j, real *p) {
    real z = 0, e = 0;
    collect(ROUNDS, 4, i, j, p);
    for (int l = 0; l < L; l++) {
        p[l] = EXP(-p[l]);
        z += p[l];
        e += l * p[l];
    }
    for (int l = 0; l < L; l++) p[l] /= z;
    return e / z;
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            for (int l = 0; l < L; l++) {
                real d = left[i * (n + L) + j + l] - right[i * (n + L) + j];
                cost[(i * n + j) * L + l] = SQRT(d * d + (real)1e-3);
            }
    memset(msg, 0, 4 * n * n * L * sizeof(real));
    for (int r = 0; r < ROUNDS; r++) {
        #pragma omp parallel for
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++)
                for (int k = 0; k < 4; k++) send(r, k, i, j);
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            real p[L], e = label(i, j, p) - 3;
            loss += e * e / (n * n);
        }
    return loss;
}

static void give(int r, int but, long i, long j, const real *g) {
    for (int m = 0; m < L; m++) {
        add(&gcost[(i * n + j) * L + m], g[m]);
        for (int q = 0; q < 4; q++)
            if (q != but) add(&at(gmsg, r, q, i, j)[m], g[m]);
    }
}

static void send_back(int r, int k, long i, long j, real *gsmooth) {
    long a = i + SIDES[k][0], b = j + SIDES[k][1];
    real *g = at(gmsg, r + 1, k, i, j), h[L], gh[L] = {0}, mean = 0;
    if (!inside(a, b)) return;
    collect(r, k ^ 1, a, b, h);
    for (int l = 0; l < L; l++) mean += g[l] / L;
    for (int l = 0; l < L; l++) {
        real t[L], total = 0;
        for (int m = 0; m < L; m++) total += t[m] = EXP(-h[m] - smooth[0] * jump(l, m));
        for (int m = 0; m < L; m++) {
            real slope = (g[l] - mean) / total * t[m];
            gh[m] += slope;
            gsmooth[0] += slope * jump(l, m);
            gsmooth[1] += abs(l - m) > smooth[1] ? slope * smooth[0] : 0;
        }
    }
    give(r, k ^ 1, a, b, gh);
}

void backward(void **grad) {
    real *gleft = grad[0], *gright = grad[1], *gsmooth = grad[2], s0 = 0, s1 = 0;
    memset(gleft, 0, n * (n + L) * sizeof(real));
    memset(gright, 0, n * (n + L) * sizeof(real));
    memset(gcost, 0, n * n * L * sizeof(real));
    memset(gmsg, 0, (ROUNDS + 1) * 4 * n * n * L * sizeof(real));
    #pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            real p[L], g[L], e = label(i, j, p);
            for (int l = 0; l < L; l++) g[l] = -2 * (e - 3) / (n * n) * (l - e) * p[l];
            give(ROUNDS, 4, i, j, g);
        }
    for (int r = ROUNDS - 1; r >= 0; r--) {
        #pragma omp parallel for reduction(+ : s0, s1)
        for (long i = 0; i < n; i++) {
            real own[2] = {0};
            for (long j = 0; j < n; j++)
                for (int k = 0; k < 4; k++) send_back(r, k, i, j, own);
            s0 += own[0];
            s1 += own[1];
        }
    }
    gsmooth[0] = s0;
    gsmooth[1] = s1;
    #pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            for (int l = 0; l < L; l++) {
                long c = (i * n + j) * L + l;
                real d = left[i * (n + L) + j + l] - right[i * (n + L) + j];
                gleft[i * (n + L) + j + l] += gcost[c] * d / cost[c];
                gright[i * (n + L) + j] -= gcost[c] * d / cost[c];
            }
}
