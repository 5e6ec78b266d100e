/* cp.place: sequences are cut, and attention talks across the cut.
 *
 * Requires: a program with gradients, global shapes. Establishes: every input with a dimension "sequence" is cut along
 * it, in zigzag order if asked; attention and its gradient are ops of cp, which allow that cut, or with all_to_all
 * their results are wanted with the heads cut. All else follows: ops of single tokens take any cut, and the loss and
 * the gradients of params are terms of sums over the axis.
 *
 *     o, lse = attention(q, k, v)     =>     o, lse = cp.attention(q, k, v) axis=1
 */
#include <stdio.h>
#include <string.h>

#include "cp.h"

/* On the axis of the op itself all of it is cut along the sequence; on others it is as attention. */
const char *cp_rows(const struct tn_op_call *call, int32_t axis)
{
    struct tn_op_info info = { .struct_size = sizeof info };
    call->read->op_info(call->program, call->op, &info);
    if (call->read->attr_int(call->program, call->op, "axis", -1) != axis)
        return NULL;
    return info.like == TN_OP_ATTENTION ? "1111>11" : "1111111>111";
}

static int32_t sequence_dim(const struct tn_value_info *value)
{
    for (int32_t dim = 0; dim < value->rank; dim++)
        if (strcmp(value->dims[dim], "sequence") == 0)
            return dim;
    return -1;
}

static void cut_inputs(const struct cp *cp, struct tn_program *program, int32_t axis)
{
    for (tn_value v = cp->read->value_next(program, 0); v; v = cp->read->value_next(program, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        cp->read->value_info(program, v, &info);
        int32_t dim = info.kind == TN_KIND_INPUT && !info.def ? sequence_dim(&info) : -1;
        if (dim >= 0)
            cp->edit->place(program, v, axis, cp_is_zigzag(cp) ? TN_SHARD_ZIGZAG(dim) : TN_SHARD(dim));
    }
}

/* The index in the sequence of each token that this rank has; the runtime fills it. */
static void add_index(const struct cp *cp, struct tn_program *program, int32_t axis, tn_value q)
{
    static const char *const dims[] = { "sequence" };
    struct tn_value_info info = { .struct_size = sizeof info };
    if (cp->read->value_find(program, "index"))
        return;
    cp->read->value_info(program, q, &info);
    cp->edit->at(program, TN_REGION_PROLOGUE, -1, -1);
    tn_value index = cp->edit->value(program, TN_KIND_INPUT, "index", TN_I32, 1, &info.shape[1], dims);
    cp->edit->place(program, index, axis, cp_is_zigzag(cp) ? TN_SHARD_ZIGZAG(0) : TN_SHARD(0));
}

/* With all_to_all a cut of the batch would cost the same at some places, and what follows would stay cut so: all that
 * has tokens is wanted cut along the sequence, but for attention, which has its heads cut. */
static void want_cuts(const struct cp *cp, struct tn_program *program, int32_t axis)
{
    struct tn_value_info tokens = { .struct_size = sizeof tokens };
    tn_value input = cp->read->value_find(program, "tokens");
    if (input)
        cp->read->value_info(program, input, &tokens);
    for (tn_value v = cp->read->value_next(program, 0); v; v = cp->read->value_next(program, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        cp->read->value_info(program, v, &info);
        if (input && info.def && info.kind == TN_KIND_ACTIVATION && info.rank >= 2 &&
            info.shape[0] == tokens.shape[0] && info.shape[1] == tokens.shape[1])
            cp->edit->want(program, v, axis, cp_is_zigzag(cp) ? TN_SHARD_ZIGZAG(1) : TN_SHARD(1));
    }
}

/* Ranks that other strategies cut a logical axis of params over. */
static int64_t cut_over(const struct cp *cp, struct tn_program *program, const char *name)
{
    for (tn_value v = cp->read->value_next(program, 0); v; v = cp->read->value_next(program, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        cp->read->value_info(program, v, &info);
        for (int32_t dim = 0; info.kind == TN_KIND_PARAM && !info.def && dim < info.rank; dim++) {
            int64_t ranks = 1;
            if (strcmp(info.dims[dim], name) != 0)
                continue;
            for (int32_t axis = 0; axis < cp->read->axis_count(program); axis++)
                if (cp->read->placement(program, v, axis) == TN_SHARD(dim))
                    ranks *= cp->read->axis_size(program, axis);
            return ranks;
        }
    }
    return 1;
}

/* What one rank has left of the heads must divide, or types would find another way than the one asked for. */
static void check_heads(const struct cp *cp, struct tn_program *program, int32_t size)
{
    static const char *const names[] = { "heads", "kv_heads" };
    for (int i = 0; i < 2; i++) {
        int64_t heads = cp->facts->get(cp->host, names[i], 0), ranks = cut_over(cp, program, names[i]);
        if (heads == 0 || heads % (ranks * size) == 0)
            continue;
        char what[160];
        snprintf(what, sizeof what,
                 "all_to_all deals %s = %lld out over size = %d, of which other strategies have cut %lld parts",
                 names[i], (long long)heads, size, (long long)ranks);
        cp->host->problem(cp->host, "method", what, "use sizes whose product divides it, or method = ring");
    }
}

static void rewrite(const struct cp *cp, struct tn_program *program, int32_t axis, tn_op op,
                    const struct tn_op_info *info)
{
    int backward = info->opcode == TN_OP_ATTENTION_DX;
    const struct tn_attr own = TN_ATTR_I("axis", axis);
    if (cp->method == CP_ALL_TO_ALL) {
        for (uint32_t i = 0; i < info->n_out; i++)
            cp->edit->want(program, info->out[i], axis, TN_SHARD(2));
        return;
    }
    add_index(cp, program, axis, info->in[backward]);
    cp->edit->set_opcode(program, op, backward ? cp->attention_dx : cp->attention);
    cp->edit->set_attr(program, op, &own);
}

tn_status cp_place(void *self, struct tn_program *program)
{
    const struct cp *cp = self;
    int32_t axis = cp->read->axis_find(program, "cp");
    if (axis < 0)
        return cp->host->fail(cp->host, TN_ERROR, "the mesh has no axis cp");
    if (cp->read->axis_size(program, axis) == 1)
        return TN_OK;
    cut_inputs(cp, program, axis);
    if (cp->method == CP_ALL_TO_ALL) {
        check_heads(cp, program, cp->read->axis_size(program, axis));
        want_cuts(cp, program, axis);
    }
    for (tn_op op = cp->read->op_next(program, 0); op; op = cp->read->op_next(program, op)) {
        struct tn_op_info info = { .struct_size = sizeof info };
        cp->read->op_info(program, op, &info);
        if (info.opcode == TN_OP_ATTENTION || info.opcode == TN_OP_ATTENTION_DX)
            rewrite(cp, program, axis, op, &info);
    }
    return TN_OK;
}
