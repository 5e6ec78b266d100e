/* Norms of the cpu device: every op against its reference, gradients against finite differences of the reference, and
 * the same bits for any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cpu_compare.h"

static const struct {
    int rows, cols;
} shapes[] = {
    { 1, 1 }, { 1, 64 }, { 7, 1 }, { 3, 17 }, { 5, 100 }, { 33, 65 }, { 2, 1031 }, { 70, 600 }, { 0, 8 },
};

#define EACH_SHAPE (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
#define EPS TN_ATTR_F("eps", 1e-5)

static struct tn_tensor *vector(struct harness *h, int n, uint64_t seed)
{
    struct tn_tensor *tensor = harness_tensor(h, TN_F32, 1, n);
    harness_fill(tensor, seed, 1);
    return tensor;
}

static void forward(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int rows = shapes[n].rows, cols = shapes[n].cols;
            struct tn_tensor *x = filled(h, dtype, 1, rows, cols), *y = harness_like(h, dtype, x);
            struct tn_tensor *w = vector(h, cols, 2), *b = vector(h, cols, 3);
            struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, rows), *rstd = harness_tensor(h, TN_F32, 1, rows);
            COMPARE(h, TN_OP_LAYERNORM, HARNESS_T(x, w, b), HARNESS_T(y, mean, rstd), HARNESS_A(EPS), 1e-5);
            COMPARE(h, TN_OP_RMSNORM, HARNESS_T(x, w), HARNESS_T(y, rstd), HARNESS_A(EPS), 1e-5);
            harness_clear(h);
        }
}

/* The mean is far from 0: a variance from sums of squares would lose it. What is left is the rounding of the mean. */
static void far_from_zero(struct harness *h)
{
    struct tn_tensor *x = filled(h, TN_F32, 1, 4, 300), *y = harness_like(h, TN_F32, x);
    for (int64_t i = 0; i < 1200; i++)
        harness_set(x, i, harness_get(x, i) + 1000);
    struct tn_tensor *w = vector(h, 300, 2), *b = vector(h, 300, 3);
    struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, 4), *rstd = harness_tensor(h, TN_F32, 1, 4);
    COMPARE(h, TN_OP_LAYERNORM, HARNESS_T(x, w, b), HARNESS_T(y, mean, rstd), HARNESS_A(EPS), 1e-4);
}

static void residual(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int rows = shapes[n].rows, cols = shapes[n].cols;
            for (int alias = 0; alias < 3; alias++) { /* r apart, in a, in b */
                struct tn_tensor *a = filled(h, dtype, 1, rows, cols), *b = filled(h, dtype, 2, rows, cols);
                struct tn_tensor *r = alias == 0 ? harness_like(h, dtype, a) : alias == 1 ? a : b;
                struct tn_tensor *y = harness_like(h, dtype, a), *w = vector(h, cols, 3), *bias = vector(h, cols, 4);
                struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, rows), *rstd = harness_tensor(h, TN_F32, 1, rows);
                COMPARE(h, TN_OP_ADD_LAYERNORM, HARNESS_T(a, b, w, bias), HARNESS_T(r, y, mean, rstd), HARNESS_A(EPS),
                        1e-5);
                harness_fill(a, 5, 1), harness_fill(b, 6, 1);
                COMPARE(h, TN_OP_ADD_RMSNORM, HARNESS_T(a, b, w), HARNESS_T(r, y, rstd), HARNESS_A(EPS), 1e-5);
                harness_clear(h);
            }
        }
}

/* Statistics as a forward pass leaves them. */
static void statistics(const struct tn_tensor *x, struct tn_tensor *mean, struct tn_tensor *rstd, struct tn_tensor *rms,
                       struct harness *h)
{
    struct tn_tensor *y = harness_like(h, TN_F64, x), *w = vector(h, (int)x->shape[1], 1);
    REFERENCE(TN_OP_LAYERNORM, HARNESS_T(x, w, w), HARNESS_T(y, mean, rstd), HARNESS_A(EPS));
    REFERENCE(TN_OP_RMSNORM, HARNESS_T(x, w), HARNESS_T(y, rms), HARNESS_A(EPS));
}

static void backward(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int rows = shapes[n].rows, cols = shapes[n].cols;
            struct tn_tensor *dy = filled(h, dtype, 1, rows, cols), *x = filled(h, dtype, 2, rows, cols);
            struct tn_tensor *res = filled(h, dtype, 3, rows, cols), *dx = harness_like(h, dtype, x);
            struct tn_tensor *w = vector(h, cols, 4), *dw = vector(h, cols, 5), *db = vector(h, cols, 6);
            struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, rows), *rstd = harness_like(h, TN_F32, mean);
            struct tn_tensor *rms = harness_like(h, TN_F32, mean);
            statistics(x, mean, rstd, rms, h);
            COMPARE(h, TN_OP_LAYERNORM_DX, HARNESS_T(dy, x, w, mean, rstd), HARNESS_T(dx), HARNESS_A(EPS), 1e-4);
            COMPARE(h, TN_OP_LAYERNORM_DX, HARNESS_T(dy, x, w, mean, rstd, NULL), HARNESS_T(dx), HARNESS_A(EPS), 1e-4);
            COMPARE(h, TN_OP_LAYERNORM_DX, HARNESS_T(dy, x, w, mean, rstd, res), HARNESS_T(dx), HARNESS_A(EPS), 1e-4);
            COMPARE(h, TN_OP_LAYERNORM_DX, HARNESS_T(dy, x, w, mean, rstd, res), HARNESS_T(res), HARNESS_A(EPS), 1e-4);
            COMPARE(h, TN_OP_RMSNORM_DX, HARNESS_T(dy, x, w, rms), HARNESS_T(dx), HARNESS_A(EPS), 1e-5);
            COMPARE(h, TN_OP_RMSNORM_DX, HARNESS_T(dy, x, w, rms, res), HARNESS_T(res), HARNESS_A(EPS), 1e-5);
            COMPARE(h, TN_OP_LAYERNORM_DW, HARNESS_T(dy, x, mean, rstd), HARNESS_T(dw, db), HARNESS_A(EPS), 2e-5);
            COMPARE(h, TN_OP_LAYERNORM_DW, HARNESS_T(dy, x, mean, rstd, dw, db), HARNESS_T(dw, db), HARNESS_A(EPS),
                    2e-5);
            COMPARE(h, TN_OP_RMSNORM_DW, HARNESS_T(dy, x, rms), HARNESS_T(dw), HARNESS_A(EPS), 2e-5);
            COMPARE(h, TN_OP_RMSNORM_DW, HARNESS_T(dy, x, rms, dw), HARNESS_T(dw), HARNESS_A(EPS), 2e-5);
            harness_clear(h);
        }
}

/* Norms of q and k: one w for every head of a row. */
static void groups(struct harness *h, uint32_t dtype)
{
    static const struct {
        int tokens, heads, dim;
    } cases[] = {
        { 1, 1, 4 },
        { 5, 3, 6 },
        { 90, 6, 64 },
        { 2, 2, 700 },
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        int tokens = cases[n].tokens, heads = cases[n].heads, dim = cases[n].dim;
        struct tn_tensor *x = filled(h, dtype, 1, tokens, heads * dim), *y = harness_like(h, dtype, x);
        struct tn_tensor *dy = filled(h, dtype, 2, tokens, heads * dim);
        struct tn_tensor *w = vector(h, dim, 3), *dw = vector(h, dim, 4);
        struct tn_tensor *rstd = harness_tensor(h, TN_F32, 2, tokens, heads);
        struct tn_attr group = TN_ATTR_I("group", dim);
        COMPARE(h, TN_OP_RMSNORM, HARNESS_T(x, w), HARNESS_T(y, rstd), HARNESS_A(EPS, group), 1e-5);
        COMPARE(h, TN_OP_RMSNORM_DX, HARNESS_T(dy, x, w, rstd), HARNESS_T(y), HARNESS_A(group), 1e-5);
        COMPARE(h, TN_OP_RMSNORM_DW, HARNESS_T(dy, x, rstd), HARNESS_T(dw), HARNESS_A(group), 2e-5);
        COMPARE(h, TN_OP_RMSNORM_DW, HARNESS_T(dy, x, rstd, dw), HARNESS_T(dw), HARNESS_A(group), 2e-5);
        harness_clear(h);
    }
}

/* --- gradients: sum(dy y) of the reference in f64 --- */

struct objective {
    uint32_t opcode;
    struct tn_tensor *x, *w, *b, *y, *mean, *rstd, *dy;
};

static double objective(void *arg)
{
    struct objective *o = arg;
    if (o->opcode == TN_OP_LAYERNORM)
        REFERENCE(o->opcode, HARNESS_T(o->x, o->w, o->b), HARNESS_T(o->y, o->mean, o->rstd), HARNESS_A(EPS));
    else
        REFERENCE(o->opcode, HARNESS_T(o->x, o->w), HARNESS_T(o->y, o->rstd), HARNESS_A(EPS));
    double sum = 0;
    for (int64_t i = 0; i < harness_elements(o->y); i++)
        sum += harness_get(o->y, i) * harness_get(o->dy, i);
    return sum;
}

static void slopes_of(struct harness *h, uint32_t opcode)
{
    struct tn_tensor *x = filled(h, TN_F32, 1, 4, 9), *dy = filled(h, TN_F32, 2, 4, 9), *w = vector(h, 9, 3);
    struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, 4), *rstd = harness_like(h, TN_F32, mean);
    struct tn_tensor *rms = harness_like(h, TN_F32, mean), *dx = harness_like(h, TN_F32, x);
    struct tn_tensor *dw = harness_like(h, TN_F32, w), *db = harness_like(h, TN_F32, w);
    statistics(x, mean, rstd, rms, h);
    struct objective o = { opcode,
                           copied(h, TN_F64, x),
                           copied(h, TN_F64, w),
                           copied(h, TN_F64, w),
                           harness_like(h, TN_F64, x),
                           harness_like(h, TN_F64, mean),
                           harness_like(h, TN_F64, mean),
                           dy };
    tn_status status;
    if (opcode == TN_OP_LAYERNORM) {
        status = HARNESS_RUN(h, TN_OP_LAYERNORM_DX, HARNESS_T(dy, x, w, mean, rstd), HARNESS_T(dx), HARNESS_A(EPS));
        assert_int_equal(status, TN_OK);
        status = HARNESS_RUN(h, TN_OP_LAYERNORM_DW, HARNESS_T(dy, x, mean, rstd), HARNESS_T(dw, db), HARNESS_A(EPS));
        check_slopes(o.b, db, objective, &o, 1e-5);
    } else {
        status = HARNESS_RUN(h, TN_OP_RMSNORM_DX, HARNESS_T(dy, x, w, rms), HARNESS_T(dx), HARNESS_A(EPS));
        assert_int_equal(status, TN_OK);
        status = HARNESS_RUN(h, TN_OP_RMSNORM_DW, HARNESS_T(dy, x, rms), HARNESS_T(dw), HARNESS_A(EPS));
    }
    assert_int_equal(status, TN_OK);
    check_slopes(o.x, dx, objective, &o, 1e-5);
    check_slopes(o.w, dw, objective, &o, 1e-5);
}

static void slopes(struct harness *h)
{
    slopes_of(h, TN_OP_LAYERNORM);
    slopes_of(h, TN_OP_RMSNORM);
}

/* --- one thread and three give the same bits --- */

static struct tn_tensor *dw_with(struct harness *h, int threads, uint32_t dtype, struct tn_tensor **db)
{
    harness_open(h, threads, 0);
    struct tn_tensor *dy = filled(h, dtype, 1, 200, 333), *x = filled(h, dtype, 2, 200, 333);
    struct tn_tensor *mean = harness_tensor(h, TN_F32, 1, 200), *rstd = harness_like(h, TN_F32, mean);
    harness_fill(mean, 3, 1), harness_fill(rstd, 4, 1);
    struct tn_tensor *dw = harness_tensor(h, TN_F32, 1, 333);
    *db = harness_like(h, TN_F32, dw);
    assert_int_equal(
        HARNESS_RUN(h, TN_OP_LAYERNORM_DW, HARNESS_T(dy, x, mean, rstd), HARNESS_T(dw, *db), HARNESS_A(EPS)), TN_OK);
    return dw;
}

static void threads_do_not_matter(void **state)
{
    for (uint32_t dtype = TN_F32; dtype <= TN_BF16; dtype++) {
        struct harness one, three;
        struct tn_tensor *db1, *db3, *dw1 = dw_with(&one, 1, dtype, &db1), *dw3 = dw_with(&three, 3, dtype, &db3);
        check_same_bytes(dw1, dw3);
        check_same_bytes(db1, db3);
        harness_close(&one);
        harness_close(&three);
    }
}

static void wrong_shapes_are_refused(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *x = filled(&h, TN_F32, 1, 3, 8), *y = harness_like(&h, TN_F32, x), *w = vector(&h, 7, 1);
    struct tn_tensor *rstd = harness_tensor(&h, TN_F32, 1, 3), *ids = harness_like(&h, TN_I32, x);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_RMSNORM, HARNESS_T(x, w), HARNESS_T(y, rstd), HARNESS_A(EPS)),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "weights"));
    assert_int_equal(HARNESS_RUN(&h, TN_OP_RMSNORM, HARNESS_T(ids, w), HARNESS_T(ids, rstd), HARNESS_A(EPS)),
                     TN_UNSUPPORTED);
    assert_int_equal(
        HARNESS_RUN(&h, TN_OP_RMSNORM, HARNESS_T(x, w), HARNESS_T(y, rstd), HARNESS_A(EPS, TN_ATTR_I("group", 3))),
        TN_UNSUPPORTED);
    harness_close(&h);
}

static void test_forward(void **state)
{
    compare_everywhere(forward);
}
static void test_far_from_zero(void **state)
{
    compare_everywhere_f32(far_from_zero);
}
static void test_residual(void **state)
{
    compare_everywhere(residual);
}
static void test_backward(void **state)
{
    compare_everywhere(backward);
}
static void test_groups(void **state)
{
    compare_everywhere(groups);
}
static void test_slopes(void **state)
{
    compare_everywhere_f32(slopes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),          cmocka_unit_test(test_far_from_zero),
        cmocka_unit_test(test_residual),         cmocka_unit_test(test_backward),
        cmocka_unit_test(test_groups),           cmocka_unit_test(test_slopes),
        cmocka_unit_test(threads_do_not_matter), cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("cpu_norm", tests, NULL, NULL);
}
