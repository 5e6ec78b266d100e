/* fsdp.lower, levels gradients and full: a unit's gradients are reduced together.
 *
 * Requires: a resolved program, in which each gradient is reduced and scattered where it is made, and added to its
 * accumulator. Establishes: a unit's reduce_scatters stand together, behind the op that completes its last gradient;
 * what they give is added behind those of the next unit, so that they run beside its backward pass (with prefetch = 0
 * at once, so that no more than one unit's gradients are whole). Preserves: all values, to the bit.
 *
 *     a = reduce_scatter dwa; A' = accumulate a A           a = reduce_scatter dwa
 *     dwb = linear_dw ..                              =>    dwb = linear_dw ..
 *     b = reduce_scatter dwb; B' = accumulate b B           A' = accumulate a A
 *                                                           b = reduce_scatter dwb; ...
 */
#include "units.h"

static int is_reduction(const struct fsdp_lowering *l, tn_op op, struct tn_op_info *info, struct tn_value_info *term)
{
    fsdp_op(l->fsdp, l->program, op, info);
    if (info->opcode != TN_OP_REDUCE_SCATTER || info->region != TN_REGION_BACKWARD ||
        l->fsdp->read->attr_int(l->program, op, "axis", -1) != l->axis ||
        l->fsdp->read->attr_int(l->program, op, "dim", -1) != -1)
        return 0;
    fsdp_value(l->fsdp, l->program, info->in[0], term);
    return term->def && term->like && term->def <= l->last_op;
}

static tn_op accumulation_of(const struct fsdp_lowering *l, tn_value part)
{
    struct tn_op_info info;
    tn_op user = l->fsdp->read->user_next(l->program, part, 0);
    if (!user)
        return 0;
    fsdp_op(l->fsdp, l->program, user, &info);
    return info.opcode == TN_OP_ACCUMULATE && info.region == TN_REGION_BACKWARD ? user : 0;
}

static uint64_t list_members(const struct fsdp_lowering *l, struct fsdp_member *members)
{
    uint64_t n = 0;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0); op; op = l->fsdp->read->op_next(l->program, op)) {
        struct tn_op_info info;
        struct tn_value_info term, param;
        if (!is_reduction(l, op, &info, &term))
            continue;
        fsdp_value(l->fsdp, l->program, term.like, &param);
        fsdp_member_at(l, term.def, param.name, &members[n]);
        members[n].op = op;
        members[n++].adds = accumulation_of(l, info.out[0]);
    }
    return n;
}

/* The first op behind `op` that stays where it is; 0: none. */
static tn_op behind(const struct fsdp_lowering *l, tn_op op)
{
    struct tn_op_info info;
    do {
        op = l->fsdp->read->op_next(l->program, op);
        if (op)
            fsdp_op(l->fsdp, l->program, op, &info);
    } while (op && (info.opcode == TN_OP_REDUCE_SCATTER || info.opcode == TN_OP_ACCUMULATE));
    return op;
}

/* Accumulation of what the unit's reductions give moves to before `before`. */
static void accumulate(const struct fsdp_lowering *l, const struct fsdp_member *members, uint64_t first, uint64_t end,
                       tn_op before)
{
    for (uint64_t i = first; i < end; i++)
        if (members[i].adds)
            l->fsdp->edit->op_move(l->program, members[i].adds, before);
}

static tn_op end_of_backward(const struct fsdp_lowering *l)
{
    int inside = 0;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0); op; op = l->fsdp->read->op_next(l->program, op)) {
        struct tn_op_info info;
        fsdp_op(l->fsdp, l->program, op, &info);
        if (inside && info.region != TN_REGION_BACKWARD)
            return op;
        inside |= info.region == TN_REGION_BACKWARD;
    }
    return 0;
}

static void move_together(const struct fsdp_lowering *l, const struct fsdp_member *members, uint64_t n)
{
    tn_op last = end_of_backward(l);
    for (uint64_t first = 0, end; first < n; first = end) {
        end = fsdp_unit_end(members, n, first);
        tn_op before = behind(l, members[end - 1].at);
        for (uint64_t i = first; i < end; i++)
            l->fsdp->edit->op_move(l->program, members[i].op, before);
        if (l->fsdp->prefetch == 0)
            accumulate(l, members, first, end, before);
    }
    for (uint64_t first = 0, end; l->fsdp->prefetch > 0 && first < n; first = end) {
        end = fsdp_unit_end(members, n, first);
        int follows = end < n && fsdp_same_run(&members[first], &members[end]);
        accumulate(l, members, first, end, follows ? members[end].op : last);
    }
}

tn_status fsdp_reduce_units(struct fsdp_lowering *l)
{
    const struct tn_host *host = l->fsdp->host;
    struct fsdp_member *members = host->alloc(host, ((uint64_t)l->last_op + 1) * sizeof *members);
    if (!members)
        return host->fail(host, TN_NO_MEMORY, "no memory to sort %llu ops", (unsigned long long)l->last_op);
    uint64_t n = list_members(l, members);
    fsdp_sort_members(members, n, 1);
    move_together(l, members, n);
    host->release(host, members);
    return TN_OK;
}
