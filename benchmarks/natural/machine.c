/* What the machine can do on one processor: bytes read and written, and operations, in a second. */
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

double bandwidth(long count, long repeats) {
    real *restrict a = memory(count), *restrict b = memory(count), best = 0;
    for (long i = 0; i < count; i++) { a[i] = i; b[i] = 1; }
    for (long r = 0; r < repeats; r++) {
        double begin = now();
        for (long i = 0; i < count; i++) a[i] = a[i] + (real)0.5 * b[i];
        double rate = 3 * sizeof(real) * count / (now() - begin);
        best = MAX(best, rate);
        b[r % count] = a[0];
    }
    free(a);
    free(b);
    return best;
}

static real x[256];

double operations(long repeats) {
    double best = 0;
    for (int l = 0; l < 256; l++) x[l] = (real)0.001 * l;
    for (long r = 0; r < repeats; r++) {
        double begin = now();
        __asm__ volatile("" : : : "memory");
        for (int k = 0; k < 2000; k++) for (int l = 0; l < 256; l++) x[l] = x[l] * (real)0.5 + (real)0.1;
        __asm__ volatile("" : : : "memory");
        best = MAX(best, 2 * 2000 * 256 / (now() - begin));
    }
    return best;
}
