/* Subnormal numbers as zero, in what they are computed from and in results, as long as a kernel runs: they mean nothing
 * to training, but come up in bulk (moments of weights without gradient, products with the ends of an exponential), and
 * an operation with one takes some 150 cycles on many x86 processors. Elsewhere they cost little. */
#ifndef TENON_CPU_FLUSH_H
#define TENON_CPU_FLUSH_H

#if defined(__x86_64__)
#include <immintrin.h>

/* What the thread had before, for cpu_flush_end. */
static inline unsigned cpu_flush_begin(void)
{
    enum { DENORMALS_ARE_ZERO = 0x0040, FLUSH_TO_ZERO = 0x8000 };
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | DENORMALS_ARE_ZERO | FLUSH_TO_ZERO);
    return before;
}

static inline void cpu_flush_end(unsigned before)
{
    _mm_setcsr(before);
}
#else
static inline unsigned cpu_flush_begin(void)
{
    return 0;
}

static inline void cpu_flush_end(unsigned before)
{
    (void)before;
}
#endif

#endif
