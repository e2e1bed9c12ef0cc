#define STEPS 50
#define F32 (sizeof(real) == 4)
static long n;
static real *start, *gains, *s, *g;
static const real H = 0.02;

void setup(long size, void **in) {
    n = size;
    start = in[0];
    gains = in[1];
    s = memory((STEPS + 1) * n * 4);
    g = memory((STEPS + 1) * n * 4);
}

double forward(void) {
    double loss = 0;
    memcpy(s, start, 4 * n * sizeof(real));
    for (long t = 0; t < STEPS; t++) {
        #pragma omp parallel for
        for (long i = 0; i < n; i++) {
            const real *y = s + 4 * (t * n + i);
            real *o = s + 4 * ((t + 1) * n + i);
            real push = (gains[0] * y[0] + gains[1] * y[1] + gains[2] * y[2] + gains[3] * y[3]) / 10;
            real force = 10 * (F32 ? tanhf(push) : tanh(push));
            real sn = F32 ? sinf(y[2]) : sin(y[2]), cs = F32 ? cosf(y[2]) : cos(y[2]);
            real drive = (force + (real)0.05 * y[3] * y[3] * sn) / (real)1.1;
            real turn = ((real)9.81 * sn - cs * drive)
                / ((real)0.5 * ((real)(4.0 / 3) - (real)0.1 * cs * cs / (real)1.1));
            o[0] = y[0] + H * y[1];
            o[1] = y[1] + H * (drive - (real)0.05 * turn * cs / (real)1.1);
            o[2] = y[2] + H * y[3];
            o[3] = y[3] + H * turn;
        }
    }
    #pragma omp parallel for reduction(+ : loss)
    for (long k = 0; k < (STEPS + 1) * n; k++)
        loss += (real)0.3 * s[4 * k] * s[4 * k] + s[4 * k + 2] * s[4 * k + 2];
    return loss / n;
}

void backward(void **grad) {
    real *gg = grad[1];
    double g0 = 0, g1 = 0, g2 = 0, g3 = 0;
    memset(g, 0, (STEPS + 1) * n * 4 * sizeof(real));
    for (long i = 0; i < n; i++) {
        long at = 4 * (STEPS * n + i);
        g[at] = (real)0.6 * s[at] / n;
        g[at + 2] = 2 * s[at + 2] / n;
    }
    for (long t = STEPS - 1; t >= 0; t--) {
        #pragma omp parallel for reduction(+ : g0, g1, g2, g3)
        for (long i = 0; i < n; i++) {
            const real *y = s + 4 * (t * n + i), *e = g + 4 * ((t + 1) * n + i);
            real *o = g + 4 * (t * n + i);
            real push = (gains[0] * y[0] + gains[1] * y[1] + gains[2] * y[2] + gains[3] * y[3]) / 10;
            real th = F32 ? tanhf(push) : tanh(push), force = 10 * th;
            real sn = F32 ? sinf(y[2]) : sin(y[2]), cs = F32 ? cosf(y[2]) : cos(y[2]);
            real drive = (force + (real)0.05 * y[3] * y[3] * sn) / (real)1.1;
            real low = (real)0.5 * ((real)(4.0 / 3) - (real)0.1 * cs * cs / (real)1.1);
            real turn = ((real)9.81 * sn - cs * drive) / low, k = (real)0.05 / (real)1.1;
            real g_go = H * e[1], g_turn = H * e[3] - k * cs * g_go, g_drive = g_go;
            real g_cs = -k * turn * g_go, g_top = g_turn / low, g_low = -g_turn * turn / low;
            real g_sn = (real)9.81 * g_top;
            g_cs += -drive * g_top - (real)0.1 / (real)1.1 * cs * g_low;
            g_drive -= cs * g_top;
            g_drive /= (real)1.1;
            real g_force = g_drive * (1 - th * th);
            g_sn += (real)0.05 * y[3] * y[3] * g_drive;
            g0 += g_force * y[0]; g1 += g_force * y[1]; g2 += g_force * y[2]; g3 += g_force * y[3];
            o[0] = e[0] + (real)0.6 * y[0] / n + g_force * gains[0];
            o[1] = e[1] + H * e[0] + g_force * gains[1];
            o[2] = e[2] + 2 * y[2] / n + g_force * gains[2] + g_sn * cs - g_cs * sn;
            o[3] = e[3] + H * e[2] + g_force * gains[3] + (real)0.1 * y[3] * sn * g_drive;
        }
    }
    gg[0] = g0; gg[1] = g1; gg[2] = g2; gg[3] = g3;
    memcpy(grad[0], g, 4 * n * sizeof(real));
}
