/* mpi: what its files share.
 *
 *   mpi.c     the table, start and end of MPI, memory, waiting, errors
 *   group.c   groups and their queues of operations
 *   missing.c who is missing where a wait is over
 *   ops.c     the operations, as steps of non-blocking MPI calls
 *   reduce.c  sums and maxima in rank order */
#ifndef TENON_MPI_BACKEND_H
#define TENON_MPI_BACKEND_H

#include <mpi.h>
#include <stdatomic.h>

#include <tenon/call.h>
#include <tenon/plugin.h>

enum { NAME_BYTES = 32 };

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next; /* in the comm's queue, its messages, or its free list */
    struct tn_request *next_made;
    struct tn_call call;
    uint64_t number;
    uint64_t at, length, piece; /* progress: elements done, and those of the step under way */
    int phase;
    uint64_t since_ns;     /* it was first seen not to be done; 0: not yet */
    MPI_Request under_way; /* MPI_REQUEST_NULL: none */
    tn_status status;      /* TN_PENDING until done */
};

struct tn_comm {
    struct backend *backend;
    MPI_Comm mpi;
    char name[NAME_BYTES];
    uint64_t key; /* of its members, for the bootstrap */
    int32_t n, me;
    int32_t *ranks;
    uint64_t number;                  /* of the next collective */
    struct tn_request *first, **last; /* collectives, one at a time in order; the first is under way */
    struct tn_request *messages;      /* sends and receives under way */
    struct tn_request *made, *unused;
    char *scratch;
    uint64_t scratch_bytes;
    int *counts, *offsets; /* 2 * n each, for calls of varying parts */
    atomic_int aborted;
    tn_status failed;
    int is_late; /* the error is a time-out, and who is missing has not been asked */
    struct tn_comm_error error;
    char error_text[512];
    struct tn_comm *next;
};

struct backend {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    int is_up, is_broken; /* broken: something may still be under way, so MPI cannot end in order */
    int has_given_up;     /* times */
    int32_t rank, n;
    uint64_t next_poll_ns;
    struct tn_comm *comms;
    struct made {
        uint64_t key;
        uint32_t times;
        MPI_Comm meeting;   /* where these members meet before a further group of theirs; MPI_COMM_NULL: not met yet */
        MPI_Request coming; /* the meeting under way */
        struct made *next;
    } * made; /* groups made so far, by members */
};

uint64_t mpi_now(void);

/* Keeps and tells an error of a call; mpi_comm_fail ends all that is under way with it. */
tn_status mpi_error(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
    TN_PRINTF(5, 6);
void mpi_comm_fail(struct tn_comm *c, tn_status status);

/* group.c */
tn_status mpi_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm);
void mpi_comm_destroy(struct tn_comm *c);
struct tn_request *mpi_request_new(struct tn_comm *c, const struct tn_call *a);
void mpi_recycle(struct tn_request *r);
void mpi_enqueue(struct tn_request *r);
void mpi_advance(struct backend *b);

/* missing.c: the member, or rank of another group, that others wait for; -1: not known. It takes a second. */
int32_t mpi_find_missing(const struct tn_comm *c);

/* ops.c: starts what comes next, TN_PENDING; or TN_OK once there is nothing left. */
tn_status mpi_step(struct tn_request *r);
tn_status mpi_start_message(struct tn_request *r);
/* An MPI datatype and its count that make up `bytes`, however many. Free it with mpi_bytes_free. */
int mpi_bytes(uint64_t bytes, MPI_Datatype *type);
void mpi_bytes_free(MPI_Datatype *type);

/* reduce.c: `to` := the reduction of n parts of `count` elements, one after the other in `from`. */
int mpi_can_reduce(uint32_t dtype);
void mpi_reduce(void *to, const void *from, int32_t n, uint64_t count, uint32_t dtype, uint32_t red);

#endif
