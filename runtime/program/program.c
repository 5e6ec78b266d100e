/* Program: see program.h. Tables that grow in the program's arena, a doubly linked list of
 * ops, and a hash of value names. Who uses a value is in uses.c. */
#include "program/program.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "program/ops.h"

/* From one op's order to the next one's at the end of the list; and at most from an op's to that of one put behind it,
 * so that there is room for many that are put one after the other before a third. */
#define ORDER_STEP ((int64_t)1 << 32)
#define ORDER_SMALL_STEP ((int64_t)1 << 16)

struct tn_names {
    struct name_slot {
        uint32_t hash; /* of the name, so that names are read only where it is the same */
        tn_value v;    /* 0: empty */
    } * slot;
    size_t cap, used; /* cap is a power of two */
};

void tn_program_init(struct tn_program *p, const struct tn_mesh *mesh, const int32_t *coord)
{
    *p = (struct tn_program){ .mesh = mesh, .coord = coord, .at_layer = -1, .n_parts = 1, .actor = "" };
    tn_arena_init(&p->arena);
    p->names = tn_arena_alloc(&p->arena, sizeof *p->names);
    tn_uses_init(p);
    p->values = tn_arena_grow(&p->arena, NULL, sizeof *p->values, &p->cap_values, 64);
    p->ops = tn_arena_grow(&p->arena, NULL, sizeof *p->ops, &p->cap_ops, 64);
}

void tn_program_reserve(struct tn_program *p, size_t values, size_t ops)
{
    p->values = tn_arena_grow(&p->arena, p->values, sizeof *p->values, &p->cap_values, values + 2);
    p->ops = tn_arena_grow(&p->arena, p->ops, sizeof *p->ops, &p->cap_ops, ops + 2);
}

void tn_program_finish(struct tn_program *p)
{
    tn_arena_finish(&p->arena);
    *p = (struct tn_program){ 0 };
}

/* copies */

/* On axes of parts the coordinate with the largest of unequal shares; on an axis of stages this rank's. */
static int32_t *busiest_coord(struct tn_program *p, const int32_t *own)
{
    int32_t *coord = tn_arena_alloc(&p->arena, TN_MAX_AXES * sizeof *coord);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        const struct tn_parts *parts = NULL;
        for (tn_value v = 1; v <= p->n_values && !parts && !p->mesh->axis[axis].stages; v++)
            if (TN_PLACE_KIND(p->values[v].place[axis]) == TN_PLACE_SHARD && TN_PLACE_PARTS(p->values[v].place[axis]))
                parts = &p->parts[TN_PLACE_PARTS(p->values[v].place[axis])];
        coord[axis] = p->mesh->axis[axis].stages ? own[axis] : 0;
        for (int32_t i = 1; parts && i < parts->n; i++)
            if (parts->weights[i] > parts->weights[coord[axis]])
                coord[axis] = i;
    }
    return coord;
}

/* Strings stay the original's. */
void tn_program_copy_as(struct tn_program *copy, const struct tn_program *p, const int32_t *coord)
{
    *copy = *p;
    tn_arena_init(&copy->arena);
    copy->coord = coord;
    copy->values = tn_arena_copy(&copy->arena, p->values, p->cap_values * sizeof *p->values);
    copy->ops = tn_arena_copy(&copy->arena, p->ops, p->cap_ops * sizeof *p->ops);
    copy->claims = tn_arena_copy(&copy->arena, p->claims, p->cap_claims * sizeof *p->claims);
    copy->errors = NULL;
    copy->n_errors = copy->cap_errors = 0;
    copy->names = tn_arena_copy(&copy->arena, p->names, sizeof *p->names);
    copy->names->slot = tn_arena_copy(&copy->arena, p->names->slot, p->names->cap * sizeof *p->names->slot);
    tn_uses_copy(copy, p);
    for (tn_op op = 1; op <= p->n_ops; op++) {
        copy->ops[op].in = tn_arena_copy(&copy->arena, p->ops[op].in, p->ops[op].n_in * sizeof *p->ops[op].in);
        copy->ops[op].out = tn_arena_copy(&copy->arena, p->ops[op].out, p->ops[op].n_out * sizeof *p->ops[op].out);
    }
}

struct tn_program *tn_program_copy(const struct tn_program *p)
{
    struct tn_program *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    tn_program_copy_as(copy, p, NULL);
    copy->coord = busiest_coord(copy, p->coord);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
        if (p->mesh->axis[axis].stages)
            tn_program_note_coord(p, axis);
    return copy;
}

void tn_program_drop(struct tn_program *copy)
{
    if (copy)
        tn_program_finish(copy);
    free(copy);
}

/* names */

static uint32_t hash_of(const char *name)
{
    return (uint32_t)XXH3_64bits(name, strlen(name));
}

/* Where the name is, or an empty slot for it; `name` NULL: it is nowhere. */
static struct name_slot *slot_of(const struct tn_program *p, uint32_t hash, const char *name)
{
    const struct tn_names *names = p->names;
    size_t at = hash & (names->cap - 1);
    for (; names->slot[at].v; at = (at + 1) & (names->cap - 1))
        if (name && names->slot[at].hash == hash && strcmp(p->values[names->slot[at].v].name, name) == 0)
            break;
    return &names->slot[at];
}

tn_value tn_value_find(const struct tn_program *p, const char *name)
{
    return p->names->cap ? slot_of(p, hash_of(name), name)->v : 0;
}

static void name_add(struct tn_program *p, tn_value v)
{
    struct tn_names *names = p->names;
    if (2 * (names->used + 1) > names->cap) {
        struct tn_names old = *names;
        names->cap = old.cap ? 2 * old.cap : 256;
        names->slot = tn_arena_alloc(&p->arena, names->cap * sizeof *names->slot);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slot[i].v)
                *slot_of(p, old.slot[i].hash, NULL) = old.slot[i];
    }
    uint32_t hash = hash_of(p->values[v].name);
    struct name_slot *slot = slot_of(p, hash, p->values[v].name);
    if (slot->v) {
        tn_program_error(p, 0, "two values are named %s", p->values[v].name);
        return;
    }
    *slot = (struct name_slot){ .hash = hash, .v = v };
    names->used++;
}

/* values */

tn_value tn_value_new(struct tn_program *p, uint32_t kind, const char *name, uint32_t dtype, int32_t rank,
                      const int64_t *shape)
{
    assert(rank >= 0 && rank <= TN_MAX_DIMS);
    p->values = tn_arena_grow(&p->arena, p->values, sizeof *p->values, &p->cap_values, p->n_values + 2);
    tn_value v = ++p->n_values;
    p->values[v] = (struct tn_value_data){
        .name = tn_arena_strdup(&p->arena, name),
        .kind = kind,
        .dtype = dtype,
        .rank = rank,
        .tag = "",
        .layer = p->at_layer,
        .stage = p->at_stage,
    };
    for (int32_t d = 0; d < TN_MAX_DIMS; d++) {
        p->values[v].shape[d] = d < rank ? shape[d] : 1;
        p->values[v].dims[d] = "";
    }
    name_add(p, v);
    return v;
}

uint32_t tn_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case TN_##name: return bytes;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    default: return 0;
    }
}

int64_t tn_elements(const int64_t *shape, int32_t rank)
{
    int64_t n = 1;
    for (int32_t d = 0; d < rank; d++)
        n *= shape[d];
    return n;
}

/* Cuts [*offset, *offset + *extent) for one axis. */
static void cut(const struct tn_program *p, tn_placement placement, int32_t axis, int32_t coord, int64_t *extent,
                int64_t *offset)
{
    const struct tn_parts *parts = &p->parts[TN_PLACE_PARTS(placement)];
    int64_t size = p->mesh->axis[axis].size;
    if (TN_PLACE_PARTS(placement) == 0) {
        *extent /= size;
        *offset += coord * *extent;
        return;
    }
    int64_t unit = *extent / parts->sum, before = 0;
    for (int32_t i = 0; i < coord; i++)
        before += parts->weights[i];
    *offset += before * unit;
    *extent = parts->weights[coord] * unit;
}

/* Parts of a flat cut are equal but for padding at the end, which no part counts: the last ones may be short or
 * empty. */
static void cut_flat(int64_t size, int64_t coord, int64_t *n, int64_t *first)
{
    int64_t part = (*n + size - 1) / size, left = *n - coord * part;
    *first += coord * part;
    *n = left < 0 ? 0 : left < part ? left : part;
}

/* Part of a value that lies on the mesh as `place` says, for the rank at `coord`. */
static void part_of(const struct tn_program *p, const struct tn_value_data *value, const tn_placement *place,
                    const int32_t *coord, int32_t *rank, int64_t *extent, int64_t *start)
{
    int32_t n_axes = p->mesh->n_axes, flat_axes = 0;
    memcpy(extent, value->shape, sizeof value->shape);
    memset(start, 0, sizeof value->shape);
    for (int32_t axis = n_axes - 1; axis >= 0; axis--) { /* slower axes are the outer cuts */
        if (TN_PLACE_KIND(place[axis]) == TN_PLACE_SHARD)
            cut(p, place[axis], axis, coord[axis], &extent[TN_PLACE_DIM(place[axis])],
                &start[TN_PLACE_DIM(place[axis])]);
        flat_axes += TN_PLACE_KIND(place[axis]) == TN_PLACE_FLAT;
    }
    *rank = value->rank;
    if (!flat_axes)
        return;
    int64_t n = tn_elements(extent, value->rank), first = 0;
    for (int32_t axis = n_axes - 1; axis >= 0; axis--)
        if (TN_PLACE_KIND(place[axis]) == TN_PLACE_FLAT)
            cut_flat(p->mesh->axis[axis].size, coord[axis], &n, &first);
    for (int32_t d = 0; d < TN_MAX_DIMS; d++) {
        extent[d] = d ? 1 : n;
        start[d] = d ? 0 : first;
    }
    *rank = 1;
}

void tn_local(const struct tn_program *p, tn_value v, const int32_t *coord, int32_t *rank, int64_t *shape,
              int64_t *offset)
{
    int64_t extent[TN_MAX_DIMS], start[TN_MAX_DIMS];
    part_of(p, &p->values[v], p->values[v].place, coord, rank, extent, start);
    if (shape)
        memcpy(shape, extent, sizeof extent);
    if (offset)
        memcpy(offset, start, sizeof start);
}

int64_t tn_flat_part(const struct tn_program *p, tn_value v, int32_t axis)
{
    tn_placement whole[TN_MAX_AXES];
    int32_t rank;
    int64_t extent[TN_MAX_DIMS], start[TN_MAX_DIMS];
    memcpy(whole, p->values[v].place, sizeof whole);
    whole[axis] = TN_REPLICATE;
    part_of(p, &p->values[v], whole, p->coord, &rank, extent, start);
    return (tn_elements(extent, rank) + p->mesh->axis[axis].size - 1) / p->mesh->axis[axis].size;
}

int64_t tn_local_elements(const struct tn_program *p, tn_value v)
{
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];
    tn_local(p, v, p->coord, &rank, shape, NULL);
    return tn_elements(shape, rank);
}

/* ops */

/* Between those of its neighbours, which leave room for it, or all get new ones. */
static void set_order(struct tn_program *p, tn_op op)
{
    struct tn_op_data *o = &p->ops[op];
    if (!o->prev && !o->next)
        o->order = 0;
    else if (!o->prev || !o->next)
        o->order = o->prev ? p->ops[o->prev].order + ORDER_STEP : p->ops[o->next].order - ORDER_STEP;
    else {
        int64_t from = p->ops[o->prev].order, room = p->ops[o->next].order - from;
        if (room > 1)
            o->order = from + (room / 2 < ORDER_SMALL_STEP ? room / 2 : ORDER_SMALL_STEP);
        else
            tn_program_renumber(p);
    }
}

static void link_before(struct tn_program *p, tn_op op, tn_op before)
{
    struct tn_op_data *o = &p->ops[op];
    o->next = before;
    o->prev = before ? p->ops[before].prev : p->last;
    *(o->prev ? &p->ops[o->prev].next : &p->first) = op;
    *(before ? &p->ops[before].prev : &p->last) = op;
    o->linked = 1;
    set_order(p, op);
}

void tn_op_unlink(struct tn_program *p, tn_op op)
{
    struct tn_op_data *o = &p->ops[op];
    if (!o->linked)
        return;
    *(o->prev ? &p->ops[o->prev].next : &p->first) = o->next;
    *(o->next ? &p->ops[o->next].prev : &p->last) = o->prev;
    o->linked = 0;
}

void tn_op_move(struct tn_program *p, tn_op op, tn_op before)
{
    if (op == before)
        return;
    tn_op_unlink(p, op);
    link_before(p, op, before);
}

static tn_op op_add(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                    uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs)
{
    assert(n_attrs <= TN_MAX_ATTRS);
    p->ops = tn_arena_grow(&p->arena, p->ops, sizeof *p->ops, &p->cap_ops, p->n_ops + 2);
    tn_op op = ++p->n_ops;
    struct tn_op_data *o = &p->ops[op];
    *o = (struct tn_op_data){
        .opcode = opcode,
        .name = tn_arena_strdup(&p->arena, name),
        .region = p->at_region,
        .layer = p->at_layer,
        .stage = p->at_stage,
        .micro = -1,
        .tag = "",
        .n_in = n_in,
        .n_out = n_out,
        .n_attrs = n_attrs,
    };
    o->in = tn_arena_alloc(&p->arena, (n_in + 1) * sizeof *o->in);
    o->out = tn_arena_alloc(&p->arena, (n_out + 1) * sizeof *o->out);
    for (uint32_t i = 0; i < n_in; i++)
        o->in[i] = in[i];
    for (uint32_t i = 0; i < n_attrs; i++) {
        o->attrs[i] = attrs[i];
        o->attrs[i].key = tn_arena_strdup(&p->arena, attrs[i].key);
    }
    link_before(p, op, p->insert_before);
    tn_note_inputs(p, op);
    return op;
}

tn_op tn_op_raw(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                const tn_value *out, uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs)
{
    tn_op op = op_add(p, opcode, name, in, n_in, n_out, attrs, n_attrs);
    for (uint32_t i = 0; i < n_out; i++) {
        p->ops[op].out[i] = out[i];
        if (out[i]) {
            p->values[out[i]].def = op;
            p->values[out[i]].def_index = i;
        }
    }
    return op;
}

/* The checks of arity that shape rules rely on. */
static int arity_fits(struct tn_program *p, tn_op op, const struct tn_op_kind *kind)
{
    const struct tn_op_data *o = &p->ops[op];
    if (o->n_in < kind->min_in || o->n_in > kind->max_in) {
        tn_program_error(p, op, "has %u inputs; %s takes %s", o->n_in, kind->name, kind->ins);
        return 0;
    }
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] > p->n_values || (o->in[i] == 0 && i < kind->min_in)) {
            tn_program_error(p, op, "has no value for input %u of %s(%s)", i, kind->name, kind->ins);
            return 0;
        }
    return 1;
}

tn_value tn_op_new(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                   const struct tn_attr *attrs, uint32_t n_attrs)
{
    const struct tn_op_kind *kind = tn_op_kind(opcode);
    if (!kind) {
        tn_program_error(p, 0, "%s: there is no opcode %u", name, opcode);
        return 0;
    }
    tn_op op = op_add(p, opcode, name, in, n_in, kind->n_out, attrs, n_attrs);
    static const int64_t scalar[TN_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };
    for (uint32_t i = 0; i < kind->n_out; i++) {
        const char *out_name = i ? tn_arena_printf(&p->arena, "%s.%s", name, kind->out_names[i]) : name;
        tn_value v = tn_value_new(p, TN_KIND_ACTIVATION, out_name, TN_F32, 0, scalar);
        p->ops[op].out[i] = v;
        p->values[v].def = op;
        p->values[v].def_index = i;
    }
    if (arity_fits(p, op, kind) && kind->shape)
        kind->shape(p, op);
    return kind->n_out ? p->ops[op].out[0] : 0;
}

tn_op tn_last_op(const struct tn_program *p)
{
    return p->n_ops;
}

int tn_op_is_sum(const struct tn_program *p, tn_op op)
{
    return p->ops[op].opcode == TN_OP_ALL_REDUCE && tn_attr_i(p, op, "red", TN_RED_SUM) == TN_RED_SUM;
}

void tn_program_renumber(struct tn_program *p)
{
    int64_t order = 0;
    TN_EACH_OP(p, op)
        p->ops[op].order = order += ORDER_STEP;
}

/* attributes */

static const struct tn_attr *attr_find(const struct tn_program *p, tn_op op, const char *key)
{
    const struct tn_op_data *o = &p->ops[op];
    for (uint32_t i = 0; i < o->n_attrs; i++)
        if (strcmp(o->attrs[i].key, key) == 0)
            return &o->attrs[i];
    return NULL;
}

int64_t tn_attr_i(const struct tn_program *p, tn_op op, const char *key, int64_t missing)
{
    const struct tn_attr *attr = attr_find(p, op, key);
    return attr ? (attr->is_float ? (int64_t)attr->f : attr->i) : missing;
}

double tn_attr_f(const struct tn_program *p, tn_op op, const char *key, double missing)
{
    const struct tn_attr *attr = attr_find(p, op, key);
    return attr ? (attr->is_float ? attr->f : (double)attr->i) : missing;
}

void tn_attr_set(struct tn_program *p, tn_op op, const struct tn_attr *attr)
{
    struct tn_attr *found = (struct tn_attr *)attr_find(p, op, attr->key);
    if (!found) {
        if (p->ops[op].n_attrs == TN_MAX_ATTRS) {
            tn_program_error(p, op, "has no room for attribute %s", attr->key);
            return;
        }
        found = &p->ops[op].attrs[p->ops[op].n_attrs++];
        *found = *attr;
        found->key = tn_arena_strdup(&p->arena, attr->key);
        return;
    }
    found->is_float = attr->is_float;
    found->i = attr->i;
    found->f = attr->f;
}

/* errors */

void tn_program_error(struct tn_program *p, tn_op op, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const struct tn_op_kind *kind = op ? tn_op_kind(p->ops[op].opcode) : NULL;
    p->errors = tn_arena_grow(&p->arena, p->errors, sizeof *p->errors, &p->cap_errors, p->n_errors + 1);
    p->errors[p->n_errors++] =
        op ? tn_arena_printf(&p->arena, "%s = %s: %s", p->ops[op].name, kind ? kind->name : "?", text)
           : tn_arena_strdup(&p->arena, text);
}
