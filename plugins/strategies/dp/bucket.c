/* dp.lower: joins the gradients' all_reduces into buckets.
 *
 * Requires: a resolved program. Establishes: gradients that are complete one after another
 * are reduced together, up to a bucket's size; buckets stand in the order in which the
 * backward pass completes them, at the start of the step region.
 *
 *     g1 = all_reduce a1        flat  = pack a1 a2
 *     g2 = all_reduce a2   =>   flat' = all_reduce flat
 *                               g1 = view flat' a1 offset=0
 *                               g2 = view flat' a2 offset=..
 *
 * Where fsdp scatters a gradient only in the step region, its scatter comes along, to stand before the bucket. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"

enum { PACK_ALIGN = 16 }; /* elements; see pack in ops.def */

/* One gradient that is reduced over dp. */
struct reduction {
    tn_op op;                 /* its all_reduce */
    tn_op scatter;            /* in the step region, of what the backward pass left; or 0 */
    tn_value from, to;        /* accumulator, reduced gradient */
    uint64_t ready;           /* place in program order of the op that completes the accumulator */
    int64_t elements;         /* of this rank's part */
    int32_t stage;
    int joined;               /* 1: a bucket does its work */
};

struct bucketing {
    const struct dp *dp;
    struct tn_program *program;
    int32_t axis;
    tn_op step;               /* first op of the step region */
    struct reduction *items;
    uint64_t n;
    uint32_t buckets;
};

static void op_info(const struct bucketing *b, tn_op op, struct tn_op_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    b->dp->read->op_info(b->program, op, info);
}

/* Where v is made; in the backward pass if it is no op's. */
static void maker_of(const struct bucketing *b, tn_value v, struct tn_value_info *value, struct tn_op_info *maker)
{
    *value = (struct tn_value_info){.struct_size = sizeof *value};
    b->dp->read->value_info(b->program, v, value);
    *maker = (struct tn_op_info){.struct_size = sizeof *maker, .region = TN_REGION_BACKWARD};
    if (value->def)
        op_info(b, value->def, maker);
}

/* Reductions of what the backward pass leaves, or of its part after *scatter; one that follows another sum in the step
 * region stays as it is, for a bucket would stand before it. */
static int is_reduction(const struct bucketing *b, tn_op op, const struct tn_op_info *info, tn_op *scatter)
{
    const struct tn_program_api *read = b->dp->read;
    *scatter = 0;
    if (info->opcode != TN_OP_ALL_REDUCE || info->region != TN_REGION_STEP ||
        read->attr_int(b->program, op, "axis", -1) != b->axis ||
        read->attr_int(b->program, op, "red", TN_RED_SUM) != TN_RED_SUM)
        return 0;
    struct tn_value_info value;
    struct tn_op_info maker;
    maker_of(b, info->in[0], &value, &maker);
    if (value.kind != TN_KIND_ACCUMULATOR || !value.like || value.dtype != TN_F32)
        return 0;
    if (maker.region == TN_REGION_STEP && maker.opcode == TN_OP_REDUCE_SCATTER) {
        *scatter = value.def;
        maker_of(b, maker.in[0], &value, &maker);
    }
    return maker.region != TN_REGION_STEP;
}

static int64_t local_elements(const struct bucketing *b, tn_value v)
{
    int64_t shape[TN_MAX_DIMS] = {1, 1, 1, 1, 1, 1}, n = 1;
    struct tn_value_info value = {.struct_size = sizeof value};
    b->dp->read->value_info(b->program, v, &value);
    b->dp->read->local_shape(b->program, v, shape);
    for (int32_t d = 0; d < value.rank; d++)
        n *= shape[d];
    return n;
}

/* Finds the reductions. An accumulator is complete where the op that defines it stands. */
static void collect(struct bucketing *b, uint64_t *place_of)
{
    uint64_t place = 0;
    const struct tn_program_api *read = b->dp->read;
    for (tn_op op = read->op_next(b->program, 0); op; op = read->op_next(b->program, op)) {
        struct tn_op_info info;
        op_info(b, op, &info);
        place_of[op] = ++place;
        if (info.region == TN_REGION_STEP && info.opcode != TN_OP_REDUCE_SCATTER && !b->step)
            b->step = op;
        tn_op scatter;
        if (!is_reduction(b, op, &info, &scatter))
            continue;
        struct tn_value_info value = {.struct_size = sizeof value};
        read->value_info(b->program, info.in[0], &value);
        b->items[b->n++] = (struct reduction){
            .op = op, .scatter = scatter, .from = info.in[0], .to = info.out[0], .stage = info.stage,
            .ready = value.def ? place_of[value.def] : 0, .elements = local_elements(b, info.in[0]),
        };
    }
}

static int by_readiness(const void *a, const void *b)
{
    const struct reduction *x = a, *y = b;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->ready != y->ready)
        return x->ready < y->ready ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op; /* one op may complete two */
}

/* The part of the reduced bucket that is item's gradient; it lies like the gradient that it replaces. */
static tn_value view_of(const struct bucketing *b, const struct reduction *item, tn_value sum, int64_t offset,
                        const char *name)
{
    const tn_value in[] = {sum, item->from};
    const struct tn_attr at = TN_ATTR_I("offset", offset);
    tn_value view = b->dp->edit->op(b->program, TN_OP_VIEW, name, in, 2, &at, 1);
    for (int32_t axis = 0; view && axis < b->dp->read->axis_count(b->program); axis++)
        b->dp->edit->place(b->program, view, axis, b->dp->read->placement(b->program, item->to, axis));
    return view;
}

/* Items [first, end) become one all_reduce. */
static void join(struct bucketing *b, uint64_t first, uint64_t end, tn_value *members)
{
    const struct tn_program_edit_api *edit = b->dp->edit;
    const struct tn_attr reduce[] = {TN_ATTR_I("axis", b->axis), TN_ATTR_I("red", TN_RED_SUM)};
    char name[64];
    uint32_t n = (uint32_t)(end - first), bucket = b->buckets++;
    edit->at(b->program, TN_REGION_STEP, -1, b->items[first].stage);
    for (uint32_t i = 0; i < n; i++) {
        members[i] = b->items[first + i].from;
        if (b->items[first + i].scatter)
            edit->op_move(b->program, b->items[first + i].scatter, b->step);
    }
    snprintf(name, sizeof name, "dp.bucket.%u", bucket);
    tn_value flat = edit->op(b->program, TN_OP_PACK, name, members, n, NULL, 0);
    snprintf(name, sizeof name, "dp.bucket.%u.sum", bucket);
    tn_value sum = edit->op(b->program, TN_OP_ALL_REDUCE, name, &flat, 1, reduce, 2);
    int64_t offset = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct reduction *item = &b->items[first + i];
        snprintf(name, sizeof name, "dp.bucket.%u.%u", bucket, i);
        tn_value view = view_of(b, item, sum, offset, name);
        if (!view)
            return; /* the program has recorded why */
        edit->replace_uses(b->program, item->to, view, 0);
        item->joined = 1;
        offset += (item->elements + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
    }
}

/* The old reductions go last: the first of them may be the op before which buckets are put. */
static void join_all(struct bucketing *b, tn_value *members)
{
    b->dp->edit->insert_before(b->program, b->step);
    int64_t most = b->dp->bucket_bytes / (int64_t)sizeof(float);
    for (uint64_t first = 0, end; first < b->n; first = end) {
        int64_t elements = b->items[first].elements;
        for (end = first + 1; end < b->n && b->items[end].stage == b->items[first].stage &&
                                elements + b->items[end].elements <= most; end++)
            elements += b->items[end].elements;
        if (end - first > 1)
            join(b, first, end, members);
    }
    b->dp->edit->insert_before(b->program, 0);
    for (uint64_t i = 0; i < b->n; i++)
        if (b->items[i].joined)
            b->dp->edit->op_remove(b->program, b->items[i].op);
}

tn_status dp_lower(void *self, struct tn_program *program)
{
    const struct dp *dp = self;
    struct bucketing b = {.dp = dp, .program = program, .axis = dp->read->axis_find(program, "dp")};
    if (dp->bucket_bytes <= 0 || b.axis < 0)
        return TN_OK;
    uint64_t ops = 0, last = 0;
    for (tn_op op = dp->read->op_next(program, 0); op; op = dp->read->op_next(program, op), ops++)
        last = op > last ? op : last;
    uint64_t *place_of = dp->host->alloc(dp->host, (last + 1) * sizeof *place_of);
    tn_value *members = dp->host->alloc(dp->host, (ops + 1) * sizeof *members);
    b.items = dp->host->alloc(dp->host, (ops + 1) * sizeof *b.items);
    tn_status status = TN_OK;
    if (place_of && members && b.items) {
        collect(&b, place_of);
        qsort(b.items, b.n, sizeof *b.items, by_readiness);
        join_all(&b, members);
    } else {
        status = dp->host->fail(dp->host, TN_NO_MEMORY, "no memory to sort %llu ops", (unsigned long long)ops);
    }
    dp->host->release(dp->host, b.items);
    dp->host->release(dp->host, members);
    dp->host->release(dp->host, place_of);
    return status;
}
