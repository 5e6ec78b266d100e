/* Verify: the invariants of a program, checked after every arrow of the flow.
 *
 *                                                                model grad place resolve lower schedule bound
 *   names     unique, not empty, not _                             x    x     x      x      x      x      x
 *   types     kind, dtype, rank, space and init are known; sizes   x    x     x      x      x      x      x
 *             are at least 1; like, grad_of and stored fit
 *   ops       opcode and region are known; inputs and outputs      x    x     x      x      x      x      x
 *             as many as the op's kind has, required ones present
 *   attrs     known to the kind, once each, whole where the kind   x    x     x      x      x      x      x
 *             says so; axis, dim, root and peer are there
 *   defs      one op makes a value; it stands before all users;    x    x     x      x      x      x      x
 *             what no op makes is param, input, const, state or
 *             accumulator
 *   regions   no op uses a value of a later region; step uses      x    x     x      x      x      x      x
 *             of forward, backward and weight only accumulators
 *   memory    an input whose memory an output takes over has       x    x     x      x      x      x      x
 *             the output's type, and no op uses it afterwards
 *   shapes    each output is what the shape rule says              x    x     x      x      x      x      x
 *   spaces    what is not on the device is touched by offload and  x    x     x      x      x      x      x
 *             fetch alone
 *   placed    a placement exists: its dimension, its parts table,  x    x     x      x      x      x      x
 *             its reduction; cuts are whole, at least 1 element
 *   roots     one loss, an f32 scalar, or an output                x    x     x      x
 *   micro     ops have no micro-batch                              x    x     x      x      x
 *   pins      what a plugin pinned is placed                                  x      x      x      x      x
 *   decided   each value has a placement on each axis                                x      x      x      x
 *   rows      each op's placements on an axis are a row of its                       x      x      x      x
 *             rule: no partial meets a non-linear op; memory
 *             that is taken over lies as before
 *   unrolled  forward, backward and weight ops have a micro-                                       x      x
 *             batch, and use values of no other but accumulators
 *
 * All problems are reported, up to MOST_REPORTS; each names the op, its values and what would work. */
#include "program/verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "program/program_text.h"

enum { MOST_REPORTS = 40 };

/* Elements of a value are fewer than this, so that no count of bytes overflows. */
#define MOST_ELEMENTS ((int64_t)1 << 52)

static const char *const stages[] = { "model", "grad", "place", "resolve", "lower", "schedule", "bound" };

static int stage_of(const char *after)
{
    size_t length = strcspn(after, ":"); /* "place:tp" is place */
    for (int stage = 0; stage < TN_AFTER_END; stage++)
        if (strlen(stages[stage]) == length && strncmp(stages[stage], after, length) == 0)
            return stage;
    return -1;
}

void tn_verify_report(struct tn_verify *vf, tn_op op, const char *fmt, ...)
{
    if (vf->found++ >= MOST_REPORTS)
        return;
    char text[1536];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tn_program_error(vf->p, op, "%s", text);
}

const char *tn_verify_value(const struct tn_program *p, tn_value v, char text[TN_VERIFY_TEXT])
{
    const struct tn_value_data *value = tn_val(p, v);
    int n = snprintf(text, TN_VERIFY_TEXT, "%.100s %s[", value->name, tn_dtype_name(value->dtype));
    for (int32_t d = 0; d < value->rank && d < TN_MAX_DIMS; d++)
        n += snprintf(text + n, (size_t)(TN_VERIFY_TEXT - n), "%s%" PRId64, d ? ", " : "", value->shape[d]);
    snprintf(text + n, (size_t)(TN_VERIFY_TEXT - n), "]");
    return text;
}

static const char *name_of(const struct tn_verify *vf, tn_value v)
{
    return v && v <= vf->p->n_values ? tn_val(vf->p, v)->name : "_";
}

/* "layers.0.attn.q (linear)" */
static const char *op_text(const struct tn_program *p, tn_op op, char text[TN_VERIFY_TEXT])
{
    const struct tn_op_kind *kind = tn_op_kind(tn_opd(p, op)->opcode);
    snprintf(text, TN_VERIFY_TEXT, "%.160s (%.60s)", tn_opd(p, op)->name, kind ? kind->name : "?");
    return text;
}

/* Which values the program has. */
static void find_live(struct tn_verify *vf)
{
    const struct tn_program *p = vf->p;
    for (tn_value v = 1; v <= p->n_values; v++)
        vf->live[v] = tn_val(p, v)->def == 0 && tn_val(p, v)->kind != TN_KIND_ACTIVATION;
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = tn_opd(p, op);
        for (uint32_t i = 0; i < o->n_in; i++)
            if (o->in[i] <= p->n_values)
                vf->live[o->in[i]] = 1;
        for (uint32_t i = 0; i < o->n_out; i++)
            if (o->out[i] <= p->n_values) {
                vf->live[o->out[i]] = 1;
                vf->def[o->out[i]] = op;
            }
    }
    vf->live[0] = 0;
}

/* names and types */

static void bad_value(struct tn_verify *vf, tn_value v, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void bad_value(struct tn_verify *vf, tn_value v, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    vf->bad_value[v] = 1;
    tn_verify_report(vf, vf->def[v], "%.160s %s", tn_val(vf->p, v)->name, text);
}

static void check_name(struct tn_verify *vf, tn_value v)
{
    const char *name = tn_val(vf->p, v)->name;
    if (!name[0] || strcmp(name, "_") == 0)
        bad_value(vf, v, "is no name; a value needs one that is not empty and not _");
    else if (tn_value_find(vf->p, name) != v)
        bad_value(vf, v, "is the name of two values; names are unique");
}

static void check_type(struct tn_verify *vf, tn_value v)
{
    const struct tn_value_data *value = tn_val(vf->p, v);
    if (!tn_kind_name(value->kind))
        bad_value(vf, v, "has kind %u, which is none", value->kind);
    if (!tn_dtype_bytes(value->dtype))
        bad_value(vf, v, "has dtype %u, which is none", value->dtype);
    if (value->space > TN_SPACE_DISK)
        bad_value(vf, v, "has space %u; there are device, host and disk", value->space);
    if (value->init > TN_INIT_NORMAL)
        bad_value(vf, v, "has init %u; there are zeros, ones and normal", value->init);
    if (value->rank < 0 || value->rank > TN_MAX_DIMS) {
        bad_value(vf, v, "has %d dimensions; 0 to %d may be", value->rank, TN_MAX_DIMS);
        return;
    }
    int64_t left = MOST_ELEMENTS;
    for (int32_t d = 0; d < value->rank; d++) {
        if (value->shape[d] < 1)
            bad_value(vf, v, "has size %" PRId64 " in dimension %d; sizes are at least 1", value->shape[d], d);
        else
            left /= value->shape[d];
    }
    if (left == 0)
        bad_value(vf, v, "has 2^52 elements or more");
}

static void check_links(struct tn_verify *vf, tn_value v)
{
    const struct tn_program *p = vf->p;
    const struct tn_value_data *value = tn_val(p, v);
    if (value->like > p->n_values || value->grad_of > p->n_values) {
        bad_value(vf, v, "belongs to a value that does not exist");
        return;
    }
    if (value->like && tn_val(p, value->like)->kind != TN_KIND_PARAM)
        bad_value(vf, v, "is like %.160s, which is no param", name_of(vf, value->like));
    if (!value->stored.name)
        return;
    int32_t dim = value->stored.dim;
    if (dim < 0 || dim >= value->rank)
        bad_value(vf, v, "is stored as a part of dimension %d of %.160s, but has %d dimensions", dim,
                  value->stored.name, value->rank);
    else if (value->stored.offset < 0 || value->stored.full > MOST_ELEMENTS ||
             value->shape[dim] > value->stored.full - value->stored.offset)
        bad_value(vf, v,
                  "is stored from %" PRId64 " on in dimension %d of %.160s, which has %" PRId64 " elements; it needs "
                  "%" PRId64,
                  value->stored.offset, dim, value->stored.name, value->stored.full, value->shape[dim]);
}

static void check_values(struct tn_verify *vf)
{
    for (tn_value v = 1; v <= vf->p->n_values; v++) {
        if (!vf->live[v])
            continue;
        check_name(vf, v);
        check_type(vf, v);
        if (!vf->bad_value[v])
            check_links(vf, v);
    }
}

/* ops and attributes */

static void bad_op(struct tn_verify *vf, tn_op op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void bad_op(struct tn_verify *vf, tn_op op, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    vf->bad_op[op] = 1;
    tn_verify_report(vf, op, "%s", text);
}

static void check_arity(struct tn_verify *vf, tn_op op, const struct tn_op_kind *kind)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    if (o->n_in < kind->min_in || o->n_in > kind->max_in)
        bad_op(vf, op, "has %u inputs; it takes %s(%s)", o->n_in, kind->name, kind->ins);
    if (o->n_out != kind->n_out)
        bad_op(vf, op, "has %u outputs; it gives %u: %s", o->n_out, kind->n_out, kind->n_out ? kind->outs : "none");
    int variadic = kind->max_in == UINT32_MAX;
    for (uint32_t i = 0; i < o->n_in; i++) {
        const char *input = variadic ? kind->ins : i < kind->n_in_names ? kind->in_names[i] : "?";
        if (o->in[i] > vf->p->n_values)
            bad_op(vf, op, "input %s is value %u, which does not exist", input, o->in[i]);
        else if (!o->in[i] && (variadic || i < kind->min_in))
            bad_op(vf, op, "input %s is absent, but not optional: %s(%s)", input, kind->name, kind->ins);
    }
    for (uint32_t i = 0; i < o->n_out; i++)
        if (!o->out[i] || o->out[i] > vf->p->n_values)
            bad_op(vf, op, "output %u is value %u, which does not exist", i, o->out[i]);
}

/* Is `key` a word of the kind's attrs? Sets *is_float. */
static int attr_known(const struct tn_op_kind *kind, const char *key, int *is_float)
{
    for (const char *at = kind->attrs ? kind->attrs : ""; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        *is_float = *at == '!';
        if (strlen(key) == length - (size_t)*is_float && strncmp(at + *is_float, key, strlen(key)) == 0)
            return 1;
        at += length;
    }
    return 0;
}

static void check_attrs(struct tn_verify *vf, tn_op op, const struct tn_op_kind *kind)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    for (uint32_t i = 0; i < o->n_attrs; i++) {
        const char *key = o->attrs[i].key;
        int is_float;
        if (!attr_known(kind, key, &is_float))
            bad_op(vf, op, "has attribute %.80s; %s has %s", key, kind->name,
                   kind->attrs && kind->attrs[0] ? kind->attrs : "none");
        else if (o->attrs[i].is_float && !is_float)
            bad_op(vf, op, "has %.80s=%g; it must be a whole number", key, o->attrs[i].f);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(o->attrs[k].key, key) == 0)
                bad_op(vf, op, "has attribute %.80s twice", key);
    }
}

/* What a collective's numbers point to. */
static void check_comm(struct tn_verify *vf, tn_op op, const struct tn_op_kind *kind)
{
    static const char *const dims[] = { "dim", "from", "to" }, *const coords[] = { "root", "peer" };
    const struct tn_program *p = vf->p;
    int is_float;
    if (!attr_known(kind, "axis", &is_float) || vf->bad_op[op])
        return;
    int64_t axis = tn_attr_i(p, op, "axis", -1);
    if (axis < 0 || axis >= p->mesh->n_axes) {
        bad_op(vf, op, "has axis=%" PRId64 "; the mesh has %d axes, counted from 0", axis, p->mesh->n_axes);
        return;
    }
    for (size_t i = 0; i < sizeof coords / sizeof *coords; i++) {
        int64_t at = tn_attr_i(p, op, coords[i], 0);
        if (at < 0 || at >= p->mesh->axis[axis].size)
            bad_op(vf, op, "has %s=%" PRId64 "; %s has %d ranks, counted from 0", coords[i], at,
                   p->mesh->axis[axis].name, p->mesh->axis[axis].size);
    }
    int64_t channel = tn_attr_i(p, op, "channel", 0);
    if (channel < 0 || channel >= TN_MAX_CHANNELS)
        bad_op(vf, op, "has channel=%" PRId64 "; there are 0 to %d", channel, TN_MAX_CHANNELS - 1);
    int32_t rank = tn_opd(p, op)->n_in && tn_opd(p, op)->in[0] ? tn_val(p, tn_opd(p, op)->in[0])->rank : TN_MAX_DIMS;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int64_t dim = tn_attr_i(p, op, dims[i], i ? 0 : -1);
        if (attr_known(kind, dims[i], &is_float) && (dim < (i ? 0 : -1) || dim >= rank))
            bad_op(vf, op, "has %s=%" PRId64 "; %.160s has %d dimensions, counted from 0", dims[i], dim,
                   name_of(vf, tn_opd(p, op)->in[0]), rank);
    }
}

static void check_ops(struct tn_verify *vf)
{
    struct tn_alike *alike = tn_alike_new(&vf->memory);
    TN_EACH_OP(vf->p, op) {
        const struct tn_op_data *o = tn_opd(vf->p, op);
        const struct tn_op_kind *kind = tn_op_kind(o->opcode);
        if (!kind) {
            bad_op(vf, op, "has opcode %u, which no plugin registered", o->opcode);
            continue;
        }
        if (!tn_region_name(o->region))
            bad_op(vf, op, "is in region %u; there are prologue, forward, backward, weight and step", o->region);
        if (o->layer < -1 || o->stage < -1)
            bad_op(vf, op, "has layer %d and stage %d; both are at least -1", o->layer, o->stage);
        check_arity(vf, op, kind);
        vf->first[op] = vf->bad_op[op] ? op : tn_alike_first(alike, &vf->memory, vf->p, op);
        if (tn_verify_is_known(vf, op))
            continue;
        check_attrs(vf, op, kind);
        check_comm(vf, op, kind);
    }
    tn_alike_finish(alike);
}

/* definitions, regions, memory */

/* May an op of this region and micro-batch see what `def` made? */
static void check_region(struct tn_verify *vf, tn_op op, tn_value v, tn_op def)
{
    const struct tn_op_data *user = tn_opd(vf->p, op), *maker = tn_opd(vf->p, def);
    char text[TN_VERIFY_TEXT];
    int accumulates = tn_val(vf->p, v)->kind == TN_KIND_ACCUMULATOR;
    if (vf->bad_op[op] || vf->bad_op[def])
        return;
    int earlier_micro = accumulates && maker->micro >= 0 && user->micro >= 0 && maker->micro != user->micro;
    if (tn_region_turn(maker->region) > tn_region_turn(user->region) && !earlier_micro)
        tn_verify_report(vf, op, "is in %s and uses %.160s, which %s makes in %s", tn_region_name(user->region),
                         name_of(vf, v), op_text(vf->p, def, text), tn_region_name(maker->region));
    else if (user->region == TN_REGION_STEP && tn_region_per_micro(maker->region) && !accumulates)
        tn_verify_report(vf, op,
                         "is in step and uses %.160s, which %s makes once for each micro-batch; accumulate it first",
                         name_of(vf, v), op_text(vf->p, def, text));
    else if (tn_region_per_micro(user->region) && tn_region_per_micro(maker->region) && user->micro != maker->micro &&
             !accumulates)
        tn_verify_report(vf, op, "belongs to micro-batch %d and uses %.160s, which %s makes for micro-batch %d",
                         user->micro, name_of(vf, v), op_text(vf->p, def, text), maker->micro);
}

static void check_use(struct tn_verify *vf, tn_op op, tn_value v, const tn_op *taken)
{
    char text[TN_VERIFY_TEXT];
    tn_op def = vf->def[v];
    if (!def) {
        if (tn_val(vf->p, v)->kind == TN_KIND_ACTIVATION)
            tn_verify_report(vf, op, "uses %.160s, which no op makes", name_of(vf, v));
    } else if (tn_opd(vf->p, def)->order >= tn_opd(vf->p, op)->order) {
        tn_verify_report(vf, op, "uses %.160s before %s makes it", name_of(vf, v), op_text(vf->p, def, text));
    } else {
        check_region(vf, op, v, def);
    }
    if (taken[v])
        tn_verify_report(vf, op, "uses %.160s after %s took over its memory; use that op's output instead",
                         name_of(vf, v), op_text(vf->p, taken[v], text));
}

static void check_making(struct tn_verify *vf, tn_op op, tn_op *made)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    char text[TN_VERIFY_TEXT];
    for (uint32_t i = 0; i < o->n_out; i++) {
        tn_value v = o->out[i];
        if (!v || v > vf->p->n_values)
            continue;
        if (made[v])
            tn_verify_report(vf, op, "makes %.160s, which %s makes already; give it an output of its own",
                             name_of(vf, v), op_text(vf->p, made[v], text));
        else if (vf->def[v] == op && (tn_val(vf->p, v)->def != op || tn_val(vf->p, v)->def_index != i))
            tn_verify_report(vf, op, "makes %.160s, whose record says otherwise", name_of(vf, v));
        made[v] = op;
    }
}

/* An output that is an input's memory: of one type, and the input is gone afterwards. */
static void check_taking(struct tn_verify *vf, tn_op op, tn_op *taken)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    const struct tn_op_kind *kind = tn_op_kind(o->opcode);
    char text[TN_VERIFY_TEXT], other[TN_VERIFY_TEXT];
    for (uint32_t i = 0; !vf->bad_op[op] && i < o->n_out && i < TN_OP_MOST_FIXED; i++) {
        int in = kind->must_alias[i];
        if (in < 0 || (uint32_t)in >= o->n_in || !o->in[in])
            continue;
        const struct tn_value_data *from = tn_val(vf->p, o->in[in]), *to = tn_val(vf->p, o->out[i]);
        if (from->dtype != to->dtype || from->rank != to->rank || memcmp(from->shape, to->shape, sizeof to->shape) != 0)
            tn_verify_report(vf, op, "takes over the memory of %s for %s; their types must be equal",
                             tn_verify_value(vf->p, o->in[in], text), tn_verify_value(vf->p, o->out[i], other));
        if (from->flags & TN_VALUE_OUTPUT)
            tn_verify_report(vf, op, "takes over the memory of %.160s, which the host reads after the step",
                             name_of(vf, o->in[in]));
        taken[o->in[in]] = op;
    }
}

static void check_micro(struct tn_verify *vf, tn_op op)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    if (vf->after >= TN_AFTER_SCHEDULE && tn_region_per_micro(o->region) && o->micro < 0)
        tn_verify_report(vf, op,
                         "has no micro-batch; after schedule each op of forward, backward and weight belongs to one");
    else if (o->micro != -1 && !(vf->after >= TN_AFTER_SCHEDULE && tn_region_per_micro(o->region)))
        tn_verify_report(
            vf, op, "has micro-batch %d; only ops of forward, backward and weight have one, and only after schedule",
            o->micro);
}

static void check_defs(struct tn_verify *vf)
{
    size_t n = (size_t)vf->p->n_values + 1;
    tn_op *made = tn_arena_alloc(&vf->memory, 2 * n * sizeof *made), *taken = made + n;
    TN_EACH_OP(vf->p, op) {
        const struct tn_op_data *o = tn_opd(vf->p, op);
        for (uint32_t i = 0; i < o->n_in; i++)
            if (o->in[i] && o->in[i] <= vf->p->n_values)
                check_use(vf, op, o->in[i], taken);
        check_making(vf, op, made);
        check_taking(vf, op, taken);
        check_micro(vf, op);
    }
}

/* shapes */

static int inputs_bad(const struct tn_verify *vf, tn_op op)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    for (uint32_t i = 0; i < o->n_in; i++)
        if (vf->bad_value[o->in[i]])
            return 1;
    for (uint32_t i = 0; i < o->n_out; i++)
        if (vf->bad_value[o->out[i]])
            return 1;
    return 0;
}

/* Runs the shape rule again on outputs set aside, and compares. */
static void check_shape(struct tn_verify *vf, tn_op op, const struct tn_op_kind *kind)
{
    struct tn_program *p = vf->p;
    const struct tn_op_data *o = tn_opd(p, op);
    struct tn_value_data stated[TN_OP_MOST_FIXED], ruled[TN_OP_MOST_FIXED];
    size_t errors = p->n_errors;
    for (uint32_t i = 0; i < o->n_out; i++)
        stated[i] = *tn_val(p, o->out[i]);
    kind->shape(p, op);
    for (uint32_t i = 0; i < o->n_out; i++) {
        ruled[i] = *tn_val(p, o->out[i]);
        *tn_val(p, o->out[i]) = stated[i];
    }
    if (p->n_errors > errors) {
        vf->bad_op[op] = 1;
        vf->found += p->n_errors - errors;
        return;
    }
    for (uint32_t i = 0; i < o->n_out; i++) {
        if (stated[i].dtype == ruled[i].dtype && stated[i].rank == ruled[i].rank && stated[i].space == ruled[i].space &&
            memcmp(stated[i].shape, ruled[i].shape, sizeof ruled[i].shape) == 0)
            continue;
        char text[TN_VERIFY_TEXT], rule[TN_VERIFY_TEXT];
        tn_verify_value(p, o->out[i], text);
        *tn_val(p, o->out[i]) = ruled[i];
        tn_verify_value(p, o->out[i], rule);
        *tn_val(p, o->out[i]) = stated[i];
        if (stated[i].space != ruled[i].space)
            bad_op(vf, op, "gives %s in space %s; by its shape rule it is in space %s", text,
                   tn_space_names[stated[i].space], tn_space_names[ruled[i].space % 3]);
        else
            bad_op(vf, op, "gives %s; by its shape rule it is %s", text, rule + strcspn(rule, " ") + 1);
    }
}

static void check_shapes(struct tn_verify *vf)
{
    TN_EACH_OP(vf->p, op) {
        const struct tn_op_kind *kind = tn_op_kind(tn_opd(vf->p, op)->opcode);
        if (vf->bad_op[op])
            continue;
        if (inputs_bad(vf, op))
            vf->bad_op[op] = 1;
        else if (kind->shape && !tn_verify_is_known(vf, op))
            check_shape(vf, op, kind);
    }
}

/* spaces */

static void check_spaces(struct tn_verify *vf)
{
    const struct tn_program *p = vf->p;
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = tn_opd(p, op);
        if (vf->bad_op[op] || o->opcode == TN_OP_OFFLOAD || o->opcode == TN_OP_FETCH)
            continue;
        for (uint32_t i = 0; i < o->n_in + o->n_out; i++) {
            tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
            if (v && tn_val(p, v)->space != TN_SPACE_DEVICE)
                tn_verify_report(vf, op, "%s %.160s, which is in space %s; %s", i < o->n_in ? "uses" : "makes",
                                 name_of(vf, v), tn_space_names[tn_val(p, v)->space],
                                 i < o->n_in ? "put a fetch between"
                                             : "make it on the device and put an offload behind");
        }
    }
}

/* roots */

static void check_roots(struct tn_verify *vf)
{
    const struct tn_program *p = vf->p;
    tn_value loss = 0, removed = 0;
    int outputs = 0;
    for (tn_value v = 1; v <= p->n_values; v++) {
        const struct tn_value_data *value = tn_val(p, v);
        if (!(value->flags & (TN_VALUE_LOSS | TN_VALUE_OUTPUT)))
            continue;
        if (!vf->live[v]) {
            removed = v;
            continue;
        }
        outputs += (value->flags & TN_VALUE_OUTPUT) != 0;
        if (!(value->flags & TN_VALUE_LOSS))
            continue;
        if (loss)
            tn_verify_report(vf, vf->def[v], "two values are the loss: %.160s and %.160s; flag one", name_of(vf, loss),
                             name_of(vf, v));
        else if (value->rank != 0 || value->dtype != TN_F32)
            tn_verify_report(vf, vf->def[v], "the loss %.160s must be f32[], a sum over the target tokens",
                             name_of(vf, v));
        loss = v;
    }
    if (!loss && !outputs)
        tn_verify_report(vf, 0,
                         removed ? "%.160s is the loss or an output, but the op that made it was removed"
                                 : "no value is flagged as loss or output: nothing comes out of the program%.0s",
                         name_of(vf, removed));
}

size_t tn_program_verify(struct tn_program *p, const char *after)
{
    struct tn_verify vf = { .p = p, .after = stage_of(after) };
    if (vf.after < 0) {
        tn_program_error(
            p, 0, "there is no stage %.80s; there are model, grad, place, resolve, lower, schedule and bound", after);
        return 1;
    }
    size_t values = (size_t)p->n_values + 1, ops = (size_t)p->n_ops + 1;
    tn_arena_init(&vf.memory);
    vf.def = tn_arena_alloc(&vf.memory, values * sizeof *vf.def);
    vf.first = tn_arena_alloc(&vf.memory, ops * sizeof *vf.first);
    vf.live = tn_arena_alloc(&vf.memory, 2 * values + ops);
    vf.bad_value = vf.live + values;
    vf.bad_op = vf.bad_value + values;
    tn_program_renumber(p);
    find_live(&vf);
    check_values(&vf);
    check_ops(&vf);
    check_defs(&vf);
    tn_verify_placements(&vf);
    check_shapes(&vf);
    check_spaces(&vf);
    if (vf.after <= TN_AFTER_RESOLVE)
        check_roots(&vf);
    if (vf.after >= TN_AFTER_RESOLVE)
        tn_verify_rows(&vf);
    if (vf.found > MOST_REPORTS)
        tn_program_error(p, 0, "and %zu more", vf.found - MOST_REPORTS);
    tn_arena_finish(&vf.memory);
    return vf.found;
}
