/* CUDA and NCCL as far as the backend nccl uses them, in host memory, so that the suite runs where no GPU is: ranks are
 * threads of one process, and what is defined here is found before the libraries.
 *
 * It keeps the order of the real ones. A launch, which is what stands between ncclGroupStart and ncclGroupEnd, starts
 * when those before it on its stream are done; it is done when each of its operations has met its partners, the same
 * one on every member's communicator or a message's other end. Communicators are non-blocking. An abort ends what is
 * under way on this member alone. Operations of members that do not agree never meet. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

enum { MOST = 8 }; /* ranks, and GPUs */
enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND, RECV };

struct op {
    enum kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t red;
    int peer; /* or root */
    ncclComm_t comm;
    cudaStream_t stream;
    uint64_t number; /* of the communicator's collectives */
    int started, done;
    struct op *next;     /* of the launch */
    struct op *next_met; /* of the group: waits for its partners */
};

struct launch {
    struct op *first;
    struct launch *next;
};

struct CUstream_st {
    struct launch *head, **tail;
    uint64_t issued, done;
    struct CUstream_st *next;
};

struct CUevent_st {
    cudaStream_t stream;
    uint64_t at; /* launches of the stream */
};

/* What the communicators of all members share. */
struct group {
    char id[64];
    int n, came, members;
    struct op *met, **end;
    struct group *next;
};

struct ncclComm {
    struct group *group;
    int rank, busy;
    uint64_t number, splits;
    ncclComm_t child, *child_to; /* that a split is making */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t streams;
static struct group *groups;
static uint64_t ids;
static _Thread_local struct op *together, **together_end;
static _Thread_local int depth;

/* ---- numbers ---- */

static size_t bytes_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    default: return 8;
    }
}

static double get(const void *p, ncclDataType_t type, size_t i)
{
    uint32_t bits;
    float f;
    switch (type) {
    case ncclFloat32: return ((const float *)p)[i];
    case ncclBfloat16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case ncclFloat64: return ((const double *)p)[i];
    default: abort(); /* which the suite does not reduce */
    }
}

static void put(void *p, ncclDataType_t type, size_t i, double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (type) {
    case ncclFloat32: ((float *)p)[i] = f; break;
    case ncclBfloat16:
        ((uint16_t *)p)[i] = (uint16_t)(isnan(f) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        break;
    default: ((double *)p)[i] = x;
    }
}

static int64_t get_int(const void *p, ncclDataType_t type, size_t i)
{
    switch (type) {
    case ncclInt8: return ((const int8_t *)p)[i];
    case ncclUint8: return ((const uint8_t *)p)[i];
    case ncclInt32: return ((const int32_t *)p)[i];
    default: return ((const int64_t *)p)[i];
    }
}

static void put_int(void *p, ncclDataType_t type, size_t i, int64_t x)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: ((uint8_t *)p)[i] = (uint8_t)x; break;
    case ncclInt32: ((int32_t *)p)[i] = (int32_t)x; break;
    default: ((int64_t *)p)[i] = x;
    }
}

/* Element `i` of all members' `send`, in the order of ranks, to element `to` of `out`. */
static void reduce(struct op *const *of, int n, size_t i, void *out, size_t to)
{
    ncclDataType_t type = of[0]->type;
    int is_max = of[0]->red == ncclMax,
        is_int = type == ncclInt8 || type == ncclUint8 || type == ncclInt32 || type == ncclInt64;
    double x = is_int ? 0 : get(of[0]->send, type, i);
    int64_t k = is_int ? get_int(of[0]->send, type, i) : 0;
    for (int m = 1; m < n; m++) {
        double y = is_int ? 0 : get(of[m]->send, type, i);
        int64_t l = is_int ? get_int(of[m]->send, type, i) : 0;
        float sum = (float)x + (float)y;
        x = is_max ? (y > x || isnan(y) ? y : x) : type == ncclFloat64 ? x + y : sum;
        k = is_max ? (l > k ? l : k) : (int64_t)((uint64_t)k + (uint64_t)l);
    }
    if (is_int)
        put_int(out, type, to, k);
    else
        put(out, type, to, x);
}

/* ---- operations that have met ---- */

/* Results may lie where others' terms do. */
static void run(struct op *const *of, int n)
{
    size_t count = of[0]->count, bytes = count * bytes_of(of[0]->type), all = of[0]->kind == ALL_REDUCE ? 1 : (size_t)n;
    char *result = malloc(bytes * all + 1);
    switch (of[0]->kind) {
    case BROADCAST: memcpy(result, of[of[0]->peer]->send, bytes); break;
    case ALL_GATHER:
        for (int m = 0; m < n; m++)
            memcpy(result + (size_t)m * bytes, of[m]->send, bytes);
        break;
    default:
        if (n == 1)
            memcpy(result, of[0]->send, bytes);
        for (size_t i = 0; i < count * all && n > 1; i++)
            reduce(of, n, i, result, i);
    }
    for (int m = 0; m < n; m++) {
        size_t from = of[0]->kind == REDUCE_SCATTER ? (size_t)m * bytes : 0;
        memcpy(of[m]->recv, result + from, of[0]->kind == ALL_GATHER ? bytes * all : bytes);
        of[m]->done = 1;
    }
    free(result);
}

static void leave(struct group *g, struct op *op)
{
    struct op **at = &g->met;
    while (*at && *at != op)
        at = &(*at)->next_met;
    if (!*at)
        return;
    *at = op->next_met;
    if (g->end == &op->next_met)
        g->end = at;
}

static int are_ends(const struct op *a, const struct op *b)
{
    return ((a->kind == SEND && b->kind == RECV) || (a->kind == RECV && b->kind == SEND)) && a->peer == b->comm->rank &&
           b->peer == a->comm->rank;
}

static void meet_message(struct group *g, struct op *op)
{
    for (struct op *other = g->met; other; other = other->next_met) {
        if (!are_ends(op, other) || other == op)
            continue;
        const struct op *from = op->kind == SEND ? op : other, *to = op->kind == SEND ? other : op;
        memcpy(to->recv, from->send, (from->count < to->count ? from->count : to->count) * bytes_of(from->type));
        op->done = other->done = 1;
        leave(g, op);
        leave(g, other);
        return;
    }
}

static void meet(struct op *op)
{
    struct group *g = op->comm->group;
    struct op *of[MOST] = { NULL };
    int came = 0;
    op->next_met = NULL;
    *g->end = op;
    g->end = &op->next_met;
    if (op->kind >= SEND) {
        meet_message(g, op);
        return;
    }
    for (struct op *other = g->met; other; other = other->next_met)
        if (other->kind == op->kind && other->number == op->number && other->count == op->count &&
            other->type == op->type && other->red == op->red && !of[other->comm->rank]) {
            of[other->comm->rank] = other;
            came++;
        }
    if (came < g->n)
        return;
    run(of, g->n);
    for (int m = 0; m < g->n; m++)
        leave(g, of[m]);
}

/* *moved: what has started may have ended another stream's launch. */
static int is_done(const struct launch *launch, int *moved)
{
    for (struct op *op = launch->first; op; op = op->next)
        if (!op->started) {
            op->started = *moved = 1;
            meet(op);
        }
    for (const struct op *op = launch->first; op; op = op->next)
        if (!op->done)
            return 0;
    return 1;
}

/* Under the lock: whatever can go on does. */
static void advance(void)
{
    for (int moved = 1; moved;) {
        moved = 0;
        for (cudaStream_t s = streams; s; s = s->next) {
            struct launch *launch = s->head;
            if (!launch || !is_done(launch, &moved))
                continue;
            s->head = launch->next;
            s->tail = s->head ? s->tail : &s->head;
            s->done++;
            for (struct op *op = launch->first, *next; op; op = next) {
                next = op->next;
                free(op);
            }
            free(launch);
            moved = 1;
        }
    }
}

/* ---- NCCL ---- */

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0) {
        together = NULL;
        together_end = &together;
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (--depth > 0 || !together)
        return ncclSuccess;
    pthread_mutex_lock(&lock);
    struct op *first = together;
    cudaStream_t s = first->stream;
    struct launch *launch = calloc(1, sizeof *launch);
    for (struct op *op = first; op; op = op->next) {
        if (op->stream != s)
            abort(); /* which the backend does not do */
        if (op->kind < SEND)
            op->number = op->comm->number++;
        op->comm->busy = 1;
    }
    launch->first = first;
    *s->tail = launch;
    s->tail = &launch->next;
    s->issued++;
    advance();
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

static ncclResult_t add(enum kind kind, const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t red, int peer, ncclComm_t comm, cudaStream_t stream)
{
    struct op *op = malloc(sizeof *op);
    *op = (struct op){ .kind = kind,
                       .send = send,
                       .recv = recv,
                       .count = count,
                       .type = type,
                       .red = red,
                       .peer = peer,
                       .comm = comm,
                       .stream = stream };
    if (depth == 0)
        abort(); /* which the backend does not do */
    *together_end = op;
    together_end = &op->next;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t red,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(ALL_REDUCE, send, recv, count, type, red, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add(ALL_GATHER, send, recv, count, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t red,
                               ncclComm_t comm, cudaStream_t stream)
{
    return add(REDUCE_SCATTER, send, recv, count, type, red, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add(BROADCAST, send, recv, count, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(SEND, send, NULL, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add(RECV, NULL, recv, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%llu", (unsigned long long)++ids);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Under the lock. */
static ncclComm_t join(const char *id, int n, int rank)
{
    struct group *g = groups;
    while (g && strcmp(g->id, id) != 0)
        g = g->next;
    if (!g) {
        g = calloc(1, sizeof *g);
        snprintf(g->id, sizeof g->id, "%s", id);
        g->n = n;
        g->end = &g->met;
        g->next = groups;
        groups = g;
    }
    g->came++;
    g->members++;
    ncclComm_t comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){ .group = g, .rank = rank, .busy = 1 };
    return comm;
}

/* Under the lock. Who goes before all have come has never come. */
static void quit(ncclComm_t comm)
{
    struct group *g = comm->group;
    if (comm->child)
        quit(comm->child);
    for (struct op *op = g->met, *next; op; op = next) {
        next = op->next_met;
        if (op->comm == comm) {
            op->done = 1;
            leave(g, op);
        }
    }
    for (cudaStream_t s = streams; s; s = s->next)
        for (struct launch *launch = s->head; launch; launch = launch->next)
            for (struct op *op = launch->first; op; op = op->next)
                if (op->comm == comm)
                    op->started = op->done = 1;
    g->came -= g->came < g->n;
    if (--g->members == 0) {
        struct group **at = &groups;
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
        free(g);
    }
    free(comm);
    advance();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    pthread_mutex_lock(&lock);
    *comm = join(id.internal, n, rank);
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *to, ncclConfig_t *config)
{
    char id[64];
    pthread_mutex_lock(&lock);
    snprintf(id, sizeof id, "%.40s.%llu", comm->group->id, (unsigned long long)comm->splits++);
    *to = NULL;
    comm->child = join(id, comm->group->n, key);
    comm->child_to = to;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    pthread_mutex_lock(&lock);
    const struct group *g = comm->group, *of = comm->child ? comm->child->group : g;
    *state = g->came < g->n || of->came < of->n || comm->busy ? ncclInProgress : ncclSuccess;
    if (*state == ncclSuccess && comm->child) {
        *comm->child_to = comm->child;
        comm->child = NULL;
    }
    comm->busy = 0;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    quit(comm);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->busy = 1;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return ncclCommAbort(comm);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
    *handle = buffer;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return ncclSuccess;
}

/* From ncclMemAlloc; the suite also has other memory, and is built to do so. */
#ifndef ALL_MEMORY_IS_GPU
#define ALL_MEMORY_IS_GPU 0
#endif
static struct {
    char *base;
    size_t bytes;
} pieces[256];
enum { PIECES = sizeof pieces / sizeof *pieces };

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PIECES; i++)
        if (!pieces[i].base) {
            pieces[i].base = *memory;
            pieces[i].bytes = bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
    return *memory ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclMemFree(void *memory)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].base == memory)
            pieces[i].base = NULL;
    pthread_mutex_unlock(&lock);
    free(memory);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "an error of the fake";
}

/* ---- CUDA ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = MOST;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device >= 0 && device < MOST ? cudaSuccess : cudaErrorInvalidDevice;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an error of the fake";
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *of, const void *p)
{
    int is_ours = ALL_MEMORY_IS_GPU;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PIECES; i++)
        is_ours |=
            pieces[i].base && (const char *)p >= pieces[i].base && (const char *)p < pieces[i].base + pieces[i].bytes;
    pthread_mutex_unlock(&lock);
    *of = (struct cudaPointerAttributes){ .type = is_ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered };
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = calloc(1, sizeof **stream);
    pthread_mutex_lock(&lock);
    (*stream)->tail = &(*stream)->head;
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Of one with nothing under way. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    cudaStream_t *at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    if (stream->head)
        abort();
    *at = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = calloc(1, sizeof **event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    *event = (struct CUevent_st){ stream, stream->issued };
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    int done = !event->stream || event->stream->done >= event->at;
    pthread_mutex_unlock(&lock);
    return done ? cudaSuccess : cudaErrorNotReady;
}
