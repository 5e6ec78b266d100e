/* Ops: ops.def as a table with the runtime's rules (rules.h), read-only after the first use; and what plugins
 * registered (ops_plugin.c). */
#include "program/ops.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "program/ops_plugin.h"
#include "program/rules.h"

static struct tn_op_kind kinds[TN_OP_CORE_END] = {
#define TN_OP(id, ID, i, o, a, al, sh, pl, gr, co, lo, d) \
    [TN_OP_##ID] = { .name = #id,                         \
                     .ins = i,                            \
                     .outs = o,                           \
                     .attrs = a,                          \
                     .alias = al,                         \
                     .doc = d,                            \
                     .shape = shape_##sh,                 \
                     .place = place_##pl,                 \
                     .grad = grad_##gr,                   \
                     .cost = cost_##co,                   \
                     .lower = lower_##lo },
#include <tenon/ops.def>
#undef TN_OP
};

uint32_t tn_op_words(const char *text)
{
    uint32_t n = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        text += strcspn(text, " ");
        n++;
    }
    return n;
}

/* The words of "a b? c...", their marks cut off and put one after the other at *memory; returns how many. */
static uint32_t words(const char *text, const char **names, uint32_t *required, int *variadic, char **memory)
{
    uint32_t n = 0;
    *required = 0;
    *variadic = 0;
    while (*text) {
        size_t length = strcspn(text, " "), bare = strcspn(text, " ?.");
        assert(n < TN_OP_MOST_FIXED);
        char *name = *memory;
        memcpy(name, text, bare);
        name[bare] = 0;
        *memory += bare + 1;
        names[n++] = name;
        if (bare == length || text[bare] == '.')
            *required = n;
        *variadic |= bare < length && text[bare] == '.';
        text += length;
        text += strspn(text, " ");
    }
    return n;
}

static void parse_alias(struct tn_op_kind *kind)
{
    for (int i = 0; i < TN_OP_MOST_FIXED; i++)
        kind->must_alias[i] = -1;
    for (const char *at = kind->alias; *at; at += strspn(at, " ")) {
        char *end;
        long out = at[0] - '0', in = strtol(at + 2, &end, 10);
        assert(out >= 0 && out < TN_OP_MOST_FIXED && end > at + 2 && in >= 0 && in < TN_OP_MOST_FIXED);
        if (at[1] == '=')
            kind->must_alias[out] = (int8_t)in;
        else
            kind->may_alias[out] |= 1u << in;
        at = end;
    }
}

static void parse_kind(struct tn_op_kind *kind, char **memory)
{
    uint32_t required;
    int variadic;
    kind->n_out = words(kind->outs, kind->out_names, &required, &variadic, memory);
    kind->n_in_names = words(kind->ins, kind->in_names, &kind->min_in, &variadic, memory);
    kind->max_in = variadic ? UINT32_MAX : kind->n_in_names;
    parse_alias(kind);
}

int tn_op_kind_parse(struct tn_op_kind *kind)
{
    char *memory = malloc(strlen(kind->ins) + strlen(kind->outs) + 2); /* for the life of the process */
    if (memory)
        parse_kind(kind, &memory);
    return memory != NULL;
}

static void parse_kinds(void)
{
    static char memory[16 << 10];
    char *at = memory;
    for (uint32_t op = 1; op < TN_OP_CORE_END; op++) {
        assert((size_t)(at - memory) + strlen(kinds[op].ins) + strlen(kinds[op].outs) + 2 <= sizeof memory);
        parse_kind(&kinds[op], &at);
    }
}

static pthread_once_t parsed = PTHREAD_ONCE_INIT;

const struct tn_op_kind *tn_op_kind(uint32_t opcode)
{
    pthread_once(&parsed, parse_kinds);
    if (opcode >= TN_OP_FIRST_PLUGIN)
        return tn_op_plugin_kind(opcode);
    return opcode > TN_OP_NONE && opcode < TN_OP_CORE_END ? &kinds[opcode] : NULL;
}

uint32_t tn_op_by_name(const char *name)
{
    for (uint32_t op = 1; op < TN_OP_CORE_END; op++)
        if (strcmp(kinds[op].name, name) == 0)
            return op;
    return tn_op_plugin_find(name);
}

static const struct {
    uint32_t dtype;
    const char *name;
} dtypes[] = {
#define TN_X(NAME, number, text, bytes) { number, text },
    TN_DTYPE_LIST(TN_X)
#undef TN_X
};

const char *tn_dtype_name(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "?";
}

uint32_t tn_dtype_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].dtype;
    return 0;
}
