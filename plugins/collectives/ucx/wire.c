/* Messages: out as UCX active messages with a head, in through one inbox.
 *
 * Small ones carry their data (eager). Of large ones only the head and a promise arrive, and the receiver fetches the
 * data straight to its place once it knows which that is (rendezvous): by reading the sender's memory within a host,
 * by RMA or streaming over a network. So whoever is ahead costs the others no memory, and no byte is copied twice.
 *
 * UCX calls back in the middle of its own progress. Callbacks here only count and queue; ucx_read_inbox then sorts
 * what came to its group and its request. A message may be ahead of its group (orphans), of its operation (early), or
 * of its operation's turn (held, ops.c). */
#include "backend.h"

#include <string.h>

enum { SLAB = 64 };

struct ucx_slab {
    struct ucx_slab *next;
    union {
        struct ucx_in in[SLAB];
        struct ucx_out out[SLAB];
    };
};

static struct ucx_slab *new_slab(struct backend *b)
{
    struct ucx_slab *slab = b->host->alloc(b->host, sizeof *slab);
    if (!slab)
        return NULL;
    slab->next = b->slabs;
    b->slabs = slab;
    return slab;
}

static struct ucx_in *take_in(struct backend *b)
{
    if (!b->free_in) {
        struct ucx_slab *slab = new_slab(b);
        for (int i = 0; slab && i < SLAB; i++) {
            slab->in[i].next = b->free_in;
            b->free_in = &slab->in[i];
        }
    }
    struct ucx_in *in = b->free_in;
    if (in)
        b->free_in = in->next;
    return in;
}

static struct ucx_out *take_out(struct backend *b)
{
    if (!b->free_out) {
        struct ucx_slab *slab = new_slab(b);
        for (int i = 0; slab && i < SLAB; i++) {
            slab->out[i].next = b->free_out;
            b->free_out = &slab->out[i];
        }
    }
    struct ucx_out *out = b->free_out;
    if (out)
        b->free_out = out->next;
    return out;
}

static void give_in(struct ucx_in *in)
{
    in->next = in->backend->free_in;
    in->backend->free_in = in;
}

static void give_out(struct ucx_out *out)
{
    out->next = out->backend->free_out;
    out->backend->free_out = out;
}

void ucx_drop(struct ucx_in *in)
{
    if (in->data)
        ucp_am_data_release(in->backend->worker, in->data);
    give_in(in);
}

static void drop_all(struct ucx_in *in)
{
    while (in) {
        struct ucx_in *next = in->next;
        ucx_drop(in);
        in = next;
    }
}

void ucx_wire_drop(struct backend *b)
{
    drop_all(b->inbox);
    drop_all(b->orphans);
    b->inbox = b->orphans = NULL;
    b->inbox_last = &b->inbox;
}

void ucx_wire_finish(struct backend *b)
{
    while (b->slabs) {
        struct ucx_slab *next = b->slabs->next;
        b->host->release(b->host, b->slabs);
        b->slabs = next;
    }
    b->free_in = NULL;
    b->free_out = NULL;
}

static void push(struct ucx_in *in)
{
    struct backend *b = in->backend;
    in->next = NULL;
    *b->inbox_last = in;
    b->inbox_last = &in->next;
}

/* One operation less that UCX has of the request. */
static void let_go(struct tn_request *r)
{
    r->under_way--;
    r->comm->backend->is_dirty = 1;
    if (r->is_ended && r->under_way == 0)
        ucx_request_recycle(r);
}

/* ---- out ---- */

static void sent(void *request, ucs_status_t status, void *user_data)
{
    struct ucx_out *out = user_data;
    if (status != UCS_OK && status != UCS_ERR_CANCELED)
        ucx_peer_failed(out->backend, out->peer, status);
    if (out->owner)
        let_go(out->owner);
    give_out(out);
    ucp_request_free(request);
}

struct ucx_head ucx_head_of(const struct tn_request *r, int kind, uint32_t phase, uint32_t piece)
{
    const struct tn_comm *c = r->comm;
    return (struct ucx_head){ .key = c->key,
                              .turn = c->turn,
                              .kind = (uint16_t)kind,
                              .phase = (uint16_t)phase,
                              .from = c->me,
                              .piece = piece,
                              .number = r->number,
                              .count = r->count,
                              .what = ucx_what(r),
                              .root = r->op == TN_CALL_BROADCAST ? r->peer : 0 };
}

void ucx_say(struct tn_comm *c, struct tn_request *owner, int32_t member, struct ucx_head head, const void *data,
             uint64_t bytes)
{
    struct backend *b = c->backend;
    int32_t rank = c->ranks[member];
    struct ucx_out *out = take_out(b);
    if (!out) {
        ucx_comm_fail(c, owner, TN_NO_MEMORY, -1, "no memory for a message");
        return;
    }
    *out = (struct ucx_out){ .head = head, .backend = b, .owner = owner, .peer = rank };
    int is_eager = bytes <= b->eager_bytes;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = is_eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = sent,
        .user_data = out,
    };
    if (!is_eager && (param.memh = ucx_memory_of(b, data, bytes)))
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    ucs_status_ptr_t request =
        b->peers[rank].ep ? ucp_am_send_nbx(b->peers[rank].ep, 0, &out->head, sizeof out->head, data, bytes, &param)
                          : UCS_STATUS_PTR(UCS_ERR_UNREACHABLE);
    if (UCS_PTR_IS_ERR(request))
        ucx_peer_failed(b, rank, UCS_PTR_STATUS(request));
    if (!UCS_PTR_IS_PTR(request)) {
        give_out(out);
        return;
    }
    if (owner)
        owner->under_way++;
}

/* ---- in ---- */

ucs_status_t ucx_arrived(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                         const ucp_am_recv_param_t *param)
{
    struct backend *b = arg;
    struct ucx_in *in = header_bytes == sizeof in->head ? take_in(b) : NULL;
    if (!in) {
        b->host->log(b->host, TN_LOG_ERROR, "a message with a head of %zu bytes is lost", header_bytes);
        return UCS_OK;
    }
    in->backend = b;
    in->owner = NULL;
    in->is_landed = 0;
    in->is_promise = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    in->bytes = bytes;
    memcpy(&in->head, header, sizeof in->head);
    int is_copied = !in->is_promise && bytes <= TINY_BYTES;
    in->data = is_copied ? NULL : data;
    if (is_copied && bytes)
        memcpy(in->tiny, data, bytes);
    push(in);
    return is_copied ? UCS_OK : UCS_INPROGRESS;
}

static void fetched(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    struct ucx_in *in = user_data;
    struct tn_request *r = in->owner;
    (void)bytes;
    in->data = NULL;
    in->is_landed = status == UCS_OK && !r->is_ended && !r->comm->failed;
    if (status != UCS_OK && status != UCS_ERR_CANCELED)
        ucx_peer_failed(in->backend, r->comm->ranks[in->head.from], status);
    let_go(r);
    if (in->is_landed)
        push(in);
    else
        give_in(in);
    ucp_request_free(request);
}

static void tell_landed(struct tn_request *r, const struct ucx_head *h)
{
    if (r->op == TN_CALL_RECV)
        r->got = 1;
    else
        ucx_op_landed(r, h);
}

void ucx_take(struct tn_request *r, struct ucx_in *in, char *to)
{
    struct backend *b = in->backend;
    if (in->is_promise) {
        ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                      .cb.recv_am = fetched,
                                      .user_data = in };
        in->owner = r;
        r->under_way++;
        ucs_status_ptr_t request = ucp_am_recv_data_nbx(b->worker, in->data, to, in->bytes, &param);
        if (UCS_PTR_IS_PTR(request))
            return;
        in->data = NULL;
        let_go(r);
        if (UCS_PTR_IS_ERR(request)) {
            ucx_peer_failed(b, r->comm->ranks[in->head.from], UCS_PTR_STATUS(request));
            give_in(in);
            return;
        }
    } else if (in->bytes) {
        memcpy(to, in->data ? in->data : in->tiny, in->bytes);
    }
    struct ucx_head h = in->head;
    ucx_drop(in);
    tell_landed(r, &h);
}

static void sort_data(struct tn_comm *c, struct ucx_in *in)
{
    const struct ucx_head *h = &in->head;
    struct tn_request *r = ucx_op_find(c, h->number);
    if (r) {
        ucx_op_message(r, in);
        return;
    }
    if (h->number >= c->number) {
        in->next = c->early;
        c->early = in;
        return;
    }
    const struct ucx_call *past = &c->past[h->number % BUCKETS];
    int is_other = h->number + BUCKETS > c->number && past->is_known &&
                   (past->what != h->what || past->count != h->count || past->root != h->root);
    if (is_other) /* it ended here without this member, who calls something else */
        ucx_split(c, h->number);
    ucx_drop(in);
}

static void sort(struct tn_comm *c, struct ucx_in *in)
{
    struct ucx_head h = in->head;
    int is_member = h.from >= 0 && h.from < c->n;
    if (is_member && !c->failed && h.kind == KIND_DATA) {
        sort_data(c, in);
        return;
    }
    if (is_member && !c->failed && h.kind == KIND_MESSAGE) {
        ucx_p2p_message(c, in);
        return;
    }
    ucx_drop(in);
    if (!is_member)
        return;
    if (h.kind == KIND_ASK) {
        struct ucx_head answer = { .key = c->key,
                                   .turn = c->turn,
                                   .kind = KIND_ANSWER,
                                   .from = c->me,
                                   .piece = c->number > h.number,
                                   .number = h.number };
        ucx_say(c, NULL, h.from, answer, NULL, 0);
    } else if (h.kind == KIND_ANSWER) {
        ucx_answer(c, &h);
    } else if (h.kind == KIND_CONFLICT && !c->failed) {
        ucx_split_told(c, &h);
    } else if (h.kind == KIND_FAILED && !c->failed) {
        ucx_failed_there(c, &h);
    }
}

int ucx_read_inbox(struct backend *b)
{
    int n = 0;
    while (b->inbox) {
        struct ucx_in *in = b->inbox;
        const struct ucx_head *h = &in->head;
        b->inbox = in->next;
        if (!b->inbox)
            b->inbox_last = &b->inbox;
        n++;
        if (in->is_landed) {
            struct tn_request *r = in->owner;
            struct ucx_head head = in->head;
            give_in(in);
            if (!r->comm->failed)
                tell_landed(r, &head);
            continue;
        }
        if (h->kind == KIND_JOIN) {
            ucx_join(b, h);
            ucx_drop(in);
            continue;
        }
        struct tn_comm *c = ucx_comm_find(b, h->key, h->turn);
        if (c) {
            sort(c, in);
        } else if (ucx_is_over(b, h->key, h->turn)) {
            ucx_drop(in);
        } else {
            in->next = b->orphans;
            b->orphans = in;
        }
    }
    return n;
}

void ucx_adopt_orphans(struct tn_comm *c)
{
    for (struct ucx_in **at = &c->backend->orphans; *at;) {
        struct ucx_in *in = *at;
        if (in->head.key != c->key || in->head.turn != c->turn) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        sort(c, in);
    }
}
