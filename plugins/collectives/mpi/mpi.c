/* mpi: collectives over Open MPI, among ranks that mpirun started, or srun --mpi=pmix.
 *
 * For clusters whose MPI is tuned to their network, and as a second opinion on other backends. MPI says nothing of
 * members that are missing (missing.c asks the bootstrap) or call different things, and often ends the whole job when one rank dies: run the layer `verify` over it
 * where in doubt. This file is the table, the start and end of MPI, waiting, and errors; the others are listed in
 * backend.h. */
#include "backend.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS = 50 * 1000 * 1000, SPIN_NS = 200 * 1000, NAP_NS = 50 * 1000, ALIGNMENT = 64 };

uint64_t mpi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- errors ---- */

tn_status mpi_error(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
{
    const struct tn_host *host = c->backend->host;
    int at = r ? snprintf(c->error_text, sizeof c->error_text,
                          "mpi: %s number %" PRIu64 " of group %s: ", tn_call_name(r->call.op), r->number, c->name)
               : snprintf(c->error_text, sizeof c->error_text, "mpi: group %s: ", c->name);
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->error_text + at, sizeof c->error_text - (size_t)at, fmt, args);
    va_end(args);
    c->error = (struct tn_comm_error){ .struct_size = sizeof c->error,
                                       .peer = peer,
                                       .op_number = r ? r->number : 0,
                                       .bytes = r ? r->call.count * tn_call_dtype_bytes(r->call.dtype) : 0,
                                       .op = r ? tn_call_name(r->call.op) : "",
                                       .message = c->error_text };
    c->is_late = status == TN_TIMEOUT && peer < 0;
    return host->fail(host, status, "%s", c->error_text);
}

void mpi_comm_fail(struct tn_comm *c, tn_status status)
{
    c->failed = status;
    c->backend->is_broken = 1;
    for (struct tn_request *r = c->first; r; r = r->next)
        r->status = status;
    for (struct tn_request *r = c->messages; r; r = r->next)
        r->status = status;
}

/* A wait may be a slice of one that goes on, so who is missing is asked here. */
static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (c->is_late && (c->error.peer = mpi_find_missing(c)) >= 0) {
        size_t at = strlen(c->error_text);
        snprintf(c->error_text + at, sizeof c->error_text - at, ": rank %d is missing", (int)c->error.peer);
    }
    c->is_late = 0;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}

/* ---- the life of the backend ---- */

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (next || next_self)
        return host->fail(host, TN_INVALID, "mpi is a backend and takes no backend below it; use [comm] backend = mpi");
    struct backend *b = host->alloc(host, sizeof *b);
    if (!b)
        return host->fail(host, TN_NO_MEMORY, "no memory for an mpi instance");
    *b = (struct backend){ .host = host };
    *self = b;
    return TN_OK;
}

static void destroy(void *self)
{
    struct backend *b = self;
    if (!b)
        return;
    for (const struct made *m = b->made; m; m = m->next)
        b->is_broken |= m->coming != MPI_REQUEST_NULL;
    if (b->is_up && !b->is_broken)
        MPI_Finalize();
    while (b->made) {
        struct made *next = b->made->next;
        b->host->release(b->host, b->made);
        b->made = next;
    }
    b->host->release(b->host, b);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    struct tn_collective_caps have = { .needs_progress = 1, .host_memory = 1 };
    for (uint32_t d = 1; d < 64; d++)
        if (mpi_can_reduce(d))
            have.dtypes |= UINT64_C(1) << d;
    have.struct_size = caps->struct_size < sizeof have ? caps->struct_size : (uint32_t)sizeof have;
    memcpy(caps, &have, have.struct_size);
    return TN_OK;
}

static tn_status start_mpi(struct backend *b)
{
    int had = 0, provided = 0, rank, size;
    /* Open MPI's own plugins look for its symbols among the global ones. */
    (void)dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    MPI_Initialized(&had);
    if (had)
        return b->host->fail(b->host, TN_UNSUPPORTED, "mpi: MPI runs in this process already");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return b->host->fail(b->host, TN_ERROR, "mpi: MPI_Init_thread failed");
    b->is_up = 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (provided < MPI_THREAD_SERIALIZED)
        return b->host->fail(b->host, TN_UNSUPPORTED,
                             "mpi: this MPI has thread level %d; MPI_THREAD_SERIALIZED (%d) is needed", provided,
                             MPI_THREAD_SERIALIZED);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != b->rank || size != b->n)
        return b->host->fail(b->host, TN_CONFLICT,
                             "mpi: mpirun calls this rank %d of %d, but the job calls it rank %d of %d", rank, size,
                             (int)b->rank, (int)b->n);
    return TN_OK;
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct backend *b = self;
    memcpy(&b->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    b->rank = bootstrap->rank;
    b->n = bootstrap->size;
    if (!getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMIX_RANK"))
        return b->host->fail(b->host, TN_UNSUPPORTED,
                             "mpi: this rank was started without MPI; use: mpirun -n %d tenon run JOB.ini, or srun "
                             "--mpi=pmix",
                             (int)b->n);
    return start_mpi(b);
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    const struct backend *b = self;
    if (posix_memalign(memory, ALIGNMENT, bytes ? bytes : 1) != 0)
        return b->host->fail(b->host, TN_NO_MEMORY, "mpi: no memory for %" PRIu64 " bytes", bytes);
    memset(*memory, 0, bytes);
    return TN_OK;
}

static void mem_free(void *self, void *memory)
{
    free(memory);
}

/* The other members learn of it when they next look at the bootstrap. */
static void comm_abort(struct tn_comm *c)
{
    const struct tn_bootstrap *boot = &c->backend->bootstrap;
    char key[64];
    snprintf(key, sizeof key, "mpi/abort/%016" PRIx64, c->key);
    atomic_store(&c->aborted, 1);
    if (boot->put(boot->ctx, key, "", 1) < 0)
        c->backend->host->log(c->backend->host, TN_LOG_WARN, "group %s: its abort could not be told to the others",
                              c->name);
}

/* ---- operations ---- */

static tn_status check(struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->backend->host;
    int reduces = a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_REDUCE_SCATTER;
    if (atomic_load(&c->aborted))
        mpi_advance(c->backend);
    if (c->failed)
        return host->fail(host, c->failed, "group %s has failed: %s", c->name, c->error_text);
    if (!tn_call_dtype_bytes(a->dtype) || (reduces && (!mpi_can_reduce(a->dtype) || a->red > TN_RED_MAX)))
        return host->fail(host, TN_INVALID, "mpi: %s of group %s: dtype %u, reduction %u are not possible",
                          tn_call_name(a->op), c->name, a->dtype, a->red);
    if (a->peer < 0 || a->peer >= c->n)
        return host->fail(host, TN_INVALID, "mpi: %s of group %s: member %d of %d", tn_call_name(a->op), c->name,
                          (int)a->peer, (int)c->n);
    return TN_OK;
}

static tn_status call(struct tn_comm *c, const struct tn_call *a, struct tn_request **out)
{
    tn_status status = check(c, a);
    if (status != TN_OK)
        return status;
    struct tn_request *r = mpi_request_new(c, a);
    if (!r)
        return c->backend->host->fail(c->backend->host, TN_NO_MEMORY, "mpi: no memory for a request");
    *out = r;
    if (a->op != TN_CALL_SEND && a->op != TN_CALL_RECV) {
        mpi_enqueue(r);
        mpi_advance(c->backend);
        return TN_OK;
    }
    if (mpi_start_message(r) != TN_OK) {
        status = mpi_error(c, r, TN_ERROR, c->ranks[a->peer], "MPI refused it");
        mpi_recycle(r);
        return status;
    }
    r->next = c->messages;
    c->messages = r;
    return TN_OK;
}

TN_CALL_FUNCTIONS(call)

/* ---- test and wait ---- */

/* Deaths and aborts, as the bootstrap knows them. What is soon done asks nothing, for it keeps each question. */
static void look_around(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    const struct tn_bootstrap *boot = &c->backend->bootstrap;
    uint64_t now_ns = mpi_now();
    r->since_ns = r->since_ns ? r->since_ns : now_ns;
    if (now_ns < r->since_ns + POLL_NS || now_ns < c->backend->next_poll_ns)
        return;
    c->backend->next_poll_ns = now_ns + POLL_NS;
    char key[64], byte;
    uint32_t bytes = sizeof byte;
    snprintf(key, sizeof key, "mpi/abort/%016" PRIx64, c->key);
    if (boot->poll(boot->ctx) == TN_PEER) {
        mpi_error(c, r, TN_PEER, -1, "a rank of the job has died");
        mpi_comm_fail(c, TN_PEER);
    } else if (boot->get(boot->ctx, key, &byte, &bytes) == TN_OK) {
        atomic_store(&c->aborted, 1);
    }
}

/* A failed one may still be written to: it is not used again. */
static tn_status end(struct tn_request *r)
{
    tn_status status = r->status;
    if (status == TN_OK || !r->comm->failed)
        mpi_recycle(r);
    return status;
}

static tn_status test(struct tn_request *r)
{
    mpi_advance(r->comm->backend);
    if (r->status == TN_PENDING)
        look_around(r);
    return r->status == TN_PENDING ? TN_PENDING : end(r);
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    uint64_t began_ns = mpi_now();
    for (;;) {
        mpi_advance(r->comm->backend);
        if (r->status != TN_PENDING)
            return end(r);
        uint64_t spent_ns = mpi_now() - began_ns;
        if (spent_ns >= timeout_ns)
            return mpi_error(r->comm, r, TN_TIMEOUT, r->call.op >= TN_CALL_SEND ? r->comm->ranks[r->call.peer] : -1,
                             "not done after %.1f s", (double)timeout_ns / 1e9);
        look_around(r);
        if (spent_ns < SPIN_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
}

static void progress(void *self)
{
    mpi_advance(self);
}

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = mpi_comm_create,
    .comm_destroy = mpi_comm_destroy,
    .comm_abort = comm_abort,
    TN_CALL_ENTRIES(call),
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
};

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "mpi",
        .version = "0.1.0",
        .summary = "Collectives over Open MPI, among ranks that mpirun or srun --mpi=pmix started.",
        .build_info = __VERSION__ ", Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION),
        .table = &table,
    };
    (void)host;
    return &plugin;
}
