/* Groups: who is on which host, and the groups of the two backends below that serve one group here.
 *
 * Each rank says once on which host it is; a group asks about its members alone. Members of one host, or all on
 * different hosts: one backend serves the group as it is. Else four groups below: down and up inside the host, the rail
 * across, and all members for messages. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "hier.h"

enum { NAP_NS = 500 * 1000 };

struct times {
    uint64_t key;
    uint32_t times;
    struct times *next;
};

static uint64_t key_of(const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)n; /* FNV-1a */
    for (int32_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ranks[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

static struct times *times_of(struct hier *h, uint64_t key)
{
    for (struct times *t = h->times; t; t = t->next)
        if (t->key == key)
            return t;
    struct times *t = h->host->alloc(h->host, sizeof *t);
    if (!t)
        return NULL;
    *t = (struct times){ .key = key, .next = h->times };
    h->times = t;
    return t;
}

void hier_forget(struct hier *h)
{
    while (h->times) {
        struct times *next = h->times->next;
        h->host->release(h->host, h->times);
        h->times = next;
    }
}

/* ---- hosts ---- */

static const char *host_key(int32_t rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "hier/host/%d", (int)rank);
    return key;
}

tn_status hier_say_host(struct hier *h)
{
    const struct tn_bootstrap *boot = &h->bootstrap;
    char key[48];
    tn_status status =
        boot->put(boot->ctx, host_key(boot->rank, key, sizeof key), &boot->host_id, sizeof boot->host_id);
    return status >= 0 ? TN_OK : h->host->fail(h->host, status, "hier: the bootstrap does not take this rank's host");
}

static tn_status ask_host(struct hier *h, const char *name, int32_t rank, uint64_t deadline_ns, uint64_t *id)
{
    const struct tn_bootstrap *boot = &h->bootstrap;
    char key[48];
    host_key(rank, key, sizeof key);
    for (;;) {
        uint32_t bytes = sizeof *id;
        tn_status status = boot->get(boot->ctx, key, id, &bytes);
        if (status == TN_OK)
            return TN_OK;
        if (status != TN_PENDING)
            return h->host->fail(h->host, status, "hier: making group %s: the bootstrap failed", name);
        int died = boot->poll(boot->ctx) == TN_PEER;
        if (died || hier_now() >= deadline_ns)
            return h->host->fail(h->host, died ? TN_PEER : TN_TIMEOUT, "hier: making group %s: rank %d has not come%s",
                                 name, (int)rank, died ? ", and a rank of the job has died" : "");
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
}

/* Numbers hosts and places in the order of members. */
static void number_hosts(struct tn_comm *c, const uint64_t *ids)
{
    for (int32_t i = 0; i < c->n; i++) {
        int32_t first = 0;
        while (ids[first] != ids[i])
            first++;
        c->host[i] = first == i ? c->n_hosts++ : c->host[first];
        for (int32_t k = 0; k < i; k++)
            c->local[i] += c->host[k] == c->host[i];
        if (c->local[i] + 1 > c->most)
            c->most = c->local[i] + 1;
    }
    c->is_even = c->most * c->n_hosts == c->n;
    for (int32_t i = 0; i < c->n; i++)
        c->my_locals += c->host[i] == c->host[c->me];
}

static tn_status find_hosts(struct tn_comm *c, uint64_t deadline_ns)
{
    struct hier *h = c->hier;
    const struct tn_host *host = h->host;
    uint64_t *ids = host->alloc(host, (uint64_t)c->n * sizeof *ids);
    tn_status status = ids ? TN_OK : host->fail(host, TN_NO_MEMORY, "hier: no memory for a group of %d", (int)c->n);
    int one_host = h->bootstrap.local_size == h->bootstrap.size;
    for (int32_t i = 0; i < c->n && status == TN_OK; i++) {
        ids[i] = h->bootstrap.host_id;
        if (!one_host)
            status = ask_host(h, c->name, c->ranks[i], deadline_ns, &ids[i]);
    }
    if (status == TN_OK)
        number_hosts(c, ids);
    host->release(host, ids);
    if (status != TN_OK)
        return status;
    uint64_t places = (uint64_t)c->n_hosts * (uint64_t)c->most;
    c->member = host->alloc(host, places * sizeof *c->member);
    if (!c->member)
        return host->fail(host, TN_NO_MEMORY, "hier: no memory for a group of %d", (int)c->n);
    for (uint64_t i = 0; i < places; i++)
        c->member[i] = -1;
    for (int32_t i = 0; i < c->n; i++)
        c->member[c->host[i] * c->most + c->local[i]] = i;
    return TN_OK;
}

/* ---- groups below ---- */

static uint64_t left_until(uint64_t deadline_ns)
{
    uint64_t now = hier_now();
    return now < deadline_ns ? deadline_ns - now : 0;
}

static tn_status make(struct tn_comm *c, const struct side *side, const int32_t *ranks, int32_t n, uint64_t deadline_ns,
                      struct tn_comm **group)
{
    return side->table->comm_create(side->self, c->name, ranks, n, left_until(deadline_ns), group);
}

/* On all members in this order. */
static tn_status make_below(struct tn_comm *c, uint64_t deadline_ns)
{
    const struct hier *h = c->hier;
    c->only = c->n_hosts == 1 ? &h->inner : c->most == 1 ? &h->outer : NULL;
    if (c->only)
        return make(c, c->only, c->ranks, c->n, deadline_ns, c->only == &h->inner ? &c->down : &c->all);
    int32_t *chosen = h->host->alloc(h->host, (uint64_t)c->n * sizeof *chosen), n = 0, k = c->local[c->me];
    if (!chosen)
        return h->host->fail(h->host, TN_NO_MEMORY, "hier: no memory for a group of %d", (int)c->n);
    for (int32_t i = 0; i < c->n; i++)
        if (c->host[i] == c->host[c->me])
            chosen[n++] = c->ranks[i];
    tn_status status = make(c, &h->inner, chosen, n, deadline_ns, &c->down);
    if (status == TN_OK)
        status = make(c, &h->inner, chosen, n, deadline_ns, &c->up);
    if (status == TN_OK)
        status = make(c, &h->outer, c->ranks, c->n, deadline_ns, &c->all);
    n = 0;
    for (int32_t g = 0; g < c->n_hosts; g++)
        if (c->member[g * c->most + k] >= 0)
            chosen[n++] = c->ranks[c->member[g * c->most + k]];
    if (status == TN_OK && (c->is_even || k == 0))
        status = make(c, &h->outer, chosen, n, deadline_ns, &c->rail);
    h->host->release(h->host, chosen);
    return status;
}

static void free_comm(struct tn_comm *c)
{
    const struct hier *h = c->hier;
    const struct tn_host *host = h->host;
    h->outer.table->comm_destroy(c->rail);
    h->outer.table->comm_destroy(c->all);
    h->inner.table->comm_destroy(c->up);
    h->inner.table->comm_destroy(c->down);
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        host->release(host, c->made);
        c->made = next;
    }
    for (int i = 0; i < WINDOW; i++)
        host->release(host, c->pieces[i].scratch);
    host->release(host, c->ranks);
    host->release(host, c->host);
    host->release(host, c->local);
    host->release(host, c->member);
    host->release(host, c);
}

static struct tn_comm *new_comm(struct hier *h, const char *name, const int32_t *ranks, int32_t n, int32_t me)
{
    const struct tn_host *host = h->host;
    struct tn_comm *c = host->alloc(host, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->hier = h;
    c->n = n;
    c->me = me;
    c->last = &c->first;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    uint64_t bytes = (uint64_t)n * sizeof *c->ranks;
    c->ranks = host->alloc(host, bytes);
    c->host = host->alloc(host, bytes);
    c->local = host->alloc(host, bytes);
    if (!c->ranks || !c->host || !c->local) {
        free_comm(c);
        return NULL;
    }
    memcpy(c->ranks, ranks, bytes);
    memset(c->host, 0, bytes);
    memset(c->local, 0, bytes);
    return c;
}

static tn_status check_ranks(const struct hier *h, const int32_t *ranks, int32_t n, int32_t *me)
{
    int32_t world = h->bootstrap.size;
    *me = -1;
    if (n < 1 || n > world)
        return h->host->fail(h->host, TN_INVALID, "hier: a group of %d ranks in a world of %d", (int)n, (int)world);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            return h->host->fail(h->host, TN_INVALID, "hier: rank %d in a world of %d", (int)ranks[i], (int)world);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return h->host->fail(h->host, TN_INVALID, "hier: rank %d twice in a group", (int)ranks[i]);
        if (ranks[i] == h->bootstrap.rank)
            *me = i;
    }
    return *me >= 0 ? TN_OK
                    : h->host->fail(h->host, TN_INVALID, "hier: rank %d is not in the group it makes",
                                    (int)h->bootstrap.rank);
}

tn_status hier_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                           struct tn_comm **comm)
{
    struct hier *h = self;
    uint64_t now = hier_now(), deadline_ns = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    int32_t me;
    tn_status status = check_ranks(h, ranks, n, &me);
    if (status != TN_OK)
        return status;
    struct tn_comm *c = new_comm(h, name, ranks, n, me);
    struct times *times = c ? times_of(h, key_of(ranks, n)) : NULL;
    if (!times)
        status = h->host->fail(h->host, TN_NO_MEMORY, "hier: no memory for a group of %d", (int)n);
    if (status == TN_OK)
        status = find_hosts(c, deadline_ns);
    if (status == TN_OK)
        status = make_below(c, deadline_ns);
    if (status != TN_OK) {
        if (c)
            free_comm(c);
        return status;
    }
    c->key = times->key + times->times++;
    c->next = h->comms;
    h->comms = c;
    *comm = c;
    return TN_OK;
}

void hier_comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct tn_comm **at = &c->hier->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free_comm(c);
}

/* Those who share no group below with this rank learn it from the bootstrap. */
void hier_comm_abort(struct tn_comm *c)
{
    const struct hier *h = c->hier;
    const struct tn_bootstrap *boot = &h->bootstrap;
    struct tn_comm *const inner[] = { c->down, c->up }, *const outer[] = { c->all, c->rail };
    if (atomic_exchange(&c->aborted, 1))
        return;
    for (int i = 0; i < 2; i++) {
        if (inner[i])
            h->inner.table->comm_abort(inner[i]);
        if (outer[i])
            h->outer.table->comm_abort(outer[i]);
    }
    char key[64], text[128];
    snprintf(key, sizeof key, "hier/%016" PRIx64 "/failed", c->key);
    int length =
        snprintf(text, sizeof text, "%d hier: group %s was aborted by rank %d", TN_ABORTED, c->name, (int)boot->rank);
    if (boot->put(boot->ctx, key, text, (uint32_t)length + 1) < 0)
        h->host->log(h->host, TN_LOG_WARN, "group %s: its abort could not be told to the others", c->name);
}
