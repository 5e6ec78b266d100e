/* fsdp.lower: when params are gathered and gradients reduced.
 *
 * Requires: a resolved program, in which each param (or its cast) is gathered once, before its first use. Establishes
 *   level optimizer, gradients   gathers in the prologue: once a step, kept through all micro-batches
 *   level full                   gathers unit by unit, around each use (gather.c)
 *   level gradients, full        reductions unit by unit (reduce.c)
 */
#include "units.h"

#include <string.h>

int fsdp_is_gather(const struct fsdp_lowering *l, tn_op op, const char **name)
{
    const struct fsdp *fsdp = l->fsdp;
    struct tn_op_info info;
    struct tn_value_info part;
    fsdp_op(fsdp, l->program, op, &info);
    if (info.opcode != TN_OP_ALL_GATHER || fsdp->read->attr_int(l->program, op, "axis", -1) != l->axis ||
        fsdp->read->attr_int(l->program, op, "dim", -1) != -1)
        return 0;
    fsdp_value(fsdp, l->program, info.in[0], &part);
    if (part.def) {
        fsdp_op(fsdp, l->program, part.def, &info);
        if (info.opcode != TN_OP_CAST)
            return 0;
        fsdp_value(fsdp, l->program, info.in[0], &part);
    }
    *name = part.name;
    return part.kind == TN_KIND_PARAM;
}

/* Gathers to the front. The list may have them behind forward ops; schedule goes by region, but the list stays in
 * order. */
static void gather_in_prologue(const struct fsdp_lowering *l)
{
    const struct tn_program_api *read = l->fsdp->read;
    const char *name;
    tn_op forward = 0;
    for (tn_op op = read->op_next(l->program, 0), next; op; op = next) {
        struct tn_op_info info;
        next = read->op_next(l->program, op);
        fsdp_op(l->fsdp, l->program, op, &info);
        if (fsdp_is_gather(l, op, &name)) {
            l->fsdp->edit->set_region(l->program, op, TN_REGION_PROLOGUE);
            if (forward)
                l->fsdp->edit->op_move(l->program, op, forward);
        } else if (!forward && info.region != TN_REGION_PROLOGUE) {
            forward = op;
        }
    }
}

static void number_ops(struct fsdp_lowering *l)
{
    uint64_t place = 0;
    memset(l->order, 0, ((uint64_t)l->last_op + 1) * sizeof *l->order);
    for (int region = 0; region < 4; region++)
        l->first_layer[region] = UINT64_MAX;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0); op; op = l->fsdp->read->op_next(l->program, op)) {
        struct tn_op_info info;
        const char *name;
        fsdp_op(l->fsdp, l->program, op, &info);
        l->order[op] = ++place;
        if (info.layer >= 0 && l->first_layer[info.region % 4] == UINT64_MAX && !fsdp_is_gather(l, op, &name))
            l->first_layer[info.region % 4] = place;
    }
}

tn_status fsdp_lower(void *self, struct tn_program *program)
{
    const struct fsdp *fsdp = self;
    const struct tn_host *host = fsdp->host;
    struct fsdp_lowering l = { .fsdp = fsdp, .program = program, .axis = fsdp->read->axis_find(program, "fsdp") };
    for (tn_op op = fsdp->read->op_next(program, 0); op; op = fsdp->read->op_next(program, op))
        l.last_op = op > l.last_op ? op : l.last_op;
    l.order = host->alloc(host, ((uint64_t)l.last_op + 1) * sizeof *l.order);
    if (!l.order)
        return host->fail(host, TN_NO_MEMORY, "no memory to number %llu ops", (unsigned long long)l.last_op);
    number_ops(&l);
    tn_status status = TN_OK;
    if (fsdp->level == FSDP_FULL)
        status = fsdp_gather_units(&l);
    else
        gather_in_prologue(&l);
    if (status == TN_OK && fsdp->level != FSDP_OPTIMIZER)
        status = fsdp_reduce_units(&l);
    host->release(host, l.order);
    return status;
}
