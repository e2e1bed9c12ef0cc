#define FINGERS 5
#define BONES 4
#define COUNT (FINGERS * BONES)
#define SIN(a) (sizeof(real) == 4 ? sinf(a) : sin(a))
#define COS(a) (sizeof(real) == 4 ? cosf(a) : cos(a))
static long n;
static real *angles, *rest, *goal;
static int *bone;
/* of each bone: a rotation, row by row, and a place */
static real turns[COUNT][9], places[COUNT][3];

void setup(long size, void **in) {
    n = size;
    angles = in[0];
    rest = in[1];
    goal = in[2];
    bone = in[3];
}

static void pose(void) {
    for (int f = 0; f < FINGERS; f++) {
        real turn[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, place[3] = {(real)0.1 * f, 0, 0};
        for (int b = 0; b < BONES; b++) {
            real s = SIN(angles[f * BONES + b]), c = COS(angles[f * BONES + b]);
            for (int r = 0; r < 3; r++) {
                real y = turn[3 * r + 1], z = turn[3 * r + 2];
                turn[3 * r + 1] = y * c + z * s;
                turn[3 * r + 2] = z * c - y * s;
            }
            memcpy(turns[f * BONES + b], turn, sizeof turn);
            memcpy(places[f * BONES + b], place, sizeof place);
            for (int r = 0; r < 3; r++) place[r] += (real)0.3 * turn[3 * r + 2];
        }
    }
}

static inline void skin(long k, real *miss) {
    const real *t = turns[bone[k]], *p = places[bone[k]], *x = rest + 3 * k;
    for (int r = 0; r < 3; r++)
        miss[r] = t[3 * r] * x[0] + t[3 * r + 1] * x[1] + t[3 * r + 2] * x[2] + p[r] - goal[3 * k + r];
}

double forward(void) {
    double loss = 0;
    pose();
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < n; k++) {
        real m[3];
        skin(k, m);
        loss += m[0] * m[0] + m[1] * m[1] + m[2] * m[2];
    }
    return loss / n;
}

void backward(void **grad) {
    real *g = grad[0], gt[COUNT][9] = {{0}}, gp[COUNT][3] = {{0}};
    #pragma omp parallel for reduction(+ : gt, gp)
    for (long k = 0; k < n; k++) {
        real m[3];
        int b = bone[k];
        skin(k, m);
        for (int r = 0; r < 3; r++) {
            real s = 2 * m[r] / n;
            for (int c = 0; c < 3; c++) gt[b][3 * r + c] += s * rest[3 * k + c];
            gp[b][r] += s;
        }
    }
    for (int f = 0; f < FINGERS; f++) {
        real G[9] = {0}, P[3] = {0};
        for (int b = BONES - 1; b >= 0; b--) {
            int at = f * BONES + b;
            real s = SIN(angles[at]), c = COS(angles[at]), angle = 0;
            const real first[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, *before = b ? turns[at - 1] : first;
            for (int r = 0; r < 3; r++) {
                for (int q = 0; q < 3; q++) G[3 * r + q] += gt[at][3 * r + q];
                G[3 * r + 2] += (real)0.3 * P[r];
                P[r] += gp[at][r];
                real y = G[3 * r + 1], z = G[3 * r + 2], u = before[3 * r + 1], w = before[3 * r + 2];
                angle += y * (w * c - u * s) - z * (w * s + u * c);
                G[3 * r + 1] = y * c - z * s;
                G[3 * r + 2] = y * s + z * c;
            }
            g[at] = angle;
        }
    }
}
