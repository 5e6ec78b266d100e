/* Once-per-step ops of the cpu device against their references: sums of squares, clipping, AdamW, SGD, and what they
 * do when gradients are not finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "cpu_compare.h"

static const int sizes[] = { 0, 1, 17, 1000, 16384, 40001 };

#define EACH_SIZE (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
#define NO_ATTRS HARNESS_A(TN_ATTR_I("unused", 0))

static struct tn_tensor *vector(struct harness *h, int n, uint64_t seed)
{
    struct tn_tensor *tensor = harness_tensor(h, TN_F32, 1, n);
    harness_fill(tensor, seed, 1);
    return tensor;
}

static struct tn_tensor *scalar(struct harness *h, double value)
{
    struct tn_tensor *tensor = harness_tensor(h, TN_F32, 0);
    harness_set(tensor, 0, value);
    return tensor;
}

static void accumulates(struct harness *h, uint32_t dtype)
{
    for
        EACH_SIZE
        {
            struct tn_tensor *x = harness_tensor(h, dtype, 1, sizes[n]), *acc = vector(h, sizes[n], 2);
            struct tn_tensor *y = vector(h, sizes[n], 3), *copy = harness_like(h, dtype, x);
            harness_fill(x, 1, 1);
            COMPARE(h, TN_OP_ACCUMULATE, HARNESS_T(x), HARNESS_T(y), NO_ATTRS, 0);
            COMPARE(h, TN_OP_ACCUMULATE, HARNESS_T(x, acc), HARNESS_T(acc), NO_ATTRS, 1e-7);
            COMPARE(h, TN_OP_SYNC, HARNESS_T(x), HARNESS_T(copy), NO_ATTRS, 0);
            COMPARE(h, TN_OP_SYNC, HARNESS_T(x), HARNESS_T(x), NO_ATTRS, 0);
            harness_clear(h);
        }
}

static void sums_of_squares(struct harness *h)
{
    struct tn_tensor *s = scalar(h, 9);
    COMPARE(h, TN_OP_SUMSQ, HARNESS_T(vector(h, 5, 1)), HARNESS_T(s), NO_ATTRS, 1e-6);
    COMPARE(h, TN_OP_SUMSQ, HARNESS_T(vector(h, 40001, 1), vector(h, 0, 2), vector(h, 16384, 3)), HARNESS_T(s),
            NO_ATTRS, 2e-7);
    COMPARE(h, TN_OP_SUMSQ,
            HARNESS_T(vector(h, 1, 1), vector(h, 2, 2), vector(h, 3, 3), vector(h, 4, 4), vector(h, 5, 5),
                      vector(h, 6, 6), vector(h, 7, 7), vector(h, 8, 8), vector(h, 9, 9), vector(h, 10, 10)),
            HARNESS_T(s), NO_ATTRS, 2e-7);
}

static void clips(struct harness *h)
{
    static const double squares[] = { 0, 0.25, 1, 100, 1e30, INFINITY, NAN };
    static const double most[] = { 0, 0.5, 1, 1000 };
    for (size_t n = 0; n < 7; n++) {
        for (size_t i = 0; i < 4; i++) {
            struct tn_tensor *s = scalar(h, squares[n]), *c = vector(h, 4, 1);
            assert_int_equal(
                HARNESS_RUN(h, TN_OP_CLIP, HARNESS_T(s), HARNESS_T(c), HARNESS_A(TN_ATTR_F("max_norm", most[i]))),
                TN_OK);
            double norm = sqrt(squares[n]), factor = most[i] / (norm + 1e-6);
            assert_true(harness_get(c, 2) == !isfinite(squares[n]));
            if (isfinite(squares[n])) {
                harness_check(c, 0, most[i] > 0 && factor < 1 ? factor : 1, 1e-6);
                harness_check(c, 1, norm, 1e-6);
            }
            assert_true(harness_get(c, 3) == 0);
        }
    }
}

struct step {
    struct tn_tensor *p, *m, *v, *g, *c, *lr, *t;
};

static struct step step_new(struct harness *h, int n)
{
    struct step s = { vector(h, n, 1), vector(h, n, 2), vector(h, n, 3), vector(h, n, 4),
                      vector(h, 4, 5), scalar(h, 1e-2), scalar(h, 1) };
    for (int i = 0; i < n; i++)
        harness_set(s.v, i, fabs(harness_get(s.v, i)));
    harness_set(s.c, 0, 0.7), harness_set(s.c, 2, 0);
    return s;
}

#define ADAMW \
    HARNESS_A(TN_ATTR_F("beta1", 0.9), TN_ATTR_F("beta2", 0.95), TN_ATTR_F("eps", 1e-8), TN_ATTR_F("decay", 0.1))
#define SGD HARNESS_A(TN_ATTR_F("momentum", 0.9), TN_ATTR_F("decay", 0.1))

static void adamw(struct harness *h)
{
    for
        EACH_SIZE
        {
            struct step s = step_new(h, sizes[n]);
            for (int t = 1; t < 5; t++) {
                harness_set(s.t, 0, t * t * t);
                COMPARE(h, TN_OP_ADAMW, HARNESS_T(s.p, s.m, s.v, s.g, s.c, s.lr, s.t), HARNESS_T(s.p, s.m, s.v), ADAMW,
                        1e-6);
            }
            harness_clear(h);
        }
}

/* From zero moments, as in a first step: p moves by lr whatever the size of g. */
static void adamw_first_step(struct harness *h)
{
    struct step s = step_new(h, 64);
    for (int i = 0; i < 64; i++) {
        harness_set(s.m, i, 0), harness_set(s.v, i, 0);
        harness_set(s.g, i, (i % 2 ? 1 : -1) * pow(10, i / 8 - 5));
    }
    COMPARE(h, TN_OP_ADAMW, HARNESS_T(s.p, s.m, s.v, s.g, s.c, s.lr, s.t), HARNESS_T(s.p, s.m, s.v), ADAMW, 1e-6);
}

static void sgd(struct harness *h)
{
    for
        EACH_SIZE
        {
            struct step s = step_new(h, sizes[n]);
            for (int t = 0; t < 3; t++)
                COMPARE(h, TN_OP_SGD, HARNESS_T(s.p, s.m, s.g, s.c, s.lr), HARNESS_T(s.p, s.m), SGD, 1e-6);
            harness_clear(h);
        }
}

/* A gradient that is not finite, through sumsq and clip: nothing moves. */
static void not_finite(struct harness *h)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN, 1e30f /* whose square is not */ };
    for (size_t n = 0; n < 4; n++) {
        struct step s = step_new(h, 5000);
        struct tn_tensor *sum = scalar(h, 0);
        harness_set(s.g, 4321, bad[n]);
        struct tn_tensor *p = copied(h, TN_F32, s.p), *m = copied(h, TN_F32, s.m), *v = copied(h, TN_F32, s.v);
        assert_int_equal(HARNESS_RUN(h, TN_OP_SUMSQ, HARNESS_T(s.g), HARNESS_T(sum), NO_ATTRS), TN_OK);
        assert_int_equal(
            HARNESS_RUN(h, TN_OP_CLIP, HARNESS_T(sum), HARNESS_T(s.c), HARNESS_A(TN_ATTR_F("max_norm", 1))), TN_OK);
        assert_true(harness_get(s.c, 2) == 1);
        assert_int_equal(
            HARNESS_RUN(h, TN_OP_ADAMW, HARNESS_T(s.p, s.m, s.v, s.g, s.c, s.lr, s.t), HARNESS_T(s.p, s.m, s.v), ADAMW),
            TN_OK);
        assert_int_equal(HARNESS_RUN(h, TN_OP_SGD, HARNESS_T(s.p, s.m, s.g, s.c, s.lr), HARNESS_T(s.p, s.m), SGD),
                         TN_OK);
        check_same_bytes(s.p, p);
        check_same_bytes(s.m, m);
        check_same_bytes(s.v, v);
        harness_clear(h);
    }
}

static void threads_do_not_matter(void **state)
{
    struct harness h[2];
    struct tn_tensor *sum[2];
    for (int i = 0; i < 2; i++) {
        harness_open(&h[i], i ? 3 : 1, 0);
        sum[i] = scalar(&h[i], 0);
        assert_int_equal(
            HARNESS_RUN(&h[i], TN_OP_SUMSQ, HARNESS_T(vector(&h[i], 200001, 1)), HARNESS_T(sum[i]), NO_ATTRS), TN_OK);
    }
    check_same_bytes(sum[0], sum[1]);
    harness_close(&h[0]);
    harness_close(&h[1]);
}

static void not_in_place_is_refused(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct step s = step_new(&h, 8);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_SGD, HARNESS_T(s.p, s.m, s.g, s.c, s.lr), HARNESS_T(s.v, s.m), SGD),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "in place"));
    harness_close(&h);
}

static void test_accumulates(void **state)
{
    compare_everywhere(accumulates);
}
static void test_sums_of_squares(void **state)
{
    compare_everywhere_f32(sums_of_squares);
}
static void test_clips(void **state)
{
    compare_everywhere_f32(clips);
}
static void test_adamw(void **state)
{
    compare_everywhere_f32(adamw);
}
static void test_adamw_first_step(void **state)
{
    compare_everywhere_f32(adamw_first_step);
}
static void test_sgd(void **state)
{
    compare_everywhere_f32(sgd);
}
static void test_not_finite(void **state)
{
    compare_everywhere_f32(not_finite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulates),
        cmocka_unit_test(test_sums_of_squares),
        cmocka_unit_test(test_clips),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_first_step),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(not_in_place_is_refused),
    };
    return cmocka_run_group_tests_name("cpu_optimizer", tests, NULL, NULL);
}
