/* Groups: members meet in comm_create by a message from each to each, which also makes the connections; after that a
 * group is memory of this rank alone.
 *
 * A group is known by a key made of its members and by its turn among those that the same members made. Messages for
 * one that is not made here yet wait in the instance (wire.c); those for one that is gone are dropped. */
#include "backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLICE_NS = 20 * 1000 * 1000 };

static struct tn_comm **bucket_of(struct backend *b, uint64_t key, uint32_t turn)
{
    return &b->bucket[(key ^ turn) % BUCKETS];
}

struct tn_comm *ucx_comm_find(struct backend *b, uint64_t key, uint32_t turn)
{
    struct tn_comm *c = *bucket_of(b, key, turn);
    while (c && (c->key != key || c->turn != turn))
        c = c->chain;
    return c;
}

static uint64_t key_of(const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)n; /* FNV-1a */
    for (int32_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ranks[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

static struct ucx_made *made_of(struct backend *b, uint64_t key)
{
    struct ucx_made *m = b->made_groups;
    while (m && m->key != key)
        m = m->next;
    if (m)
        return m;
    m = b->host->alloc(b->host, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct ucx_made){ .key = key, .next = b->made_groups };
    b->made_groups = m;
    return m;
}

int ucx_is_over(const struct backend *b, uint64_t key, uint32_t turn)
{
    const struct ucx_made *m = b->made_groups;
    while (m && m->key != key)
        m = m->next;
    return m && turn < m->times;
}

/* ---- scratch ---- */

/* Blocks of a class have one size in a group. */
void *ucx_scratch_take(struct tn_comm *c, int class, uint64_t bytes)
{
    struct ucx_block *block = c->blocks[class];
    if (block) {
        c->blocks[class] = block->next;
        return block;
    }
    return c->backend->host->alloc(c->backend->host, bytes < sizeof *block ? sizeof *block : bytes);
}

void ucx_scratch_give(struct tn_comm *c, int class, void *memory)
{
    struct ucx_block *block = memory;
    block->next = c->blocks[class];
    c->blocks[class] = block;
}

/* ---- meeting ---- */

static struct ucx_joining *joining_of(struct backend *b, uint64_t key, uint32_t turn, int may_make)
{
    struct ucx_joining *j = b->joining;
    while (j && (j->key != key || j->turn != turn))
        j = j->next;
    if (j || !may_make)
        return j;
    j = b->host->alloc(b->host, sizeof *j + (uint64_t)b->n);
    if (!j)
        return NULL;
    memset(j, 0, sizeof *j + (uint64_t)b->n);
    j->key = key;
    j->turn = turn;
    j->next = b->joining;
    b->joining = j;
    return j;
}

static void forget_joining(struct backend *b, uint64_t key, uint32_t turn)
{
    for (struct ucx_joining **at = &b->joining; *at; at = &(*at)->next)
        if ((*at)->key == key && (*at)->turn == turn) {
            struct ucx_joining *j = *at;
            *at = j->next;
            b->host->release(b->host, j);
            return;
        }
}

void ucx_join(struct backend *b, const struct ucx_head *h)
{
    if (h->piece != 1 || h->from < 0 || h->from >= b->n || ucx_is_over(b, h->key, h->turn))
        return;
    struct ucx_joining *j = joining_of(b, h->key, h->turn, 1);
    if (j)
        j->joined[h->from] = 1;
}

/* Brings the connection to a member on its way; once it stands, tells that member. Returns whether it is told. A first
 * message would else wait here until this rank makes progress again, which may be long after its operation began. */
static int greet(struct tn_comm *c, int32_t member, uint8_t *is_told)
{
    struct ucx_peer *peer = &c->backend->peers[c->ranks[member]];
    struct ucx_head head = { .key = c->key, .turn = c->turn, .kind = KIND_JOIN, .from = c->me };
    static const char warm_up[1024];
    if (*is_told)
        return 1;
    if (!peer->is_connected && !peer->flush) {
        ucx_say(c, NULL, member, head, warm_up,
                sizeof warm_up); /* UCX connects, and gets buffers, for a first message */
        peer->flush = ucp_ep_flush_nbx(peer->ep, &(ucp_request_param_t){ 0 });
        if (UCS_PTR_IS_ERR(peer->flush)) {
            ucx_peer_failed(c->backend, c->ranks[member], UCS_PTR_STATUS(peer->flush));
            peer->flush = NULL;
            return 0;
        }
        peer->is_connected = peer->flush == NULL;
    }
    if (peer->flush && ucp_request_check_status(peer->flush) != UCS_INPROGRESS) {
        peer->is_connected = ucp_request_check_status(peer->flush) == UCS_OK;
        ucp_request_free(peer->flush);
        peer->flush = NULL;
    }
    if (peer->is_connected) {
        head.piece = 1;
        ucx_say(c, NULL, member, head, NULL, 0);
        *is_told = 1;
    }
    return *is_told;
}

/* The first member that has not come, or that this rank has not reached yet; -1: none. */
static int32_t greet_all(struct tn_comm *c, const struct ucx_joining *j)
{
    int32_t missing = -1;
    for (int32_t i = 1; i < c->n; i++) {
        int32_t m = (c->me + i) % c->n;
        if ((!greet(c, m, &c->greeted[m]) || !j->joined[m]) && (missing < 0 || m < missing))
            missing = m;
    }
    return missing;
}

static tn_status meet(struct tn_comm *c, uint64_t deadline_ns)
{
    struct backend *b = c->backend;
    struct ucx_joining *j = joining_of(b, c->key, c->turn, 1);
    if (!j)
        return b->host->fail(b->host, TN_NO_MEMORY, "ucx: no memory for group %s", c->name);
    for (;;) {
        int32_t missing = greet_all(c, j);
        if (missing < 0)
            return TN_OK;
        uint64_t now = ucx_now();
        int is_dead = b->peers[c->ranks[missing]].is_dead;
        if (is_dead || ucx_poll(b, now) == TN_PEER)
            return b->host->fail(b->host, TN_PEER, "ucx: making group %s: rank %d %s", c->name, (int)c->ranks[missing],
                                 is_dead ? "cannot be reached" : "has not come, and a rank has died");
        if (now >= deadline_ns)
            return b->host->fail(b->host, TN_TIMEOUT, "ucx: making group %s: rank %d has not come", c->name,
                                 (int)c->ranks[missing]);
        if (!ucx_advance(b) && (now = ucx_now()) < deadline_ns)
            ucx_sleep(b, deadline_ns - now < SLICE_NS ? deadline_ns : now + SLICE_NS);
    }
}

/* ---- making and ending ---- */

static tn_status check_ranks(const struct backend *b, const int32_t *ranks, int32_t n, int32_t *me)
{
    *me = -1;
    if (n < 1 || n > b->n)
        return b->host->fail(b->host, TN_INVALID, "ucx: a group of %d ranks in a world of %d", (int)n, (int)b->n);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= b->n)
            return b->host->fail(b->host, TN_INVALID, "ucx: rank %d in a world of %d", (int)ranks[i], (int)b->n);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return b->host->fail(b->host, TN_INVALID, "ucx: rank %d twice in a group", (int)ranks[i]);
        if (ranks[i] == b->rank)
            *me = i;
    }
    return *me >= 0 ? TN_OK
                    : b->host->fail(b->host, TN_INVALID, "ucx: rank %d is not in the group it makes", (int)b->rank);
}

void ucx_comm_free(struct tn_comm *c)
{
    const struct tn_host *host = c->backend->host;
    for (int class = 0; class < 2; class ++)
        while (c->blocks[class]) {
            struct ucx_block *next = c->blocks[class]->next;
            host->release(host, c->blocks[class]);
            c->blocks[class] = next;
        }
    host->release(host, c->large);
    host->release(host, c->ranks);
    host->release(host, c->flows);
    host->release(host, c->sources);
    host->release(host, c->answers);
    host->release(host, c->greeted);
    host->release(host, c->calls);
    host->release(host, c);
}

static void *zeroed(const struct tn_host *host, uint64_t bytes)
{
    void *memory = host->alloc(host, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

static struct tn_comm *new_comm(struct backend *b, const char *name, const int32_t *ranks, int32_t n, int32_t me)
{
    struct tn_comm *c = zeroed(b->host, sizeof *c);
    if (!c)
        return NULL;
    uint64_t k = (uint64_t)n;
    c->backend = b;
    c->n = n;
    c->me = me;
    c->key = key_of(ranks, n);
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    c->ranks = zeroed(b->host, k * sizeof *c->ranks);
    c->flows = zeroed(b->host, k * sizeof *c->flows);
    c->sources = zeroed(b->host, k * sizeof *c->sources);
    c->answers = zeroed(b->host, k * sizeof *c->answers);
    c->greeted = zeroed(b->host, k);
    c->calls = zeroed(b->host, k * sizeof *c->calls);
    if (!c->ranks || !c->flows || !c->sources || !c->answers || !c->greeted || !c->calls) {
        ucx_comm_free(c);
        return NULL;
    }
    memcpy(c->ranks, ranks, k * sizeof *ranks);
    for (int32_t i = 0; i < n; i++)
        c->spans_hosts |= b->peers[ranks[i]].host != b->peers[b->rank].host;
    return c;
}

static void enlist(struct tn_comm *c)
{
    struct backend *b = c->backend;
    struct tn_comm **bucket = bucket_of(b, c->key, c->turn);
    c->next = b->comms;
    b->comms = c;
    c->chain = *bucket;
    *bucket = c;
}

static void delist(struct tn_comm *c)
{
    struct backend *b = c->backend;
    struct tn_comm **at = bucket_of(b, c->key, c->turn);
    while (*at != c)
        at = &(*at)->chain;
    *at = c->chain;
    for (at = &b->comms; *at != c; at = &(*at)->next)
        ;
    *at = c->next;
}

tn_status ucx_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm)
{
    struct backend *b = self;
    int32_t me;
    uint64_t now = ucx_now(), deadline_ns = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    if (!b->worker)
        return b->host->fail(b->host, TN_INVALID, "ucx: comm_create before init");
    tn_status status = check_ranks(b, ranks, n, &me);
    if (status != TN_OK)
        return status;
    struct tn_comm *c = new_comm(b, name, ranks, n, me);
    struct ucx_made *made = c ? made_of(b, c->key) : NULL;
    if (!made) {
        if (c)
            ucx_comm_free(c);
        return b->host->fail(b->host, TN_NO_MEMORY, "ucx: no memory for a group of %d", (int)n);
    }
    c->turn = made->times;
    enlist(c);
    for (int32_t i = 0; i < n && status == TN_OK; i++)
        status = ucx_reach(b, ranks[i], deadline_ns);
    if (status == TN_OK && n > 1)
        status = meet(c, deadline_ns);
    if (status != TN_OK) { /* those who came are remembered, for another try */
        delist(c);
        ucx_comm_free(c);
        return status;
    }
    forget_joining(b, c->key, c->turn);
    made->times++;
    ucx_adopt_orphans(c);
    *comm = c;
    return TN_OK;
}

/* Operations that UCX still has (after a failure) are given a moment; then the memory stays until `destroy`. */
static int is_idle(const struct tn_comm *c)
{
    for (const struct tn_request *r = c->backend->made; r; r = r->made)
        if (r->comm == c && r->under_way)
            return 0;
    return 1;
}

void ucx_comm_destroy(struct tn_comm *c)
{
    enum { PATIENCE_NS = 200 * 1000 * 1000 };
    if (!c)
        return;
    struct backend *b = c->backend;
    uint64_t until_ns = ucx_now() + PATIENCE_NS;
    while (!is_idle(c) && ucx_now() < until_ns)
        if (!ucx_advance(b))
            ucx_sleep(b, until_ns);
    delist(c);
    for (struct tn_request **at = &c->first; *at; at = &(*at)->next)
        while ((*at)->held) {
            struct ucx_in *in = (*at)->held;
            (*at)->held = in->next;
            ucx_drop(in);
        }
    while (c->early) {
        struct ucx_in *in = c->early;
        c->early = in->next;
        ucx_drop(in);
    }
    for (int32_t i = 0; i < c->n; i++)
        while (c->flows[i].came) {
            struct ucx_in *in = c->flows[i].came;
            c->flows[i].came = in->next;
            ucx_drop(in);
        }
    int idle = is_idle(c);
    for (struct tn_request *r = b->made; r; r = r->made)
        if (r->comm == c) { /* nobody asked for its outcome */
            r->is_ended = 1;
            if (!r->under_way)
                ucx_request_recycle(r);
        }
    if (idle) {
        ucx_comm_free(c);
        return;
    }
    b->is_broken = 1;
    c->failed = TN_ABORTED;
    c->first = c->last = c->messages = NULL;
    c->next = b->comms; /* only to be freed at the end */
    b->comms = c;
}

/* ---- abort ---- */

static void abort_key(const struct tn_comm *c, char *key, size_t bytes)
{
    snprintf(key, bytes, "ucx/abort/%016" PRIx64 "/%u", c->key, c->turn);
}

/* Any thread. The other members learn of it when they next look at the bootstrap. */
void ucx_comm_abort(struct tn_comm *c)
{
    const struct backend *b = c->backend;
    char key[64];
    uint64_t one = 1;
    abort_key(c, key, sizeof key);
    atomic_store(&c->is_aborted, 1);
    if (b->bootstrap.put(b->bootstrap.ctx, key, "", 1) < 0)
        b->host->log(b->host, TN_LOG_WARN, "group %s: its abort could not be told to the others", c->name);
    if (write(b->signal_fd, &one, sizeof one) < 0)
        return; /* full: the sleeper wakes all the same */
}

void ucx_comm_look(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->backend->bootstrap;
    char key[64], byte;
    uint32_t bytes = sizeof byte;
    if (c->failed || (!c->first && !c->messages))
        return;
    abort_key(c, key, sizeof key);
    if (boot->get(boot->ctx, key, &byte, &bytes) == TN_OK)
        atomic_store(&c->is_aborted, 1);
}
