/* embedding and embedding_dw of the cpu device against their references, on whole tables and on parts of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cpu_compare.h"

static const struct {
    int tokens, vocab, cols;
} shapes[] = {
    { 1, 1, 1 }, { 9, 5, 17 }, { 40, 11, 1 }, { 1, 300, 65 }, { 120, 50, 333 }, { 0, 5, 8 },
};

#define EACH_SHAPE (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)

/* Many equal ids among them. */
static struct tn_tensor *ids_new(struct harness *h, int tokens, int vocab)
{
    struct tn_tensor *ids = harness_tensor(h, TN_I32, 2, 1, tokens);
    for (int i = 0; i < tokens; i++)
        harness_set(ids, i, i % 3 ? (i * 7919 + 13) % vocab : vocab - 1);
    return ids;
}

/* Rows `first` to first + rows of a table of twice as many. */
static void cut(struct tn_tensor *w, int first)
{
    w->offset[0] = first;
    w->global[0] = 2 * w->shape[0];
}

static void forward(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int tokens = shapes[n].tokens, cols = shapes[n].cols, vocab = shapes[n].vocab;
            for (uint32_t of_w = TN_F32; of_w <= TN_BF16; of_w++) {
                struct tn_tensor *ids = ids_new(h, tokens, 2 * vocab), *w = filled(h, of_w, 1, vocab, cols);
                struct tn_tensor *y = harness_tensor(h, dtype, 3, 1, tokens, cols);
                struct tn_attr attr = TN_ATTR_I("dtype", dtype);
                harness_fill(y, 2, 1); /* rows of other parts must become zeros */
                for (int part = 0; part < 2; part++) {
                    cut(w, part * vocab);
                    COMPARE(h, TN_OP_EMBEDDING, HARNESS_T(ids, w), HARNESS_T(y), HARNESS_A(attr), 0);
                }
                harness_clear(h);
            }
        }
}

static void backward(struct harness *h, uint32_t dtype)
{
    for
        EACH_SHAPE
        {
            int tokens = shapes[n].tokens, cols = shapes[n].cols, vocab = shapes[n].vocab;
            struct tn_tensor *ids = ids_new(h, tokens, 2 * vocab), *dw = filled(h, TN_F32, 1, vocab, cols);
            struct tn_tensor *dy = harness_tensor(h, dtype, 3, 1, tokens, cols);
            struct tn_attr attr = TN_ATTR_I("rows", vocab);
            harness_fill(dy, 2, 1);
            for (int part = 0; part < 2; part++) {
                cut(dw, part * vocab);
                COMPARE(h, TN_OP_EMBEDDING_DW, HARNESS_T(ids, dy), HARNESS_T(dw), HARNESS_A(attr), 1e-5);
                COMPARE(h, TN_OP_EMBEDDING_DW, HARNESS_T(ids, dy, dw), HARNESS_T(dw), HARNESS_A(attr), 1e-5);
            }
            harness_clear(h);
        }
}

/* Ids that no table has are not read or written; guards around the tensors would show it. */
static void ids_outside(struct harness *h, uint32_t dtype)
{
    struct tn_tensor *ids = harness_tensor(h, TN_I32, 1, 4), *w = filled(h, TN_F32, 1, 3, 5);
    struct tn_tensor *y = filled(h, dtype, 2, 4, 5), *dw = harness_like(h, TN_F32, w);
    static const int32_t values[] = { -1, 3, INT32_MAX, INT32_MIN };
    memcpy(ids->data, values, sizeof values);
    COMPARE(h, TN_OP_EMBEDDING, HARNESS_T(ids, w), HARNESS_T(y), HARNESS_A(TN_ATTR_I("dtype", dtype)), 0);
    COMPARE(h, TN_OP_EMBEDDING_DW, HARNESS_T(ids, y), HARNESS_T(dw), HARNESS_A(TN_ATTR_I("rows", 3)), 0);
    for (int64_t i = 0; i < 15; i++)
        assert_true(harness_get(dw, i) == 0);
}

static void threads_do_not_matter(void **state)
{
    struct harness h[2];
    struct tn_tensor *dw[2];
    for (int i = 0; i < 2; i++) {
        harness_open(&h[i], i ? 3 : 1, 0);
        dw[i] = harness_tensor(&h[i], TN_F32, 2, 10, 333);
        struct tn_tensor *ids = ids_new(&h[i], 200, 10), *dy = filled(&h[i], TN_F32, 1, 200, 333);
        assert_int_equal(HARNESS_RUN(&h[i], TN_OP_EMBEDDING_DW, HARNESS_T(ids, dy), HARNESS_T(dw[i]),
                                     HARNESS_A(TN_ATTR_I("rows", 10))),
                         TN_OK);
    }
    check_same_bytes(dw[0], dw[1]);
    harness_close(&h[0]);
    harness_close(&h[1]);
}

static void test_forward(void **state)
{
    compare_everywhere(forward);
}
static void test_backward(void **state)
{
    compare_everywhere(backward);
}
static void test_ids_outside(void **state)
{
    compare_everywhere(ids_outside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_ids_outside),
        cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests_name("cpu_embedding", tests, NULL, NULL);
}
