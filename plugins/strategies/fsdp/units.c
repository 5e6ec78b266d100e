/* fsdp: which params form a unit; see units.h. */
#include "units.h"

#include <stdlib.h>
#include <string.h>

enum { BEFORE_LAYERS = -1, BEHIND_LAYERS = INT32_MAX };

/* The first item of the option that the name has in it; all that no item names is one unit more. */
static int32_t item_of(const struct fsdp *fsdp, const char *name)
{
    int32_t item = 0;
    while (item < (int32_t)fsdp->n_units && !strstr(name, fsdp->units[item]))
        item++;
    return item;
}

/* The backward pass comes from behind. */
static int32_t layer_of(const struct fsdp_lowering *l, tn_op op, const struct tn_op_info *info)
{
    if (info->layer >= 0)
        return info->layer;
    int comes_first = l->order[op] < l->first_layer[info->region % 4];
    return comes_first == (info->region == TN_REGION_FORWARD) ? BEFORE_LAYERS : BEHIND_LAYERS;
}

void fsdp_member_at(const struct fsdp_lowering *l, tn_op at, const char *name, struct fsdp_member *member)
{
    struct tn_op_info info;
    fsdp_op(l->fsdp, l->program, at, &info);
    member->at = at;
    member->order = l->order[at];
    member->region = info.region;
    member->stage = info.stage;
    member->layer = layer_of(l, at, &info);
    member->item = item_of(l->fsdp, name);
}

int fsdp_same_run(const struct fsdp_member *a, const struct fsdp_member *b)
{
    return a->region == b->region && a->stage == b->stage;
}

static int same_unit(const struct fsdp_member *a, const struct fsdp_member *b)
{
    return fsdp_same_run(a, b) && a->layer == b->layer && a->item == b->item;
}

static int by_unit(const void *left, const void *right)
{
    const struct fsdp_member *a = left, *b = right;
    if (a->region != b->region)
        return a->region < b->region ? -1 : 1;
    if (a->stage != b->stage)
        return a->stage < b->stage ? -1 : 1;
    if (a->unit_order != b->unit_order)
        return a->unit_order < b->unit_order ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op; /* one op may use two */
}

static int by_key(const void *left, const void *right)
{
    const struct fsdp_member *a = left, *b = right;
    if (!fsdp_same_run(a, b))
        return by_unit(left, right);
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

uint64_t fsdp_unit_end(const struct fsdp_member *members, uint64_t n, uint64_t first)
{
    uint64_t end = first + 1;
    while (end < n && same_unit(&members[first], &members[end]))
        end++;
    return end;
}

void fsdp_sort_members(struct fsdp_member *members, uint64_t n, int last)
{
    for (uint64_t i = 0; i < n; i++)
        members[i].unit_order = 0;
    qsort(members, n, sizeof *members, by_key);
    for (uint64_t first = 0, end; first < n; first = end) {
        end = fsdp_unit_end(members, n, first);
        for (uint64_t i = first; i < end; i++)
            members[i].unit_order = members[last ? end - 1 : first].order;
    }
    qsort(members, n, sizeof *members, by_unit);
}
