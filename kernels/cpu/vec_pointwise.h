/* Vec, elementwise part: dtypes, activations, rope, dropout; included by vec_level.c only.
 *
 * Each function is written once with the dtype as a constant last argument and stamped out for both by BOTH. `omp
 * simd` tells the compiler what it cannot see: memory is either the same, element for element, or apart. */
#ifndef TENON_CPU_VEC_POINTWISE_H
#define TENON_CPU_VEC_POINTWISE_H

#include "philox.h"
#include "vec.h"
#include "vec_math.h"

#define BOTH(name, params, ...)    \
    static void name##_f32 params  \
    {                              \
        name(__VA_ARGS__, 0);      \
    }                              \
    static void name##_bf16 params \
    {                              \
        name(__VA_ARGS__, 1);      \
    }

/* --- dtypes --- */

INLINE void to_f32(float *y, const void *x, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = load(x, i, bf16);
}
BOTH(to_f32, (float *y, const void *x, int64_t n), y, x, n)

INLINE void from_f32(void *y, const float *x, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, x[i], bf16);
}
BOTH(from_f32, (void *y, const float *x, int64_t n), y, x, n)

static void f16_to_f32(float *y, const void *x, int64_t n)
{
    const uint16_t *half = x;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = f16_load(half[i]);
}

static void f16_from_f32(void *y, const float *x, int64_t n)
{
    uint16_t *half = y;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        half[i] = f16_of(x[i]);
}

/* --- sums --- */

INLINE void add(void *y, const void *a, const void *b, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, load(a, i, bf16) + load(b, i, bf16), bf16);
}
BOTH(add, (void *y, const void *a, const void *b, int64_t n), y, a, b, n)

INLINE void accumulate(float *y, const float *acc, const void *x, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = acc[i] + load(x, i, bf16);
}
BOTH(accumulate, (float *y, const float *acc, const void *x, int64_t n), y, acc, x, n)

INLINE void scale(void *y, const void *x, float s, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, load(x, i, bf16) * s, bf16);
}
BOTH(scale, (void *y, const void *x, float s, int64_t n), y, x, s, n)

INLINE void bias_add(void *y, const void *x, const float *b, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, load(x, i, bf16) + b[i], bf16);
}
BOTH(bias_add, (void *y, const void *x, const float *b, int64_t n), y, x, b, n)

/* --- gelu, with and without its bias; `tanh` chooses the form --- */

INLINE void gelu(void *y, const void *x, int64_t n, int tanh, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, gelu_of(load(x, i, bf16), tanh), bf16);
}

INLINE void bias_gelu(void *y, const void *x, const float *b, int64_t n, int tanh, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, gelu_of(load(x, i, bf16) + b[i], tanh), bf16);
}

INLINE void gelu_dx(void *dx, const void *dy, const void *x, int64_t n, int tanh, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(dx, i, load(dy, i, bf16) * gelu_slope(load(x, i, bf16), tanh), bf16);
}

#define BOTH_FORMS(name, params, ...)   \
    static void name##_erf_f32 params   \
    {                                   \
        name(__VA_ARGS__, 0, 0);        \
    }                                   \
    static void name##_erf_bf16 params  \
    {                                   \
        name(__VA_ARGS__, 0, 1);        \
    }                                   \
    static void name##_tanh_f32 params  \
    {                                   \
        name(__VA_ARGS__, 1, 0);        \
    }                                   \
    static void name##_tanh_bf16 params \
    {                                   \
        name(__VA_ARGS__, 1, 1);        \
    }

BOTH_FORMS(gelu, (void *y, const void *x, int64_t n), y, x, n)
BOTH_FORMS(bias_gelu, (void *y, const void *x, const float *b, int64_t n), y, x, b, n)
BOTH_FORMS(gelu_dx, (void *dx, const void *dy, const void *x, int64_t n), dx, dy, x, n)

/* --- swiglu --- */

INLINE void swiglu(void *y, const void *g, const void *u, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float gate = load(g, i, bf16), other;
        store(y, i, gate * sigmoid(gate, &other) * load(u, i, bf16), bf16);
    }
}
BOTH(swiglu, (void *y, const void *g, const void *u, int64_t n), y, g, u, n)

INLINE void swiglu_dx(void *dg, void *du, const void *dy, const void *g, const void *u, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float gate = load(g, i, bf16), up = load(u, i, bf16), d = load(dy, i, bf16), other;
        float s = sigmoid(gate, &other);
        store(dg, i, d * up * s * (1.0f + gate * other), bf16);
        store(du, i, d * gate * s, bf16);
    }
}
BOTH(swiglu_dx, (void *dg, void *du, const void *dy, const void *g, const void *u, int64_t n), dg, du, dy, g, u, n)

/* --- rope --- */

static void rope_angles(float *cosine, float *sine, const double *frequency, double pos, int64_t half)
{
#pragma omp simd
    for (int64_t i = 0; i < half; i++)
        sine_cosine(pos * frequency[i], &sine[i], &cosine[i]);
}

INLINE void rope(void *y, const void *x, const float *cosine, const float *sine, int64_t half, int64_t heads, int bf16)
{
    for (int64_t head = 0, low = 0; head < heads; head++, low += 2 * half) {
        int64_t high = low + half;
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            float a = load(x, low + i, bf16), b = load(x, high + i, bf16);
            store(y, low + i, a * cosine[i] - b * sine[i], bf16);
            store(y, high + i, b * cosine[i] + a * sine[i], bf16);
        }
    }
}
BOTH(rope, (void *y, const void *x, const float *cosine, const float *sine, int64_t half, int64_t heads), y, x, cosine,
     sine, half, heads)

/* --- dropout --- */

enum { DRAW_BLOCKS = 32 }; /* Philox blocks of 4 draws at a time */

/* cpu_philox on DRAW_BLOCKS counters at once, each word in a 64-bit lane so that products need no widening. */
static void draw(uint32_t *draws, uint64_t key, uint64_t hi, uint64_t block)
{
    const uint64_t low = 0xffffffffu;
    uint64_t c0[DRAW_BLOCKS], c1[DRAW_BLOCKS], c2[DRAW_BLOCKS], c3[DRAW_BLOCKS], k0 = key & low, k1 = key >> 32;
    for (int i = 0; i < DRAW_BLOCKS; i++) {
        c0[i] = (block + (uint64_t)i) & low;
        c1[i] = (block + (uint64_t)i) >> 32;
        c2[i] = hi & low;
        c3[i] = hi >> 32;
    }
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int i = 0; i < DRAW_BLOCKS; i++) {
            uint64_t a = 0xD2511F53u * c0[i], b = 0xCD9E8D57u * c2[i];
            c0[i] = b >> 32 ^ c1[i] ^ k0;
            c1[i] = b & low;
            c2[i] = a >> 32 ^ c3[i] ^ k1;
            c3[i] = a & low;
        }
        k0 = (k0 + 0x9E3779B9u) & low;
        k1 = (k1 + 0xBB67AE85u) & low;
    }
    for (int i = 0; i < DRAW_BLOCKS; i++) {
        draws[4 * i] = (uint32_t)c0[i];
        draws[4 * i + 1] = (uint32_t)c1[i];
        draws[4 * i + 2] = (uint32_t)c2[i];
        draws[4 * i + 3] = (uint32_t)c3[i];
    }
}

INLINE void dropout(void *y, const void *x, const struct cpu_vec_dropout *d, uint64_t index, int64_t n, int bf16)
{
    uint32_t draws[4 * DRAW_BLOCKS];
    int64_t done = 0;
    while (done < n) {
        int64_t skip = (int64_t)(index % 4), run = 4 * DRAW_BLOCKS - skip;
        run = run < n - done ? run : n - done;
        draw(draws, d->key, d->hi, index / 4);
#pragma omp simd
        for (int64_t i = 0; i < run; i++) {
            float kept = load(x, done + i, bf16) * d->scale;
            store(y, done + i, draws[skip + i] >= d->threshold ? kept : 0.0f, bf16);
        }
        done += run;
        index += (uint64_t)run;
    }
}
BOTH(dropout, (void *y, const void *x, const struct cpu_vec_dropout *d, uint64_t index, int64_t n), y, x, d, index, n)

#endif
