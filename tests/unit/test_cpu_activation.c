/* Elementwise ops of the cpu device: every op against its reference, the accuracy of the functions behind them, slopes
 * against finite differences, and dropout that does not depend on the layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/base/philox.h"
#include "cpu_compare.h"
#include "device.h"
#include "philox.h"
#include "reference.h"
#include "vec.h"

static const struct {
    int rows, cols;
} shapes[] = {
    { 1, 1 }, { 1, 64 }, { 7, 1 }, { 3, 17 }, { 33, 65 }, { 2, 1031 }, { 70, 600 }, { 0, 8 },
};

#define EACH_SHAPE (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
#define NO_ATTRS HARNESS_A(TN_ATTR_I("unused", 0))

static struct tn_tensor *wide(struct harness *h, uint32_t dtype, uint64_t seed, size_t shape)
{
    struct tn_tensor *tensor = harness_tensor(h, dtype, 2, shapes[shape].rows, shapes[shape].cols);
    harness_fill(tensor, seed, 4);
    return tensor;
}

static struct tn_tensor *vector(struct harness *h, int n, uint64_t seed)
{
    struct tn_tensor *tensor = harness_tensor(h, TN_F32, 1, n);
    harness_fill(tensor, seed, 1);
    return tensor;
}

static void sums(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            struct tn_tensor *a = wide(h, dtype, 1, n), *b = wide(h, dtype, 2, n), *c = wide(h, dtype, 3, n);
            struct tn_tensor *y = harness_like(h, dtype, a), *f = harness_like(h, TN_F32, a);
            struct tn_tensor *bias = vector(h, shapes[n].cols, 4), *db = vector(h, shapes[n].cols, 5);
            COMPARE(h, TN_OP_ADD, HARNESS_T(a, b), HARNESS_T(y), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_ADD_N, HARNESS_T(a, b, c), HARNESS_T(y), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_ADD_N, HARNESS_T(a), HARNESS_T(f), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_ADD_N, HARNESS_T(a, f, b), HARNESS_T(f), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_BIAS_ADD, HARNESS_T(a, bias), HARNESS_T(y), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_BIAS_DW, HARNESS_T(a), HARNESS_T(db), NO_ATTRS, 1e-5);
            COMPARE(h, TN_OP_BIAS_DW, HARNESS_T(a, NULL), HARNESS_T(db), NO_ATTRS, 1e-5);
            COMPARE(h, TN_OP_BIAS_DW, HARNESS_T(a, db), HARNESS_T(db), NO_ATTRS, 1e-5);
            COMPARE(h, TN_OP_ADD, HARNESS_T(a, b), HARNESS_T(a), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_ADD, HARNESS_T(a, b), HARNESS_T(b), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_BIAS_ADD, HARNESS_T(c, bias), HARNESS_T(c), NO_ATTRS, 1e-6);
            harness_clear(h);
        }
}

static void gelus(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            for (int form = 0; form < 2; form++) {
                struct tn_tensor *x = wide(h, dtype, 1, n), *dy = wide(h, dtype, 2, n), *y = harness_like(h, dtype, x);
                struct tn_tensor *b = vector(h, shapes[n].cols, 3), *db = vector(h, shapes[n].cols, 4);
                struct tn_attr tanh = TN_ATTR_I("tanh", form);
                COMPARE(h, TN_OP_GELU, HARNESS_T(x), HARNESS_T(y), HARNESS_A(tanh), 1e-6);
                COMPARE(h, TN_OP_BIAS_GELU, HARNESS_T(x, b), HARNESS_T(y), HARNESS_A(tanh), 1e-6);
                COMPARE(h, TN_OP_GELU_DX, HARNESS_T(dy, x), HARNESS_T(y), HARNESS_A(tanh), 2e-6);
                COMPARE(h, TN_OP_BIAS_GELU_DX, HARNESS_T(dy, x, b), HARNESS_T(y, db), HARNESS_A(tanh), 2e-5);
                COMPARE(h, TN_OP_BIAS_GELU_DX, HARNESS_T(dy, x, b, db), HARNESS_T(y, db), HARNESS_A(tanh), 2e-5);
                struct tn_tensor *again = copied(h, dtype, dy);
                COMPARE(h, TN_OP_GELU_DX, HARNESS_T(dy, x), HARNESS_T(dy), HARNESS_A(tanh), 2e-6);
                COMPARE(h, TN_OP_BIAS_GELU_DX, HARNESS_T(again, x, b, db), HARNESS_T(again, db), HARNESS_A(tanh), 2e-5);
                harness_clear(h);
            }
        }
}

static void swiglus(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            struct tn_tensor *g = wide(h, dtype, 1, n), *u = wide(h, dtype, 2, n), *dy = wide(h, dtype, 3, n);
            struct tn_tensor *y = harness_like(h, dtype, g), *dg = harness_like(h, dtype, g);
            COMPARE(h, TN_OP_SWIGLU, HARNESS_T(g, u), HARNESS_T(y), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_SWIGLU_DX, HARNESS_T(dy, g, u), HARNESS_T(dg, y), NO_ATTRS, 2e-6);
            harness_clear(h);
        }
}

static void ropes(struct harness *h, uint32_t dtype)
{
    static const struct {
        int batch, seq, heads, dim;
    } cases[] = {
        { 1, 1, 1, 2 }, { 2, 5, 3, 6 }, { 1, 9, 2, 64 }, { 2, 70, 5, 62 }, { 1, 2, 1, 1024 },
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        int batch = cases[n].batch, seq = cases[n].seq, dim = cases[n].dim;
        struct tn_tensor *x = harness_tensor(h, dtype, 3, batch, seq, cases[n].heads * dim);
        struct tn_tensor *pos = harness_tensor(h, TN_I32, 2, batch, seq), *y = harness_like(h, dtype, x);
        harness_fill(x, 1, 1);
        for (int i = 0; i < batch * seq; i++)
            harness_set(pos, i, i < 3 ? i : i * i * 37); /* far beyond a quarter turn */
        struct tn_attr theta = TN_ATTR_F("theta", 500000.0), head = TN_ATTR_I("head_dim", dim);
        struct tn_tensor *before = copied(h, dtype, x);
        COMPARE(h, TN_OP_ROPE, HARNESS_T(x, pos), HARNESS_T(y), HARNESS_A(theta, head), 1e-6);
        COMPARE(h, TN_OP_ROPE, HARNESS_T(x, pos), HARNESS_T(x), HARNESS_A(theta, head), 1e-6);
        COMPARE(h, TN_OP_ROPE, HARNESS_T(x, pos), HARNESS_T(x), HARNESS_A(theta, head, TN_ATTR_I("inverse", 1)), 1e-6);
        for (int64_t i = 0; i < harness_elements(x); i++) /* there and back */
            harness_check(x, i, harness_get(before, i), dtype == TN_BF16 ? 1e-2 : 1e-6);
        harness_clear(h);
    }
}

/* --- casts, over every bf16 and f16 number and beside each rounding boundary --- */

static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void casts_of_f16(struct harness *h)
{
    enum { HALVES = 65536 };
    struct tn_tensor *half = harness_tensor(h, TN_F16, 1, HALVES), *x = harness_tensor(h, TN_F32, 1, HALVES);
    struct tn_tensor *back = harness_like(h, TN_F16, half);
    for (int i = 0; i < HALVES; i++)
        ((uint16_t *)half->data)[i] = (uint16_t)i;
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(half), HARNESS_T(x), NO_ATTRS), TN_OK);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(x), HARNESS_T(back), NO_ATTRS), TN_OK);
    for (int i = 0; i < HALVES; i++) {
        if (!same_number(harness_get(x, i), f16_value((uint16_t)i)))
            fail_msg("half %04x is %.9g", i, harness_get(x, i));
        if (!same_number(f16_value(((uint16_t *)back->data)[i]), f16_value((uint16_t)i)))
            fail_msg("half %04x comes back as %04x", i, ((uint16_t *)back->data)[i]);
    }
    /* Between two halves: just below the middle, the middle (to the even one), just above. */
    for (int part = -1; part <= 1; part++) {
        for (int i = 0; i < 0x7bff; i++) {
            double middle = (f16_value((uint16_t)i) + f16_value((uint16_t)(i + 1))) / 2;
            float value = (float)middle;
            ((float *)x->data)[i] = part == 0 ? value : nextafterf(value, part * INFINITY);
        }
        assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(x), HARNESS_T(back), NO_ATTRS), TN_OK);
        for (int i = 0; i < 0x7bff; i++) {
            int want = part < 0 ? i : part > 0 ? i + 1 : i + (i & 1);
            if (((uint16_t *)back->data)[i] != want)
                fail_msg("%.9g gives half %04x, not %04x", harness_get(x, i), ((uint16_t *)back->data)[i], want);
        }
    }
}

static void casts_of_bf16(struct harness *h)
{
    enum { NUMBERS = 65536 };
    struct tn_tensor *bf16 = harness_tensor(h, TN_BF16, 1, NUMBERS), *x = harness_tensor(h, TN_F32, 1, NUMBERS);
    struct tn_tensor *back = harness_like(h, TN_BF16, bf16);
    for (int i = 0; i < NUMBERS; i++)
        ((uint16_t *)bf16->data)[i] = (uint16_t)i;
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(bf16), HARNESS_T(x), NO_ATTRS), TN_OK);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(x), HARNESS_T(back), NO_ATTRS), TN_OK);
    for (int i = 0; i < NUMBERS; i++) {
        if (!same_number(harness_get(back, i), harness_get(bf16, i)))
            fail_msg("bf16 %04x comes back as %.9g", i, harness_get(back, i));
    }
    for (int i = 0; i < NUMBERS; i++) { /* the middle, or just above it where i is odd in its second bit */
        uint32_t bits = (uint32_t)i << 16 | (i & 2 ? 0x8001u : 0x8000u);
        memcpy((float *)x->data + i, &bits, sizeof bits);
    }
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(x), HARNESS_T(back), NO_ATTRS), TN_OK);
    for (int i = 0; i < NUMBERS; i++) {
        uint16_t want = (uint16_t)(i + (i & 2 ? 1 : i & 1)), got = ((uint16_t *)back->data)[i];
        bool nan = (i & 0x7f80) == 0x7f80; /* with these low bits, infinity's pattern is a NaN's too */
        if (nan ? !isnan(harness_get(back, i)) : got != want)
            fail_msg("bits %04x.8 give bf16 %04x, not %04x", i, got, want);
    }
}

static void casts(struct harness *h)
{
    casts_of_f16(h);
    casts_of_bf16(h);
    struct tn_tensor *x = filled(h, TN_F32, 1, 70, 601), *bf16 = harness_like(h, TN_BF16, x);
    struct tn_tensor *half = harness_like(h, TN_F16, x), *bf16_again = harness_like(h, TN_BF16, x);
    COMPARE(h, TN_OP_CAST, HARNESS_T(x), HARNESS_T(bf16), NO_ATTRS, 0);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(bf16), HARNESS_T(half), NO_ATTRS), TN_OK);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CAST, HARNESS_T(half), HARNESS_T(bf16_again), NO_ATTRS), TN_OK);
    for (int64_t i = 0; i < harness_elements(x); i++)
        harness_check(bf16_again, i, harness_get(bf16, i), 1e-7);
}

/* --- accuracy: relative error over the whole range, tails included --- */

static void check_relative(const char *name, double x, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want) + 1e-37))
        fail_msg("%s(%.9g) is %.9g, should be %.9g", name, x, got, want);
}

/* The exponent of the tanh form is itself rounded, which shows in its lower tail. */
static double gelu_tolerance(double x, int form)
{
    return form ? 5e-7 + 3e-7 * fabs(x + 0.0447 * x * x * x) : 5e-7;
}

static void accurate(void **state)
{
    enum { N = 40000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *one = malloc(N * sizeof *one);
    assert_true(x && y && one);
    for (int i = 0; i < N; i++) {
        x[i] = (float)((i - N / 2) * 9.0 / (N / 2) + 1e-4);
        one[i] = 1;
    }
    for (int isa = 0; isa <= cpu_isa_detect(); isa++) {
        const struct cpu_vec *vec = cpu_vec_pick(isa);
        for (int form = 0; form < 2; form++) {
            vec->gelu[form][0](y, x, N);
            for (int i = 0; i < N; i++)
                check_relative("gelu", x[i], y[i], cpu_reference_gelu(x[i], form), gelu_tolerance(x[i], form));
            vec->gelu_dx[form][0](y, one, x, N);
            for (int i = 0; i < N; i++) {
                double want = cpu_reference_gelu_slope(x[i], form);
                check_relative("gelu'", x[i], y[i], want, gelu_tolerance(x[i], form) + 2e-7 / fabs(want));
            }
        }
        vec->swiglu[0](y, x, one, N);
        for (int i = 0; i < N; i++)
            check_relative("silu", x[i], y[i], x[i] / (1 + exp(-(double)x[i])), 5e-7);
        vec->softmax[0](y, x, 0, 1, N);
        for (int i = 0; i < N; i++)
            check_relative("exp", x[i], y[i], exp(x[i]), 3e-7);
        float ends[] = { -INFINITY, -200, -87, 88, 0, -0.0f, NAN }, got[7];
        vec->softmax[0](got, ends, 0, 1, 7);
        assert_true(got[0] >= 0 && got[0] < 2e-38f && got[1] == got[0]); /* as good as 0, and never beyond it */
        for (int i = 2; i < 6; i++)
            check_relative("exp", ends[i], got[i], exp(ends[i]), 3e-7);
        assert_true(isnan(got[6]));
    }
    free(x), free(y), free(one);
}

static void slopes(void **state)
{
    for (double x = -6; x < 6; x += 0.37) {
        for (int form = 0; form < 2; form++) {
            double slope = (cpu_reference_gelu(x + 1e-5, form) - cpu_reference_gelu(x - 1e-5, form)) / 2e-5;
            check_relative("slope", x, cpu_reference_gelu_slope(x, form), slope, 1e-5 + 1e-9 / fabs(slope));
        }
    }
}

struct objective {
    struct tn_tensor *g, *u, *y, *dy;
};

static double objective(void *arg)
{
    struct objective *o = arg;
    REFERENCE(TN_OP_SWIGLU, HARNESS_T(o->g, o->u), HARNESS_T(o->y), NO_ATTRS);
    double sum = 0;
    for (int64_t i = 0; i < harness_elements(o->y); i++)
        sum += harness_get(o->y, i) * harness_get(o->dy, i);
    return sum;
}

static void swiglu_slopes(struct harness *h)
{
    struct tn_tensor *g = wide(h, TN_F32, 1, 3), *u = wide(h, TN_F32, 2, 3), *dy = wide(h, TN_F32, 3, 3);
    struct tn_tensor *dg = harness_like(h, TN_F32, g), *du = harness_like(h, TN_F32, g);
    assert_int_equal(HARNESS_RUN(h, TN_OP_SWIGLU_DX, HARNESS_T(dy, g, u), HARNESS_T(dg, du), NO_ATTRS), TN_OK);
    struct objective o = { copied(h, TN_F64, g), copied(h, TN_F64, u), harness_like(h, TN_F64, g), dy };
    check_slopes(o.g, dg, objective, &o, 2e-6);
    check_slopes(o.u, du, objective, &o, 2e-6);
}

/* --- dropout --- */

static void philox_is_the_runtimes(void **state)
{
    for (uint64_t n = 0; n < 100; n++) {
        uint32_t ours[4], theirs[4];
        uint64_t key = n * 0x9E3779B97F4A7C15u, lo = n << 40 | n;
        cpu_philox(key, ~key, lo, ours);
        tn_philox(key, ~key, lo, theirs);
        assert_memory_equal(ours, theirs, sizeof ours);
    }
}

#define DROP(p) TN_ATTR_F("p", p), TN_ATTR_I("seed", 12345), TN_ATTR_I("stream", 7), TN_ATTR_I("micro", 3)

static void dropouts(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            struct tn_tensor *x = wide(h, dtype, 1, n), *y = harness_like(h, dtype, x), *step = vector(h, 1, 1);
            harness_set(step, 0, 41);
            COMPARE(h, TN_OP_DROPOUT, HARNESS_T(x, step), HARNESS_T(y), HARNESS_A(DROP(0.3)), 1e-6);
            COMPARE(h, TN_OP_DROPOUT, HARNESS_T(x, step), HARNESS_T(y), HARNESS_A(DROP(0.0)), 1e-6);
            COMPARE(h, TN_OP_DROPOUT, HARNESS_T(x, step), HARNESS_T(x), HARNESS_A(DROP(0.3)), 1e-6);
            harness_clear(h);
        }
}

/* A part drops what the whole drops there; about p of all is dropped; another step drops others. */
static void dropout_of_parts(struct harness *h)
{
    struct tn_tensor *whole = harness_tensor(h, TN_F32, 3, 4, 6, 10), *part = harness_tensor(h, TN_F32, 3, 2, 3, 5);
    struct tn_tensor *step = vector(h, 1, 1), *other = harness_like(h, TN_F32, whole);
    for (int64_t i = 0; i < 240; i++)
        harness_set(whole, i, 1), harness_set(other, i, 1);
    for (int64_t i = 0; i < 30; i++)
        harness_set(part, i, 1);
    for (int d = 0; d < 3; d++) {
        part->global[d] = whole->shape[d];
        part->offset[d] = part->shape[d];
    }
    COMPARE(h, TN_OP_DROPOUT, HARNESS_T(part, step), HARNESS_T(part), HARNESS_A(DROP(0.5)), 1e-6);
    COMPARE(h, TN_OP_DROPOUT, HARNESS_T(whole, step), HARNESS_T(whole), HARNESS_A(DROP(0.5)), 1e-6);
    harness_set(step, 0, 9);
    COMPARE(h, TN_OP_DROPOUT, HARNESS_T(other, step), HARNESS_T(other), HARNESS_A(DROP(0.5)), 1e-6);
    int dropped = 0, differ = 0;
    for (int64_t i = 0; i < 30; i++) {
        int64_t at = ((i / 15 + 2) * 6 + i / 5 % 3 + 3) * 10 + i % 5 + 5;
        harness_check(part, i, harness_get(whole, at), 0);
    }
    for (int64_t i = 0; i < 240; i++) {
        dropped += harness_get(whole, i) == 0;
        differ += harness_get(whole, i) != harness_get(other, i);
    }
    assert_in_range(dropped, 90, 150);
    assert_in_range(differ, 90, 150);
}

/* --- one thread and three give the same bits --- */

static void threads_do_not_matter(void **state)
{
    struct harness h[2];
    struct tn_tensor *db[2];
    for (int i = 0; i < 2; i++) {
        harness_open(&h[i], i ? 3 : 1, 0);
        struct tn_tensor *dy = filled(&h[i], TN_F32, 1, 200, 333), *x = filled(&h[i], TN_F32, 2, 200, 333);
        db[i] = harness_tensor(&h[i], TN_F32, 1, 333);
        assert_int_equal(HARNESS_RUN(&h[i], TN_OP_BIAS_GELU_DX, HARNESS_T(dy, x, vector(&h[i], 333, 3)),
                                     HARNESS_T(dy, db[i]), NO_ATTRS),
                         TN_OK);
    }
    check_same_bytes(db[0], db[1]);
    harness_close(&h[0]);
    harness_close(&h[1]);
}

static void test_sums(void **state)
{
    compare_everywhere(sums);
}
static void test_gelus(void **state)
{
    compare_everywhere(gelus);
}
static void test_swiglus(void **state)
{
    compare_everywhere(swiglus);
}
static void test_swiglu_slopes(void **state)
{
    compare_everywhere_f32(swiglu_slopes);
}
static void test_ropes(void **state)
{
    compare_everywhere(ropes);
}
static void test_casts(void **state)
{
    compare_everywhere_f32(casts);
}
static void test_dropouts(void **state)
{
    compare_everywhere(dropouts);
}
static void test_dropout_of_parts(void **state)
{
    compare_everywhere_f32(dropout_of_parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_gelus),
        cmocka_unit_test(test_swiglus),
        cmocka_unit_test(test_swiglu_slopes),
        cmocka_unit_test(test_ropes),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(accurate),
        cmocka_unit_test(slopes),
        cmocka_unit_test(philox_is_the_runtimes),
        cmocka_unit_test(test_dropouts),
        cmocka_unit_test(test_dropout_of_parts),
        cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests_name("cpu_activation", tests, NULL, NULL);
}
