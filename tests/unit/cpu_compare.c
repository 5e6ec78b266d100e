/* See cpu_compare.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cpu_compare.h"
#include "device.h"
#include "reference.h"

static const double bf16_rounding = 0x1p-8;

void compare_everywhere(void (*body)(struct harness *h, uint32_t dtype))
{
    for (int isa = 0; isa <= cpu_isa_detect(); isa++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct harness h;
            harness_open(&h, threads, isa + 1);
            body(&h, TN_F32);
            harness_clear(&h);
            body(&h, TN_BF16);
            harness_close(&h);
        }
    }
}

void compare_everywhere_f32(void (*body)(struct harness *h))
{
    for (int isa = 0; isa <= cpu_isa_detect(); isa++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct harness h;
            harness_open(&h, threads, isa + 1);
            body(&h);
            harness_close(&h);
        }
    }
}

void reference(uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in, const struct tn_tensor *const *out,
               uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs)
{
    struct tn_op_desc op = { sizeof op, opcode, "", n_in, n_out, in, out, attrs, n_attrs, sizeof(struct tn_attr) };
    assert_int_equal(cpu_reference_run(&op), TN_OK);
}

void compare(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
             const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs,
             double tolerance)
{
    enum { MOST = 8 };
    struct tn_tensor *wanted[MOST];
    const struct tn_tensor *wanted_out[MOST];
    assert_true(n_out <= MOST);
    for (uint32_t n = 0; n < n_out; n++) {
        wanted[n] = harness_like(h, TN_F64, out[n]);
        memcpy(wanted[n]->offset, out[n]->offset, sizeof wanted[n]->offset);
        memcpy(wanted[n]->global, out[n]->global, sizeof wanted[n]->global);
        wanted_out[n] = wanted[n];
    }
    reference(opcode, in, n_in, wanted_out, n_out, attrs, n_attrs);
    tn_status status = harness_run(h, opcode, in, n_in, out, n_out, attrs, n_attrs);
    if (status != TN_OK)
        fail_msg("%s", h->message);
    for (uint32_t n = 0; n < n_out; n++) {
        double rounding = out[n]->dtype == TN_BF16 ? bf16_rounding : 0;
        for (int64_t i = 0; i < harness_elements(out[n]); i++)
            harness_check(out[n], i, harness_get(wanted[n], i), tolerance + rounding);
    }
}

struct tn_tensor *filled(struct harness *h, uint32_t dtype, uint64_t seed, int rows, int cols)
{
    struct tn_tensor *tensor = harness_tensor(h, dtype, 2, rows, cols);
    harness_fill(tensor, seed, 1);
    return tensor;
}

struct tn_tensor *copied(struct harness *h, uint32_t dtype, const struct tn_tensor *from)
{
    struct tn_tensor *to = harness_like(h, dtype, from);
    for (int64_t i = 0; i < harness_elements(from); i++)
        harness_set(to, i, harness_get(from, i));
    return to;
}

void check_slopes(struct tn_tensor *x, const struct tn_tensor *dx, double (*objective)(void *arg), void *arg,
                  double tolerance)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < harness_elements(x); i++) {
        double at = harness_get(x, i);
        harness_set(x, i, at + step);
        double above = objective(arg);
        harness_set(x, i, at - step);
        double below = objective(arg);
        harness_set(x, i, at);
        harness_check(dx, i, (above - below) / (2 * step), tolerance);
    }
}

void check_same_bytes(const struct tn_tensor *a, const struct tn_tensor *b)
{
    assert_int_equal(a->dtype, b->dtype);
    for (int64_t i = 0; i < harness_elements(a); i++) {
        if (harness_get(a, i) != harness_get(b, i))
            fail_msg("element %lld is %.9g and %.9g", (long long)i, harness_get(a, i), harness_get(b, i));
    }
}
