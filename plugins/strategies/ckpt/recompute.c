/* Recompute: forward ops again in the backward pass.
 *
 * Requires: a resolved program. Establishes: a backward op of a chosen layer uses copies of what the layer's chosen
 * forward ops made; each copy stands right before its first use. Preserves: all values, to the bit.
 *
 *     forward:  n = rmsnorm x                    forward:  n = rmsnorm x
 *               y = linear n w                             y = linear n w
 *     backward: dw = linear_dw n dy        =>    backward: n.again = rmsnorm x
 *                                                          dw = linear_dw n.again dy
 *
 * That is all: the memory planner sees that n has no use after the forward pass. What a collective delivered is kept,
 * not sent again, unless asked for. */
#include "ckpt.h"

#include <stdio.h>
#include <string.h>

struct recomputing {
    const struct ckpt *ckpt;
    struct tn_program *program;
    tn_value *again; /* by value: its copy, 0 none */
    uint64_t n_values;
    const struct ckpt_choice *choice;
    tn_op before; /* backward op at hand */
    tn_op *work;  /* ops being copied, innermost last */
};

static void op_info(const struct recomputing *r, tn_op op, struct tn_op_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    r->ckpt->read->op_info(r->program, op, info);
}

static tn_op def_of(const struct recomputing *r, tn_value v)
{
    struct tn_value_info info = { .struct_size = sizeof info };
    if (!v)
        return 0;
    r->ckpt->read->value_info(r->program, v, &info);
    return info.def;
}

/* Collectives, with the ops that bring their blocks in order. */
static int is_collective(uint32_t opcode)
{
    return opcode == TN_OP_ALL_REDUCE || opcode == TN_OP_ALL_GATHER || opcode == TN_OP_REDUCE_SCATTER ||
           opcode == TN_OP_ALL_TO_ALL || opcode == TN_OP_BROADCAST || opcode == TN_OP_MERGE_BLOCKS ||
           opcode == TN_OP_SPLIT_BLOCKS;
}

static int is_listed(const struct ckpt *ckpt, const struct tn_op_info *op, const char *tag)
{
    for (uint32_t i = 0; i < ckpt->n_ops; i++)
        if (strcmp(ckpt->ops[i], op->name) == 0)
            return 1;
    for (uint32_t i = 0; i < ckpt->n_tags && tag[0]; i++)
        if (strcmp(ckpt->tags[i], tag) == 0)
            return 1;
    return 0;
}

/* Whether the op that makes v runs again for a backward op of `layer`. */
static int runs_again(const struct recomputing *r, tn_value v, int32_t layer)
{
    struct tn_value_info value = { .struct_size = sizeof value };
    struct tn_op_info op;
    if (!v)
        return 0;
    r->ckpt->read->value_info(r->program, v, &value);
    if (!value.def)
        return 0;
    op_info(r, value.def, &op);
    if (op.region != TN_REGION_FORWARD || op.layer != layer || layer < 0)
        return 0;
    if (layer >= r->choice->full && layer >= r->choice->some)
        return 0;
    if (value.kind == TN_KIND_ACCUMULATOR || op.opcode == TN_OP_SEND || op.opcode == TN_OP_RECV)
        return 0;
    if (is_collective(op.opcode) || (op.op_flags & TN_OP_COMMUNICATES))
        return r->ckpt->resend;
    if (layer < r->choice->full)
        return 1;
    return r->choice->cheap ? value.def <= r->choice->most && r->choice->cheap[value.def]
                            : is_listed(r->ckpt, &op, value.tag);
}

static tn_value copy_of(const struct recomputing *r, tn_value v)
{
    return v < r->n_values ? r->again[v] : 0;
}

/* An input of the op whose maker must be copied first; 0: none left. */
static tn_op missing_input(const struct recomputing *r, const struct tn_op_info *op, int32_t layer)
{
    for (uint32_t i = 0; i < op->n_in; i++)
        if (runs_again(r, op->in[i], layer) && !copy_of(r, op->in[i]))
            return def_of(r, op->in[i]);
    return 0;
}

static void copy_op(struct recomputing *r, tn_op op, int32_t layer)
{
    struct tn_op_info info, copied;
    struct tn_value_info out = { .struct_size = sizeof out };
    char name[256];
    op_info(r, op, &info);
    r->ckpt->read->value_info(r->program, info.out[0], &out);
    snprintf(name, sizeof name, "%.240s.again", out.name);
    r->ckpt->edit->at(r->program, TN_REGION_BACKWARD, layer, info.stage);
    r->ckpt->edit->insert_before(r->program, r->before);
    tn_op copy = r->ckpt->edit->op_copy(r->program, op, name);
    op_info(r, op, &info);
    op_info(r, copy, &copied);
    for (uint32_t i = 0; i < info.n_in; i++)
        if (copy_of(r, info.in[i]))
            r->ckpt->edit->set_input(r->program, copy, i, copy_of(r, info.in[i]));
    for (uint32_t i = 0; i < info.n_out; i++)
        r->again[info.out[i]] = copied.out[i];
}

/* Copies the op that makes v after all that it needs, deepest first. */
static void run_again(struct recomputing *r, tn_value v, int32_t layer)
{
    uint64_t depth = 0;
    r->work[depth++] = def_of(r, v);
    while (depth > 0) {
        struct tn_op_info info;
        op_info(r, r->work[depth - 1], &info);
        tn_op first = missing_input(r, &info, layer);
        if (first)
            r->work[depth++] = first;
        else
            copy_op(r, r->work[--depth], layer);
    }
}

/* The op uses copies, but of what another strategy has claimed before. */
static void use_copies(struct recomputing *r, tn_op op)
{
    struct tn_op_info info;
    uint32_t flags = r->ckpt->automatic ? TN_CLAIM_CHOSEN : 0;
    op_info(r, op, &info);
    for (uint32_t i = 0; i < info.n_in; i++) {
        if (!runs_again(r, info.in[i], info.layer))
            continue;
        if (r->choice->key &&
            strcmp(r->ckpt->edit->claim(r->program, info.in[i], "recompute", r->choice->key, flags)->who, "ckpt") != 0)
            continue;
        r->before = op;
        if (!copy_of(r, info.in[i]))
            run_again(r, info.in[i], info.layer);
        r->ckpt->edit->set_input(r->program, op, i, copy_of(r, info.in[i]));
        op_info(r, op, &info);
    }
}

tn_status ckpt_recompute(const struct ckpt *ckpt, struct tn_program *program, const struct ckpt_choice *choice)
{
    const struct tn_program_api *read = ckpt->read;
    struct recomputing r = { .ckpt = ckpt, .program = program, .choice = choice };
    uint64_t n_ops = 1;
    for (tn_value v = read->value_next(program, 0); v; v = read->value_next(program, v))
        r.n_values = v + 1;
    for (tn_op op = read->op_next(program, 0); op; op = read->op_next(program, op))
        n_ops++;
    r.again = ckpt->host->alloc(ckpt->host, (r.n_values + 1) * sizeof *r.again);
    r.work = ckpt->host->alloc(ckpt->host, n_ops * sizeof *r.work);
    tn_status status = TN_OK;
    if (r.again && r.work) {
        memset(r.again, 0, (r.n_values + 1) * sizeof *r.again);
        for (tn_op op = read->op_next(program, 0); op; op = read->op_next(program, op)) {
            struct tn_op_info info;
            op_info(&r, op, &info);
            if (info.region == TN_REGION_BACKWARD)
                use_copies(&r, op);
        }
        ckpt->edit->insert_before(program, 0);
    } else {
        status = ckpt->host->fail(ckpt->host, TN_NO_MEMORY, "no memory to walk %llu ops", (unsigned long long)n_ops);
    }
    ckpt->host->release(ckpt->host, r.work);
    ckpt->host->release(ckpt->host, r.again);
    return status;
}
