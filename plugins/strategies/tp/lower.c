/* tp.lower: has sums of gradients joined, and with sequence_parallel gathers again in the backward pass.
 *
 * Requires: a resolved program. Establishes: gradients that are sums over tp (of the norms with
 * sequence_parallel, of keys and values that several ranks hold) are added up in buckets; with
 * sequence_parallel, no output of a forward all_gather of tp is used by the backward pass, so
 * that only this rank's part is kept between the two.
 *
 *     h' = all_gather h    (forward)         h'  = all_gather h   (forward)
 *     dw = linear_dw h' dy (backward)   =>   h'' = all_gather h   (backward)
 *                                            dw  = linear_dw h'' dy */
#include <stdio.h>
#include <string.h>

#include "tp.h"

static void op_info(const struct tp *tp, const struct tn_program *program, tn_op op, struct tn_op_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    tp->read->op_info(program, op, info);
}

static int is_own_axis(const struct tp *tp, const struct tn_program *program, int64_t axis)
{
    for (int32_t a = 0; a < tp->axes.n; a++)
        if (tp->read->axis_find(program, tp->axes.name[a]) == axis)
            return 1;
    return 0;
}

static int is_gather(const struct tp *tp, const struct tn_program *program, tn_op op)
{
    struct tn_op_info info;
    op_info(tp, program, op, &info);
    return info.opcode == TN_OP_ALL_GATHER && info.region == TN_REGION_FORWARD &&
           is_own_axis(tp, program, tp->read->attr_int(program, op, "axis", -1));
}

static tn_op first_backward_user(const struct tp *tp, const struct tn_program *program, tn_value v)
{
    for (tn_op user = tp->read->user_next(program, v, 0); user; user = tp->read->user_next(program, v, user)) {
        struct tn_op_info info;
        op_info(tp, program, user, &info);
        if (info.region == TN_REGION_BACKWARD)
            return user;
    }
    return 0;
}

/* The op that puts a gather's blocks in order along an inner dimension; 0 if none does. */
static tn_op merge_of(const struct tp *tp, const struct tn_program *program, tn_value gathered)
{
    tn_op user = tp->read->user_next(program, gathered, 0);
    struct tn_op_info info;
    if (!user)
        return 0;
    op_info(tp, program, user, &info);
    return info.opcode == TN_OP_MERGE_BLOCKS ? user : 0;
}

/* `op` (of one output) once more, on `input`, where new ops go. */
static tn_value repeat(const struct tp *tp, struct tn_program *program, tn_op op, tn_value input)
{
    struct tn_op_info info;
    struct tn_value_info output = { .struct_size = sizeof output };
    char name[256];
    op_info(tp, program, op, &info);
    tp->read->value_info(program, info.out[0], &output);
    snprintf(name, sizeof name, "%.240s.again", output.name);
    tn_op copy = tp->edit->op_copy(program, op, name);
    tp->edit->set_input(program, copy, 0, input);
    return tp->edit->output(program, copy, 0);
}

static void gather_again(const struct tp *tp, struct tn_program *program, tn_op gather)
{
    struct tn_op_info info, merge_info, user_info;
    op_info(tp, program, gather, &info);
    tn_value part = info.in[0], whole = info.out[0];
    tn_op merge = merge_of(tp, program, whole);
    if (merge) {
        op_info(tp, program, merge, &merge_info);
        whole = merge_info.out[0];
    }
    tn_op user = first_backward_user(tp, program, whole);
    if (!user)
        return;
    op_info(tp, program, user, &user_info);
    tp->edit->at(program, TN_REGION_BACKWARD, user_info.layer, user_info.stage);
    tp->edit->insert_before(program, user);
    tn_value again = repeat(tp, program, gather, part);
    if (merge)
        again = repeat(tp, program, merge, again);
    tp->edit->insert_before(program, 0);
    tp->edit->replace_uses(program, whole, again, tp->edit->last_op(program));
}

/* Last gathers first: where two axes gather one after the other, the second's repetition
 * makes a backward use of the first. */
static tn_status gather_all_again(const struct tp *tp, struct tn_program *program)
{
    uint64_t n = 0, cap = 0;
    for (tn_op op = tp->read->op_next(program, 0); op; op = tp->read->op_next(program, op))
        cap += is_gather(tp, program, op) != 0;
    tn_op *gathers = tp->host->alloc(tp->host, (cap + 1) * sizeof *gathers);
    if (!gathers)
        return tp->host->fail(tp->host, TN_NO_MEMORY, "no memory for a list of %llu gathers", (unsigned long long)cap);
    for (tn_op op = tp->read->op_next(program, 0); op; op = tp->read->op_next(program, op))
        if (is_gather(tp, program, op))
            gathers[n++] = op;
    while (n > 0)
        gather_again(tp, program, gathers[--n]);
    tp->host->release(tp->host, gathers);
    return TN_OK;
}

/* What is summed along both axes is joined with the first. */
tn_status tp_lower(void *self, struct tn_program *program)
{
    const struct tp *tp = self;
    for (int32_t a = 0; a < tp->axes.n && TN_HAS(tp->edit, join_sums); a++) {
        int32_t axis = tp->read->axis_find(program, tp->axes.name[a]);
        if (axis >= 0)
            tp->edit->join_sums(program, axis, tp->bucket_bytes);
    }
    return tp->sequence_parallel ? gather_all_again(tp, program) : TN_OK;
}
