/* Verify, placements: what is said of values and ops on the axes of the mesh (verify.c has the list of invariants).
 *
 * Reads the same rows of the placement rules as resolve, so what resolve chose, a strategy's lowering changed or a
 * text stated are held to one table. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "passes/passes.h"
#include "passes/resolve.h"
#include "program/verify.h"

enum { PLACE_TEXT = 48, MOST_WORKING = 8, MOST_ROWS_SHOWN = 6 };

static const char *axis_name(const struct tn_verify *vf, int32_t axis)
{
    return vf->p->mesh->axis[axis].name;
}

/* values */

static void bad(struct tn_verify *vf, tn_value v, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void bad(struct tn_verify *vf, tn_value v, const char *fmt, ...)
{
    char text[512], value[TN_VERIFY_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    vf->bad_value[v] = 1;
    tn_verify_report(vf, vf->def[v], "%s %s", tn_verify_value(vf->p, v, value), text);
}

/* A placement that can be, as far as its own word and the value's rank say. */
static int check_word(struct tn_verify *vf, tn_value v, int32_t axis, tn_placement placement, const char *verb)
{
    uint32_t kind = TN_PLACE_KIND(placement), parts = TN_PLACE_PARTS(placement);
    int32_t rank = tn_val(vf->p, v)->rank, size = vf->p->mesh->axis[axis].size;
    const char *name = axis_name(vf, axis);
    int known = kind == TN_PLACE_SHARD     ? TN_PLACE_ORDER(placement) <= TN_ORDER_ZIGZAG
                : kind == TN_PLACE_PARTIAL ? placement == TN_PARTIAL(TN_RED_SUM) || placement == TN_PARTIAL(TN_RED_MAX)
                                           : placement == kind && kind <= TN_PLACE_FLAT;
    if (!known)
        bad(vf, v,
            "%s 0x%08x on %s, which is no placement; there are replicate, shard, flat, partial(sum) and "
            "partial(max)",
            verb, placement, name);
    else if (kind == TN_PLACE_SHARD && rank == 0)
        bad(vf, v, "%s shard(%d) on %s, but a scalar cannot be cut; use replicate", verb, TN_PLACE_DIM(placement),
            name);
    else if (kind == TN_PLACE_SHARD && TN_PLACE_DIM(placement) >= rank)
        bad(vf, v, "%s shard(%d) on %s, but has dimensions 0 to %d", verb, TN_PLACE_DIM(placement), name, rank - 1);
    else if (kind == TN_PLACE_FLAT && rank == 0)
        bad(vf, v, "%s flat on %s, but a scalar cannot be cut; use replicate", verb, name);
    else if (parts >= vf->p->n_parts && parts)
        bad(vf, v, "%s parts table %u on %s; there are %u", verb, parts, name, vf->p->n_parts - 1);
    else if (parts && vf->p->parts[parts].n != size)
        bad(vf, v, "%s parts table %u on %s, which has %d weights for %d ranks", verb, parts, name,
            vf->p->parts[parts].n, size);
    else
        return 1;
    return 0;
}

/* The sizes of an axis by which `left` elements could be cut: "1, 2 or 4". */
static void working_sizes(int64_t left, int64_t pieces_per_rank, struct tn_buf *buf)
{
    int n = 0;
    for (int64_t size = 1; size <= 65536 && size * pieces_per_rank <= left && n < MOST_WORKING; size++)
        if (left % (size * pieces_per_rank) == 0)
            tn_buf_printf(buf, "%s%" PRId64, n++ ? ", " : "", size);
    if (n == 0)
        tn_buf_printf(buf, "none");
}

static void bad_cut(struct tn_verify *vf, tn_value v, int32_t axis, int64_t left)
{
    const struct tn_value_data *value = tn_val(vf->p, v);
    tn_placement place = value->place[axis];
    int32_t dim = TN_PLACE_DIM(place), size = vf->p->mesh->axis[axis].size;
    const char *label = value->dims[dim] && value->dims[dim][0] ? value->dims[dim] : "unnamed";
    char outer[64] = "";
    if (left != value->shape[dim])
        snprintf(outer, sizeof outer, " (%" PRId64 " after slower axes)", left);
    if (TN_PLACE_PARTS(place)) {
        bad(vf, v,
            "has %" PRId64 " elements in dimension %d (%.60s)%s, which the weights of parts table %u, %" PRId64
            " in sum, do not divide; use weights whose sum does",
            value->shape[dim], dim, label, outer, TN_PLACE_PARTS(place), vf->p->parts[TN_PLACE_PARTS(place)].sum);
        return;
    }
    struct tn_buf sizes;
    int zigzag = TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG;
    tn_buf_init(&sizes);
    working_sizes(left, zigzag ? 2 : 1, &sizes);
    bad(vf, v,
        "has %" PRId64 " elements in dimension %d (%.60s)%s, which %s%s = %d does not divide; sizes of %s that "
        "would: %s",
        value->shape[dim], dim, label, outer, zigzag ? "zigzag order over twice " : "", axis_name(vf, axis), size,
        axis_name(vf, axis), sizes.text);
    tn_buf_finish(&sizes);
}

/* Elements of a dimension that every part is a multiple of once `axis` has cut `left`; 0 if it does not divide. */
static int64_t cut(const struct tn_program *p, int32_t axis, tn_placement place, int64_t left)
{
    int64_t size = p->mesh->axis[axis].size;
    if (!TN_PLACE_PARTS(place)) {
        int64_t pieces = TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG ? 2 * size : size;
        return left % pieces ? 0 : left / size;
    }
    const struct tn_parts *parts = &p->parts[TN_PLACE_PARTS(place)];
    if (parts->sum < 1 || left % parts->sum)
        return 0;
    int64_t common = 0;
    for (int32_t i = 0; i < parts->n; i++) {
        int64_t a = parts->weights[i], b = common;
        while (b) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        common = a;
    }
    return left / parts->sum * common;
}

/* Slower axes are the outer cuts; each must leave whole parts. */
static void check_cuts(struct tn_verify *vf, tn_value v)
{
    const struct tn_value_data *value = tn_val(vf->p, v);
    int64_t left[TN_MAX_DIMS];
    memcpy(left, value->shape, sizeof left);
    for (int32_t axis = vf->p->mesh->n_axes - 1; axis >= 0; axis--) {
        if (TN_PLACE_KIND(value->place[axis]) != TN_PLACE_SHARD)
            continue;
        int32_t dim = TN_PLACE_DIM(value->place[axis]);
        int64_t part = cut(vf->p, axis, value->place[axis], left[dim]);
        if (part == 0) {
            bad_cut(vf, v, axis, left[dim]);
            return;
        }
        left[dim] = part;
    }
}

static void check_value(struct tn_verify *vf, tn_value v)
{
    const struct tn_value_data *value = tn_val(vf->p, v);
    int known = 1;
    for (int32_t axis = 0; axis < TN_MAX_AXES; axis++) {
        if (axis >= vf->p->mesh->n_axes) {
            if (value->place[axis] || value->want[axis])
                bad(vf, v, "is placed on axis %d; the mesh has %d axes, counted from 0", axis, vf->p->mesh->n_axes);
            continue;
        }
        known &= check_word(vf, v, axis, value->place[axis], "is");
        known &= check_word(vf, v, axis, value->want[axis], "is wanted");
        if (value->placed_by[axis] && !value->place[axis] && vf->after >= TN_AFTER_PLACE)
            bad(vf, v, "was pinned on %s by %.80s and has no placement there now", axis_name(vf, axis),
                value->placed_by[axis]);
        else if (!value->place[axis] && vf->after >= TN_AFTER_RESOLVE)
            bad(vf, v, "has no placement on %s; after resolve each value has one on each axis", axis_name(vf, axis));
    }
    if (known)
        check_cuts(vf, v);
}

static int parts_possible(struct tn_verify *vf)
{
    int possible = 1;
    for (uint32_t i = 1; i < vf->p->n_parts; i++)
        for (int32_t k = 0; k < vf->p->parts[i].n; k++)
            if (vf->p->parts[i].weights[k] < 1) {
                tn_verify_report(vf, 0, "parts table %u has weight %" PRId64 "; weights are at least 1", i,
                                 vf->p->parts[i].weights[k]);
                possible = 0;
            }
    return possible;
}

void tn_verify_placements(struct tn_verify *vf)
{
    int possible = parts_possible(vf);
    for (tn_value v = 1; v <= vf->p->n_values; v++) {
        if (!vf->live[v] || vf->bad_value[v])
            continue;
        if (possible)
            check_value(vf, v);
        else
            vf->bad_value[v] = 1;
    }
}

/* ops */

static tn_placement row_in(const struct tn_row *row, uint32_t i)
{
    return row->in[i < TN_OP_MOST_FIXED ? i : 0]; /* inputs beyond are as the first */
}

static int row_fits(const struct tn_program *p, const struct tn_op_data *o, int32_t axis, const struct tn_row *row)
{
    for (uint32_t i = 0; i < o->n_in; i++)
        if (o->in[i] && tn_val(p, o->in[i])->place[axis] != row_in(row, i))
            return 0;
    for (uint32_t i = 0; i < o->n_out; i++)
        if (tn_val(p, o->out[i])->place[axis] != row->out[i])
            return 0;
    return 1;
}

static const char *input_name(const struct tn_op_kind *kind, uint32_t i)
{
    return kind->max_in != UINT32_MAX && i < kind->n_in_names ? kind->in_names[i] : "input";
}

/* A partial input where no row of the op has one, if there is such: names both ops. */
static int report_partial(struct tn_verify *vf, tn_op op, int32_t axis, const struct tn_row *rows, int n)
{
    const struct tn_program *p = vf->p;
    const struct tn_op_data *o = tn_opd(p, op);
    const struct tn_op_kind *kind = tn_op_kind(o->opcode);
    if (tn_op_is_comm(o->opcode))
        return 0; /* it is the op that a partial wants, on another axis or with another reduction */
    for (uint32_t i = 0; i < o->n_in; i++) {
        tn_placement place = o->in[i] ? tn_val(p, o->in[i])->place[axis] : 0;
        int allowed = TN_PLACE_KIND(place) != TN_PLACE_PARTIAL;
        for (int k = 0; k < n && !allowed; k++)
            allowed = row_in(&rows[k], i) == place;
        if (allowed)
            continue;
        char text[PLACE_TEXT];
        tn_op def = vf->def[o->in[i]];
        const struct tn_op_kind *maker = def ? tn_op_kind(tn_opd(p, def)->opcode) : NULL;
        tn_verify_report(
            vf, op,
            "its input %s, %.160s made by %s, is %s on %s: each rank holds only a term, and %s is not linear "
            "in it; put an all_reduce or a reduce_scatter between %s and %s",
            input_name(kind, i), tn_val(p, o->in[i])->name, maker ? maker->name : "no op",
            tn_placement_text(place, text), axis_name(vf, axis), kind->name, maker ? maker->name : "it", kind->name);
        return 1;
    }
    return 0;
}

static void add_place(struct tn_buf *buf, const char *separator, tn_placement place)
{
    char text[PLACE_TEXT];
    tn_buf_printf(buf, "%s%s", separator, tn_placement_text(place, text));
}

/* "replicate, shard(1) -> shard(2)" */
static void add_row(struct tn_buf *buf, const struct tn_op_data *o, const struct tn_row *row)
{
    uint32_t n_in = o->n_in < TN_OP_MOST_FIXED ? o->n_in : TN_OP_MOST_FIXED;
    const char *separator = "";
    for (uint32_t i = 0; i < n_in; i++, separator = ", ")
        if (o->in[i])
            add_place(buf, separator, row->in[i]);
        else
            tn_buf_printf(buf, "%s_", separator);
    separator = " -> ";
    for (uint32_t i = 0; i < o->n_out; i++, separator = ", ")
        add_place(buf, separator, row->out[i]);
}

static void report_row(struct tn_verify *vf, tn_op op, int32_t axis, const struct tn_row *rows, int n)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    const struct tn_op_kind *kind = tn_op_kind(o->opcode);
    struct tn_buf buf;
    tn_buf_init(&buf);
    for (uint32_t i = 0; i < o->n_in && i < TN_OP_MOST_FIXED; i++) {
        if (!o->in[i])
            continue;
        const struct tn_value_data *value = tn_val(vf->p, o->in[i]);
        tn_buf_printf(&buf, "%s %.80s is ", buf.length ? "," : "", value->name);
        add_place(&buf, "", value->place[axis]);
    }
    for (uint32_t i = 0; i < o->n_out; i++) {
        const struct tn_value_data *value = tn_val(vf->p, o->out[i]);
        tn_buf_printf(&buf, "%s %.80s ", i ? "," : " and gives", value->name);
        add_place(&buf, "", value->place[axis]);
    }
    tn_buf_printf(&buf, "; %s has %s", kind->name, n ? "" : "no row there");
    for (int i = 0; i < n && i < MOST_ROWS_SHOWN; i++) {
        tn_buf_printf(&buf, "%s", i ? "; or " : "");
        add_row(&buf, o, &rows[i]);
    }
    if (n > MOST_ROWS_SHOWN)
        tn_buf_printf(&buf, "; or %d more", n - MOST_ROWS_SHOWN);
    tn_verify_report(vf, op, "on %s%s", axis_name(vf, axis), buf.text);
    tn_buf_finish(&buf);
}

/* Its inputs lie as they like, each whole or cut; what comes out is a sum over those that are cut. */
static int sumsq_fits(const struct tn_program *p, const struct tn_op_data *o, int32_t axis)
{
    for (uint32_t i = 0; i < o->n_in; i++)
        if (TN_PLACE_KIND(tn_val(p, o->in[i])->place[axis]) == TN_PLACE_PARTIAL)
            return 0;
    tn_placement out = tn_val(p, o->out[0])->place[axis];
    return out == TN_REPLICATE || out == TN_PARTIAL(TN_RED_SUM);
}

static void check_axis(struct tn_verify *vf, tn_op op, int32_t axis)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    struct tn_row rows[TN_MOST_ROWS];
    if (o->opcode == TN_OP_SUMSQ && sumsq_fits(vf->p, o, axis))
        return;
    int n = tn_op_kind(o->opcode)->place(vf->p, op, axis, rows, TN_MOST_ROWS);
    for (int i = 0; i < n; i++)
        if (row_fits(vf->p, o, axis, &rows[i]))
            return;
    if (!report_partial(vf, op, axis, rows, n))
        report_row(vf, op, axis, rows, n);
}

/* Memory that an output takes over lies as before: what a plugin pinned stays pinned through an update. */
static void check_memory(struct tn_verify *vf, tn_op op, int32_t axis)
{
    const struct tn_op_data *o = tn_opd(vf->p, op);
    const struct tn_op_kind *kind = tn_op_kind(o->opcode);
    char text[PLACE_TEXT], other[PLACE_TEXT];
    for (uint32_t i = 0; i < o->n_out && i < TN_OP_MOST_FIXED; i++) {
        int in = kind->must_alias[i];
        if (in < 0 || (uint32_t)in >= o->n_in || !o->in[in])
            continue;
        const struct tn_value_data *from = tn_val(vf->p, o->in[in]), *to = tn_val(vf->p, o->out[i]);
        if (from->place[axis] == to->place[axis])
            continue;
        const char *by = from->placed_by[axis];
        tn_verify_report(vf, op,
                         "takes over the memory of %.160s, %s on %s%s%.80s, for %.160s, %s there; they must lie alike",
                         from->name, tn_placement_text(from->place[axis], text), axis_name(vf, axis),
                         by ? " as pinned by " : "", by ? by : "", to->name, tn_placement_text(to->place[axis], other));
    }
}

static int values_bad(const struct tn_verify *vf, const struct tn_op_data *o)
{
    int any = 0;
    for (uint32_t i = 0; i < o->n_in; i++)
        any |= vf->bad_value[o->in[i]];
    for (uint32_t i = 0; i < o->n_out; i++)
        any |= vf->bad_value[o->out[i]];
    return any;
}

void tn_verify_rows(struct tn_verify *vf)
{
    TN_EACH_OP(vf->p, op) {
        const struct tn_op_data *o = tn_opd(vf->p, op);
        if (vf->bad_op[op] || values_bad(vf, o) || tn_verify_is_known(vf, op))
            continue;
        size_t before = vf->found;
        for (int32_t axis = 0; axis < vf->p->mesh->n_axes; axis++) {
            size_t found = vf->found;
            check_memory(vf, op, axis);
            if (vf->found == found && tn_op_kind(o->opcode)->place)
                check_axis(vf, op, axis);
        }
        vf->bad_op[op] = vf->found > before;
    }
}
