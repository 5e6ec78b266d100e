/* ckpt.check: names in `ops` that no op has. The core's opcodes are those of the ABI's table; an opcode of a plugin has
 * a dot in its name and is taken as it is, since only the program can tell. Whether the model gives a tag, only the
 * program tells too. */
#include "ckpt.h"

#include <stdio.h>
#include <string.h>

static const char *const opcodes[] = {
#define TN_OP(name, ...) #name,
#include <tenon/ops.def>
#undef TN_OP
};

enum { N_OPCODES = sizeof opcodes / sizeof opcodes[0], LONGEST = 64 };

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions and replacements from a to b (Levenshtein 1966), one row of the table at a time. */
static uint32_t distance(const char *a, const char *b)
{
    uint32_t row[LONGEST + 1], n = (uint32_t)strlen(b);
    for (uint32_t j = 0; j <= n; j++)
        row[j] = j;
    for (uint32_t i = 1; a[i - 1]; i++) {
        uint32_t diagonal = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static int is_opcode(const char *name)
{
    for (uint32_t i = 0; i < N_OPCODES; i++)
        if (strcmp(opcodes[i], name) == 0)
            return 1;
    return strchr(name, '.') != NULL;
}

/* NULL: nothing is less than a third of the letters away. */
static const char *nearest_opcode(const char *name)
{
    const char *nearest = NULL;
    uint32_t best = (uint32_t)strlen(name) / 3 + 1;
    for (uint32_t i = 0; i < N_OPCODES && strlen(name) < LONGEST; i++) {
        uint32_t d = strlen(opcodes[i]) <= LONGEST ? distance(name, opcodes[i]) : best;
        if (d < best) {
            nearest = opcodes[i];
            best = d;
        }
    }
    return nearest;
}

tn_status ckpt_check(void *self, int32_t size)
{
    const struct ckpt *ckpt = self;
    (void)size;
    if (ckpt->automatic && ckpt->plan->budget(ckpt->host) == 0)
        ckpt->host->problem(ckpt->host, "mode", "auto asks for [device] memory, which nobody says",
                            "set it, or use manual");
    for (uint32_t i = 0; i < ckpt->n_ops; i++) {
        char what[160], fix[160];
        if (is_opcode(ckpt->ops[i]))
            continue;
        const char *nearest = nearest_opcode(ckpt->ops[i]);
        snprintf(what, sizeof what, "there is no op %.80s", ckpt->ops[i]);
        if (nearest)
            snprintf(fix, sizeof fix, "did you mean %s?", nearest);
        else
            snprintf(fix, sizeof fix, "docs/ops.md lists them");
        ckpt->host->problem(ckpt->host, "ops", what, fix);
    }
    return TN_OK;
}

void ckpt_check_tags(const struct ckpt *ckpt, const struct tn_program *program)
{
    for (uint32_t i = 0; i < ckpt->n_tags; i++) {
        int found = 0;
        for (tn_value v = ckpt->read->value_next(program, 0); v && !found; v = ckpt->read->value_next(program, v)) {
            struct tn_value_info info = { .struct_size = sizeof info };
            ckpt->read->value_info(program, v, &info);
            found = strcmp(info.tag, ckpt->tags[i]) == 0;
        }
        if (found)
            continue;
        char what[160];
        snprintf(what, sizeof what, "no activation is tagged %.80s", ckpt->tags[i]);
        ckpt->host->problem(ckpt->host, "tags", what, "tenon dump --after model shows the tags");
    }
}
