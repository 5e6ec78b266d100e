/* pp: weight gradients that a zero-bubble schedule puts off.
 *
 * Requires: a lowered program. Establishes: ops of the backward region whose results only gradients of params need are
 * in the region weight, in the same order; those of the head are still in the backward region, but at its end:
 *
 *     region backward                                   region backward
 *       da = linear_dx dz v                               da = linear_dx dz v
 *       v' = linear_dw a dz v                             dx = linear_dx dy w;  send dx
 *       dx = linear_dx dy w;  send dx             =>      v' = linear_dw a dz v
 *       g' = linear_dw x dy g                           region weight
 *                                                         g' = linear_dw x dy g
 *
 * So no stage waits for the head's weight gradient, and the gradient of the logits, which it uses, is kept for one
 * micro-batch only: it is much larger than any other, and to keep several would cost the memory that the schedule
 * promises. */
#include "pp.h"

#include <string.h>

enum { USED = 1, STAYS = 2 /* by an op that stays */ };

struct putting_off {
    const struct pp *pp;
    struct tn_program *program;
    tn_op *ops; /* in program order */
    uint32_t n;
    uint32_t head;  /* how many of the first are before the backward pass of the layers */
    tn_op step;     /* the first of its region */
    uint8_t *use;   /* by value: how it is used */
    uint8_t *moves; /* by place in ops */
};

/* What stands behind the layers is the embedding's: all that the first stage has of the backward pass serves it. */
static int may_move(const struct putting_off *w, uint32_t place, const struct tn_op_info *op)
{
    int serves = 0;
    if (op->region != TN_REGION_BACKWARD || op->stage < 0 || (op->layer < 0 && place >= w->head) ||
        op->opcode == TN_OP_SEND || op->opcode == TN_OP_RECV)
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
        w->moves[i] = (uint8_t)may_move(w, i, &op);
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
        if (info.region == TN_REGION_BACKWARD && info.layer >= 0 && !w->head)
            w->head = w->n;
        w->ops[w->n++] = op;
    }
}

tn_status pp_put_off_weights(const struct pp *pp, struct tn_program *program)
{
    const struct tn_host *host = pp->host;
    struct putting_off w = { .pp = pp, .program = program };
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
        for (uint32_t i = 0; i < w.n; i++) {
            if (!w.moves[i])
                continue;
            if (i >= w.head)
                pp->edit->set_region(program, w.ops[i], TN_REGION_WEIGHT);
            pp->edit->op_move(program, w.ops[i], w.step);
        }
    }
    host->release(host, w.ops);
    host->release(host, w.use);
    return status;
}
