/* Groups: a communicator each, and the queue of collectives on it.
 *
 * Members first meet through the bootstrap, so that one who does not come is named in time; then MPI makes the
 * communicator. The bootstrap keeps all that it is told, so for further groups they meet in a communicator that stays.
 *
 * The collectives of a group run one after the other: an operation of several MPI calls could else be started in
 * another order on another member. Groups run side by side. */
#include "backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 200 * 1000, MOST_TAG = 32767 };

/* ---- requests and their queue ---- */

struct tn_request *mpi_request_new(struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->backend->host;
    struct tn_request *r = c->unused, *next_made;
    if (r) {
        c->unused = r->next;
        next_made = r->next_made;
    } else {
        r = host->alloc(host, sizeof *r);
        if (!r)
            return NULL;
        next_made = c->made;
        c->made = r;
    }
    *r = (struct tn_request){
        .comm = c, .next_made = next_made, .call = *a, .under_way = MPI_REQUEST_NULL, .status = TN_PENDING
    };
    return r;
}

void mpi_recycle(struct tn_request *r)
{
    r->next = r->comm->unused;
    r->comm->unused = r;
}

void mpi_enqueue(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    r->number = c->number++;
    *c->last = r;
    c->last = &r->next;
}

/* Takes the first collective as far as it goes without waiting. Returns whether it is done. */
static int advance_first(struct tn_comm *c)
{
    struct tn_request *r = c->first;
    for (;;) {
        int done = 1;
        if (r->under_way != MPI_REQUEST_NULL && MPI_Test(&r->under_way, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            mpi_error(c, r, TN_ERROR, -1, "MPI failed");
            mpi_comm_fail(c, TN_ERROR);
            return 0;
        }
        if (!done)
            return 0;
        tn_status status = mpi_step(r);
        if (status == TN_OK) {
            c->first = r->next;
            if (!c->first)
                c->last = &c->first;
            r->status = TN_OK;
            return 1;
        }
        if (status != TN_PENDING) {
            mpi_error(c, r, status, -1, status == TN_NO_MEMORY ? "no memory for the members' parts" : "MPI refused it");
            mpi_comm_fail(c, status);
            return 0;
        }
    }
}

static tn_status end_message(struct tn_request *r, int result, const MPI_Status *of)
{
    struct tn_comm *c = r->comm;
    MPI_Count came = 0;
    uint64_t wanted = r->call.count * tn_call_dtype_bytes(r->call.dtype);
    int class = MPI_SUCCESS;
    if (result != MPI_SUCCESS)
        MPI_Error_class(result, &class);
    if (r->call.op == TN_CALL_SEND && result == MPI_SUCCESS)
        return TN_OK;
    if (result != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
        return mpi_error(c, r, TN_ERROR, c->ranks[r->call.peer], "MPI failed");
    if (result == MPI_SUCCESS)
        MPI_Get_elements_x(of, MPI_BYTE, &came);
    if (class == MPI_ERR_TRUNCATE || (uint64_t)came != wanted || of->MPI_TAG != (int)r->call.dtype)
        return mpi_error(c, r, TN_CONFLICT, c->ranks[r->call.peer],
                         "rank %d sent %s bytes than the %" PRIu64 " that rank %d receives, or another dtype",
                         (int)c->ranks[r->call.peer], class == MPI_ERR_TRUNCATE ? "more" : "other", wanted,
                         (int)c->backend->rank);
    return TN_OK;
}

static void advance_messages(struct tn_comm *c)
{
    for (struct tn_request **at = &c->messages; *at;) {
        struct tn_request *r = *at;
        int done = 0;
        MPI_Status of;
        int result = MPI_Test(&r->under_way, &done, &of);
        if (result == MPI_SUCCESS && !done) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->status = end_message(r, result, &of);
    }
}

void mpi_advance(struct backend *b)
{
    for (struct tn_comm *c = b->comms; c; c = c->next) {
        if (atomic_load(&c->aborted) && !c->failed) {
            mpi_error(c, c->first, TN_ABORTED, -1, "the group was aborted");
            mpi_comm_fail(c, TN_ABORTED);
        }
        if (c->failed)
            continue;
        advance_messages(c);
        while (c->first && advance_first(c))
            ;
    }
}

/* ---- making a group ---- */

static uint64_t key_of(const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)n; /* FNV-1a */
    for (int32_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ranks[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

static struct made *times_made(struct backend *b, uint64_t key)
{
    for (struct made *m = b->made; m; m = m->next)
        if (m->key == key)
            return m;
    struct made *m = b->host->alloc(b->host, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct made){ .key = key, .meeting = MPI_COMM_NULL, .coming = MPI_REQUEST_NULL, .next = b->made };
    b->made = m;
    return m;
}

static tn_status fail_meeting(const struct tn_comm *c, int has_died, int32_t missing)
{
    char who[32] = "not all members have";
    if (missing >= 0)
        snprintf(who, sizeof who, "rank %d has not", (int)missing);
    return c->backend->host->fail(c->backend->host, has_died ? TN_PEER : TN_TIMEOUT, "mpi: making group %s: %s come",
                                  c->name, who);
}

static tn_status meet_first(struct backend *b, const struct tn_comm *c, uint64_t deadline_ns)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[64];
    snprintf(key, sizeof key, "mpi/%016" PRIx64 "/%d", c->key, (int)b->rank);
    tn_status status = boot->put(boot->ctx, key, "", 1);
    while (status == TN_PENDING)
        status = boot->put(boot->ctx, key, "", 1);
    for (int32_t i = 0; i < c->n && status == TN_OK; i++) {
        snprintf(key, sizeof key, "mpi/%016" PRIx64 "/%d", c->key, (int)c->ranks[i]);
        for (;;) {
            char byte;
            uint32_t bytes = sizeof byte;
            status = boot->get(boot->ctx, key, &byte, &bytes);
            if (status != TN_PENDING)
                break;
            int has_died = boot->poll(boot->ctx) == TN_PEER;
            if (has_died || mpi_now() >= deadline_ns)
                return fail_meeting(c, has_died, c->ranks[i]);
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
        }
    }
    return status == TN_OK ? TN_OK
                           : b->host->fail(b->host, status, "mpi: making group %s: the bootstrap failed", c->name);
}

/* Where a member does not come in time, the meeting stays under way: the next attempt goes on with it. */
static tn_status meet_again(const struct backend *b, const struct tn_comm *c, struct made *made, uint64_t deadline_ns)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    int done = 0;
    int result = made->coming == MPI_REQUEST_NULL ? MPI_Ibarrier(made->meeting, &made->coming) : MPI_SUCCESS;
    while (result == MPI_SUCCESS) {
        result = MPI_Test(&made->coming, &done, MPI_STATUS_IGNORE);
        if (done)
            return TN_OK;
        int has_died = boot->poll(boot->ctx) == TN_PEER;
        if (has_died || mpi_now() >= deadline_ns)
            return fail_meeting(c, has_died, has_died ? -1 : mpi_find_missing(c));
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
    return b->host->fail(b->host, TN_ERROR, "mpi: making group %s: MPI failed", c->name);
}

static tn_status check_ranks(const struct backend *b, const int32_t *ranks, int32_t n, int32_t *me)
{
    *me = -1;
    if (n < 1 || n > b->n)
        return b->host->fail(b->host, TN_INVALID, "mpi: a group of %d ranks in a world of %d", (int)n, (int)b->n);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= b->n)
            return b->host->fail(b->host, TN_INVALID, "mpi: rank %d in a world of %d", (int)ranks[i], (int)b->n);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return b->host->fail(b->host, TN_INVALID, "mpi: rank %d twice in a group", (int)ranks[i]);
        if (ranks[i] == b->rank)
            *me = i;
    }
    return *me >= 0 ? TN_OK
                    : b->host->fail(b->host, TN_INVALID, "mpi: rank %d is not in the group it makes", (int)b->rank);
}

static void free_comm(struct tn_comm *c)
{
    const struct tn_host *host = c->backend->host;
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        host->release(host, c->made);
        c->made = next;
    }
    host->release(host, c->scratch);
    host->release(host, c->counts);
    host->release(host, c->offsets);
    host->release(host, c->ranks);
    host->release(host, c);
}

static struct tn_comm *new_comm(struct backend *b, const char *name, const int32_t *ranks, int32_t n, int32_t me)
{
    struct tn_comm *c = b->host->alloc(b->host, sizeof *c);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->backend = b;
    c->mpi = MPI_COMM_NULL;
    c->n = n;
    c->me = me;
    c->key = key_of(ranks, n);
    c->last = &c->first;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    uint64_t k = (uint64_t)n;
    c->ranks = b->host->alloc(b->host, k * sizeof *c->ranks);
    c->counts = b->host->alloc(b->host, 2 * k * sizeof *c->counts);
    c->offsets = b->host->alloc(b->host, 2 * k * sizeof *c->offsets);
    if (!c->ranks || !c->counts || !c->offsets) {
        free_comm(c);
        return NULL;
    }
    memcpy(c->ranks, ranks, k * sizeof *ranks);
    return c;
}

static int make_communicator(const struct tn_comm *c, MPI_Comm *made)
{
    MPI_Group world, members;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, c->n, c->ranks, &members);
    int result = MPI_Comm_create_group(MPI_COMM_WORLD, members, (int)(c->key % MOST_TAG), made);
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    if (result == MPI_SUCCESS)
        MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
    return result;
}

static tn_status connect(struct backend *b, struct tn_comm *c, struct made *made, uint64_t timeout_ns)
{
    uint64_t now_ns = mpi_now(), deadline_ns = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
    int is_first = made->meeting == MPI_COMM_NULL, result = MPI_SUCCESS;
    tn_status status = c->n == 1  ? TN_OK
                       : is_first ? meet_first(b, c, deadline_ns)
                                  : meet_again(b, c, made, deadline_ns);
    if (status == TN_OK && c->n > 1 && is_first)
        result = make_communicator(c, &made->meeting);
    if (status == TN_OK && result == MPI_SUCCESS)
        result = make_communicator(c, &c->mpi);
    return result == MPI_SUCCESS ? status
                                 : b->host->fail(b->host, TN_ERROR, "mpi: MPI could not make group %s", c->name);
}

tn_status mpi_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm)
{
    struct backend *b = self;
    int32_t me;
    if (!b->is_up)
        return b->host->fail(b->host, TN_INVALID, "mpi: comm_create before init");
    tn_status status = check_ranks(b, ranks, n, &me);
    if (status != TN_OK)
        return status;
    struct tn_comm *c = new_comm(b, name, ranks, n, me);
    struct made *made = c ? times_made(b, c->key) : NULL;
    if (!made)
        status = b->host->fail(b->host, TN_NO_MEMORY, "mpi: no memory for a group of %d", (int)n);
    else
        status = connect(b, c, made, timeout_ns);
    if (status != TN_OK) {
        if (c)
            free_comm(c);
        return status;
    }
    c->key += made->times++; /* from here on the name of this one group */
    c->next = b->comms;
    b->comms = c;
    *comm = c;
    return TN_OK;
}

/* A receive that nothing has come for yet can be taken back; a send cannot. */
static void take_back_receives(struct tn_comm *c)
{
    for (struct tn_request **at = &c->messages; *at;) {
        struct tn_request *r = *at;
        int done = r->call.op == TN_CALL_RECV && MPI_Cancel(&r->under_way) == MPI_SUCCESS;
        if (done && MPI_Test(&r->under_way, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done)
            *at = r->next;
        else
            at = &r->next;
    }
}

void mpi_comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct backend *b = c->backend;
    mpi_advance(b); /* messages that nobody waited for may be done */
    struct tn_comm **at = &b->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    take_back_receives(c);
    if (c->failed || c->first || c->messages) {
        b->is_broken = 1; /* MPI may still write to what was under way; its memory stays */
        return;
    }
    MPI_Comm_free(&c->mpi);
    free_comm(c);
}
