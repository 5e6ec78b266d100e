/* The operations, each as steps of one non-blocking MPI call.
 *
 * MPI leaves the order of a reduction's terms to its algorithms, which differ by size and group. Here sums must have
 * the same bits on all members and in every run, so MPI moves the terms and they are added here in rank order:
 *
 *     small all_reduce   all-gather everything, reduce
 *     all_reduce         all-to-all of the parts, reduce the own one, all-gather the results (what a ring moves, too)
 *     reduce_scatter     all-to-all of the parts, reduce
 *
 * in segments, so that scratch memory stays small and no count nears 2^31. Others pass buffers of any size as one
 * derived datatype. */
#include "backend.h"

#include <limits.h>
#include <string.h>

enum { SMALL_BYTES = 16 << 10, SEGMENT_BYTES = 4 << 20, CHUNK_BYTES = 1 << 24 };

int mpi_bytes(uint64_t bytes, MPI_Datatype *type)
{
    *type = MPI_BYTE;
    if (bytes <= INT_MAX)
        return (int)bytes;
    MPI_Datatype chunk, parts[2];
    int lengths[2] = { (int)(bytes / CHUNK_BYTES), (int)(bytes % CHUNK_BYTES) };
    MPI_Aint at[2] = { 0, (MPI_Aint)(bytes / CHUNK_BYTES * CHUNK_BYTES) };
    MPI_Type_contiguous(CHUNK_BYTES, MPI_BYTE, &chunk);
    parts[0] = chunk;
    parts[1] = MPI_BYTE;
    MPI_Type_create_struct(2, lengths, at, parts, type);
    MPI_Type_commit(type);
    MPI_Type_free(&chunk);
    return 1;
}

void mpi_bytes_free(MPI_Datatype *type)
{
    if (*type != MPI_BYTE)
        MPI_Type_free(type);
}

static tn_status begun(int result)
{
    return result == MPI_SUCCESS ? TN_PENDING : TN_ERROR;
}

/* Room for the members' parts of a segment. */
static int make_room(struct tn_comm *c, uint64_t bytes)
{
    const struct tn_host *host = c->backend->host;
    if (c->scratch_bytes >= bytes)
        return 1;
    host->release(host, c->scratch);
    c->scratch = host->alloc(host, bytes);
    c->scratch_bytes = c->scratch ? bytes : 0;
    return c->scratch != NULL;
}

/* ---- all_reduce ---- */

static uint64_t part_of(const struct tn_request *r, int32_t member, uint64_t *offset)
{
    uint64_t n = (uint64_t)r->comm->n, m = (uint64_t)member, whole = r->length / n, more = r->length % n;
    *offset = m * whole + (m < more ? m : more);
    return whole + (m < more);
}

static tn_status gather_small(struct tn_request *r, uint32_t e)
{
    struct tn_comm *c = r->comm;
    int bytes = (int)(r->call.count * e);
    if (r->phase++ == 0) {
        if (!make_room(c, (uint64_t)c->n * (uint64_t)bytes))
            return TN_NO_MEMORY;
        return begun(MPI_Iallgather(r->call.send, bytes, MPI_BYTE, c->scratch, bytes, MPI_BYTE, c->mpi, &r->under_way));
    }
    mpi_reduce(r->call.recv, c->scratch, c->n, r->call.count, r->call.dtype, r->call.red);
    return TN_OK;
}

/* To each member its part of all others' segments. */
static tn_status exchange_parts(struct tn_request *r, uint32_t e)
{
    struct tn_comm *c = r->comm;
    uint64_t mine_at;
    r->piece = part_of(r, c->me, &mine_at);
    if (!make_room(c, (uint64_t)c->n * r->piece * e + 1))
        return TN_NO_MEMORY;
    int *theirs = c->counts + c->n, *theirs_at = c->offsets + c->n;
    for (int32_t m = 0; m < c->n; m++) {
        uint64_t offset, part = part_of(r, m, &offset);
        c->counts[m] = (int)(part * e);
        c->offsets[m] = (int)(offset * e);
        theirs[m] = (int)(r->piece * e);
        theirs_at[m] = (int)((uint64_t)m * r->piece * e);
    }
    return begun(MPI_Ialltoallv(r->call.send + r->at * e, c->counts, c->offsets, MPI_BYTE, c->scratch, theirs,
                                theirs_at, MPI_BYTE, c->mpi, &r->under_way));
}

static tn_status gather_parts(struct tn_request *r, uint32_t e)
{
    struct tn_comm *c = r->comm;
    char *segment = r->call.recv + r->at * e;
    mpi_reduce(segment + c->offsets[c->me], c->scratch, c->n, r->piece, r->call.dtype, r->call.red);
    return begun(
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, segment, c->counts, c->offsets, MPI_BYTE, c->mpi, &r->under_way));
}

static tn_status step_all_reduce(struct tn_request *r, uint32_t e)
{
    if (r->call.count * e <= SMALL_BYTES)
        return gather_small(r, e);
    if (r->phase == 1) {
        r->phase = 2;
        return gather_parts(r, e);
    }
    if (r->phase == 2)
        r->at += r->length;
    if (r->at == r->call.count)
        return TN_OK;
    r->length = r->call.count - r->at < SEGMENT_BYTES / e ? r->call.count - r->at : SEGMENT_BYTES / e;
    r->phase = 1;
    return exchange_parts(r, e);
}

/* ---- reduce_scatter ---- */

static tn_status step_reduce_scatter(struct tn_request *r, uint32_t e)
{
    struct tn_comm *c = r->comm;
    uint64_t most = SEGMENT_BYTES / e / (uint64_t)c->n + 1;
    if (r->phase == 1) {
        mpi_reduce(r->call.recv + r->at * e, c->scratch, c->n, r->length, r->call.dtype, r->call.red);
        r->at += r->length;
    }
    if (r->at == r->call.count)
        return TN_OK;
    r->phase = 1;
    r->length = r->call.count - r->at < most ? r->call.count - r->at : most;
    int bytes = (int)(r->length * e);
    if (!make_room(c, (uint64_t)c->n * (uint64_t)bytes))
        return TN_NO_MEMORY;
    /* Parts of a segment lie `count` elements apart. */
    MPI_Datatype part, spaced;
    MPI_Type_contiguous(bytes, MPI_BYTE, &part);
    MPI_Type_create_resized(part, 0, (MPI_Aint)(r->call.count * e), &spaced);
    MPI_Type_commit(&spaced);
    int result = MPI_Ialltoall(r->call.send + r->at * e, 1, spaced, c->scratch, bytes, MPI_BYTE, c->mpi, &r->under_way);
    MPI_Type_free(&spaced);
    MPI_Type_free(&part);
    return begun(result);
}

/* ---- without a reduction: one step ---- */

static tn_status step_move(struct tn_request *r, uint64_t bytes)
{
    struct tn_comm *c = r->comm;
    const struct tn_call *a = &r->call;
    MPI_Datatype type;
    if (r->phase++ > 0)
        return TN_OK;
    int count = mpi_bytes(bytes, &type), result;
    if (a->op == TN_CALL_BROADCAST) {
        if (c->me == a->peer && a->recv != a->send)
            memcpy(a->recv, a->send, bytes);
        result = MPI_Ibcast(a->recv, count, type, a->peer, c->mpi, &r->under_way);
    } else if (a->op == TN_CALL_ALL_GATHER) {
        int in_place = a->send == a->recv + (uint64_t)c->me * bytes;
        result =
            MPI_Iallgather(in_place ? MPI_IN_PLACE : a->send, count, type, a->recv, count, type, c->mpi, &r->under_way);
    } else {
        result = MPI_Ialltoall(a->send, count, type, a->recv, count, type, c->mpi, &r->under_way);
    }
    mpi_bytes_free(&type);
    return begun(result);
}

tn_status mpi_step(struct tn_request *r)
{
    const struct tn_call *a = &r->call;
    uint32_t e = tn_call_dtype_bytes(a->dtype);
    if (a->op == TN_CALL_BARRIER)
        return r->phase++ ? TN_OK : begun(MPI_Ibarrier(r->comm->mpi, &r->under_way));
    if (a->count == 0)
        return TN_OK;
    if (r->comm->n == 1) {
        if (a->send != a->recv)
            memmove(a->recv, a->send, a->count * e);
        return TN_OK;
    }
    if (a->op == TN_CALL_ALL_REDUCE)
        return step_all_reduce(r, e);
    return a->op == TN_CALL_REDUCE_SCATTER ? step_reduce_scatter(r, e) : step_move(r, a->count * e);
}

tn_status mpi_start_message(struct tn_request *r)
{
    const struct tn_call *a = &r->call;
    MPI_Datatype type;
    int count = mpi_bytes(a->count * tn_call_dtype_bytes(a->dtype), &type);
    int result = a->op == TN_CALL_SEND
                     ? MPI_Isend(a->send, count, type, a->peer, (int)a->dtype, r->comm->mpi, &r->under_way)
                     : MPI_Irecv(a->recv, count, type, a->peer, MPI_ANY_TAG, r->comm->mpi, &r->under_way);
    mpi_bytes_free(&type);
    return result == MPI_SUCCESS ? TN_OK : TN_ERROR;
}
