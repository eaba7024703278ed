// Measures the f32 operations per second of one core: the speed that profiles compare with. Part of pool.cpp.
#include <time.h>

namespace {

#if defined(__x86_64__)
// Independent multiply-adds in enough registers to hide their latency; returns operations. Not with `unroll-loops`: g++
// 14 rejects the constraints of asm in functions that request it.
#define OCC_FMA_LOOP(V, LANES)                                                                                  \
    V x, y;                                                                                                      \
    for (int k = 0; k < LANES; k++) x[k] = 0.999f, y[k] = 0.001f;                                                \
    V a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y, k = y, l = y;                        \
    for (int n = 0; n < rounds; n++) {                                                                           \
        a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y, e = e * x + y, f = f * x + y;                \
        g = g * x + y, h = h * x + y, i = i * x + y, j = j * x + y, k = k * x + y, l = l * x + y;                \
        asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));                                 \
        asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));                                 \
    }                                                                                                            \
    return 2.0 * LANES * 12 * rounds;

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
__attribute__((target("avx2,fma"), optimize("O3", "fp-contract=fast"))) double fma_8(int rounds) { OCC_FMA_LOOP(f32x8, 8) }
__attribute__((target("avx512f"), optimize("O3", "fp-contract=fast"))) double fma_16(int rounds) { OCC_FMA_LOOP(f32x16, 16) }
#endif

}  // namespace

// f32 operations per second that multiply-adds of vectors with this many lanes reach on one core, measured for about a
// millisecond; 0 if unknown. The caller passes the processor's features: __builtin_cpu_supports would need libgcc's own
// table, and the library is linked without libgcc.
extern "C" double occ_fma_rate(int lanes) {
#if defined(__x86_64__)
    double (*loop)(int) = lanes == 16 ? fma_16 : lanes == 8 ? fma_8 : nullptr;
    if (!loop) return 0;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    double done = loop(200000);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return done / ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec));
#else
    return 0;
#endif
}
