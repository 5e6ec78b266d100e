/* The kernels: sum or maximum of n sources, element by element, ((s0 + s1) + s2) + ..., in fp32 for bf16.
 *
 * The file is compiled once for each CPU level (UCX_LEVEL names it). Blocks of a fixed size with the sources in the
 * inner loop over it keep the accumulators in registers or the first cache; the compiler makes vectors of them. Buffers
 * may lie at any address. The bits are the same at all levels. */
#include "backend.h"

#include <string.h>

enum { BLOCK = 256 /* elements */ };

static inline float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To the nearest, ties to even; a NaN stays one. */
static inline uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#define SAME(x) (x)
#define SUM(a, x) ((a) + (x))
#define MAX(a, x) ((x) > (a) || (x) != (x) ? (x) : (a)) /* a NaN anywhere gives NaN */

#define KERNEL(name, stored, wide, WIDEN, NARROW, JOIN)                                              \
    static inline void name##_block(const void *const *in, int n, char *out, uint64_t at, int count) \
    {                                                                                                \
        stored raw[BLOCK];                                                                           \
        wide sum[BLOCK];                                                                             \
        memcpy(raw, (const char *)in[0] + at * sizeof(stored), (size_t)count * sizeof(stored));      \
        for (int i = 0; i < count; i++)                                                              \
            sum[i] = WIDEN(raw[i]);                                                                  \
        for (int s = 1; s < n; s++) {                                                                \
            memcpy(raw, (const char *)in[s] + at * sizeof(stored), (size_t)count * sizeof(stored));  \
            for (int i = 0; i < count; i++) {                                                        \
                wide term = WIDEN(raw[i]);                                                           \
                sum[i] = JOIN(sum[i], term);                                                         \
            }                                                                                        \
        }                                                                                            \
        for (int i = 0; i < count; i++)                                                              \
            raw[i] = NARROW(sum[i]);                                                                 \
        memcpy(out + at * sizeof(stored), raw, (size_t)count * sizeof(stored));                      \
    }                                                                                                \
    static void name(const void *const *in, int n, void *out, uint64_t count)                        \
    {                                                                                                \
        uint64_t at = 0;                                                                             \
        for (; at + BLOCK <= count; at += BLOCK)                                                     \
            name##_block(in, n, out, at, BLOCK);                                                     \
        if (at < count)                                                                              \
            name##_block(in, n, out, at, (int)(count - at));                                         \
    }

KERNEL(sum_f32, float, float, SAME, SAME, SUM)
KERNEL(max_f32, float, float, SAME, SAME, MAX)
KERNEL(sum_bf16, uint16_t, float, widen, narrow, SUM)
KERNEL(max_bf16, uint16_t, float, widen, narrow, MAX)
KERNEL(sum_f64, double, double, SAME, SAME, SUM)
KERNEL(max_f64, double, double, SAME, SAME, MAX)
KERNEL(sum_i32, uint32_t, uint32_t, SAME, SAME, SUM) /* wraps */
KERNEL(max_i32, int32_t, int32_t, SAME, SAME, MAX)
KERNEL(sum_i64, uint64_t, uint64_t, SAME, SAME, SUM)
KERNEL(max_i64, int64_t, int64_t, SAME, SAME, MAX)

static void reduce(uint32_t dtype, uint32_t red, const void *const *in, int n, void *out, uint64_t count)
{
    static void (*const kernels[][2])(const void *const *, int, void *, uint64_t) = {
        [TN_F32] = { sum_f32, max_f32 }, [TN_BF16] = { sum_bf16, max_bf16 }, [TN_F64] = { sum_f64, max_f64 },
        [TN_I32] = { sum_i32, max_i32 }, [TN_I64] = { sum_i64, max_i64 },
    };
    kernels[dtype][red == TN_RED_MAX](in, n, out, count);
}

#define JOINED(a, b) a##b
#define LEVEL_NAME(level) JOINED(ucx_kernels_, level)
#define TEXT(x) #x
#define LEVEL_TEXT(level) TEXT(level)

extern const struct ucx_kernels LEVEL_NAME(UCX_LEVEL);
const struct ucx_kernels LEVEL_NAME(UCX_LEVEL) = { LEVEL_TEXT(UCX_LEVEL), reduce };
