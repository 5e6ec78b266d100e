/* nccl: what its files share.
 *
 *   nccl.c    the table, the life of the backend, memory, failures
 *   group.c   groups: how members meet, aborts
 *   lane.c    communicators and streams, and what begins on them when
 *   ops.c     the operations, and waiting for them */
#ifndef TENON_NCCL_BACKEND_H
#define TENON_NCCL_BACKEND_H

#include <stdatomic.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <tenon/call.h>
#include <tenon/plugin.h>

enum { NAME_BYTES = 32, PIECES = 256, NAP_NS = 20 * 1000, LOOK_NS = 50 * 1000 * 1000 };
#define END_NS UINT64_C(5000000000) /* for a communicator to come to rest */

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next, *next_made;
    cudaEvent_t done;
    int is_begun; /* the event stands behind it */
    struct tn_call call;
    uint64_t number;
};

enum lane_state { LANE_NEW, LANE_JOINS, LANE_OPEN };

struct lane {
    struct lane *next;
    int32_t peer; /* of messages; -1: collectives */
    int is_send;
    enum lane_state state;
    ncclComm_t comm;
    cudaStream_t stream;
    struct tn_request *due, *begins; /* in the order of calls; `begins`: as soon as the members are connected */
};

struct tn_comm {
    struct nccl *nccl;
    struct tn_comm *next;
    char name[NAME_BYTES];
    uint64_t key;
    int32_t n, me;
    int32_t *ranks;
    struct lane collectives, *lanes; /* lanes: of messages */
    void *word;                      /* GPU memory, for barriers */
    void *handles[PIECES];           /* of registered memory */
    struct tn_request *made, *unused;
    uint64_t number;
    atomic_int aborted; /* asked for, by any thread */
    tn_status failed;
    struct tn_comm_error error;
    char error_text[512];
};

struct times {
    uint64_t key; /* of the members */
    uint32_t times;
    struct times *next;
};

struct nccl {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    int device, is_up, is_grouping;
    uint64_t next_look_ns;
    struct tn_comm *comms;
    struct times *times;
    struct {
        void *base;
        uint64_t bytes;
    } pieces[PIECES];
};

extern const ncclDataType_t nccl_dtypes[]; /* by TN_* of value.h */

static inline int nccl_is_fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* nccl.c */
uint64_t nccl_now_ns(void);
void nccl_nap(void);
uint64_t nccl_deadline_after(uint64_t timeout_ns);
tn_status nccl_fail_cuda(const struct nccl *b, const char *what, cudaError_t error);
tn_status nccl_error(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why);
tn_status nccl_fail_comm(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why);
int nccl_is_time_to_look(struct nccl *b);
const char *nccl_settle(struct nccl *b, ncclComm_t comm, ncclResult_t result, uint64_t deadline_ns, tn_status *status);
void nccl_register_piece(struct nccl *b, struct tn_comm *c, int piece);

/* lane.c */
void nccl_lane_add(struct lane *lane, struct tn_request *r);
struct lane *nccl_lane_to(struct tn_comm *c, int32_t peer, int is_send); /* NULL: no memory */
tn_status nccl_lead(struct tn_comm *c);
void nccl_lanes_abort(struct tn_comm *c);
void nccl_lanes_end(struct tn_comm *c);

/* group.c */
tn_status nccl_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                           struct tn_comm **comm);
void nccl_comm_destroy(struct tn_comm *c);
void nccl_comm_abort(struct tn_comm *c);
int nccl_is_aborted(struct tn_comm *c);

/* ops.c */
ncclResult_t nccl_begin(struct tn_request *r, const struct lane *lane);
tn_status nccl_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r);
tn_status nccl_group_start(void *self);
tn_status nccl_group_end(void *self);
tn_status nccl_test(struct tn_request *r);
tn_status nccl_wait_for(struct tn_request *r, uint64_t timeout_ns);
void nccl_progress(void *self);
tn_status nccl_last_error(struct tn_comm *c, struct tn_comm_error *error);

#endif
