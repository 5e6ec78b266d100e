/* Vec math: scalar functions that compilers turn into vector code; included by vec_level.c only.
 *
 * No branch, no call, no table: range reduction, a polynomial fitted for f32, and bit moves. Relative errors, against
 * the mathematical function: exp 2e-7, normal CDF 5e-7 over both tails, sigmoid 3e-7, sine and cosine 1e-7 absolute. */
#ifndef TENON_CPU_VEC_MATH_H
#define TENON_CPU_VEC_MATH_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* --- dtypes --- */

/* To nearest even; a NaN stays one. */
INLINE uint16_t bf16_of(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t even = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)((x != x ? 0x7fc00000u : even) >> 16);
}

INLINE float load(const void *x, int64_t i, int bf16)
{
    return bf16 ? float_of((uint32_t)((const uint16_t *)x)[i] << 16) : ((const float *)x)[i];
}

INLINE void store(void *y, int64_t i, float value, int bf16)
{
    if (bf16)
        ((uint16_t *)y)[i] = bf16_of(value);
    else
        ((float *)y)[i] = value;
}

/* What a value is after a store and a load. */
INLINE float rounded(float value, int bf16)
{
    return bf16 ? float_of((uint32_t)bf16_of(value) << 16) : value;
}

/* A half's exponent and fraction moved to a float's place are off by 2^112; a subnormal half is a number of 2^-24. No
 * subnormal float comes up, which kernels take as zero (flush.h). */
INLINE float f16_load(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t subnormal = bits_of((float)(int32_t)(half & 0x3ffu) * 0x1p-24f);
    uint32_t bits = magnitude < 0x00800000u ? subnormal : magnitude + 0x38000000u;
    bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : bits; /* infinity and NaN */
    return float_of(bits | (uint32_t)(half & 0x8000u) << 16);
}

/* To nearest even. Subnormal halves: adding 0.5 leaves the float's last bit at the half's. */
INLINE uint16_t f16_of(float x)
{
    uint32_t sign = bits_of(x) & 0x80000000u, magnitude = bits_of(x) & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? tiny : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* rounds to 65536 or more */
    half = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : half;
    return (uint16_t)(half | sign >> 16);
}

/* --- exponentials --- */

static const float ROUNDER = 12582912.0f; /* 1.5 2^23: adding it rounds to an integer, in the low bits */

/* e^(a + b) for a small b that need not be exact in a. a is held within -87 and 88, where results are normal numbers:
 * what is smaller counts as nothing beside a sum that holds 1, and a sigmoid. */
INLINE float exp_sum(float a, float b)
{
    a = a < -87.0f ? -87.0f : a;
    a = a > 88.0f ? 88.0f : a;
    float shifted = a * 1.44269504f + ROUNDER;
    float n = shifted - ROUNDER;
    float r = a - n * 0.693359375f; /* ln 2 in two parts, the first exact times n */
    r = r - n * -2.12194440e-4f + b;
    float p = 1.3790470e-3f;
    p = p * r + 8.3804131e-3f;
    p = p * r + 4.16697077e-2f;
    p = p * r + 1.66664079e-1f;
    p = p * r + 4.99999851e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * float_of((bits_of(shifted) << 23) + 0x3f800000u); /* ROUNDER's own bits are shifted out */
}

INLINE float exp_of(float x)
{
    return exp_sum(x, 0.0f);
}

/* 1 / (1 + e^-x), and 1 minus it without cancellation. */
INLINE float sigmoid(float x, float *complement)
{
    float e = exp_of(-x);
    float s = 1.0f / (1.0f + e);
    *complement = e * s;
    return s;
}

/* --- gelu --- */

/* The normal CDF of x, and its density. The upper tail is e^(-z^2 / 2) P((z - 3.5) / (z + 3.5)) / (z + 3.5), P a
 * polynomial fitted to Mills' ratio; z^2 is taken in two parts so that its rounding does not reach the exponent. */
INLINE float normal_cdf(float x, float *density)
{
    float z = x < 0.0f ? -x : x;
    z = z > 14.0f ? 14.0f : z;
    float high = float_of(bits_of(z) & 0xfffff000u);
    float e = exp_sum(-0.5f * high * high, -0.5f * (z + high) * (z - high));
    float inverse = 1.0f / (z + 3.5f);
    float y = (z - 3.5f) * inverse;
    float p = 1.1273601e-4f;
    p = p * y + 4.25659557e-4f;
    p = p * y - 4.94653068e-4f;
    p = p * y - 3.1777967e-3f;
    p = p * y + 6.4924089e-3f;
    p = p * y + 1.74069088e-2f;
    p = p * y - 1.16052896e-1f;
    p = p * y + 3.15425009e-1f;
    p = p * y - 5.65561771e-1f;
    p = p * y + 7.44416058e-1f;
    float tail = e * p * inverse;
    *density = 0.398942280f * e;
    return x < 0.0f ? tail : 1.0f - tail;
}

static const float TANH_INNER = 1.59576912f; /* 2 sqrt(2 / pi): (1 + tanh u) / 2 is sigmoid(2 u) */
static const float TANH_CUBE = 0.044715f;

INLINE float gelu_of(float x, int tanh)
{
    float other;
    if (tanh)
        return x * sigmoid(TANH_INNER * (x + TANH_CUBE * x * x * x), &other);
    return x * normal_cdf(x, &other);
}

INLINE float gelu_slope(float x, int tanh)
{
    float other;
    if (tanh) {
        float s = sigmoid(TANH_INNER * (x + TANH_CUBE * x * x * x), &other);
        return s + x * s * other * TANH_INNER * (1.0f + 3.0f * TANH_CUBE * x * x);
    }
    float cdf = normal_cdf(x, &other);
    return cdf + x * other;
}

/* --- angles --- */

/* Sine and cosine of an angle that is exact in f64: reduced to a quarter turn there, the rest in f32. */
INLINE void sine_cosine(double angle, float *sine, float *cosine)
{
    const double rounder = 6755399441055744.0; /* 1.5 2^52 */
    double shifted = angle * 0.63661977236758134308 + rounder;
    double n = shifted - rounder;
    float r = (float)(angle - n * 1.57079632673412561417 - n * 6.07710050650619224932e-11);
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint32_t quarter = (uint32_t)bits;
    float q = r * r;
    float s = r + r * q * (-1.66666552e-1f + q * (8.3321743e-3f + q * -1.95168061e-4f));
    float c = 1.0f - 0.5f * q + q * q * (4.16666456e-2f + q * (-1.3887363e-3f + q * 2.44378989e-5f));
    float swapped_s = quarter & 1u ? c : s, swapped_c = quarter & 1u ? s : c;
    *sine = float_of(bits_of(swapped_s) ^ (quarter & 2u) << 30);
    *cosine = float_of(bits_of(swapped_c) ^ ((quarter + 1u) & 2u) << 30);
}

#endif
