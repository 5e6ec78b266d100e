/* Lowering rules: ops with inner communication, expanded once their placements are known, and collectives along a
 * dimension that is not the outermost, whose blocks must be brought in order.
 *
 * Called at the end of resolve, on one op; the op is replaced where its placements ask for it. */
#include "program/rules.h"

#include <string.h>

#include "passes/resolve.h"

/* Ops of an expansion go before `op`, in its region and layer. */
static void begin_at(struct tn_program *p, tn_op op)
{
    p->insert_before = op;
    p->at_region = p->ops[op].region;
    p->at_layer = p->ops[op].layer;
    p->at_stage = p->ops[op].stage;
}

static void end_at(struct tn_program *p, tn_op op)
{
    p->insert_before = 0;
    tn_op_unlink(p, op);
}

static tn_value named(struct tn_program *p, tn_op of, const char *suffix, uint32_t opcode, const tn_value *in,
                      uint32_t n_in, const struct tn_attr *attrs, uint32_t n_attrs)
{
    tn_value v =
        tn_op_new(p, opcode, tn_arena_printf(&p->arena, "%s.%s", p->ops[of].name, suffix), in, n_in, attrs, n_attrs);
    p->ops[p->n_ops].source = of;
    return v;
}

/* The op's new outputs take over the users, flags and tags of the old ones. */
static void take_over(struct tn_program *p, tn_value old, tn_value new)
{
    tn_replace_uses(p, old, new, 0);
    p->values[new].flags |= p->values[old].flags;
    p->values[old].flags = 0;
    p->values[new].tag = p->values[old].tag;
}

/* x reduced over every axis on which it is partial. */
static tn_value reduced(struct tn_program *p, tn_op of, const char *suffix, tn_value x)
{
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[x].place[axis];
        if (TN_PLACE_KIND(place) != TN_PLACE_PARTIAL)
            continue;
        const struct tn_attr attrs[] = { TN_ATTR_I("axis", axis), TN_ATTR_I("red", TN_PLACE_RED(place)) };
        const char *name = tn_arena_printf(&p->arena, "%s.all_reduce.%s", suffix, p->mesh->axis[axis].name);
        tn_value y = named(p, of, name, TN_OP_ALL_REDUCE, &x, 1, attrs, 2);
        memcpy(p->values[y].place, p->values[x].place, sizeof p->values[y].place);
        p->values[y].place[axis] = TN_REPLICATE;
        x = y;
    }
    return x;
}

/* A cut vocabulary: largest logit, then sum and target, each reduced over the axes that cut it.
 *     m = ce_max(logits); m' = all_reduce(max, m); zt = ce_sum(logits, labels, m'); zt' = all_reduce(sum, zt)
 *     loss, lse = ce_loss(zt', m', labels) */
void lower_cross_entropy(struct tn_program *p, tn_op op)
{
    tn_value logits = p->ops[op].in[0], labels = p->ops[op].in[1], loss = p->ops[op].out[0], lse = p->ops[op].out[1];
    int32_t last = p->values[logits].rank - 1, cut = 0;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[logits].place[axis];
        cut |= TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_DIM(place) == last;
    }
    if (!cut)
        return;
    begin_at(p, op);
    tn_value m = named(p, op, "max", TN_OP_CE_MAX, &logits, 1, NULL, 0);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[logits].place[axis];
        int vocab = TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_DIM(place) == last;
        p->values[m].place[axis] = vocab ? TN_PARTIAL(TN_RED_MAX) : place;
    }
    m = reduced(p, op, "max", m);
    tn_value zt = named(p, op, "sum", TN_OP_CE_SUM, (tn_value[]){ logits, labels, m }, 3, NULL, 0);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[logits].place[axis];
        int sharded = TN_PLACE_KIND(place) == TN_PLACE_SHARD;
        p->values[zt].place[axis] = !sharded                      ? place
                                    : TN_PLACE_DIM(place) == last ? TN_PARTIAL(TN_RED_SUM)
                                                                  : place + TN_PLACEMENT(0, 1, 0, 0);
    }
    zt = reduced(p, op, "sum", zt);
    tn_value new_loss = named(p, op, "loss", TN_OP_CE_LOSS, (tn_value[]){ zt, m, labels }, 3, NULL, 0);
    tn_value new_lse = p->ops[p->n_ops].out[1];
    memcpy(p->values[new_loss].place, p->values[loss].place, sizeof p->values[loss].place);
    memcpy(p->values[new_lse].place, p->values[lse].place, sizeof p->values[lse].place);
    take_over(p, loss, new_loss);
    take_over(p, lse, new_lse);
    end_at(p, op);
}

/* Bit mask of the axes that cut v. */
static uint32_t cut_axes(const struct tn_program *p, tn_value v)
{
    uint32_t mask = 0;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
        if (TN_PLACE_KIND(p->values[v].place[axis]) != TN_PLACE_REPLICATE)
            mask |= 1u << axis;
    return mask;
}

/* Each element once: inputs are grouped by the axes that cut them; a group's sum is reduced over just these.
 * Groups are merged from the last axis down, so that each set of axes costs one scalar. */
void lower_sumsq(struct tn_program *p, tn_op op)
{
    tn_value by_mask[1u << TN_MAX_AXES] = { 0 };
    uint32_t n_in = p->ops[op].n_in, all = 0;
    for (uint32_t i = 0; i < n_in; i++)
        all |= cut_axes(p, p->ops[op].in[i]);
    if (!all)
        return;
    begin_at(p, op);
    for (uint32_t mask = 0; mask <= all; mask++) {
        tn_value *group = tn_arena_alloc(&p->arena, (n_in + 1) * sizeof *group);
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_in; i++)
            if (cut_axes(p, p->ops[op].in[i]) == mask)
                group[n++] = p->ops[op].in[i];
        if (n == 0)
            continue;
        tn_value s = named(p, op, tn_arena_printf(&p->arena, "part%u", mask), TN_OP_SUMSQ, group, n, NULL, 0);
        for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
            p->values[s].place[axis] = mask >> axis & 1 ? TN_PARTIAL(TN_RED_SUM) : TN_REPLICATE;
        by_mask[mask] = s;
    }
    for (uint32_t mask = all; mask > 0; mask--) {
        tn_value s = by_mask[mask];
        if (!s)
            continue;
        int32_t axis = 31 - __builtin_clz(mask);
        const struct tn_attr attrs[] = { TN_ATTR_I("axis", axis), TN_ATTR_I("red", TN_RED_SUM) };
        tn_value whole =
            named(p, op, tn_arena_printf(&p->arena, "part%u.all_reduce", mask), TN_OP_ALL_REDUCE, &s, 1, attrs, 2);
        memcpy(p->values[whole].place, p->values[s].place, sizeof p->values[s].place);
        p->values[whole].place[axis] = TN_REPLICATE;
        uint32_t rest = mask & ~(1u << axis);
        if (by_mask[rest]) {
            tn_value both = named(p, op, tn_arena_printf(&p->arena, "part%u.with%u", rest, mask), TN_OP_ADD_N,
                                  (tn_value[]){ by_mask[rest], whole }, 2, NULL, 0);
            memcpy(p->values[both].place, p->values[whole].place, sizeof p->values[both].place);
            whole = both;
        }
        by_mask[rest] = whole;
    }
    take_over(p, p->ops[op].out[0], by_mask[0]);
    end_at(p, op);
}

/* Local elements in front of dimension `dim`: 1 if its blocks are dense already. */
static int64_t outer(const struct tn_program *p, tn_value v, int32_t dim)
{
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];
    tn_local(p, v, p->coord, &rank, shape, NULL);
    return tn_elements(shape, dim);
}

/* A value of v's type made by a layout op right before (input) or after (output) the collective. */
static tn_value blocks(struct tn_program *p, tn_op of, const char *suffix, uint32_t opcode, tn_value x, tn_value like,
                       int32_t dim, int64_t parts, int zigzag)
{
    const struct tn_attr attrs[] = { TN_ATTR_I("dim", dim), TN_ATTR_I("parts", parts),
                                     TN_ATTR_I("order", TN_ORDER_ZIGZAG) };
    tn_value y = named(p, of, suffix, opcode, &x, 1, attrs, zigzag ? 3 : 2);
    memcpy(p->values[y].place, p->values[like].place, sizeof p->values[y].place);
    memcpy(p->values[y].dims, p->values[like].dims, sizeof p->values[y].dims);
    p->values[y].grad_of = p->values[like].grad_of;
    return y;
}

static int is_zigzag(const struct tn_program *p, tn_value v, int32_t axis)
{
    tn_placement place = p->values[v].place[axis];
    return TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG;
}

/* Backends gather and scatter dense blocks by rank; along an inner dimension, and in zigzag order along any, these are
 * split before or merged after. */
void lower_comm(struct tn_program *p, tn_op op)
{
    uint32_t opcode = p->ops[op].opcode;
    int32_t axis = (int32_t)tn_attr_i(p, op, "axis", 0), parts = p->mesh->axis[axis].size;
    int32_t split = (int32_t)tn_attr_i(p, op, opcode == TN_OP_ALL_TO_ALL ? "to" : "dim", -1);
    int32_t merge = (int32_t)tn_attr_i(p, op, opcode == TN_OP_ALL_TO_ALL ? "from" : "dim", -1);
    tn_value x = p->ops[op].in[0], y = p->ops[op].out[0];
    int order_in = is_zigzag(p, x, axis), order_out = is_zigzag(p, y, axis);
    int splits = opcode != TN_OP_ALL_GATHER && split >= 0 && (outer(p, x, split) > 1 || order_out);
    int merges = opcode != TN_OP_REDUCE_SCATTER && merge >= 0 && (outer(p, y, merge) > 1 || order_in);
    if (splits) {
        begin_at(p, op);
        tn_value in = blocks(p, op, "blocks", TN_OP_SPLIT_BLOCKS, x, x, split, parts, order_out);
        tn_set_input(p, op, 0, in);
    }
    if (merges) {
        begin_at(p, op);
        p->insert_before = p->ops[op].next;
        tn_value out = blocks(p, op, "merged", TN_OP_MERGE_BLOCKS, y, y, merge, parts, order_in);
        tn_op made = p->values[out].def;
        take_over(p, y, out);
        tn_set_input(p, made, 0, y); /* its own input stays */
    }
    p->insert_before = 0;
}
