/* Send and recv: messages between two members, numbered on each way, so that they match in order whatever their
 * size. */
#include "backend.h"

#include <inttypes.h>

static tn_status check(struct tn_comm *c, struct tn_request *r)
{
    tn_status status = ucx_failure(c);
    if (status != TN_OK)
        return status;
    r->esize = tn_call_dtype_bytes(r->dtype);
    if (r->peer < 0 || r->peer >= c->n) {
        int32_t peer = r->peer;
        r->peer = c->me;
        return ucx_error(c, r, TN_INVALID, -1, "with member %d of %d", (int)peer, (int)c->n);
    }
    if (!r->esize)
        return ucx_error(c, r, TN_INVALID, -1, "there is no dtype %u", (unsigned)r->dtype);
    return TN_OK;
}

static struct tn_request *enlist(struct tn_comm *c, const struct tn_request *make)
{
    struct tn_request *r = ucx_request_new(c);
    if (!r)
        return NULL;
    struct tn_request *made = r->made;
    *r = *make;
    r->made = made;
    r->comm = c;
    r->status = TN_PENDING;
    r->next = c->messages;
    if (r->next)
        r->next->prev = r;
    c->messages = r;
    return r;
}

static void delist(struct tn_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->comm->messages = r->next;
    if (r->next)
        r->next->prev = r->prev;
}

void ucx_p2p_settle(struct tn_request *r)
{
    if (r->under_way || (r->op == TN_CALL_RECV && !r->got))
        return;
    r->status = TN_OK;
    delist(r);
}

static void match(struct tn_request *r, struct ucx_in *in)
{
    struct tn_comm *c = r->comm;
    const struct ucx_head *h = &in->head;
    int32_t from = c->ranks[r->peer];
    c->backend->is_dirty = 1;
    if (h->count == r->count && (h->what >> 8 & 0xff) == r->dtype) {
        ucx_take(r, in, r->out);
        return;
    }
    r->status = ucx_error(c, r, TN_CONFLICT, from, "rank %d sends %" PRIu64 " %s, rank %d receives %" PRIu64 " %s",
                          (int)from, h->count, tn_call_dtype_name(h->what >> 8 & 0xff), (int)c->backend->rank, r->count,
                          tn_call_dtype_name(r->dtype));
    ucx_drop(in);
    delist(r);
}

void ucx_p2p_message(struct tn_comm *c, struct ucx_in *in)
{
    struct ucx_flow *flow = &c->flows[in->head.from];
    for (struct tn_request **at = &flow->waiting; *at; at = &(*at)->chain) {
        struct tn_request *r = *at;
        if (r->number != in->head.number)
            continue;
        *at = r->chain;
        match(r, in);
        return;
    }
    in->next = flow->came;
    flow->came = in;
}

tn_status ucx_send(struct tn_comm *c, struct tn_request make, struct tn_request **out)
{
    *out = NULL;
    tn_status status = check(c, &make);
    if (status != TN_OK)
        return status;
    struct ucx_flow *flow = &c->flows[make.peer];
    make.number = flow->sent;
    struct tn_request *r = enlist(c, &make);
    if (!r)
        return ucx_error(c, &make, TN_NO_MEMORY, -1, "no memory for a request");
    flow->sent++;
    *out = r;
    ucx_say(c, r, r->peer, ucx_head_of(r, KIND_MESSAGE, 0, 0), r->in, r->count * r->esize);
    c->backend->is_dirty = 1;
    return TN_OK;
}

tn_status ucx_recv(struct tn_comm *c, struct tn_request make, struct tn_request **out)
{
    *out = NULL;
    tn_status status = check(c, &make);
    if (status != TN_OK)
        return status;
    struct ucx_flow *flow = &c->flows[make.peer];
    make.number = flow->received;
    struct tn_request *r = enlist(c, &make);
    if (!r)
        return ucx_error(c, &make, TN_NO_MEMORY, -1, "no memory for a request");
    flow->received++;
    *out = r;
    for (struct ucx_in **at = &flow->came; *at; at = &(*at)->next) {
        struct ucx_in *in = *at;
        if (in->head.number != r->number)
            continue;
        *at = in->next;
        match(r, in);
        return TN_OK;
    }
    struct tn_request **last = &flow->waiting;
    while (*last)
        last = &(*last)->chain;
    *last = r;
    return TN_OK;
}
