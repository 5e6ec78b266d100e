/* Resolve: the cheapest row wins, wants and pins are kept, conversions are made once, and what fits nowhere is refused
 * with both ops' names. What comes out of whole models is in test_strategies and the golden dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "flow.h"

static void resolved(struct flow *f, const char *text)
{
    flow_parse(f, text);
    tn_resolve(&f->p);
    flow_clean(&f->p);
    if (tn_program_verify(&f->p, "lower"))
        flow_clean(&f->p);
}

static void lies(const struct flow *f, const char *name, int32_t axis, tn_placement placement)
{
    assert_int_equal(f->p.values[flow_value(&f->p, name)].place[axis], placement);
}

static int collectives(const struct flow *f)
{
    return flow_count(&f->p, TN_OP_ALL_REDUCE, -1) + flow_count(&f->p, TN_OP_ALL_GATHER, -1) +
           flow_count(&f->p, TN_OP_REDUCE_SCATTER, -1) + flow_count(&f->p, TN_OP_ALL_TO_ALL, -1);
}

#define MLP                                                                                        \
    "mesh tp=2\ninput x: f32[4, 8, 16] {tp: R}\nparam up: f32[16, 32] {tp: S1}\n"                  \
    "param down: f32[32, 16] {tp: S0}\nregion forward\n  h: f32[4, 8, 32] = linear(x: x, w: up)\n" \
    "  a: f32[4, 8, 32] = gelu(x: h)\n  y: f32[4, 8, 16] = linear(x: a, w: down)\n"

static void columns_then_rows_cost_one_reduction(void **state)
{
    struct flow f;
    resolved(&f, MLP "  r: f32[4, 8, 16] flags=output want={tp: R} = add(a: x, b: y)\n");
    lies(&f, "h", 0, TN_SHARD(2));
    lies(&f, "y", 0, TN_PARTIAL(TN_RED_SUM));
    lies(&f, "r", 0, TN_REPLICATE);
    assert_int_equal(collectives(&f), 1);
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_REDUCE, -1), 1);
    flow_finish(&f);
}

/* The same, but the sum is wanted cut along the sequence: half of an all_reduce. */
static void a_want_chooses_reduce_scatter(void **state)
{
    struct flow f;
    resolved(&f, MLP "  r: f32[4, 8, 16] want={tp: S1} = add(a: x, b: y)\n");
    lies(&f, "r", 0, TN_SHARD(1));
    assert_int_equal(flow_count(&f.p, TN_OP_REDUCE_SCATTER, -1), 1);
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_REDUCE, -1), 0);
    assert_int_equal(flow_count(&f.p, TN_OP_SLICE, -1), 1); /* of x */
    flow_finish(&f);
}

static void partial_terms_are_added_before_they_are_reduced(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=2\ninput x: f32[4, 8, 16] {tp: S2}\nparam a: f32[16, 16] {tp: S0}\n"
                 "param b: f32[16, 16] {tp: S0}\nparam c: f32[16, 16] {tp: S0}\nregion forward\n"
                 "  p: f32[4, 8, 16] = linear(x: x, w: a)\n  q: f32[4, 8, 16] = linear(x: x, w: b)\n"
                 "  r: f32[4, 8, 16] = linear(x: x, w: c)\n  s: f32[4, 8, 16] = add(a: p, b: q)\n"
                 "  t: f32[4, 8, 16] = add(a: s, b: r)\n  y: f32[4, 8, 16] want={tp: R} = gelu(x: t)\n");
    lies(&f, "t", 0, TN_PARTIAL(TN_RED_SUM));
    assert_int_equal(collectives(&f), 1);
    flow_finish(&f);
}

/* Two consumers want x whole: one gather, before the first of them. */
static void conversions_are_remembered(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=2\ninput x: f32[4, 8, 16] {tp: S1}\nparam a: f32[16, 32] {tp: S1}\n"
                 "param b: f32[16, 32] {tp: S1}\nregion forward\n"
                 "  p: f32[4, 8, 32] = linear(x: x, w: a)\n  q: f32[4, 8, 32] = linear(x: x, w: b)\n");
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_GATHER, -1), 1);
    assert_int_equal(collectives(&f), 1);
    assert_int_equal(f.p.ops[flow_op(&f.p, "p")].in[0], f.p.ops[flow_op(&f.p, "q")].in[0]);
    lies(&f, "q", 0, TN_SHARD(2));
    flow_finish(&f);
}

/* x was gathered already, so taking it whole is free, and cheaper than a slice of z. */
static void what_was_converted_costs_nothing_again(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=2\ninput x: f32[4, 8, 16] {tp: S1}\ninput z: f32[4, 8, 16] {tp: R}\n"
                 "param a: f32[16, 32] {tp: S1}\nregion forward\n"
                 "  p: f32[4, 8, 32] = linear(x: x, w: a)\n  q: f32[4, 8, 16] = add(a: x, b: z)\n");
    lies(&f, "q", 0, TN_REPLICATE);
    assert_int_equal(flow_count(&f.p, TN_OP_SLICE, -1), 0);
    assert_int_equal(collectives(&f), 1);
    flow_finish(&f);
}

/* x and w are cut in ways that fit no row. Rather than the small param, the large activation is converted. */
static void params_are_never_converted(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=2\ninput x: f32[64, 8, 16] {tp: S2}\nparam w: f32[16, 2] {tp: S1}\nregion forward\n"
                 "  y: f32[64, 8, 2] = linear(x: x, w: w)\n");
    assert_int_equal(f.p.ops[flow_op(&f.p, "y")].in[1], flow_value(&f.p, "w"));
    lies(&f, "w", 0, TN_SHARD(1));
    assert_int_equal(collectives(&f), 1);
    flow_finish(&f);
}

static void equal_costs_go_to_fewer_collectives_and_the_earlier_row(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=2\ninput x: f32[4, 8] {tp: S0}\ninput y: f32[4, 8] {tp: S1}\nregion forward\n"
                 "  a: f32[4, 8] = add(a: x, b: y)\n  b: f32[4, 8] = gelu(x: x)\n");
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_TO_ALL, -1), 1); /* either side: n / 2; gathers of both would be 2n */
    lies(&f, "a", 0, TN_SHARD(0));                               /* rows of dimension 0 come first */
    lies(&f, "b", 0, TN_SHARD(0));
    flow_finish(&f);
}

static void unequal_parts_are_gathered_as_a_sum(void **state)
{
    struct flow f;
    resolved(&f, "mesh dp=2\nrank dp=1\nparts 1 = 3:1\ninput x: f32[4, 8] {dp: S0/1}\nregion forward\n"
                 "  y: f32[4, 8] flags=output = gelu(x: x)\n");
    lies(&f, "y", 0, TN_SHARD_PARTS(0, 1));
    assert_int_equal(flow_count(&f.p, TN_OP_UNSLICE, -1), 1);
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_REDUCE, -1), 1);
    flow_finish(&f);
}

/* An output is made whole for the host; who used it before still does. */
static void outputs_are_gathered_beside_their_users(void **state)
{
    struct flow f;
    resolved(&f, "mesh dp=2\ninput x: f32[4, 8] {dp: S0}\nregion forward\n"
                 "  y: f32[4, 8] flags=output = gelu(x: x)\n  z: f32[4, 8] = gelu(x: y)\n");
    tn_value whole = flow_value(&f.p, "y.all_gather.dp");
    assert_int_equal(f.p.values[whole].flags & TN_VALUE_OUTPUT, TN_VALUE_OUTPUT);
    assert_int_equal(f.p.values[flow_value(&f.p, "y")].flags & TN_VALUE_OUTPUT, 0);
    assert_int_equal(f.p.ops[flow_op(&f.p, "z")].in[0], flow_value(&f.p, "y"));
    assert_int_equal(collectives(&f), 1);
    flow_finish(&f);
}

/* A gradient's type follows its param's: partial over dp, so sync asks for a reduction; a cut one for a scatter. */
static void gradients_meet_the_type_of_their_param(void **state)
{
    static const char *const text =
        "mesh tp=2 dp=2\ninput x: f32[4, 8, 16] {tp: R, dp: S0}\ninput dy: f32[4, 8, 32] {tp: S2, dp: S0}\n"
        "param w: f32[16, 32] {tp: S1, dp: R}\naccumulator grad.w: f32[16, 32] like=w\n"
        "region backward\n  accumulator dw: f32[16, 32] like=w = linear_dw(x: x, dy: dy, acc: grad.w)\n"
        "region step\n  g: f32[16, 32] like=w = sync(g: dw)\n  s: f32[] flags=output = sumsq(g: g)\n";
    struct flow f;
    resolved(&f, text);
    lies(&f, "grad.w", 0, TN_SHARD(1)); /* the empty accumulator takes what comes */
    lies(&f, "grad.w", 1, TN_PARTIAL(TN_RED_SUM));
    lies(&f, "g", 0, TN_SHARD(1));
    lies(&f, "g", 1, TN_REPLICATE);
    flow_has(&f.p, "dw.all_reduce.dp");
    flow_has(&f.p, "s.part1: f32[] {tp: P, dp: R} = sumsq(g)"); /* cut over tp, so summed over tp alone */
    assert_int_equal(flow_count(&f.p, TN_OP_ALL_REDUCE, TN_REGION_STEP), 2);
    flow_finish(&f);
}

static void axes_of_one_rank_cost_nothing(void **state)
{
    struct flow f;
    resolved(&f, "mesh tp=1 dp=1\ninput x: f32[3, 5] {tp: R, dp: R}\nregion forward\n"
                 "  y: f32[3, 5] flags=output want={tp: S0} = gelu(x: x)\n");
    assert_int_equal(collectives(&f) + flow_count(&f.p, TN_OP_SLICE, -1), 0);
    lies(&f, "y", 1, TN_REPLICATE);
    flow_finish(&f);
    resolved(&f, "input x: f32[3, 5]\nregion forward\n  y: f32[3, 5] flags=output = gelu(x: x)\n"); /* no mesh at all */
    assert_int_equal(f.p.n_ops, 1);
    flow_finish(&f);
    resolved(&f, "mesh tp=2\n");
    flow_finish(&f);
}

static void refused(const char *text, const char *what)
{
    struct flow f;
    flow_parse(&f, text);
    tn_resolve(&f.p);
    flow_refused(&f.p, what);
    flow_finish(&f);
}

static void what_fits_nowhere_is_refused_with_both_names(void **state)
{
    /* x is cut along the sequence, which attention cannot be, and no strategy replaced it */
    refused("mesh tp=2\nparam w: f32[8, 8] {tp: S0 by odd}\nparam v: f32[8, 8] {tp: S1 by other}\nregion forward\n"
            "  y: f32[8, 8] = add(a: w, b: v)\n",
            "y = add: no rule of add fits on axis tp: w is shard(0) by odd, v is shard(1) by other");
    refused("mesh tp=2\ninput x: f32[3, 8] {tp: R}\nparam w: f32[8, 8] {tp: P}\nregion forward\n"
            "  h: f32[3, 8] = gelu(x: x)\n  y: f32[3, 8] = linear(x: h, w: w)\n",
            "no rule of linear fits on axis tp: h (made by gelu) is replicate, w is partial(sum)");
}

static void pins_that_do_not_divide_are_refused(void **state)
{
    refused("mesh tp=2\nparam w: f32[8, 9] {tp: S1 by odd}\nregion forward\n  y: f32[8, 9] = gelu(x: w)\n",
            "w: shard(1) on axis tp = 2 does not divide its 9 elements; asked by odd");
}

static void late_ops_take_the_row_of_their_inputs(void **state)
{
    struct flow f;
    resolved(&f, MLP);
    tn_value h = flow_value(&f.p, "h"), y = flow_value(&f.p, "y");
    tn_value g = tn_op_new(&f.p, TN_OP_GELU, "late", &h, 1, NULL, 0);
    tn_resolve_late(&f.p, tn_last_op(&f.p));
    lies(&f, "late", 0, TN_SHARD(2));
    assert_int_equal(g, flow_value(&f.p, "late"));
    tn_op_new(&f.p, TN_OP_GELU, "bad", &y, 1, NULL, 0); /* of a partial */
    tn_resolve_late(&f.p, tn_last_op(&f.p));
    flow_refused(&f.p, "bad = gelu: no rule of gelu fits on axis tp");
    flow_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_then_rows_cost_one_reduction),
        cmocka_unit_test(a_want_chooses_reduce_scatter),
        cmocka_unit_test(partial_terms_are_added_before_they_are_reduced),
        cmocka_unit_test(conversions_are_remembered),
        cmocka_unit_test(what_was_converted_costs_nothing_again),
        cmocka_unit_test(params_are_never_converted),
        cmocka_unit_test(equal_costs_go_to_fewer_collectives_and_the_earlier_row),
        cmocka_unit_test(unequal_parts_are_gathered_as_a_sum),
        cmocka_unit_test(outputs_are_gathered_beside_their_users),
        cmocka_unit_test(gradients_meet_the_type_of_their_param),
        cmocka_unit_test(axes_of_one_rank_cost_nothing),
        cmocka_unit_test(what_fits_nowhere_is_refused_with_both_names),
        cmocka_unit_test(pins_that_do_not_divide_are_refused),
        cmocka_unit_test(late_ops_take_the_row_of_their_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
