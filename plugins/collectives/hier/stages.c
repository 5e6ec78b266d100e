/* Stages: what each operation does down, across and up. H hosts with m members each, member (h, k) in place k of host
 * h.
 *
 *     all_reduce      reduce_scatter | all_reduce of the part on each rail | all_gather
 *       small         all_reduce     | all_reduce by the first of each host | broadcast
 *     reduce_scatter  reduce_scatter of blocks [k][h] | reduce_scatter on the rail |
 *     all_gather                     | all_gather on the rail | all_gather
 *     all_to_all      all_to_all of blocks [k][h] | all_to_all on the rail |
 *     broadcast       (to the rail, if the root has none) | broadcast on the rail | broadcast
 *     barrier         barrier | barrier | barrier
 *
 * A rail is the members in the same place on each host, so a byte crosses between two hosts once. Where hosts have
 * different numbers of members there is one rail, of the first on each host, and blocks are padded to the most:
 *
 *     all_reduce, small   as above
 *     reduce_scatter  all_reduce of blocks [h][k] | reduce_scatter | broadcast, each takes its own
 *     all_gather      all_gather | all_gather | broadcast
 *     all_to_all                 | all_to_all of all members |
 *
 * Sums are in the order of members inside a host, then in the order of hosts, in fp32 for bf16. */
#include <string.h>

#include "hier.h"

static int is_wide(const struct tn_request *r)
{
    return r->call.dtype == TN_BF16 && r->call.red == TN_RED_SUM &&
           (r->call.op == TN_CALL_ALL_REDUCE || r->call.op == TN_CALL_REDUCE_SCATTER);
}

static uint32_t work_dtype(const struct tn_request *r)
{
    return is_wide(r) ? TN_F32 : r->call.dtype;
}

static uint64_t work_bytes(const struct tn_request *r)
{
    return is_wide(r) ? 4 : r->esize;
}

/* ---- cutting ---- */

static void cut_all_reduce(const struct tn_request *r, struct piece *p)
{
    const struct tn_comm *c = r->comm;
    uint64_t left = r->call.count - r->planned, m = (uint64_t)c->most, chunk = c->hier->chunk_bytes / work_bytes(r);
    chunk = chunk < m ? m : chunk - chunk % m;
    p->length = left < chunk ? left : chunk;
    p->is_small = !c->is_even || r->call.count * r->esize <= c->hier->small_bytes || left < m;
    if (!p->is_small)
        p->length -= p->length % m;
}

int hier_cut(struct tn_request *r, struct piece *p)
{
    const struct tn_comm *c = r->comm;
    const struct tn_call *a = &r->call;
    uint64_t chunk = c->hier->chunk_bytes / (work_bytes(r) * (uint64_t)c->n);
    if (a->op == TN_CALL_BARRIER) {
        if (r->planned++)
            return 0;
        return 1;
    }
    if (r->planned == a->count)
        return 0;
    p->at = r->planned;
    if (a->op == TN_CALL_ALL_REDUCE) {
        cut_all_reduce(r, p);
    } else {
        if (a->op == TN_CALL_BROADCAST)
            chunk = c->hier->chunk_bytes / r->esize;
        if (a->op == TN_CALL_ALL_TO_ALL && !c->is_even)
            chunk = a->count;
        chunk = chunk ? chunk : 1;
        p->length = a->count - r->planned < chunk ? a->count - r->planned : chunk;
    }
    r->planned += p->length;
    return 1;
}

/* ---- scratch ---- */

static char *scratch(struct piece *p, uint64_t bytes)
{
    const struct tn_host *host = p->op->comm->hier->host;
    if (p->scratch_bytes >= bytes)
        return p->scratch;
    host->release(host, p->scratch);
    p->scratch = host->alloc(host, bytes);
    p->scratch_bytes = p->scratch ? bytes : 0;
    return p->scratch;
}

static tn_status no_memory(const struct piece *p)
{
    const struct tn_host *host = p->op->comm->hier->host;
    return host->fail(host, TN_NO_MEMORY, "hier: no memory for a piece of an operation");
}

/* Copies a member's block between its place in the user's buffer and one in scratch. */
static void put_block(const struct piece *p, char *to, const char *from)
{
    const struct tn_request *r = p->op;
    if (is_wide(r))
        hier_widen((float *)to, from, p->length);
    else
        memcpy(to, from, p->length * r->esize);
}

static void take_block(const struct piece *p, char *to, const char *from)
{
    const struct tn_request *r = p->op;
    if (is_wide(r))
        hier_narrow(to, (const float *)from, p->length);
    else
        memcpy(to, from, p->length * r->esize);
}

/* Place of member (h, k) among blocks in scratch: by place first where all hosts are alike, else by host. */
static uint64_t block_of(const struct tn_comm *c, int32_t h, int32_t k)
{
    return c->is_even ? (uint64_t)(k * c->n_hosts + h) : (uint64_t)(h * c->most + k);
}

/* ---- calls below ---- */

static tn_status gather(struct piece *p, const struct side *s, struct tn_comm *group, const char *from, char *to,
                        uint64_t count)
{
    p->side = s;
    return s->table->all_gather(group, from, to, count, work_dtype(p->op), NULL, &p->below);
}

static tn_status scatter(struct piece *p, const struct side *s, struct tn_comm *group, const char *from, char *to,
                         uint64_t count)
{
    p->side = s;
    return s->table->reduce_scatter(group, from, to, count, work_dtype(p->op), p->op->call.red, NULL, &p->below);
}

static tn_status reduce(struct piece *p, const struct side *s, struct tn_comm *group, const char *from, char *to,
                        uint64_t count)
{
    p->side = s;
    return s->table->all_reduce(group, from, to, count, work_dtype(p->op), p->op->call.red, NULL, &p->below);
}

static tn_status spread(struct piece *p, const struct side *s, struct tn_comm *group, char *x, uint64_t count,
                        uint32_t dtype, int32_t root)
{
    p->side = s;
    return s->table->broadcast(group, x, x, count, dtype, root, NULL, &p->below);
}

/* ---- all_reduce ---- */

static tn_status all_reduce(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    struct tn_comm *c = r->comm;
    const struct hier *h = c->hier;
    int32_t k = c->local[c->me];
    uint64_t e = work_bytes(r), part = p->length / (uint64_t)c->most;
    char *result = r->call.recv + p->at * r->esize;
    const char *from = r->call.send + p->at * r->esize;
    char *work = result;
    if (is_wide(r)) {
        work = scratch(p, p->length * e);
        if (!work)
            return no_memory(p);
        if (stage == DOWN)
            hier_widen((float *)work, from, p->length);
        from = work;
    }
    char *mine = work + (uint64_t)k * part * e;
    if (p->is_small) {
        if (stage == DOWN)
            return reduce(p, &h->inner, c->down, from, work, p->length);
        if (stage == ACROSS)
            return k == 0 ? reduce(p, &h->outer, c->rail, work, work, p->length) : TN_OK;
        return spread(p, &h->inner, c->up, result, p->length, r->call.dtype, 0);
    }
    if (stage == DOWN)
        return scatter(p, &h->inner, c->down, from, mine, part);
    if (stage == ACROSS)
        return reduce(p, &h->outer, c->rail, mine, mine, part);
    p->side = &h->inner;
    return h->inner.table->all_gather(c->up, result + (uint64_t)k * part * r->esize, result, part, r->call.dtype, NULL,
                                      &p->below);
}

/* The sum is whole in fp32: it is rounded where it lies, before it goes up. */
static void all_reduce_ended(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_comm *c = r->comm;
    int32_t k = c->local[c->me];
    char *result = r->call.recv + p->at * r->esize;
    uint64_t part = p->length / (uint64_t)c->most;
    if (stage != ACROSS || !is_wide(r))
        return;
    if (!p->is_small)
        hier_narrow(result + (uint64_t)k * part * r->esize, (float *)p->scratch + (uint64_t)k * part, part);
    else if (k == 0)
        hier_narrow(result, (float *)p->scratch, p->length);
}

/* ---- reduce_scatter ---- */

static tn_status reduce_scatter(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    struct tn_comm *c = r->comm;
    const struct hier *h = c->hier;
    uint64_t e = work_bytes(r), block = p->length * e, blocks = (uint64_t)(c->n_hosts * c->most);
    char *s = scratch(p, (blocks + 1) * block);
    if (!s)
        return no_memory(p);
    int32_t k = c->local[c->me], host = c->host[c->me];
    char *mine = c->is_even ? s + (uint64_t)(k * c->n_hosts) * block : s + (uint64_t)(host * c->most) * block;
    if (stage == DOWN) {
        for (int32_t i = 0; i < c->n; i++)
            put_block(p, s + block_of(c, c->host[i], c->local[i]) * block,
                      r->call.send + ((uint64_t)i * r->call.count + p->at) * r->esize);
        for (int32_t g = 0; !c->is_even && g < c->n_hosts; g++)
            for (int32_t i = 0; i < c->most; i++)
                if (c->member[g * c->most + i] < 0)
                    memset(s + block_of(c, g, i) * block, 0, block);
        return c->is_even ? scatter(p, &h->inner, c->down, s, mine, (uint64_t)c->n_hosts * p->length)
                          : reduce(p, &h->inner, c->down, s, s, blocks * p->length);
    }
    if (stage == ACROSS && c->is_even)
        return scatter(p, &h->outer, c->rail, mine, s + blocks * block, p->length);
    if (stage == ACROSS)
        return k == 0 ? scatter(p, &h->outer, c->rail, s, mine, (uint64_t)c->most * p->length) : TN_OK;
    return c->is_even ? TN_OK : spread(p, &h->inner, c->up, mine, (uint64_t)c->most * p->length, work_dtype(r), 0);
}

static void reduce_scatter_ended(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_comm *c = r->comm;
    uint64_t block = p->length * work_bytes(r);
    uint64_t at =
        c->is_even ? (uint64_t)(c->n_hosts * c->most) : (uint64_t)(c->host[c->me] * c->most + c->local[c->me]);
    if (stage == UP)
        take_block(p, r->call.recv + p->at * r->esize, p->scratch + at * block);
}

/* ---- all_gather ---- */

static tn_status all_gather(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    struct tn_comm *c = r->comm;
    const struct hier *h = c->hier;
    uint64_t block = p->length * r->esize, hosts = (uint64_t)c->n_hosts;
    char *s = scratch(p, hosts * (uint64_t)c->most * block);
    if (!s)
        return no_memory(p);
    const char *from = r->call.send + p->at * r->esize;
    int32_t k = c->local[c->me];
    char *mine = s + (c->is_even ? (uint64_t)k * hosts : (uint64_t)(c->host[c->me] * c->most)) * block;
    if (c->is_even) {
        if (stage == DOWN)
            return TN_OK;
        return stage == ACROSS ? gather(p, &h->outer, c->rail, from, mine, p->length)
                               : gather(p, &h->inner, c->up, mine, s, hosts * p->length);
    }
    if (stage == DOWN)
        return gather(p, &h->inner, c->down, from, mine, p->length);
    if (stage == ACROSS)
        return k == 0 ? gather(p, &h->outer, c->rail, mine, s, (uint64_t)c->most * p->length) : TN_OK;
    return spread(p, &h->inner, c->up, s, hosts * (uint64_t)c->most * p->length, r->call.dtype, 0);
}

static void all_gather_ended(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_comm *c = r->comm;
    uint64_t block = p->length * r->esize;
    for (int32_t i = 0; stage == UP && i < c->n; i++)
        memcpy(r->call.recv + ((uint64_t)i * r->call.count + p->at) * r->esize,
               p->scratch + block_of(c, c->host[i], c->local[i]) * block, block);
}

/* ---- all_to_all ---- */

/* Two halves of scratch: blocks to give, blocks got. */
static tn_status all_to_all(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_call *a = &r->call;
    struct tn_comm *c = r->comm;
    const struct hier *h = c->hier;
    if (!c->is_even) {
        if (stage != ACROSS)
            return TN_OK;
        p->side = &h->outer;
        return h->outer.table->all_to_all(c->all, a->send, a->recv, a->count, a->dtype, NULL, &p->below);
    }
    uint64_t block = p->length * r->esize, half = (uint64_t)c->n * block;
    char *give = scratch(p, 2 * half), *got = give + half;
    if (!give)
        return no_memory(p);
    if (stage == DOWN) {
        for (int32_t i = 0; i < c->n; i++)
            memcpy(give + block_of(c, c->host[i], c->local[i]) * block,
                   a->send + ((uint64_t)i * a->count + p->at) * r->esize, block);
        p->side = &h->inner;
        return h->inner.table->all_to_all(c->down, give, got, (uint64_t)c->n_hosts * p->length, a->dtype, NULL,
                                          &p->below);
    }
    if (stage == UP)
        return TN_OK;
    p->side = &h->outer;
    return h->outer.table->all_to_all(c->rail, give, got, (uint64_t)c->most * p->length, a->dtype, NULL, &p->below);
}

static void all_to_all_ended(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_comm *c = r->comm;
    uint64_t block = p->length * r->esize, half = (uint64_t)c->n * block;
    char *give = p->scratch, *got = give + half;
    if (!c->is_even)
        return;
    if (stage == DOWN) /* got [from k][to h]; to be given [to h][from k] */
        for (int32_t k = 0; k < c->most; k++)
            for (int32_t h = 0; h < c->n_hosts; h++)
                memcpy(give + (uint64_t)(h * c->most + k) * block, got + (uint64_t)(k * c->n_hosts + h) * block, block);
    if (stage == ACROSS) /* got [from h][from k] */
        for (int32_t i = 0; i < c->n; i++)
            memcpy(r->call.recv + ((uint64_t)i * r->call.count + p->at) * r->esize,
                   got + (uint64_t)(c->host[i] * c->most + c->local[i]) * block, block);
}

/* ---- broadcast and barrier ---- */

static tn_status broadcast(struct piece *p, int stage)
{
    const struct tn_request *r = p->op;
    const struct tn_call *a = &r->call;
    struct tn_comm *c = r->comm;
    const struct hier *h = c->hier;
    int32_t place = c->local[a->peer], rail = c->is_even ? place : 0, is_here = c->host[a->peer] == c->host[c->me];
    char *x = a->recv + p->at * r->esize;
    if (stage == DOWN) {
        if (c->me == a->peer && a->send != a->recv)
            memcpy(x, a->send + p->at * r->esize, p->length * r->esize);
        return is_here && place != rail ? spread(p, &h->inner, c->down, x, p->length, a->dtype, place) : TN_OK;
    }
    if (stage == ACROSS)
        return c->local[c->me] == rail ? spread(p, &h->outer, c->rail, x, p->length, a->dtype, c->host[a->peer])
                                       : TN_OK;
    return is_here && place != rail ? TN_OK : spread(p, &h->inner, c->up, x, p->length, a->dtype, rail);
}

static tn_status barrier(struct piece *p, int stage)
{
    struct tn_comm *c = p->op->comm;
    const struct hier *h = c->hier;
    if (stage == ACROSS && c->local[c->me] != 0)
        return TN_OK;
    p->side = stage == ACROSS ? &h->outer : &h->inner;
    return p->side->table->barrier(stage == DOWN ? c->down : stage == UP ? c->up : c->rail, NULL, &p->below);
}

/* ---- by operation ---- */

tn_status hier_issue(struct piece *p, int stage)
{
    switch (p->op->call.op) {
    case TN_CALL_ALL_REDUCE: return all_reduce(p, stage);
    case TN_CALL_REDUCE_SCATTER: return reduce_scatter(p, stage);
    case TN_CALL_ALL_GATHER: return all_gather(p, stage);
    case TN_CALL_ALL_TO_ALL: return all_to_all(p, stage);
    case TN_CALL_BROADCAST: return broadcast(p, stage);
    default: return barrier(p, stage);
    }
}

void hier_ended(struct piece *p, int stage)
{
    if (p->op->call.op == TN_CALL_ALL_REDUCE)
        all_reduce_ended(p, stage);
    else if (p->op->call.op == TN_CALL_REDUCE_SCATTER)
        reduce_scatter_ended(p, stage);
    else if (p->op->call.op == TN_CALL_ALL_GATHER)
        all_gather_ended(p, stage);
    else if (p->op->call.op == TN_CALL_ALL_TO_ALL)
        all_to_all_ended(p, stage);
}
