/* fsdp.place: how values lie on the axis.
 *
 * Requires: a program with gradients, global shapes. Establishes: inputs cut along their batch, params flat (states
 * follow them), and that a table looked up in bf16 is cast before it is gathered. With level gradients and full,
 * accumulators are flat as well, and what an op adds to one is made by itself first, so that resolve reduces and
 * scatters it right after each micro-batch:
 *
 *     acc' = linear_dw x dy acc      =>      dw = linear_dw x dy
 *                                            acc' = accumulate dw acc        (acc: flat)
 */
#include "fsdp.h"

#include <stdio.h>
#include <string.h>

static void place_inputs_and_params(const struct fsdp *fsdp, struct tn_program *program, int32_t axis)
{
    for (tn_value v = fsdp->read->value_next(program, 0); v; v = fsdp->read->value_next(program, v)) {
        struct tn_value_info info;
        fsdp_value(fsdp, program, v, &info);
        for (int32_t d = 0; info.kind == TN_KIND_INPUT && !info.def && d < info.rank; d++)
            if (strcmp(info.dims[d], "batch") == 0)
                fsdp->edit->place(program, v, axis, TN_SHARD(d));
        if (info.kind == TN_KIND_PARAM && !info.def)
            fsdp->edit->place(program, v, axis, TN_FLAT);
    }
}

/* The accumulating input of output `index`, as a position, or -1: accumulators come last, in the outputs' order. */
static int32_t accumulator_of(const struct fsdp *fsdp, const struct tn_program *program, const struct tn_op_info *op,
                              uint32_t index)
{
    struct tn_value_info out, in;
    fsdp_value(fsdp, program, op->out[index], &out);
    if (out.kind != TN_KIND_ACCUMULATOR || !out.like)
        return -1;
    for (uint32_t i = 0; i < op->n_in; i++) {
        if (!op->in[i])
            continue;
        fsdp_value(fsdp, program, op->in[i], &in);
        if (in.kind == TN_KIND_ACCUMULATOR && in.like == out.like)
            return (int32_t)i;
    }
    return -1;
}

/* Output `index` of op becomes a term by itself, added to its accumulator by an op of its own. */
static void split(const struct fsdp *fsdp, struct tn_program *program, tn_op op, uint32_t index, int32_t axis)
{
    struct tn_op_info info;
    struct tn_value_info term, acc;
    char name[256];
    fsdp_op(fsdp, program, op, &info);
    int32_t at = accumulator_of(fsdp, program, &info, index);
    if (at < 0)
        return;
    tn_value sum = info.in[at], dw = info.out[index];
    fsdp_value(fsdp, program, dw, &term);
    fsdp_value(fsdp, program, sum, &acc);
    if (!acc.def)
        fsdp->edit->place(program, sum, axis, TN_FLAT);
    snprintf(name, sizeof name, "%.240s.sum", term.name);
    fsdp->edit->at(program, info.region, info.layer, info.stage);
    fsdp->edit->insert_before(program, fsdp->read->op_next(program, op));
    const tn_value in[] = { dw, sum };
    tn_value total = fsdp->edit->op(program, TN_OP_ACCUMULATE, name, in, 2, NULL, 0);
    fsdp->edit->insert_before(program, 0);
    fsdp->edit->replace_uses(program, dw, total, fsdp->edit->last_op(program));
    fsdp->edit->set_kind(program, total, TN_KIND_ACCUMULATOR, term.like);
    fsdp->edit->set_kind(program, dw, TN_KIND_ACTIVATION, term.like);
    fsdp->edit->set_input(program, op, (uint32_t)at, 0);
}

static void split_accumulation(const struct fsdp *fsdp, struct tn_program *program, int32_t axis)
{
    for (tn_op op = fsdp->read->op_next(program, 0); op; op = fsdp->read->op_next(program, op)) {
        struct tn_op_info info;
        fsdp_op(fsdp, program, op, &info);
        if (info.region != TN_REGION_BACKWARD || info.opcode == TN_OP_ACCUMULATE)
            continue;
        for (uint32_t i = info.n_out; i > 0; i--) {
            fsdp_op(fsdp, program, op, &info);
            split(fsdp, program, op, i - 1, axis);
        }
    }
}

/* A table that is looked up for activations of a lower precision is gathered in that, which gives the same numbers:
 * rounding does not care whether it comes before or after. A cast that there is for a tied head serves both. */
static void look_up_rounded(const struct fsdp *fsdp, struct tn_program *program)
{
    tn_op first = fsdp->read->op_next(program, 0);
    for (tn_op op = first; op; op = fsdp->read->op_next(program, op)) {
        struct tn_op_info info, user_info;
        struct tn_value_info table, found;
        fsdp_op(fsdp, program, op, &info);
        if (info.opcode != TN_OP_EMBEDDING)
            continue;
        fsdp_value(fsdp, program, info.in[1], &table);
        fsdp_value(fsdp, program, info.out[0], &found);
        if (table.kind != TN_KIND_PARAM || table.dtype == found.dtype)
            continue;
        tn_value param = info.in[1], rounded = 0;
        for (tn_op user = fsdp->read->user_next(program, param, 0); user && !rounded;
             user = fsdp->read->user_next(program, param, user)) {
            fsdp_op(fsdp, program, user, &user_info);
            if (user_info.opcode == TN_OP_CAST && fsdp->read->attr_int(program, user, "dtype", 0) == found.dtype)
                rounded = user_info.out[0];
        }
        if (!rounded) {
            const struct tn_attr to = TN_ATTR_I("dtype", found.dtype);
            char name[256];
            snprintf(name, sizeof name, "%.240s.rounded", table.name);
            fsdp->edit->at(program, TN_REGION_PROLOGUE, table.layer, info.stage);
            fsdp->edit->insert_before(program, first);
            rounded = fsdp->edit->op(program, TN_OP_CAST, name, &param, 1, &to, 1);
            fsdp->edit->insert_before(program, 0);
            fsdp->edit->set_kind(program, rounded, TN_KIND_ACTIVATION, param);
        }
        fsdp->edit->set_input(program, op, 1, rounded);
    }
}

static void check_units(const struct fsdp *fsdp, struct tn_program *program)
{
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        int found = 0;
        for (tn_value v = fsdp->read->value_next(program, 0); v && !found; v = fsdp->read->value_next(program, v)) {
            struct tn_value_info info;
            fsdp_value(fsdp, program, v, &info);
            found = info.kind == TN_KIND_PARAM && !info.def && strstr(info.name, fsdp->units[i]);
        }
        if (found)
            continue;
        char what[160];
        snprintf(what, sizeof what, "no param has %.80s in its name", fsdp->units[i]);
        fsdp->host->problem(fsdp->host, "units", what, "tenon dump --after model shows them");
    }
}

tn_status fsdp_place(void *self, struct tn_program *program)
{
    const struct fsdp *fsdp = self;
    int32_t axis = fsdp->read->axis_find(program, "fsdp");
    if (axis < 0)
        return fsdp->host->fail(fsdp->host, TN_ERROR, "the mesh has no axis fsdp");
    if (fsdp->read->axis_size(program, axis) == 1)
        return TN_OK; /* nothing is cut, and what follows would only copy */
    check_units(fsdp, program);
    look_up_rounded(fsdp, program);
    place_inputs_and_params(fsdp, program, axis);
    if (fsdp->level != FSDP_OPTIMIZER)
        split_accumulation(fsdp, program, axis);
    return TN_OK;
}
