/* Program parse: reads the text form that program_text.c prints (docs/program.md).
 *
 * Line by line, one pass: a line is split into tokens as it is read, each statement has a
 * function, and names that may stand further down (inputs, like, grad_of, source) are looked up
 * at the end. A problem ends its line and the reading goes on, so that all are reported at once,
 * up to TN_LEX_MOST. Any bytes may come in; nothing here asserts on them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "program/ops.h"
#include "config/options.h"
#include "program/program_lex.h"
#include "program/program_text.h"

enum { MOST_AXIS = 1 << 16, MOST_WORLD = 1 << 24 };

enum { LATE_INPUT, LATE_LIKE, LATE_GRAD_OF, LATE_SOURCE };

/* A name that is looked up once all lines are read. */
struct late {
    int what, line;
    uint32_t of, index; /* the op and its input; or the value */
    const char *name;
};

struct parser {
    struct tn_lex *lex;
    struct tn_program *p;
    struct tn_mesh *mesh;
    int32_t *coord;
    uint32_t region;
    int mesh_seen;
    struct late *late;
    size_t n_late, cap_late;
};

/* The parts of an op line, before the op is made. */
struct op_line {
    const char *name, *tag, *source;
    uint32_t opcode;
    tn_value *out;
    const char **in; /* NULL: absent */
    size_t n_out, cap_out, n_in, cap_in;
    struct tn_attr attrs[TN_MAX_ATTRS];
    uint32_t n_attrs;
    int32_t layer, stage, micro;
};

static void late_add(struct parser *ps, int what, uint32_t of, uint32_t index, const char *name)
{
    ps->late = tn_arena_grow(&ps->p->arena, ps->late, sizeof *ps->late, &ps->cap_late, ps->n_late + 1);
    ps->late[ps->n_late++] =
        (struct late){ .what = what, .line = ps->lex->line, .of = of, .index = index, .name = name };
}

/* mesh, rank, parts, region */

static int take_owner(struct parser *ps, const char **owner)
{
    if (ps->lex->token != TN_LEX_WORD || strcmp(ps->lex->text, "by") != 0)
        return 0;
    tn_lex_next(ps->lex);
    *owner = tn_lex_name(ps->lex, "a plugin's name after 'by'");
    return *owner ? 0 : -1;
}

static int parse_mesh(struct parser *ps)
{
    if (ps->mesh_seen++)
        return tn_lex_problem(ps->lex, "put all axes on one line", "a second mesh");
    while (ps->lex->token != TN_LEX_END) {
        int64_t size = 0;
        const char *name = tn_lex_name(ps->lex, "an axis"), *owner = name;
        if (!name || tn_lex_expect(ps->lex, '=', "after the axis") ||
            tn_lex_int(ps->lex, "the size of an axis", 1, MOST_AXIS, &size) || take_owner(ps, &owner))
            return -1;
        if (tn_mesh_find(ps->mesh, name) >= 0)
            return tn_lex_problem(ps->lex, NULL, "the axis %.80s is there twice", name);
        if (ps->mesh->world > MOST_WORLD / size)
            return tn_lex_problem(ps->lex, NULL, "the mesh has more than %d ranks", MOST_WORLD);
        if (tn_mesh_add(ps->mesh, name, (int32_t)size, owner) < 0)
            return tn_lex_problem(ps->lex, NULL, "the mesh has more than %d axes", TN_MAX_AXES);
    }
    return 0;
}

/* The index of an axis; -1 after recording a problem. */
static int32_t take_axis(struct parser *ps)
{
    const char *name = tn_lex_name(ps->lex, "an axis");
    int32_t axis = name ? tn_mesh_find(ps->mesh, name) : -1;
    if (name && axis < 0) {
        struct tn_buf known;
        tn_buf_init(&known);
        for (int32_t i = 0; i < ps->mesh->n_axes; i++)
            tn_buf_printf(&known, "%s%s", i ? ", " : "the axes are ", ps->mesh->axis[i].name);
        tn_lex_problem(ps->lex, known.length ? known.text : "a line `mesh tp=2` before this one declares axes",
                       "the mesh has no axis %.80s", name);
        tn_buf_finish(&known);
    }
    return axis;
}

static int parse_rank(struct parser *ps)
{
    while (ps->lex->token != TN_LEX_END) {
        int64_t at = 0;
        int32_t axis = take_axis(ps);
        if (axis < 0 || tn_lex_expect(ps->lex, '=', "after the axis") ||
            tn_lex_int(ps->lex, "the rank's coordinate", 0, ps->mesh->axis[axis].size - 1, &at))
            return -1;
        ps->coord[axis] = (int32_t)at;
    }
    return 0;
}

static int parse_parts(struct parser *ps)
{
    int64_t index, weight, sum = 0;
    int64_t *weights = NULL;
    size_t n = 0, cap = 0;
    if (tn_lex_int(ps->lex, "the number of a parts table", 1, 255, &index) ||
        tn_lex_expect(ps->lex, '=', "after the table's number"))
        return -1;
    if (index != ps->p->n_parts)
        return tn_lex_problem(ps->lex, NULL, "parts table %" PRId64 " comes out of order; the next one is %u", index,
                              ps->p->n_parts);
    do {
        if (tn_lex_int(ps->lex, "a weight", 1, INT32_MAX, &weight))
            return -1;
        if (n == MOST_AXIS)
            return tn_lex_problem(ps->lex, NULL, "more than %d weights", MOST_AXIS);
        weights = tn_arena_grow(&ps->p->arena, weights, sizeof *weights, &cap, n + 1);
        weights[n++] = weight;
        sum += weight;
    } while (tn_lex_accept(ps->lex, ':'));
    ps->p->parts[ps->p->n_parts++] = (struct tn_parts){ .n = (int32_t)n, .weights = weights, .sum = sum };
    return 0;
}

static int parse_region(struct parser *ps)
{
    const char *name = tn_lex_name(ps->lex, "a region");
    int64_t number;
    if (!name)
        return -1;
    int32_t region = tn_region_by_name(name);
    if (region < 0 && tn_lex_read_int(name, &number) == 0 && number >= 0 && number <= INT32_MAX)
        region = (int32_t)number;
    if (region < 0)
        return tn_lex_problem(ps->lex, "use prologue, forward, backward, weight or step", "there is no region %.80s",
                              name);
    ps->region = (uint32_t)region;
    return 0;
}

/* values */

static int parse_shape(struct parser *ps, struct tn_value_data *value)
{
    char found[TN_LEX_TEXT];
    int64_t number;
    if (ps->lex->token != TN_LEX_WORD)
        return tn_lex_problem(ps->lex, NULL, "expected a type as f32[2, 3], found %s", tn_lex_found(ps->lex, found));
    value->dtype = tn_dtype_by_name(ps->lex->text);
    if (!value->dtype && tn_lex_read_int(ps->lex->text, &number) == 0 && number >= 0 && number <= UINT32_MAX)
        value->dtype = (uint32_t)number;
    else if (!value->dtype)
        return tn_lex_problem(ps->lex, "use f32, bf16, f16, i32, i64, u8, i8 or f64", "there is no dtype %.80s",
                              ps->lex->text);
    tn_lex_next(ps->lex);
    if (tn_lex_expect(ps->lex, '[', "after the dtype"))
        return -1;
    while (ps->lex->token != ']') {
        if (value->rank && tn_lex_expect(ps->lex, ',', "between sizes"))
            return -1;
        if (value->rank == TN_MAX_DIMS)
            return tn_lex_problem(ps->lex, NULL, "a value has at most %d dimensions", TN_MAX_DIMS);
        if (tn_lex_int(ps->lex, "a size", INT64_MIN, INT64_MAX, &value->shape[value->rank++]))
            return -1;
    }
    tn_lex_next(ps->lex);
    return 0;
}

static int parse_dims(struct parser *ps, struct tn_value_data *value)
{
    if (!tn_lex_accept(ps->lex, '('))
        return 0;
    for (int32_t d = 0; d < value->rank; d++) {
        if (d && tn_lex_expect(ps->lex, ',', "between the names of dimensions, one for each"))
            return -1;
        if (tn_lex_at_absent(ps->lex))
            tn_lex_next(ps->lex);
        else if (!(value->dims[d] = tn_lex_name(ps->lex, "the name of a dimension, or _")))
            return -1;
    }
    return tn_lex_expect(ps->lex, ')', "after the names of the dimensions, one for each");
}

/* What stands in braces; `by` is NULL where no plugin can pin. */
static int parse_placements(struct parser *ps, tn_placement *place, const char **by)
{
    if (!tn_lex_accept(ps->lex, '{'))
        return tn_lex_problem(ps->lex, NULL, "expected placements as {tp: S0}");
    do {
        int32_t axis = take_axis(ps);
        if (axis < 0 || tn_lex_expect(ps->lex, ':', "after the axis"))
            return -1;
        if (tn_lex_at_absent(ps->lex))
            place[axis] = TN_PLACE_UNSET;
        else if (ps->lex->token != TN_LEX_WORD || tn_placement_read(ps->lex->text, &place[axis]) < 0) {
            char found[TN_LEX_TEXT];
            return tn_lex_problem(ps->lex,
                                  "use R, S0 (dimension 0), S0z (zigzag), S0/1 (parts table 1), F (flat), P or Pmax "
                                  "(partial)",
                                  "%s is no placement", tn_lex_found(ps->lex, found));
        }
        tn_lex_next(ps->lex);
        if (by && take_owner(ps, &by[axis]))
            return -1;
    } while (tn_lex_accept(ps->lex, ','));
    return tn_lex_expect(ps->lex, '}', "after placements");
}

/* A word of `names` is its index, a number itself. */
static int take_choice(struct parser *ps, const char *const *names, const char *what, uint32_t *choice)
{
    const char *text = tn_lex_name(ps->lex, what);
    int64_t number;
    if (!text)
        return -1;
    for (uint32_t i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0) {
            *choice = i;
            return 0;
        }
    if (tn_lex_read_int(text, &number) < 0 || number < 0 || number > UINT32_MAX)
        return tn_lex_problem(ps->lex, NULL, "%.80s is not %s", text, what);
    *choice = (uint32_t)number;
    return 0;
}

static int parse_init(struct parser *ps, struct tn_value_data *value)
{
    uint32_t init;
    if (take_choice(ps, tn_init_names, "an init: zeros, ones or normal(0.02)", &init))
        return -1;
    if (init > UINT8_MAX)
        return tn_lex_problem(ps->lex, NULL, "there is no init %u", init);
    value->init = (uint8_t)init;
    if (!tn_lex_accept(ps->lex, '('))
        return 0;
    return tn_lex_float(ps->lex, &value->init_arg) || tn_lex_expect(ps->lex, ')', "after the argument of init");
}

static int parse_flags(struct parser *ps, struct tn_value_data *value)
{
    do {
        const char *text = tn_lex_name(ps->lex, "a flag: loss, output or no_decay");
        int64_t bits = 0;
        if (!text)
            return -1;
        for (uint32_t i = 0; tn_flag_names[i]; i++)
            if (strcmp(text, tn_flag_names[i]) == 0)
                bits = (int64_t)1 << i;
        if (!bits && (tn_lex_read_int(text, &bits) < 0 || bits < 0 || bits > UINT32_MAX))
            return tn_lex_problem(ps->lex, "use loss, output or no_decay", "there is no flag %.80s", text);
        value->flags |= (uint32_t)bits;
    } while (tn_lex_accept(ps->lex, '|'));
    return 0;
}

static int parse_stored(struct parser *ps, struct tn_value_data *value)
{
    value->stored.name = tn_lex_name(ps->lex, "the name of a tensor in checkpoints");
    return !value->stored.name || tn_lex_expect(ps->lex, '[', "after the stored name, as in w[0, 0, 64]") ||
           tn_lex_int32(ps->lex, "the stored dimension", &value->stored.dim) ||
           tn_lex_expect(ps->lex, ',', "in stored") ||
           tn_lex_int(ps->lex, "the stored offset", INT64_MIN, INT64_MAX, &value->stored.offset) ||
           tn_lex_expect(ps->lex, ',', "in stored") ||
           tn_lex_int(ps->lex, "the stored size", INT64_MIN, INT64_MAX, &value->stored.full) ||
           tn_lex_expect(ps->lex, ']', "after stored");
}

/* The details after a type, key=value, in any order. Names of other values are handed out, to be looked up late. */
static int parse_details(struct parser *ps, struct tn_value_data *value, const char **like, const char **grad_of)
{
    while (ps->lex->token == TN_LEX_WORD) {
        const char *key = ps->lex->text;
        tn_lex_next(ps->lex);
        if (tn_lex_expect(ps->lex, '=', "after the key of a value"))
            return -1;
        int status;
        if (strcmp(key, "want") == 0)
            status = parse_placements(ps, value->want, NULL);
        else if (strcmp(key, "init") == 0)
            status = parse_init(ps, value);
        else if (strcmp(key, "flags") == 0)
            status = parse_flags(ps, value);
        else if (strcmp(key, "space") == 0)
            status = take_choice(ps, tn_space_names, "a space: device, host or disk", &value->space);
        else if (strcmp(key, "tag") == 0)
            status = (value->tag = tn_lex_name(ps->lex, "a tag")) ? 0 : -1;
        else if (strcmp(key, "like") == 0)
            status = (*like = tn_lex_name(ps->lex, "a value")) ? 0 : -1;
        else if (strcmp(key, "grad_of") == 0)
            status = (*grad_of = tn_lex_name(ps->lex, "a value")) ? 0 : -1;
        else if (strcmp(key, "stored") == 0)
            status = parse_stored(ps, value);
        else if (strcmp(key, "layer") == 0)
            status = tn_lex_int32(ps->lex, "a layer", &value->layer);
        else if (strcmp(key, "stage") == 0)
            status = tn_lex_int32(ps->lex, "a stage", &value->stage);
        else
            status = tn_lex_problem(ps->lex, "use want, init, flags, space, tag, like, grad_of, stored, layer or stage",
                                    "a value has no %.80s", key);
        if (status)
            return -1;
    }
    return 0;
}

/* What follows the name in a declaration. An output's layer and stage are set to those of its op later; INT32_MIN
 * marks that they were not given. */
static tn_value parse_declaration(struct parser *ps, uint32_t kind, const char *name)
{
    struct tn_value_data read = { .tag = "", .layer = INT32_MIN, .stage = INT32_MIN };
    const char *like = NULL, *grad_of = NULL;
    for (int32_t d = 0; d < TN_MAX_DIMS; d++)
        read.dims[d] = "";
    if (parse_shape(ps, &read) || parse_dims(ps, &read) ||
        (ps->lex->token == '{' && parse_placements(ps, read.place, read.placed_by)) ||
        parse_details(ps, &read, &like, &grad_of))
        return 0;
    if (tn_value_find(ps->p, name)) {
        tn_lex_problem(ps->lex, "names are unique: give one of them another name", "%.80s is declared already", name);
        return 0;
    }
    tn_value v = tn_value_new(ps->p, kind, name, read.dtype, read.rank, read.shape);
    read.name = tn_val(ps->p, v)->name;
    read.kind = kind;
    for (int32_t d = read.rank; d < TN_MAX_DIMS; d++)
        read.shape[d] = 1;
    *tn_val(ps->p, v) = read;
    if (like)
        late_add(ps, LATE_LIKE, v, 0, like);
    if (grad_of)
        late_add(ps, LATE_GRAD_OF, v, 0, grad_of);
    return v;
}

/* The word before a name: the kind of the value. 0 after recording a problem. */
static uint32_t kind_of(struct parser *ps, const char *word)
{
    int64_t number;
    uint32_t kind = tn_kind_by_name(word);
    if (!kind && tn_lex_read_int(word, &number) == 0 && number > 0 && number <= UINT32_MAX)
        kind = (uint32_t)number;
    if (!kind)
        tn_lex_problem(ps->lex,
                       "a line begins with mesh, rank, parts, region, param, input, const, activation, "
                       "accumulator, state, or with the outputs of an op",
                       "there is no kind of value '%.80s'", word);
    return kind;
}

/* ops */

static void set_default(int32_t *field, int32_t value)
{
    if (*field == INT32_MIN)
        *field = value;
}

/* One output: [kind] name: type, or the name alone of a value that is declared above. `first` has been taken. */
static int parse_output(struct parser *ps, struct op_line *line, const char *first)
{
    uint32_t kind = TN_KIND_ACTIVATION;
    const char *name = first;
    tn_value v = 0;
    if (tn_lex_at_name(ps->lex)) {
        if (!(kind = kind_of(ps, first)) || !(name = tn_lex_name(ps->lex, "the name of a value")))
            return -1;
    }
    if (tn_lex_accept(ps->lex, ':'))
        v = parse_declaration(ps, kind, name);
    else if (name != first)
        tn_lex_expect(ps->lex, ':', "and a type after the name");
    else if (strcmp(first, "_") != 0 && !(v = tn_value_find(ps->p, name)))
        tn_lex_problem(ps->lex, "give its type, as in y: f32[2, 3]", "%.80s is made here but never declared", name);
    if (ps->lex->bad)
        return -1;
    line->out = tn_arena_grow(&ps->p->arena, line->out, sizeof *line->out, &line->cap_out, line->n_out + 1);
    line->out[line->n_out++] = v;
    return 0;
}

static int parse_input(struct parser *ps, struct op_line *line, const struct tn_op_kind *kind)
{
    const char *name = NULL;
    if (tn_lex_at_absent(ps->lex)) {
        tn_lex_next(ps->lex);
    } else if (!(name = tn_lex_name(ps->lex, "the name of an input"))) {
        return -1;
    }
    if (name && tn_lex_accept(ps->lex, ':')) {
        if (kind && kind->max_in != UINT32_MAX && line->n_in < kind->n_in_names &&
            strcmp(kind->in_names[line->n_in], name) != 0)
            return tn_lex_problem(ps->lex, "_ stands for an optional one that is absent",
                                  "input %zu of %s is %s, not %.80s", line->n_in + 1, kind->name,
                                  kind->in_names[line->n_in], name);
        name = NULL;
        if (tn_lex_at_absent(ps->lex))
            tn_lex_next(ps->lex);
        else if (!(name = tn_lex_name(ps->lex, "the name of a value")))
            return -1;
    }
    line->in = tn_arena_grow(&ps->p->arena, line->in, sizeof *line->in, &line->cap_in, line->n_in + 1);
    line->in[line->n_in++] = name;
    return 0;
}

static int parse_inputs(struct parser *ps, struct op_line *line)
{
    const struct tn_op_kind *kind = tn_op_kind(line->opcode);
    if (tn_lex_expect(ps->lex, '(', "after the op"))
        return -1;
    while (ps->lex->token != ')') {
        if (line->n_in && tn_lex_expect(ps->lex, ',', "between inputs"))
            return -1;
        if (parse_input(ps, line, kind))
            return -1;
    }
    tn_lex_next(ps->lex);
    return 0;
}

static int parse_attr(struct parser *ps, struct op_line *line)
{
    const char *key = tn_lex_name(ps->lex, "an attribute as eps=1e-05, or a note as @layer=0");
    struct tn_attr attr = { .struct_size = sizeof attr, .key = key };
    if (!key || tn_lex_expect(ps->lex, '=', "after the attribute"))
        return -1;
    if (line->n_attrs == TN_MAX_ATTRS)
        return tn_lex_problem(ps->lex, NULL, "an op has at most %d attributes", TN_MAX_ATTRS);
    if (ps->lex->token == TN_LEX_WORD && tn_lex_read_int(ps->lex->text, &attr.i) == 0) {
        tn_lex_next(ps->lex);
    } else {
        attr.is_float = 1;
        if (tn_lex_float(ps->lex, &attr.f))
            return -1;
    }
    line->attrs[line->n_attrs++] = attr;
    return 0;
}

static int parse_note(struct parser *ps, struct op_line *line)
{
    const char *key = tn_lex_name(ps->lex, "a note as @layer=0");
    if (!key || tn_lex_expect(ps->lex, '=', "after the note"))
        return -1;
    if (strcmp(key, "layer") == 0)
        return tn_lex_int32(ps->lex, "a layer", &line->layer);
    if (strcmp(key, "stage") == 0)
        return tn_lex_int32(ps->lex, "a stage", &line->stage);
    if (strcmp(key, "micro") == 0)
        return tn_lex_int32(ps->lex, "a micro-batch", &line->micro);
    if (strcmp(key, "tag") == 0)
        return (line->tag = tn_lex_name(ps->lex, "a tag")) ? 0 : -1;
    if (strcmp(key, "source") == 0)
        return (line->source = tn_lex_name(ps->lex, "the name of an op")) ? 0 : -1;
    if (strcmp(key, "name") == 0)
        return (line->name = tn_lex_name(ps->lex, "the name of the op")) ? 0 : -1;
    return tn_lex_problem(ps->lex, "use @layer, @stage, @micro, @tag, @source or @name", "an op has no note @%.80s",
                          key);
}

static int unknown_op(struct parser *ps, const char *name)
{
    const char *names[TN_OP_CORE_END];
    for (uint32_t op = 1; op < TN_OP_CORE_END; op++)
        names[op - 1] = tn_op_kind(op)->name;
    const char *near = tn_nearest(name, names, TN_OP_CORE_END - 1);
    if (near)
        return tn_lex_problem(ps->lex, NULL, "there is no op %.80s; did you mean %s?", name, near);
    return tn_lex_problem(ps->lex, "docs/ops.md lists the core's; a plugin's op needs its plugin loaded",
                          "there is no op %.80s", name);
}

static int opcode_of(struct parser *ps, const char *name, uint32_t *opcode)
{
    int64_t number;
    *opcode = tn_op_by_name(name);
    if (*opcode == TN_OP_NONE && name[0] == '$' && tn_lex_read_int(name + 1, &number) == 0 && number >= 0 &&
        number <= UINT32_MAX)
        *opcode = (uint32_t)number;
    else if (*opcode == TN_OP_NONE)
        return unknown_op(ps, name);
    return 0;
}

static void make_op(struct parser *ps, struct op_line *line)
{
    struct tn_program *p = ps->p;
    tn_value *none = tn_arena_alloc(&p->arena, (line->n_in + 1) * sizeof *none);
    tn_op id = tn_op_raw(p, line->opcode, line->name, none, (uint32_t)line->n_in, line->out, (uint32_t)line->n_out,
                         line->attrs, line->n_attrs);
    struct tn_op_data *op = tn_opd(p, id);
    op->region = ps->region;
    op->layer = line->layer;
    op->stage = line->stage;
    op->micro = line->micro;
    op->tag = line->tag;
    for (size_t i = 0; i < line->n_in; i++)
        if (line->in[i])
            late_add(ps, LATE_INPUT, id, (uint32_t)i, line->in[i]);
    if (line->source)
        late_add(ps, LATE_SOURCE, id, 0, line->source);
}

/* The op after its outputs: linear(x: a, w: b) trans=1 @layer=0. */
static int parse_op(struct parser *ps, struct op_line *line, const char *op_name)
{
    if (opcode_of(ps, op_name, &line->opcode) || parse_inputs(ps, line))
        return -1;
    while (ps->lex->token != TN_LEX_END)
        if (tn_lex_accept(ps->lex, '@') ? parse_note(ps, line) : parse_attr(ps, line))
            return -1;
    if (!line->name && line->n_out && line->out[0])
        line->name = tn_val(ps->p, line->out[0])->name;
    if (!line->name)
        return tn_lex_problem(ps->lex, "add @name=...", "an op without a first output needs a name");
    for (size_t i = 0; i < line->n_out; i++) {
        if (!line->out[i])
            continue;
        set_default(&tn_val(ps->p, line->out[i])->layer, line->layer);
        set_default(&tn_val(ps->p, line->out[i])->stage, line->stage);
    }
    make_op(ps, line);
    return 0;
}

/* A line that begins with `first`: a declaration, or the outputs of an op. */
static int parse_values(struct parser *ps, const char *first)
{
    struct op_line line = { .tag = "", .layer = -1, .micro = -1 };
    if (parse_output(ps, &line, first))
        return -1;
    if (ps->lex->token == TN_LEX_END && line.n_out == 1 && line.out[0] && !tn_val(ps->p, line.out[0])->def) {
        set_default(&tn_val(ps->p, line.out[0])->layer, -1);
        set_default(&tn_val(ps->p, line.out[0])->stage, 0);
        return 0;
    }
    while (tn_lex_accept(ps->lex, ',')) {
        char found[TN_LEX_TEXT];
        if (!tn_lex_at_name(ps->lex))
            return tn_lex_problem(ps->lex, NULL, "expected an output, found %s", tn_lex_found(ps->lex, found));
        const char *name = ps->lex->text;
        tn_lex_next(ps->lex);
        if (parse_output(ps, &line, name))
            return -1;
    }
    if (tn_lex_expect(ps->lex, '=', "and an op after the outputs"))
        return -1;
    const char *op_name = tn_lex_name(ps->lex, "the name of an op");
    return op_name ? parse_op(ps, &line, op_name) : -1;
}

/* lines */

static int parse_line(struct parser *ps)
{
    char found[TN_LEX_TEXT];
    tn_lex_next(ps->lex);
    if (ps->lex->token == TN_LEX_END)
        return 0;
    if (!tn_lex_at_name(ps->lex))
        return tn_lex_problem(ps->lex, NULL, "a line cannot begin with %s", tn_lex_found(ps->lex, found));
    const char *first = ps->lex->text;
    int bare = ps->lex->token == TN_LEX_WORD;
    tn_lex_next(ps->lex);
    if (bare && ps->lex->token == '(') {
        struct op_line line = { .tag = "", .layer = -1, .micro = -1 };
        return parse_op(ps, &line, first);
    }
    if (!bare || !tn_lex_at_name(ps->lex))
        return parse_values(ps, first);
    int (*statement)(struct parser *) = strcmp(first, "mesh") == 0     ? parse_mesh
                                        : strcmp(first, "rank") == 0   ? parse_rank
                                        : strcmp(first, "parts") == 0  ? parse_parts
                                        : strcmp(first, "region") == 0 ? parse_region
                                                                       : NULL;
    if (!statement)
        return parse_values(ps, first);
    if (statement(ps))
        return -1;
    return ps->lex->token == TN_LEX_END ? 0
                                        : tn_lex_problem(ps->lex, NULL, "unexpected %s", tn_lex_found(ps->lex, found));
}

struct op_name {
    const char *name;
    tn_op op;
};

static int by_name(const void *a, const void *b)
{
    const struct op_name *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->op > y->op) - (x->op < y->op);
}

/* The ops by name, for @source; NULL where there is none. */
static struct op_name *ops_by_name(struct parser *ps)
{
    struct op_name *names = tn_arena_alloc(&ps->p->arena, (ps->p->n_ops + 1) * sizeof *names);
    for (tn_op op = 1; op <= ps->p->n_ops; op++)
        names[op - 1] = (struct op_name){ tn_opd(ps->p, op)->name, op };
    qsort(names, ps->p->n_ops, sizeof *names, by_name);
    return names;
}

static tn_op op_find(const struct op_name *names, uint32_t n, const char *name)
{
    uint32_t low = 0, high = n;
    while (low < high) { /* the first that is not before `name` */
        uint32_t mid = low + (high - low) / 2;
        if (strcmp(names[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && strcmp(names[low].name, name) == 0 ? names[low].op : 0;
}

static void resolve_late(struct parser *ps)
{
    struct op_name *names = NULL;
    for (size_t i = 0; i < ps->n_late; i++) {
        const struct late *late = &ps->late[i];
        ps->lex->line = late->line;
        ps->lex->bad = 0;
        if (late->what == LATE_SOURCE) {
            names = names ? names : ops_by_name(ps);
            tn_opd(ps->p, late->of)->source = op_find(names, ps->p->n_ops, late->name);
            if (!tn_opd(ps->p, late->of)->source)
                tn_lex_problem(ps->lex, NULL, "there is no op %.80s", late->name);
            continue;
        }
        tn_value v = tn_value_find(ps->p, late->name);
        if (!v)
            tn_lex_problem(ps->lex, "declare it, or make it by an op", "there is no value %.80s", late->name);
        else if (late->what == LATE_INPUT)
            tn_set_input(ps->p, late->of, late->index, v);
        else if (late->what == LATE_LIKE)
            tn_val(ps->p, late->of)->like = v;
        else
            tn_val(ps->p, late->of)->grad_of = v;
    }
}

int tn_program_parse(struct tn_program *p, struct tn_mesh *mesh, const char *text, size_t length)
{
    struct tn_lex lex = { .p = p };
    struct parser ps = { .lex = &lex, .p = p, .mesh = mesh };
    *mesh = (struct tn_mesh){ .world = 1 };
    p->mesh = mesh;
    p->coord = ps.coord = tn_arena_alloc(&p->arena, TN_MAX_AXES * sizeof *ps.coord);
    p->insert_before = 0;
    const char *end = text + length;
    while (text < end && lex.problems < TN_LEX_MOST) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        lex.at = text;
        lex.end = newline ? newline : end;
        lex.line++;
        lex.bad = 0;
        text = newline ? newline + 1 : end;
        while (lex.at < lex.end && (*lex.at == ' ' || *lex.at == '\t'))
            lex.at++;
        if (lex.end > lex.at && lex.end[-1] == '\r')
            lex.end--;
        if (lex.at < lex.end && *lex.at != '#')
            parse_line(&ps);
    }
    if (lex.problems == TN_LEX_MOST)
        tn_program_error(p, 0, "line %d: too many problems; the rest is not read", lex.line);
    else
        resolve_late(&ps);
    return lex.problems ? -1 : 0;
}
