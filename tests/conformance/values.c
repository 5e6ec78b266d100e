/* Values of the conformance tests (values.h). */
#include <math.h>
#include <string.h>

#include "values.h"

enum { PERIOD = 13 }; /* of FILL_INTEGERS */

uint32_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case number: return bytes;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    }
    return 0;
}

const char *dtype_name(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case number: return text;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    }
    return "?";
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* In [-6, 6], so that eight of them add up exactly even in bf16; or fractions of any size
 * between 2^-6 and 2^6, so that nearly every addition rounds. */
static float number(int fill, int32_t rank, uint64_t index, uint64_t salt)
{
    if (fill == FILL_INTEGERS)
        return (float)((int64_t)((index * 7 + (uint64_t)rank * 31 + salt) % PERIOD) - 6);
    uint64_t bits = mix(index + ((uint64_t)rank << 40) + (salt << 48));
    float fraction = (float)(bits >> 40) / 8388608.0f - 1;
    return ldexpf(fraction, (int)(bits % 13) - 6);
}

static uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void store(void *to, uint32_t dtype, float f, double d, int64_t i)
{
    uint16_t h = narrow(f);
    int32_t n = (int32_t)(uint32_t)i;
    switch (dtype) {
    case TN_F32: memcpy(to, &f, sizeof f); break;
    case TN_BF16: memcpy(to, &h, sizeof h); break;
    case TN_F64: memcpy(to, &d, sizeof d); break;
    case TN_I32: memcpy(to, &n, sizeof n); break;
    default: memcpy(to, &i, sizeof i); break;
    }
}

static int64_t integer(float f)
{
    return (int64_t)(f * 1000);
}

uint64_t value_drawn(uint32_t dtype, int fill, uint64_t count)
{
    return fill == FILL_INTEGERS && value_is_reduced(dtype) && count > PERIOD ? PERIOD : count;
}

int value_is_reduced(uint32_t dtype)
{
    return dtype != TN_F16 && dtype != TN_U8 && dtype != TN_I8;
}

void value_store(void *to, uint32_t dtype, int fill, int32_t rank, uint64_t index, uint64_t salt)
{
    float f = number(fill, rank, index, salt);
    uint64_t bits = mix(index + ((uint64_t)rank << 32) + salt);
    if (!value_is_reduced(dtype))
        memcpy(to, &bits, dtype_bytes(dtype)); /* only copied */
    else
        store(to, dtype, f, f, integer(f));
}

/* In rank order, in the accumulator that the ABI names. */
void value_reduce(void *to, uint32_t dtype, uint32_t red, int fill, const int32_t *ranks, int32_t n, uint64_t index,
                  uint64_t salt)
{
    float f = 0;
    double d = 0;
    int64_t k = 0;
    for (int32_t r = 0; r < n; r++) {
        float x = number(fill, ranks ? ranks[r] : r, index, salt);
        int64_t i = integer(x);
        double wide = x;
        if (dtype == TN_BF16)
            x = widen(narrow(x));
        int max = red == TN_RED_MAX;
        f = r == 0 ? x : max ? (x > f ? x : f) : f + x;
        d = r == 0 ? wide : max ? (wide > d ? wide : d) : d + wide;
        k = r == 0 ? i : max ? (i > k ? i : k) : k + i;
    }
    store(to, dtype, f, d, k);
}

int value_is_near(const void *result, uint32_t dtype, int fill, const int32_t *ranks, int32_t n, uint64_t index,
                  uint64_t salt)
{
    double sum = 0, sizes = 0, got;
    for (int32_t r = 0; r < n; r++) {
        float x = number(fill, ranks ? ranks[r] : r, index, salt);
        x = dtype == TN_BF16 ? widen(narrow(x)) : x;
        sum += x;
        sizes += fabs(x);
    }
    if (dtype == TN_BF16) {
        uint16_t h;
        memcpy(&h, result, sizeof h);
        got = widen(h);
    } else {
        float f;
        memcpy(&f, result, sizeof f);
        got = f;
    }
    /* n-1 additions of 2^-24 each, and for bf16 one rounding to 8 bits: at most 2^-8 of it */
    double bound = (n - 1) * ldexp(sizes, -24) + (dtype == TN_BF16 ? ldexp(fabs(sum), -8) * 1.001 : 0) + 1e-30;
    return fabs(got - sum) <= bound;
}

uint64_t hash_bytes(const void *data, size_t bytes)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    const char *p = data;
    for (size_t i = 0; i < bytes; i += sizeof h) {
        uint64_t word = 0;
        memcpy(&word, p + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        h = (h ^ word) * UINT64_C(0x100000001b3);
        h ^= h >> 32;
    }
    return h;
}
