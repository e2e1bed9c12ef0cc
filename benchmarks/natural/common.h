/* What every reference needs: `real`, memory, sums of several threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

static inline real *memory(long count) { return calloc(count, sizeof(real)); }

static real zeros[1 << 16];

static inline real *none(long count) {
    static real *kept;
    return kept ? kept : (kept = memory(count));
}

/* An addition that other threads may make at the same place. */
static inline void add(real *to, real value) {
    #ifdef _OPENMP
    #pragma omp atomic
    #endif
    *to += value;
}
