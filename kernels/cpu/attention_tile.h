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

#if defined(__AMX_BF16__)
#include "amx.h"
#define HAS_TILES 1 /* tile registers multiply pairs */
#else
#define HAS_TILES 0
#endif

enum { TILE = CPU_ATTENTION_TILE, ROWS = 4 /* of a product's block */ };

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec4 __attribute__((vector_size(16)));
typedef float vec4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));
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

/* 2^x for x up to 127; below -126.5 it is 0, and what is no number stays so. Adding BIASED_ROUNDER rounds x to an
 * integer n and leaves n + 127, which is 2^n's exponent, in the low bits. Taylor's series over [-1/2, 1/2]: relative
 * error 2e-7. */
INLINE vec vec_exp2(vec x)
{
    const float BIASED_ROUNDER = ROUNDER + 127.0f;
    x = vec_max(vec_all(-127.0f), x);
    vec shifted = x + BIASED_ROUNDER;
    vec f = x - (shifted - BIASED_ROUNDER);
    vec p = f * 1.54035304e-4f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    return p * (vec)((uvec)shifted << 23);
}

/* --- products --- */

/* A word in all lanes. */
INLINE vec spread(int pairs, word a)
{
#if HAS_PAIRS
    if (pairs)
        return (vec)_mm512_set1_epi32((int)a);
#endif
    return vec_all(float_of(a));
}

INLINE vec multiply_add(int pairs, vec a, vec b, vec c)
{
#if HAS_PAIRS
    if (pairs)
        return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
    return a * b + c;
}

/* ROWS rows and `vectors` vectors of columns of c. */
INLINE void multiply_block(int pairs, int vectors, float *c, int64_t c_row, const word *a, int64_t a_row, int64_t a_col,
                           const float *b, int64_t b_row, int k_end, int add)
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
            vec left = spread(pairs, a[r * a_row]);
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
        multiply_block(pairs, vectors, p->c + m * p->c_row + column, p->c_row, p->a + m * p->a_row, p->a_row, p->a_col,
                       (const float *)(const void *)p->b + column, p->b_row, p->k, p->add);
}

/* Rows of a strip of a triangle; where tile registers multiply, a block of theirs. */
INLINE int strip_of(int pairs)
{
    return pairs && HAS_TILES ? 32 : 16;
}

/* Rows that a product does for so many: whole blocks. */
INLINE int rows_up(int pairs, int rows)
{
    int block = pairs && HAS_TILES ? strip_of(pairs) : ROWS;
    return (rows + block - 1) / block * block;
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

/* Around all products of pairs that a thread does. */
INLINE void pairs_begin(void)
{
#if HAS_TILES
    amx_begin();
#endif
}

INLINE void pairs_end(void)
{
#if HAS_TILES
    amx_end();
#endif
}

#if HAS_TILES
#include "attention_amx.h"
#elif HAS_PAIRS
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
    for (int m = 0, height = strip_of(pairs); m < p.m; m += height) {
        struct product strip = p;
        int from = pairs ? m / 2 : m, to = pairs ? (m + height) / 2 : m + height;
        strip.m = p.m - m < height ? p.m - m : height;
        strip.c += m * p.c_row;
        strip.a += m * p.a_row;
        if (triangle == COLUMNS_TO && m + height < p.n)
            strip.n = m + height;
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

/* Words from one row of a left side to the next: whole vectors of any level. */
INLINE int left_row_of(int pairs, int head_dim)
{
    return (words_of(pairs, head_dim) + 15) / 16 * 16;
}

INLINE void copy_row(word *to, const void *row, int n, int bf16)
{
    if (!bf16) {
        memcpy(to, row, (size_t)n * 4);
        return;
    }
    const uint16_t *halves = row;
    for (int i = 0; i < n; i++)
        to[i] = (uint32_t)halves[i] << 16;
}

/* to [TILE, left_row]: the left side of a product over head_dim. */
INLINE void pack_left(int pairs, word *to, const struct rows *rows)
{
    int row_words = left_row_of(pairs, rows->head_dim);
    size_t filled = (size_t)rows->head_dim * (pairs ? 2 : 4), bytes = (size_t)row_words * 4;
    for (int r = 0; r < rows->count; r++, to += row_words) {
        if (pairs)
            memcpy(to, row_at(rows, r), filled);
        else
            copy_row(to, row_at(rows, r), rows->head_dim, rows->bf16);
        memset((char *)to + filled, 0, bytes - filled);
    }
    memset(to, 0, bytes * (size_t)(TILE - rows->count));
}

/* Four words of four rows, to four rows of four words. */
INLINE void transpose_block(word *to, int64_t to_row, const word *from, int64_t from_row)
{
    vec4 a = *(const vec4_memory *)from, b = *(const vec4_memory *)(from + from_row);
    vec4 c = *(const vec4_memory *)(from + 2 * from_row), d = *(const vec4_memory *)(from + 3 * from_row);
    vec4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    vec4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(vec4_memory *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(vec4_memory *)(to + to_row) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(vec4_memory *)(to + 2 * to_row) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(vec4_memory *)(to + 3 * to_row) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* to [left_row, TILE], the right side of a product over head_dim, from the same rows packed as a left side. */
INLINE void pack_across(int pairs, word *to, const word *left, int head_dim)
{
    int row_words = left_row_of(pairs, head_dim);
    for (int w = 0; w < row_words; w += 4) {
        for (int r = 0; r < TILE; r += 4)
            transpose_block(to + w * TILE + r, TILE, left + r * row_words + w, row_words);
    }
}

/* to [TILE, width], or [TILE / 2, width] in pairs of rows: the right side of a product over the rows. */
INLINE void pack_right(int pairs, word *to, const struct rows *rows, int width)
{
    int step = pairs ? 2 : 1, head_dim = rows->head_dim;
    for (int r = 0; r < TILE; r += step, to += width) {
        int filled = r < rows->count ? head_dim : 0;
        const uint16_t *even = row_at(rows, r), *odd = row_at(rows, r + 1);
        if (!pairs)
            copy_row(to, even, filled, rows->bf16);
        for (int n = 0; pairs && n < filled; n++)
            to[n] = even[n];
        for (int n = 0; pairs && r + 1 < rows->count && n < head_dim; n++)
            to[n] |= (uint32_t)odd[n] << 16;
        memset(to + filled, 0, (size_t)(width - filled) * 4);
    }
}

/* Product of row r of one left side and row r of another. */
INLINE float dot_rows(int pairs, const word *a, const word *b, int r, int row_words)
{
    vec sum = { 0 };
    for (int w = r * row_words; w < (r + 1) * row_words; w += LANES)
        sum = multiply_add(pairs, vec_load((const float *)(const void *)(a + w)),
                           vec_load((const float *)(const void *)(b + w)), sum);
    return vec_sum(sum);
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
