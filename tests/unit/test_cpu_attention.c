/* attention and attention_dx of the cpu device against plain double loops, and the gradient against finite
 * differences of the loops; over odd sizes, groups of query heads, dtypes, instruction levels and threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_harness.h"

struct shape {
    int batch, q_length, k_length, heads, kv_heads, head_dim, causal;
};

static const struct shape shapes[] = {
    { 1, 1, 1, 1, 1, 8, 1 },     { 2, 5, 5, 2, 2, 16, 1 },     { 1, 64, 64, 2, 1, 64, 1 }, { 1, 67, 67, 4, 2, 24, 1 },
    { 2, 33, 33, 3, 3, 40, 0 },  { 1, 130, 130, 6, 2, 12, 1 }, { 1, 70, 70, 2, 2, 80, 1 }, { 1, 66, 66, 1, 1, 256, 1 },
    { 1, 129, 129, 8, 1, 8, 0 }, { 1, 40, 150, 2, 1, 32, 0 },  { 1, 200, 3, 2, 2, 9, 0 },  { 1, 257, 257, 1, 1, 96, 1 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct problem {
    struct shape s;
    struct tn_tensor *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv;
};

/* --- the reference --- */

static double at(const struct tn_tensor *x, struct shape s, int heads, int b, int row, int head, int d)
{
    return harness_get(x, ((int64_t)b * x->shape[1] + row) * heads * s.head_dim + head * s.head_dim + d);
}

static int kv_of(struct shape s, int head)
{
    return head / (s.heads / s.kv_heads);
}

/* Softmax weights of one query over the keys, and its log of the sum. */
static double weights(const struct problem *p, int b, int row, int head, double *weight)
{
    struct shape s = p->s;
    int keys = s.causal ? row + 1 : s.k_length;
    double most = -INFINITY, sum = 0;
    for (int key = 0; key < s.k_length; key++) {
        double dot = 0;
        for (int d = 0; d < s.head_dim; d++)
            dot += at(p->q, s, s.heads, b, row, head, d) * at(p->k, s, s.kv_heads, b, key, kv_of(s, head), d);
        weight[key] = key < keys ? dot / sqrt(s.head_dim) : -INFINITY;
        most = fmax(most, weight[key]);
    }
    for (int key = 0; key < s.k_length; key++)
        sum += weight[key] = exp(weight[key] - most);
    for (int key = 0; key < s.k_length; key++)
        weight[key] /= sum;
    return most + log(sum);
}

static double output_of(const struct problem *p, int b, int head, int d, const double *weight)
{
    double sum = 0;
    for (int key = 0; key < p->s.k_length; key++)
        sum += weight[key] * at(p->v, p->s, p->s.kv_heads, b, key, kv_of(p->s, head), d);
    return sum;
}

static void check_forward(const struct problem *p, double tolerance)
{
    struct shape s = p->s;
    double *weight = calloc((size_t)s.k_length, sizeof *weight);
    for (int b = 0; b < s.batch; b++) {
        for (int row = 0; row < s.q_length; row++) {
            for (int head = 0; head < s.heads; head++) {
                int64_t place = ((int64_t)b * s.q_length + row) * s.heads + head;
                double lse = weights(p, b, row, head, weight);
                harness_check(p->lse, place, lse, 1e-5);
                for (int d = 0; d < s.head_dim; d++)
                    harness_check(p->o, place * s.head_dim + d, output_of(p, b, head, d, weight), tolerance);
            }
        }
    }
    free(weight);
}

/* dq, dk, dv by the chain rule, into arrays of doubles. */
static void gradients(const struct problem *p, double *dq, double *dk, double *dv)
{
    struct shape s = p->s;
    double *weight = calloc((size_t)s.k_length, sizeof *weight), *dp = calloc((size_t)s.k_length, sizeof *dp);
    for (int n = 0; n < s.batch * s.q_length * s.heads; n++) {
        int b = n / s.heads / s.q_length, row = n / s.heads % s.q_length, head = n % s.heads, kv = kv_of(s, head);
        double mean = 0;
        (void)weights(p, b, row, head, weight);
        for (int key = 0; key < s.k_length; key++) {
            dp[key] = 0;
            for (int d = 0; d < s.head_dim; d++)
                dp[key] += at(p->d_o, s, s.heads, b, row, head, d) * at(p->v, s, s.kv_heads, b, key, kv, d);
            mean += weight[key] * dp[key];
        }
        for (int key = 0; key < s.k_length; key++) {
            double ds = weight[key] * (dp[key] - mean) / sqrt(s.head_dim);
            int64_t to_q = (int64_t)n * s.head_dim;
            int64_t to_k = (((int64_t)b * s.k_length + key) * s.kv_heads + kv) * s.head_dim;
            for (int d = 0; d < s.head_dim; d++) {
                dq[to_q + d] += ds * at(p->k, s, s.kv_heads, b, key, kv, d);
                dk[to_k + d] += ds * at(p->q, s, s.heads, b, row, head, d);
                dv[to_k + d] += weight[key] * at(p->d_o, s, s.heads, b, row, head, d);
            }
        }
    }
    free(weight);
    free(dp);
}

static void check_tensor(const struct tn_tensor *got, const double *want, double tolerance)
{
    for (int64_t n = 0; n < harness_elements(got); n++)
        harness_check(got, n, want[n], tolerance);
}

static void check_backward(const struct problem *p, double tolerance)
{
    double *dq = calloc((size_t)harness_elements(p->q), sizeof *dq);
    double *dk = calloc((size_t)harness_elements(p->k), sizeof *dk);
    double *dv = calloc((size_t)harness_elements(p->v), sizeof *dv);
    gradients(p, dq, dk, dv);
    check_tensor(p->dq, dq, tolerance);
    check_tensor(p->dk, dk, tolerance);
    check_tensor(p->dv, dv, tolerance);
    free(dq);
    free(dk);
    free(dv);
}

/* --- running --- */

static void make(struct harness *h, struct problem *p, struct shape s, uint32_t dtype)
{
    p->s = s;
    p->q = harness_tensor(h, dtype, 3, s.batch, s.q_length, s.heads * s.head_dim);
    p->k = harness_tensor(h, dtype, 3, s.batch, s.k_length, s.kv_heads * s.head_dim);
    p->v = harness_like(h, dtype, p->k);
    p->o = harness_like(h, dtype, p->q);
    p->d_o = harness_like(h, dtype, p->q);
    p->dq = harness_like(h, dtype, p->q);
    p->dk = harness_like(h, dtype, p->k);
    p->dv = harness_like(h, dtype, p->k);
    p->lse = harness_tensor(h, TN_F32, 3, s.batch, s.q_length, s.heads);
    harness_fill(p->q, 1, 2);
    harness_fill(p->k, 2, 2);
    harness_fill(p->v, 3, 1);
    harness_fill(p->d_o, 4, 1);
}

static void run(struct harness *h, struct problem *p)
{
    const struct tn_attr attrs[] = { TN_ATTR_F("scale", 1.0 / sqrt(p->s.head_dim)),
                                     TN_ATTR_I("head_dim", p->s.head_dim), TN_ATTR_I("causal", p->s.causal) };
    assert_int_equal(HARNESS_RUN(h, TN_OP_ATTENTION, HARNESS_T(p->q, p->k, p->v), HARNESS_T(p->o, p->lse), attrs),
                     TN_OK);
    assert_int_equal(HARNESS_RUN(h, TN_OP_ATTENTION_DX, HARNESS_T(p->d_o, p->q, p->k, p->v, p->o, p->lse),
                                 HARNESS_T(p->dq, p->dk, p->dv), attrs),
                     TN_OK);
}

static void check_all(int64_t threads, int64_t isa, uint32_t dtype)
{
    struct harness h;
    harness_open(&h, threads, isa);
    for (size_t n = 0; n < SHAPES; n++) {
        struct problem p;
        make(&h, &p, shapes[n], dtype);
        run(&h, &p);
        check_forward(&p, dtype == TN_BF16 ? 1e-2 : 1e-5);
        check_backward(&p, dtype == TN_BF16 ? 4e-2 : 5e-5);
        harness_clear(&h);
    }
    harness_close(&h);
}

static void f32_one_thread(void **state)
{
    check_all(1, 0, TN_F32);
}

static void f32_many_threads(void **state)
{
    check_all(2, 0, TN_F32);
    check_all(3, 0, TN_F32);
}

static void bf16_one_thread(void **state)
{
    check_all(1, 0, TN_BF16);
}

static void bf16_two_threads(void **state)
{
    check_all(2, 0, TN_BF16);
}

static void baseline(void **state)
{
    check_all(1, 1, TN_F32);
    check_all(1, 1, TN_BF16);
}

static void avx2(void **state)
{
    check_all(1, 2, TN_F32);
    check_all(1, 2, TN_BF16);
}

static void avx512(void **state)
{
    check_all(1, 3, TN_F32);
    check_all(1, 3, TN_BF16);
}

static void avx512_bf16(void **state)
{
    check_all(1, 4, TN_BF16);
}

/* --- properties --- */

/* Sum of o * do, in double from the reference. */
static double objective(const struct problem *p)
{
    struct shape s = p->s;
    double sum = 0, *weight = calloc((size_t)s.k_length, sizeof *weight);
    for (int n = 0; n < s.batch * s.q_length * s.heads; n++) {
        int b = n / s.heads / s.q_length, row = n / s.heads % s.q_length, head = n % s.heads;
        (void)weights(p, b, row, head, weight);
        for (int d = 0; d < s.head_dim; d++)
            sum += output_of(p, b, head, d, weight) * at(p->d_o, s, s.heads, b, row, head, d);
    }
    free(weight);
    return sum;
}

static void check_difference(struct problem *p, struct tn_tensor *x, const struct tn_tensor *dx, int64_t index)
{
    double value = harness_get(x, index), step = 0x1p-8;
    harness_set(x, index, value + step);
    double above = objective(p);
    harness_set(x, index, value - step);
    double below = objective(p);
    harness_set(x, index, value);
    harness_check(dx, index, (above - below) / (2 * step), 1e-3);
}

static void gradient_is_that_of_finite_differences(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 1, 9, 9, 4, 2, 8, 1 }, TN_F32);
    run(&h, &p);
    for (int64_t index = 0; index < harness_elements(p.q); index += 23)
        check_difference(&p, p.q, p.dq, index);
    for (int64_t index = 0; index < harness_elements(p.k); index += 11) {
        check_difference(&p, p.k, p.dk, index);
        check_difference(&p, p.v, p.dv, index);
    }
    harness_close(&h);
}

/* Scores of +-1000 neither overflow nor hide each other. */
static void large_scores_stay_finite(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 1, 70, 70, 1, 1, 16, 1 }, TN_F32);
    harness_fill(p.q, 1, 40);
    harness_fill(p.k, 2, 40);
    run(&h, &p);
    check_forward(&p, 1e-3);
    for (int64_t n = 0; n < harness_elements(p.q); n++)
        assert_true(isfinite(harness_get(p.dq, n)) && isfinite(harness_get(p.dk, n)));
    harness_close(&h);
}

/* A training step must be able to see that something is wrong, whatever bits the wrong number has. */
static void check_nan(int64_t isa)
{
    static const uint32_t wrong[] = { 0x7fc00000, 0xffc00000, 0x7fc00001, 0xffffffff, 0x7f800001, 0x7f800000 };
    struct harness h;
    harness_open(&h, 1, isa);
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        struct problem p;
        make(&h, &p, (struct shape){ 1, 5, 5, 1, 1, 16, 1 }, TN_F32);
        memcpy((float *)p.k->data + 2 * 16 + 3, &wrong[n], sizeof wrong[n]);
        harness_set(p.q, 4 * 16 + 3, 0.5);
        run(&h, &p);
        assert_true(isfinite(harness_get(p.o, 0)) && isfinite(harness_get(p.lse, 0)));
        assert_true(isnan(harness_get(p.o, 4 * 16)) && !isfinite(harness_get(p.lse, 4)));
        assert_true(isnan(harness_get(p.dq, 4 * 16)) && isnan(harness_get(p.dk, 0)));
        harness_clear(&h);
    }
    harness_close(&h);
}

static void nan_is_not_hidden(void **state)
{
    check_nan(1);
}

static void nan_is_not_hidden_avx2(void **state)
{
    check_nan(2);
}

static void nan_is_not_hidden_avx512(void **state)
{
    check_nan(3);
}

static void runs_repeat_to_the_bit(void **state)
{
    struct harness h;
    harness_open(&h, 3, 0);
    struct problem one, two;
    make(&h, &one, (struct shape){ 1, 200, 200, 4, 1, 32, 1 }, TN_F32);
    make(&h, &two, one.s, TN_F32);
    run(&h, &one);
    for (int n = 0; n < 5; n++) {
        run(&h, &two);
        assert_memory_equal(one.dq->data, two.dq->data, 4 * (size_t)harness_elements(one.dq));
        assert_memory_equal(one.dk->data, two.dk->data, 4 * (size_t)harness_elements(one.dk));
        assert_memory_equal(one.dv->data, two.dv->data, 4 * (size_t)harness_elements(one.dv));
    }
    harness_close(&h);
}

/* Scratch grows with the length, not with its square. */
static void memory_is_linear_in_the_sequence(void **state)
{
    struct harness h;
    harness_open(&h, 2, 0);
    uint64_t bytes[2] = { 0, 0 };
    for (int n = 0; n < 2; n++) {
        struct tn_tensor x = { .struct_size = sizeof x, .dtype = TN_F32, .rank = 3, .shape = { 1, 4096 << n, 512 } };
        struct tn_tensor lse = { .struct_size = sizeof x, .dtype = TN_F32, .rank = 3, .shape = { 1, 4096 << n, 8 } };
        const struct tn_attr attr = TN_ATTR_I("head_dim", 64);
        struct tn_op_desc op = { sizeof op,
                                 TN_OP_ATTENTION_DX,
                                 "attention_dx",
                                 6,
                                 3,
                                 HARNESS_T(&x, &x, &x, &x, &x, &lse),
                                 HARNESS_T(&x, &x, &x),
                                 &attr,
                                 1,
                                 sizeof attr };
        assert_int_equal(h.device->workspace(h.self, &op, &bytes[n]), TN_OK);
    }
    assert_true(bytes[1] > bytes[0] && bytes[1] <= 2 * bytes[0]);
    harness_close(&h);
}

static void wrong_shapes_are_refused(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *q = harness_tensor(&h, TN_F32, 3, 1, 4, 24), *k = harness_tensor(&h, TN_F32, 3, 1, 4, 16);
    struct tn_tensor *lse = harness_tensor(&h, TN_F32, 3, 1, 4, 3), *half = harness_tensor(&h, TN_F16, 3, 1, 4, 24);
    const struct tn_attr eight = TN_ATTR_I("head_dim", 8), five = TN_ATTR_I("head_dim", 5);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION, HARNESS_T(q, k, k), HARNESS_T(q, lse), HARNESS_A(eight)),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "2 key heads do not divide 3"));
    assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION, HARNESS_T(q, q, q), HARNESS_T(q, lse), HARNESS_A(five)),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "head_dim = 5"));
    assert_int_equal(
        HARNESS_RUN(&h, TN_OP_ATTENTION, HARNESS_T(half, half, half), HARNESS_T(half, lse), HARNESS_A(eight)),
        TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "bf16"));
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_one_thread),
        cmocka_unit_test(f32_many_threads),
        cmocka_unit_test(bf16_one_thread),
        cmocka_unit_test(bf16_two_threads),
        cmocka_unit_test(baseline),
        cmocka_unit_test(avx2),
        cmocka_unit_test(avx512),
        cmocka_unit_test(avx512_bf16),
        cmocka_unit_test(gradient_is_that_of_finite_differences),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(nan_is_not_hidden_avx2),
        cmocka_unit_test(nan_is_not_hidden_avx512),
        cmocka_unit_test(runs_repeat_to_the_bit),
        cmocka_unit_test(memory_is_linear_in_the_sequence),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("cpu_attention", tests, NULL, NULL);
}
