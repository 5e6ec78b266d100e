/* The loss of the cpu device: cross-entropy, whole and over a cut vocabulary, against the reference; its gradient
 * against finite differences; masked labels, extreme logits, and the normaliser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "cpu_compare.h"

static const struct {
    int rows, cols;
} shapes[] = {
    { 1, 1 }, { 1, 50 }, { 6, 1 }, { 5, 17 }, { 3, 1024 }, { 4, 1025 }, { 2, 5003 }, { 40, 1000 }, { 0, 9 },
};

#define EACH_SHAPE (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
#define NO_ATTRS HARNESS_A(TN_ATTR_I("unused", 0))

static struct tn_tensor *scalar(struct harness *h, double value)
{
    struct tn_tensor *tensor = harness_tensor(h, TN_F32, 0);
    harness_set(tensor, 0, value);
    return tensor;
}

/* Every fourth is masked; first and last column are among the others. */
static struct tn_tensor *labels_new(struct harness *h, int rows, int vocab)
{
    struct tn_tensor *labels = harness_tensor(h, TN_I32, 1, rows);
    for (int i = 0; i < rows; i++)
        harness_set(labels, i, i % 4 == 3 ? (i % 8 == 3 ? -1 : -100) : i == 0 ? vocab - 1 : i * 7919 % vocab);
    return labels;
}

static void whole(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int rows = shapes[n].rows, cols = shapes[n].cols;
            struct tn_tensor *x = harness_tensor(h, dtype, 2, rows, cols), *dx = harness_like(h, dtype, x);
            struct tn_tensor *labels = labels_new(h, rows, cols), *lse = harness_tensor(h, TN_F32, 1, rows);
            struct tn_tensor *loss = scalar(h, 7), *seed = scalar(h, 0.37);
            harness_fill(x, 1, 12);
            COMPARE(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_CROSS_ENTROPY_DX, HARNESS_T(x, labels, lse, seed), HARNESS_T(dx), NO_ATTRS, 2e-6);
            COMPARE(h, TN_OP_CROSS_ENTROPY_DX, HARNESS_T(x, labels, lse, seed), HARNESS_T(x), NO_ATTRS, 2e-6);
            harness_clear(h);
        }
}

/* Two parts of the columns, joined as ranks would: m by max, zt by sum. */
static void cut(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int rows = shapes[n].rows, cols = shapes[n].cols;
            struct tn_tensor *labels = labels_new(h, rows, 2 * cols);
            struct tn_tensor *whole_x = harness_tensor(h, dtype, 2, rows, 2 * cols);
            struct tn_tensor *x[2], *m[2], *zt[2], *loss = scalar(h, 0), *lse = harness_tensor(h, TN_F32, 1, rows);
            struct tn_tensor *want_loss = scalar(h, 0), *want_lse = harness_like(h, TN_F32, lse),
                             *seed = scalar(h, 0.5);
            harness_fill(whole_x, 1, 12);
            for (int part = 0; part < 2; part++) {
                x[part] = harness_tensor(h, dtype, 2, rows, cols);
                x[part]->global[1] = 2 * cols;
                x[part]->offset[1] = part * cols;
                for (int64_t i = 0; i < (int64_t)rows * cols; i++)
                    harness_set(x[part], i, harness_get(whole_x, i / cols * 2 * cols + part * cols + i % cols));
                m[part] = harness_tensor(h, TN_F32, 1, rows);
                zt[part] = harness_tensor(h, TN_F32, 2, 2, rows);
                COMPARE(h, TN_OP_CE_MAX, HARNESS_T(x[part]), HARNESS_T(m[part]), NO_ATTRS, 0);
            }
            for (int i = 0; i < rows; i++)
                harness_set(m[0], i, fmax(harness_get(m[0], i), harness_get(m[1], i)));
            for (int part = 0; part < 2; part++)
                COMPARE(h, TN_OP_CE_SUM, HARNESS_T(x[part], labels, m[0]), HARNESS_T(zt[part]), NO_ATTRS, 4e-6);
            for (int i = 0; i < 2 * rows; i++)
                harness_set(zt[0], i, harness_get(zt[0], i) + harness_get(zt[1], i));
            COMPARE(h, TN_OP_CE_LOSS, HARNESS_T(zt[0], m[0], labels), HARNESS_T(loss, lse), NO_ATTRS, 1e-6);
            REFERENCE(TN_OP_CROSS_ENTROPY, HARNESS_T(whole_x, labels), HARNESS_T(want_loss, want_lse), NO_ATTRS);
            harness_check(loss, 0, harness_get(want_loss, 0), 1e-6);
            for (int part = 0; part < 2; part++)
                COMPARE(h, TN_OP_CROSS_ENTROPY_DX, HARNESS_T(x[part], labels, lse, seed), HARNESS_T(x[part]), NO_ATTRS,
                        2e-6);
            harness_clear(h);
        }
}

struct objective {
    struct tn_tensor *x, *labels, *loss, *lse;
};

static double objective(void *arg)
{
    struct objective *o = arg;
    REFERENCE(TN_OP_CROSS_ENTROPY, HARNESS_T(o->x, o->labels), HARNESS_T(o->loss, o->lse), NO_ATTRS);
    return harness_get(o->loss, 0);
}

static void slopes(struct harness *h)
{
    struct tn_tensor *x = filled(h, TN_F32, 1, 5, 13), *labels = labels_new(h, 5, 13), *loss = scalar(h, 0);
    struct tn_tensor *lse = harness_tensor(h, TN_F32, 1, 5), *dx = harness_like(h, TN_F32, x), *seed = scalar(h, 1);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS), TN_OK);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CROSS_ENTROPY_DX, HARNESS_T(x, labels, lse, seed), HARNESS_T(dx), NO_ATTRS),
                     TN_OK);
    struct objective o = { copied(h, TN_F64, x), labels, harness_like(h, TN_F64, loss), harness_like(h, TN_F64, lse) };
    check_slopes(o.x, dx, objective, &o, 1e-6);
}

/* All masked; logits of -infinity; huge ones; the label of no column; a NaN must show. */
static void extremes(struct harness *h)
{
    struct tn_tensor *x = harness_tensor(h, TN_F32, 2, 2, 2100), *labels = harness_tensor(h, TN_I32, 1, 2);
    struct tn_tensor *loss = scalar(h, 5), *lse = harness_tensor(h, TN_F32, 1, 2), *n = scalar(h, 0);
    harness_fill(x, 1, 1);
    harness_set(labels, 0, -1), harness_set(labels, 1, -1);
    COMPARE(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS, 1e-6);
    assert_true(harness_get(loss, 0) == 0);
    for (int i = 0; i < 1500; i++) /* more than one run of the online sum */
        harness_set(x, i, -INFINITY), harness_set(x, 4199 - i, i % 2 ? 30000 : -30000);
    harness_set(labels, 0, 2099), harness_set(labels, 1, 2098);
    COMPARE(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS, 1e-6);
    harness_set(labels, 0, 2100);
    COMPARE(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS, 1e-6);
    harness_set(x, 2000, NAN);
    assert_int_equal(HARNESS_RUN(h, TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels), HARNESS_T(loss, lse), NO_ATTRS), TN_OK);
    assert_true(isnan(harness_get(loss, 0)));
    COMPARE(h, TN_OP_COUNT_TARGETS, HARNESS_T(labels), HARNESS_T(n), NO_ATTRS, 0);
}

static void normaliser(struct harness *h, uint32_t dtype)
{
    struct tn_tensor *labels = labels_new(h, 37, 11), *count = scalar(h, 9), *seed = scalar(h, 9);
    COMPARE(h, TN_OP_COUNT_TARGETS, HARNESS_T(labels), HARNESS_T(count), NO_ATTRS, 0);
    assert_true(harness_get(count, 0) == 28);
    COMPARE(h, TN_OP_GRAD_SEED, HARNESS_T(count), HARNESS_T(seed), NO_ATTRS, 1e-7);
    harness_set(count, 0, 0); /* no target at all */
    COMPARE(h, TN_OP_GRAD_SEED, HARNESS_T(count), HARNESS_T(seed), NO_ATTRS, 0);
    for
        EACH_SHAPE
        {
            struct tn_tensor *x = filled(h, dtype, 1, shapes[n].rows, shapes[n].cols), *y = harness_like(h, dtype, x);
            struct tn_tensor *s = scalar(h, 0.3);
            COMPARE(h, TN_OP_SCALE_BY, HARNESS_T(x, s), HARNESS_T(y), NO_ATTRS, 1e-6);
            COMPARE(h, TN_OP_SCALE_BY, HARNESS_T(x, s), HARNESS_T(x), NO_ATTRS, 1e-6);
        }
}

static void threads_do_not_matter(void **state)
{
    struct harness h[2];
    struct tn_tensor *loss[2];
    for (int i = 0; i < 2; i++) {
        harness_open(&h[i], i ? 3 : 1, 0);
        struct tn_tensor *x = filled(&h[i], TN_F32, 1, 50, 999), *lse = harness_tensor(&h[i], TN_F32, 1, 50);
        loss[i] = scalar(&h[i], 0);
        assert_int_equal(HARNESS_RUN(&h[i], TN_OP_CROSS_ENTROPY, HARNESS_T(x, labels_new(&h[i], 50, 999)),
                                     HARNESS_T(loss[i], lse), NO_ATTRS),
                         TN_OK);
    }
    check_same_bytes(loss[0], loss[1]);
    harness_close(&h[0]);
    harness_close(&h[1]);
}

static void test_whole(void **state)
{
    compare_everywhere(whole);
}
static void test_cut(void **state)
{
    compare_everywhere(cut);
}
static void test_slopes(void **state)
{
    compare_everywhere_f32(slopes);
}
static void test_extremes(void **state)
{
    compare_everywhere_f32(extremes);
}
static void test_normaliser(void **state)
{
    compare_everywhere(normaliser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),    cmocka_unit_test(test_cut),        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_normaliser), cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests_name("cpu_loss", tests, NULL, NULL);
}
