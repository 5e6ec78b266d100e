/* Which activations move.
 *
 * A candidate is made in the forward pass, used in the backward pass, has memory of its own, is large enough and has a
 * tag that was asked for. Those come first whose bytes x idle time is largest. What another strategy has claimed is
 * left to it; if that is everything that a tag names, the manifest contradicts itself. How many move follows from
 * `share`, or from `keep`: the fewest with which the plan fits, found by halving on copies of the program. */
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

static const char *key_of(const struct offload *o)
{
    return o->n_tags ? "tags" : "activations";
}

static int is_wanted(const struct offload *o, const char *tag)
{
    for (uint32_t i = 0; i < o->n_tags; i++)
        if (strcmp(o->tags[i], tag) == 0)
            return 1;
    return o->n_tags == 0;
}

static int64_t bytes_of(const struct offload *o, const struct tn_program *program, tn_value v, const struct tn_value_info *info)
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

/* Made in the forward pass, large, of a tag asked for. */
static int is_of_interest(const struct choosing *c, tn_value v, struct tn_value_info *info, int64_t *bytes)
{
    struct tn_op_info def;
    offload_value(c->o, c->program, v, info);
    if (info->kind != TN_KIND_ACTIVATION || !info->def || info->space != TN_SPACE_DEVICE ||
        (info->flags & TN_VALUE_OUTPUT) || !is_wanted(c->o, info->tag))
        return 0;
    if (info->def > c->most || c->begins[info->def] < 0)
        return 0;
    offload_op(c->o, c->program, info->def, &def);
    *bytes = bytes_of(c->o, c->program, v, info);
    return def.region == TN_REGION_FORWARD && !names_memory(def.opcode) && *bytes >= c->o->min_size;
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
    return one->idle > 0;
}

static void add(struct choosing *c, tn_value v, const struct tn_value_info *info, int64_t bytes)
{
    struct candidate one = {.v = v, .def = info->def, .bytes = bytes};
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
        struct tn_value_info info;
        int64_t bytes;
        if (!is_of_interest(c, v, &info, &bytes))
            continue;
        if (edit->claim(c->program, v, NULL, NULL, 0)->who[0])
            edit->claim(c->program, v, where(c->o), key_of(c->o), 0);
        else
            add(c, v, &info, bytes);
    }
    qsort(c->list, c->n, sizeof *c->list, longest_first);
}

/* A tag whose values another strategy has all been told to take. */
static void refuse_contradictions(const struct choosing *c)
{
    const struct offload *o = c->o;
    for (uint32_t t = 0; t < o->n_tags; t++) {
        char what[256], fix[256], who[64] = "", key[64] = "";
        int left = 0, taken = 0;
        for (tn_value v = o->read->value_next(c->program, 0); v; v = o->read->value_next(c->program, v)) {
            struct tn_value_info info;
            int64_t bytes;
            if (!is_of_interest(c, v, &info, &bytes) || strcmp(info.tag, o->tags[t]) != 0)
                continue;
            const struct tn_claim *claim = o->edit->claim(c->program, v, NULL, NULL, 0);
            left += claim->who[0] && (claim->flags & TN_CLAIM_CHOSEN);
            if (!claim->who[0] || taken++)
                continue;
            snprintf(who, sizeof who, "%s", claim->who);
            snprintf(key, sizeof key, "%s", claim->key);
        }
        for (uint32_t i = 0; i < c->n; i++) {
            struct tn_value_info info;
            offload_value(o, c->program, c->list[i].v, &info);
            left += strcmp(info.tag, o->tags[t]) == 0;
        }
        if (!taken || left)
            continue;
        snprintf(what, sizeof what, "asks for the activations tagged %.60s, all of which [%s] %s has too", o->tags[t], who, key);
        snprintf(fix, sizeof fix, "take %.60s out of these tags, or let [%s] %s leave them", o->tags[t], who, key);
        o->host->problem(o->host, "tags", what, fix);
    }
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

/* The device's peak with the first n away; negative: it cannot be planned, which shows later. */
static int64_t peak_with(const struct choosing *c, uint32_t n)
{
    const struct offload *o = c->o;
    struct tn_program *trial = o->plan->copy(c->program);
    if (!trial)
        return -1;
    int64_t peak = offload_move(o, trial, c->list, n) == TN_OK ? o->plan->peak(o->host, trial, 0) : -1;
    o->plan->drop(trial);
    return peak;
}

/* The fewest, to within a 64th of all. */
static uint32_t fewest(const struct choosing *c, int64_t bytes)
{
    uint32_t low = 0, high = c->n; /* low does not fit, high does */
    if (peak_with(c, low) <= bytes)
        return low;
    if (peak_with(c, high) > bytes)
        return high; /* the most that it can do */
    while (high - low > 1 + c->n / 64) {
        uint32_t middle = low + (high - low) / 2;
        if (peak_with(c, middle) <= bytes)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static uint32_t how_many(const struct choosing *c)
{
    int64_t keep = c->o->keep == OFFLOAD_BUDGET ? c->o->plan->budget(c->o->host) : c->o->keep;
    return c->n == 0 ? 0 : keep > 0 ? fewest(c, keep) : share_of(c);
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

tn_status offload_choose(const struct offload *o, struct tn_program *program, struct candidate **list, uint32_t *taken)
{
    struct choosing c = {.o = o, .program = program};
    uint64_t values = 1;
    for (tn_value v = o->read->value_next(program, 0); v; v = o->read->value_next(program, v))
        values = v + 1;
    *list = c.list = o->host->alloc(o->host, values * sizeof *c.list);
    tn_status status = c.list ? time_ops(&c) : TN_NO_MEMORY;
    if (status == TN_OK) {
        find_candidates(&c);
        refuse_contradictions(&c);
        *taken = how_many(&c);
        for (uint32_t i = 0; i < *taken; i++)
            o->edit->claim(program, c.list[i].v, where(o), key_of(o), 0);
    } else {
        status = o->host->fail(o->host, status, "no memory to walk %llu values", (unsigned long long)values);
    }
    o->host->release(o->host, c.begins);
    return status;
}
