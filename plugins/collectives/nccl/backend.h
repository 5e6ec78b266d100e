/* nccl: what its files share.
 *
 *   nccl.c    the table, the life of the backend, memory, failures
 *   group.c   groups: communicators, streams, aborts
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
    void *word;            /* GPU memory, for barriers */
    void *handles[PIECES]; /* of registered memory */
    struct tn_request *made, *unused;
    struct tn_request *messages_due, *due; /* have not begun: messages, others of an open group; newest first */
    uint64_t number;
    atomic_int aborted; /* asked for, by any thread */
    tn_status failed;
    struct tn_comm_error error;
    char error_text[512];
};

struct nccl {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    int device, is_up, is_grouping;
    uint64_t next_look_ns;
    struct tn_comm *comms;
    struct times {
        uint64_t key;
        uint32_t times;
        struct times *next;
    } * times;
    struct {
        void *base;
        uint64_t bytes;
    } pieces[PIECES];
};

extern const ncclDataType_t nccl_dtypes[]; /* by TN_* of value.h */

/* nccl.c */
uint64_t nccl_now_ns(void);
void nccl_nap(void);
uint64_t nccl_deadline_after(uint64_t timeout_ns);
tn_status nccl_fail_cuda(const struct nccl *b, const char *what, cudaError_t error);
tn_status nccl_fail_comm(struct tn_comm *c, const struct tn_request *r, tn_status status, const char *why);
int nccl_is_time_to_look(struct nccl *b);
const char *nccl_settle(struct nccl *b, ncclComm_t comm, ncclResult_t result, uint64_t deadline_ns, tn_status *status);
void nccl_register_piece(struct nccl *b, struct tn_comm *c, int piece);

/* group.c */
tn_status nccl_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                           struct tn_comm **comm);
void nccl_comm_destroy(struct tn_comm *c);
void nccl_comm_abort(struct tn_comm *c);
int nccl_is_aborted(struct tn_comm *c);

/* ops.c */
tn_status nccl_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r);
tn_status nccl_group_start(void *self);
tn_status nccl_group_end(void *self);
tn_status nccl_test(struct tn_request *r);
tn_status nccl_wait_for(struct tn_request *r, uint64_t timeout_ns);
void nccl_progress(void *self);
tn_status nccl_last_error(struct tn_comm *c, struct tn_comm_error *error);

#endif
