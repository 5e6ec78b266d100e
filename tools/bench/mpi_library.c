/* mpi_library: Open MPI's own collectives as a backend for `tenon bench`, and for nothing else.
 *
 * The backend mpi sums in rank order and never blocks in a call, as the contract wants. This one hands each call to the
 * library and returns when the library does: what a program that calls MPI by itself would get. Use it beside others:
 * mpirun -n 2 tenon bench comm --backends shm,mpi,BUILD/tools/bench/mpi_library.so */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <tenon/collective.h>
#include <tenon/plugin.h>

struct tn_comm {
    const struct tn_host *host;
    MPI_Comm comm;
    int rank, n;
};

struct library {
    const struct tn_host *host;
    int is_ours; /* MPI_Init: of this instance, or of another in the process */
};

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    struct library *l = host->alloc(host, sizeof *l);
    if (!l || next || next_self)
        return host->fail(host, TN_INVALID, "mpi_library is a backend");
    *l = (struct library){ .host = host };
    *self = l;
    return TN_OK;
}

static void destroy(void *self)
{
    struct library *l = self;
    int is_over = 0;
    if (!l)
        return;
    MPI_Finalized(&is_over);
    if (l->is_ours && !is_over)
        MPI_Finalize();
    l->host->release(l->host, l);
}

static tn_status caps(void *self, struct tn_collective_caps *out)
{
    (void)self;
    struct tn_collective_caps have = { .host_memory = 1 };
    have.struct_size = out->struct_size < sizeof have ? out->struct_size : (uint32_t)sizeof have;
    memcpy(out, &have, have.struct_size);
    return TN_OK;
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct library *l = self;
    int had = 0, n = 0;
    (void)timeout_ns;
    (void)dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD); /* its plugins look there */
    MPI_Initialized(&had);
    if (!had && MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return l->host->fail(l->host, TN_ERROR, "MPI_Init failed");
    l->is_ours = !had;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n != bootstrap->size)
        return l->host->fail(l->host, TN_UNSUPPORTED, "use mpirun -n %d; name it after mpi if both are wanted",
                             (int)bootstrap->size);
    return TN_OK;
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    (void)self;
    return (*memory = calloc(1, bytes)) != NULL ? TN_OK : TN_NO_MEMORY;
}

static void mem_free(void *self, void *memory)
{
    (void)self;
    free(memory);
}

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm)
{
    struct library *l = self;
    (void)name, (void)ranks, (void)n, (void)timeout_ns; /* of all ranks: all that a benchmark asks for */
    struct tn_comm *c = l->host->alloc(l->host, sizeof *c);
    if (!c || MPI_Comm_dup(MPI_COMM_WORLD, &c->comm) != MPI_SUCCESS)
        return l->host->fail(l->host, TN_ERROR, "MPI_Comm_dup failed");
    c->host = l->host;
    MPI_Comm_rank(c->comm, &c->rank);
    MPI_Comm_size(c->comm, &c->n);
    *comm = c;
    return TN_OK;
}

static void comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    MPI_Comm_free(&c->comm);
    c->host->release(c->host, c);
}

static void comm_abort(struct tn_comm *c)
{
    (void)c;
}

/* ---- calls: done on return, with no request ---- */

static MPI_Datatype type_of(uint32_t dtype)
{
    switch (dtype) {
    case TN_F32: return MPI_FLOAT;
    case TN_F64: return MPI_DOUBLE;
    case TN_I32: return MPI_INT32_T;
    case TN_I64: return MPI_INT64_T;
    case TN_BF16: return MPI_UINT16_T; /* to be moved, not summed */
    default: return MPI_BYTE;
    }
}

static tn_status done(struct tn_comm *c, int result, struct tn_request **r)
{
    *r = NULL;
    return result == MPI_SUCCESS ? TN_OK : c->host->fail(c->host, TN_ERROR, "MPI refused the call");
}

static tn_status reduces(struct tn_comm *c, uint64_t count, uint32_t dtype)
{
    if (dtype == TN_BF16 || count > INT32_MAX)
        return c->host->fail(c->host, TN_UNSUPPORTED, "MPI sums f32, f64, i32, i64, up to 2^31 elements");
    return TN_OK;
}

static tn_status all_reduce(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    tn_status status = reduces(c, count, dtype);
    if (status != TN_OK)
        return status;
    return done(c,
                MPI_Allreduce(send == recv ? MPI_IN_PLACE : send, recv, (int)count, type_of(dtype),
                              red == TN_RED_MAX ? MPI_MAX : MPI_SUM, c->comm),
                r);
}

static tn_status all_gather(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    int size = 0;
    MPI_Type_size(type_of(dtype), &size);
    int in_place = (const char *)send == (char *)recv + (uint64_t)c->rank * count * (uint64_t)size;
    return done(c,
                MPI_Allgather(in_place ? MPI_IN_PLACE : send, (int)count, type_of(dtype), recv, (int)count,
                              type_of(dtype), c->comm),
                r);
}

/* In place MPI wants the result at the start of the buffer, not in this rank's part: that is a case of its own. */
static tn_status reduce_scatter(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                                uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    int size = 0;
    tn_status status = reduces(c, count, dtype);
    if (status != TN_OK)
        return status;
    MPI_Type_size(type_of(dtype), &size);
    uint64_t part = count * (uint64_t)size;
    MPI_Op op = red == TN_RED_MAX ? MPI_MAX : MPI_SUM;
    if ((char *)recv != (const char *)send + (uint64_t)c->rank * part)
        return done(c, MPI_Reduce_scatter_block(send, recv, (int)count, type_of(dtype), op, c->comm), r);
    void *result = malloc(part ? part : 1);
    if (!result)
        return TN_NO_MEMORY;
    int code = MPI_Reduce_scatter_block(send, result, (int)count, type_of(dtype), op, c->comm);
    memcpy(recv, result, part);
    free(result);
    return done(c, code, r);
}

static tn_status all_to_all(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    return done(c, MPI_Alltoall(send, (int)count, type_of(dtype), recv, (int)count, type_of(dtype), c->comm), r);
}

static tn_status broadcast(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                           int32_t root, struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    int size = 0;
    MPI_Type_size(type_of(dtype), &size);
    if (c->rank == root && send != recv)
        memcpy(recv, send, count * (uint64_t)size);
    return done(c, MPI_Bcast(recv, (int)count, type_of(dtype), root, c->comm), r);
}

/* ---- messages have requests: both ways may be under way at once ---- */

struct tn_request {
    MPI_Request request;
    const struct tn_host *host;
};

static struct tn_request *new_request(struct tn_comm *c)
{
    struct tn_request *r = c->host->alloc(c->host, sizeof *r);
    if (r)
        r->host = c->host;
    return r;
}

static tn_status send_to(struct tn_comm *c, const void *data, uint64_t count, uint32_t dtype, int32_t to,
                         struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    struct tn_request *made = *r = new_request(c);
    return made && MPI_Isend(data, (int)count, type_of(dtype), to, 0, c->comm, &made->request) == MPI_SUCCESS
               ? TN_OK
               : TN_ERROR;
}

static tn_status recv_from(struct tn_comm *c, void *data, uint64_t count, uint32_t dtype, int32_t from,
                           struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    struct tn_request *made = *r = new_request(c);
    return made && MPI_Irecv(data, (int)count, type_of(dtype), from, 0, c->comm, &made->request) == MPI_SUCCESS
               ? TN_OK
               : TN_ERROR;
}

static tn_status barrier(struct tn_comm *c, struct tn_queue *q, struct tn_request **r)
{
    (void)q;
    return done(c, MPI_Barrier(c->comm), r);
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    (void)timeout_ns;
    int code = MPI_Wait(&r->request, MPI_STATUS_IGNORE);
    r->host->release(r->host, r);
    return code == MPI_SUCCESS ? TN_OK : TN_ERROR;
}

static tn_status test(struct tn_request *r)
{
    int is_done = 0;
    if (MPI_Test(&r->request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return TN_ERROR;
    if (!is_done)
        return TN_PENDING;
    r->host->release(r->host, r);
    return TN_OK;
}

static void progress(void *self)
{
    (void)self;
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    (void)c, (void)error;
    return TN_NOT_FOUND;
}

static const struct tn_collective table = {
    .struct_size = sizeof table,
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
        .id = "mpi_library",
        .version = "0.1.0",
        .summary = "Open MPI's own collectives, blocking, for comparison in benchmarks.",
        .build_info = __VERSION__,
        .table = &table,
    };
    (void)host;
    return &plugin;
}
