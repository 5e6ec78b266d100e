/* Vec, softmax over long rows, and the optimizers; included by vec_level.c only. */
#ifndef TENON_CPU_VEC_LOSS_H
#define TENON_CPU_VEC_LOSS_H

#include <math.h>

#include "vec_pointwise.h"

enum { RUN = 1024 }; /* elements that stay in the first cache between two passes, and of one f32 sum */

/* --- rows of logits --- */

/* Floats in the order of signed integers: compilers make a vector maximum of these, and a NaN comes out on top. */
INLINE int32_t ordered(uint32_t bits)
{
    return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu));
}

INLINE float row_max(const void *x, int64_t from, int64_t to, int bf16)
{
    int32_t top = ordered(bits_of(-INFINITY));
#pragma omp simd reduction(max : top)
    for (int64_t i = from; i < to; i++) {
        int32_t value = ordered(bits_of(load(x, i, bf16)));
        top = value > top ? value : top;
    }
    return float_of((uint32_t)ordered((uint32_t)top));
}

static float max_f32(const void *x, int64_t n)
{
    return row_max(x, 0, n, 0);
}

static float max_bf16(const void *x, int64_t n)
{
    return row_max(x, 0, n, 1);
}

INLINE float run_exp(const void *x, int64_t from, int64_t to, float m, int bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = from; i < to; i++)
        sum += exp_of(load(x, i, bf16) - m);
    return sum;
}

INLINE double sum_exp(const void *x, float m, int64_t n, int bf16)
{
    double z = 0;
    for (int64_t from = 0; from < n; from += RUN)
        z += run_exp(x, from, n - from < RUN ? n : from + RUN, m, bf16);
    return z;
}

static double sum_exp_f32(const void *x, float m, int64_t n)
{
    return sum_exp(x, m, n, 0);
}

static double sum_exp_bf16(const void *x, float m, int64_t n)
{
    return sum_exp(x, m, n, 1);
}

/* Milakov and Gimelshein 2018: the sum is rescaled whenever a run raises the maximum. */
INLINE void online_softmax(const void *x, int64_t n, float *m, double *z, int bf16)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t from = 0; from < n; from += RUN) {
        int64_t to = n - from < RUN ? n : from + RUN;
        float run = row_max(x, from, to, bf16);
        if (run > top) {
            sum *= exp((double)top - (double)run);
            top = run;
        }
        float base = top == -INFINITY ? 0.0f : top; /* nothing but -infinity so far */
        sum += run_exp(x, from, to, base, bf16);
    }
    *m = top;
    *z = sum;
}
BOTH(online_softmax, (const void *x, int64_t n, float *m, double *z), x, n, m, z)

INLINE void softmax(void *y, const void *x, float lse, float s, int64_t n, int bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store(y, i, exp_of(load(x, i, bf16) - lse) * s, bf16);
}
BOTH(softmax, (void *y, const void *x, float lse, float s, int64_t n), y, x, lse, s, n)

/* --- optimizer --- */

static double sumsq(const float *x, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += RUN) {
        int64_t to = n - from < RUN ? n : from + RUN;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < to; i++)
            sum += x[i] * x[i];
        total += (double)sum;
    }
    return total;
}

static void adamw(const struct cpu_vec_adamw *a, float *p, float *m, float *v, const float *g, int64_t n)
{
    const struct cpu_vec_adamw s = *a;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * s.factor;
        float first = s.beta1 * m[i] + s.one_minus_beta1 * d;
        float second = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
        m[i] = first;
        v[i] = second;
        p[i] = p[i] * s.keep - s.step * first / (sqrtf(second) * s.inv_sqrt_c2 + s.eps);
    }
}

static void sgd(float lr, float momentum, float factor, float decay, float *p, float *m, const float *g, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float move = momentum * m[i] + factor * g[i] + decay * p[i];
        m[i] = move;
        p[i] -= lr * move;
    }
}

#endif
