/* Ops that a plugin registers: printed, parsed, verified, placed and differentiated like the core's, by call-backs of
 * their own or by the rules of the op that they are like; and which definitions are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flow.h"
#include "passes/autodiff.h"
#include "passes/resolve.h"
#include "program/ops_plugin.h"

/* twice: y = x + x w, as if; x [.., N], w [N]. */
static void twice_shape(const struct tn_op_call *call)
{
    struct tn_op_info op = { .struct_size = sizeof op };
    struct tn_value_info x = { .struct_size = sizeof x };
    call->read->op_info(call->program, call->op, &op);
    call->read->value_info(call->program, op.in[0], &x);
    if (x.rank != 2)
        call->edit->error(call->program, call->op, "x has %d dimensions, not 2", x.rank);
    call->set_output(call, 0, x.dtype, x.rank, x.shape);
}

static const char *twice_rows(const struct tn_op_call *call, int32_t axis)
{
    return "RR>R 0R>0 10>1";
}

static void twice_grad(const struct tn_op_call *call)
{
    struct tn_op_info op = { .struct_size = sizeof op };
    call->read->op_info(call->program, call->op, &op);
    tn_value x = op.in[0], w = op.in[1], dy = call->gradient(call, op.out[0]);
    tn_value dx = call->edit->op(call->program, TN_OP_BIAS_ADD, "twice.dx", (tn_value[]){ dy, w }, 2, NULL, 0);
    tn_value dw = call->edit->op(call->program, TN_OP_BIAS_DW, "twice.dw", &dy, 1, NULL, 0);
    call->add_gradient(call, x, dx);
    call->add_gradient(call, w, dw);
}

static void twice_cost(const struct tn_op_call *call, double *flops, double *bytes)
{
    *flops = 1234;
    *bytes = 5678;
}

static const struct tn_op_definition twice = {
    .struct_size = sizeof twice,
    .name = "test.twice",
    .ins = "x w",
    .outs = "y",
    .attrs = "!by",
    .alias = "0~0",
    .doc = "A test.",
    .shape = twice_shape,
    .rows = twice_rows,
    .grad = twice_grad,
    .cost = twice_cost,
};
static const struct tn_op_definition like_linear = {
    .struct_size = sizeof like_linear,
    .like = TN_OP_LINEAR,
    .name = "test.linear",
    .ins = "x w bias? extra?",
    .outs = "y",
    .attrs = "trans",
    .alias = "",
    .doc = "",
    .flags = TN_OP_COMMUNICATES,
};

static uint32_t add(const struct tn_op_definition *definition)
{
    char error[256] = "";
    uint32_t opcode = TN_OP_NONE;
    if (tn_op_add("tester", definition, &opcode, error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    return opcode;
}

static void refused(struct tn_op_definition definition, const char *what)
{
    char error[256] = "";
    uint32_t opcode = TN_OP_NONE;
    assert_int_not_equal(tn_op_add("other", &definition, &opcode, error, sizeof error), TN_OK);
    assert_int_equal(opcode, TN_OP_NONE);
    if (!strstr(error, what))
        fail_msg("no \"%s\" in: %s", what, error);
}

static void a_name_has_one_opcode(void **state)
{
    uint32_t opcode = add(&twice);
    assert_true(opcode >= TN_OP_FIRST_PLUGIN);
    assert_int_equal(add(&twice), opcode);
    assert_int_not_equal(add(&like_linear), opcode);
    assert_int_equal(tn_op_by_name("test.twice"), opcode);
    assert_string_equal(tn_op_kind(opcode)->plugin, "tester");
    assert_int_equal(tn_op_kind(opcode)->n_in_names, 2);
    struct tn_op_definition another = twice;
    another.ins = "x";
    refused(another, "tester has registered another one");
}

static void wrong_definitions_are_refused(void **state)
{
    struct tn_op_definition d = twice;
    d.name = "linear";
    refused(d, "vendor.name");
    d = twice, d.name = "test.x y";
    refused(d, "vendor.name");
    d = twice, d.name = "test.a", d.rows = NULL;
    refused(d, "needs shape and rows");
    d = twice, d.name = "test.a", d.like = 9999;
    refused(d, "like no core op");
    d = twice, d.name = "test.a", d.alias = "0=2";
    refused(d, "alias");
    d = twice, d.name = "test.a", d.ins = "a b c d e f g h i j k l m";
    refused(d, "more than 12 inputs");
    d = like_linear, d.name = "test.a", d.ins = "x";
    refused(d, "fewer inputs");
}

#define HEAD "mesh tp=2\ninput x: f32[4, 8] {tp: R}\nparam w: f32[8] {tp: S0}\n"

static void programs_hold_them(void **state)
{
    static const char text[] = HEAD "\nregion forward\n  y: f32[4, 8] {tp: S1} = test.twice(x: x, w: w) by=0.5\n";
    struct flow f;
    add(&twice);
    flow_parse(&f, text);
    flow_clean(&f.p);
    flow_has(&f.p, "= test.twice(x: x, w: w) by=0.5");
    double flops, bytes;
    tn_op_kind(f.p.ops[f.p.first].opcode)->cost(&f.p, f.p.first, &flops, &bytes);
    assert_true(flops == 1234 && bytes == 5678);
    flow_finish(&f);
}

static void rows_are_chosen_like_the_cores(void **state)
{
    struct flow f;
    add(&twice);
    flow_parse(&f, HEAD "region forward\n  y: f32[4, 8] = test.twice(x: x, w: w)\n");
    tn_resolve(&f.p);
    flow_clean(&f.p);
    assert_int_equal(f.p.values[flow_value(&f.p, "y")].place[0], TN_SHARD(1));
    assert_int_equal(flow_count(&f.p, TN_OP_SLICE, -1), 1);
    tn_program_verify(&f.p, "lower");
    flow_clean(&f.p);
    flow_finish(&f);
}

static void others_rules_count_where_none_is_given(void **state)
{
    struct flow f;
    add(&like_linear);
    flow_parse(
        &f,
        "mesh tp=2\ninput x: f32[4, 8] {tp: R}\ninput e: f32[] {tp: R}\nparam w: f32[8, 6] {tp: S1}\nregion forward\n"
        "  y: f32[4, 6] = test.linear(x: x, w: w, bias: _, extra: e)\n");
    tn_resolve(&f.p);
    tn_program_verify(&f.p, "lower");
    flow_clean(&f.p);
    assert_int_equal(f.p.values[flow_value(&f.p, "y")].place[0], TN_SHARD(1));
    double flops, bytes;
    tn_op_kind(f.p.ops[f.p.first].opcode)->cost(&f.p, f.p.first, &flops, &bytes);
    assert_true(flops == 2 * 4 * 8 * 3);
    flow_finish(&f);
}

static void gradients_are_its_own(void **state)
{
    struct flow f;
    add(&twice);
    flow_parse(
        &f,
        "param e: f32[6, 8]\nparam w: f32[8]\ninput tokens: i32[4] (batch)\ninput labels: i32[2, 2] (batch, sequence)\n"
        "param h: f32[8, 6]\ninput seen: i32[4]\nregion prologue\n  n: f32[] = count_targets(labels: labels)\n"
        "  loss.seed: f32[] = grad_seed(n: n)\nregion forward\n  a: f32[4, 8] = embedding(ids: tokens, w: e)\n"
        "  y: f32[4, 8] = test.twice(x: a, w: w)\n  z: f32[4, 6] = linear(x: y, w: h)\n"
        "  loss: f32[] flags=loss, lse: f32[4] = cross_entropy(logits: z, labels: seen)\n");
    tn_autodiff(&f.p);
    flow_clean(&f.p);
    flow_has(&f.p, "twice.dx: f32[4, 8] grad_of=a = bias_add(x: z.dx, b: w)");
    flow_has(&f.p, "twice.dw.sum: f32[8] like=w = accumulate(x: twice.dw, acc: grad.w)");
    flow_has(&f.p, "= embedding_dw(ids: tokens, dy: twice.dx");
    flow_finish(&f);
}

static void its_refusals_are_errors_of_the_program(void **state)
{
    struct flow f;
    add(&twice);
    flow_parse(&f, "param x: f32[8]\nparam w: f32[8]\nregion forward\n  y: f32[8] = test.twice(x: x, w: w)\n");
    tn_program_verify(&f.p, "model");
    assert_true(f.p.n_errors > 0);
    assert_non_null(strstr(f.p.errors[0], "x has 1 dimensions, not 2"));
    flow_finish(&f);
}

static const char *bad_rows(const struct tn_op_call *call, int32_t axis)
{
    return "RR>R 0>0";
}

static void rows_that_are_none_are_refused(void **state)
{
    struct tn_op_definition d = twice;
    struct flow f;
    d.name = "test.bad";
    d.rows = bad_rows;
    add(&d);
    flow_parse(&f, HEAD "region forward\n  y: f32[4, 8] = test.bad(x: x, w: w)\n");
    tn_resolve(&f.p);
    assert_true(f.p.n_errors > 0);
    assert_non_null(strstr(f.p.errors[0], "its plugin gives the row 0>0"));
    flow_finish(&f);
}

/* What an older plugin's definition lacks is absent. */
static void a_shorter_definition_is_read_to_its_end(void **state)
{
    struct tn_op_definition d = twice;
    d.name = "test.short";
    d.struct_size = offsetof(struct tn_op_definition, grad);
    assert_null(tn_op_kind(add(&d))->grad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_has_one_opcode),
        cmocka_unit_test(wrong_definitions_are_refused),
        cmocka_unit_test(programs_hold_them),
        cmocka_unit_test(rows_are_chosen_like_the_cores),
        cmocka_unit_test(others_rules_count_where_none_is_given),
        cmocka_unit_test(gradients_are_its_own),
        cmocka_unit_test(its_refusals_are_errors_of_the_program),
        cmocka_unit_test(rows_that_are_none_are_refused),
        cmocka_unit_test(a_shorter_definition_is_read_to_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
