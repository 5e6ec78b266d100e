/* Which activations move.
 *
 * A candidate is made in the forward pass, used in the backward pass, has memory of its own, is large enough and has a
 * tag, or is made by an op, that was asked for; and it is idle for longer than it takes to host memory and back, which
 * logits are not. Those come first whose bytes x idle time is largest. What another
 * strategy has claimed is left to it; if that is everything that a word of the manifest names, the manifest contradicts
 * itself. How many move follows from `share`, or from `keep`: the fewest with which the plan fits, found by halving on
 * copies of the program. */
#include "offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choosing {
    const struct offload *o;
    struct tn_program *program;
    double *begins; /* by op: seconds before it, in program order; negative: it was removed */
    tn_op most;     /* the largest id in the program */
    struct candidate *list;
    uint32_t n;
};

static const char *where(const struct offload *o)
{
    return o->activations == TN_SPACE_HOST ? "host" : "disk";
}

static int is_one_of(const char *const *words, uint32_t n, const char *word)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0)
            return 1;
    return 0;
}

/* The key that asks for what has this tag and is made by this op; NULL: none does. */
static const char *wanted_by(const struct offload *o, const char *tag, const char *op)
{
    if (is_one_of(o->tags, o->n_tags, tag))
        return "tags";
    if (is_one_of(o->ops, o->n_ops, op))
        return "ops";
    return o->n_tags || o->n_ops ? NULL : "activations";
}

static int64_t bytes_of(const struct offload *o, const struct tn_program *program, tn_value v,
                        const struct tn_value_info *info)
{
    static const uint8_t size[] = {
#define TN_X(name, number, text, bytes) [number] = bytes,
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    };
    int64_t shape[TN_MAX_DIMS], n = 1;
    o->read->local_shape(program, v, shape);
    for (int32_t d = 0; d < info->rank; d++)
        n *= shape[d];
    return info->dtype < sizeof size ? n * size[info->dtype] : 0;
}

/* Ops that name memory, and so must find it on the device. */
static int names_memory(uint32_t opcode)
{
    return opcode == TN_OP_VIEW || opcode == TN_OP_PACK || opcode == TN_OP_SYNC;
}

struct maybe {
    tn_value v;
    struct tn_value_info value;
    struct tn_op_info def;
    int64_t bytes;
    const char *key; /* that asks for it */
};

/* Made in the forward pass, and asked for. */
static int is_of_interest(const struct choosing *c, tn_value v, struct maybe *one)
{
    one->v = v;
    offload_value(c->o, c->program, v, &one->value);
    const struct tn_value_info *info = &one->value;
    if (info->kind != TN_KIND_ACTIVATION || !info->def || info->space != TN_SPACE_DEVICE ||
        (info->flags & TN_VALUE_OUTPUT))
        return 0;
    if (info->def > c->most || c->begins[info->def] < 0)
        return 0;
    offload_op(c->o, c->program, info->def, &one->def);
    if (one->def.region != TN_REGION_FORWARD || names_memory(one->def.opcode))
        return 0;
    one->bytes = bytes_of(c->o, c->program, v, info);
    one->key = wanted_by(c->o, info->tag, one->def.name);
    return one->key != NULL;
}

/* Fills its uses; 0 if it is not kept for the backward pass, or not by itself. */
static int find_uses(const struct choosing *c, struct candidate *one)
{
    const struct tn_program_api *read = c->o->read;
    one->last = one->def;
    for (tn_op user = read->user_next(c->program, one->v, 0); user; user = read->user_next(c->program, one->v, user)) {
        struct tn_op_info info;
        offload_op(c->o, c->program, user, &info);
        if (names_memory(info.opcode) || info.region == TN_REGION_STEP)
            return 0;
        if (info.region == TN_REGION_FORWARD)
            one->last = user;
        else if (!one->first)
            one->first = user;
    }
    if (!one->first)
        return 0;
    one->idle = c->begins[one->first] - c->begins[one->last];
    return one->idle > 2 * (double)one->bytes / TN_NOMINAL_HOST_BYTES; /* else it would be back before it was away */
}

static void add(struct choosing *c, const struct maybe *maybe)
{
    struct candidate one = { .v = maybe->v, .def = maybe->value.def, .bytes = maybe->bytes, .key = maybe->key };
    if (find_uses(c, &one))
        c->list[c->n++] = one;
}

static int longest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    double p = x->idle * (double)x->bytes, q = y->idle * (double)y->bytes;
    if (p != q)
        return p < q ? 1 : -1;
    return (x->v > y->v) - (x->v < y->v);
}

/* Values that somebody has claimed are theirs. */
static void find_candidates(struct choosing *c)
{
    const struct tn_program_edit_api *edit = c->o->edit;
    for (tn_value v = c->o->read->value_next(c->program, 0); v; v = c->o->read->value_next(c->program, v)) {
        struct maybe one;
        if (!is_of_interest(c, v, &one) || one.bytes < c->o->min_size)
            continue;
        if (edit->claim(c->program, v, NULL, NULL, 0)->who[0])
            edit->claim(c->program, v, where(c->o), one.key, 0);
        else
            add(c, &one);
    }
    qsort(c->list, c->n, sizeof *c->list, longest_first);
}

/* What a word of tags or ops names: whether there is any, how much of it is free to move, and a claim on the rest. */
struct named {
    int any, left;
    char who[64], key[64];
};

static void look_up(const struct choosing *c, int is_op, const char *word, struct named *named)
{
    const struct offload *o = c->o;
    *named = (struct named){ .any = 0 };
    for (tn_value v = o->read->value_next(c->program, 0); v; v = o->read->value_next(c->program, v)) {
        struct maybe one;
        if (!is_of_interest(c, v, &one) || strcmp(is_op ? one.def.name : one.value.tag, word) != 0)
            continue;
        const struct tn_claim *claim = o->edit->claim(c->program, v, NULL, NULL, 0);
        named->any = 1;
        if (!claim->who[0])
            continue;
        named->left |= (claim->flags & TN_CLAIM_CHOSEN) != 0;
        snprintf(named->who, sizeof named->who, "%s", claim->who);
        snprintf(named->key, sizeof named->key, "%s", claim->key);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct maybe one;
        named->left |= is_of_interest(c, c->list[i].v, &one) && strcmp(is_op ? one.def.name : one.value.tag, word) == 0;
    }
}

/* A word that names nothing, or what another strategy has all been told to take. */
static void refuse_word(const struct choosing *c, int is_op, const char *word)
{
    char what[256], fix[256];
    struct named named;
    look_up(c, is_op, word, &named);
    if (!named.any) {
        snprintf(what, sizeof what, is_op ? "no op of the forward pass is %.80s" : "no activation is tagged %.80s",
                 word);
        c->o->host->problem(c->o->host, is_op ? "ops" : "tags", what, "tenon dump --after grad shows them");
    } else if (!named.left && named.who[0]) {
        snprintf(what, sizeof what,
                 is_op ? "asks for what %.60s makes, all of which [%s] %s has too"
                       : "asks for the activations tagged %.60s, all of which [%s] %s has too",
                 word, named.who, named.key);
        snprintf(fix, sizeof fix, "take %.60s out, or let [%s] %s leave some of it", word, named.who, named.key);
        c->o->host->problem(c->o->host, is_op ? "ops" : "tags", what, fix);
    }
}

static int trains(const struct choosing *c)
{
    for (tn_op op = c->o->read->op_next(c->program, 0); op; op = c->o->read->op_next(c->program, op)) {
        struct tn_op_info info;
        offload_op(c->o, c->program, op, &info);
        if (info.region == TN_REGION_BACKWARD)
            return 1;
    }
    return 0;
}

/* how many */

static uint32_t share_of(const struct choosing *c)
{
    double all = 0, taken = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        all += (double)c->list[i].bytes;
    while (n < c->n && taken + (double)c->list[n].bytes / 2 <= c->o->share * all)
        taken += (double)c->list[n++].bytes;
    return n;
}

/* Bytes that the device needs with the first n away; more than any keep if that cannot be said. */
static int64_t peak_with(const struct choosing *c, uint32_t n, int32_t prefetch)
{
    const struct offload *o = c->o;
    const struct moved moved = { .list = c->list, .n = n, .prefetch = prefetch };
    struct tn_program *trial = o->plan->copy(c->program);
    if (!trial)
        return INT64_MAX;
    int64_t peak = offload_move(o, trial, &moved) == TN_OK ? o->plan->peak(o->host, trial, 0) : -1;
    o->plan->drop(trial);
    return peak >= 0 ? peak : INT64_MAX;
}

/* What [device] memory asks for and cannot be had is said where that is checked. */
static void refuse_keep(const struct choosing *c, int64_t least)
{
    char what[160], fix[80];
    if (c->o->keep == OFFLOAD_BUDGET || least == INT64_MAX || !trains(c))
        return;
    snprintf(what, sizeof what, "is too little: with all away that may go the device needs %.1f MiB",
             (double)least / 1048576);
    snprintf(fix, sizeof fix, "give %lldK or more, or auto for [device] memory", (long long)(least + 1023) / 1024);
    c->o->host->problem(c->o->host, "keep", what, fix);
}

/* The fewest, to within a 64th of all; without prefetch if all are not enough with it. */
static void take_fewest(const struct choosing *c, int64_t bytes, struct moved *moved)
{
    uint32_t low = 0, high = c->n; /* low does not fit, high does */
    moved->n = 0;
    if (peak_with(c, low, moved->prefetch) <= bytes)
        return;
    moved->n = high;
    if (peak_with(c, high, moved->prefetch) > bytes) {
        moved->prefetch = 0;
        int64_t least = peak_with(c, high, 0);
        if (least > bytes) {
            refuse_keep(c, least);
            return;
        }
    }
    while (high - low > 1 + c->n / 64) {
        uint32_t middle = low + (high - low) / 2;
        if (peak_with(c, middle, moved->prefetch) <= bytes)
            high = middle;
        else
            low = middle;
    }
    moved->n = high;
}

static tn_status time_ops(struct choosing *c)
{
    const struct tn_program_api *read = c->o->read;
    for (tn_op op = read->op_next(c->program, 0); op; op = read->op_next(c->program, op))
        c->most = op > c->most ? op : c->most;
    c->begins = c->o->host->alloc(c->o->host, ((uint64_t)c->most + 1) * sizeof *c->begins);
    if (!c->begins)
        return TN_NO_MEMORY;
    for (tn_op op = 0; op <= c->most; op++)
        c->begins[op] = -1;
    double at = 0;
    for (tn_op op = read->op_next(c->program, 0); op; op = read->op_next(c->program, op)) {
        c->begins[op] = at;
        at += c->o->plan->seconds(c->program, op);
    }
    return TN_OK;
}

tn_status offload_choose(const struct offload *o, struct tn_program *program, struct candidate **list,
                         struct moved *moved)
{
    struct choosing c = { .o = o, .program = program };
    uint64_t values = 1;
    for (tn_value v = o->read->value_next(program, 0); v; v = o->read->value_next(program, v))
        values = v + 1;
    *list = c.list = o->host->alloc(o->host, values * sizeof *c.list);
    tn_status status = c.list ? time_ops(&c) : TN_NO_MEMORY;
    if (status == TN_OK) {
        find_candidates(&c);
        for (uint32_t i = 0; trains(&c) && i < o->n_tags; i++)
            refuse_word(&c, 0, o->tags[i]);
        for (uint32_t i = 0; trains(&c) && i < o->n_ops; i++)
            refuse_word(&c, 1, o->ops[i]);
        int64_t keep = o->keep == OFFLOAD_BUDGET ? o->plan->budget(o->host) : o->keep;
        *moved = (struct moved){ .list = c.list, .n = keep > 0 ? 0 : share_of(&c), .prefetch = o->prefetch };
        if (keep > 0)
            take_fewest(&c, keep, moved);
        for (uint32_t i = 0; i < moved->n; i++)
            o->edit->claim(program, c.list[i].v, where(o), c.list[i].key, 0);
    } else {
        status = o->host->fail(o->host, status, "no memory to walk %llu values", (unsigned long long)values);
    }
    o->host->release(o->host, c.begins);
    return status;
}
