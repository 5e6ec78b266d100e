/* nccl: collectives among GPUs by NCCL.
 *
 * A rank has one GPU, that of its place on the host. A group is a communicator: the first of its members by an id that
 * member 0 puts into the bootstrap, further ones of the same members by split of that, sharing nothing, for an abort of
 * one would end the other. Collectives of a group are one stream; a request is an event behind its operation. What
 * stands between group_start and group_end is one launch. Messages have communicators and streams of their own
 * (lane.c). Memory from mem_alloc is registered with the communicators of collectives.
 *
 * Sums are in NCCL's order, which is the same on all members and from run to run of one layout. Buffers must be in GPU
 * memory. Communicators are non-blocking, so that a rank that does not come is noticed; a failure aborts them. */
#include "backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const ncclDataType_t nccl_dtypes[] = {
    [TN_F32] = ncclFloat32, [TN_BF16] = ncclBfloat16, [TN_F16] = ncclFloat16, [TN_I32] = ncclInt32,
    [TN_I64] = ncclInt64,   [TN_U8] = ncclUint8,      [TN_I8] = ncclInt8,     [TN_F64] = ncclFloat64,
};

uint64_t nccl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void nccl_nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

uint64_t nccl_deadline_after(uint64_t timeout_ns)
{
    uint64_t now = nccl_now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* ---- failures ---- */

tn_status nccl_fail_cuda(const struct nccl *b, const char *what, cudaError_t error)
{
    return b->host->fail(b->host, error == cudaErrorMemoryAllocation ? TN_NO_MEMORY : TN_ERROR, "nccl: %s: %s", what,
                         cudaGetErrorString(error));
}

/* What last_error says from now on, and the host. */
tn_status nccl_error(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why)
{
    char what[64] = "";
    if (r && r->call.op >= TN_CALL_SEND) /* messages have no number */
        snprintf(what, sizeof what, "%s of ", tn_call_name(r->call.op));
    else if (r)
        snprintf(what, sizeof what, "%s number %" PRIu64 " of ", tn_call_name(r->call.op), r->number);
    snprintf(c->error_text, sizeof c->error_text, "nccl: %sgroup %s: %s", what, c->name, why);
    c->error = (struct tn_comm_error){ .struct_size = sizeof c->error,
                                       .peer = -1,
                                       .op = r ? tn_call_name(r->call.op) : "",
                                       .op_number = r ? r->number : 0,
                                       .message = c->error_text,
                                       .bytes = r ? r->call.count * tn_call_dtype_bytes(r->call.dtype) : 0 };
    return c->nccl->host->fail(c->nccl->host, status, "%s", c->error_text);
}

/* Ends a group: its communicators are aborted, which ends what is under way. */
tn_status nccl_fail_comm(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why)
{
    if (!c->failed) {
        c->failed = status;
        nccl_lanes_abort(c);
    }
    return nccl_error(c, r, status, why);
}

int nccl_is_time_to_look(struct nccl *b)
{
    uint64_t now = nccl_now_ns();
    if (now < b->next_look_ns)
        return 0;
    b->next_look_ns = now + LOOK_NS;
    return 1;
}

static tn_status look_around(struct nccl *b)
{
    return nccl_is_time_to_look(b) && b->bootstrap.poll(b->bootstrap.ctx) == TN_PEER ? TN_PEER : TN_OK;
}

/* Until a non-blocking call is through. NULL: it is; else why not. */
const char *nccl_settle(struct nccl *b, ncclComm_t comm, ncclResult_t result, uint64_t deadline_ns, tn_status *status)
{
    *status = TN_OK;
    while (result == ncclInProgress) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
        if (asked != ncclSuccess)
            result = asked;
        if (result == ncclInProgress && look_around(b) == TN_PEER) {
            *status = TN_PEER;
            return "a rank of the job has died";
        }
        if (result == ncclInProgress && nccl_now_ns() >= deadline_ns) {
            *status = TN_TIMEOUT;
            return "not all members have come before the deadline";
        }
        if (result == ncclInProgress)
            nccl_nap();
    }
    if (result == ncclSuccess)
        return NULL;
    *status = TN_ERROR;
    return ncclGetErrorString(result);
}

/* ---- the life of the backend ---- */

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    int devices = 0;
    if (next || next_self)
        return host->fail(host, TN_INVALID,
                          "nccl is a backend and takes no backend below it; use [comm] backend = nccl");
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        return host->fail(host, TN_UNSUPPORTED, "nccl needs an NVIDIA GPU and its driver (libcuda.so.1): %s",
                          error != cudaSuccess ? cudaGetErrorString(error) : "there is no GPU");
    struct nccl *b = host->alloc(host, sizeof *b);
    if (!b)
        return host->fail(host, TN_NO_MEMORY, "no memory for an nccl instance");
    memset(b, 0, sizeof *b);
    b->host = host;
    b->device = devices;
    *self = b;
    return TN_OK;
}

static void mem_free(void *self, void *memory);

static void destroy(void *self)
{
    struct nccl *b = self;
    if (!b)
        return;
    for (int i = 0; i < PIECES; i++)
        if (b->pieces[i].base)
            mem_free(b, b->pieces[i].base);
    while (b->times) {
        struct times *next = b->times->next;
        b->host->release(b->host, b->times);
        b->times = next;
    }
    b->host->release(b->host, b);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    (void)self;
    struct tn_collective_caps have = { .needs_progress = 1, .device_memory = 1, .nested_sums = 1 };
    for (uint32_t d = 1; d < sizeof nccl_dtypes / sizeof *nccl_dtypes; d++)
        have.dtypes |= (uint64_t)(tn_call_dtype_bytes(d) > 0) << d;
    have.struct_size = caps->struct_size < sizeof have ? caps->struct_size : (uint32_t)sizeof have;
    memcpy(caps, &have, have.struct_size);
    return TN_OK;
}

/* Two ranks on one GPU is what NCCL refuses late and with few words. */
static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct nccl *b = self;
    int devices = b->device;
    (void)timeout_ns;
    memcpy(&b->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    if (bootstrap->local_size > devices)
        return b->host->fail(b->host, TN_UNSUPPORTED, "nccl: %d ranks on a host with %d GPUs; each needs its own",
                             (int)bootstrap->local_size, devices);
    b->device = bootstrap->local_rank;
    cudaError_t error = cudaSetDevice(b->device);
    if (error != cudaSuccess)
        return nccl_fail_cuda(b, "choosing the GPU", error);
    b->is_up = 1;
    return TN_OK;
}

/* ---- memory ---- */

void nccl_register_piece(struct nccl *b, struct tn_comm *c, int piece)
{
    if (c->failed)
        return;
    if (ncclCommRegister(c->collectives.comm, b->pieces[piece].base, b->pieces[piece].bytes, &c->handles[piece]) !=
        ncclSuccess)
        c->handles[piece] = NULL; /* it works as plain memory */
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    struct nccl *b = self;
    int piece = 0;
    while (piece < PIECES && b->pieces[piece].base)
        piece++;
    if (piece == PIECES)
        return b->host->fail(b->host, TN_NO_MEMORY, "nccl: more than %d pieces of memory", PIECES);
    if (ncclMemAlloc(memory, bytes ? bytes : 1) != ncclSuccess)
        return b->host->fail(b->host, TN_NO_MEMORY, "nccl: no GPU memory for %" PRIu64 " bytes", bytes);
    cudaError_t error = cudaMemset(*memory, 0, bytes);
    if (error != cudaSuccess) {
        ncclMemFree(*memory);
        return nccl_fail_cuda(b, "clearing memory", error);
    }
    b->pieces[piece].base = *memory;
    b->pieces[piece].bytes = bytes ? bytes : 1;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        nccl_register_piece(b, c, piece);
    return TN_OK;
}

static void mem_free(void *self, void *memory)
{
    struct nccl *b = self;
    for (int i = 0; memory && i < PIECES; i++) {
        if (b->pieces[i].base != memory)
            continue;
        for (struct tn_comm *c = b->comms; c; c = c->next) {
            if (c->handles[i] && !c->failed)
                ncclCommDeregister(c->collectives.comm, c->handles[i]);
            c->handles[i] = NULL;
        }
        ncclMemFree(memory);
        b->pieces[i].base = NULL;
        return;
    }
}

/* ---- what the loader reads ---- */

TN_CALL_FUNCTIONS(nccl_call)

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = nccl_comm_create,
    .comm_destroy = nccl_comm_destroy,
    .comm_abort = nccl_comm_abort,
    TN_CALL_ENTRIES(nccl_call),
    .group_start = nccl_group_start,
    .group_end = nccl_group_end,
    .test = nccl_test,
    .wait = nccl_wait_for,
    .progress = nccl_progress,
    .last_error = nccl_last_error,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "nccl",
        .version = "0.1.0",
        .summary = "Collectives among NVIDIA GPUs by NCCL.",
        .build_info = __VERSION__,
        .table = &table,
    };
    (void)host;
    return &plugin;
}
