/* Ops of plugins: see ops_plugin.h. Checks definitions, keeps them beside the core's, and turns the runtime's rules
 * into call-backs of the plugin, or into the rule of the core op that it is like. */
#include "program/ops_plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/autodiff.h"
#include "passes/resolve.h"
#include "program/program_api.h"
#include "program/rules.h"

enum { MOST_OPS = 256, MOST_OUT = 8, MOST_ROW = 2 * TN_OP_MOST_FIXED + 2 };

struct registered {
    struct tn_op_kind kind;
    struct tn_op_definition definition; /* its strings are ours */
};

static struct registered *ops[MOST_OPS];
static uint32_t n_ops; /* written last, so that readers need no lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct registered *registered_of(uint32_t opcode)
{
    uint32_t n = __atomic_load_n(&n_ops, __ATOMIC_ACQUIRE);
    return opcode >= TN_OP_FIRST_PLUGIN && opcode - TN_OP_FIRST_PLUGIN < n ? ops[opcode - TN_OP_FIRST_PLUGIN] : NULL;
}

const struct tn_op_kind *tn_op_plugin_kind(uint32_t opcode)
{
    const struct registered *r = registered_of(opcode);
    return r ? &r->kind : NULL;
}

uint32_t tn_op_plugin_find(const char *name)
{
    uint32_t n = __atomic_load_n(&n_ops, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(ops[i]->kind.name, name) == 0)
            return TN_OP_FIRST_PLUGIN + i;
    return TN_OP_NONE;
}

/* calling back */

/* The host's side of a call. */
struct call {
    struct tn_op_call public; /* first: call-backs hand it back */
    struct tn_autodiff *ad;
};

static void set_output(const struct tn_op_call *call, uint32_t index, uint32_t dtype, int32_t rank,
                       const int64_t *shape)
{
    struct tn_program *p = call->program;
    int bad = index >= p->ops[call->op].n_out || tn_dtype_bytes(dtype) == 0 || rank < 0 || rank > TN_MAX_DIMS;
    for (int32_t d = 0; !bad && d < rank; d++)
        bad = shape[d] < 1;
    if (bad) {
        tn_program_error(p, call->op, "its plugin sets output %u to %d dimensions of dtype %u", index, rank, dtype);
        return;
    }
    struct tn_value_data *v = &p->values[p->ops[call->op].out[index]];
    v->dtype = dtype;
    v->rank = rank;
    for (int32_t d = 0; d < TN_MAX_DIMS; d++)
        v->shape[d] = d < rank ? shape[d] : 1;
}

static int good_value(const struct tn_op_call *call, tn_value v)
{
    if (((const struct call *)call)->ad && v > 0 && v <= call->program->n_values)
        return 1;
    tn_program_error(call->program, call->op,
                     "its plugin asks for the gradient of a value %u that does not exist, or at another time", v);
    return 0;
}

static tn_value gradient(const struct tn_op_call *call, tn_value v)
{
    return good_value(call, v) ? ((const struct call *)call)->ad->grad[v] : 0;
}

static void add_gradient(const struct tn_op_call *call, tn_value v, tn_value term)
{
    struct tn_program *p = call->program;
    struct tn_autodiff *ad = ((const struct call *)call)->ad;
    if (!good_value(call, v) || !good_value(call, term))
        return;
    if (p->values[v].kind != TN_KIND_PARAM) {
        tn_grad_add(p, ad, v, term);
        return;
    }
    tn_value acc = tn_grad_acc(p, ad, v);
    const char *name = tn_arena_printf(&p->arena, "%s.sum", p->values[term].name);
    tn_grad_set(p, ad, v, tn_op_new(p, TN_OP_ACCUMULATE, name, (tn_value[]){ term, acc }, 2, NULL, 0));
}

/* Rules read a program that they do not change, but may have to report an error of the plugin in it. */
static struct call begin(const struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    return (struct call){ .ad = ad,
                          .public = { .struct_size = sizeof(struct tn_op_call),
                                      .op = op,
                                      .program = (struct tn_program *)p,
                                      .read = tn_program_api_get("tn.program/1"),
                                      .edit = tn_program_api_get("tn.program_edit/1"),
                                      .set_output = set_output,
                                      .gradient = gradient,
                                      .add_gradient = add_gradient } };
}

static const struct tn_op_definition *definition_of(const struct tn_program *p, tn_op op)
{
    return &registered_of(p->ops[op].opcode)->definition;
}

static const struct tn_op_kind *like_of(const struct tn_program *p, tn_op op)
{
    uint32_t like = definition_of(p, op)->like;
    return like ? tn_op_kind(like) : NULL;
}

static void shape(struct tn_program *p, tn_op op)
{
    const struct tn_op_definition *d = definition_of(p, op);
    struct call call = begin(p, op, NULL);
    if (d->shape)
        d->shape(&call.public);
    else
        like_of(p, op)->shape(p, op);
}

static int bad_row(const struct tn_program *p, tn_op op, const char *text, size_t length)
{
    tn_program_error((struct tn_program *)p, op,
                     "its plugin gives the row %.*s; a row has a letter R, P, M, F, L or a digit for "
                     "each input, '>' and one for each output, and there are at most %d",
                     (int)length, text, (int)TN_MOST_ROWS / 2);
    return 0;
}

static int is_row(const struct tn_op_kind *kind, const char *text, size_t length)
{
    size_t in = strcspn(text, "> "), all = strspn(text, "RPMFL012345>");
    return all == length && length < MOST_ROW && text[in] == '>' && in == kind->n_in_names &&
           length == in + 1 + kind->n_out;
}

static int rows_of_text(const struct tn_program *p, tn_op op, int32_t axis, const char *text, struct tn_row *rows,
                        int most)
{
    enum { MOST_GIVEN = TN_MOST_ROWS / 2 };
    char copy[MOST_GIVEN][MOST_ROW];
    const char *specs[MOST_GIVEN + 1];
    int n = 0;
    for (; *text; text += strspn(text, " ")) {
        size_t length = strcspn(text, " ");
        if (n == MOST_GIVEN || !is_row(tn_op_kind(p->ops[op].opcode), text, length))
            return bad_row(p, op, text, length);
        memcpy(copy[n], text, length);
        copy[n][length] = 0;
        specs[n] = copy[n];
        text += length;
        n++;
    }
    specs[n] = NULL;
    return tn_place_rows(p, op, axis, specs, rows, most);
}

static int place(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    const struct tn_op_definition *d = definition_of(p, op);
    struct call call = begin(p, op, NULL);
    const char *text = d->rows ? d->rows(&call.public, axis) : NULL;
    if (text)
        return rows_of_text(p, op, axis, text, rows, most);
    const struct tn_op_kind *like = like_of(p, op);
    int n = like && like->place ? like->place(p, op, axis, rows, most) : 0;
    for (int row = 0; row < n; row++)
        for (uint32_t i = like->n_in_names; i < p->ops[op].n_in; i++)
            rows[row].in[i] = TN_REPLICATE;
    return n;
}

static void grad(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    const struct tn_op_definition *d = definition_of(p, op);
    struct call call = begin(p, op, ad);
    if (d->grad)
        d->grad(&call.public);
    else
        like_of(p, op)->grad(p, op, ad);
}

static void cost(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    const struct tn_op_definition *d = definition_of(p, op);
    const struct tn_op_kind *like = like_of(p, op);
    struct call call = begin(p, op, NULL);
    *flops = *bytes = 0;
    if (d->cost)
        d->cost(&call.public, flops, bytes);
    else if (like && like->cost)
        like->cost(p, op, flops, bytes);
    else
        cost_memory(p, op, flops, bytes);
}

/* registering */

static int is_name(const char *name)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t vendor = strspn(name, word), rest = name[vendor] == '.' ? strspn(name + vendor + 1, word) : 0;
    return vendor > 0 && rest > 0 && name[vendor + 1 + rest] == 0 && strlen(name) < 64;
}

/* "o=i" and "o~i" with numbers below n_out and n_in. */
static int is_alias(const char *text, uint32_t n_in, uint32_t n_out)
{
    while (*text) {
        char *end;
        if (text[0] < '0' || text[0] > '7' || (uint32_t)(text[0] - '0') >= n_out ||
            (text[1] != '=' && text[1] != '~') || text[2] < '0' || text[2] > '9' ||
            strtoul(text + 2, &end, 10) >= n_in || (*end && *end != ' '))
            return 0;
        text = end + strspn(end, " ");
    }
    return 1;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

/* What is wrong with the definition; NULL: nothing. */
static const char *fault(const struct tn_op_definition *d)
{
    const struct tn_op_kind *like = tn_op_kind(d->like);
    if (!d->name || !is_name(d->name))
        return "its name must be vendor.name, of letters, digits and _";
    if (d->like && (!like || d->like >= TN_OP_CORE_END || like->max_in == UINT32_MAX))
        return "it is like no core op of a fixed number of inputs";
    if (!d->like && (!d->shape || !d->rows))
        return "it is like no core op, and so needs shape and rows";
    uint32_t n_in = tn_op_words(or_empty(d->ins)), n_out = tn_op_words(or_empty(d->outs));
    if (n_in > TN_OP_MOST_FIXED || n_out > MOST_OUT || strstr(or_empty(d->ins), "..."))
        return "it has more than 12 inputs or 8 outputs";
    if (like && (n_in < like->n_in_names || (!d->shape && n_out != like->n_out)))
        return "it has fewer inputs, or other outputs, than the op that it is like";
    if (!is_alias(or_empty(d->alias), n_in, n_out))
        return "its alias names no input or output";
    return NULL;
}

/* The same op, whoever asks: its call-backs are the first one's. */
static int is_same(const struct tn_op_definition *a, const struct tn_op_definition *b)
{
    return a->like == b->like && a->flags == b->flags && strcmp(a->ins, or_empty(b->ins)) == 0 &&
           strcmp(a->outs, or_empty(b->outs)) == 0 && strcmp(a->attrs, or_empty(b->attrs)) == 0 &&
           strcmp(a->alias, or_empty(b->alias)) == 0;
}

/* Own copies of all strings; 0 without memory. */
static int copy_strings(struct registered *r, const char *plugin, const struct tn_op_definition *from)
{
    struct tn_op_definition *d = &r->definition;
    const struct {
        const char **to, *text;
    } strings[] = {
        { &d->name, from->name },   { &d->ins, from->ins }, { &d->outs, from->outs },    { &d->attrs, from->attrs },
        { &d->alias, from->alias }, { &d->doc, from->doc }, { &r->kind.plugin, plugin },
    };
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        *strings[i].to = strdup(or_empty(strings[i].text));
        if (!*strings[i].to)
            return 0; /* what was copied stays with the process, which has no memory left anyway */
    }
    return 1;
}

static tn_status append(const char *plugin, const struct tn_op_definition *d, uint32_t *opcode)
{
    struct registered *r = calloc(1, sizeof *r);
    if (!r)
        return TN_NO_MEMORY;
    r->definition = *d;
    if (!copy_strings(r, plugin, d))
        return TN_NO_MEMORY;
    const struct tn_op_kind *like = tn_op_kind(d->like);
    const struct tn_op_definition *own = &r->definition;
    r->kind.name = own->name;
    r->kind.ins = own->ins;
    r->kind.outs = own->outs;
    r->kind.attrs = own->attrs;
    r->kind.alias = own->alias;
    r->kind.doc = own->doc;
    r->kind.like = d->like;
    r->kind.flags = d->flags;
    r->kind.shape = shape;
    r->kind.place = place;
    r->kind.cost = cost;
    r->kind.grad = d->grad || (like && like->grad) ? grad : NULL;
    if (!tn_op_kind_parse(&r->kind))
        return TN_NO_MEMORY;
    ops[n_ops] = r;
    *opcode = TN_OP_FIRST_PLUGIN + n_ops;
    __atomic_store_n(&n_ops, n_ops + 1, __ATOMIC_RELEASE);
    return TN_OK;
}

/* As much of the caller's definition as it has. */
static struct tn_op_definition as_given(const struct tn_op_definition *d)
{
    struct tn_op_definition given = { 0 };
    memcpy(&given, d, d->struct_size < sizeof given ? d->struct_size : sizeof given);
    given.struct_size = sizeof given;
    return given;
}

tn_status tn_op_add(const char *plugin, const struct tn_op_definition *definition, uint32_t *opcode, char *error,
                    size_t error_bytes)
{
    struct tn_op_definition d = as_given(definition);
    const char *why = fault(&d);
    tn_status status = TN_OK;
    if (why) {
        snprintf(error, error_bytes, "op %.80s cannot be registered: %s", or_empty(d.name), why);
        return TN_INVALID;
    }
    pthread_mutex_lock(&lock);
    const struct registered *known = registered_of(tn_op_plugin_find(d.name));
    if (known && !is_same(&known->definition, &d)) {
        snprintf(error, error_bytes, "op %s cannot be registered: %s has registered another one of that name", d.name,
                 known->kind.plugin);
        status = TN_CONFLICT;
    } else if (known) {
        *opcode = tn_op_plugin_find(d.name);
    } else if (n_ops == MOST_OPS) {
        snprintf(error, error_bytes, "op %s cannot be registered: there are %d already", d.name, MOST_OPS);
        status = TN_CONFLICT;
    } else if ((status = append(plugin, &d, opcode)) != TN_OK) {
        snprintf(error, error_bytes, "no memory for op %s", d.name);
    }
    pthread_mutex_unlock(&lock);
    return status;
}
