/* linear, linear_dx, linear_dw of the cpu device against plain double loops, and the device table itself: refusals,
 * two instances in one process, and launches that do not allocate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_harness.h"

struct shape {
    int t, in, out;
};

/* Odd sizes, single rows and columns, a part of a vocabulary; sides and sums so long that they are cut. */
static const struct shape shapes[] = {
    { 1, 1, 1 },   { 1, 64, 48 },   { 5, 1, 7 },      { 3, 17, 1 },     { 16, 32, 64 },   { 33, 47, 65 },
    { 7, 100, 3 }, { 64, 96, 130 }, { 2, 24, 25105 }, { 33, 1701, 50 }, { 41, 35, 1601 },
};

/* bf16: half a unit of 8 bits, and the rounding of the output. f32: grows with the number of terms, whose order is
 * the library's. */
static double tolerance_of(uint32_t dtype, int terms)
{
    return dtype == TN_BF16 ? 2e-2 : terms > 1000 ? 1e-4 : 2e-5;
}

/* Sum over k of a[m, k] b[k, n], by strides. */
static double product(const struct tn_tensor *a, int64_t a_row, int64_t a_col, const struct tn_tensor *b, int64_t b_row,
                      int64_t b_col, int64_t m, int64_t n, int64_t k_end)
{
    double sum = 0;
    for (int64_t k = 0; k < k_end; k++)
        sum += harness_get(a, m * a_row + k * a_col) * harness_get(b, k * b_row + n * b_col);
    return sum;
}

/* Every output, or a sample of them where there are many. */
static int64_t step_of(int64_t elements)
{
    return elements > 20000 ? 37 : 1;
}

static struct tn_tensor *weights(struct harness *h, uint32_t dtype, struct shape s, int trans)
{
    return harness_tensor(h, dtype, 2, trans ? s.out : s.in, trans ? s.in : s.out);
}

static void check_linear(struct harness *h, struct shape s, uint32_t dtype, int trans, int with_bias)
{
    struct tn_tensor *x = harness_tensor(h, dtype, 2, s.t, s.in), *w = weights(h, dtype, s, trans);
    struct tn_tensor *bias = with_bias ? harness_tensor(h, TN_F32, 1, s.out) : NULL;
    struct tn_tensor *y = harness_tensor(h, dtype, 2, s.t, s.out);
    harness_fill(x, 1, 1), harness_fill(w, 2, 1), harness_fill(y, 9, 1);
    if (bias)
        harness_fill(bias, 3, 1);
    assert_int_equal(
        HARNESS_RUN(h, TN_OP_LINEAR, HARNESS_T(x, w, bias), HARNESS_T(y), HARNESS_A(TN_ATTR_I("trans", trans))), TN_OK);
    int64_t row = trans ? 1 : s.out, col = trans ? s.in : 1;
    for (int64_t i = 0; i < (int64_t)s.t * s.out; i += step_of((int64_t)s.t * s.out)) {
        double want = product(x, s.in, 1, w, row, col, i / s.out, i % s.out, s.in);
        harness_check(y, i, want + (bias ? harness_get(bias, i % s.out) : 0), tolerance_of(dtype, s.in));
    }
}

static void check_linear_dx(struct harness *h, struct shape s, uint32_t dtype, int trans, int with_acc)
{
    struct tn_tensor *dy = harness_tensor(h, dtype, 2, s.t, s.out), *w = weights(h, dtype, s, trans);
    struct tn_tensor *dx = harness_tensor(h, dtype, 2, s.t, s.in), *before = harness_like(h, dtype, dx);
    harness_fill(dy, 1, 0.3), harness_fill(w, 2, 0.3), harness_fill(dx, 3, 1), harness_fill(before, 3, 1);
    assert_int_equal(HARNESS_RUN(h, TN_OP_LINEAR_DX, HARNESS_T(dy, w, with_acc ? dx : NULL), HARNESS_T(dx),
                                 HARNESS_A(TN_ATTR_I("trans", trans))),
                     TN_OK);
    int64_t row = trans ? s.in : 1, col = trans ? 1 : s.out; /* of w^T as [out, in] */
    for (int64_t i = 0; i < (int64_t)s.t * s.in; i += step_of((int64_t)s.t * s.in)) {
        double want = product(dy, s.out, 1, w, row, col, i / s.in, i % s.in, s.out);
        double tolerance = tolerance_of(dtype, s.out) * (s.out > 10000 ? 10 : 1);
        harness_check(dx, i, want + (with_acc ? harness_get(before, i) : 0), tolerance);
    }
}

static void check_linear_dw(struct harness *h, struct shape s, uint32_t dtype, int trans, int with_acc)
{
    struct tn_tensor *x = harness_tensor(h, dtype, 2, s.t, s.in), *dy = harness_tensor(h, dtype, 2, s.t, s.out);
    struct tn_tensor *dw = weights(h, TN_F32, s, trans), *before = harness_like(h, TN_F32, dw);
    harness_fill(x, 1, 1), harness_fill(dy, 2, 1), harness_fill(dw, 3, 1), harness_fill(before, 3, 1);
    assert_int_equal(HARNESS_RUN(h, TN_OP_LINEAR_DW, HARNESS_T(x, dy, with_acc ? dw : NULL), HARNESS_T(dw),
                                 HARNESS_A(TN_ATTR_I("trans", trans))),
                     TN_OK);
    int64_t cols = trans ? s.in : s.out;
    for (int64_t i = 0; i < (int64_t)s.in * s.out; i += step_of((int64_t)s.in * s.out)) {
        double want = trans ? product(dy, 1, s.out, x, s.in, 1, i / cols, i % cols, s.t)
                            : product(x, 1, s.in, dy, s.out, 1, i / cols, i % cols, s.t);
        harness_check(dw, i, want + (with_acc ? harness_get(before, i) : 0), 2e-5);
    }
}

enum { LONG_SHAPES = sizeof shapes / sizeof shapes[0] - 3 };

static void check_from(size_t first, int threads, uint32_t dtype, int64_t isa)
{
    struct harness h;
    harness_open(&h, threads, isa);
    for (size_t n = first; n < sizeof shapes / sizeof shapes[0]; n++) {
        for (int form = 0; form < 4; form++) {
            check_linear(&h, shapes[n], dtype, form & 1, form >> 1);
            check_linear_dx(&h, shapes[n], dtype, form & 1, form >> 1);
            check_linear_dw(&h, shapes[n], dtype, form & 1, form >> 1);
            harness_clear(&h);
        }
    }
    harness_close(&h);
}

static void check_all(int threads, uint32_t dtype)
{
    check_from(0, threads, dtype, 0);
}

static void linear_f32_one_thread(void **state)
{
    check_all(1, TN_F32);
}

static void linear_f32_two_threads(void **state)
{
    check_all(2, TN_F32);
}

static void linear_bf16_one_thread(void **state)
{
    check_all(1, TN_BF16);
}

static void linear_bf16_two_threads(void **state)
{
    check_all(2, TN_BF16);
}

/* Parts that differ in size; and with a level below AVX-512, oneDNN for all. */
static void linear_three_threads(void **state)
{
    check_from(LONG_SHAPES, 3, TN_F32, 0);
    check_from(LONG_SHAPES, 3, TN_BF16, 0);
}

static void linear_f32_by_onednn(void **state)
{
    check_from(LONG_SHAPES, 2, TN_F32, 2);
}

static void linear_bf16_by_onednn(void **state)
{
    check_from(LONG_SHAPES, 2, TN_BF16, 2);
}

/* f32 at AVX-512 without its bf16 instructions. */
static void linear_avx512(void **state)
{
    check_from(LONG_SHAPES, 2, TN_F32, 3);
    check_from(LONG_SHAPES, 1, TN_BF16, 3);
}

/* bf16 by pairs on a processor that has tiles too. */
static void linear_avx512_bf16(void **state)
{
    check_from(LONG_SHAPES, 2, TN_BF16, 4);
}

/* [B, S, K] is [B S, K]. */
static void linear_takes_any_rank(void **state)
{
    struct harness h;
    harness_open(&h, 2, 0);
    struct tn_tensor *x = harness_tensor(&h, TN_F32, 3, 2, 3, 8), *w = harness_tensor(&h, TN_F32, 2, 8, 5);
    struct tn_tensor *y = harness_tensor(&h, TN_F32, 3, 2, 3, 5);
    harness_fill(x, 1, 1), harness_fill(w, 2, 1);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_LINEAR, HARNESS_T(x, w), HARNESS_T(y), HARNESS_A(TN_ATTR_I("trans", 0))),
                     TN_OK);
    for (int64_t i = 0; i < 30; i++)
        harness_check(y, i, product(x, 8, 1, w, 5, 1, i / 5, i % 5, 8), 1e-5);
    harness_close(&h);
}

/* Rows may run out on a rank: a weight gradient over none is zero, or what was there. */
static void linear_dw_over_no_rows(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *x = harness_tensor(&h, TN_F32, 2, 0, 3), *dy = harness_tensor(&h, TN_F32, 2, 0, 2);
    struct tn_tensor *dw = harness_tensor(&h, TN_F32, 2, 3, 2);
    harness_set(dw, 4, 7);
    const struct tn_attr trans = TN_ATTR_I("trans", 0);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_LINEAR_DW, HARNESS_T(x, dy, dw), HARNESS_T(dw), HARNESS_A(trans)), TN_OK);
    harness_check(dw, 4, 7, 0);
    assert_int_equal(HARNESS_RUN(&h, TN_OP_LINEAR_DW, HARNESS_T(x, dy, NULL), HARNESS_T(dw), HARNESS_A(trans)), TN_OK);
    harness_check(dw, 4, 0, 0);
    harness_close(&h);
}

/* --- refusals: a status and a message, never a wrong result --- */

static void refuses(struct harness *h, uint32_t opcode, const struct tn_tensor *a, const struct tn_tensor *b,
                    const struct tn_tensor *y, const char *word)
{
    assert_int_equal(HARNESS_RUN(h, opcode, HARNESS_T(a, b), HARNESS_T(y), HARNESS_A(TN_ATTR_I("trans", 0))),
                     TN_UNSUPPORTED);
    if (!strstr(h->message, word))
        fail_msg("no \"%s\" in \"%s\"", word, h->message);
}

static void unsupported_is_said(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct tn_tensor *x = harness_tensor(&h, TN_F32, 2, 4, 8), *w = harness_tensor(&h, TN_F32, 2, 8, 5);
    struct tn_tensor *y = harness_tensor(&h, TN_F32, 2, 4, 5), *bf16 = harness_tensor(&h, TN_BF16, 2, 8, 5);
    struct tn_tensor *ints = harness_tensor(&h, TN_I32, 2, 4, 8), *narrow = harness_tensor(&h, TN_F32, 2, 7, 5);
    refuses(&h, TN_OP_LINEAR, x, bf16, y, "dtypes");
    refuses(&h, TN_OP_LINEAR, ints, w, y, "f32 or bf16");
    refuses(&h, TN_OP_LINEAR, x, narrow, y, "7 with 5");
    refuses(&h, TN_OP_LINEAR, x, NULL, y, "missing");
    refuses(&h, TN_OP_ALL_REDUCE, x, NULL, x, "all_reduce");
    harness_close(&h);
}

/* --- the device itself --- */

static void isa_beyond_the_processor_is_refused_or_works(void **state)
{
    for (int64_t isa = 1; isa <= 5; isa++) {
        struct harness h;
        harness_open(&h, 1, isa); /* skips with the device's message */
        harness_close(&h);
    }
}

static void two_instances_compute_side_by_side(void **state)
{
    struct harness one, two;
    harness_open(&one, 1, 0);
    harness_open(&two, 2, 0);
    check_linear(&one, shapes[5], TN_F32, 0, 1);
    check_linear(&two, shapes[5], TN_F32, 0, 1);
    check_linear_dw(&one, shapes[7], TN_BF16, 1, 1);
    harness_close(&one);
    check_linear(&two, shapes[7], TN_BF16, 1, 0);
    harness_close(&two);
}

/* oneDNN takes the number of threads from the calling thread, whatever another instance set there. */
static void each_instance_uses_its_own_threads(void **state)
{
    struct harness one, two;
    harness_open(&one, 1, 0);
    harness_open(&two, 2, 0);
    check_linear(&one, shapes[4], TN_F32, 0, 0);
    assert_int_equal(omp_get_max_threads(), 1);
    check_linear(&two, shapes[4], TN_F32, 0, 0);
    assert_int_equal(omp_get_max_threads(), 2);
    harness_close(&one);
    harness_close(&two);
}

static void probe_tells_peaks(void **state)
{
    struct harness h;
    harness_open(&h, 2, 0);
    struct tn_device_info info = { .struct_size = sizeof info };
    assert_int_equal(h.device->probe(h.self, &info), TN_OK);
    assert_int_equal(info.threads, 2);
    assert_true(info.peak_flops_f32 > 1e8 && info.memory_bytes_per_s > 1e7 && info.memory_bytes > 1 << 20);
    assert_non_null(strstr(info.name, "2 threads"));
    struct tn_device_info old = { .struct_size = 16, .name = "untouched" };
    assert_int_equal(h.device->probe(h.self, &old), TN_OK);
    assert_string_equal(old.name, "untouched");
    harness_close(&h);
}

static void memory_is_aligned(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    static const uint64_t sizes[] = { 0, 1, 100, 5u << 20 };
    for (size_t n = 0; n < 4; n++) {
        void *memory = NULL;
        assert_int_equal(h.device->mem_alloc(h.self, TN_SPACE_DEVICE, sizes[n], &memory), TN_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 1, sizes[n]);
        h.device->mem_free(h.self, TN_SPACE_DEVICE, memory, sizes[n]);
    }
    void *memory = NULL;
    assert_int_equal(h.device->mem_alloc(h.self, TN_SPACE_DEVICE, UINT64_MAX - 3, &memory), TN_NO_MEMORY);
    assert_int_equal(h.device->mem_alloc(h.self, TN_SPACE_DISK, 64, &memory), TN_UNSUPPORTED);
    harness_close(&h);
}

/* --- launches do not allocate: malloc of the whole process, libraries included, is counted --- */

static int64_t mallocs = -1; /* -1: not counted in this build */

#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#if defined(__GLIBC__) && !SANITIZED
extern void *__libc_malloc(size_t bytes);

void *malloc(size_t bytes)
{
    __atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(bytes);
}
#endif

static int64_t mallocs_of(struct harness *h, struct tn_kernel *kernel, int launches)
{
    int64_t before = __atomic_load_n(&mallocs, __ATOMIC_RELAXED);
    for (int n = 0; n < launches; n++)
        assert_int_equal(h->device->launch(h->self, kernel, NULL), TN_OK);
    return __atomic_load_n(&mallocs, __ATOMIC_RELAXED) - before;
}

/* oneDNN makes its table of arguments anew in each call: a few small blocks, whatever the size of the product. */
enum { MOST_OF_ONEDNN = 10 };

static void launch_does_not_allocate(void **state)
{
    struct harness h;
    if (mallocs < 0)
        skip();
    harness_open(&h, 2, 0);
    struct tn_tensor *x = harness_tensor(&h, TN_F32, 3, 1, 70, 64), *lse = harness_tensor(&h, TN_F32, 3, 1, 70, 4);
    struct tn_tensor *o = harness_like(&h, TN_F32, x), *w = harness_tensor(&h, TN_F32, 2, 64, 64);
    struct tn_tensor *dx = harness_like(&h, TN_F32, x);
    const struct tn_attr attrs[] = { TN_ATTR_I("head_dim", 16), TN_ATTR_I("causal", 1), TN_ATTR_I("trans", 0) };
    struct tn_kernel *forward, *backward, *linear;
    assert_int_equal(harness_bind(&h, TN_OP_ATTENTION, HARNESS_T(x, x, x), 3, HARNESS_T(o, lse), 2, attrs, 3, &forward),
                     TN_OK);
    assert_int_equal(harness_bind(&h, TN_OP_ATTENTION_DX, HARNESS_T(o, x, x, x, o, lse), 6, HARNESS_T(dx, dx, dx), 3,
                                  attrs, 3, &backward),
                     TN_OK);
    assert_int_equal(harness_bind(&h, TN_OP_LINEAR, HARNESS_T(x, w), 2, HARNESS_T(o), 1, attrs, 3, &linear), TN_OK);
    (void)mallocs_of(&h, forward, 1); /* OpenMP starts its threads */
    (void)mallocs_of(&h, linear, 1);
    assert_int_equal(mallocs_of(&h, forward, 10), 0);
    assert_int_equal(mallocs_of(&h, backward, 10), 0);
    assert_in_range(mallocs_of(&h, linear, 10), 0, 10 * MOST_OF_ONEDNN);
    h.device->kernel_destroy(h.self, forward);
    h.device->kernel_destroy(h.self, backward);
    h.device->kernel_destroy(h.self, linear);
    harness_close(&h);
}

/* 1e-40 + 1e-40, by all threads of a kernel, also by those that OpenMP started for someone else; the caller's own
 * arithmetic stays as it was. */
static void subnormals_are_zero(void **state)
{
#if defined(__x86_64__)
    int started = 0;
#pragma omp parallel num_threads(3) reduction(+ : started)
    started++;
    assert_in_range(started, 1, 3);
    for (int64_t threads = 1; threads <= 3; threads++) {
        struct harness h;
        volatile float tiny = 1e-40f;
        harness_open(&h, threads, 0);
        struct tn_tensor *x = harness_tensor(&h, TN_F32, 2, 512, 512), *y = harness_like(&h, TN_F32, x);
        for (int64_t i = 0; i < 512 * 512; i++)
            ((float *)x->data)[i] = tiny;
        assert_int_equal(harness_run(&h, TN_OP_ADD, HARNESS_T(x, x), 2, HARNESS_T(y), 1, NULL, 0), TN_OK);
        for (int64_t i = 0; i < 512 * 512; i++)
            assert_true(((const float *)y->data)[i] == 0.0f);
        assert_true(tiny + tiny > 0.0f);
        harness_close(&h);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(subnormals_are_zero), /* first: it starts OpenMP's threads */
        cmocka_unit_test(linear_f32_one_thread),
        cmocka_unit_test(linear_f32_two_threads),
        cmocka_unit_test(linear_bf16_one_thread),
        cmocka_unit_test(linear_bf16_two_threads),
        cmocka_unit_test(linear_three_threads),
        cmocka_unit_test(linear_f32_by_onednn),
        cmocka_unit_test(linear_bf16_by_onednn),
        cmocka_unit_test(linear_avx512),
        cmocka_unit_test(linear_avx512_bf16),
        cmocka_unit_test(linear_takes_any_rank),
        cmocka_unit_test(linear_dw_over_no_rows),
        cmocka_unit_test(unsupported_is_said),
        cmocka_unit_test(isa_beyond_the_processor_is_refused_or_works),
        cmocka_unit_test(two_instances_compute_side_by_side),
        cmocka_unit_test(each_instance_uses_its_own_threads),
        cmocka_unit_test(probe_tells_peaks),
        cmocka_unit_test(memory_is_aligned),
        cmocka_unit_test(launch_does_not_allocate),
    };
    return cmocka_run_group_tests_name("cpu_linear", tests, NULL, NULL);
}
