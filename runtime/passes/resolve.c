/* Resolve: see resolve.h.
 *
 * Requires: pins and wants. Establishes: placements everywhere. Preserves: what is computed.
 *
 * Each axis is resolved by itself, in program order. For each op, the row of its placement rule that costs the
 * least bytes wins: the conversions of its inputs, plus the conversion of its outputs to what a strategy wants.
 * Ties go to fewer collectives, then to the earlier row. Conversions are put right before the op and remembered:
 * a second consumer uses the first one's.
 *
 *     y {tp: P} = linear(x, w)              y {tp: P} = linear(x, w)
 *     r = add(h {tp: R}, y)         =>      y.all_reduce.tp {tp: R} = all_reduce(y)
 *                                           r {tp: R} = add(h, y.all_reduce.tp)
 */
#include "passes/resolve.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "passes/passes.h"

/* What was converted to what on the axis at hand. */
struct conversion {
    tn_value result;
    tn_placement to;
    struct conversion *next;
};

struct resolver {
    struct tn_program *p;
    int32_t axis;
    int64_t to_come;          /* parts that axes which cut flat, resolved later, will cut the batch in */
    struct conversion **done; /* by value */
    size_t cap;
};

const char *tn_placement_text(tn_placement placement, char buf[48])
{
    switch (TN_PLACE_KIND(placement)) {
    case TN_PLACE_REPLICATE: return "replicate";
    case TN_PLACE_FLAT: return "flat";
    case TN_PLACE_PARTIAL: return TN_PLACE_RED(placement) == TN_RED_MAX ? "partial(max)" : "partial(sum)";
    case TN_PLACE_SHARD:
        snprintf(buf, 48, "shard(%d%s%s)", TN_PLACE_DIM(placement),
                 TN_PLACE_ORDER(placement) == TN_ORDER_ZIGZAG ? ", zigzag" : "",
                 TN_PLACE_PARTS(placement) ? ", parts" : "");
        return buf;
    default: return "unset";
    }
}

/* A cut of the first dimension of an activation, its batch, leaves whole parts for the axes to come. */
static int leaves_batch(const struct resolver *r, tn_value v, tn_placement to)
{
    const struct tn_value_data *value = &r->p->values[v];
    if (r->to_come == 1 || TN_PLACE_DIM(to) != 0 || value->like || value->rank < 2)
        return 1;
    int64_t parts = r->to_come * r->p->mesh->axis[r->axis].size;
    for (int32_t other = 0; other < r->p->mesh->n_axes; other++)
        if (other != r->axis && value->place[other] == TN_SHARD(0))
            parts *= r->p->mesh->axis[other].size;
    return value->shape[0] % parts == 0;
}

/* Cost of a conversion in bytes moved per rank; INFINITY where there is none. *steps counts collectives and slices. */
static double conversion_cost(const struct resolver *r, tn_value v, tn_placement from, tn_placement to, int *steps)
{
    const struct tn_program *p = r->p;
    int32_t axis = r->axis;
    if (from == to || from == TN_PLACE_UNSET)
        return 0;
    uint32_t a = TN_PLACE_KIND(from), b = TN_PLACE_KIND(to);
    double bytes = (double)tn_elements(p->values[v].shape, p->values[v].rank) * tn_dtype_bytes(p->values[v].dtype);
    if (b == TN_PLACE_SHARD && !(tn_placement_fits(p, v, axis, to) && leaves_batch(r, v, to)))
        return INFINITY;
    for (int32_t other = 0; other < p->mesh->n_axes; other++) /* a flat part has no dimensions left to cut */
        if (other != axis && TN_PLACE_KIND(p->values[v].place[other]) == TN_PLACE_FLAT &&
            (a == TN_PLACE_SHARD || b == TN_PLACE_SHARD))
            return INFINITY;
    int uneven = TN_PLACE_PARTS(from) || TN_PLACE_PARTS(to);
    *steps += 1;
    if (a == TN_PLACE_PARTIAL && b == TN_PLACE_REPLICATE)
        return 2 * bytes;
    if (a == TN_PLACE_PARTIAL && (b == TN_PLACE_SHARD || b == TN_PLACE_FLAT)) {
        *steps += uneven;
        return uneven ? 2 * bytes : bytes;
    }
    if ((a == TN_PLACE_SHARD || a == TN_PLACE_FLAT) && b == TN_PLACE_REPLICATE) {
        *steps += uneven;
        return uneven ? 2 * bytes : bytes;
    }
    if (a == TN_PLACE_SHARD && b == TN_PLACE_SHARD && TN_PLACE_DIM(from) != TN_PLACE_DIM(to) && !uneven)
        return bytes / p->mesh->axis[axis].size;
    if (a == TN_PLACE_REPLICATE && TN_PLACE_ORDER(to) == TN_ORDER_PLAIN && (b == TN_PLACE_SHARD || b == TN_PLACE_FLAT))
        return bytes / 1024; /* a local slice: about nothing, but not chosen for nothing */
    return INFINITY;
}

/* The output of a new op: typed like v, placed like v on axes resolved so far, `to` on this one. */
static tn_value step(struct resolver *r, tn_value v, uint32_t opcode, tn_placement to, const struct tn_attr *attrs,
                     uint32_t n_attrs)
{
    struct tn_program *p = r->p;
    const char *axis = p->mesh->axis[r->axis].name;
    const char *name = tn_arena_printf(&p->arena, "%s.%s.%s", p->values[v].name, tn_op_kind(opcode)->name, axis);
    if (tn_value_find(p, name))
        name = tn_arena_printf(&p->arena, "%s.%u", name, p->n_ops);
    tn_value y = tn_op_new(p, opcode, name, &v, 1, attrs, n_attrs);
    struct tn_value_data *from = &p->values[v], *out = &p->values[y];
    memcpy(out->place, from->place, sizeof out->place);
    memcpy(out->dims, from->dims, sizeof out->dims);
    out->place[r->axis] = to;
    out->tag = from->tag;
    out->kind = from->kind == TN_KIND_ACCUMULATOR ? TN_KIND_ACCUMULATOR : TN_KIND_ACTIVATION;
    out->like = from->like;
    out->grad_of = from->grad_of;
    p->ops[p->n_ops].tag = from->tag;
    return y;
}

static tn_value convert_ops(struct resolver *r, tn_value v, tn_placement to)
{
    tn_placement from = r->p->values[v].place[r->axis];
    uint32_t a = TN_PLACE_KIND(from), b = TN_PLACE_KIND(to);
    int32_t from_dim = a == TN_PLACE_FLAT ? -1 : TN_PLACE_DIM(from),
            to_dim = b == TN_PLACE_FLAT ? -1 : TN_PLACE_DIM(to);
    const struct tn_attr red[] = { TN_ATTR_I("axis", r->axis), TN_ATTR_I("red", TN_PLACE_RED(from)) };
    if (a == TN_PLACE_PARTIAL && b == TN_PLACE_REPLICATE)
        return step(r, v, TN_OP_ALL_REDUCE, to, red, 2);
    if (a == TN_PLACE_PARTIAL && TN_PLACE_PARTS(to)) /* unequal parts: the whole sum, and this rank's part of it */
        return convert_ops(r, step(r, v, TN_OP_ALL_REDUCE, TN_REPLICATE, red, 2), to);
    if (a == TN_PLACE_PARTIAL) {
        const struct tn_attr attrs[] = { red[0], TN_ATTR_I("dim", to_dim), red[1] };
        return step(r, v, TN_OP_REDUCE_SCATTER, to, attrs, 3);
    }
    if (b == TN_PLACE_REPLICATE && TN_PLACE_PARTS(from)) { /* unequal parts: zeros around each, then their sum */
        const struct tn_attr attrs[] = { red[0], TN_ATTR_I("dim", from_dim) };
        tn_value whole = step(r, v, TN_OP_UNSLICE, TN_PARTIAL(TN_RED_SUM), attrs, 2);
        return convert_ops(r, whole, to);
    }
    if (b == TN_PLACE_REPLICATE) {
        const struct tn_attr attrs[] = { red[0], TN_ATTR_I("dim", from_dim) };
        return step(r, v, TN_OP_ALL_GATHER, to, attrs, 2);
    }
    if (a == TN_PLACE_REPLICATE) {
        const struct tn_attr attrs[] = { red[0], TN_ATTR_I("dim", to_dim),
                                         TN_ATTR_I("coord", r->p->coord ? r->p->coord[r->axis] : 0) };
        return step(r, v, TN_OP_SLICE, to, attrs, 3);
    }
    const struct tn_attr attrs[] = { red[0], TN_ATTR_I("from", from_dim), TN_ATTR_I("to", to_dim) };
    return step(r, v, TN_OP_ALL_TO_ALL, to, attrs, 3);
}

static tn_value converted(const struct resolver *r, tn_value v, tn_placement to)
{
    for (struct conversion *c = v < r->cap ? r->done[v] : NULL; c; c = c->next)
        if (c->to == to)
            return c->result;
    return 0;
}

/* The first of the sums over other axes that v comes from and that nobody else reads, if v is to be scattered flat: the
 * scatter goes before it, so that the others sum parts. 0: none.
 *
 *     a = all_reduce.dp g                       s = reduce_scatter.fsdp g
 *     s = reduce_scatter.fsdp a          =>     a = all_reduce.dp s */
static tn_op first_sum_before(const struct resolver *r, tn_value v, tn_placement to)
{
    const struct tn_program *p = r->p;
    tn_op first = 0;
    if (TN_PLACE_KIND(p->values[v].place[r->axis]) != TN_PLACE_PARTIAL || TN_PLACE_KIND(to) != TN_PLACE_FLAT)
        return 0;
    while (p->values[v].def && tn_op_is_sum(p, p->values[v].def) && tn_only_user(p, v)) {
        first = p->values[v].def;
        v = p->ops[first].in[0];
    }
    return first;
}

/* v as `to`, by a conversion before `op` unless one was made already. */
static tn_value convert(struct resolver *r, tn_value v, tn_placement to, tn_op op)
{
    struct tn_program *p = r->p;
    if (p->values[v].place[r->axis] == to)
        return v;
    tn_value known = converted(r, v, to);
    if (known)
        return known;
    tn_op sum = first_sum_before(r, v, to);
    tn_value term = sum ? p->ops[sum].in[0] : v;
    p->insert_before = sum ? sum : op;
    p->at_region = p->ops[op].region;
    p->at_layer = p->ops[op].layer;
    p->at_stage = p->ops[op].stage;
    tn_value result = convert_ops(r, term, to);
    p->insert_before = 0;
    if (sum) {
        tn_set_input(p, sum, 0, result);
        for (tn_value part = v; part != result; part = p->ops[p->values[part].def].in[0])
            p->values[part].place[r->axis] = to;
        return v;
    }
    r->done = tn_arena_grow(&p->arena, r->done, sizeof *r->done, &r->cap, p->n_values + 1);
    struct conversion *made = tn_arena_alloc(&p->arena, sizeof *made);
    *made = (struct conversion){ .result = result, .to = to, .next = r->done[v] };
    r->done[v] = made;
    return result;
}

/* A param, its cast, or what a strategy's cut makes resolve gather of either. */
static int is_param(const struct tn_program *p, tn_value v)
{
    tn_op def = p->values[v].def;
    while (p->values[v].kind != TN_KIND_PARAM && def &&
           (p->ops[def].opcode == TN_OP_CAST || p->ops[def].opcode == TN_OP_ALL_GATHER)) {
        v = p->ops[def].in[0];
        def = p->values[v].def;
    }
    return p->values[v].kind == TN_KIND_PARAM;
}

/* Params, states and memory that is updated in place keep their placement; but a param that a strategy cut flat is
 * there to be gathered. */
static int pinned(const struct tn_program *p, tn_op op, uint32_t i, tn_placement from, tn_placement to)
{
    const struct tn_op_kind *kind = tn_op_kind(p->ops[op].opcode);
    tn_value v = p->ops[op].in[i];
    for (uint32_t o = 0; o < kind->n_out; o++)
        if (kind->must_alias[o] == (int)i)
            return 1;
    if (TN_PLACE_KIND(from) == TN_PLACE_FLAT && to == TN_REPLICATE)
        return 0;
    return p->values[v].kind == TN_KIND_STATE || (is_param(p, v) && p->ops[op].opcode != TN_OP_CAST);
}

static double row_cost(const struct resolver *r, tn_op op, const struct tn_row *row, int *steps, int *liked)
{
    const struct tn_program *p = r->p;
    const struct tn_op_data *o = &p->ops[op];
    double cost = 0;
    for (uint32_t i = 0; i < o->n_in; i++) {
        if (!o->in[i])
            continue;
        tn_placement from = p->values[o->in[i]].place[r->axis];
        tn_placement to = row->in[i < TN_OP_MOST_FIXED ? i : 0];
        if (from != to && from != TN_PLACE_UNSET && pinned(p, op, i, from, to))
            return INFINITY;
        if (from != to && converted(r, o->in[i], to))
            continue;
        cost += conversion_cost(r, o->in[i], from, to, steps);
    }
    for (uint32_t i = 0; i < o->n_out; i++) {
        const struct tn_value_data *out = &p->values[o->out[i]];
        tn_placement to = row->out[i], want = out->want[r->axis];
        if (want != TN_PLACE_UNSET && to != want)
            cost += conversion_cost(r, o->out[i], to, want, steps);
        *liked += want != TN_PLACE_UNSET && to == want;
        /* a gradient best lies as its param does, where that costs nothing */
        if (out->like && to == p->values[out->like].place[r->axis])
            ++*liked;
    }
    return cost;
}

/* Where a strategy wants a cut of v, or of what v was converted from, that does not divide: says so; else says
 * nothing. */
static int add_unfit_want(const struct resolver *r, tn_value v, struct tn_buf *buf)
{
    const struct tn_program *p = r->p;
    while (p->values[v].def && tn_op_is_comm(p->ops[p->values[v].def].opcode))
        v = p->ops[p->values[v].def].in[0];
    const struct tn_value_data *value = &p->values[v];
    tn_placement want = value->want[r->axis];
    if (TN_PLACE_KIND(want) != TN_PLACE_SHARD || TN_PLACE_DIM(want) >= value->rank ||
        tn_placement_fits(p, v, r->axis, want))
        return 0;
    int64_t multiple = 1;
    char text[48];
    tn_buf_printf(buf, "; %s on axis %s is wanted of %s, but dimension %d, %lld elements, is cut",
                  tn_placement_text(want, text), p->mesh->axis[r->axis].name, value->name, TN_PLACE_DIM(want),
                  (long long)value->shape[TN_PLACE_DIM(want)]);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement cut = TN_PLACE_KIND(value->place[axis]) == TN_PLACE_SHARD ? value->place[axis] : value->want[axis];
        if (TN_PLACE_KIND(cut) != TN_PLACE_SHARD || TN_PLACE_DIM(cut) != TN_PLACE_DIM(want) ||
            p->mesh->axis[axis].size == 1)
            continue;
        tn_buf_printf(buf, "%s %s = %d", multiple == 1 ? " by" : " and", p->mesh->axis[axis].name,
                      p->mesh->axis[axis].size);
        multiple *= p->mesh->axis[axis].size;
    }
    tn_buf_printf(buf, "; a multiple of %lld would work", (long long)multiple);
    return 1;
}

/* Names the op, the makers of its inputs and their placements. */
static void refuse(struct resolver *r, tn_op op, int n_rows)
{
    struct tn_program *p = r->p;
    const struct tn_op_data *o = &p->ops[op];
    struct tn_buf buf;
    char text[48];
    tn_buf_init(&buf);
    for (uint32_t i = 0; i < o->n_in && i < 6; i++) {
        if (!o->in[i])
            continue;
        const struct tn_value_data *v = &p->values[o->in[i]];
        tn_op def = v->def;
        tn_buf_printf(&buf, "%s%s", buf.length ? ", " : "", v->name);
        if (def)
            tn_buf_printf(&buf, " (made by %s)", tn_op_kind(p->ops[def].opcode)->name);
        tn_buf_printf(&buf, " is %s%s%s", tn_placement_text(v->place[r->axis], text),
                      v->placed_by[r->axis] ? " by " : "", v->placed_by[r->axis] ? v->placed_by[r->axis] : "");
    }
    int unfit = 0;
    for (uint32_t i = 0; i < o->n_out && !unfit; i++)
        unfit = add_unfit_want(r, o->out[i], &buf);
    for (uint32_t i = 0; i < o->n_in && !unfit; i++)
        unfit = o->in[i] && add_unfit_want(r, o->in[i], &buf);
    tn_program_error(p, op, "no rule of %s fits on axis %s: %s%s", tn_op_kind(o->opcode)->name,
                     p->mesh->axis[r->axis].name, buf.text,
                     unfit || n_rows ? "" : "; its sizes do not divide, or a strategy must replace it");
    tn_buf_finish(&buf);
}

static void take(struct resolver *r, tn_op op, const struct tn_row *row)
{
    struct tn_program *p = r->p;
    for (uint32_t i = 0; i < p->ops[op].n_in; i++) {
        tn_value v = p->ops[op].in[i];
        tn_placement to = row->in[i < TN_OP_MOST_FIXED ? i : 0];
        if (!v)
            continue;
        if (p->values[v].place[r->axis] == TN_PLACE_UNSET)
            p->values[v].place[r->axis] = to; /* an accumulator still empty takes what comes */
        tn_value as = convert(r, v, to, op);
        if (as != v)
            tn_set_input(p, op, i, as);
    }
    for (uint32_t i = 0; i < p->ops[op].n_out; i++)
        p->values[p->ops[op].out[i]].place[r->axis] = row->out[i];
}

/* Each input by itself: whole or cut, never partial. */
static void resolve_sumsq(struct resolver *r, tn_op op)
{
    struct tn_program *p = r->p;
    for (uint32_t i = 0; i < p->ops[op].n_in; i++) {
        tn_value v = p->ops[op].in[i];
        if (TN_PLACE_KIND(p->values[v].place[r->axis]) == TN_PLACE_PARTIAL)
            tn_set_input(p, op, i, convert(r, v, TN_REPLICATE, op));
    }
    p->values[p->ops[op].out[0]].place[r->axis] = TN_REPLICATE;
}

static void resolve_op(struct resolver *r, tn_op op)
{
    struct tn_program *p = r->p;
    const struct tn_op_kind *kind = tn_op_kind(p->ops[op].opcode);
    if (p->ops[op].opcode == TN_OP_SUMSQ) {
        resolve_sumsq(r, op);
        return;
    }
    struct tn_row rows[TN_MOST_ROWS];
    int n = kind->place ? kind->place(p, op, r->axis, rows, TN_MOST_ROWS) : 0;
    int best = -1, best_steps = 0, best_liked = 0;
    double best_cost = INFINITY;
    for (int i = 0; i < n; i++) {
        int steps = 0, liked = 0;
        double cost = row_cost(r, op, &rows[i], &steps, &liked);
        int better = cost < best_cost ||
                     (cost == best_cost && (steps < best_steps || (steps == best_steps && liked > best_liked)));
        if (isfinite(cost) && (best < 0 || better)) {
            best = i;
            best_cost = cost;
            best_steps = steps;
            best_liked = liked;
        }
    }
    if (best < 0) {
        refuse(r, op, n);
        for (uint32_t i = 0; i < p->ops[op].n_out; i++)
            p->values[p->ops[op].out[i]].place[r->axis] = TN_REPLICATE;
        return;
    }
    take(r, op, &rows[best]);
}

/* What no strategy placed: states lie like their param, everything else whole. Wants of gradients follow the param. */
static void settle(struct tn_program *p)
{
    for (tn_value v = 1; v <= p->n_values; v++) {
        struct tn_value_data *value = &p->values[v];
        for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
            const tn_placement *like = value->like ? &p->values[value->like].place[axis] : NULL;
            if (!value->def && value->kind != TN_KIND_ACCUMULATOR && value->place[axis] == TN_PLACE_UNSET)
                value->place[axis] = like && *like != TN_PLACE_UNSET ? *like : TN_REPLICATE;
            if (value->def && p->ops[value->def].opcode == TN_OP_SYNC && value->want[axis] == TN_PLACE_UNSET)
                value->want[axis] = like && *like != TN_PLACE_UNSET ? *like : TN_REPLICATE;
        }
    }
}

/* An axis of one rank cuts nothing; along one of stages, who has a value has all of it. */
static void resolve_trivial(struct tn_program *p, int32_t axis)
{
    for (tn_value v = 1; v <= p->n_values; v++)
        p->values[v].place[axis] = TN_REPLICATE;
}

/* What the host reads is whole on every rank. */
static void gather_outputs(struct resolver *r)
{
    struct tn_program *p = r->p;
    for (tn_value v = 1, n = p->n_values; v <= n; v++) {
        if (!(p->values[v].flags & TN_VALUE_OUTPUT) || p->values[v].place[r->axis] == TN_REPLICATE)
            continue;
        tn_op after = p->ops[p->values[v].def].next;
        p->insert_before = after;
        p->at_region = p->ops[p->values[v].def].region;
        p->at_layer = p->ops[p->values[v].def].layer;
        p->at_stage = p->ops[p->values[v].def].stage;
        tn_placement from = p->values[v].place[r->axis];
        int steps = 0;
        if (!isfinite(conversion_cost(r, v, from, TN_REPLICATE, &steps))) {
            tn_program_error(p, p->values[v].def, "this output cannot be made whole on axis %s",
                             p->mesh->axis[r->axis].name);
            continue;
        }
        tn_value whole = convert_ops(r, v, TN_REPLICATE);
        p->insert_before = 0;
        p->values[v].flags &= ~(uint32_t)TN_VALUE_OUTPUT;
        p->values[whole].flags |= TN_VALUE_OUTPUT;
    }
}

static void check_pins(struct tn_program *p)
{
    char text[48];
    for (tn_value v = 1; v <= p->n_values; v++)
        for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
            if (p->mesh->axis[axis].size > 1 && !tn_placement_fits(p, v, axis, p->values[v].place[axis]))
                tn_program_error(p, 0, "%s: %s on axis %s = %d does not divide its %lld elements%s%s",
                                 p->values[v].name, tn_placement_text(p->values[v].place[axis], text),
                                 p->mesh->axis[axis].name, p->mesh->axis[axis].size,
                                 (long long)p->values[v].shape[TN_PLACE_DIM(p->values[v].place[axis]) % TN_MAX_DIMS],
                                 p->values[v].placed_by[axis] ? "; asked by " : "",
                                 p->values[v].placed_by[axis] ? p->values[v].placed_by[axis] : "");
}

static int cuts_flat(const struct tn_program *p, int32_t axis)
{
    for (tn_value v = 1; v <= p->n_values; v++)
        if (p->values[v].kind == TN_KIND_PARAM && TN_PLACE_KIND(p->values[v].place[axis]) == TN_PLACE_FLAT)
            return 1;
    return 0;
}

static void resolve_axis(struct tn_program *p, int32_t axis, int64_t to_come)
{
    if (p->mesh->axis[axis].size == 1 || p->mesh->axis[axis].stages) {
        resolve_trivial(p, axis);
        return;
    }
    struct resolver r = { .p = p, .axis = axis, .to_come = to_come };
    r.done = tn_arena_grow(&p->arena, NULL, sizeof *r.done, &r.cap, p->n_values + 1);
    TN_EACH_OP(p, op)
        resolve_op(&r, op);
    gather_outputs(&r);
}

void tn_resolve(struct tn_program *p)
{
    settle(p);
    check_pins(p);
    if (p->n_errors)
        return;
    /* Slow axes first: what an inner axis may cut depends on what the outer ones left (one key head a rank). Flat cuts
     * last: they cut what all others have left. */
    int64_t to_come = 1;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
        to_come *= cuts_flat(p, axis) ? p->mesh->axis[axis].size : 1;
    for (int flat = 0; flat < 2; flat++)
        for (int32_t axis = p->mesh->n_axes - 1; axis >= 0; axis--)
            if (cuts_flat(p, axis) == flat)
                resolve_axis(p, axis, flat ? 1 : to_come);
    if (p->n_errors)
        return;
    for (tn_op op = p->first, next; op; op = next) {
        next = p->ops[op].next;
        const struct tn_op_kind *kind = tn_op_kind(p->ops[op].opcode);
        if (kind->lower)
            kind->lower(p, op);
    }
}

void tn_resolve_late(struct tn_program *p, tn_op op)
{
    const struct tn_op_kind *kind = tn_op_kind(p->ops[op].opcode);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        struct tn_row rows[TN_MOST_ROWS];
        int n = kind->place ? kind->place(p, op, axis, rows, TN_MOST_ROWS) : 0, found = -1;
        for (int i = 0; i < n && found < 0; i++) {
            int fits = 1;
            for (uint32_t k = 0; k < p->ops[op].n_in; k++)
                if (p->ops[op].in[k])
                    fits &= p->values[p->ops[op].in[k]].place[axis] == rows[i].in[k < TN_OP_MOST_FIXED ? k : 0];
            found = fits ? i : -1;
        }
        for (uint32_t i = 0; i < p->ops[op].n_out; i++)
            if (found >= 0)
                p->values[p->ops[op].out[i]].place[axis] = rows[found].out[i];
        if (n > 0 && found < 0)
            tn_program_error(p, op, "no rule of %s fits on axis %s", kind->name, p->mesh->axis[axis].name);
    }
}
