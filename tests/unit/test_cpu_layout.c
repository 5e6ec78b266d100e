/* slice, unslice, merge_blocks and split_blocks of the cpu device against their references, along every dimension and
 * for dtypes of every size; and that each undoes the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "cpu_compare.h"

static const uint32_t dtypes[] = { TN_F32, TN_BF16, TN_I32, TN_I64, TN_U8 };

static struct tn_tensor *counted(struct harness *h, uint32_t dtype, int a, int b, int c)
{
    struct tn_tensor *tensor = harness_tensor(h, dtype, 3, a, b, c);
    for (int64_t i = 0; i < harness_elements(tensor); i++)
        harness_set(tensor, i, (double)(i % 199 + 1));
    return tensor;
}

static void parts_along(struct harness *h, uint32_t dtype, int dim)
{
    static const int cuts[][2] = { { 0, 2 }, { 2, 2 }, { 4, 2 }, { 1, 5 }, { 0, 6 }, { 3, 0 } };
    for (size_t n = 0; n < sizeof cuts / sizeof cuts[0]; n++) {
        struct tn_tensor *whole = counted(h, dtype, 6, 6, 6), *back = counted(h, dtype, 6, 6, 6);
        int shape[3] = { 6, 6, 6 };
        shape[dim] = cuts[n][1];
        struct tn_tensor *part = harness_tensor(h, dtype, 3, shape[0], shape[1], shape[2]);
        whole->offset[dim] = back->offset[dim] = 12; /* itself a part of something */
        part->offset[dim] = 12 + cuts[n][0];
        struct tn_attr attr = TN_ATTR_I("dim", dim);
        COMPARE(h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(attr), 0);
        COMPARE(h, TN_OP_UNSLICE, HARNESS_T(part), HARNESS_T(back), HARNESS_A(attr), 0);
        harness_clear(h);
    }
}

static void parts(struct harness *h)
{
    for (size_t n = 0; n < sizeof dtypes / sizeof dtypes[0]; n++) {
        for (int dim = 0; dim < 3; dim++)
            parts_along(h, dtypes[n], dim);
    }
}

/* 30 elements on ranks of 8: the last one holds 6, or these and padding; with 16 there is one rank of padding only. */
static void flat_parts(struct harness *h)
{
    static const struct {
        int size, start;
    } cases[] = {
        { 8, 0 }, { 8, 8 }, { 8, 24 }, { 6, 24 }, { 16, 16 }, { 16, 32 }, { 0, 30 }, { 30, 0 },
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            struct tn_tensor *whole = counted(h, dtypes[d], 2, 3, 5), *back = counted(h, dtypes[d], 2, 3, 5);
            struct tn_tensor *part = harness_tensor(h, dtypes[d], 1, cases[n].size);
            for (int i = 0; i < cases[n].size; i++)
                harness_set(part, i, 99);
            struct tn_attr dim = TN_ATTR_I("dim", -1);
            part->offset[0] = cases[n].start;
            COMPARE(h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(dim), 0);
            COMPARE(h, TN_OP_UNSLICE, HARNESS_T(part), HARNESS_T(back), HARNESS_A(dim), 0);
            harness_clear(h);
        }
    }
}

static void blocks(struct harness *h)
{
    for (size_t n = 0; n < sizeof dtypes / sizeof dtypes[0]; n++) {
        for (int dim = 0; dim < 3; dim++) {
            for (int count = 1; count <= 6; count++) {
                if (6 % count)
                    continue;
                struct tn_tensor *x = counted(h, dtypes[n], dim == 0 ? 6 : 2, dim == 1 ? 6 : 3, dim == 2 ? 6 : 5);
                struct tn_tensor *y = harness_like(h, dtypes[n], x), *back = harness_like(h, dtypes[n], x);
                struct tn_attr along = TN_ATTR_I("dim", dim), parts_of = TN_ATTR_I("parts", count);
                COMPARE(h, TN_OP_MERGE_BLOCKS, HARNESS_T(x), HARNESS_T(y), HARNESS_A(along, parts_of), 0);
                COMPARE(h, TN_OP_SPLIT_BLOCKS, HARNESS_T(y), HARNESS_T(back), HARNESS_A(along, parts_of), 0);
                check_same_bytes(x, back);
                if (6 % (2 * count) == 0) {
                    struct tn_attr zigzag = TN_ATTR_I("order", TN_ORDER_ZIGZAG);
                    COMPARE(h, TN_OP_MERGE_BLOCKS, HARNESS_T(x), HARNESS_T(y), HARNESS_A(along, parts_of, zigzag), 0);
                    COMPARE(h, TN_OP_SPLIT_BLOCKS, HARNESS_T(y), HARNESS_T(back), HARNESS_A(along, parts_of, zigzag),
                            0);
                    check_same_bytes(x, back);
                }
                harness_clear(h);
            }
        }
    }
}

/* Two blocks of four rows: tokens 0 1 6 7 and 2 3 4 5. */
static void zigzag(void **state)
{
    static const float blocks_of[] = { 0, 1, 6, 7, 2, 3, 4, 5 };
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *x = harness_tensor(&h, TN_F32, 1, 8), *y = harness_like(&h, TN_F32, x);
    memcpy(x->data, blocks_of, sizeof blocks_of);
    assert_int_equal(
        HARNESS_RUN(&h, TN_OP_MERGE_BLOCKS, HARNESS_T(x), HARNESS_T(y),
                    HARNESS_A(TN_ATTR_I("dim", 0), TN_ATTR_I("parts", 2), TN_ATTR_I("order", TN_ORDER_ZIGZAG))),
        TN_OK);
    for (int n = 0; n < 8; n++)
        harness_check(y, n, n, 0);
    harness_close(&h);
}

/* Large enough for more than one thread, in one piece and in many. */
static void large(struct harness *h)
{
    struct tn_tensor *whole = counted(h, TN_F32, 2, 300, 301), *y = harness_like(h, TN_F32, whole);
    struct tn_tensor *part = harness_tensor(h, TN_F32, 3, 1, 300, 301), *flat = harness_tensor(h, TN_F32, 1, 100000);
    part->offset[0] = 1;
    struct tn_attr first = TN_ATTR_I("dim", 0), middle = TN_ATTR_I("dim", 1), parts_of = TN_ATTR_I("parts", 5);
    COMPARE(h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(first), 0);
    COMPARE(h, TN_OP_UNSLICE, HARNESS_T(part), HARNESS_T(y), HARNESS_A(first), 0);
    flat->offset[0] = 100000;
    COMPARE(h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(flat), HARNESS_A(TN_ATTR_I("dim", -1)), 0);
    COMPARE(h, TN_OP_MERGE_BLOCKS, HARNESS_T(whole), HARNESS_T(y), HARNESS_A(middle, parts_of), 0);
    COMPARE(h, TN_OP_SPLIT_BLOCKS, HARNESS_T(whole), HARNESS_T(y), HARNESS_A(middle, parts_of), 0);
}

static void wrong_shapes_are_refused(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *whole = counted(&h, TN_F32, 6, 6, 6), *part = counted(&h, TN_F32, 6, 3, 6);
    struct tn_attr dim = TN_ATTR_I("dim", 1);
    part->offset[1] = 4; /* reaches beyond the whole */
    assert_int_equal(HARNESS_RUN(&h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(dim)), TN_UNSUPPORTED);
    part->offset[1] = 3;
    assert_int_equal(HARNESS_RUN(&h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(TN_ATTR_I("dim", 2))),
                     TN_UNSUPPORTED);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_SLICE, HARNESS_T(whole), HARNESS_T(part), HARNESS_A(TN_ATTR_I("dim", -1))),
                     TN_UNSUPPORTED);
    assert_int_equal(
        HARNESS_RUN(&h, TN_OP_MERGE_BLOCKS, HARNESS_T(whole), HARNESS_T(whole), HARNESS_A(dim, TN_ATTR_I("parts", 4))),
        TN_UNSUPPORTED);
    harness_close(&h);
}

static void test_parts(void **state)
{
    compare_everywhere_f32(parts);
}
static void test_flat_parts(void **state)
{
    compare_everywhere_f32(flat_parts);
}
static void test_blocks(void **state)
{
    compare_everywhere_f32(blocks);
}
static void test_large(void **state)
{
    compare_everywhere_f32(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_flat_parts), cmocka_unit_test(test_blocks),
        cmocka_unit_test(zigzag),     cmocka_unit_test(test_large),      cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("cpu_layout", tests, NULL, NULL);
}
