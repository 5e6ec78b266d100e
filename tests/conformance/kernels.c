/* shm's kernels: every CPU level gives the bits of a plain loop, for any number of sources and
 * destinations, any length and any alignment; NaN and infinity come through. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm.h"

extern const struct shm_kernels shm_kernels_portable;
#ifdef SHM_X86
extern const struct shm_kernels shm_kernels_avx2, shm_kernels_avx512;
#endif

enum { MOST = 9, LENGTH = 150, ELEMENT = 8, ROW = LENGTH * ELEMENT + 192 };

static unsigned char sources[MOST][ROW], results[MOST][ROW];

static float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)(bits >> 16 | 0x40);
    uint32_t low = bits & 0xffff, odd = bits >> 16 & 1;
    return (uint16_t)((bits >> 16) + (low > 0x8000 || (low == 0x8000 && odd)));
}

static double pick(double a, double b, uint32_t red)
{
    if (red == TN_RED_SUM)
        return a + b;
    return b > a || isnan(b) ? b : a;
}

/* The element of a plain loop, and whether `got` is the same (any NaN is a NaN). */
static int is_right(uint32_t dtype, uint32_t red, int n, size_t shift, int i, const void *got)
{
    float f = 0, x;
    double d = 0, y;
    int32_t k = 0, v;
    int64_t l = 0, w;
    uint16_t h;
    for (int s = 0; s < n; s++) {
        const unsigned char *row = sources[s] + shift;
        memcpy(&h, row + i * 2, sizeof h);
        memcpy(&x, row + i * 4, sizeof x);
        memcpy(&y, row + i * 8, sizeof y);
        memcpy(&v, row + i * 4, sizeof v);
        memcpy(&w, row + i * 8, sizeof w);
        x = dtype == TN_BF16 ? widen(h) : x;
        f = s == 0 ? x : red == TN_RED_SUM ? f + x : (float)pick(f, x, red);
        d = s == 0 ? y : pick(d, y, red);
        k = s == 0 ? v : red == TN_RED_SUM ? (int32_t)((uint32_t)k + (uint32_t)v) : v > k ? v : k;
        l = s == 0 ? w : red == TN_RED_SUM ? (int64_t)((uint64_t)l + (uint64_t)w) : w > l ? w : l;
    }
    h = narrow(f);
    switch (dtype) {
    case TN_F32: memcpy(&x, got, sizeof x); return isnan(f) ? isnan(x) : memcmp(&x, &f, sizeof x) == 0;
    case TN_BF16:
        memcpy(&v, got, sizeof h);
        return isnan(f) ? isnan(widen((uint16_t)v)) : memcmp(got, &h, sizeof h) == 0;
    case TN_F64: memcpy(&y, got, sizeof y); return isnan(d) ? isnan(y) : memcmp(&y, &d, sizeof y) == 0;
    case TN_I32: return memcmp(got, &k, sizeof k) == 0;
    default: return memcmp(got, &l, sizeof l) == 0;
    }
}

/* Numbers of every size, and now and then what is none. */
static void draw(uint32_t dtype, size_t shift)
{
    for (int s = 0; s < MOST; s++)
        for (int i = 0; i < LENGTH; i++) {
            unsigned char *row = sources[s] + shift;
            float f = ldexpf((float)rand() / (float)RAND_MAX - 0.5f, rand() % 40 - 20);
            f = rand() % 50 == 0 ? NAN : rand() % 50 == 0 ? INFINITY : rand() % 50 == 0 ? 1e-41f : f;
            double d = f;
            uint16_t h = narrow(f);
            int32_t v = (int32_t)((uint32_t)rand() * 3u);
            int64_t w = (int64_t)((uint64_t)rand() * UINT64_C(0x9e3779b97f4a7c15));
            const void *from[] = { [TN_F32] = &f, [TN_BF16] = &h, [TN_I32] = &v, [TN_I64] = &w, [TN_F64] = &d };
            size_t bytes = dtype == TN_BF16 ? 2 : dtype == TN_F32 || dtype == TN_I32 ? 4 : 8;
            memcpy(row + (size_t)i * bytes, from[dtype], bytes);
        }
}

static int check(const struct shm_kernels *k, uint32_t dtype, uint32_t red, int n, int m, int count, size_t shift,
                 int stream)
{
    size_t bytes = dtype == TN_BF16 ? 2 : dtype == TN_F32 || dtype == TN_I32 ? 4 : 8;
    const void *in[MOST];
    void *out[MOST];
    memset(results, 0xa5, sizeof results);
    for (int i = 0; i < MOST; i++) {
        in[i] = sources[i] + shift;
        out[i] = results[i] + (64 - (uintptr_t)results[i] % 64) + (stream ? 0 : shift);
    }
    k->reduce(dtype, red, in, n, out, m, (uint64_t)count, stream);
    for (int d = 0; d < m; d++) {
        const unsigned char *to = out[d];
        for (int i = 0; i < count; i++)
            if (!is_right(dtype, red, n, shift, i, to + (size_t)i * bytes)) {
                fprintf(stderr, "%s: dtype %u, reduction %u, %d to %d, element %d of %d, shift %zu, stream %d\n",
                        k->name, (unsigned)dtype, (unsigned)red, n, m, i, count, shift, stream);
                return 1;
            }
        if (to[-1] != 0xa5 || to[(size_t)count * bytes] != 0xa5) {
            fprintf(stderr, "%s: wrote beside the destination\n", k->name);
            return 1;
        }
    }
    return 0;
}

static int check_level(const struct shm_kernels *k)
{
    static const uint32_t dtypes[] = { TN_F32, TN_BF16, TN_F64, TN_I32, TN_I64 };
    static const int counts[] = { 0, 1, 2, 15, 16, 17, 31, 64, LENGTH };
    int failed = 0;
    for (int t = 0; t < 5; t++)
        for (size_t shift = 0; shift < 10; shift += 3) {
            draw(dtypes[t], shift);
            for (int n = 1; n <= MOST; n++)
                for (int c = 0; c < 9; c++)
                    for (uint32_t red = TN_RED_SUM; red <= TN_RED_MAX; red++) {
                        failed += check(k, dtypes[t], red, n, n, counts[c], shift, 0);
                        failed += check(k, dtypes[t], red, n, 1, counts[c], shift, c % 2);
                    }
        }
    printf("%s: %s\n", k->name, failed ? "FAILED" : "ok");
    return failed;
}

int main(void)
{
    int failed = check_level(&shm_kernels_portable);
#ifdef SHM_X86
    const struct shm_kernels *best = shm_kernels_pick();
    if (best != &shm_kernels_portable)
        failed += check_level(&shm_kernels_avx2);
    if (best == &shm_kernels_avx512)
        failed += check_level(&shm_kernels_avx512);
#endif
    return failed > 0;
}
