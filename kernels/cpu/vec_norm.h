/* Vec, norms: one row forward or backward, and sums over rows; included by vec_level.c only.
 *
 * A row stays in the first cache between its passes, so memory is read once. */
#ifndef TENON_CPU_VEC_NORM_H
#define TENON_CPU_VEC_NORM_H

#include <math.h>

#include "vec_pointwise.h"

/* --- forward --- */

INLINE float row_sum(const void *x, int64_t n, int bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += load(x, i, bf16);
    return sum;
}

INLINE float row_squares(const void *x, int64_t n, int bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += load(x, i, bf16) * load(x, i, bf16);
    return sum;
}

/* Variance, about a mean that it corrects: a sum of large elements leaves the mean off by its rounding. */
INLINE float row_variance(const void *x, float *mean, int64_t n, int bf16)
{
    float centre = *mean, sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
    for (int64_t i = 0; i < n; i++) {
        float d = load(x, i, bf16) - centre;
        sum += d;
        squares += d * d;
    }
    float shift = sum / (float)n;
    *mean = centre + shift;
    return squares / (float)n - shift * shift;
}

/* The row that is normalised: a, or r = a + b as it is stored. */
INLINE const void *row_input(const struct cpu_vec_norm *row, int64_t n, int bf16)
{
    if (!row->b)
        return row->a;
    add(row->r, row->a, row->b, n, bf16);
    return row->r;
}

INLINE void layernorm(const struct cpu_vec_norm *row, int64_t n, int bf16)
{
    const void *x = row_input(row, n, bf16);
    const float *w = row->w, *bias = row->bias;
    void *y = row->y;
    float mean = row_sum(x, n, bf16) / (float)n;
    float rstd = 1.0f / sqrtf(row_variance(x, &mean, n, bf16) + row->eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, (load(x, i, bf16) - mean) * rstd * w[i] + bias[i], bf16);
    *row->mean = mean;
    *row->rstd = rstd;
}
BOTH(layernorm, (const struct cpu_vec_norm *row, int64_t n), row, n)

INLINE void rmsnorm(const struct cpu_vec_norm *row, int64_t n, int bf16)
{
    const void *x = row_input(row, n, bf16);
    const float *w = row->w;
    void *y = row->y;
    float rstd = 1.0f / sqrtf(row_squares(x, n, bf16) / (float)n + row->eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, load(x, i, bf16) * rstd * w[i], bf16);
    *row->rstd = rstd;
}
BOTH(rmsnorm, (const struct cpu_vec_norm *row, int64_t n), row, n)

/* --- backward, with d = dy w and h the normalised x:
 * layernorm  dx = rstd (d - mean(d) - h mean(d h));  rmsnorm  dx = rstd (d - h mean(d h)) --- */

INLINE void norm_dx(const struct cpu_vec_norm_dx *row, int64_t n, int centred, int bf16)
{
    const void *dy = row->dy, *x = row->x, *res = row->res;
    const float *w = row->w;
    float mean = centred ? row->mean : 0.0f, rstd = row->rstd, sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; i++) {
        float d = load(dy, i, bf16) * w[i];
        sum += d;
        dot += d * ((load(x, i, bf16) - mean) * rstd);
    }
    sum = centred ? sum / (float)n : 0.0f;
    dot /= (float)n;
    void *dx = row->dx;
    if (res) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float d = load(dy, i, bf16) * w[i], h = (load(x, i, bf16) - mean) * rstd;
            store(dx, i, rstd * (d - sum - h * dot) + load(res, i, bf16), bf16);
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = load(dy, i, bf16) * w[i], h = (load(x, i, bf16) - mean) * rstd;
        store(dx, i, rstd * (d - sum - h * dot), bf16);
    }
}

INLINE void layernorm_dx(const struct cpu_vec_norm_dx *row, int64_t n, int bf16)
{
    norm_dx(row, n, 1, bf16);
}
BOTH(layernorm_dx, (const struct cpu_vec_norm_dx *row, int64_t n), row, n)

INLINE void rmsnorm_dx(const struct cpu_vec_norm_dx *row, int64_t n, int bf16)
{
    norm_dx(row, n, 0, bf16);
}
BOTH(rmsnorm_dx, (const struct cpu_vec_norm_dx *row, int64_t n), row, n)

/* --- sums over rows: memory is read in its order, dw and db stay in the first caches --- */

/* db += dy; dw += dy (x - mean) rstd. Either may be left out, by constants. */
INLINE void norm_dw(const struct cpu_vec_columns *c, int64_t n, int with_w, int with_b, int centred, int bf16)
{
    float *dw = c->dw, *db = c->db;
    const void *dy = c->dy, *x = c->x;
    for (int64_t row = 0; row < c->rows; row++) {
        int64_t at = row * n;
        float mean = centred ? c->mean[row] : 0.0f, rstd = with_w ? c->rstd[row] : 0.0f;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float d = load(dy, at + i, bf16);
            if (with_w)
                dw[i] += d * ((load(x, at + i, bf16) - mean) * rstd);
            if (with_b)
                db[i] += d;
        }
    }
}

INLINE void bias_dw(const struct cpu_vec_columns *c, int64_t n, int bf16)
{
    norm_dw(c, n, 0, 1, 0, bf16);
}
BOTH(bias_dw, (const struct cpu_vec_columns *c, int64_t n), c, n)

INLINE void layernorm_dw(const struct cpu_vec_columns *c, int64_t n, int bf16)
{
    norm_dw(c, n, 1, 1, 1, bf16);
}
BOTH(layernorm_dw, (const struct cpu_vec_columns *c, int64_t n), c, n)

INLINE void rmsnorm_dw(const struct cpu_vec_columns *c, int64_t n, int bf16)
{
    norm_dw(c, n, 1, 0, 0, bf16);
}
BOTH(rmsnorm_dw, (const struct cpu_vec_columns *c, int64_t n), c, n)

/* dx = dy gelu'(x + b), and db its sum before it is rounded. */
INLINE void bias_gelu_dx(const struct cpu_vec_columns *c, int64_t n, int tanh, int bf16)
{
    float *db = c->db;
    const float *b = c->b;
    const void *dy = c->dy, *x = c->x;
    void *dx = c->dx;
    for (int64_t row = 0; row < c->rows; row++) {
        int64_t at = row * n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float d = load(dy, at + i, bf16) * gelu_slope(load(x, at + i, bf16) + b[i], tanh);
            store(dx, at + i, d, bf16);
            db[i] += d;
        }
    }
}
BOTH_FORMS(bias_gelu_dx, (const struct cpu_vec_columns *c, int64_t n), c, n)

#endif
