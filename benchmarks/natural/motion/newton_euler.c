#include <stddef.h>
#define JOINTS 7
#define LANES 16
#define SIN(a) (sizeof(real) == 4 ? sinf(a) : sin(a))
#define COS(a) (sizeof(real) == 4 ? cosf(a) : cos(a))
static long n;
static real *q, *qd, *qdd, *length, *mass, *turns;

typedef real lanes[LANES];

/* LANES arms: of each joint its rate w, what that gains (d), its acceleration a, its own force F and torque T, and the
   force f and moment m that it bears. */
struct arms {
    lanes rate[JOINTS], gain[JOINTS], w[JOINTS + 1][3], d[JOINTS + 1][3], a[JOINTS + 1][3];
    lanes F[JOINTS][3], T[JOINTS][3], f[JOINTS][3], m[JOINTS][3];
};

/* Adjoints: what goes from joint to joint, and what each of them keeps. */
struct adjoint {
    lanes w[3], d[3], a[3], f[3], m[3];
    lanes F[JOINTS][3], T[JOINTS][3], q[JOINTS], qd[JOINTS], qdd[JOINTS], length[JOINTS], mass[JOINTS];
};

/* A joint turns the axes U and V about K, which is z for joints of even number and y for the others. */
#define JOINT(k, does, ...) \
    do { if (k % 2) does(k, __VA_ARGS__, 2, 0, 1); else does(k, __VA_ARGS__, 0, 1, 2); } while (0)
#define INLINE static inline __attribute__((always_inline))
#define GET(to, from) real to[3] = {(from)[0][l], (from)[1][l], (from)[2][l]}
#define PUT(to, from) ((to)[0][l] = (from)[0], (to)[1][l] = (from)[1], (to)[2][l] = (from)[2])

void setup(long size, void **in) {
    n = size;
    q = in[0];
    qd = in[1];
    qdd = in[2];
    length = in[3];
    mass = in[4];
    turns = memory((n + LANES) * JOINTS * 2);
}

/* The sines of LANES arms from i on, joint by joint, and then their cosines: kept for the adjoint. */
static inline lanes *turns_of(long i) { return (lanes *)(turns + i * JOINTS * 2); }

static void turn(long i) {
    lanes *s = turns_of(i), *c = s + JOINTS;
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < JOINTS; k++) {
            real angle = q[MIN(i + l, n - 1) * JOINTS + k];
            s[k][l] = SIN(angle);
            c[k][l] = COS(angle);
        }
}

static void load(long i, struct arms *A) {
    memset(A->w[0], 0, sizeof A->w[0]);
    memset(A->d[0], 0, sizeof A->d[0]);
    memset(A->a[0], 0, sizeof A->a[0]);
    for (int l = 0; l < LANES; l++) {
        long at = MIN(i + l, n - 1) * JOINTS;
        A->a[0][2][l] = (real)9.81;
        for (int k = 0; k < JOINTS; k++) {
            A->rate[k][l] = qd[at + k];
            A->gain[k][l] = qdd[at + k];
        }
    }
}

INLINE void into(real c, real s, real *v, int U, int V) {
    real u = v[U];
    v[U] = c * u + s * v[V];
    v[V] = c * v[V] - s * u;
}

INLINE void out_of(real c, real s, real *v, int U, int V) { into(c, -s, v, U, V); }

/* What the end of a link of length L gets beyond its start's acceleration. */
INLINE void swing(real L, const real *w, const real *d, real *e) {
    e[0] = -L * (w[1] * w[1] + w[2] * w[2]);
    e[1] = L * (w[0] * w[1] + d[2]);
    e[2] = L * (w[0] * w[2] - d[1]);
}

INLINE void outward(int k, struct arms *A, const lanes *sines, int U, int V, int K) {
    const real L = length[k], M = mass[k], inertia = M * L * L / 12, lean = (real)0.9;
    for (int l = 0; l < LANES; l++) {
        real s = sines[k][l], c = sines[JOINTS + k][l], rate = A->rate[k][l], e[3], F[3];
        GET(w, A->w[k]); GET(d, A->d[k]); GET(a, A->a[k]);
        into(c, s, w, U, V);
        into(c, s, d, U, V);
        into(c, s, a, U, V);
        w[K] += rate;
        d[U] += w[V] * rate;
        d[V] -= w[U] * rate;
        d[K] += A->gain[k][l];
        swing(L, w, d, e);
        for (int r = 0; r < 3; r++) {
            F[r] = M * (a[r] + e[r] / 2);
            a[r] += e[r];
        }
        real T[3] = {inertia * d[0], inertia * (d[1] - lean * w[0] * w[2]), inertia * (d[2] + lean * w[0] * w[1])};
        PUT(A->w[k + 1], w); PUT(A->d[k + 1], d); PUT(A->a[k + 1], a);
        PUT(A->F[k], F); PUT(A->T[k], T);
    }
}

/* f and m are what the next joint gives, and become what this one gives. */
INLINE void inward(int k, struct arms *A, const lanes *sines, lanes *f, lanes *m, int U, int V, int K) {
    const real L = length[k];
    (void)K;
    for (int l = 0; l < LANES; l++) {
        real s = sines[k][l], c = sines[JOINTS + k][l];
        GET(F, A->F[k]); GET(T, A->T[k]); GET(x, f); GET(y, m);
        y[0] += T[0];
        y[1] += T[1] - L * (x[2] + F[2] / 2);
        y[2] += T[2] + L * (x[1] + F[1] / 2);
        for (int r = 0; r < 3; r++) x[r] += F[r];
        PUT(A->f[k], x); PUT(A->m[k], y);
        out_of(c, s, x, U, V);
        out_of(c, s, y, U, V);
        PUT(f, x); PUT(m, y);
    }
}

static void both_ways(struct arms *A, const lanes *sines) {
    lanes f[3] = {{0}}, m[3] = {{0}};
    for (int k = 0; k < JOINTS; k++) JOINT(k, outward, A, sines);
    for (int k = JOINTS - 1; k >= 0; k--) JOINT(k, inward, A, sines, f, m);
}

double forward(void) {
    double loss = 0;
    #pragma omp parallel for reduction(+ : loss)
    for (long i = 0; i < n; i += LANES) {
        struct arms A;
        lanes sum = {0};
        turn(i);
        load(i, &A);
        both_ways(&A, turns_of(i));
        for (int k = 0; k < JOINTS; k++) {
            const real *tau = A.m[k][k % 2 ? 1 : 2];
            for (int l = 0; l < LANES; l++) sum[l] += tau[l] * tau[l];
        }
        for (long l = 0; l < MIN(LANES, n - i); l++) loss += sum[l];
    }
    return loss / n;
}

INLINE void inward_adjoint(int k, const struct arms *A, const lanes *sines, const real *seed, struct adjoint *G,
                           int U, int V, int K) {
    const real L = length[k];
    for (int l = 0; l < LANES; l++) {
        real s = sines[k][l], c = sines[JOINTS + k][l];
        GET(F, A->F[k]); GET(f, A->f[k]); GET(m, A->m[k]); GET(x, G->f); GET(y, G->m);
        into(c, s, x, U, V);
        into(c, s, y, U, V);
        G->q[k][l] = x[V] * f[U] - x[U] * f[V] + y[V] * m[U] - y[U] * m[V];
        y[K] += seed[l] * m[K];
        G->length[k][l] += y[2] * (f[1] - F[1] / 2) - y[1] * (f[2] - F[2] / 2);
        real e1 = L * y[2], e2 = -L * y[1], gF[3] = {x[0], x[1] + e1 / 2, x[2] + e2 / 2};
        x[1] += e1;
        x[2] += e2;
        PUT(G->F[k], gF); PUT(G->T[k], y); PUT(G->f, x); PUT(G->m, y);
    }
}

INLINE void outward_adjoint(int k, const struct arms *A, const lanes *sines, struct adjoint *G, int U, int V, int K) {
    const real L = length[k], M = mass[k], inertia = M * L * L / 12, lean = (real)0.9;
    for (int l = 0; l < LANES; l++) {
        real s = sines[k][l], c = sines[JOINTS + k][l], rate = A->rate[k][l], e[3], x[3];
        GET(w, A->w[k + 1]); GET(d, A->d[k + 1]); GET(a, A->a[k + 1]);
        GET(gw, G->w); GET(gd, G->d); GET(ga, G->a); GET(gF, G->F[k]); GET(gT, G->T[k]);
        swing(L, w, d, e);
        /* the torque */
        real y1 = lean * inertia * gT[1], y2 = lean * inertia * gT[2];
        real of = gT[0] * d[0] + gT[1] * (d[1] - lean * w[0] * w[2]) + gT[2] * (d[2] + lean * w[0] * w[1]);
        for (int r = 0; r < 3; r++) gd[r] += inertia * gT[r];
        gw[0] += y2 * w[1] - y1 * w[2];
        gw[1] += y2 * w[0];
        gw[2] -= y1 * w[0];
        /* the force, and the acceleration of the link's end; a becomes that of its start */
        real heavy = of * L * L / 12, far = of * M * L / 6;
        for (int r = 0; r < 3; r++) {
            heavy += gF[r] * (a[r] - e[r] / 2);
            x[r] = L * (ga[r] + M * gF[r] / 2);
            far += x[r] * e[r] / (L * L);
            ga[r] += M * gF[r];
            a[r] -= e[r];
        }
        G->mass[k][l] += heavy;
        G->length[k][l] += far;
        gw[0] += w[1] * x[1] + w[2] * x[2];
        gw[1] += w[0] * x[1] - 2 * w[1] * x[0];
        gw[2] += w[0] * x[2] - 2 * w[2] * x[0];
        gd[1] -= x[2];
        gd[2] += x[1];
        /* the joint */
        G->qdd[k][l] = gd[K];
        G->qd[k][l] = gw[K] + gd[U] * w[V] - gd[V] * w[U];
        gw[U] -= gd[V] * rate;
        gw[V] += gd[U] * rate;
        G->q[k][l] += ga[U] * a[V] - ga[V] * a[U] + gw[U] * w[V] - gw[V] * w[U]
                      + gd[U] * (d[V] + w[U] * rate) - gd[V] * (d[U] - w[V] * rate);
        out_of(c, s, gw, U, V);
        out_of(c, s, gd, U, V);
        out_of(c, s, ga, U, V);
        PUT(G->w, gw); PUT(G->d, gd); PUT(G->a, ga);
    }
}

void backward(void **grad) {
    real *gq = grad[0], *gqd = grad[1], *gqdd = grad[2], *glength = grad[3], *gmass = grad[4];
    memset(glength, 0, JOINTS * sizeof(real));
    memset(gmass, 0, JOINTS * sizeof(real));
    #pragma omp parallel
    {
        struct adjoint G = {0};
        #pragma omp for
        for (long i = 0; i < n; i += LANES) {
            const lanes *sines = turns_of(i);
            const long end = MIN(LANES, n - i);
            struct arms A;
            lanes seed = {0};
            load(i, &A);
            both_ways(&A, sines);
            for (long l = 0; l < end; l++) seed[l] = (real)2 / n;
            memset(&G, 0, offsetof(struct adjoint, F));
            for (int k = 0; k < JOINTS; k++) JOINT(k, inward_adjoint, &A, sines, seed, &G);
            for (int k = JOINTS - 1; k >= 0; k--) JOINT(k, outward_adjoint, &A, sines, &G);
            for (long l = 0; l < end; l++)
                for (int k = 0; k < JOINTS; k++) {
                    gq[(i + l) * JOINTS + k] = G.q[k][l];
                    gqd[(i + l) * JOINTS + k] = G.qd[k][l];
                    gqdd[(i + l) * JOINTS + k] = G.qdd[k][l];
                }
        }
        for (int k = 0; k < JOINTS; k++)
            for (int l = 0; l < LANES; l++) {
                add(glength + k, G.length[k][l]);
                add(gmass + k, G.mass[k][l]);
            }
    }
}
