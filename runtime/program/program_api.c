/* Program API: see program_api.h and the two headers of the ABI, whose comments are the contract.
 *
 * Every id that comes from a plugin is checked here; a wrong one is recorded as the plugin's error. */
#include "program/program_api.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes.h"
#include "passes/resolve.h"

static int good_value(const struct tn_program *p, tn_value v)
{
    if (v > 0 && v <= p->n_values)
        return 1;
    tn_program_error((struct tn_program *)p, 0, "%s named a value %u that does not exist", p->actor, v);
    return 0;
}

static int good_op(const struct tn_program *p, tn_op op)
{
    if (op > 0 && op <= p->n_ops && p->ops[op].linked)
        return 1;
    tn_program_error((struct tn_program *)p, 0, "%s named an op %u that does not exist", p->actor, op);
    return 0;
}

static int good_axis(const struct tn_program *p, int32_t axis)
{
    if (axis >= 0 && axis < p->mesh->n_axes)
        return 1;
    tn_program_error((struct tn_program *)p, 0, "%s named an axis %d that does not exist", p->actor, axis);
    return 0;
}

/* reading */

static tn_op api_op_next(const struct tn_program *p, tn_op after)
{
    return after == 0 ? p->first : good_op(p, after) ? p->ops[after].next : 0;
}

/* Fills at most what the caller's struct has room for. */
static void fill(void *to, const void *from, uint32_t from_size)
{
    uint32_t room = *(uint32_t *)to, size = room < from_size ? room : from_size;
    memcpy(to, from, size);
    *(uint32_t *)to = room;
}

static void api_op_info(const struct tn_program *p, tn_op op, struct tn_op_info *info)
{
    if (!good_op(p, op))
        return;
    const struct tn_op_data *o = &p->ops[op];
    const struct tn_op_info full = {
        .struct_size = sizeof full,
        .opcode = o->opcode,
        .name = tn_op_kind(o->opcode)->name,
        .region = o->region,
        .layer = o->layer,
        .stage = o->stage,
        .n_in = o->n_in,
        .n_out = o->n_out,
        .in = o->in,
        .out = o->out,
        .tag = o->tag,
        .source = o->source,
        .op_flags = tn_op_kind(o->opcode)->flags,
        .like = o->opcode < TN_OP_CORE_END ? o->opcode : tn_op_kind(o->opcode)->like,
    };
    fill(info, &full, sizeof full);
}

static int64_t api_attr_int(const struct tn_program *p, tn_op op, const char *key, int64_t missing)
{
    return good_op(p, op) ? tn_attr_i(p, op, key, missing) : missing;
}

static double api_attr_float(const struct tn_program *p, tn_op op, const char *key, double missing)
{
    return good_op(p, op) ? tn_attr_f(p, op, key, missing) : missing;
}

static tn_value api_value_next(const struct tn_program *p, tn_value after)
{
    return after < p->n_values ? after + 1 : 0;
}

static void api_value_info(const struct tn_program *p, tn_value v, struct tn_value_info *info)
{
    if (!good_value(p, v))
        return;
    const struct tn_value_data *value = &p->values[v];
    struct tn_value_info full = {
        .struct_size = sizeof full,
        .dtype = value->dtype,
        .kind = value->kind,
        .space = value->space,
        .flags = value->flags,
        .rank = value->rank,
        .name = value->name,
        .tag = value->tag,
        .def = value->def,
        .layer = value->layer,
        .like = value->like,
        .grad_of = value->grad_of,
    };
    memcpy(full.shape, value->shape, sizeof full.shape);
    memcpy(full.dims, value->dims, sizeof full.dims);
    fill(info, &full, sizeof full);
}

static tn_op api_user_next(const struct tn_program *p, tn_value v, tn_op after)
{
    return good_value(p, v) && (after == 0 || good_op(p, after)) ? tn_user_next(p, v, after) : 0;
}

static tn_placement api_placement(const struct tn_program *p, tn_value v, int32_t axis)
{
    return good_value(p, v) && good_axis(p, axis) ? p->values[v].place[axis] : TN_PLACE_UNSET;
}

static void api_local_shape(const struct tn_program *p, tn_value v, int64_t *shape)
{
    int32_t rank;
    if (good_value(p, v))
        tn_local(p, v, p->coord, &rank, shape, NULL);
}

static int32_t api_axis_count(const struct tn_program *p)
{
    return p->mesh->n_axes;
}

static int32_t api_axis_find(const struct tn_program *p, const char *name)
{
    return tn_mesh_find(p->mesh, name);
}

static const char *api_axis_name(const struct tn_program *p, int32_t axis)
{
    return good_axis(p, axis) ? p->mesh->axis[axis].name : "";
}

static int32_t api_axis_size(const struct tn_program *p, int32_t axis)
{
    return good_axis(p, axis) ? p->mesh->axis[axis].size : 1;
}

static int32_t api_axis_coord(const struct tn_program *p, int32_t axis)
{
    if (!good_axis(p, axis))
        return 0;
    tn_program_note_coord(p, axis);
    return p->coord[axis];
}

static void api_op_cost(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    static const struct tn_mesh alone = { .world = 1 };
    struct tn_program whole = *p;
    whole.mesh = &alone;
    *flops = *bytes = 0;
    if (good_op(p, op))
        tn_op_kind(p->ops[op].opcode)->cost(&whole, op, flops, bytes);
}

static const struct tn_program_api read_api = {
    .struct_size = sizeof read_api,
    .op_next = api_op_next,
    .op_info = api_op_info,
    .attr_int = api_attr_int,
    .attr_float = api_attr_float,
    .value_next = api_value_next,
    .value_info = api_value_info,
    .value_find = tn_value_find,
    .user_next = api_user_next,
    .placement = api_placement,
    .local_shape = api_local_shape,
    .axis_count = api_axis_count,
    .axis_find = api_axis_find,
    .axis_name = api_axis_name,
    .axis_size = api_axis_size,
    .axis_coord = api_axis_coord,
    .op_cost = api_op_cost,
};

/* editing */

static void api_at(struct tn_program *p, uint32_t region, int32_t layer, int32_t stage)
{
    p->at_region = region;
    p->at_layer = layer;
    p->at_stage = stage;
}

static void api_insert_before(struct tn_program *p, tn_op before)
{
    if (before == 0 || good_op(p, before))
        p->insert_before = before;
}

static tn_value api_value(struct tn_program *p, uint32_t kind, const char *name, uint32_t dtype, int32_t rank,
                          const int64_t *shape, const char *const *dims)
{
    if (rank < 0 || rank > TN_MAX_DIMS || tn_dtype_bytes(dtype) == 0) {
        tn_program_error(p, 0, "%s made %s with %d dimensions of dtype %u; at most %d are possible", p->actor, name,
                         rank, dtype, TN_MAX_DIMS);
        return 0;
    }
    for (int32_t d = 0; d < rank; d++)
        if (shape[d] < 1) {
            tn_program_error(p, 0, "%s made %s with %lld elements in dimension %d", p->actor, name, (long long)shape[d],
                             d);
            return 0;
        }
    tn_value v = tn_value_new(p, kind, name, dtype, rank, shape);
    for (int32_t d = 0; dims && d < rank; d++)
        p->values[v].dims[d] = dims[d] ? tn_arena_strdup(&p->arena, dims[d]) : "";
    return v;
}

/* Ops that come after resolve take the placement that their inputs imply. */
static int placed_already(const struct tn_program *p, const tn_value *in, uint32_t n_in)
{
    for (uint32_t i = 0; i < n_in; i++)
        if (in[i] && p->values[in[i]].def && p->mesh->n_axes > 0)
            return p->values[in[i]].place[0] != TN_PLACE_UNSET;
    return 0;
}

static tn_value api_op(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                       const struct tn_attr *attrs, uint32_t n_attrs)
{
    for (uint32_t i = 0; i < n_in; i++)
        if (in[i] > p->n_values) {
            tn_program_error(p, 0, "%s made %s of a value %u that does not exist", p->actor, name, in[i]);
            return 0;
        }
    if (n_attrs > TN_MAX_ATTRS) {
        tn_program_error(p, 0, "%s gave %s %u attributes; at most %d are possible", p->actor, name, n_attrs,
                         TN_MAX_ATTRS);
        return 0;
    }
    tn_value out = tn_op_new(p, opcode, name, in, n_in, attrs, n_attrs);
    if (out && placed_already(p, in, n_in))
        tn_resolve_late(p, tn_last_op(p));
    return out;
}

static tn_value api_output(const struct tn_program *p, tn_op op, uint32_t index)
{
    return good_op(p, op) && index < p->ops[op].n_out ? p->ops[op].out[index] : 0;
}

static void api_set_attr(struct tn_program *p, tn_op op, const struct tn_attr *attr)
{
    if (good_op(p, op))
        tn_attr_set(p, op, attr);
}

static void api_set_input(struct tn_program *p, tn_op op, uint32_t index, tn_value v)
{
    if (good_op(p, op) && index < p->ops[op].n_in && (v == 0 || good_value(p, v)))
        tn_set_input(p, op, index, v);
}

static void api_set_stage(struct tn_program *p, tn_op op, int32_t stage)
{
    if (good_op(p, op))
        p->ops[op].stage = stage;
}

static void api_replace_uses(struct tn_program *p, tn_value from, tn_value to, tn_op after)
{
    if (good_value(p, from) && good_value(p, to) && (after == 0 || good_op(p, after)))
        tn_replace_uses(p, from, to, after);
}

static void api_op_remove(struct tn_program *p, tn_op op)
{
    if (!good_op(p, op))
        return;
    for (uint32_t i = 0; i < p->ops[op].n_out; i++) {
        tn_op user = api_user_next(p, p->ops[op].out[i], 0);
        if (user) {
            tn_program_error(p, op, "%s removed it, but %s uses it", p->actor, p->ops[user].name);
            return;
        }
    }
    tn_op_unlink(p, op);
}

static void api_op_move(struct tn_program *p, tn_op op, tn_op before)
{
    if (good_op(p, op) && (before == 0 || good_op(p, before)))
        tn_op_move(p, op, before);
}

static void api_set_tag(struct tn_program *p, tn_value v, const char *tag)
{
    if (good_value(p, v))
        p->values[v].tag = tn_arena_strdup(&p->arena, tag);
}

static void api_set_flags(struct tn_program *p, tn_value v, uint32_t flags)
{
    if (good_value(p, v))
        p->values[v].flags |= flags;
}

static void api_set_space(struct tn_program *p, tn_value v, uint32_t space)
{
    if (good_value(p, v))
        p->values[v].space = space;
}

static void api_set_init(struct tn_program *p, tn_value v, uint32_t init, double argument)
{
    if (!good_value(p, v))
        return;
    p->values[v].init = (uint8_t)init;
    p->values[v].init_arg = argument;
}

static void api_set_stored(struct tn_program *p, tn_value v, const char *name, int32_t dim, int64_t offset,
                           int64_t full)
{
    if (!good_value(p, v))
        return;
    p->values[v].stored.name = tn_arena_strdup(&p->arena, name);
    p->values[v].stored.dim = dim;
    p->values[v].stored.offset = offset;
    p->values[v].stored.full = full;
}

/* What a dimension must be a multiple of, to be cut as `placement` on axis beside the cuts that it has. */
static int64_t pieces(const struct tn_program *p, const struct tn_value_data *value, int32_t axis,
                      tn_placement placement)
{
    int64_t product = 1;
    for (int32_t a = 0; a < p->mesh->n_axes; a++) {
        tn_placement place = a == axis ? placement : value->place[a];
        if (TN_PLACE_KIND(place) != TN_PLACE_SHARD || TN_PLACE_DIM(place) != TN_PLACE_DIM(placement))
            continue;
        int64_t n = TN_PLACE_PARTS(place) ? p->parts[TN_PLACE_PARTS(place)].sum : p->mesh->axis[a].size;
        product *= TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG ? 2 * n : n;
    }
    return product;
}

static void refuse_cut(struct tn_program *p, const struct tn_value_data *value, int32_t axis, tn_placement placement)
{
    char text[48];
    int32_t dim = TN_PLACE_DIM(placement);
    tn_program_error(p, 0,
                     "%s: %s asks for %s on axis %s = %d, which does not divide it; dimension %d (%s) is %lld, and "
                     "must be a multiple of %lld",
                     value->name, p->actor, tn_placement_text(placement, text), p->mesh->axis[axis].name,
                     p->mesh->axis[axis].size, dim, value->dims[dim], (long long)value->shape[dim],
                     (long long)pieces(p, value, axis, placement));
}

static void api_place(struct tn_program *p, tn_value v, int32_t axis, tn_placement placement)
{
    if (!good_value(p, v) || !good_axis(p, axis))
        return;
    struct tn_value_data *value = &p->values[v];
    char one[48], other[48];
    if (value->placed_by[axis] && value->place[axis] != placement) {
        tn_program_error(p, 0, "%s: %s places it as %s on axis %s, and %s as %s; take one of the two out of the chain",
                         value->name, value->placed_by[axis], tn_placement_text(value->place[axis], one),
                         p->mesh->axis[axis].name, p->actor, tn_placement_text(placement, other));
        return;
    }
    if (TN_PLACE_KIND(placement) == TN_PLACE_SHARD && TN_PLACE_DIM(placement) >= value->rank) {
        tn_program_error(p, 0, "%s: %s asks for %s on axis %s, but it has %d dimensions, counted from 0", value->name,
                         p->actor, tn_placement_text(placement, one), p->mesh->axis[axis].name, value->rank);
        return;
    }
    if (!tn_placement_fits(p, v, axis, placement)) {
        refuse_cut(p, value, axis, placement);
        return;
    }
    value->place[axis] = placement;
    value->placed_by[axis] = tn_arena_strdup(&p->arena, p->actor);
}

static void api_want(struct tn_program *p, tn_value v, int32_t axis, tn_placement placement)
{
    if (good_value(p, v) && good_axis(p, axis))
        p->values[v].want[axis] = placement;
}

static uint32_t api_parts_new(struct tn_program *p, const int64_t *weights, int32_t n)
{
    if (p->n_parts == sizeof p->parts / sizeof *p->parts || n < 1) {
        tn_program_error(p, 0, "%s made a table of %d unequal shares; at most 255 tables of at least one are possible",
                         p->actor, n);
        return 0;
    }
    int64_t *copy = tn_arena_alloc(&p->arena, (size_t)n * sizeof *copy), sum = 0;
    for (int32_t i = 0; i < n; i++) {
        copy[i] = weights[i];
        sum += weights[i];
        if (weights[i] < 1) {
            tn_program_error(p, 0, "%s made a table of unequal shares with a share of %lld", p->actor,
                             (long long)weights[i]);
            return 0;
        }
    }
    p->parts[p->n_parts] = (struct tn_parts){ .n = n, .weights = copy, .sum = sum };
    return p->n_parts++;
}

static void api_error(struct tn_program *p, tn_op op, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tn_program_error(p, op, "%s: %s", p->actor, text);
}

static tn_op api_op_copy(struct tn_program *p, tn_op op, const char *name)
{
    if (!good_op(p, op))
        return 0;
    struct tn_op_data *o = &p->ops[op];
    tn_op_new(p, o->opcode, name, o->in, o->n_in, o->attrs, o->n_attrs);
    tn_op copy = tn_last_op(p);
    o = &p->ops[op];
    p->ops[copy].tag = o->tag;
    p->ops[copy].source = op;
    for (uint32_t i = 0; i < o->n_out; i++) {
        struct tn_value_data *to = &p->values[p->ops[copy].out[i]];
        const struct tn_value_data *from = &p->values[o->out[i]];
        memcpy(to->place, from->place, sizeof to->place);
        memcpy(to->want, from->want, sizeof to->want);
        memcpy(to->dims, from->dims, sizeof to->dims);
        to->tag = from->tag;
        to->grad_of = from->grad_of;
    }
    return copy;
}

static void api_set_region(struct tn_program *p, tn_op op, uint32_t region)
{
    if (good_op(p, op))
        p->ops[op].region = region;
}

static void api_set_kind(struct tn_program *p, tn_value v, uint32_t kind, tn_value like)
{
    if (!good_value(p, v) || (like != 0 && !good_value(p, like)))
        return;
    p->values[v].kind = kind;
    p->values[v].like = like;
}

static void api_clear_flags(struct tn_program *p, tn_value v, uint32_t flags)
{
    if (good_value(p, v))
        p->values[v].flags &= ~flags;
}

static tn_value api_value_copy(struct tn_program *p, tn_value v, const char *name)
{
    if (!good_value(p, v))
        return 0;
    tn_value copy = tn_value_new(p, p->values[v].kind, name, p->values[v].dtype, p->values[v].rank, p->values[v].shape);
    const char *kept = p->values[copy].name;
    p->values[copy] = p->values[v];
    p->values[copy].name = kept;
    p->values[copy].def = 0;
    return copy;
}

static const struct tn_claim *api_claim(struct tn_program *p, tn_value v, const char *what, const char *key,
                                        uint32_t flags)
{
    static const struct tn_claim none = { .struct_size = sizeof none, .who = "", .what = "", .key = "" };
    if (!good_value(p, v))
        return &none;
    uint32_t held = p->values[v].claim;
    if (!what || (held && strcmp(p->claims[held].claim.who, p->actor) == 0))
        return held ? &p->claims[held].claim : &none;
    p->claims = tn_arena_grow(&p->arena, p->claims, sizeof *p->claims, &p->cap_claims, p->n_claims + 2);
    p->claims[++p->n_claims] = (struct tn_claimed){
        .v = v,
        .lost_to = held,
        .claim = { .struct_size = sizeof(struct tn_claim),
                   .flags = flags,
                   .who = tn_arena_strdup(&p->arena, p->actor),
                   .what = tn_arena_strdup(&p->arena, what),
                   .key = tn_arena_strdup(&p->arena, key) },
    };
    if (!held)
        p->values[v].claim = p->n_claims;
    return &p->claims[held ? held : p->n_claims].claim;
}

static void api_set_opcode(struct tn_program *p, tn_op op, uint32_t opcode)
{
    const struct tn_op_kind *kind = tn_op_kind(opcode);
    if (!good_op(p, op))
        return;
    const struct tn_op_data *o = &p->ops[op];
    if (!kind || o->n_in < kind->min_in || o->n_in > kind->max_in || o->n_out != kind->n_out) {
        tn_program_error(p, op, "%s makes it %s, which takes other inputs or gives other outputs", p->actor,
                         kind ? kind->name : "an op that does not exist");
        return;
    }
    p->ops[op].opcode = opcode;
    if (kind->shape)
        kind->shape(p, op);
}

static void api_join_sums(struct tn_program *p, int32_t axis, uint64_t bytes)
{
    if (good_axis(p, axis) && bytes > 0)
        tn_join_sums(p, axis, bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX);
}

static const struct tn_program_edit_api edit_api = {
    .struct_size = sizeof edit_api,
    .at = api_at,
    .insert_before = api_insert_before,
    .value = api_value,
    .op = api_op,
    .last_op = tn_last_op,
    .output = api_output,
    .set_attr = api_set_attr,
    .set_input = api_set_input,
    .set_stage = api_set_stage,
    .replace_uses = api_replace_uses,
    .op_remove = api_op_remove,
    .op_move = api_op_move,
    .set_tag = api_set_tag,
    .set_flags = api_set_flags,
    .set_space = api_set_space,
    .set_init = api_set_init,
    .set_stored = api_set_stored,
    .place = api_place,
    .want = api_want,
    .parts_new = api_parts_new,
    .error = api_error,
    .op_copy = api_op_copy,
    .set_region = api_set_region,
    .set_kind = api_set_kind,
    .clear_flags = api_clear_flags,
    .value_copy = api_value_copy,
    .claim = api_claim,
    .set_opcode = api_set_opcode,
    .join_sums = api_join_sums,
};

const void *tn_program_api_get(const char *id)
{
    if (strcmp(id, "tn.program/1") == 0)
        return &read_api;
    if (strcmp(id, "tn.program_edit/1") == 0)
        return &edit_api;
    return NULL;
}
