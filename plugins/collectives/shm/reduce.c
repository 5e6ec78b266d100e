/* The kernels: sum or maximum of n sources into m destinations, and copies to m destinations.
 *
 * The file is compiled once for each CPU level (SHM_LEVEL names it); the compiler makes the
 * vector code, pick.c chooses at run time. A block of the result is computed in the first-level
 * cache and then written to all destinations, each source being read once. Every element is
 * ((s0 + s1) + s2) + ..., in fp32 for bf16: the same bits whatever the level and the cut. */
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "shm.h"

enum { BLOCK = 4096 }; /* bytes of accumulators at a time */

/* Tensors need not be aligned. */
typedef float f32 __attribute__((aligned(1), may_alias));
typedef double f64 __attribute__((aligned(1), may_alias));
typedef uint16_t bf16 __attribute__((aligned(1), may_alias));
typedef int32_t i32 __attribute__((aligned(1), may_alias));
typedef int64_t i64 __attribute__((aligned(1), may_alias));

/* ---- stores ---- */

#if defined(__SSE2__)
/* Past the cache: the destination is neither read first nor kept. */
static void write_past(char *to, const char *from, uint64_t bytes)
{
    uint64_t head = (64 - ((uintptr_t)to & 63)) & 63;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    uint64_t at = head;
    for (; at + 64 <= bytes; at += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
#elif defined(__AVX__)
        _mm256_stream_si256((__m256i *)(to + at), _mm256_loadu_si256((const __m256i *)(from + at)));
        _mm256_stream_si256((__m256i *)(to + at + 32), _mm256_loadu_si256((const __m256i *)(from + at + 32)));
#else
        for (int k = 0; k < 64; k += 16)
            _mm_stream_si128((__m128i *)(to + at + k), _mm_loadu_si128((const __m128i *)(from + at + k)));
#endif
    }
    memcpy(to + at, from + at, bytes - at);
}

static void end_stores(void)
{
    _mm_sfence(); /* such stores are not ordered with those that say "done" */
}
#else
static void write_past(char *to, const char *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
}

static void end_stores(void)
{
}
#endif

static void write_all(const void *block, void *const *out, int m, uint64_t at, uint64_t bytes, int stream)
{
    for (int i = 0; i < m; i++) {
        if (stream)
            write_past((char *)out[i] + at, block, bytes);
        else
            memcpy((char *)out[i] + at, block, bytes);
    }
}

/* ---- one pair of types ---- */

#define SUM(a, b) ((a) + (b))
/* Integers wrap round, as they do on every processor. */
#define SUM_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define SUM_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define MAX(a, b) ((b) > (a) ? (b) : (a))
/* A NaN anywhere gives NaN. */
#define MAX_NAN(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

#define SAME(x) (x)

static inline float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* KERNEL(name, element, accumulator, load, store, combine) */
#define KERNEL(name, element, acc_type, LOAD, STORE, COMBINE)                                                       \
    static void name(const void *const *in, int n, void *const *out, int m, uint64_t count, int stream)             \
    {                                                                                                               \
        enum { N = BLOCK / sizeof(acc_type) };                                                                      \
        acc_type acc[N] __attribute__((aligned(64)));                                                               \
        element result[N] __attribute__((aligned(64)));                                                             \
        for (uint64_t at = 0; at < count; at += N) {                                                                \
            uint64_t k = count - at < N ? count - at : N;                                                           \
            const element *a = (const element *)in[0] + at, *b = n > 1 ? (const element *)in[1] + at : a;           \
            for (uint64_t i = 0; n > 1 && i < k; i++)                                                               \
                acc[i] = COMBINE((acc_type)LOAD(a[i]), (acc_type)LOAD(b[i]));                                       \
            for (uint64_t i = 0; n == 1 && i < k; i++)                                                              \
                acc[i] = LOAD(a[i]);                                                                                \
            int s = 2;                                                                                              \
            for (; s + 1 < n; s += 2) {                                                                             \
                const element *x = (const element *)in[s] + at, *y = (const element *)in[s + 1] + at;               \
                for (uint64_t i = 0; i < k; i++) {                                                                  \
                    acc_type first = COMBINE(acc[i], (acc_type)LOAD(x[i]));                                         \
                    acc[i] = COMBINE(first, (acc_type)LOAD(y[i]));                                                  \
                }                                                                                                   \
            }                                                                                                       \
            for (; s < n; s++) {                                                                                    \
                const element *x = (const element *)in[s] + at;                                                     \
                for (uint64_t i = 0; i < k; i++)                                                                    \
                    acc[i] = COMBINE(acc[i], (acc_type)LOAD(x[i]));                                                 \
            }                                                                                                       \
            for (uint64_t i = 0; i < k; i++)                                                                        \
                result[i] = STORE(acc[i]);                                                                          \
            write_all(result, out, m, at * sizeof(element), k * sizeof(element), stream);                           \
        }                                                                                                           \
    }

KERNEL(sum_f32, f32, float, SAME, SAME, SUM)
KERNEL(max_f32, f32, float, SAME, SAME, MAX_NAN)
KERNEL(sum_bf16, bf16, float, widen, narrow, SUM)
KERNEL(max_bf16, bf16, float, widen, narrow, MAX_NAN)
KERNEL(sum_f64, f64, double, SAME, SAME, SUM)
KERNEL(max_f64, f64, double, SAME, SAME, MAX_NAN)
KERNEL(sum_i32, i32, int32_t, SAME, SAME, SUM_I32)
KERNEL(max_i32, i32, int32_t, SAME, SAME, MAX)
KERNEL(sum_i64, i64, int64_t, SAME, SAME, SUM_I64)
KERNEL(max_i64, i64, int64_t, SAME, SAME, MAX)

typedef void kernel(const void *const *in, int n, void *const *out, int m, uint64_t count, int stream);

static void reduce(uint32_t dtype, uint32_t red, const void *const *in, int n, void *const *out, int m, uint64_t count,
                   int stream)
{
    static kernel *const sums[] = { [TN_F32] = sum_f32, [TN_BF16] = sum_bf16, [TN_F64] = sum_f64, [TN_I32] = sum_i32,
                                    [TN_I64] = sum_i64 };
    static kernel *const maxima[] = { [TN_F32] = max_f32, [TN_BF16] = max_bf16, [TN_F64] = max_f64, [TN_I32] = max_i32,
                                      [TN_I64] = max_i64 };
    (red == TN_RED_MAX ? maxima : sums)[dtype](in, n, out, m, count, stream);
    if (stream)
        end_stores();
}

static void copy(const void *in, void *const *out, int m, uint64_t bytes, int stream)
{
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        uint64_t k = bytes - at < BLOCK ? bytes - at : BLOCK;
        write_all((const char *)in + at, out, m, at, k, stream);
    }
    if (stream)
        end_stores();
}

#define JOIN(a, b) a##b
#define LEVEL_NAME(level) JOIN(shm_kernels_, level)
#define TEXT(x) #x
#define LEVEL_TEXT(level) TEXT(level)

extern const struct shm_kernels LEVEL_NAME(SHM_LEVEL);
const struct shm_kernels LEVEL_NAME(SHM_LEVEL) = { LEVEL_TEXT(SHM_LEVEL), reduce, copy };
