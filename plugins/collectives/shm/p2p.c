/* send and recv: a channel of numbered messages for each (sender, receiver) pair.
 *
 * A message is small (the payload lies in the channel), direct (it says where in a segment the
 * data is; the receiver copies) or piped (private data goes through two chunks in turn). It is
 * published by its seq, and given back by channel.taken; a chunk by filled and drained. So each
 * word has one writer, and messages of a pair meet in the order in which they were sent. */
#include <inttypes.h>
#include <string.h>

#include "shm.h"

enum { MODE_SMALL, MODE_DIRECT, MODE_PIPED };
enum { CHUNKS = 2, DIRECT_STEP = 1 << 20 /* bytes copied in one go */ };

static struct shm_channel *channel_of(const struct tn_comm *c, int32_t from, int32_t to)
{
    return &c->channels[(uint64_t)from * (uint64_t)c->n + (uint64_t)to];
}

static char *chunk_of(const struct tn_comm *c, int32_t from, int32_t to, uint64_t chunk)
{
    return c->pipes + (((uint64_t)from * (uint64_t)c->n + (uint64_t)to) * CHUNKS + chunk % CHUNKS) * PIPE_CHUNK;
}

static uint64_t bytes_of(const struct tn_request *r)
{
    return r->count * r->esize;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void pop(struct tn_comm *c, struct shm_flow *flow)
{
    flow->head = flow->head->next;
    if (!flow->head)
        flow->tail = NULL;
    c->n_flows--;
}

/* ---- sender ---- */

static int post(struct tn_request *r, struct shm_channel *ch)
{
    struct tn_comm *c = r->comm;
    if (r->is_posted)
        return 1;
    if (r->number >= atomic_load(&ch->taken) + MESSAGES)
        return 0;
    struct shm_message *m = &ch->ring[r->number % MESSAGES];
    m->dtype = r->dtype;
    m->count = r->count;
    m->mode = r->mode;
    if (r->mode == MODE_DIRECT)
        m->loc = r->send_loc;
    else if (r->mode == MODE_SMALL && r->count > 0)
        memcpy(m->data, r->in, bytes_of(r));
    atomic_store(&m->seq, r->number + 1);
    r->is_posted = 1;
    shm_ring(c, r->root);
    return 1;
}

static int is_sent(struct tn_request *r, struct shm_channel *ch, struct shm_flow *flow)
{
    struct tn_comm *c = r->comm;
    if (r->mode == MODE_DIRECT)
        return atomic_load(&ch->taken) > r->number;
    while (r->mode == MODE_PIPED && r->moved < bytes_of(r)) {
        if (flow->chunks >= atomic_load(&ch->drained) + CHUNKS)
            return 0;
        uint64_t bytes = least(bytes_of(r) - r->moved, PIPE_CHUNK);
        memcpy(chunk_of(c, c->me, r->root, flow->chunks), r->in + r->moved, bytes);
        r->moved += bytes;
        atomic_store(&ch->filled, ++flow->chunks);
        shm_ring(c, r->root);
    }
    return 1;
}

static void advance_sends(struct tn_comm *c, int32_t to)
{
    struct shm_flow *flow = &c->sends[to];
    struct shm_channel *ch = channel_of(c, c->me, to);
    /* Messages are posted ahead of the oldest, which alone may be in the pipe. */
    for (struct tn_request *r = flow->head; r && post(r, ch); r = r->next)
        ;
    while (flow->head && flow->head->is_posted && is_sent(flow->head, ch, flow)) {
        flow->head->status = TN_OK;
        pop(c, flow);
    }
}

/* ---- receiver ---- */

static int is_match(struct tn_request *r, const struct shm_message *m)
{
    struct tn_comm *c = r->comm;
    if (m->dtype == r->dtype && m->count == r->count)
        return 1;
    int32_t from = c->ranks[r->root];
    shm_comm_fail(c, TN_CONFLICT, from, r,
                  "message %" PRIu64 " of group %s: rank %d sends %" PRIu64 " %s, rank %d receives %" PRIu64 " %s",
                  r->number, c->name, (int)from, m->count, tn_call_dtype_name(m->dtype), (int)c->ranks[c->me], r->count,
                  tn_call_dtype_name(r->dtype));
    return 0;
}

static int is_received(struct tn_request *r, struct shm_channel *ch, const struct shm_message *m, struct shm_flow *flow)
{
    struct tn_comm *c = r->comm;
    uint64_t all = bytes_of(r);
    if (m->mode == MODE_SMALL && all > 0)
        memcpy(r->out, m->data, all);
    if (m->mode == MODE_DIRECT) {
        uint64_t bytes = least(all - r->moved, DIRECT_STEP);
        void *out = r->out + r->moved;
        c->shm->kernels->copy(shm_at(c->shm, m->loc) + r->moved, &out, 1, bytes, 2 * all > c->shm->cache_bytes);
        r->moved += bytes;
        return r->moved == all;
    }
    while (m->mode == MODE_PIPED && r->moved < all) {
        if (atomic_load(&ch->filled) <= flow->chunks)
            return 0;
        uint64_t bytes = least(all - r->moved, PIPE_CHUNK);
        memcpy(r->out + r->moved, chunk_of(c, r->root, c->me, flow->chunks), bytes);
        r->moved += bytes;
        atomic_store(&ch->drained, ++flow->chunks);
        shm_ring(c, r->root);
    }
    return 1;
}

static void advance_recvs(struct tn_comm *c, int32_t from)
{
    struct shm_flow *flow = &c->recvs[from];
    struct shm_channel *ch = channel_of(c, from, c->me);
    for (struct tn_request *r = flow->head; r; r = flow->head) {
        const struct shm_message *m = &ch->ring[r->number % MESSAGES];
        if (atomic_load(&m->seq) != r->number + 1 || !is_match(r, m) || !is_received(r, ch, m, flow))
            return;
        atomic_store(&ch->taken, r->number + 1);
        shm_ring(c, from);
        r->status = TN_OK;
        pop(c, flow);
    }
}

void shm_p2p_advance(struct tn_comm *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        if (c->sends[i].head)
            advance_sends(c, i);
        if (c->recvs[i].head)
            advance_recvs(c, i);
    }
}

/* ---- start ---- */

tn_status shm_p2p_start(struct tn_comm *c, struct tn_request make, struct tn_request **out)
{
    *out = NULL;
    tn_status st = shm_failure(c);
    if (st != TN_OK)
        return st;
    make.comm = c;
    make.esize = tn_call_dtype_bytes(make.dtype);
    if (!make.esize || make.root < 0 || make.root >= c->n || make.count > UINT64_C(1) << 44)
        return shm_error(c, TN_INVALID, -1, &make, "shm: %s of %" PRIu64 " %s with member %d of %d",
                         tn_call_name(make.op), make.count, tn_call_dtype_name(make.dtype), (int)make.root, (int)c->n);
    struct tn_request *r = shm_request_new(c);
    if (!r)
        return shm_error(c, TN_NO_MEMORY, -1, &make, "shm: no memory for a request");
    struct shm_flow *flow = make.op == TN_CALL_SEND ? &c->sends[make.root] : &c->recvs[make.root];
    *r = make;
    r->status = TN_PENDING;
    r->number = flow->next++;
    if (r->op == TN_CALL_SEND) {
        r->send_loc = shm_locate(c->shm, r->in, bytes_of(r));
        r->mode = bytes_of(r) <= MESSAGE_BYTES ? MODE_SMALL : r->send_loc != LOC_PRIVATE ? MODE_DIRECT : MODE_PIPED;
    }
    if (flow->tail)
        flow->tail->next = r;
    else
        flow->head = r;
    flow->tail = r;
    c->n_flows++;
    shm_activate(c);
    if (r->op == TN_CALL_SEND)
        advance_sends(c, r->root);
    *out = r;
    return TN_OK;
}
