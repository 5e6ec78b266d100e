/* Groups: how members find each other, and the communicators and streams that a group is. */
#include "backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t key_of(const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)n; /* FNV-1a */
    for (int32_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ranks[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

static struct times *times_of(struct nccl *b, uint64_t key)
{
    struct times *t = b->times;
    while (t && t->key != key)
        t = t->next;
    if (t)
        return t;
    t = b->host->alloc(b->host, sizeof *t);
    if (!t)
        return NULL;
    *t = (struct times){ .key = key, .next = b->times };
    b->times = t;
    return t;
}

static tn_status check_ranks(const struct nccl *b, const int32_t *ranks, int32_t n, int32_t *me)
{
    int32_t world = b->bootstrap.size;
    *me = -1;
    if (!b->is_up || n < 1 || n > world)
        return b->host->fail(b->host, TN_INVALID, "nccl: a group of %d ranks in a world of %d", (int)n, (int)world);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            return b->host->fail(b->host, TN_INVALID, "nccl: rank %d in a world of %d", (int)ranks[i], (int)world);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return b->host->fail(b->host, TN_INVALID, "nccl: rank %d twice in a group", (int)ranks[i]);
        if (ranks[i] == b->bootstrap.rank)
            *me = i;
    }
    if (*me < 0)
        return b->host->fail(b->host, TN_INVALID, "nccl: rank %d is not in the group it makes", (int)b->bootstrap.rank);
    return TN_OK;
}

/* What another member puts. */
static tn_status await(struct tn_comm *c, const char *key, void *data, uint32_t bytes, uint64_t deadline_ns)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    for (;;) {
        uint32_t got = bytes;
        tn_status status = boot->get(boot->ctx, key, data, &got);
        if (status != TN_PENDING)
            return status;
        if (boot->poll(boot->ctx) == TN_PEER)
            return TN_PEER;
        if (nccl_now_ns() >= deadline_ns)
            return TN_TIMEOUT;
        nccl_nap();
    }
}

/* Member 0 makes the id when all others are there, for NCCL cannot be told that somebody comes later. */
static tn_status meet(struct tn_comm *c, ncclUniqueId *id, uint64_t deadline_ns)
{
    struct nccl *b = c->nccl;
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[48], there[64], byte = 0;
    tn_status status = TN_OK;
    snprintf(key, sizeof key, "nccl/%016" PRIx64, c->key);
    if (c->me > 0) {
        snprintf(there, sizeof there, "%s/%d", key, (int)c->me);
        status = boot->put(boot->ctx, there, &byte, 1);
        status = status < 0 ? status : await(c, key, id, sizeof *id, deadline_ns);
        return status == TN_OK ? TN_OK
                               : b->host->fail(b->host, status,
                                               "nccl: making group %s: not all of its members "
                                               "have come",
                                               c->name);
    }
    for (int32_t i = 1; i < c->n; i++) {
        snprintf(there, sizeof there, "%s/%d", key, (int)i);
        status = await(c, there, &byte, 1, deadline_ns);
        if (status != TN_OK)
            return b->host->fail(b->host, status, "nccl: making group %s: rank %d has not come", c->name,
                                 (int)c->ranks[i]);
    }
    ncclResult_t result = ncclGetUniqueId(id);
    if (result != ncclSuccess)
        return b->host->fail(b->host, TN_ERROR, "nccl: making group %s: %s", c->name, ncclGetErrorString(result));
    status = boot->put(boot->ctx, key, id, sizeof *id);
    return status >= 0 ? TN_OK : b->host->fail(b->host, status, "nccl: making group %s: the bootstrap failed", c->name);
}

/* One of the same members that lives, to split from. */
static struct tn_comm *find_twin(const struct tn_comm *c)
{
    for (struct tn_comm *other = c->nccl->comms; other; other = other->next)
        if (other->n == c->n && !other->failed && memcmp(other->ranks, c->ranks, (size_t)c->n * sizeof *c->ranks) == 0)
            return other;
    return NULL;
}

static tn_status fail(const struct tn_comm *c, tn_status status, const char *why)
{
    return c->nccl->host->fail(c->nccl->host, status, "nccl: making group %s: %s", c->name, why);
}

/* A split that somebody does not join would keep the twin busy for ever: it fails. */
static tn_status split(struct tn_comm *c, struct tn_comm *twin, ncclConfig_t *config, uint64_t deadline_ns)
{
    tn_status status;
    ncclResult_t result = ncclCommSplit(twin->collectives.comm, 0, c->me, &c->collectives.comm, config);
    const char *why = nccl_settle(c->nccl, twin->collectives.comm, result, deadline_ns, &status);
    if (!why)
        return TN_OK;
    (void)nccl_fail_comm(twin, NULL, status, why);
    return fail(c, status, why);
}

static tn_status connect(struct tn_comm *c, struct times *times, uint64_t deadline_ns)
{
    struct nccl *b = c->nccl;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct tn_comm *twin = find_twin(c);
    ncclUniqueId id;
    const char *why = NULL;
    config.blocking = 0;
    tn_status status = twin ? split(c, twin, &config, deadline_ns) : meet(c, &id, deadline_ns);
    if (status != TN_OK)
        return status;
    times->times++; /* whatever comes of it, the id is used up */
    if (!twin) {
        ncclResult_t result = ncclCommInitRankConfig(&c->collectives.comm, c->n, id, c->me, &config);
        why = nccl_settle(b, c->collectives.comm, result, deadline_ns, &status);
    }
    return why ? fail(c, status, why) : TN_OK;
}

static tn_status make_stream(struct tn_comm *c)
{
    cudaError_t error = cudaStreamCreateWithFlags(&c->collectives.stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaMalloc(&c->word, sizeof(int32_t));
    if (error == cudaSuccess)
        error = cudaMemset(c->word, 0, sizeof(int32_t));
    return error == cudaSuccess ? TN_OK : nccl_fail_cuda(c->nccl, "making a stream", error);
}

/* In order where nothing failed: what is under way ends first. */
static void free_comm(struct tn_comm *c)
{
    const struct tn_host *host = c->nccl->host;
    nccl_lanes_end(c);
    cudaFree(c->word);
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        cudaEventDestroy(c->made->done);
        host->release(host, c->made);
        c->made = next;
    }
    host->release(host, c->ranks);
    host->release(host, c);
}

tn_status nccl_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                           struct tn_comm **comm)
{
    struct nccl *b = self;
    int32_t me;
    tn_status status = check_ranks(b, ranks, n, &me);
    if (status != TN_OK)
        return status;
    struct times *times = times_of(b, key_of(ranks, n));
    struct tn_comm *c = b->host->alloc(b->host, sizeof *c);
    int32_t *own = b->host->alloc(b->host, (uint64_t)n * sizeof *own);
    if (!times || !c || !own) {
        b->host->release(b->host, c);
        b->host->release(b->host, own);
        return b->host->fail(b->host, TN_NO_MEMORY, "nccl: no memory for a group of %d", (int)n);
    }
    memset(c, 0, sizeof *c);
    memcpy(own, ranks, (size_t)n * sizeof *own);
    c->nccl = b;
    c->n = n;
    c->me = me;
    c->collectives = (struct lane){ .peer = -1, .state = LANE_OPEN };
    c->ranks = own;
    c->key = times->key + times->times;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    status = make_stream(c);
    if (status == TN_OK)
        status = connect(c, times, nccl_deadline_after(timeout_ns));
    if (status != TN_OK) {
        nccl_lanes_abort(c);
        free_comm(c);
        return status;
    }
    c->next = b->comms;
    b->comms = c;
    for (int i = 0; i < PIECES; i++)
        if (b->pieces[i].base)
            nccl_register_piece(b, c, i);
    *comm = c;
    return TN_OK;
}

void nccl_comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct tn_comm **at = &c->nccl->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (int i = 0; i < PIECES; i++)
        if (c->handles[i] && !c->failed)
            ncclCommDeregister(c->collectives.comm, c->handles[i]);
    free_comm(c);
}

static const char *abort_key(const struct tn_comm *c, char *key, size_t bytes)
{
    snprintf(key, bytes, "nccl/%016" PRIx64 "/aborted", c->key);
    return key;
}

/* The communicators are aborted when this rank next looks at the group, and the other members when they look around. */
void nccl_comm_abort(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    char key[64];
    atomic_store(&c->aborted, 1);
    if (boot->put(boot->ctx, abort_key(c, key, sizeof key), "", 1) < 0)
        c->nccl->host->log(c->nccl->host, TN_LOG_WARN, "group %s: its abort could not be told to the others", c->name);
}

int nccl_is_aborted(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    char key[64], byte;
    uint32_t bytes = sizeof byte;
    return atomic_load(&c->aborted) || boot->get(boot->ctx, abort_key(c, key, sizeof key), &byte, &bytes) == TN_OK;
}
