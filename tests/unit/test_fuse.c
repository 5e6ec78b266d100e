/* Fuse: each rule where it holds, and right beside it a case where it must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "flow.h"

#define HEAD "input x: f32[2, 4, 8]\nparam w: f32[8, 8]\nparam b: f32[8]\nparam c: f32[8]\n"
#define FORWARD HEAD "region forward\n"
#define BACKWARD HEAD "region backward\n"

static void fused(struct flow *f, const char *text)
{
    flow_parse(f, text);
    tn_fuse(&f->p);
    flow_clean(&f->p);
    assert_int_equal(tn_program_verify(&f->p, "lower"), 0);
}

static void becomes(const char *text, const char *line)
{
    struct flow f;
    fused(&f, text);
    flow_has(&f.p, line);
    flow_finish(&f);
}

static void stays(const char *text, const char *line)
{
    becomes(text, line);
}

static void a_bias_goes_into_its_linear(void **state)
{
    static const char plain[] = FORWARD "  y: f32[2, 4, 8] = linear(x: x, w: w) trans=1\n"
                                        "  z: f32[2, 4, 8] = bias_add(x: y, b: b)\n";
    becomes(plain, "z: f32[2, 4, 8] = linear(x: x, w: w, bias: b) trans=1");
    struct flow f;
    fused(&f, plain);
    assert_int_equal(flow_count(&f.p, TN_OP_LINEAR, -1), 1);
    assert_int_equal(flow_count(&f.p, TN_OP_BIAS_ADD, -1), 0);
    flow_finish(&f);
    /* the product is used elsewhere, read by the host, biased already, or made by something else */
    stays(FORWARD "  y: f32[2, 4, 8] = linear(x: x, w: w)\n  z: f32[2, 4, 8] = bias_add(x: y, b: b)\n"
                  "  q: f32[2, 4, 8] = gelu(x: y)\n",
          "= bias_add(x: y, b: b)");
    stays(FORWARD "  y: f32[2, 4, 8] flags=output = linear(x: x, w: w)\n  z: f32[2, 4, 8] = bias_add(x: y, b: b)\n",
          "= bias_add(x: y, b: b)");
    stays(FORWARD "  y: f32[2, 4, 8] = linear(x: x, w: w, bias: c)\n  z: f32[2, 4, 8] = bias_add(x: y, b: b)\n",
          "= bias_add(x: y, b: b)");
    stays(FORWARD "  y: f32[2, 4, 8] = gelu(x: x)\n  z: f32[2, 4, 8] = bias_add(x: y, b: b)\n",
          "= bias_add(x: y, b: b)");
    stays("input x: f32[2, 4, 8]\nparam w: f32[8, 8]\nparam b: f32[8]\n"
          "region prologue\n  y: f32[2, 4, 8] = linear(x: x, w: w)\nregion forward\n  z: f32[2, 4, 8] = bias_add(x: y, "
          "b: b)\n",
          "= bias_add(x: y, b: b)");
}

static void a_partial_product_keeps_its_reduction(void **state)
{
    struct flow f;
    flow_parse(&f, "mesh tp=2\ninput x: f32[2, 4, 8] {tp: S2}\nparam w: f32[8, 8] {tp: S0}\nparam b: f32[8] {tp: R}\n"
                   "region forward\n  y: f32[2, 4, 8] {tp: P} = linear(x: x, w: w)\n"
                   "  s: f32[2, 4, 8] {tp: R} = all_reduce(x: y) axis=0 red=0\n"
                   "  z: f32[2, 4, 8] {tp: R} = bias_add(x: s, b: b)\n");
    tn_fuse(&f.p);
    flow_has(&f.p, "= bias_add(x: s, b: b)");
    flow_finish(&f);
}

#define SUM FORWARD "  e: f32[2, 4, 8] = gelu(x: x)\n  r: f32[2, 4, 8] = add(a: x, b: e)\n"
#define NORM "  y: f32[2, 4, 8], m: f32[2, 4], s: f32[2, 4] = layernorm(x: r, w: b, b: c) eps=1e-05\n"

static void a_norm_goes_up_into_the_sum(void **state)
{
    becomes(SUM "  q: f32[2, 4, 8] = gelu(x: r)\n" NORM, "r: f32[2, 4, 8], y: f32[2, 4, 8], m: f32[2, 4], s: f32[2, 4] "
                                                         "= add_layernorm(a: x, b: e, w: b, bias: c) eps=1e-05");
    becomes(SUM "  y: f32[2, 4, 8], s: f32[2, 4] = rmsnorm(x: r, w: b) eps=1e-05 group=0\n",
            "r: f32[2, 4, 8], y: f32[2, 4, 8], s: f32[2, 4] = add_rmsnorm(a: x, b: e, w: b) eps=1e-05 group=0");
    struct flow f;
    fused(&f, SUM NORM "  y2: f32[2, 4, 8], m2: f32[2, 4], s2: f32[2, 4] = layernorm(x: r, w: c, b: b) eps=1e-05\n");
    assert_int_equal(flow_count(&f.p, TN_OP_ADD_LAYERNORM, -1), 1); /* one sum has room for one norm */
    assert_int_equal(flow_count(&f.p, TN_OP_LAYERNORM, -1), 1);
    flow_finish(&f);
    stays(FORWARD "  r: f32[2, 4, 8] = gelu(x: x)\n" NORM, "= layernorm(x: r, ");
    stays(SUM "  b2: f32[8] = gelu(x: b)\n" /* not there yet when the sum is made */
              "  y: f32[2, 4, 8], m: f32[2, 4], s: f32[2, 4] = layernorm(x: r, w: b2, b: c) eps=1e-05\n",
          "= layernorm(x: r, ");
    stays("input x: f32[2, 4, 8]\nparam b: f32[8]\nparam c: f32[8]\nregion prologue\n  r: f32[2, 4, 8] = add(a: x, b: "
          "x)\n"
          "region forward\n" NORM,
          "= layernorm(x: r, ");
}

#define STATS "input m: f32[2, 4]\ninput s: f32[2, 4]\n" BACKWARD "  g: f32[2, 4, 8] = gelu(x: x)\n"

static void a_residual_gradient_goes_into_the_norms(void **state)
{
    becomes(
        STATS
        "  d: f32[2, 4, 8] = layernorm_dx(dy: x, x: x, w: b, mean: m, rstd: s)\n  t: f32[2, 4, 8] = add(a: g, b: d)\n",
        "t: f32[2, 4, 8] = layernorm_dx(dy: x, x: x, w: b, mean: m, rstd: s, res: g)");
    becomes(STATS
            "  d: f32[2, 4, 8] = rmsnorm_dx(dy: x, x: x, w: b, rstd: s) group=0\n  t: f32[2, 4, 8] = add(a: d, b: g)\n",
            "t: f32[2, 4, 8] = rmsnorm_dx(dy: x, x: x, w: b, rstd: s, res: g) group=0");
    stays(STATS
          "  d: f32[2, 4, 8] = rmsnorm_dx(dy: x, x: x, w: b, rstd: s) group=0\n  t: f32[2, 4, 8] = add(a: d, b: g)\n"
          "  u: f32[2, 4, 8] = gelu(x: d)\n",
          "t: f32[2, 4, 8] = add(a: d, b: g)");
}

static void a_sum_of_products_accumulates_in_place(void **state)
{
    becomes(BACKWARD "  g: f32[2, 4, 8] = linear_dx(dy: x, w: w)\n  d: f32[2, 4, 8] = linear_dx(dy: x, w: w) trans=1\n"
                     "  t: f32[2, 4, 8] = add(a: g, b: d)\n",
            "linear_dx(dy: x, w: w, acc: ");
    /* the other term is needed later, read by the host, or nobody's to write on */
    stays(BACKWARD "  g: f32[2, 4, 8] = gelu(x: x)\n  d: f32[2, 4, 8] = linear_dx(dy: x, w: w)\n"
                   "  t: f32[2, 4, 8] = add(a: g, b: d)\n  u: f32[2, 4, 8] = gelu(x: g)\n",
          "= add(a: g, b: d)");
    stays(BACKWARD "  g: f32[2, 4, 8] flags=output = gelu(x: x)\n  d: f32[2, 4, 8] = linear_dx(dy: x, w: w)\n"
                   "  t: f32[2, 4, 8] = add(a: g, b: d)\n",
          "= add(a: g, b: d)");
    stays(BACKWARD "  d: f32[2, 4, 8] = linear_dx(dy: x, w: w)\n  t: f32[2, 4, 8] = add(a: x, b: d)\n",
          "= add(a: x, b: d)");
    /* dy itself is the other term */
    stays(BACKWARD "  g: f32[2, 4, 8] = gelu(x: x)\n  d: f32[2, 4, 8] = linear_dx(dy: g, w: w)\n"
                   "  t: f32[2, 4, 8] = add(a: g, b: d)\n",
          "= add(a: g, b: d)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bias_goes_into_its_linear),
        cmocka_unit_test(a_partial_product_keeps_its_reduction),
        cmocka_unit_test(a_norm_goes_up_into_the_sum),
        cmocka_unit_test(a_residual_gradient_goes_into_the_norms),
        cmocka_unit_test(a_sum_of_products_accumulates_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
