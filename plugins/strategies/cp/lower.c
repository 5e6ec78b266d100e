/* cp.lower: cp.attention becomes blocks of attention and what brings the keys of other ranks; gradients are reduced in
 * buckets.
 *
 * Requires: a resolved program. Establishes: no op of cp is left. ring.c and gather.c write the ops; here is what they
 * share. Blocks see by index which keys are theirs to see, so each rank's indices are gathered once a step:
 *
 *     prologue: index.ranks = all_gather(index);  index.rank2 = view(index.ranks) offset=..
 */
#include "cp.h"

#include <stdio.h>
#include <string.h>

void cp_op(const struct lowering *l, tn_op op, struct tn_op_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    l->cp->read->op_info(l->program, op, info);
}

void cp_value(const struct lowering *l, tn_value v, struct tn_value_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    l->cp->read->value_info(l->program, v, info);
}

tn_value cp_make(struct lowering *l, uint32_t opcode, const char *suffix, int32_t number, const tn_value *in,
                 uint32_t n_in, const struct tn_attr *attrs, uint32_t n_attrs)
{
    char name[256];
    if (number >= 0)
        snprintf(name, sizeof name, "%s.%s%d", l->name, suffix, number);
    else
        snprintf(name, sizeof name, "%s.%s", l->name, suffix);
    return l->cp->edit->op(l->program, opcode, name, in, n_in, attrs, n_attrs);
}

tn_placement cp_cut(const struct lowering *l, tn_value v)
{
    return l->cp->read->placement(l->program, v, l->axis);
}

void cp_place_like(const struct lowering *l, tn_value v, tn_value like, tn_placement own)
{
    for (int32_t axis = 0; v && axis < l->cp->read->axis_count(l->program); axis++)
        l->cp->edit->place(l->program, v, axis, axis == l->axis ? own : l->cp->read->placement(l->program, like, axis));
}

/* Where ops of the prologue go: in front, and every stage of a pipeline runs them. */
static void at_prologue(struct lowering *l)
{
    tn_op before = 0;
    for (tn_op op = l->cp->read->op_next(l->program, 0); op && !before; op = l->cp->read->op_next(l->program, op)) {
        struct tn_op_info info;
        cp_op(l, op, &info);
        if (info.region != TN_REGION_PROLOGUE)
            before = op;
    }
    l->cp->edit->at(l->program, TN_REGION_PROLOGUE, -1, -1);
    l->cp->edit->insert_before(l->program, before);
}

static void at_op(struct lowering *l)
{
    l->cp->edit->at(l->program, l->info.region, l->info.layer, l->info.stage);
    l->cp->edit->insert_before(l->program, l->op);
}

static tn_value all_indices(struct lowering *l)
{
    tn_value index = l->cp->read->value_find(l->program, "index");
    const struct tn_attr attrs[] = { TN_ATTR_I("axis", l->axis), TN_ATTR_I("dim", 0) };
    if (!l->all) {
        at_prologue(l);
        l->all = l->cp->edit->op(l->program, TN_OP_ALL_GATHER, "index.ranks", &index, 1, attrs, 2);
        cp_place_like(l, l->all, index, TN_REPLICATE);
        at_op(l);
    }
    return l->all;
}

tn_value cp_index(struct lowering *l, int32_t rank)
{
    tn_value index = l->cp->read->value_find(l->program, "index"), all = all_indices(l);
    if (rank < 0)
        return all;
    if (!l->by_rank[rank]) {
        const tn_value in[] = { all, index };
        const struct tn_attr offset = TN_ATTR_I("offset", rank * l->part);
        char name[64];
        snprintf(name, sizeof name, "index.rank%d", rank);
        at_prologue(l);
        l->by_rank[rank] = l->cp->edit->op(l->program, TN_OP_VIEW, name, in, 2, &offset, 1);
        cp_place_like(l, l->by_rank[rank], index, cp_cut(l, index));
        at_op(l);
    }
    return l->by_rank[rank];
}

/* Of all pairs of a query in [q, q + n) and a key in [k, k + n), runs that are the same or apart, those where the key
 * is not the later one. */
static double seen(int64_t q, int64_t k, int64_t n)
{
    return k < q ? (double)n * (double)n : k == q ? (double)n * (double)(n + 1) / 2 : 0;
}

double cp_share(const struct lowering *l, int32_t keys_of)
{
    int zigzag = cp_is_zigzag(l->cp), runs = zigzag ? 2 : 1;
    int64_t n = l->part / runs;
    double pairs = 0, share = 0;
    if (!l->causal)
        return 1;
    for (int32_t other = 0; keys_of < 0 && other < l->size; other++)
        share += cp_share(l, other) / l->size;
    if (keys_of < 0)
        return share;
    for (int q = 0; q < runs; q++)
        for (int k = 0; k < runs; k++)
            pairs += seen(q ? 2 * l->size - 1 - l->rank : l->rank, k ? 2 * l->size - 1 - keys_of : keys_of, n);
    return pairs / ((double)l->part * (double)l->part);
}

static uint32_t block_attrs(const struct lowering *l, int32_t rank, struct tn_attr attrs[4])
{
    const struct tn_attr all[] = { TN_ATTR_F("scale", l->scale), TN_ATTR_I("head_dim", l->head_dim),
                                   TN_ATTR_I("causal", l->causal), TN_ATTR_F("share", cp_share(l, rank)) };
    memcpy(attrs, all, sizeof all);
    return 4;
}

tn_value cp_block(struct lowering *l, int32_t number, tn_value k, tn_value v, int32_t rank, tn_value o, tn_value lse)
{
    const tn_value *in = l->info.in;
    tn_value start = l->info.n_in > 3 ? in[3] : 0;
    struct tn_attr attrs[4];
    uint32_t n_attrs = block_attrs(l, rank, attrs);
    const tn_value of[] = { in[0], k, v, cp_index(l, l->rank), cp_index(l, rank), start, o, lse };
    return cp_make(l, TN_OP_ATTENTION_BLOCK, "block", number, of, 8, attrs, n_attrs);
}

tn_value cp_block_dx(struct lowering *l, int32_t number, tn_value k, tn_value v, int32_t rank, tn_value dq)
{
    const tn_value *in = l->info.in;
    tn_value start = l->info.n_in > 6 ? in[6] : 0;
    struct tn_attr attrs[4];
    uint32_t n_attrs = block_attrs(l, rank, attrs);
    const tn_value of[] = { in[0], in[1], k, v, in[4], in[5], cp_index(l, l->rank), cp_index(l, rank), start, dq };
    return cp_make(l, TN_OP_ATTENTION_BLOCK_DX, "block", number, of, 10, attrs, n_attrs);
}

void cp_deliver(struct lowering *l, uint32_t output, tn_value with, const char *suffix)
{
    struct tn_value_info info, old;
    cp_value(l, with, &info);
    cp_value(l, l->info.out[output], &old);
    if (info.dtype != old.dtype) {
        const struct tn_attr dtype = TN_ATTR_I("dtype", old.dtype);
        with = cp_make(l, TN_OP_CAST, suffix, -1, &with, 1, &dtype, 1);
    }
    if (old.tag[0])
        l->cp->edit->set_tag(l->program, with, old.tag);
    l->cp->edit->replace_uses(l->program, l->info.out[output], with, 0);
}

static void take(struct lowering *l, tn_op op)
{
    struct tn_value_info q;
    l->op = op;
    cp_op(l, op, &l->info);
    int backward = l->info.opcode == l->cp->attention_dx;
    cp_value(l, l->info.out[0], &q);
    snprintf(l->name, sizeof l->name, "%.190s", q.name);
    cp_value(l, l->info.in[backward], &q);
    l->dtype = q.dtype;
    l->part = q.shape[1] / l->size;
    l->scale = l->cp->read->attr_float(l->program, op, "scale", 1.0);
    l->head_dim = l->cp->read->attr_int(l->program, op, "head_dim", 0);
    l->causal = l->cp->read->attr_int(l->program, op, "causal", 1);
    at_op(l);
}

static void replace(struct lowering *l, tn_op op)
{
    const struct cp *cp = l->cp;
    take(l, op);
    int backward = l->info.opcode == cp->attention_dx, ring = cp->method == CP_RING;
    if (backward)
        (ring ? cp_ring_backward : cp_gather_backward)(l);
    else
        (ring ? cp_ring_forward : cp_gather_forward)(l);
    cp->edit->insert_before(l->program, 0);
    cp->edit->op_remove(l->program, op);
}

tn_status cp_lower(void *self, struct tn_program *program)
{
    const struct cp *cp = self;
    const struct tn_program_api *read = cp->read;
    struct lowering l = { .cp = cp, .program = program, .axis = read->axis_find(program, "cp") };
    if (l.axis < 0 || read->axis_size(program, l.axis) == 1)
        return TN_OK;
    if (TN_HAS(cp->edit, join_sums))
        cp->edit->join_sums(program, l.axis, cp->bucket_bytes);
    if (cp->method == CP_ALL_TO_ALL)
        return TN_OK;
    l.size = read->axis_size(program, l.axis);
    l.rank = read->axis_coord(program, l.axis);
    for (tn_value v = read->value_next(program, 0); v; v = read->value_next(program, v))
        l.n_values = v + 1;
    uint64_t bytes = ((uint64_t)l.size + l.n_values) * sizeof(tn_value);
    tn_value *tables = cp->host->alloc(cp->host, bytes);
    if (!tables)
        return cp->host->fail(cp->host, TN_NO_MEMORY, "no memory for %llu values", (unsigned long long)l.n_values);
    memset(tables, 0, bytes);
    l.by_rank = tables;
    l.gathered = tables + l.size;
    for (tn_op op = read->op_next(program, 0), next; op; op = next) {
        struct tn_op_info info;
        next = read->op_next(program, op);
        cp_op(&l, op, &info);
        if (info.opcode == cp->attention || info.opcode == cp->attention_dx)
            replace(&l, op);
    }
    cp->host->release(cp->host, tables);
    return TN_OK;
}
