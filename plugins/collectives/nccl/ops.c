/* Operations: what is called in which order on the streams of a group, and when it is done. */
#include "backend.h"

#include <string.h>

static struct tn_request *request_new(struct tn_comm *c)
{
    const struct tn_host *host = c->nccl->host;
    struct tn_request *r = c->unused, *next_made = NULL;
    cudaEvent_t done = NULL;
    if (r) {
        c->unused = r->next;
        next_made = r->next_made;
        done = r->done;
    } else {
        r = host->alloc(host, sizeof *r);
        if (!r || cudaEventCreateWithFlags(&done, cudaEventDisableTiming) != cudaSuccess) {
            host->release(host, r);
            return NULL;
        }
        next_made = c->made;
        c->made = r;
    }
    *r = (struct tn_request){ .comm = c, .next_made = next_made, .done = done };
    return r;
}

static void recycle(struct tn_request *r)
{
    r->next = r->comm->unused;
    r->comm->unused = r;
}

static int is_on_gpu(const void *p)
{
    struct cudaPointerAttributes of;
    return !p || (cudaPointerGetAttributes(&of, p) == cudaSuccess &&
                  (of.type == cudaMemoryTypeDevice || of.type == cudaMemoryTypeManaged));
}

static tn_status check(struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->nccl->host;
    int reduces = a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_REDUCE_SCATTER;
    if (!c->failed && atomic_load(&c->aborted))
        (void)nccl_fail_comm(c, NULL, TN_ABORTED, "it was aborted");
    if (c->failed)
        return host->fail(host, c->failed, "group %s has failed: %s", c->name, c->error_text);
    if (!tn_call_dtype_bytes(a->dtype) || (reduces && a->red > TN_RED_MAX) || a->peer < 0 || a->peer >= c->n)
        return host->fail(host, TN_INVALID, "nccl: %s of group %s: dtype %u, reduction %u, member %d are not possible",
                          tn_call_name(a->op), c->name, a->dtype, a->red, (int)a->peer);
    if (a->queue)
        return host->fail(host, TN_UNSUPPORTED, "nccl: the queue of this device is no CUDA stream");
    if (a->count && (!is_on_gpu(a->send) || !is_on_gpu(a->recv)))
        return host->fail(host, TN_INVALID, "nccl: %s of group %s: the buffer is not in GPU memory",
                          tn_call_name(a->op), c->name);
    return TN_OK;
}

static ncclResult_t exchange(const struct tn_request *r, ncclDataType_t type, const struct lane *lane)
{
    const struct tn_call *a = &r->call;
    uint64_t block = a->count * tn_call_dtype_bytes(a->dtype);
    ncclResult_t result = ncclGroupStart();
    for (int32_t i = 0; i < r->comm->n && nccl_is_fine(result); i++) {
        result = ncclSend((const char *)a->send + (uint64_t)i * block, a->count, type, i, lane->comm, lane->stream);
        if (nccl_is_fine(result))
            result = ncclRecv((char *)a->recv + (uint64_t)i * block, a->count, type, i, lane->comm, lane->stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return nccl_is_fine(result) ? ended : result;
}

/* Inside of a group of NCCL's. A lane of messages has two members, the sender first. */
ncclResult_t nccl_begin(struct tn_request *r, const struct lane *lane)
{
    const struct tn_call *a = &r->call;
    ncclDataType_t type = nccl_dtypes[a->dtype];
    ncclRedOp_t red = a->red == TN_RED_MAX ? ncclMax : ncclSum;
    ncclComm_t comm = lane->comm;
    cudaStream_t stream = lane->stream;
    void *word = r->comm->word;
    switch (a->op) {
    case TN_CALL_BARRIER: return ncclAllReduce(word, word, 1, ncclInt32, ncclMax, comm, stream);
    case TN_CALL_SEND: return ncclSend(a->send, a->count, type, 1, comm, stream);
    case TN_CALL_RECV: return ncclRecv(a->recv, a->count, type, 0, comm, stream);
    default: break;
    }
    if (a->count == 0)
        return ncclSuccess;
    switch (a->op) {
    case TN_CALL_ALL_REDUCE: return ncclAllReduce(a->send, a->recv, a->count, type, red, comm, stream);
    case TN_CALL_ALL_GATHER: return ncclAllGather(a->send, a->recv, a->count, type, comm, stream);
    case TN_CALL_REDUCE_SCATTER: return ncclReduceScatter(a->send, a->recv, a->count, type, red, comm, stream);
    case TN_CALL_ALL_TO_ALL: return exchange(r, type, lane);
    default: return ncclBroadcast(a->send, a->recv, a->count, type, a->peer, comm, stream);
    }
}

tn_status nccl_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **out)
{
    struct nccl *b = c->nccl;
    tn_status status = check(c, a);
    if (status != TN_OK)
        return status;
    int is_message = a->op == TN_CALL_SEND || a->op == TN_CALL_RECV;
    struct lane *lane = is_message ? nccl_lane_to(c, a->peer, a->op == TN_CALL_SEND) : &c->collectives;
    struct tn_request *r = request_new(c);
    if (!r || !lane)
        return b->host->fail(b->host, TN_NO_MEMORY, "nccl: no memory for a request");
    r->call = *a;
    r->number = is_message ? 0 : c->number++;
    nccl_lane_add(lane, r);
    *out = r;
    status = nccl_lead(c);
    if (status != TN_OK)
        recycle(r);
    return status;
}

/* What is called between the two begins as one launch. */
tn_status nccl_group_start(void *self)
{
    struct nccl *b = self;
    b->is_grouping = 1;
    return TN_OK;
}

tn_status nccl_group_end(void *self)
{
    struct nccl *b = self;
    tn_status status = TN_OK;
    b->is_grouping = 0;
    for (struct tn_comm *c = b->comms; c && status == TN_OK; c = c->next)
        status = c->failed ? TN_OK : nccl_lead(c);
    return status;
}

/* ---- test and wait ---- */

/* Of a request that is not done: why it never will be, or TN_PENDING. */
static tn_status look_into(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct nccl *b = c->nccl;
    if (!atomic_load(&c->aborted) && !nccl_is_time_to_look(b))
        return TN_PENDING;
    ncclResult_t result = ncclSuccess;
    for (struct lane *lane = &c->collectives; lane; lane = lane == &c->collectives ? c->lanes : lane->next)
        if (lane->comm && nccl_is_fine(result))
            ncclCommGetAsyncError(lane->comm, &result);
    if (!nccl_is_fine(result))
        return nccl_fail_comm(c, r, TN_ERROR, ncclGetErrorString(result));
    if (nccl_is_aborted(c))
        return nccl_fail_comm(c, r, TN_ABORTED, "it was aborted");
    if (b->bootstrap.poll(b->bootstrap.ctx) == TN_PEER)
        return nccl_fail_comm(c, r, TN_PEER, "a rank of the job has died");
    return TN_PENDING;
}

tn_status nccl_test(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct nccl *b = c->nccl;
    tn_status status = c->failed ? b->host->fail(b->host, c->failed, "%s", c->error_text) : nccl_lead(c);
    cudaError_t state = status == TN_OK && r->is_begun ? cudaEventQuery(r->done) : cudaErrorNotReady;
    if (status == TN_OK && state == cudaErrorNotReady)
        status = look_into(r);
    else if (status == TN_OK && state != cudaSuccess)
        status = nccl_fail_comm(c, r, TN_ERROR, cudaGetErrorString(state));
    if (status != TN_PENDING)
        recycle(r);
    return status;
}

tn_status nccl_wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    struct tn_comm *c = r->comm;
    uint64_t deadline_ns = nccl_deadline_after(timeout_ns);
    for (;;) {
        tn_status status = nccl_test(r);
        if (status != TN_PENDING)
            return status;
        if (nccl_now_ns() >= deadline_ns)
            return nccl_error(c, r, TN_TIMEOUT, "some member is missing");
        nccl_progress(c->nccl);
        nccl_nap();
    }
}

void nccl_progress(void *self)
{
    struct nccl *b = self;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        if (!c->failed)
            (void)nccl_lead(c);
}

tn_status nccl_last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (!c->error.message)
        return TN_NOT_FOUND;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}
