/* Attention tiles: vectors, packing and small products under attention_core.c, for the instruction level that the
 * file is compiled for.
 *
 * A "word" is 32 bits: one f32, or where the processor multiplies bf16 pairs, two bf16 that are neighbours along the
 * contraction. So one product serves both: c [m, n] f32 += sum over words k of a [m, k] * b [k, n]. Tiles are dense and
 * padded with zeros: rows to a multiple of 4, columns to a multiple of 16. */
#ifndef TENON_CPU_ATTENTION_TILE_H
#define TENON_CPU_ATTENTION_TILE_H

#include <stdint.h>
#include <string.h>

#include "attention.h"
#include "vec_math.h"

#if defined(__AVX512F__)
enum { LANES = 16, MOST_VECTORS = 4 };
#elif defined(__AVX2__)
enum { LANES = 8, MOST_VECTORS = 2 };
#else
enum { LANES = 4, MOST_VECTORS = 2 };
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

enum { TILE = CPU_ATTENTION_TILE, ROWS = 4 /* of a product's block */, STRIP = 16 };

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t word __attribute__((may_alias));
typedef float vec_memory __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vec vec_load(const float *p)
{
    return *(const vec_memory *)p;
}

INLINE void vec_store(float *p, vec v)
{
    *(vec_memory *)p = v;
}

INLINE vec vec_all(float x)
{
    return (vec){ 0 } + x;
}

/* The larger; b where one is no number. */
INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ivec larger = a > b;
    return (vec)(((ivec)a & larger) | ((ivec)b & ~larger));
#endif
}

INLINE float vec_sum(vec v)
{
    vec4 part[LANES / 4];
    memcpy(part, &v, sizeof v);
    for (int n = 1; n < LANES / 4; n++)
        part[0] += part[n];
    return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
}

INLINE float larger(float a, float b)
{
    return a > b ? a : b;
}

INLINE float vec_largest(vec v)
{
    float part[LANES];
    vec_store(part, v);
    for (int half = LANES / 2; half > 4; half /= 2) {
        for (int n = 0; n < half; n++)
            part[n] = larger(part[n], part[n + half]);
    }
    for (int n = 0; n < 4 && LANES > 4; n++)
        part[n] = larger(part[n], part[n + 4]);
    return larger(larger(part[0], part[2]), larger(part[1], part[3]));
}

/* 2^x for x up to 127, of which powers below -127 are 0: there f is 0, p 1, and the exponent's bits cancel. Between
 * -127 and -126 it is off by less than 2^-126. Taylor's series over [-1/2, 1/2]: relative error 2e-7. */
INLINE vec vec_exp2(vec x)
{
    x = vec_max(vec_all(-127.0f), x);
    vec shifted = x + ROUNDER;
    vec f = x - (shifted - ROUNDER);
    vec p = f * 1.54035304e-4f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    return (vec)((ivec)p + ((ivec)shifted << 23));
}

/* --- products --- */

INLINE vec multiply_add(int pairs, uint32_t a, vec b, vec c)
{
#if HAS_PAIRS
    if (pairs)
        return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#endif
    return b * float_of(a) + c;
}

/* ROWS rows and `vectors` vectors of columns of c. */
INLINE void multiply_block(int pairs, int vectors, float *c, int64_t c_row, const word *a, int64_t a_row,
                           int64_t a_col, const float *b, int64_t b_row, int k_end, int add)
{
    vec sum[ROWS][MOST_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++)
            sum[r][n] = add ? vec_load(c + r * c_row + n * LANES) : (vec){ 0 };
    }
    for (int k = 0; k < k_end; k++, a += a_col, b += b_row) {
        vec right[MOST_VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++)
            right[n] = vec_load(b + n * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            uint32_t left = a[r * a_row];
#pragma GCC unroll 4
            for (int n = 0; n < vectors; n++)
                sum[r][n] = multiply_add(pairs, left, right[n], sum[r][n]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vectors; n++)
            vec_store(c + r * c_row + n * LANES, sum[r][n]);
    }
}

/* c (+)= a b; word (m, k) of a at m * a_row + k * a_col. */
struct product {
    float *c;
    const word *a, *b;
    int64_t c_row, a_row, a_col, b_row;
    int m, n, k, add;
};

INLINE void multiply_columns(int pairs, int vectors, const struct product *p, int column)
{
    for (int m = 0; m < p->m; m += ROWS)
        multiply_block(pairs, vectors, p->c + m * p->c_row + column, p->c_row, p->a + m * p->a_row, p->a_row,
                       p->a_col, (const float *)(const void *)p->b + column, p->b_row, p->k, p->add);
}

/* A panel of b's columns at a time, which stays in the first cache. */
INLINE void multiply_panels(int pairs, const struct product *p)
{
    for (int n = 0, vectors; n < p->n; n += vectors * LANES) {
        vectors = (p->n - n) / LANES;
        vectors = vectors < MOST_VECTORS ? vectors : MOST_VECTORS;
        if (vectors == MOST_VECTORS)
            multiply_columns(pairs, MOST_VECTORS, p, n);
        else if (MOST_VECTORS > 3 && vectors == 3)
            multiply_columns(pairs, MOST_VECTORS > 3 ? 3 : 1, p, n);
        else if (MOST_VECTORS > 2 && vectors == 2)
            multiply_columns(pairs, 2, p, n);
        else
            multiply_columns(pairs, 1, p, n);
    }
}

static __attribute__((noinline)) void multiply_words(const struct product *p)
{
    multiply_panels(0, p);
}

#if HAS_PAIRS
static __attribute__((noinline)) void multiply_pairs(const struct product *p)
{
    multiply_panels(1, p);
}
#else
#define multiply_pairs multiply_words
#endif

INLINE void multiply(int pairs, const struct product *p)
{
    if (pairs)
        multiply_pairs(p);
    else
        multiply_words(p);
}

/* What a product with a triangle leaves out, in strips of rows of c: its columns behind the diagonal, or the words of
 * the contraction behind the diagonal or before it. */
enum triangle { WHOLE, COLUMNS_TO, WORDS_TO, WORDS_FROM };

INLINE void multiply_tile(int pairs, enum triangle triangle, struct product p)
{
    if (triangle == WHOLE) {
        multiply(pairs, &p);
        return;
    }
    for (int m = 0; m < p.m; m += STRIP) {
        struct product strip = p;
        int from = pairs ? m / 2 : m, to = pairs ? (m + STRIP) / 2 : m + STRIP;
        strip.m = p.m - m < STRIP ? p.m - m : STRIP;
        strip.c += m * p.c_row;
        strip.a += m * p.a_row;
        if (triangle == COLUMNS_TO && m + STRIP < p.n)
            strip.n = m + STRIP;
        if (triangle == WORDS_TO && to < p.k)
            strip.k = to;
        if (triangle == WORDS_FROM) {
            strip.a += from * p.a_col;
            strip.b += from * p.b_row;
            strip.k = p.k - from;
        }
        if (strip.k > 0)
            multiply(pairs, &strip);
    }
}

/* --- packing: tiles of TILE rows from tensors whose rows lie `stride` elements apart --- */

/* Rows of one head in a tensor. */
struct rows {
    const char *data;
    int64_t stride; /* elements */
    int count, head_dim, bf16;
};

INLINE const void *row_at(const struct rows *rows, int r)
{
    return rows->data + r * rows->stride * (rows->bf16 ? 2 : 4);
}

/* Words of a row along head_dim. */
INLINE int words_of(int pairs, int head_dim)
{
    return pairs ? (head_dim + 1) / 2 : head_dim;
}

INLINE uint32_t word_at(int pairs, const void *row, int index, int head_dim, int bf16)
{
    if (!pairs)
        return bits_of(load(row, index, bf16));
    const uint16_t *halves = row;
    return halves[2 * index] | (2 * index + 1 < head_dim ? (uint32_t)halves[2 * index + 1] << 16 : 0);
}

/* to [TILE, words]: the left side of a product over head_dim. */
INLINE void pack_left(int pairs, word *to, const struct rows *rows)
{
    int words = words_of(pairs, rows->head_dim);
    for (int r = 0; r < TILE; r++, to += words) {
        if (r >= rows->count) {
            memset(to, 0, (size_t)words * 4);
            continue;
        }
        const void *row = row_at(rows, r);
        for (int w = 0; w < words; w++)
            to[w] = word_at(pairs, row, w, rows->head_dim, rows->bf16);
    }
}

/* to [words, TILE]: the right side of a product over head_dim. */
INLINE void pack_across(int pairs, word *to, const struct rows *rows)
{
    int words = words_of(pairs, rows->head_dim);
    if (rows->count < TILE)
        memset(to, 0, (size_t)words * TILE * 4);
    for (int r = 0; r < rows->count; r++) {
        const void *row = row_at(rows, r);
        for (int w = 0; w < words; w++)
            to[w * TILE + r] = word_at(pairs, row, w, rows->head_dim, rows->bf16);
    }
}

/* to [TILE, width], or [TILE / 2, width] in pairs of rows: the right side of a product over the rows. */
INLINE void pack_right(int pairs, word *to, const struct rows *rows, int width)
{
    int step = pairs ? 2 : 1, head_dim = rows->head_dim;
    for (int r = 0; r < TILE; r += step, to += width) {
        int filled = r < rows->count ? head_dim : 0;
        const void *row = row_at(rows, r);
        if (!pairs) {
            for (int n = 0; n < filled; n++)
                to[n] = bits_of(load(row, n, rows->bf16));
        } else {
            const uint16_t *even = row, *odd = r + 1 < rows->count ? row_at(rows, r + 1) : NULL;
            for (int n = 0; n < filled; n++)
                to[n] = even[n] | (odd ? (uint32_t)odd[n] << 16 : 0);
        }
        memset(to + filled, 0, (size_t)(width - filled) * 4);
    }
}

/* One row of f32 to the left side of a product over its columns; in place where they are f32 already. */
INLINE void pack_row(int pairs, void *to, int column, vec v)
{
#if HAS_PAIRS
    if (pairs) {
        _mm256_storeu_si256((__m256i *)((uint16_t *)to + column), (__m256i)_mm512_cvtneps_pbh((__m512)v));
        return;
    }
#endif
    vec_store((float *)to + column, v);
}

/* Two rows to the left side, transposed, of a product over the rows: pairs of rows, or the rows as they are. */
INLINE void pack_two_rows(int pairs, word *to, int64_t to_row, vec even, vec odd)
{
#if HAS_PAIRS
    if (pairs) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)even));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)odd));
        _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        return;
    }
#endif
    vec_store((float *)to, even);
    vec_store((float *)to + to_row, odd);
}

#endif
