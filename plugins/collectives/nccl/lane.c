/* Lanes: a communicator and a stream, on which operations run in the order of their calls.
 *
 * A group has one for its collectives, and one for each direction between two members that send each other messages,
 * made when it is first used. NCCL runs what is on one communicator one after the other, and a message until its other
 * end runs; on a lane of its own a message waits only for those before it that it matches in order with, and never for
 * what the other end does later. Messages to oneself are copies.
 *
 * Nothing here blocks: what is due begins when NCCL has connected the members, which may need them all to have called.
 * test, wait and progress lead lanes on. */
#include "backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void nccl_lane_add(struct lane *lane, struct tn_request *r)
{
    struct tn_request **end = &lane->due;
    while (*end)
        end = &(*end)->next;
    r->next = NULL;
    *end = r;
}

struct lane *nccl_lane_to(struct tn_comm *c, int32_t peer, int is_send)
{
    const struct tn_host *host = c->nccl->host;
    for (struct lane *lane = c->lanes; lane; lane = lane->next)
        if (lane->peer == peer && (lane->is_send == is_send || peer == c->me))
            return lane;
    struct lane *lane = host->alloc(host, sizeof *lane);
    if (!lane)
        return NULL;
    *lane = (struct lane){ .next = c->lanes, .peer = peer, .is_send = is_send, .state = LANE_NEW };
    if (cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking) != cudaSuccess) {
        host->release(host, lane);
        return NULL;
    }
    c->lanes = lane;
    return lane;
}

/* The sender makes the id. TN_PENDING: it has not yet. */
static tn_status connect(struct tn_comm *c, struct lane *lane)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    uint32_t bytes = sizeof id;
    char key[64];
    snprintf(key, sizeof key, "nccl/%016" PRIx64 "/%d>%d", c->key, (int)(lane->is_send ? c->me : lane->peer),
             (int)(lane->is_send ? lane->peer : c->me));
    ncclResult_t result = lane->is_send ? ncclGetUniqueId(&id) : ncclSuccess;
    tn_status status = result != ncclSuccess ? TN_ERROR
                       : lane->is_send       ? boot->put(boot->ctx, key, &id, bytes)
                                             : boot->get(boot->ctx, key, &id, &bytes);
    if (status != TN_OK)
        return status;
    config.blocking = 0;
    result = ncclCommInitRankConfig(&lane->comm, 2, id, lane->is_send ? 0 : 1, &config);
    lane->state = LANE_JOINS;
    return nccl_is_fine(result) ? TN_OK : TN_ERROR;
}

/* A message to oneself when both ends are there, in order on either side. */
static tn_status copy(struct tn_comm *c, struct lane *lane)
{
    for (struct tn_request **at = &lane->due; *at;) {
        struct tn_request *r = *at, **other = &r->next;
        while (*other && (*other)->call.op == r->call.op)
            other = &(*other)->next;
        struct tn_request *end = *other;
        if (!end)
            return TN_OK;
        const struct tn_call *send = &r->call, *recv = &end->call;
        if (send->op == TN_CALL_RECV) {
            send = &end->call;
            recv = &r->call;
        }
        uint64_t bytes = (send->count < recv->count ? send->count : recv->count) * tn_call_dtype_bytes(send->dtype);
        cudaError_t error = cudaMemcpyAsync(recv->recv, send->send, bytes, cudaMemcpyDeviceToDevice, lane->stream);
        *other = end->next;
        *at = r->next;
        r->is_begun = end->is_begun = 1;
        cudaEventRecord(r->done, lane->stream);
        cudaEventRecord(end->done, lane->stream);
        if (error != cudaSuccess)
            return nccl_fail_comm(c, r, TN_ERROR, cudaGetErrorString(error));
    }
    return TN_OK;
}

static ncclResult_t begin(struct lane *lane)
{
    ncclResult_t result = ncclGroupStart();
    for (struct tn_request *r = lane->due; r && nccl_is_fine(result); r = r->next)
        result = nccl_begin(r, lane);
    ncclResult_t ended = ncclGroupEnd();
    lane->begins = lane->due;
    lane->due = NULL;
    return nccl_is_fine(result) ? ended : result;
}

static void note_begun(struct lane *lane)
{
    for (struct tn_request *r = lane->begins; r; r = r->next) {
        cudaEventRecord(r->done, lane->stream);
        r->is_begun = 1;
    }
    lane->begins = NULL;
}

static tn_status lead(struct tn_comm *c, struct lane *lane)
{
    ncclResult_t result = ncclSuccess;
    if (!lane->due && !lane->begins)
        return TN_OK;
    if (lane->peer == c->me)
        return copy(c, lane);
    if (lane->state == LANE_NEW) {
        tn_status status = connect(c, lane);
        if (status != TN_OK)
            return status == TN_PENDING ? TN_OK : nccl_fail_comm(c, lane->due, status, "its members could not connect");
    }
    ncclResult_t asked = ncclCommGetAsyncError(lane->comm, &result);
    result = asked != ncclSuccess ? asked : result;
    if (result == ncclSuccess) {
        lane->state = LANE_OPEN;
        note_begun(lane);
        result = lane->due ? begin(lane) : ncclSuccess;
        if (result == ncclSuccess)
            note_begun(lane);
    }
    if (nccl_is_fine(result))
        return TN_OK;
    return nccl_fail_comm(c, lane->begins ? lane->begins : lane->due, TN_ERROR, ncclGetErrorString(result));
}

tn_status nccl_lead(struct tn_comm *c)
{
    tn_status status = c->failed ? c->failed : c->nccl->is_grouping ? TN_OK : lead(c, &c->collectives);
    for (struct lane *lane = c->lanes; lane && status == TN_OK; lane = lane->next)
        status = lead(c, lane);
    return status;
}

void nccl_lanes_abort(struct tn_comm *c)
{
    for (struct lane *lane = &c->collectives; lane; lane = lane == &c->collectives ? c->lanes : lane->next) {
        if (lane->comm)
            ncclCommAbort(lane->comm);
        lane->comm = NULL;
    }
}

/* What was waited for is done; a communicator that does not come to rest is aborted. */
static void end(struct nccl *b, ncclComm_t comm)
{
    tn_status status;
    if (comm && nccl_settle(b, comm, ncclCommFinalize(comm), nccl_deadline_after(END_NS), &status))
        ncclCommAbort(comm);
    else if (comm)
        ncclCommDestroy(comm);
}

void nccl_lanes_end(struct tn_comm *c)
{
    end(c->nccl, c->collectives.comm);
    if (c->collectives.stream)
        cudaStreamDestroy(c->collectives.stream);
    while (c->lanes) {
        struct lane *lane = c->lanes;
        c->lanes = lane->next;
        if (lane->state == LANE_OPEN)
            end(c->nccl, lane->comm);
        else if (lane->comm) /* the other member never came */
            ncclCommAbort(lane->comm);
        cudaStreamDestroy(lane->stream);
        c->nccl->host->release(c->nccl->host, lane);
    }
}
