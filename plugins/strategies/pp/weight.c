/* pp: weight gradients that a zero-bubble schedule puts off.
 *
 * Requires: a lowered program. Establishes: ops of the backward region whose results only gradients of params need are
 * in the region weight, in the same order:
 *
 *     region backward                                   region backward
 *       dx = linear_dx dy w                               dx = linear_dx dy w
 *       g' = linear_dw x dy g                     =>      ..
 *       ..                                              region weight
 *                                                         g' = linear_dw x dy g
 *
 * Only ops of layers move: the gradient of the logits, which the head's weight gradient uses, is much larger than any
 * other, and to keep several of it would cost the memory that the schedule promises. */
#include "pp.h"

#include <string.h>

enum { USED = 1, STAYS = 2 /* by an op that stays */ };

struct putting_off {
    const struct pp *pp;
    struct tn_program *program;
    tn_op *ops; /* in program order */
    uint32_t n;
    tn_op step;     /* the first of its region */
    uint8_t *use;    /* by value: how it is used */
    uint8_t *moves;  /* by place in ops */
};

static int may_move(const struct putting_off *w, const struct tn_op_info *op)
{
    int serves = 0;
    if (op->region != TN_REGION_BACKWARD || op->layer < 0 || op->stage < 0 || op->opcode == TN_OP_SEND ||
        op->opcode == TN_OP_RECV)
        return 0;
    for (uint32_t i = 0; i < op->n_out; i++) {
        struct tn_value_info out;
        pp_value(w->pp, w->program, op->out[i], &out);
        if ((w->use[op->out[i]] & STAYS) || (out.flags & TN_VALUE_OUTPUT))
            return 0;
        serves |= out.kind == TN_KIND_ACCUMULATOR || (w->use[op->out[i]] & USED);
    }
    return serves;
}

/* From the last op to the first: who only serves those that move moves too. */
static void choose(struct putting_off *w)
{
    for (uint32_t i = w->n; i-- > 0;) {
        struct tn_op_info op;
        pp_op(w->pp, w->program, w->ops[i], &op);
        w->moves[i] = (uint8_t)may_move(w, &op);
        for (uint32_t k = 0; k < op.n_in; k++)
            w->use[op.in[k]] |= w->moves[i] || op.region == TN_REGION_STEP ? USED : USED | STAYS;
    }
}

static void list(struct putting_off *w)
{
    for (tn_op op = w->pp->read->op_next(w->program, 0); op; op = w->pp->read->op_next(w->program, op)) {
        struct tn_op_info info;
        pp_op(w->pp, w->program, op, &info);
        if (info.region == TN_REGION_STEP && !w->step)
            w->step = op;
        w->ops[w->n++] = op;
    }
}

tn_status pp_put_off_weights(const struct pp *pp, struct tn_program *program)
{
    const struct tn_host *host = pp->host;
    struct putting_off w = {.pp = pp, .program = program};
    uint64_t values = 1, ops = 0;
    for (tn_value v = pp->read->value_next(program, 0); v; v = pp->read->value_next(program, v))
        values = (uint64_t)v + 1;
    for (tn_op op = pp->read->op_next(program, 0); op; op = pp->read->op_next(program, op))
        ops++;
    w.ops = host->alloc(host, (ops + 1) * sizeof *w.ops);
    w.use = host->alloc(host, values + ops);
    tn_status status = w.ops && w.use ? TN_OK : TN_NO_MEMORY;
    if (status == TN_OK) {
        memset(w.use, 0, values + ops);
        w.moves = w.use + values;
        list(&w);
        choose(&w);
        for (uint32_t i = 0; i < w.n; i++)
            if (w.moves[i]) {
                pp->edit->set_region(program, w.ops[i], TN_REGION_WEIGHT);
                pp->edit->op_move(program, w.ops[i], w.step);
            }
    }
    host->release(host, w.ops);
    host->release(host, w.use);
    return status;
}
