/* Ops: ops.def as a table with the runtime's rules (rules.h). Read-only after the first use. */
#include "program/ops.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "program/rules.h"

static struct tn_op_kind kinds[TN_OP_CORE_END] = {
#define TN_OP(id, ID, i, o, a, al, sh, pl, gr, co, lo, d)                                                               \
    [TN_OP_##ID] = { .name = #id, .ins = i, .outs = o, .attrs = a, .alias = al, .doc = d, .shape = shape_##sh,         \
                     .place = place_##pl, .grad = grad_##gr, .cost = cost_##co, .lower = lower_##lo },
#include <tenon/ops.def>
#undef TN_OP
};

static char names_memory[16 << 10]; /* the words of ins and outs, NUL separated */
static size_t names_used;

/* The words of "a b? c...", their marks cut off; returns how many. */
static uint32_t words(const char *text, const char **names, uint32_t *required, int *variadic)
{
    uint32_t n = 0;
    *required = 0;
    *variadic = 0;
    while (*text) {
        size_t length = strcspn(text, " "), bare = strcspn(text, " ?.");
        assert(n < TN_OP_MOST_FIXED && names_used + bare + 1 <= sizeof names_memory);
        char *name = names_memory + names_used;
        memcpy(name, text, bare);
        names_used += bare + 1;
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

static void parse_kinds(void)
{
    for (uint32_t op = 1; op < TN_OP_CORE_END; op++) {
        struct tn_op_kind *kind = &kinds[op];
        uint32_t required;
        int variadic;
        kind->n_out = words(kind->outs, kind->out_names, &required, &variadic);
        kind->n_in_names = words(kind->ins, kind->in_names, &kind->min_in, &variadic);
        kind->max_in = variadic ? UINT32_MAX : kind->n_in_names;
        parse_alias(kind);
    }
}

static pthread_once_t parsed = PTHREAD_ONCE_INIT;

const struct tn_op_kind *tn_op_kind(uint32_t opcode)
{
    pthread_once(&parsed, parse_kinds);
    return opcode > TN_OP_NONE && opcode < TN_OP_CORE_END ? &kinds[opcode] : NULL;
}

uint32_t tn_op_by_name(const char *name)
{
    for (uint32_t op = 1; op < TN_OP_CORE_END; op++)
        if (strcmp(kinds[op].name, name) == 0)
            return op;
    return TN_OP_NONE;
}

static const struct { uint32_t dtype; const char *name; } dtypes[] = {
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
