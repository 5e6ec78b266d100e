/* fsdp.lower, level full: gathered params live around their use.
 *
 * Requires: a resolved program, in which each param (or its cast) is gathered once. Establishes: each unit that uses a
 * param has a gather of its own; those of a unit stand together, `prefetch` units ahead of the unit's first use, so
 * that they start together and run beside what the units between compute. Preserves: all values, to the bit.
 *
 *     forward:  w' = all_gather w; y = linear x w'          forward:  w' = all_gather w; y = linear x w'
 *     backward: dx = linear_dx dy w'                   =>   backward: w'.again = all_gather w
 *                                                                     dx = linear_dx dy w'.again
 *
 * That is all of resharding: the memory planner sees that w' has no use after the forward pass. Without `reshard` a
 * param has one gather, ahead of its first use. */
#include "units.h"

#include <stdio.h>
#include <string.h>

/* Ops from `user` on that are in member's unit take `to` instead of `from`. */
static void use_in_unit(const struct fsdp_lowering *l, const struct fsdp_member *member, const char *name,
                        tn_value from, tn_value to)
{
    const struct tn_program_api *read = l->fsdp->read;
    for (tn_op user = read->user_next(l->program, from, 0); user; user = read->user_next(l->program, from, user)) {
        struct fsdp_member other;
        struct tn_op_info info;
        fsdp_member_at(l, user, name, &other);
        if (!fsdp_same_run(&other, member) || other.layer != member->layer)
            continue;
        fsdp_op(l->fsdp, l->program, user, &info);
        for (uint32_t i = 0; i < info.n_in; i++)
            if (info.in[i] == from)
                l->fsdp->edit->set_input(l->program, user, i, to);
    }
}

static tn_op copy_gather(const struct fsdp_lowering *l, tn_op gather, const struct fsdp_member *member, uint32_t number)
{
    struct tn_op_info info, user;
    struct tn_value_info whole;
    char name[256];
    fsdp_op(l->fsdp, l->program, gather, &info);
    fsdp_op(l->fsdp, l->program, member->at, &user);
    fsdp_value(l->fsdp, l->program, info.out[0], &whole);
    if (number == 1)
        snprintf(name, sizeof name, "%.240s.again", whole.name);
    else
        snprintf(name, sizeof name, "%.230s.again%u", whole.name, (unsigned)number);
    l->fsdp->edit->at(l->program, member->region, user.layer, member->stage);
    l->fsdp->edit->insert_before(l->program, member->at);
    tn_op copy = l->fsdp->edit->op_copy(l->program, gather, name);
    l->fsdp->edit->insert_before(l->program, 0);
    return copy;
}

/* One member for each unit that uses what `gather` makes; the first one keeps it. Returns their number. */
static uint64_t split(const struct fsdp_lowering *l, tn_op gather, const char *name, struct fsdp_member *members)
{
    struct tn_op_info info;
    fsdp_op(l->fsdp, l->program, gather, &info);
    tn_value whole = info.out[0];
    tn_op user = l->fsdp->read->user_next(l->program, whole, 0);
    uint64_t n = 0;
    for (; user; user = l->fsdp->read->user_next(l->program, whole, user)) {
        struct fsdp_member *member = &members[n];
        fsdp_member_at(l, user, name, member);
        if (n > 0 && (!l->fsdp->reshard || (fsdp_same_run(member, members) && member->layer == members->layer)))
            continue;
        member->op = n == 0 ? gather : copy_gather(l, gather, member, (uint32_t)n);
        if (n > 0)
            use_in_unit(l, member, name, whole, l->fsdp->edit->output(l->program, member->op, 0));
        n++;
    }
    return n;
}

/* Most members that there can be: one for each use of a gathered param. */
static uint64_t count_uses(const struct fsdp_lowering *l)
{
    const struct tn_program_api *read = l->fsdp->read;
    const char *name;
    uint64_t n = 0;
    for (tn_op op = read->op_next(l->program, 0); op; op = read->op_next(l->program, op)) {
        struct tn_op_info info;
        if (!fsdp_is_gather(l, op, &name))
            continue;
        fsdp_op(l->fsdp, l->program, op, &info);
        for (tn_op user = read->user_next(l->program, info.out[0], 0); user;
             user = read->user_next(l->program, info.out[0], user))
            n++;
    }
    return n;
}

static uint64_t list_members(const struct fsdp_lowering *l, struct fsdp_member *members)
{
    const char *name;
    uint64_t n = 0;
    for (tn_op op = l->fsdp->read->op_next(l->program, 0), next; op; op = next) {
        next = l->fsdp->read->op_next(l->program, op);
        if (op <= l->last_op && fsdp_is_gather(l, op, &name))
            n += split(l, op, name, members + n);
    }
    return n;
}

/* Units in order, each to before the first use of the one that stands `prefetch` before it. `start` holds the members
 * at which the units of the run at hand begin. */
static void move_ahead(const struct fsdp_lowering *l, const struct fsdp_member *members, uint64_t n, uint64_t *start)
{
    uint64_t units = 0;
    for (uint64_t first = 0, end; first < n; first = end) {
        end = fsdp_unit_end(members, n, first);
        if (first > 0 && !fsdp_same_run(&members[first - 1], &members[first]))
            units = 0;
        start[units++] = first;
        uint64_t back = (uint64_t)l->fsdp->prefetch < units - 1 ? (uint64_t)l->fsdp->prefetch : units - 1;
        for (uint64_t i = first; i < end; i++)
            l->fsdp->edit->op_move(l->program, members[i].op, members[start[units - 1 - back]].at);
    }
}

tn_status fsdp_gather_units(struct fsdp_lowering *l)
{
    const struct tn_host *host = l->fsdp->host;
    uint64_t uses = count_uses(l);
    struct fsdp_member *members = host->alloc(host, (uses + 1) * sizeof *members);
    uint64_t *start = host->alloc(host, (uses + 1) * sizeof *start);
    tn_status status = TN_OK;
    if (members && start) {
        uint64_t n = list_members(l, members);
        fsdp_sort_members(members, n, 0);
        move_ahead(l, members, n, start);
    } else {
        status = host->fail(host, TN_NO_MEMORY, "no memory for %llu uses of params", (unsigned long long)uses);
    }
    host->release(host, start);
    host->release(host, members);
    return status;
}
