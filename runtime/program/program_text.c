/* Program text: prints a program, one declaration or op a line (docs/program.md).
 *
 * Stands after every arrow of the flow: `tenon dump` is this printer. What it writes,
 * program_parse.c reads back, and printing that gives the same bytes. Values that no op of the
 * list makes are declared first; the others where their op stands. Defaults are left out. */
#include "program/program_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "program/ops.h"

const char *const tn_flag_names[] = { "loss", "output", "no_decay", NULL };
const char *const tn_init_names[] = { "zeros", "ones", "normal", NULL };
const char *const tn_space_names[] = { "device", "host", "disk", NULL };

/* names of numbers */

const char *tn_kind_name(uint32_t kind)
{
    switch (kind) {
#define TN_X(name, number, text) \
    case number: return text;
        TN_KIND_LIST(TN_X)
#undef TN_X
    default: return NULL;
    }
}

const char *tn_region_name(uint32_t region)
{
    switch (region) {
#define TN_X(name, number, text) \
    case number: return text;
        TN_REGION_LIST(TN_X)
#undef TN_X
    default: return NULL;
    }
}

uint32_t tn_kind_by_name(const char *name)
{
#define TN_X(upper, number, text) \
    if (strcmp(name, text) == 0)  \
        return number;
    TN_KIND_LIST(TN_X)
#undef TN_X
    return 0;
}

int32_t tn_region_by_name(const char *name)
{
#define TN_X(upper, number, text) \
    if (strcmp(name, text) == 0)  \
        return number;
    TN_REGION_LIST(TN_X)
#undef TN_X
    return -1;
}

/* placements */

const char *tn_placement_write(tn_placement placement, char text[TN_PLACEMENT_TEXT])
{
    int32_t dim = TN_PLACE_DIM(placement);
    uint32_t order = TN_PLACE_ORDER(placement), parts = TN_PLACE_PARTS(placement);
    if (placement == TN_REPLICATE)
        snprintf(text, TN_PLACEMENT_TEXT, "R");
    else if (placement == TN_FLAT)
        snprintf(text, TN_PLACEMENT_TEXT, "F");
    else if (placement == TN_PARTIAL(TN_RED_SUM))
        snprintf(text, TN_PLACEMENT_TEXT, "P");
    else if (placement == TN_PARTIAL(TN_RED_MAX))
        snprintf(text, TN_PLACEMENT_TEXT, "Pmax");
    else if (TN_PLACE_KIND(placement) != TN_PLACE_SHARD || order > TN_ORDER_ZIGZAG)
        snprintf(text, TN_PLACEMENT_TEXT, "0x%08" PRIx32, placement);
    else if (parts)
        snprintf(text, TN_PLACEMENT_TEXT, "S%d%s/%u", dim, order ? "z" : "", parts);
    else
        snprintf(text, TN_PLACEMENT_TEXT, "S%d%s", dim, order ? "z" : "");
    return text;
}

/* A number of at most `most` in decimal; moves *text past it. -1: none there. */
static int32_t read_small(const char **text, int32_t most)
{
    int32_t n = 0;
    const char *at = *text;
    for (; *at >= '0' && *at <= '9'; at++) {
        n = n * 10 + (*at - '0');
        if (n > most)
            return -1;
    }
    if (at == *text)
        return -1;
    *text = at;
    return n;
}

int tn_placement_read(const char *text, tn_placement *placement)
{
    static const struct {
        const char *text;
        tn_placement placement;
    } fixed[] = {
        { "R", TN_REPLICATE },
        { "F", TN_FLAT },
        { "P", TN_PARTIAL(TN_RED_SUM) },
        { "Pmax", TN_PARTIAL(TN_RED_MAX) },
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (strcmp(text, fixed[i].text) == 0) {
            *placement = fixed[i].placement;
            return 0;
        }
    if (text[0] == '0' && text[1] == 'x') {
        char *end;
        unsigned long bits = strtoul(text + 2, &end, 16);
        *placement = (tn_placement)bits;
        return *end || end == text + 2 || end > text + 10 ? -1 : 0;
    }
    if (text[0] != 'S')
        return -1;
    text++;
    int32_t dim = read_small(&text, 255), parts = 0;
    uint32_t order = *text == 'z' ? TN_ORDER_ZIGZAG : TN_ORDER_PLAIN;
    text += *text == 'z';
    if (*text == '/') {
        text++;
        parts = read_small(&text, 255);
        if (parts == 0)
            return -1;
    }
    if (dim < 0 || parts < 0 || *text)
        return -1;
    *placement = TN_PLACEMENT(TN_PLACE_SHARD, dim, order, parts);
    return 0;
}

/* words and numbers */

static int word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_./+-#$%~", c));
}

size_t tn_word_length(const char *text, const char *end)
{
    size_t n = 0, most = (size_t)(end - text);
    while (n < most && (word_char(text[n]) || (text[n] == '@' && n > 0)))
        n++;
    return n;
}

static int is_word(const char *text)
{
    if (*text == '#' || strcmp(text, "_") == 0)
        return 0;
    return tn_word_length(text, text + strlen(text)) == strlen(text) && *text;
}

static void put_name(struct tn_buf *buf, const char *text)
{
    if (is_word(text)) {
        tn_buf_add(buf, text, strlen(text));
        return;
    }
    tn_buf_add(buf, "\"", 1);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            tn_buf_printf(buf, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            tn_buf_printf(buf, "\\x%02x", c);
        else
            tn_buf_add(buf, text, 1);
    }
    tn_buf_add(buf, "\"", 1);
}

/* The shortest of 6, 15, 16, 17 digits that reads back as f, told from an integer by a dot or an exponent. */
static void put_float(struct tn_buf *buf, double f)
{
    static const int digits[] = { 6, 15, 16, 17 };
    char text[40];
    if (isnan(f)) {
        tn_buf_printf(buf, "nan");
        return;
    }
    for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
        snprintf(text, sizeof text, "%.*g", digits[i], f);
        if (strtod(text, NULL) == f)
            break;
    }
    tn_buf_printf(buf, "%s%s", text, strpbrk(text, ".ein") ? "" : ".0");
}

/* A name, or the number itself where it has none. */
static void put_named(struct tn_buf *buf, const char *name, uint32_t number)
{
    if (name)
        tn_buf_printf(buf, "%s", name);
    else
        tn_buf_printf(buf, "%" PRIu32, number);
}

/* The name of `number` among `names`, or the number. */
static void put_choice(struct tn_buf *buf, const char *const *names, uint32_t number)
{
    uint32_t i = 0;
    while (names[i] && i < number)
        i++;
    put_named(buf, names[i], number);
}

/* values */

struct printer {
    const struct tn_program *p;
    struct tn_buf *buf;
    uint8_t *shown; /* by value: it is declared in the text, here or further on */
    uint8_t *done;  /* by value: it has been declared above */
};

static void put_flags(struct tn_buf *buf, uint32_t flags)
{
    const char *separator = " flags=";
    for (uint32_t bit = 0; bit < 32; bit++) {
        if (!(flags >> bit & 1))
            continue;
        if (bit < sizeof tn_flag_names / sizeof *tn_flag_names - 1)
            tn_buf_printf(buf, "%s%s", separator, tn_flag_names[bit]);
        else
            tn_buf_printf(buf, "%s%" PRIu32, separator, (uint32_t)1 << bit);
        separator = "|";
    }
}

static void put_type(struct printer *pr, const struct tn_value_data *value)
{
    struct tn_buf *buf = pr->buf;
    int named = 0;
    if (tn_dtype_bytes(value->dtype))
        tn_buf_printf(buf, ": %s[", tn_dtype_name(value->dtype));
    else
        tn_buf_printf(buf, ": %" PRIu32 "[", value->dtype);
    for (int32_t d = 0; d < value->rank; d++) {
        tn_buf_printf(buf, "%s%" PRId64, d ? ", " : "", value->shape[d]);
        named |= value->dims[d] && value->dims[d][0];
    }
    tn_buf_printf(buf, "]");
    for (int32_t d = 0; named && d < value->rank; d++) {
        tn_buf_printf(buf, d ? ", " : " (");
        if (value->dims[d] && value->dims[d][0])
            put_name(buf, value->dims[d]);
        else
            tn_buf_printf(buf, "_");
    }
    tn_buf_printf(buf, named ? ")" : "");
}

/* " {tp: S0 by tp, dp: R}", or " want={...}": what is set on each axis. */
static void put_placements(struct printer *pr, const char *open, const tn_placement *place, const char *const *by)
{
    const struct tn_mesh *mesh = pr->p->mesh;
    char text[TN_PLACEMENT_TEXT];
    int n = 0;
    for (int32_t axis = 0; mesh && axis < mesh->n_axes; axis++) {
        int pinned = by && by[axis];
        if (place[axis] == TN_PLACE_UNSET && !pinned)
            continue;
        tn_buf_printf(pr->buf, "%s", n++ ? ", " : open);
        put_name(pr->buf, mesh->axis[axis].name);
        tn_buf_printf(pr->buf, ": %s", place[axis] ? tn_placement_write(place[axis], text) : "_");
        if (pinned) {
            tn_buf_printf(pr->buf, " by ");
            put_name(pr->buf, by[axis]);
        }
    }
    tn_buf_printf(pr->buf, n ? "}" : "");
}

/* Another value that this one belongs to, where the text has it. */
static void put_link(struct printer *pr, const char *key, tn_value to)
{
    if (!to || to > pr->p->n_values || !pr->shown[to])
        return;
    tn_buf_printf(pr->buf, " %s=", key);
    put_name(pr->buf, pr->p->values[to].name);
}

static void put_details(struct printer *pr, const struct tn_value_data *value)
{
    struct tn_buf *buf = pr->buf;
    if (value->init || value->init_arg != 0) {
        tn_buf_printf(buf, " init=");
        put_choice(buf, tn_init_names, value->init);
        if (value->init_arg != 0) {
            tn_buf_printf(buf, "(");
            put_float(buf, value->init_arg);
            tn_buf_printf(buf, ")");
        }
    }
    put_flags(buf, value->flags);
    if (value->space) {
        tn_buf_printf(buf, " space=");
        put_choice(buf, tn_space_names, value->space);
    }
    if (value->tag && value->tag[0]) {
        tn_buf_printf(buf, " tag=");
        put_name(buf, value->tag);
    }
    put_link(pr, "like", value->like);
    put_link(pr, "grad_of", value->grad_of);
    if (value->stored.name) {
        tn_buf_printf(buf, " stored=");
        put_name(buf, value->stored.name);
        tn_buf_printf(buf, "[%d, %" PRId64 ", %" PRId64 "]", value->stored.dim, value->stored.offset,
                      value->stored.full);
    }
}

static void put_kind(struct printer *pr, tn_value v)
{
    uint32_t kind = tn_val(pr->p, v)->kind;
    put_named(pr->buf, tn_kind_name(kind), kind);
    tn_buf_printf(pr->buf, " ");
}

/* A declaration; layer and stage are left out where they are those given. */
static void put_value(struct printer *pr, tn_value v, int32_t layer, int32_t stage)
{
    const struct tn_value_data *value = tn_val(pr->p, v);
    put_name(pr->buf, value->name);
    put_type(pr, value);
    put_placements(pr, " {", value->place, value->placed_by);
    put_placements(pr, " want={", value->want, NULL);
    put_details(pr, value);
    if (value->layer != layer)
        tn_buf_printf(pr->buf, " layer=%d", value->layer);
    if (value->stage != stage)
        tn_buf_printf(pr->buf, " stage=%d", value->stage);
    pr->done[v] = 1;
}

/* ops */

static void put_outputs(struct printer *pr, const struct tn_op_data *op)
{
    for (uint32_t i = 0; i < op->n_out; i++) {
        tn_value v = op->out[i];
        tn_buf_printf(pr->buf, i ? ", " : "");
        if (!v || v > pr->p->n_values) {
            tn_buf_printf(pr->buf, "_");
        } else if (pr->done[v]) {
            put_name(pr->buf, tn_val(pr->p, v)->name);
        } else {
            if (tn_val(pr->p, v)->kind != TN_KIND_ACTIVATION)
                put_kind(pr, v);
            put_value(pr, v, op->layer, op->stage);
        }
    }
    tn_buf_printf(pr->buf, op->n_out ? " = " : "");
}

static void put_inputs(struct printer *pr, const struct tn_op_data *op, const struct tn_op_kind *kind)
{
    tn_buf_printf(pr->buf, "(");
    for (uint32_t i = 0; i < op->n_in; i++) {
        tn_buf_printf(pr->buf, i ? ", " : "");
        if (kind && kind->max_in != UINT32_MAX && i < kind->n_in_names)
            tn_buf_printf(pr->buf, "%s: ", kind->in_names[i]);
        if (op->in[i] && op->in[i] <= pr->p->n_values)
            put_name(pr->buf, tn_val(pr->p, op->in[i])->name);
        else
            tn_buf_printf(pr->buf, "_");
    }
    tn_buf_printf(pr->buf, ")");
}

static void put_attrs(struct printer *pr, const struct tn_op_data *op)
{
    for (uint32_t i = 0; i < op->n_attrs; i++) {
        const struct tn_attr *attr = &op->attrs[i];
        tn_buf_printf(pr->buf, " ");
        put_name(pr->buf, attr->key);
        tn_buf_printf(pr->buf, "=");
        if (attr->is_float)
            put_float(pr->buf, attr->f);
        else
            tn_buf_printf(pr->buf, "%" PRId64, attr->i);
    }
}

static void put_note(struct printer *pr, const char *key, const char *text)
{
    tn_buf_printf(pr->buf, " @%s=", key);
    put_name(pr->buf, text);
}

static void put_notes(struct printer *pr, const struct tn_op_data *op)
{
    const struct tn_program *p = pr->p;
    if (op->layer != -1)
        tn_buf_printf(pr->buf, " @layer=%d", op->layer);
    if (op->stage != 0)
        tn_buf_printf(pr->buf, " @stage=%d", op->stage);
    if (op->micro != -1)
        tn_buf_printf(pr->buf, " @micro=%d", op->micro);
    if (op->tag && op->tag[0])
        put_note(pr, "tag", op->tag);
    if (op->source && op->source <= p->n_ops && p->ops[op->source].linked)
        put_note(pr, "source", p->ops[op->source].name);
    tn_value first = op->n_out ? op->out[0] : 0;
    if (!first || first > p->n_values || strcmp(op->name, tn_val(p, first)->name) != 0)
        put_note(pr, "name", op->name);
}

static void put_op(struct printer *pr, tn_op id)
{
    const struct tn_op_data *op = tn_opd(pr->p, id);
    const struct tn_op_kind *kind = tn_op_kind(op->opcode);
    tn_buf_printf(pr->buf, "  ");
    put_outputs(pr, op);
    if (kind)
        put_name(pr->buf, kind->name);
    else
        tn_buf_printf(pr->buf, "$%" PRIu32, op->opcode);
    put_inputs(pr, op, kind);
    put_attrs(pr, op);
    put_notes(pr, op);
    tn_buf_printf(pr->buf, "\n");
}

/* the whole */

static void put_mesh(struct printer *pr)
{
    const struct tn_mesh *mesh = pr->p->mesh;
    if (!mesh || mesh->n_axes == 0)
        return;
    tn_buf_printf(pr->buf, "mesh");
    for (int32_t axis = 0; axis < mesh->n_axes; axis++) {
        const char *owner = mesh->axis[axis].owner;
        tn_buf_printf(pr->buf, " ");
        put_name(pr->buf, mesh->axis[axis].name);
        tn_buf_printf(pr->buf, "=%d", mesh->axis[axis].size);
        if (owner && strcmp(owner, mesh->axis[axis].name) != 0) {
            tn_buf_printf(pr->buf, " by ");
            put_name(pr->buf, owner);
        }
    }
    tn_buf_printf(pr->buf, "\nrank");
    for (int32_t axis = 0; axis < mesh->n_axes; axis++) {
        tn_buf_printf(pr->buf, " ");
        put_name(pr->buf, mesh->axis[axis].name);
        tn_buf_printf(pr->buf, "=%d", pr->p->coord ? pr->p->coord[axis] : 0);
    }
    tn_buf_printf(pr->buf, "\n");
}

static void put_parts(struct printer *pr)
{
    for (uint32_t i = 1; i < pr->p->n_parts; i++) {
        tn_buf_printf(pr->buf, "parts %u =", i);
        for (int32_t k = 0; k < pr->p->parts[i].n; k++)
            tn_buf_printf(pr->buf, "%s%" PRId64, k ? ":" : " ", pr->p->parts[i].weights[k]);
        tn_buf_printf(pr->buf, "\n");
    }
}

/* Which values the text has: those that linked ops make (2) or use, and those that no op made. */
static void find_shown(struct printer *pr)
{
    const struct tn_program *p = pr->p;
    for (tn_value v = 1; v <= p->n_values; v++)
        pr->shown[v] = tn_val(p, v)->def == 0 && tn_val(p, v)->kind != TN_KIND_ACTIVATION;
    TN_EACH_OP(p, op)
        for (uint32_t i = 0; i < tn_opd(p, op)->n_in; i++)
            if (tn_opd(p, op)->in[i] <= p->n_values)
                pr->shown[tn_opd(p, op)->in[i]] = 1;
    TN_EACH_OP(p, op)
        for (uint32_t i = 0; i < tn_opd(p, op)->n_out; i++)
            if (tn_opd(p, op)->out[i] <= p->n_values)
                pr->shown[tn_opd(p, op)->out[i]] = 2;
}

static void put_declarations(struct printer *pr)
{
    for (tn_value v = 1; v <= pr->p->n_values; v++) {
        if (pr->shown[v] != 1)
            continue;
        put_kind(pr, v);
        put_value(pr, v, -1, 0);
        tn_buf_printf(pr->buf, "\n");
    }
}

static void put_ops(struct printer *pr)
{
    uint32_t region = UINT32_MAX;
    TN_EACH_OP(pr->p, op) {
        const struct tn_op_data *o = tn_opd(pr->p, op);
        if (o->region != region) {
            tn_buf_printf(pr->buf, "\nregion ");
            put_named(pr->buf, tn_region_name(o->region), o->region);
            tn_buf_printf(pr->buf, "\n");
            region = o->region;
        }
        put_op(pr, op);
    }
}

void tn_program_print(const struct tn_program *p, FILE *out)
{
    struct tn_buf buf;
    tn_buf_init(&buf);
    uint8_t *marks = calloc(2, (size_t)p->n_values + 1);
    if (!marks) {
        fprintf(stderr, "tenon: out of memory (%zu bytes for printing)\n", 2 * ((size_t)p->n_values + 1));
        exit(1);
    }
    struct printer pr = { .p = p, .buf = &buf, .shown = marks, .done = marks + p->n_values + 1 };
    find_shown(&pr);
    put_mesh(&pr);
    put_parts(&pr);
    put_declarations(&pr);
    put_ops(&pr);
    fwrite(buf.text, 1, buf.length, out);
    free(marks);
    tn_buf_finish(&buf);
}
