/* Groups: how members find each other in the control file, and the block of memory they share.
 *
 * Member 0 takes a free entry of the control file's table, opens it under the key of its ranks,
 * and the others join it there; when all have, the entry is alive and out of sight. The entry's
 * index is also the place of the group's block in the file. Whoever destroys it last gives the
 * block's memory back, which also zeroes it, and frees the entry. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm.h"

enum { PAGE = 4096, NAP_US = 50 };

/* shm_entry.word */
enum { ENTRY_FREE, ENTRY_BUSY, ENTRY_OPEN, ENTRY_ALIVE };
#define ENTRY_STATE(w) ((w)&3u)
#define ENTRY_JOINED(w) ((w) >> 2 & 0x3fffu)
#define ENTRY_GENERATION(w) ((w) >> 16)
#define ENTRY_WORD(state, joined, generation) \
    ((uint32_t)(state) | (uint32_t)(joined) << 2 | (uint32_t)(generation) << 16)

/* ---- a comm's block ---- */

struct layout {
    uint64_t slots, channels, bounce, pipes, bytes;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static struct layout lay_out(int32_t n)
{
    struct layout l;
    uint64_t k = (uint64_t)n;
    l.slots = round_up(sizeof(struct shm_block) + k * sizeof(struct shm_member), LINE);
    l.channels = round_up(l.slots + k * RING * sizeof(struct shm_slot), LINE);
    l.bounce = round_up(l.channels + k * k * sizeof(struct shm_channel), PAGE);
    l.pipes = l.bounce + k * 2 * BOUNCE_BYTES;
    l.bytes = l.pipes + k * k * 2 * PIPE_CHUNK;
    return l;
}

uint64_t shm_block_stride(const struct shm *s)
{
    return lay_out(s->n).bytes;
}

/* A group of one needs no file. */
static tn_status map_block(struct tn_comm *c)
{
    struct shm *s = c->shm;
    struct layout l = lay_out(c->n);
    int alone = c->n == 1;
    void *map =
        mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, alone ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED,
             alone ? -1 : s->control_fd, alone ? 0 : (off_t)(s->control_bytes + c->entry * shm_block_stride(s)));
    if (map == MAP_FAILED)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: mapping %" PRIu64 " bytes for group %s: %s", l.bytes, c->name,
                             strerror(errno));
    char *base = map;
    c->block = map;
    c->block_bytes = l.bytes;
    c->slots = (struct shm_slot *)(base + l.slots);
    c->channels = (struct shm_channel *)(base + l.channels);
    c->bounce = base + l.bounce;
    c->pipes = base + l.pipes;
    return TN_OK;
}

static void unmap_block(struct tn_comm *c)
{
    if (c->block)
        munmap(c->block, c->block_bytes);
    c->block = NULL;
}

/* Gives the block's memory back and leaves zeroes for the next group. */
static void clear_block(struct tn_comm *c)
{
    struct shm *s = c->shm;
    uint64_t at = s->control_bytes + c->entry * shm_block_stride(s);
    if (fallocate(s->control_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)c->block_bytes) != 0)
        memset(c->block, 0, lay_out(c->n).bounce);
}

/* ---- making a group ---- */

static uint64_t group_key(const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)n; /* FNV-1a */
    for (int32_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ranks[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

static void free_entry(struct shm_entry *e)
{
    uint32_t w = atomic_load(&e->word);
    atomic_store(&e->word, ENTRY_WORD(ENTRY_FREE, 0, ENTRY_GENERATION(w) + 1));
    shm_futex_wake(&e->word);
}

/* Member 0 takes a free entry and opens it. */
static tn_status open_entry(struct tn_comm *c, uint64_t key)
{
    struct shm_control *control = c->shm->control;
    for (c->entry = 0; c->entry < COMMS; c->entry++) {
        struct shm_entry *e = &control->entries[c->entry];
        uint32_t w = atomic_load(&e->word);
        if (ENTRY_STATE(w) != ENTRY_FREE ||
            !atomic_compare_exchange_strong(&e->word, &w, ENTRY_WORD(ENTRY_BUSY, 0, ENTRY_GENERATION(w))))
            continue;
        tn_status st = map_block(c);
        if (st != TN_OK) {
            free_entry(e);
            return st;
        }
        e->key = key;
        atomic_store(&e->left, 0);
        c->generation = ENTRY_GENERATION(w);
        atomic_store(&c->block->members[c->me].joined, 1);
        uint32_t high = atomic_load(&control->high);
        while (high <= c->entry && !atomic_compare_exchange_weak(&control->high, &high, c->entry + 1))
            ;
        atomic_store(&e->word, ENTRY_WORD(ENTRY_OPEN, 1, ENTRY_GENERATION(w)));
        return TN_OK;
    }
    return c->shm->host->fail(c->shm->host, TN_NO_MEMORY, "shm: more than %d groups at a time", COMMS);
}

/* The other members look for it. TN_PENDING: not open yet. */
static tn_status join_entry(struct tn_comm *c, uint64_t key)
{
    struct shm_control *control = c->shm->control;
    uint32_t high = atomic_load(&control->high);
    for (c->entry = 0; c->entry < high; c->entry++) {
        struct shm_entry *e = &control->entries[c->entry];
        uint32_t w = atomic_load(&e->word);
        if (ENTRY_STATE(w) != ENTRY_OPEN || e->key != key)
            continue;
        tn_status st = map_block(c);
        if (st != TN_OK)
            return st;
        while (ENTRY_STATE(w) == ENTRY_OPEN) {
            uint32_t joined = ENTRY_JOINED(w) + 1;
            int last = joined == (uint32_t)c->n;
            if (atomic_compare_exchange_weak(
                    &e->word, &w, ENTRY_WORD(last ? ENTRY_ALIVE : ENTRY_OPEN, joined, ENTRY_GENERATION(w)))) {
                c->generation = ENTRY_GENERATION(w);
                atomic_store(&c->block->members[c->me].joined, 1);
                shm_futex_wake(&e->word);
                return TN_OK;
            }
        }
        unmap_block(c);
    }
    return TN_PENDING;
}

/* After a deadline: member 0 closes the entry, another steps back. TN_OK: it came alive after all. */
static tn_status leave_entry(struct tn_comm *c)
{
    struct shm_entry *e = &c->shm->control->entries[c->entry];
    uint32_t w = atomic_load(&e->word);
    while (ENTRY_STATE(w) == ENTRY_OPEN && ENTRY_GENERATION(w) == c->generation) {
        uint32_t to = c->me == 0 ? ENTRY_WORD(ENTRY_BUSY, 0, ENTRY_GENERATION(w))
                                 : ENTRY_WORD(ENTRY_OPEN, ENTRY_JOINED(w) - 1, ENTRY_GENERATION(w));
        if (!atomic_compare_exchange_weak(&e->word, &w, to))
            continue;
        atomic_store(&c->block->members[c->me].joined, 0);
        if (c->me == 0) {
            clear_block(c);
            free_entry(e);
        }
        return TN_TIMEOUT;
    }
    return ENTRY_STATE(w) == ENTRY_ALIVE && ENTRY_GENERATION(w) == c->generation ? TN_OK : TN_TIMEOUT;
}

static tn_status late(struct tn_comm *c, uint64_t deadline)
{
    struct shm *s = c->shm;
    tn_status st = shm_poll(s, shm_now());
    int died = st != TN_OK && st != TN_PENDING;
    if (!died && shm_now() < deadline)
        return TN_PENDING;
    int32_t missing = 0;
    if (c->block) {
        while (missing < c->n && atomic_load(&c->block->members[missing].joined))
            missing++;
        if (leave_entry(c) == TN_OK)
            return TN_OK;
        missing = missing < c->n ? missing : -1;
    }
    return s->host->fail(s->host, died ? TN_PEER : TN_TIMEOUT, "shm: making group %s: rank %d has not come%s", c->name,
                         missing < 0 ? -1 : (int)c->ranks[missing], died ? ", and a rank of the job has died" : "");
}

static tn_status meet(struct tn_comm *c, uint64_t deadline)
{
    struct shm *s = c->shm;
    uint64_t key = group_key(c->ranks, c->n);
    tn_status st = c->me == 0 ? open_entry(c, key) : join_entry(c, key);
    for (; st == TN_PENDING; st = join_entry(c, key)) {
        usleep(NAP_US);
        if ((st = late(c, deadline)) != TN_PENDING)
            return st;
    }
    struct shm_entry *e = &s->control->entries[st == TN_OK ? c->entry : 0];
    while (st == TN_OK) {
        uint32_t w = atomic_load(&e->word);
        if (ENTRY_STATE(w) == ENTRY_ALIVE && ENTRY_GENERATION(w) == c->generation)
            return TN_OK;
        if (ENTRY_GENERATION(w) != c->generation || ENTRY_STATE(w) != ENTRY_OPEN)
            return s->host->fail(s->host, TN_TIMEOUT, "shm: making group %s: rank %d gave up", c->name,
                                 (int)c->ranks[0]);
        shm_futex_wait(&e->word, w, POLL_NS);
        st = late(c, deadline);
        if (st == TN_OK)
            return TN_OK;
        st = st == TN_PENDING ? TN_OK : st;
    }
    return st;
}

static tn_status check_ranks(const struct shm *s, const int32_t *ranks, int32_t n, int32_t *me)
{
    int32_t world = s->bootstrap.size;
    *me = -1;
    if (n < 1 || n > world)
        return s->host->fail(s->host, TN_INVALID, "shm: a group of %d ranks in a world of %d", (int)n, (int)world);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            return s->host->fail(s->host, TN_INVALID, "shm: rank %d in a world of %d", (int)ranks[i], (int)world);
        if (ranks[i] == s->bootstrap.rank)
            *me = i;
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return s->host->fail(s->host, TN_INVALID, "shm: rank %d twice in a group", (int)ranks[i]);
    }
    if (*me < 0)
        return s->host->fail(s->host, TN_INVALID, "shm: rank %d is not in the group it makes", (int)s->bootstrap.rank);
    return TN_OK;
}

static tn_status check_host(const struct shm *s, const char *name, const int32_t *ranks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (s->seats[ranks[i]] < 0)
            return s->host->fail(
                s->host, TN_UNSUPPORTED,
                "shm: group %s has rank %d, which is on another host than rank %d; use backend hier, or "
                "one with a network",
                name ? name : "", (int)ranks[i], (int)s->bootstrap.rank);
    return TN_OK;
}

static struct tn_comm *alloc_comm(struct shm *s, int32_t n)
{
    const struct tn_host *host = s->host;
    struct tn_comm *c = host->alloc(host, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->shm = s;
    c->n = n;
    uint64_t k = (uint64_t)n;
    c->ranks = host->alloc(host, k * sizeof *c->ranks);
    c->seats = host->alloc(host, k * sizeof *c->seats);
    c->sends = host->alloc(host, 2 * k * sizeof *c->sends);
    c->in_ptrs = host->alloc(host, k * sizeof *c->in_ptrs);
    c->out_ptrs = host->alloc(host, k * sizeof *c->out_ptrs);
    if (c->sends)
        memset(c->sends, 0, 2 * k * sizeof *c->sends);
    c->recvs = c->sends ? c->sends + n : NULL;
    return c;
}

static void free_comm(struct tn_comm *c)
{
    const struct tn_host *host = c->shm->host;
    unmap_block(c);
    host->release(host, c->ranks);
    host->release(host, c->seats);
    host->release(host, c->sends);
    host->release(host, c->in_ptrs);
    host->release(host, c->out_ptrs);
    host->release(host, c);
}

tn_status shm_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm)
{
    struct shm *s = self;
    int32_t me;
    if (!s->control)
        return s->host->fail(s->host, TN_INVALID, "shm: comm_create before init");
    tn_status st = check_ranks(s, ranks, n, &me);
    if (st == TN_OK)
        st = check_host(s, name, ranks, n);
    if (st != TN_OK)
        return st;
    struct tn_comm *c = alloc_comm(s, n);
    if (!c)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: no memory for a group of %d", (int)n);
    if (!c->ranks || !c->seats || !c->sends || !c->in_ptrs || !c->out_ptrs) {
        free_comm(c);
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: no memory for a group of %d", (int)n);
    }
    c->me = me;
    c->room = RING;
    memcpy(c->ranks, ranks, (size_t)n * sizeof *ranks);
    for (int32_t i = 0; i < n; i++)
        c->seats[i] = s->seats[ranks[i]];
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    uint64_t now = shm_now();
    st = n == 1 ? map_block(c) : meet(c, timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns);
    if (st != TN_OK) {
        free_comm(c);
        return st;
    }
    *comm = c;
    return TN_OK;
}

static void recycle(struct shm *s, struct tn_request *r)
{
    r->next = s->free_requests;
    s->free_requests = r;
}

static void drop_requests(struct tn_comm *c)
{
    struct shm *s = c->shm;
    for (; c->head < c->next; c->head++)
        if (c->ring[c->head % RING])
            recycle(s, c->ring[c->head % RING]);
    for (int32_t i = 0; i < 2 * c->n; i++)
        for (struct tn_request *r = c->sends[i].head; r; r = c->sends[i].head) {
            c->sends[i].head = r->next;
            recycle(s, r);
        }
}

void shm_comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct shm *s = c->shm;
    for (struct tn_comm **at = &s->active; *at; at = &(*at)->next_active)
        if (*at == c) {
            *at = c->next_active;
            break;
        }
    drop_requests(c);
    struct shm_entry *e = &s->control->entries[c->entry];
    /* The last one to leave cleans up; the entry must not be reused while this one is mapped. */
    if (c->n > 1 && atomic_fetch_add(&e->left, 1) + 1 == c->n) {
        clear_block(c);
        free_entry(e);
    }
    free_comm(c);
}
