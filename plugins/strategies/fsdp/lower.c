/* fsdp.lower: how long gathered params live.
 *
 * Requires: a resolved program, in which each param (or its cast) is gathered once, before its first use. Establishes
 *   level optimizer, gradients   gathers in the prologue: once a step, kept through all micro-batches
 *   level full                   gathers `prefetch` layers ahead of their use, and with `reshard` again for the
 *                                backward pass, so that liveness lets the first copy go
 *
 *     forward:  w' = all_gather w; y = linear x w'          forward:  w' = all_gather w; y = linear x w'
 *     backward: dx = linear_dx dy w'                   =>   backward: w'.again = all_gather w
 *                                                                     dx = linear_dx dy w'.again
 */
#include "fsdp.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LAYERS = 4096 };

struct lowering {
    const struct fsdp *fsdp;
    struct tn_program *program;
    int32_t axis, layers;
    tn_op first[MOST_LAYERS]; /* by layer: its first op in the region at hand */
    tn_op region_first;       /* of the region */
};

static int is_gather(const struct lowering *l, tn_op op)
{
    const struct fsdp *fsdp = l->fsdp;
    struct tn_op_info info, made;
    struct tn_value_info part;
    fsdp_op(fsdp, l->program, op, &info);
    if (info.opcode != TN_OP_ALL_GATHER || fsdp->read->attr_int(l->program, op, "axis", -1) != l->axis ||
        fsdp->read->attr_int(l->program, op, "dim", -1) != -1)
        return 0;
    fsdp_value(fsdp, l->program, info.in[0], &part);
    if (part.kind == TN_KIND_PARAM)
        return 1;
    if (!part.def)
        return 0;
    fsdp_op(fsdp, l->program, part.def, &made);
    return made.opcode == TN_OP_CAST;
}

/* First ops of the layers in a region, gathers apart. */
static void find_layers(struct lowering *l, uint32_t region)
{
    memset(l->first, 0, sizeof l->first);
    l->region_first = 0;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0); op; op = l->fsdp->read->op_next(l->program, op)) {
        struct tn_op_info info;
        fsdp_op(l->fsdp, l->program, op, &info);
        if (info.region != region || is_gather(l, op))
            continue; /* gathers move, so nothing is put before one */
        if (!l->region_first)
            l->region_first = op;
        if (info.layer >= 0 && info.layer < MOST_LAYERS && !l->first[info.layer])
            l->first[info.layer] = op;
        if (info.layer >= l->layers)
            l->layers = info.layer + 1;
    }
}

/* Where the gather for `layer` goes: `prefetch` layers before it in the order of the region; 0: where it is. */
static tn_op ahead(const struct lowering *l, int32_t layer, uint32_t region)
{
    int32_t back = l->fsdp->prefetch, at = region == TN_REGION_BACKWARD ? layer + back : layer - back;
    if (layer < 0 || back == 0)
        return 0;
    return at >= 0 && at < l->layers && l->first[at] ? l->first[at] : l->region_first;
}

static tn_op first_backward_user(const struct lowering *l, tn_value v)
{
    const struct tn_program_api *read = l->fsdp->read;
    for (tn_op user = read->user_next(l->program, v, 0); user; user = read->user_next(l->program, v, user)) {
        struct tn_op_info info;
        fsdp_op(l->fsdp, l->program, user, &info);
        if (info.region == TN_REGION_BACKWARD)
            return user;
    }
    return 0;
}

static void gather_again(const struct lowering *l, tn_op gather)
{
    const struct fsdp *fsdp = l->fsdp;
    struct tn_op_info info, user_info;
    struct tn_value_info whole;
    char name[256];
    fsdp_op(fsdp, l->program, gather, &info);
    tn_op user = info.region == TN_REGION_FORWARD ? first_backward_user(l, info.out[0]) : 0;
    if (!user)
        return;
    fsdp_op(fsdp, l->program, user, &user_info);
    fsdp_value(fsdp, l->program, info.out[0], &whole);
    snprintf(name, sizeof name, "%.240s.again", whole.name);
    tn_op before = ahead(l, user_info.layer, TN_REGION_BACKWARD);
    fsdp->edit->at(l->program, TN_REGION_BACKWARD, user_info.layer, user_info.stage);
    fsdp->edit->insert_before(l->program, before ? before : user);
    tn_op copy = fsdp->edit->op_copy(l->program, gather, name);
    fsdp->edit->insert_before(l->program, 0);
    fsdp->edit->replace_uses(l->program, info.out[0], fsdp->edit->output(l->program, copy, 0), copy);
}

static void lower_gather(struct lowering *l, tn_op gather)
{
    const struct fsdp *fsdp = l->fsdp;
    struct tn_op_info info;
    fsdp_op(fsdp, l->program, gather, &info);
    if (fsdp->level != FSDP_FULL) {
        fsdp->edit->set_region(l->program, gather, TN_REGION_PROLOGUE);
        return;
    }
    tn_op before = info.region == TN_REGION_FORWARD ? ahead(l, info.layer, TN_REGION_FORWARD) : 0;
    if (before)
        fsdp->edit->op_move(l->program, gather, before);
}

static uint64_t list_gathers(const struct lowering *l, tn_op *gathers)
{
    uint64_t n = 0;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0); op; op = l->fsdp->read->op_next(l->program, op))
        if (is_gather(l, op))
            gathers[n++] = op;
    return n;
}

/* The list may have gathers of the prologue behind forward ops; schedule goes by region, but the list stays in
 * order. */
static void order_prologue(const struct lowering *l, const tn_op *gathers, uint64_t n)
{
    const struct tn_program_api *read = l->fsdp->read;
    tn_op forward = 0;
    for (tn_op op = read->op_next(l->program, 0); op && !forward; op = read->op_next(l->program, op)) {
        struct tn_op_info info;
        fsdp_op(l->fsdp, l->program, op, &info);
        if (info.region != TN_REGION_PROLOGUE)
            forward = op;
    }
    for (uint64_t i = 0; forward && i < n; i++)
        if (gathers[i] != forward)
            l->fsdp->edit->op_move(l->program, gathers[i], forward);
}

tn_status fsdp_lower(void *self, struct tn_program *program)
{
    const struct fsdp *fsdp = self;
    const struct tn_host *host = fsdp->host;
    uint64_t ops = 0;
    for (tn_op op = fsdp->read->op_next(program, 0); op; op = fsdp->read->op_next(program, op))
        ops++;
    tn_op *gathers = host->alloc(host, (ops + 1) * sizeof *gathers);
    struct lowering *l = host->alloc(host, sizeof *l);
    tn_status status = TN_OK;
    if (gathers && l) {
        *l = (struct lowering){.fsdp = fsdp, .program = program, .axis = fsdp->read->axis_find(program, "fsdp")};
        uint64_t n = list_gathers(l, gathers);
        find_layers(l, TN_REGION_BACKWARD);
        for (uint64_t i = 0; fsdp->level == FSDP_FULL && fsdp->reshard && i < n; i++)
            gather_again(l, gathers[i]);
        find_layers(l, TN_REGION_FORWARD);
        for (uint64_t i = 0; i < n; i++)
            lower_gather(l, gathers[i]);
        if (fsdp->level != FSDP_FULL)
            order_prologue(l, gathers, n);
    } else {
        status = host->fail(host, TN_NO_MEMORY, "no memory to walk %llu ops", (unsigned long long)ops);
    }
    host->release(host, l);
    host->release(host, gathers);
    return status;
}
