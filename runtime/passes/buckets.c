/* Buckets: see passes.h. Strategies call it from lower, through join_sums of tn.program_edit/1.
 *
 * A gradient may be summed over several axes, one after the other; its way is all of them. Gradients of one stage and
 * one way that the backward pass completes one after another are summed together. A bucket stands at the start of the
 * step region, from where schedule brings it to its last member.
 *
 *     g1 = all_reduce a1 axis=1;  h1 = all_reduce g1 axis=0      flat = pack a1 a2
 *     g2 = all_reduce a2 axis=1;  h2 = all_reduce g2 axis=0  =>  flat' = all_reduce flat axis=1
 *                                                                flat" = all_reduce flat' axis=0
 *                                                                h1 = view flat" a1 offset=0
 *                                                                h2 = view flat" a2 offset=..
 *
 * Where a gradient is scattered only in the step region (fsdp), its scatter comes along, to stand before the bucket. */
#include "passes/passes.h"
#include "passes/resolve.h"

#include <stdlib.h>

enum { PACK_ALIGN = 16 }; /* elements; see pack in ops.def */

struct gradient {
    tn_op scatter;          /* in the step region, of what the micro-batches left; or 0 */
    tn_value from, to;      /* accumulator, or its part; its sum over all of its way */
    tn_op sum[TN_MAX_AXES]; /* the all_reduces between them */
    int32_t n_sums, stage;
    uint64_t way;            /* axes, a hexadecimal digit each */
    int64_t ready, elements; /* order of the op that completes it; this rank's part */
    int joined;              /* a bucket does the work of its sums */
};

static int is_sum(const struct tn_program *p, tn_op op)
{
    return op && tn_op_is_sum(p, op) && p->ops[op].region == TN_REGION_STEP;
}

static int is_gradient(const struct tn_program *p, tn_value v)
{
    const struct tn_value_data *value = &p->values[v];
    return value->kind == TN_KIND_ACCUMULATOR && value->like && value->dtype == TN_F32 && value->def;
}

/* The op that completes v in a micro-batch, or completes what *scatter makes v of; 0: there is none. What else the step
 * region makes would bring a bucket behind what it is made of. */
static tn_op completed_by(const struct tn_program *p, tn_value v, tn_op *scatter)
{
    tn_op def = p->values[v].def;
    *scatter = 0;
    if (def && p->ops[def].region == TN_REGION_STEP && p->ops[def].opcode == TN_OP_REDUCE_SCATTER) {
        *scatter = def;
        def = p->values[p->ops[def].in[0]].def;
    }
    return def && p->ops[def].region != TN_REGION_STEP ? def : 0;
}

/* The gradient that `op` begins to sum. Returns whether there is one and `axis` is on its way. */
static int follow(const struct tn_program *p, tn_op op, int32_t axis, struct gradient *g)
{
    int goes_along = 0;
    *g = (struct gradient){ .from = p->ops[op].in[0], .stage = p->ops[op].stage };
    tn_op completed = is_gradient(p, g->from) ? completed_by(p, g->from, &g->scatter) : 0;
    if (!completed)
        return 0;
    g->ready = p->ops[completed].order;
    g->elements = tn_local_elements(p, g->from);
    for (; is_sum(p, op) && g->n_sums < TN_MAX_AXES; op = tn_only_user(p, g->to)) {
        int64_t along = tn_attr_i(p, op, "axis", 0);
        goes_along |= along == axis;
        g->way = g->way << 4 | (uint64_t)(along + 1);
        g->sum[g->n_sums++] = op;
        g->to = p->ops[op].out[0];
    }
    return goes_along;
}

static int compare(const void *a, const void *b)
{
    const struct gradient *x = a, *y = b;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->way != y->way)
        return x->way < y->way ? -1 : 1;
    if (x->ready != y->ready)
        return x->ready < y->ready ? -1 : 1;
    return x->sum[0] < y->sum[0] ? -1 : x->sum[0] > y->sum[0]; /* one op may complete two */
}

/* An op with the placement that its inputs imply. */
static tn_value add(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                    const struct tn_attr *attrs, uint32_t n_attrs)
{
    tn_value out = tn_op_new(p, opcode, name, in, n_in, attrs, n_attrs);
    tn_resolve_late(p, tn_last_op(p));
    return out;
}

/* The part of the bucket that is g; it lies as the sum that it stands for. */
static void show(struct tn_program *p, const struct gradient *g, tn_value bucket, int64_t offset, const char *name)
{
    const struct tn_attr at = TN_ATTR_I("offset", offset);
    tn_value view = add(p, TN_OP_VIEW, name, (const tn_value[]){ bucket, g->from }, 2, &at, 1);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        p->values[view].place[axis] = p->values[g->to].place[axis];
        p->values[view].placed_by[axis] = tn_arena_strdup(&p->arena, p->actor);
    }
    tn_replace_uses(p, g->to, view, 0);
}

static void join(struct tn_program *p, struct gradient *g, uint32_t n, uint32_t number)
{
    const char *name = tn_arena_printf(&p->arena, "%s.bucket.%u", p->actor, number);
    tn_value *members = tn_arena_alloc(&p->arena, n * sizeof *members);
    int64_t offset = 0;
    p->at_stage = g->stage;
    for (uint32_t i = 0; i < n; i++) {
        members[i] = g[i].from;
        if (g[i].scatter)
            tn_op_move(p, g[i].scatter, p->insert_before);
    }
    tn_value bucket = add(p, TN_OP_PACK, name, members, n, NULL, 0);
    for (int32_t k = 0; k < g->n_sums; k++) {
        int64_t axis = tn_attr_i(p, g->sum[k], "axis", 0);
        const struct tn_attr along[] = { TN_ATTR_I("axis", axis), TN_ATTR_I("red", TN_RED_SUM) };
        const char *sum = k == 0 ? tn_arena_printf(&p->arena, "%s.sum", name)
                                 : tn_arena_printf(&p->arena, "%s.sum.%s", name, p->mesh->axis[axis].name);
        bucket = add(p, TN_OP_ALL_REDUCE, sum, &bucket, 1, along, 2);
    }
    for (uint32_t i = 0; i < n; i++) {
        show(p, &g[i], bucket, offset, tn_arena_printf(&p->arena, "%s.%u", name, i));
        g[i].joined = 1;
        offset += (g[i].elements + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
    }
}

/* Where those end that go into one bucket with the first. */
static uint32_t end_of_bucket(const struct gradient *g, uint32_t first, uint32_t n, int64_t most)
{
    int64_t elements = g[first].elements;
    uint32_t end = first + 1;
    while (end < n && g[end].stage == g[first].stage && g[end].way == g[first].way &&
           elements + g[end].elements <= most)
        elements += g[end++].elements;
    return end;
}

/* Gradients whose way has `axis` on it, as they are to be joined; returns how many. */
static uint32_t collect(const struct tn_program *p, int32_t axis, struct gradient *g)
{
    uint32_t n = 0;
    TN_EACH_OP(p, op)
        if (is_sum(p, op))
            n += (uint32_t)follow(p, op, axis, &g[n]);
    qsort(g, n, sizeof *g, compare);
    return n;
}

/* The old sums go last: buckets are put before the first op of the step region, which may be one of them. */
static void join_all(struct tn_program *p, struct gradient *g, uint32_t n, int64_t most)
{
    uint32_t number = 0;
    for (uint32_t first = 0, end; first < n; first = end) {
        end = end_of_bucket(g, first, n, most);
        if (end - first > 1)
            join(p, &g[first], end - first, number++);
    }
    for (uint32_t i = 0; i < n; i++)
        for (int32_t k = g[i].n_sums; g[i].joined && k-- > 0;)
            tn_op_unlink(p, g[i].sum[k]);
}

void tn_join_sums(struct tn_program *p, int32_t axis, int64_t most_bytes)
{
    uint32_t region = p->at_region, sums = 0;
    int32_t layer = p->at_layer, stage = p->at_stage;
    tn_op before = p->insert_before;
    p->insert_before = 0;
    tn_program_renumber(p);
    TN_EACH_OP(p, op) {
        if (p->ops[op].region == TN_REGION_STEP && p->ops[op].opcode != TN_OP_REDUCE_SCATTER && !p->insert_before)
            p->insert_before = op;
        sums += (uint32_t)is_sum(p, op);
    }
    struct gradient *g = tn_arena_alloc(&p->arena, (sums + 1) * sizeof *g);
    p->at_region = TN_REGION_STEP;
    p->at_layer = -1;
    join_all(p, g, collect(p, axis, g), most_bytes / (int64_t)sizeof(float));
    p->at_region = region;
    p->at_layer = layer;
    p->at_stage = stage;
    p->insert_before = before;
}
