/* Reductions, in rank order: ((part 0 + part 1) + part 2) + ..., bf16 as fp32 with one rounding at the end. */
#include "backend.h"

#include <string.h>

static float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To the nearest, ties to even. */
static uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#define SAME(x) (x)
#define SUM(a, x) ((a) + (x))
#define MAX(a, x) ((x) > (a) ? (x) : (a))

/* Buffers may lie at any address. */
#define KERNEL(name, stored, wide, WIDEN, NARROW, JOIN)                            \
    static void name(char *to, const char *from, int32_t n, uint64_t count)        \
    {                                                                              \
        for (uint64_t i = 0; i < count; i++) {                                     \
            stored x;                                                              \
            memcpy(&x, from + i * sizeof x, sizeof x);                             \
            wide sum = WIDEN(x);                                                   \
            for (int32_t r = 1; r < n; r++) {                                      \
                memcpy(&x, from + ((uint64_t)r * count + i) * sizeof x, sizeof x); \
                wide term = WIDEN(x);                                              \
                sum = JOIN(sum, term);                                             \
            }                                                                      \
            x = NARROW(sum);                                                       \
            memcpy(to + i * sizeof x, &x, sizeof x);                               \
        }                                                                          \
    }

KERNEL(sum_f32, float, float, SAME, SAME, SUM)
KERNEL(max_f32, float, float, SAME, SAME, MAX)
KERNEL(sum_bf16, uint16_t, float, widen, narrow, SUM)
KERNEL(max_bf16, uint16_t, float, widen, narrow, MAX)
KERNEL(sum_f64, double, double, SAME, SAME, SUM)
KERNEL(max_f64, double, double, SAME, SAME, MAX)
/* Integers wrap: sums are taken without sign. */
KERNEL(sum_i32, uint32_t, uint32_t, SAME, SAME, SUM)
KERNEL(max_i32, int32_t, int32_t, SAME, SAME, MAX)
KERNEL(sum_i64, uint64_t, uint64_t, SAME, SAME, SUM)
KERNEL(max_i64, int64_t, int64_t, SAME, SAME, MAX)

typedef void kernel(char *to, const char *from, int32_t n, uint64_t count);

static const struct {
    kernel *sum, *max;
} kernels[] = {
    [TN_F32] = { sum_f32, max_f32 }, [TN_BF16] = { sum_bf16, max_bf16 }, [TN_F64] = { sum_f64, max_f64 },
    [TN_I32] = { sum_i32, max_i32 }, [TN_I64] = { sum_i64, max_i64 },
};

int mpi_can_reduce(uint32_t dtype)
{
    return dtype < sizeof kernels / sizeof *kernels && kernels[dtype].sum;
}

void mpi_reduce(void *to, const void *from, int32_t n, uint64_t count, uint32_t dtype, uint32_t red)
{
    (red == TN_RED_MAX ? kernels[dtype].max : kernels[dtype].sum)(to, from, n, count);
}
