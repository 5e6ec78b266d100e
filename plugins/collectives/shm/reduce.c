/* The kernels: sum or maximum of n sources into m destinations, and copies to m destinations.
 *
 * The file is compiled once for each CPU level (SHM_LEVEL names it); the vectors are GCC's
 * generic ones, pick.c chooses at run time. Each source is read once, each destination written
 * once, side by side, so that the memory system sees all streams at a time. Every element is
 * ((s0 + s1) + s2) + ..., in fp32 for bf16: the same bits whatever the level and the cut. */
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "shm.h"

enum { LANES = 16 /* of 32 bits */, LINE_BYTES = 64, AHEAD = 8 * 64 /* of the sources, asked for in advance */ };

typedef float f32_vec __attribute__((vector_size(LANES * 4)));
typedef uint32_t u32_vec __attribute__((vector_size(LANES * 4)));
typedef int32_t i32_vec __attribute__((vector_size(LANES * 4)));
typedef uint16_t u16_vec __attribute__((vector_size(LANES * 2)));
typedef double f64_vec __attribute__((vector_size(LANES * 4)));
typedef uint64_t u64_vec __attribute__((vector_size(LANES * 4)));
typedef int64_t i64_vec __attribute__((vector_size(LANES * 4)));

#define ALWAYS static inline __attribute__((always_inline))

/* ---- stores ---- */

/* Past the cache: the destination is neither read first nor kept. `to` is aligned to a line. */
ALWAYS void store_past(char *to, const void *from, size_t bytes)
{
#if defined(__AVX512F__)
    if (bytes % 64 == 0) {
        for (size_t k = 0; k < bytes; k += 64)
            _mm512_stream_si512((void *)(to + k), _mm512_loadu_si512((const char *)from + k));
        return;
    }
#endif
#if defined(__SSE2__)
    for (size_t k = 0; k < bytes; k += 16)
        _mm_stream_si128((__m128i *)(to + k), _mm_loadu_si128((const __m128i *)((const char *)from + k)));
#else
    memcpy(to, from, bytes);
#endif
}

/* Such stores are not ordered with the one that says "done". */
ALWAYS void end_stores(int stream)
{
#if defined(__SSE2__)
    if (stream)
        _mm_sfence();
#endif
}

static int are_aligned(void *const *out, int m)
{
    uintptr_t bits = 0;
    for (int i = 0; i < m; i++)
        bits |= (uintptr_t)out[i];
    return bits % LINE_BYTES == 0;
}

/* ---- types: `load` gives accumulators, `store` elements ---- */

/* To nearest, ties to even; a NaN stays one. */
ALWAYS u16_vec narrow(f32_vec f)
{
    u32_vec bits, rounded, nan, is_nan;
    memcpy(&bits, &f, sizeof bits);
    rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    nan = bits >> 16 | 0x40u;
    is_nan = (u32_vec)((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), u16_vec);
}

ALWAYS f32_vec widen(u16_vec h)
{
    u32_vec bits = __builtin_convertvector(h, u32_vec) << 16;
    f32_vec f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#define SAME(x) (x)
#define SUM(type, mask, a, b) ((a) + (b))
/* Bitwise choice; a NaN anywhere gives NaN. */
#define MAX(type, mask, a, b) choose_##type((mask)(((b) > (a)) | ((b) != (b))), a, b)

#define CHOOSE(type, mask)                                 \
    ALWAYS type choose_##type(mask second, type a, type b) \
    {                                                      \
        mask x, y;                                         \
        memcpy(&x, &a, sizeof x);                          \
        memcpy(&y, &b, sizeof y);                          \
        x = (second & y) | (~second & x);                  \
        memcpy(&a, &x, sizeof a);                          \
        return a;                                          \
    }
CHOOSE(f32_vec, u32_vec)
CHOOSE(f64_vec, u64_vec)
CHOOSE(i32_vec, u32_vec)
CHOOSE(i64_vec, u64_vec)

/* ---- one kernel a type and reduction ---- */

/* `bytes` of elements at `at`, from n sources to m destinations. acc: the accumulators' type,
 * raw: the elements' (unsigned for integer sums, which wrap round). */
#define KERNEL(name, raw, acc_type, mask, LOAD, STORE, COMBINE)                                                 \
    ALWAYS void name##_line(const void *const *in, int n, void *const *out, int m, uint64_t at, size_t bytes,   \
                            int stream)                                                                         \
    {                                                                                                           \
        raw x = { 0 };                                                                                          \
        memcpy(&x, (const char *)in[0] + at, bytes);                                                            \
        acc_type acc = LOAD(x);                                                                                 \
        for (int s = 1; s < n; s++) {                                                                           \
            memcpy(&x, (const char *)in[s] + at, bytes);                                                        \
            acc_type y = LOAD(x);                                                                               \
            acc = COMBINE(acc_type, mask, acc, y);                                                              \
        }                                                                                                       \
        raw z = STORE(acc);                                                                                     \
        for (int i = 0; i < m; i++) {                                                                           \
            if (stream)                                                                                         \
                store_past((char *)out[i] + at, &z, bytes);                                                     \
            else                                                                                                \
                memcpy((char *)out[i] + at, &z, bytes);                                                         \
        }                                                                                                       \
    }                                                                                                           \
    ALWAYS void name##_lines(const void *const *in, int n, void *const *out, int m, uint64_t bytes, int stream) \
    {                                                                                                           \
        uint64_t at = 0;                                                                                        \
        const void *sources[8];                                                                                 \
        void *destinations[8];                                                                                  \
        for (int i = 0; i < n && n <= 8; i++)                                                                   \
            sources[i] = in[i];                                                                                 \
        for (int i = 0; i < m && m <= 8; i++)                                                                   \
            destinations[i] = out[i];                                                                           \
        for (; at + sizeof(raw) <= bytes; at += sizeof(raw)) {                                                  \
            for (int s = 0; s < n && AHEAD > 0; s++)                                                            \
                __builtin_prefetch((const char *)(n <= 8 ? sources : in)[s] + at + AHEAD);                      \
            name##_line(n <= 8 ? sources : in, n, m <= 8 ? destinations : out, m, at, sizeof(raw), stream);     \
        }                                                                                                       \
        if (at < bytes)                                                                                         \
            name##_line(in, n, out, m, at, bytes - at, 0);                                                      \
    }                                                                                                           \
    static void name(const void *const *in, int n, void *const *out, int m, uint64_t bytes, int stream)         \
    {                                                                                                           \
        if (stream)                                                                                             \
            name##_lines(in, n, out, m, bytes, 1);                                                              \
        else if (n == 2 && m == 2)                                                                              \
            name##_lines(in, 2, out, 2, bytes, 0);                                                              \
        else if (n == 4 && m == 4)                                                                              \
            name##_lines(in, 4, out, 4, bytes, 0);                                                              \
        else if (n == 8 && m == 8)                                                                              \
            name##_lines(in, 8, out, 8, bytes, 0);                                                              \
        else                                                                                                    \
            name##_lines(in, n, out, m, bytes, 0);                                                              \
    }

KERNEL(sum_f32, f32_vec, f32_vec, u32_vec, SAME, SAME, SUM)
KERNEL(max_f32, f32_vec, f32_vec, u32_vec, SAME, SAME, MAX)
KERNEL(sum_bf16, u16_vec, f32_vec, u32_vec, widen, narrow, SUM)
KERNEL(max_bf16, u16_vec, f32_vec, u32_vec, widen, narrow, MAX)
KERNEL(sum_f64, f64_vec, f64_vec, u64_vec, SAME, SAME, SUM)
KERNEL(max_f64, f64_vec, f64_vec, u64_vec, SAME, SAME, MAX)
KERNEL(sum_i32, u32_vec, u32_vec, u32_vec, SAME, SAME, SUM)
KERNEL(max_i32, i32_vec, i32_vec, u32_vec, SAME, SAME, MAX)
KERNEL(sum_i64, u64_vec, u64_vec, u64_vec, SAME, SAME, SUM)
KERNEL(max_i64, i64_vec, i64_vec, u64_vec, SAME, SAME, MAX)

typedef void kernel(const void *const *in, int n, void *const *out, int m, uint64_t bytes, int stream);

static void reduce(uint32_t dtype, uint32_t red, const void *const *in, int n, void *const *out, int m, uint64_t count,
                   int stream)
{
    static const struct {
        kernel *sum, *max;
        uint32_t bytes;
    } kernels[] = { [TN_F32] = { sum_f32, max_f32, 4 },
                    [TN_BF16] = { sum_bf16, max_bf16, 2 },
                    [TN_F64] = { sum_f64, max_f64, 8 },
                    [TN_I32] = { sum_i32, max_i32, 4 },
                    [TN_I64] = { sum_i64, max_i64, 8 } };
    stream = stream && are_aligned(out, m);
    kernel *k = red == TN_RED_MAX ? kernels[dtype].max : kernels[dtype].sum;
    k(in, n, out, m, count * kernels[dtype].bytes, stream);
    end_stores(stream);
}

static void copy(const void *in, void *const *out, int m, uint64_t bytes, int stream)
{
    stream = stream && are_aligned(out, m);
    if (m == 1 && !stream) {
        memcpy(out[0], in, bytes);
        return;
    }
    uint64_t at = 0;
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        u32_vec line;
        memcpy(&line, (const char *)in + at, sizeof line);
        for (int i = 0; i < m; i++) {
            if (stream)
                store_past((char *)out[i] + at, &line, sizeof line);
            else
                memcpy((char *)out[i] + at, &line, sizeof line);
        }
    }
    for (int i = 0; i < m && at < bytes; i++)
        memcpy((char *)out[i] + at, (const char *)in + at, bytes - at);
    end_stores(stream);
}

#define JOIN(a, b) a##b
#define LEVEL_NAME(level) JOIN(shm_kernels_, level)
#define TEXT(x) #x
#define LEVEL_TEXT(level) TEXT(level)

extern const struct shm_kernels LEVEL_NAME(SHM_LEVEL);
const struct shm_kernels LEVEL_NAME(SHM_LEVEL) = { LEVEL_TEXT(SHM_LEVEL), reduce, copy };
