/* Autodiff: gradients of whole small programs against differences of their loss, on the cpu device; how the terms of a
 * value with several users meet; and what has no gradient. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "passes/autodiff.h"
#include "base/philox.h"
#include "flow_cpu.h"

enum { MOST = 512 };

/* Uniform in [-1, 1). */
static float uniform(uint64_t key, uint64_t i)
{
    uint32_t bits[4];
    tn_philox(key, 7, i, bits);
    return (float)((double)bits[0] / 2147483648.0 - 1.0);
}

static void write_params(struct flow_run *run, float scale)
{
    for (tn_value v = 1; v <= run->flat->n_values; v++) {
        const struct tn_value_data *value = &run->flat->values[v];
        float data[MOST];
        if (value->kind != TN_KIND_PARAM || value->def)
            continue;
        for (int64_t i = 0; i < flow_run_elements(run, value->name); i++)
            data[i] = (value->init == TN_INIT_ONES ? 1.0f : 0.0f) + scale * uniform(v, (uint64_t)i);
        flow_run_write(run, value->name, data);
    }
}

static void write_ints(struct flow_run *run, const char *name, int32_t below, int masked)
{
    int32_t data[MOST];
    for (int64_t i = 0; i < flow_run_elements(run, name); i++)
        data[i] = masked && i % 5 == 2 ? -100 : (int32_t)((i * 7 + 3) % below);
    flow_run_write(run, name, data);
}

/* Inputs are written before each step: their memory is used again. */
static float loss_of_step(struct flow_run *run)
{
    write_ints(run, "tokens", 5, 0);
    if (tn_value_find(run->flat, "positions"))
        write_ints(run, "positions", 4, 0);
    write_ints(run, "labels", 5, 1);
    write_ints(run, "labels.step", 5, 1);
    flow_run_step(run);
    return flow_run_scalar(run, "loss.mean");
}

/* Every element of `param`: (loss(w + h) - loss(w - h)) / 2h against the gradient. */
static void check_param(struct flow_run *run, const char *param, const float *gradient)
{
    float data[MOST];
    const float h = 2e-2f;
    flow_run_read(run, param, data);
    for (int64_t i = 0; i < flow_run_elements(run, param); i++) {
        float at = data[i], loss[2];
        for (int side = 0; side < 2; side++) {
            data[i] = side ? at + h : at - h;
            flow_run_write(run, param, data);
            loss[side] = loss_of_step(run);
        }
        data[i] = at;
        double want = ((double)loss[1] - (double)loss[0]) / (2.0 * (double)h);
        if (fabs(want - (double)gradient[i]) > 5e-4 + 1e-2 * fabs(want))
            fail_msg("d loss / d %s[%lld] is %g; by differences %g", param, (long long)i, (double)gradient[i], want);
    }
    flow_run_write(run, param, data);
}

/* Name of the value that holds a param's whole gradient. */
static const char *gradient_of(struct tn_program *p, const char *param)
{
    char name[128];
    snprintf(name, sizeof name, "grad.%s", param);
    tn_value total = tn_accumulated(p)[flow_value(p, name)];
    p->values[total].flags |= TN_VALUE_OUTPUT; /* kept to the end of the step */
    return p->values[total].name;
}

static void check_gradients_of(const char *text, const char *const *params, int fuse)
{
    struct flow f;
    struct tn_program flat;
    struct flow_run run;
    const char *gradient[16];
    float got[16][MOST];
    flow_parse(&f, text);
    tn_objective(&f.p, 1);
    tn_autodiff(&f.p);
    flow_clean(&f.p);
    for (int i = 0; params[i]; i++)
        gradient[i] = gradient_of(&f.p, params[i]);
    if (fuse)
        tn_fuse(&f.p);
    tn_program_init(&flat, &f.mesh, f.p.coord);
    tn_schedule(&f.p, &flat, 1, NULL, 0);
    flow_clean(&flat);
    flow_run_open(&run, &flat, 0xff); /* NaN: nothing is taken for zero */
    write_params(&run, 0.5f);
    loss_of_step(&run);
    for (int i = 0; params[i]; i++)
        flow_run_read(&run, gradient[i], got[i]);
    for (int i = 0; params[i]; i++)
        check_param(&run, params[i], got[i]);
    flow_run_close(&run);
    tn_program_finish(&flat);
    flow_finish(&f);
}

static void check_gradients(const char *text, const char *const *params)
{
    check_gradients_of(text, params, 0);
    check_gradients_of(text, params, 1);
}

#define PARAMS(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define INPUTS "input tokens: i32[2, 4]\ninput positions: i32[2, 4]\ninput labels: i32[2, 4]\n"

/* wte is used by the look-up and the head; a is used three times; h reaches the sum by two ways. */
static void gpt_like_program_with_tied_weights(void **state)
{
    check_gradients(
        INPUTS "param wte: f32[5, 8]\nparam wpe: f32[4, 8]\nparam nw: f32[8] init=ones\nparam nb: f32[8]\n"
               "param wq: f32[8, 8]\nparam wk: f32[8, 8]\nparam wv: f32[8, 8]\nparam b: f32[8]\nparam wo: f32[8, 8]\n"
               "param bo: f32[8]\n"
               "region forward\n"
               "  e: f32[2, 4, 8] = embedding(ids: tokens, w: wte)\n"
               "  pe: f32[2, 4, 8] = embedding(ids: positions, w: wpe)\n"
               "  h: f32[2, 4, 8] = add(a: e, b: pe)\n"
               "  a: f32[2, 4, 8], mean: f32[2, 4], rstd: f32[2, 4] = layernorm(x: h, w: nw, b: nb) eps=1e-5\n"
               "  q: f32[2, 4, 8] = linear(x: a, w: wq)\n"
               "  k: f32[2, 4, 8] = linear(x: a, w: wk)\n"
               "  v0: f32[2, 4, 8] = linear(x: a, w: wv)\n"
               "  v: f32[2, 4, 8] = bias_add(x: v0, b: b)\n"
               "  o: f32[2, 4, 8], lse: f32[2, 4, 2] = attention(q: q, k: k, v: v) scale=0.5 head_dim=4 causal=1\n"
               "  g: f32[2, 4, 8] = bias_gelu(x: o, b: bo) tanh=1\n"
               "  y: f32[2, 4, 8] = linear(x: g, w: wo)\n"
               "  r: f32[2, 4, 8] = add(a: h, b: y)\n"
               "  s: f32[2, 4, 8] = add(a: r, b: r)\n"
               "  l: f32[2, 4, 5] = linear(x: s, w: wte) trans=1\n"
               "  loss: f32[] flags=loss, loss.lse: f32[2, 4] = cross_entropy(logits: l, labels: labels)\n",
        PARAMS("wte", "wpe", "nw", "nb", "wq", "wk", "wv", "b", "wo", "bo"));
}

static void llama_like_program_with_grouped_heads(void **state)
{
    check_gradients(
        INPUTS
        "param wte: f32[5, 8]\nparam nw: f32[8] init=ones\nparam qw: f32[4] init=ones\n"
        "param wq: f32[8, 8]\nparam wk: f32[4, 8]\nparam wv: f32[4, 8]\nparam wg: f32[6, 8]\nparam wu: f32[6, 8]\n"
        "param wd: f32[8, 6]\nparam head: f32[5, 8]\nparam hb: f32[5]\n"
        "region forward\n"
        "  h: f32[2, 4, 8] = embedding(ids: tokens, w: wte)\n"
        "  a: f32[2, 4, 8], rstd: f32[2, 4] = rmsnorm(x: h, w: nw) eps=1e-5 group=0\n"
        "  q0: f32[2, 4, 8] = linear(x: a, w: wq) trans=1\n"
        "  q1: f32[2, 4, 8], q1.rstd: f32[2, 4, 2] = rmsnorm(x: q0, w: qw) eps=1e-5 group=4\n"
        "  q: f32[2, 4, 8] = rope(x: q1, pos: positions) theta=100.0 head_dim=4\n"
        "  k0: f32[2, 4, 4] = linear(x: a, w: wk) trans=1\n"
        "  k: f32[2, 4, 4] = rope(x: k0, pos: positions) theta=100.0 head_dim=4\n"
        "  v: f32[2, 4, 4] = linear(x: a, w: wv) trans=1\n"
        "  o: f32[2, 4, 8], lse: f32[2, 4, 2] = attention(q: q, k: k, v: v) scale=0.5 head_dim=4 causal=1\n"
        "  r: f32[2, 4, 8] = add(a: h, b: o)\n"
        "  g: f32[2, 4, 6] = linear(x: r, w: wg) trans=1\n"
        "  u: f32[2, 4, 6] = linear(x: r, w: wu) trans=1\n"
        "  m: f32[2, 4, 6] = swiglu(g: g, u: u)\n"
        "  d: f32[2, 4, 8] = linear(x: m, w: wd) trans=1\n"
        "  t: f32[2, 4, 8] = add(a: r, b: d)\n"
        "  z: f32[2, 4, 8] = gelu(x: t)\n"
        "  l: f32[2, 4, 5] = linear(x: z, w: head, bias: hb) trans=1\n"
        "  loss: f32[] flags=loss, loss.lse: f32[2, 4] = cross_entropy(logits: l, labels: labels)\n",
        PARAMS("wte", "nw", "qw", "wq", "wk", "wv", "wg", "wu", "wd", "head", "hb"));
}

static void differentiated(struct flow *f, const char *text)
{
    flow_parse(f, text);
    tn_objective(&f->p, 1);
    tn_autodiff(&f->p);
}

#define TWICE                                            \
    "input tokens: i32[2, 4]\ninput labels: i32[2, 4]\n" \
    "param w: f32[8, 8]\nparam unused: f32[3]\n"         \
    "region forward\n"                                   \
    "  x: f32[2, 4, 8] = embedding(ids: tokens, w: w)\n" \
    "  y: f32[2, 4, 8] = linear(x: x, w: w)\n"

/* Both uses of w go into one accumulator, each on top of what the other left. */
static void uses_of_a_param_accumulate_in_place(void **state)
{
    struct flow f;
    differentiated(&f, TWICE "  z: f32[2, 4, 8] = add(a: x, b: y)\n"
                             "  loss: f32[] flags=loss, lse: f32[2, 4] = cross_entropy(logits: z, labels: labels)\n");
    flow_clean(&f.p);
    flow_has(&f.p, "accumulator y.dw: f32[8, 8] like=w = linear_dw(x: x, dy: loss.dlogits, acc: grad.w)");
    flow_has(&f.p, "accumulator x.dw: f32[8, 8] like=w = embedding_dw(ids: tokens, dy: x.grad.");
    flow_has(&f.p, ", acc: y.dw) rows=8");
    flow_has(&f.p, "= add(a: loss.dlogits, b: y.dx)"); /* the two ways to x */
    assert_int_equal(tn_value_find(&f.p, "grad.unused"), 0);
    assert_int_equal(tn_accumulated(&f.p)[flow_value(&f.p, "grad.w")], flow_value(&f.p, "x.dw"));
    assert_int_equal(tn_program_verify(&f.p, "grad"), 0);
    flow_finish(&f);
}

/* What the loss does not depend on needs no gradient, even where there is no rule for it. */
static void ops_beside_the_loss_are_left_out(void **state)
{
    struct flow f;
    differentiated(&f, TWICE "  loss: f32[] flags=loss, lse: f32[2, 4] = cross_entropy(logits: y, labels: labels)\n"
                             "  s: f32[] = sumsq(g: x)\n");
    flow_clean(&f.p);
    assert_int_equal(flow_count(&f.p, TN_OP_ADD, TN_REGION_BACKWARD), 0);
    flow_finish(&f);
}

static void an_op_without_a_rule_is_refused(void **state)
{
    struct flow f;
    differentiated(&f, TWICE "  z: f32[2, 4, 8] = add_n(x: y, x)\n"
                             "  loss: f32[] flags=loss, lse: f32[2, 4] = cross_entropy(logits: z, labels: labels)\n");
    flow_refused(&f.p, "z = add_n: the loss depends on it, but add_n has no gradient rule");
    flow_finish(&f);
}

static void a_computed_weight_is_refused(void **state)
{
    struct flow f;
    differentiated(&f, TWICE "  ww: f32[8, 8] = gelu(x: w)\n"
                             "  z: f32[2, 4, 8] = linear(x: y, w: ww)\n"
                             "  loss: f32[] flags=loss, lse: f32[2, 4] = cross_entropy(logits: z, labels: labels)\n");
    flow_refused(&f.p, "ww is used as a weight, but is no param");
    flow_finish(&f);
}

static void a_program_without_loss_is_refused(void **state)
{
    struct flow f;
    differentiated(&f, TWICE);
    assert_true(f.p.n_errors >= 1);
    assert_non_null(strstr(f.p.errors[0], "builds no loss"));
    flow_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt_like_program_with_tied_weights),  cmocka_unit_test(llama_like_program_with_grouped_heads),
        cmocka_unit_test(uses_of_a_param_accumulate_in_place), cmocka_unit_test(ops_beside_the_loss_are_left_out),
        cmocka_unit_test(an_op_without_a_rule_is_refused),     cmocka_unit_test(a_computed_weight_is_refused),
        cmocka_unit_test(a_program_without_loss_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
