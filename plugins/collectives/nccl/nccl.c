/* nccl: collectives among GPUs by NCCL.
 *
 * A rank has one GPU, that of its place on the host. A group is a communicator: the first of its members by an id that
 * member 0 puts into the bootstrap, further ones of the same members by split of that. Collectives of a group are one
 * stream; a request is an event behind its operation. Messages have a communicator and a stream of their own and start
 * together, when somebody first waits: NCCL would else run a send before the receive that its peer's send waits for.
 * Memory from mem_alloc is registered with every communicator.
 *
 * Sums are in NCCL's order, which is the same on all members and from run to run of one layout. Buffers must be in GPU
 * memory. Communicators are non-blocking, so that a rank that does not come is noticed; a failure aborts them. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <tenon/collective.h>
#include <tenon/plugin.h>

enum { OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_TO_ALL, OP_BROADCAST, OP_BARRIER, OP_SEND, OP_RECV };
enum { NAME_BYTES = 32, PIECES = 256, NAP_NS = 20 * 1000, LOOK_NS = 50 * 1000 * 1000 };

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next, *next_made;
    cudaEvent_t done;
    int is_begun;               /* the event stands behind it */
    uint32_t op, dtype, red;
    int32_t peer;
    const void *send;
    void *recv;
    uint64_t count, number;
};

struct tn_comm {
    struct nccl *nccl;
    struct tn_comm *next;
    char name[NAME_BYTES];
    uint64_t key;
    int32_t n, me;
    int32_t *ranks;
    ncclComm_t collectives, messages;
    cudaStream_t stream, message_stream;
    void *word;                 /* GPU memory, for barriers */
    void *handles[PIECES];      /* of registered memory */
    struct tn_request *made, *unused, *waiting; /* waiting: messages that have not begun, newest first */
    uint64_t number;
    atomic_int aborted;         /* asked for, by any thread */
    tn_status failed;
    struct tn_comm_error error;
    char error_text[512];
};

struct nccl {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    int device, is_up;
    uint64_t next_look_ns;
    struct tn_comm *comms;
    struct times { uint64_t key; uint32_t times; struct times *next; } *times;
    struct { void *base; uint64_t bytes; } pieces[PIECES];
};

static const struct {
    ncclDataType_t type;
    uint32_t bytes;
} dtypes[] = {
    [TN_F32] = { ncclFloat32, 4 }, [TN_BF16] = { ncclBfloat16, 2 }, [TN_F16] = { ncclFloat16, 2 },
    [TN_I32] = { ncclInt32, 4 },   [TN_I64] = { ncclInt64, 8 },     [TN_U8] = { ncclUint8, 1 },
    [TN_I8] = { ncclInt8, 1 },     [TN_F64] = { ncclFloat64, 8 },
};

static uint32_t dtype_bytes(uint32_t dtype)
{
    return dtype < sizeof dtypes / sizeof *dtypes ? dtypes[dtype].bytes : 0;
}

static const char *op_name(uint32_t op)
{
    static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                         "barrier", "send", "recv" };
    return names[op];
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

static uint64_t deadline_after(uint64_t timeout_ns)
{
    uint64_t now = now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* ---- failures ---- */

static tn_status fail_cuda(const struct nccl *b, const char *what, cudaError_t error)
{
    return b->host->fail(b->host, error == cudaErrorMemoryAllocation ? TN_NO_MEMORY : TN_ERROR, "nccl: %s: %s", what,
                         cudaGetErrorString(error));
}

/* Ends a group: its communicators are aborted, which ends what is under way. */
static tn_status fail_comm(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why)
{
    snprintf(c->error_text, sizeof c->error_text, "nccl: %s%sgroup %s: %s", r ? op_name(r->op) : "", r ? " of " : "", c->name, why);
    c->error = (struct tn_comm_error){ .struct_size = sizeof c->error, .peer = -1, .op = r ? op_name(r->op) : "",
                                       .op_number = r ? r->number : 0, .message = c->error_text,
                                       .bytes = r ? r->count * dtype_bytes(r->dtype) : 0 };
    if (!c->failed) {
        c->failed = status;
        ncclCommAbort(c->collectives);
        ncclCommAbort(c->messages);
        c->collectives = c->messages = NULL;
    }
    return c->nccl->host->fail(c->nccl->host, status, "%s", c->error_text);
}

static int is_time_to_look(struct nccl *b)
{
    uint64_t now = now_ns();
    if (now < b->next_look_ns)
        return 0;
    b->next_look_ns = now + LOOK_NS;
    return 1;
}

static tn_status look_around(struct nccl *b)
{
    return is_time_to_look(b) && b->bootstrap.poll(b->bootstrap.ctx) == TN_PEER ? TN_PEER : TN_OK;
}

/* Until a non-blocking call is through. NULL: it is; else why not. */
static const char *settle(struct nccl *b, ncclComm_t comm, ncclResult_t result, uint64_t deadline_ns, tn_status *status)
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
        if (result == ncclInProgress && now_ns() >= deadline_ns) {
            *status = TN_TIMEOUT;
            return "not all members have come before the deadline";
        }
        if (result == ncclInProgress)
            nap();
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
        return host->fail(host, TN_INVALID, "nccl is a backend and takes no backend below it");
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
    for (uint32_t d = 1; d < sizeof dtypes / sizeof *dtypes; d++)
        have.dtypes |= (uint64_t)(dtypes[d].bytes > 0) << d;
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
        return fail_cuda(b, "choosing the GPU", error);
    b->is_up = 1;
    return TN_OK;
}

/* ---- memory ---- */

static void register_piece(struct nccl *b, struct tn_comm *c, int piece)
{
    if (!c->failed && ncclCommRegister(c->collectives, b->pieces[piece].base, b->pieces[piece].bytes, &c->handles[piece]) != ncclSuccess)
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
        return fail_cuda(b, "clearing memory", error);
    }
    b->pieces[piece].base = *memory;
    b->pieces[piece].bytes = bytes ? bytes : 1;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        register_piece(b, c, piece);
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
                ncclCommDeregister(c->collectives, c->handles[i]);
            c->handles[i] = NULL;
        }
        ncclMemFree(memory);
        b->pieces[i].base = NULL;
        return;
    }
}

/* ---- groups ---- */

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
    return *me >= 0 ? TN_OK
                    : b->host->fail(b->host, TN_INVALID, "nccl: rank %d is not in the group it makes", (int)b->bootstrap.rank);
}

static tn_status share_id(struct tn_comm *c, ncclUniqueId *id, uint64_t deadline_ns)
{
    struct nccl *b = c->nccl;
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[48];
    snprintf(key, sizeof key, "nccl/%016" PRIx64, c->key);
    if (c->me == 0) {
        ncclResult_t result = ncclGetUniqueId(id);
        if (result != ncclSuccess)
            return b->host->fail(b->host, TN_ERROR, "nccl: making group %s: %s", c->name, ncclGetErrorString(result));
        return boot->put(boot->ctx, key, id, sizeof *id) >= 0
                   ? TN_OK : b->host->fail(b->host, TN_ERROR, "nccl: making group %s: the bootstrap failed", c->name);
    }
    for (;;) {
        uint32_t bytes = sizeof *id;
        tn_status status = boot->get(boot->ctx, key, id, &bytes);
        if (status == TN_OK)
            return TN_OK;
        int died = boot->poll(boot->ctx) == TN_PEER;
        if (status != TN_PENDING || died || now_ns() >= deadline_ns)
            return b->host->fail(b->host, died ? TN_PEER : TN_TIMEOUT, "nccl: making group %s: rank %d has not come", c->name,
                                 (int)c->ranks[0]);
        nap();
    }
}

/* One of the same members that lives, to split from. */
static const struct tn_comm *find_twin(const struct tn_comm *c)
{
    for (const struct tn_comm *other = c->nccl->comms; other; other = other->next)
        if (other->n == c->n && !other->failed && memcmp(other->ranks, c->ranks, (size_t)c->n * sizeof *c->ranks) == 0)
            return other;
    return NULL;
}

static tn_status connect(struct tn_comm *c, uint64_t deadline_ns)
{
    struct nccl *b = c->nccl;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const struct tn_comm *twin = find_twin(c);
    tn_status status = TN_OK;
    const char *why;
    config.blocking = 0;
    config.splitShare = 1;
    if (twin) {
        ncclResult_t result = ncclCommSplit(twin->collectives, 0, c->me, &c->collectives, &config);
        why = settle(b, result == ncclInProgress && !c->collectives ? twin->collectives : c->collectives, result, deadline_ns, &status);
    } else {
        ncclUniqueId id;
        status = share_id(c, &id, deadline_ns);
        if (status != TN_OK)
            return status;
        ncclResult_t result = ncclCommInitRankConfig(&c->collectives, c->n, id, c->me, &config);
        why = settle(b, c->collectives, result, deadline_ns, &status);
    }
    if (!why) {
        ncclResult_t result = ncclCommSplit(c->collectives, 0, c->me, &c->messages, &config);
        why = settle(b, c->collectives, result, deadline_ns, &status);
    }
    return why ? b->host->fail(b->host, status, "nccl: making group %s: %s", c->name, why) : TN_OK;
}

static tn_status make_streams(struct tn_comm *c)
{
    cudaError_t error = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&c->message_stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaMalloc(&c->word, sizeof(int32_t));
    if (error == cudaSuccess)
        error = cudaMemset(c->word, 0, sizeof(int32_t));
    return error == cudaSuccess ? TN_OK : fail_cuda(c->nccl, "making streams", error);
}

/* In order where nothing failed: what is under way ends first. */
static void free_comm(struct tn_comm *c)
{
    const struct tn_host *host = c->nccl->host;
    if (c->stream)
        cudaStreamDestroy(c->stream);
    if (c->message_stream)
        cudaStreamDestroy(c->message_stream);
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

static void drop(ncclComm_t comm)
{
    if (comm)
        ncclCommAbort(comm); /* frees at once; what was waited for is done */
}

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
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
    c->ranks = own;
    c->key = times->key + times->times;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    status = make_streams(c);
    if (status == TN_OK)
        status = connect(c, deadline_after(timeout_ns));
    if (status != TN_OK) {
        drop(c->messages);
        drop(c->collectives);
        free_comm(c);
        return status;
    }
    times->times++;
    c->next = b->comms;
    b->comms = c;
    for (int i = 0; i < PIECES; i++)
        if (b->pieces[i].base)
            register_piece(b, c, i);
    *comm = c;
    return TN_OK;
}

static void comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct tn_comm **at = &c->nccl->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (int i = 0; i < PIECES; i++)
        if (c->handles[i] && !c->failed)
            ncclCommDeregister(c->collectives, c->handles[i]);
    drop(c->messages);
    drop(c->collectives);
    free_comm(c);
}

static const char *abort_key(const struct tn_comm *c, char *key, size_t bytes)
{
    snprintf(key, bytes, "nccl/%016" PRIx64 "/aborted", c->key);
    return key;
}

/* The communicators are aborted when this rank next looks at the group, and the other members when they look around. */
static void comm_abort(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    char key[64];
    atomic_store(&c->aborted, 1);
    if (boot->put(boot->ctx, abort_key(c, key, sizeof key), "", 1) < 0)
        c->nccl->host->log(c->nccl->host, TN_LOG_WARN, "group %s: its abort could not be told to the others", c->name);
}

static int is_aborted(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->nccl->bootstrap;
    char key[64], byte;
    uint32_t bytes = sizeof byte;
    return atomic_load(&c->aborted) || boot->get(boot->ctx, abort_key(c, key, sizeof key), &byte, &bytes) == TN_OK;
}

/* ---- operations ---- */

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

static tn_status check(struct tn_comm *c, const struct tn_request *r, const struct tn_queue *q)
{
    const struct tn_host *host = c->nccl->host;
    int reduces = r->op == OP_ALL_REDUCE || r->op == OP_REDUCE_SCATTER;
    if (!c->failed && atomic_load(&c->aborted))
        (void)fail_comm(c, NULL, TN_ABORTED, "it was aborted");
    if (c->failed)
        return host->fail(host, c->failed, "group %s has failed: %s", c->name, c->error_text);
    if (!dtype_bytes(r->dtype) || (reduces && r->red > TN_RED_MAX) || r->peer < 0 || r->peer >= c->n)
        return host->fail(host, TN_INVALID, "nccl: %s of group %s: dtype %u, reduction %u, member %d are not possible",
                          op_name(r->op), c->name, r->dtype, r->red, (int)r->peer);
    if (q)
        return host->fail(host, TN_UNSUPPORTED, "nccl: the queue of this device is no CUDA stream");
    if (r->count && (!is_on_gpu(r->send) || !is_on_gpu(r->recv)))
        return host->fail(host, TN_INVALID, "nccl: %s of group %s: the buffer is not in GPU memory", op_name(r->op), c->name);
    return TN_OK;
}

static ncclResult_t exchange(struct tn_request *r, ncclDataType_t type)
{
    struct tn_comm *c = r->comm;
    uint64_t block = r->count * dtype_bytes(r->dtype);
    ncclResult_t result = ncclGroupStart();
    for (int32_t i = 0; i < c->n && result == ncclSuccess; i++) {
        result = ncclSend((const char *)r->send + (uint64_t)i * block, r->count, type, i, c->collectives, c->stream);
        if (result == ncclSuccess)
            result = ncclRecv((char *)r->recv + (uint64_t)i * block, r->count, type, i, c->collectives, c->stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t begin(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    ncclDataType_t type = dtypes[r->dtype].type;
    ncclRedOp_t red = r->red == TN_RED_MAX ? ncclMax : ncclSum;
    switch (r->op) {
    case OP_ALL_REDUCE:
        return ncclAllReduce(r->send, r->recv, r->count, type, red, c->collectives, c->stream);
    case OP_ALL_GATHER:
        return ncclAllGather(r->send, r->recv, r->count, type, c->collectives, c->stream);
    case OP_REDUCE_SCATTER:
        return ncclReduceScatter(r->send, r->recv, r->count, type, red, c->collectives, c->stream);
    case OP_ALL_TO_ALL:
        return exchange(r, type);
    case OP_BROADCAST:
        return ncclBroadcast(r->send, r->recv, r->count, type, r->peer, c->collectives, c->stream);
    default:
        return ncclAllReduce(c->word, c->word, 1, ncclInt32, ncclMax, c->collectives, c->stream);
    }
}

/* All messages that wait, as one group: each may need another one of it to have begun. */
static tn_status begin_messages(struct tn_comm *c)
{
    struct tn_request *first = NULL;
    while (c->waiting) { /* turned round: in the order of the calls */
        struct tn_request *r = c->waiting;
        c->waiting = r->next;
        r->next = first;
        first = r;
    }
    if (!first)
        return TN_OK;
    ncclResult_t result = ncclGroupStart();
    for (struct tn_request *r = first; r && result == ncclSuccess; r = r->next)
        result = r->op == OP_SEND ? ncclSend(r->send, r->count, dtypes[r->dtype].type, r->peer, c->messages, c->message_stream)
                                  : ncclRecv(r->recv, r->count, dtypes[r->dtype].type, r->peer, c->messages, c->message_stream);
    ncclResult_t ended = ncclGroupEnd();
    tn_status status;
    const char *why = settle(c->nccl, c->messages, result == ncclSuccess ? ended : result, UINT64_MAX, &status);
    if (why)
        return fail_comm(c, first, status, why);
    for (struct tn_request *r = first; r; r = r->next) {
        r->is_begun = 1;
        cudaEventRecord(r->done, c->message_stream);
    }
    return TN_OK;
}

static tn_status call(struct tn_comm *c, struct tn_request what, const struct tn_queue *q, struct tn_request **out)
{
    struct nccl *b = c->nccl;
    tn_status status = check(c, &what, q);
    if (status != TN_OK)
        return status;
    struct tn_request *r = request_new(c);
    if (!r)
        return b->host->fail(b->host, TN_NO_MEMORY, "nccl: no memory for a request");
    what.next_made = r->next_made;
    what.done = r->done;
    what.comm = c;
    *r = what;
    *out = r;
    if (r->op == OP_SEND || r->op == OP_RECV) {
        r->next = c->waiting;
        c->waiting = r;
        return TN_OK;
    }
    r->number = c->number++;
    r->is_begun = 1;
    if (r->count || r->op == OP_BARRIER) {
        const char *why = settle(b, c->collectives, begin(r), UINT64_MAX, &status);
        if (why) {
            recycle(r);
            return fail_comm(c, &what, status, why);
        }
    }
    cudaEventRecord(r->done, c->stream);
    return TN_OK;
}

#define CALL(c, q, r, ...) return call(c, (struct tn_request){ __VA_ARGS__ }, q, r)

static tn_status all_reduce(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_ALL_REDUCE, .send = send, .recv = recv, .count = count, .dtype = dtype, .red = red);
}

static tn_status all_gather(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_ALL_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype);
}

static tn_status reduce_scatter(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                                uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .red = red);
}

static tn_status all_to_all(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_ALL_TO_ALL, .send = send, .recv = recv, .count = count, .dtype = dtype);
}

static tn_status broadcast(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                           int32_t root, struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_BROADCAST, .send = send, .recv = recv, .count = count, .dtype = dtype, .peer = root);
}

static tn_status send_to(struct tn_comm *c, const void *data, uint64_t count, uint32_t dtype, int32_t to,
                         struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_SEND, .send = data, .count = count, .dtype = dtype, .peer = to);
}

static tn_status recv_from(struct tn_comm *c, void *data, uint64_t count, uint32_t dtype, int32_t from,
                           struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_RECV, .recv = data, .count = count, .dtype = dtype, .peer = from);
}

static tn_status barrier(struct tn_comm *c, struct tn_queue *q, struct tn_request **r)
{
    CALL(c, q, r, .op = OP_BARRIER, .dtype = TN_U8);
}

/* ---- test and wait ---- */

static tn_status test(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct nccl *b = c->nccl;
    tn_status status = c->failed ? c->failed : begin_messages(c);
    cudaError_t state = status == TN_OK ? cudaEventQuery(r->done) : cudaSuccess;
    if (status == TN_OK && state == cudaErrorNotReady) {
        ncclResult_t result = ncclSuccess;
        ncclCommGetAsyncError(r->op == OP_SEND || r->op == OP_RECV ? c->messages : c->collectives, &result);
        if (result == ncclSuccess || result == ncclInProgress) {
            if (!atomic_load(&c->aborted) && !is_time_to_look(b))
                return TN_PENDING;
            if (is_aborted(c))
                status = fail_comm(c, r, TN_ABORTED, "it was aborted");
            else if (b->bootstrap.poll(b->bootstrap.ctx) == TN_PEER)
                status = fail_comm(c, r, TN_PEER, "a rank of the job has died");
            else
                return TN_PENDING;
        } else {
            status = fail_comm(c, r, TN_ERROR, ncclGetErrorString(result));
        }
    } else if (status == TN_OK && state != cudaSuccess) {
        status = fail_comm(c, r, TN_ERROR, cudaGetErrorString(state));
    } else if (status != TN_OK) {
        status = b->host->fail(b->host, status, "%s", c->error_text);
    }
    recycle(r);
    return status;
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    struct tn_comm *c = r->comm;
    uint64_t deadline_ns = deadline_after(timeout_ns);
    for (;;) {
        tn_status status = test(r);
        if (status != TN_PENDING)
            return status;
        if (now_ns() >= deadline_ns) {
            snprintf(c->error_text, sizeof c->error_text, "nccl: %s number %" PRIu64 " of group %s: some member is missing",
                     op_name(r->op), r->number, c->name);
            c->error = (struct tn_comm_error){ .struct_size = sizeof c->error, .peer = -1, .op_number = r->number,
                                               .bytes = r->count * dtype_bytes(r->dtype), .op = op_name(r->op),
                                               .message = c->error_text };
            return c->nccl->host->fail(c->nccl->host, TN_TIMEOUT, "%s", c->error_text);
        }
        for (struct tn_comm *other = c->nccl->comms; other; other = other->next)
            if (!other->failed)
                (void)begin_messages(other);
        nap();
    }
}

static void progress(void *self)
{
    struct nccl *b = self;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        if (!c->failed)
            (void)begin_messages(c);
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (!c->error.message)
        return TN_NOT_FOUND;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}

/* ---- what the loader reads ---- */

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = comm_create,
    .comm_destroy = comm_destroy,
    .comm_abort = comm_abort,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send_to,
    .recv = recv_from,
    .barrier = barrier,
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
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
