/* Schedule: micro-batches in the order they are asked for, accumulators chained through them, communication of the
 * step as early as what it needs; and that the order does not change what is computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "passes/autodiff.h"
#include "flow_cpu.h"

enum { ROWS = 2, WIDTH = 8, VOCAB = 5, TOKENS = 4 };

static const char model[] = "input tokens: i32[2, 4]\ninput labels: i32[2, 4]\nparam w: f32[5, 8]\nparam u: f32[8, 8]\n"
                            "region forward\n"
                            "  x: f32[2, 4, 8] = embedding(ids: tokens, w: w)\n"
                            "  y: f32[2, 4, 8] = linear(x: x, w: u)\n"
                            "  g: f32[2, 4, 8] = gelu(x: y)\n"
                            "  l: f32[2, 4, 5] = linear(x: g, w: w) trans=1\n"
                            "  loss: f32[] flags=loss, lse: f32[2, 4] = cross_entropy(logits: l, labels: labels)\n";

struct scheduled {
    struct flow f;
    struct tn_program flat;
};

static void differentiated(struct scheduled *s, int32_t micro_batches)
{
    flow_parse(&s->f, model);
    tn_objective(&s->f.p, micro_batches);
    tn_autodiff(&s->f.p);
    tn_program_init(&s->flat, &s->f.mesh, s->f.p.coord);
}

static void scheduled(struct scheduled *s, int32_t micro_batches, const struct tn_slot *slots, uint32_t n)
{
    differentiated(s, micro_batches);
    tn_schedule(&s->f.p, &s->flat, micro_batches, slots, n);
    flow_clean(&s->flat);
    if (tn_program_verify(&s->flat, "schedule"))
        flow_clean(&s->flat);
}

static void finish(struct scheduled *s)
{
    tn_program_finish(&s->flat);
    flow_finish(&s->f);
}

/* Names of the ops in order, joined by spaces. */
static void listing(const struct tn_program *p, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = 0;
    TN_EACH_OP(p, op)
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? " " : "", p->ops[op].name);
}

static void accumulators_are_chained_and_the_first_adds_to_nothing(void **state)
{
    struct scheduled s;
    scheduled(&s, 3, NULL, 0);
    flow_has(&s.flat, "y.dw@0: f32[8, 8] like=u = linear_dw(x: x@0, dy: g.dx@0) ");
    flow_has(&s.flat, "= linear_dw(x: x@1, dy: g.dx@1, acc: y.dw@0) ");
    flow_has(&s.flat, "= linear_dw(x: x@2, dy: g.dx@2, acc: y.dw@1) ");
    flow_has(&s.flat, "loss.total.sum@0: f32[] = accumulate(x: loss@0)");
    flow_has(&s.flat, "= accumulate(x: loss@2, acc: loss.total.sum@1)");
    flow_has(&s.flat, "scale_by(x: loss.total.sum@2, s: loss.seed)");
    finish(&s);
}

static void one_micro_batch_keeps_its_names(void **state)
{
    struct scheduled s;
    scheduled(&s, 1, NULL, 0);
    flow_has(&s.flat, "x: f32[2, 4, 8] = embedding(ids: tokens, w: w) ");
    flow_has_not(&s.flat, "@0:");
    finish(&s);
}

static void ops_run_in_the_order_of_the_slots(void **state)
{
    static const struct tn_slot slots[] = {
        { sizeof *slots, TN_REGION_FORWARD, 0, 1 },
        { sizeof *slots, TN_REGION_FORWARD, 0, 0 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 0 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 1 },
    };
    struct scheduled s;
    scheduled(&s, 2, slots, 4);
    tn_program_renumber(&s.flat);
    const char *const order[] = {
        "x@1", "loss@1", "x@0", "loss@0", "l.dx@0", "x.dw@0", "l.dx@1", "x.dw@1", "loss.mean"
    };
    for (size_t i = 1; i < sizeof order / sizeof *order; i++) {
        assert_true(flow_op(&s.flat, order[i]) > 0);
        assert_true(s.flat.ops[flow_op(&s.flat, order[i - 1])].order < s.flat.ops[flow_op(&s.flat, order[i])].order);
    }
    finish(&s);
}

/* The last gradients of w and u, kept to the end of the step. */
static void keep_gradients(struct tn_program *flat, tn_value whole[2])
{
    TN_EACH_OP(flat, op) {
        tn_value out = flat->ops[op].n_out ? flat->ops[op].out[0] : 0;
        if (out && flat->values[out].kind == TN_KIND_ACCUMULATOR && flat->values[out].rank == 2)
            whole[flat->values[out].shape[0] == VOCAB ? 0 : 1] = out;
    }
    flat->values[whole[0]].flags |= TN_VALUE_OUTPUT;
    flat->values[whole[1]].flags |= TN_VALUE_OUTPUT;
}

static void write_inputs(struct flow_run *run, int32_t micro_batches)
{
    int32_t ids[ROWS * TOKENS], *all = malloc((size_t)micro_batches * sizeof ids);
    char name[32];
    assert_non_null(all);
    for (int32_t m = 0; m < micro_batches; m++) {
        for (int i = 0; i < ROWS * TOKENS; i++)
            ids[i] = (int32_t)((i + 3 * m) * 7 % VOCAB);
        snprintf(name, sizeof name, micro_batches > 1 ? "tokens@%d" : "tokens", m);
        flow_run_write(run, name, ids);
        for (int i = 0; i < ROWS * TOKENS; i++) /* unequal counts of targets */
            ids[i] = i % 3 == m % 3 ? -100 : (int32_t)((i + m) % VOCAB);
        snprintf(name, sizeof name, micro_batches > 1 ? "labels@%d" : "labels", m);
        flow_run_write(run, name, ids);
        memcpy(all + m * ROWS * TOKENS, ids, sizeof ids);
    }
    flow_run_write(run, "labels.step", all);
    free(all);
}

static void gradients(struct scheduled *s, int32_t micro_batches, float *w, float *u, float *loss)
{
    struct flow_run run;
    float data[64];
    tn_value whole[2] = { 0 };
    keep_gradients(&s->flat, whole);
    flow_run_open(&run, &s->flat, 0xff);
    for (int i = 0; i < 64; i++)
        data[i] = (float)((i * 37) % 29 - 14) / 20.0f;
    flow_run_write(&run, "w", data);
    flow_run_write(&run, "u", data);
    write_inputs(&run, micro_batches);
    flow_run_step(&run);
    *loss = flow_run_scalar(&run, "loss.mean");
    flow_run_read(&run, s->flat.values[whole[0]].name, w);
    flow_run_read(&run, s->flat.values[whole[1]].name, u);
    flow_run_close(&run);
}

/* As in 1F1B: forwards run ahead, backwards keep their order, so that sums have the same bits. */
static void the_order_of_slots_does_not_change_the_gradients(void **state)
{
    struct tn_slot slots[] = {
        { sizeof *slots, TN_REGION_FORWARD, 0, 0 },  { sizeof *slots, TN_REGION_FORWARD, 0, 1 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 0 }, { sizeof *slots, TN_REGION_FORWARD, 0, 2 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 1 }, { sizeof *slots, TN_REGION_BACKWARD, 0, 2 },
    };
    float w[3][VOCAB * WIDTH], u[3][WIDTH * WIDTH], loss[3];
    for (int way = 0; way < 3; way++) {
        struct scheduled s;
        if (way == 2) /* backwards in another order: the same up to rounding */
            slots[4].micro = 2, slots[5].micro = 1;
        scheduled(&s, 3, way ? slots : NULL, way ? 6 : 0);
        gradients(&s, 3, w[way], u[way], &loss[way]);
        finish(&s);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    assert_memory_equal(u[0], u[1], sizeof u[0]);
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    for (int i = 0; i < VOCAB * WIDTH; i++)
        assert_float_equal(w[0][i], w[2][i], 1e-6f);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        assert_float_equal(u[0][i], u[2][i], 1e-6f);
}

static void impossible_slots_are_refused(void **state)
{
    static const struct tn_slot bad[] = {
        { sizeof *bad, TN_REGION_FORWARD, 0, 2 },
        { sizeof *bad, TN_REGION_FORWARD, 0, -1 },
        { sizeof *bad, TN_REGION_STEP, 0, 0 },
        { sizeof *bad, TN_REGION_BACKWARD, -1, 0 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct scheduled s;
        differentiated(&s, 2);
        tn_schedule(&s.f.p, &s.flat, 2, &bad[i], 1);
        flow_refused(&s.flat, "slot 0 of the schedule is region");
        finish(&s);
    }
}

/* As in a zero-bubble pipeline: gradients of params come later than those of activations. */
static void weight_gradients_may_be_put_off(void **state)
{
    static const struct tn_slot slots[] = {
        { sizeof *slots, TN_REGION_FORWARD, 0, 0 },  { sizeof *slots, TN_REGION_FORWARD, 0, 1 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 0 }, { sizeof *slots, TN_REGION_BACKWARD, 0, 1 },
        { sizeof *slots, TN_REGION_WEIGHT, 0, 0 },   { sizeof *slots, TN_REGION_WEIGHT, 0, 1 },
    };
    float w[2][VOCAB * WIDTH], u[2][WIDTH * WIDTH], loss[2];
    for (int way = 0; way < 2; way++) {
        struct scheduled s;
        differentiated(&s, 2);
        tn_op first = flow_op(&s.f.p, "y.dw"), step = s.f.p.first;
        while (s.f.p.ops[step].region != TN_REGION_STEP)
            step = s.f.p.ops[step].next;
        tn_op_move(&s.f.p, first, step);
        s.f.p.ops[first].region = TN_REGION_WEIGHT;
        tn_schedule(&s.f.p, &s.flat, 2, way ? slots : NULL, way ? 6 : 0);
        flow_clean(&s.flat);
        assert_int_equal(tn_program_verify(&s.flat, "schedule"), 0);
        tn_program_renumber(&s.flat);
        int late = s.flat.ops[flow_op(&s.flat, "y.dw@0")].order > s.flat.ops[flow_op(&s.flat, "x.dw@1")].order;
        assert_int_equal(late, way);
        gradients(&s, 2, w[way], u[way], &loss[way]);
        finish(&s);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    assert_memory_equal(u[0], u[1], sizeof u[0]);
}

/* A slot for each region that has ops; one left out would lose gradients in silence. */
static void slots_that_leave_something_out_are_refused(void **state)
{
    static const struct tn_slot slots[] = {
        { sizeof *slots, TN_REGION_FORWARD, 0, 0 },
        { sizeof *slots, TN_REGION_BACKWARD, 0, 0 },
        { sizeof *slots, TN_REGION_FORWARD, 0, 1 },
    };
    struct scheduled s;
    differentiated(&s, 2);
    tn_schedule(&s.f.p, &s.flat, 2, slots, 3);
    flow_refused(&s.flat, "the schedule runs region backward of stage 0 1 times");
    finish(&s);
}

/* Two stages of one rank: what stands with no stage comes once, after both. */
static void ops_of_no_stage_run_with_the_last_slot(void **state)
{
    static const char two[] = "input x: f32[4]\nregion forward\n  a: f32[4] = gelu(x: x) @stage=0\n"
                              "  b: f32[4] = gelu(x: a) @stage=1\n  all: f32[4] flags=output = gelu(x: b) @stage=-1\n";
    static const struct tn_slot slots[] = {
        { sizeof *slots, TN_REGION_FORWARD, 0, 0 },
        { sizeof *slots, TN_REGION_FORWARD, 0, 1 },
        { sizeof *slots, TN_REGION_FORWARD, 1, 0 },
        { sizeof *slots, TN_REGION_FORWARD, 1, 1 },
    };
    struct flow f;
    struct tn_program flat;
    char text[256];
    flow_parse(&f, two);
    tn_program_init(&flat, &f.mesh, f.p.coord);
    tn_schedule(&f.p, &flat, 2, slots, 4);
    flow_clean(&flat);
    listing(&flat, text, sizeof text);
    assert_string_equal(text, "a@0 a@1 b@0 all@0 b@1 all@1");
    tn_program_finish(&flat);
    flow_finish(&f);
}

static const char synced[] =
    "mesh dp=2\ninput x: f32[4, 8] {dp: S0}\nparam a: f32[8] {dp: R}\nparam b: f32[8] {dp: R}\n"
    "accumulator grad.a: f32[8] {dp: P} like=a\naccumulator grad.b: f32[8] {dp: P} like=b\n"
    "region backward\n"
    "  accumulator da: f32[8] {dp: P} like=a = bias_dw(dy: x, acc: grad.a)\n"
    "  y: f32[4, 8] {dp: S0} = gelu(x: x)\n"
    "  accumulator db: f32[8] {dp: P} like=b = bias_dw(dy: y, acc: grad.b)\n"
    "  z: f32[4, 8] {dp: S0} = gelu(x: y)\n"
    "region step\n"
    "  pa: f32[16] {dp: P} = pack(x: da)\n"
    "  ra: f32[16] {dp: R} = all_reduce(x: pa) axis=0 red=0\n"
    "  ga: f32[8] {dp: R} = view(x: ra, like: da) offset=0\n"
    "  accumulator rb: f32[8] {dp: R} = all_reduce(x: db) axis=0 red=0\n"
    "  gb: f32[8] {dp: R} = sync(g: rb)\n"
    "  s: f32[] {dp: R} = sumsq(g: ga, gb)\n"
    "  c: f32[4] {dp: R} flags=output = clip(s: s) max_norm=1.0\n"
    "  late: f32[] {dp: R} = all_reduce(x: s) axis=0 red=0\n";

static void communication_of_the_step_starts_once_its_gradient_is_whole(void **state)
{
    struct flow f;
    struct tn_program flat;
    char text[1024];
    flow_parse(&f, synced);
    tn_program_init(&flat, &f.mesh, f.p.coord);
    tn_schedule(&f.p, &flat, 2, NULL, 0);
    flow_clean(&flat);
    listing(&flat, text, sizeof text);
    /* not before the last micro-batch; each right behind its op; what is computed in the step stays there */
    assert_string_equal(text, "da@0 y@0 db@0 z@0 da@1 pa ra ga y@1 db@1 rb gb z@1 s c late");
    tn_program_finish(&flat);
    flow_finish(&f);
}

static void an_empty_program_is_scheduled(void **state)
{
    struct flow f;
    struct tn_program flat;
    flow_parse(&f, "param w: f32[4]\n");
    tn_program_init(&flat, &f.mesh, f.p.coord);
    tn_schedule(&f.p, &flat, 4, NULL, 0);
    flow_clean(&flat);
    assert_int_equal(flat.n_ops, 0);
    assert_int_equal(flat.n_values, 0); /* a param that no op of this rank uses takes no memory here */
    tn_program_finish(&flat);
    flow_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulators_are_chained_and_the_first_adds_to_nothing),
        cmocka_unit_test(one_micro_batch_keeps_its_names),
        cmocka_unit_test(ops_run_in_the_order_of_the_slots),
        cmocka_unit_test(the_order_of_slots_does_not_change_the_gradients),
        cmocka_unit_test(impossible_slots_are_refused),
        cmocka_unit_test(weight_gradients_may_be_put_off),
        cmocka_unit_test(slots_that_leave_something_out_are_refused),
        cmocka_unit_test(ops_of_no_stage_run_with_the_last_slot),
        cmocka_unit_test(communication_of_the_step_starts_once_its_gradient_is_whole),
        cmocka_unit_test(an_empty_program_is_scheduled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
