/* The collective table: communication among ranks.
 *
 * Counts are elements per rank: all_gather and all_to_all take `count` elements for each
 * peer, reduce_scatter gives `count` to each. Buffers are dense. send == recv is in place
 * for all_reduce and broadcast; for all_gather in place send is recv + rank * count
 * elements; for reduce_scatter recv is send + rank * count elements. A count of 0 is legal:
 * it synchronises nothing and must not hang.
 *
 * Every member of a comm enqueues the same collectives in the same order, from one thread.
 * Each call returns at once with a request; buffers belong to the backend until its request
 * is done. Sums are computed in rank order (or in another order that never changes, which caps
 * then says), in fp32 for f32 and bf16 (f64 for f64): all members get the same bits, every run. */
#ifndef TENON_COLLECTIVE_H
#define TENON_COLLECTIVE_H

#include <tenon/plugin.h>
#include <tenon/value.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_comm;    /* one rank's handle on a group */
struct tn_request; /* one operation under way; owned by the backend, gone once test or wait
                      gave something else than TN_PENDING / TN_TIMEOUT */
struct tn_queue;   /* of the device; NULL where the device computes in the calling thread */

/* How ranks find each other before they can communicate. All functions are non-blocking;
 * TN_PENDING means "call again". The table lives as long as the instance. */
struct tn_bootstrap {
    uint32_t struct_size;
    int32_t rank, size;             /* in the world */
    int32_t local_rank, local_size; /* on this host */
    uint64_t host_id;               /* equal exactly on ranks that can share memory */
    uint64_t job_id;                /* random, the same on all ranks */
    void *ctx;
    tn_status (*put)(void *ctx, const char *key, const void *data, uint32_t bytes);
    /* Copies at most *bytes; sets *bytes to the length. TN_PENDING until someone put it. */
    tn_status (*get)(void *ctx, const char *key, void *data, uint32_t *bytes);
    /* TN_OK; TN_PEER once a rank of the job, of whatever group, is known to have died. */
    tn_status (*poll)(void *ctx);
};

struct tn_collective_caps {
    uint32_t struct_size;
    uint32_t in_place_peers;             /* 1: mem_alloc'd tensors are read by peers in place */
    uint64_t dtypes;                     /* bit n: dtype n can be reduced */
    uint32_t needs_progress;             /* 1: operations advance only inside progress, test and wait */
    uint32_t host_memory, device_memory; /* 1: buffers may be there */
    uint32_t one_host;                   /* 1: a group must lie inside one host */
    uint32_t nested_sums;                /* 1: sums are made in another fixed order than that of ranks */
};

struct tn_comm_error {
    uint32_t struct_size;
    int32_t peer;       /* world rank that is missing or differs; -1: not known */
    uint64_t op_number; /* on the comm, from 0 */
    uint64_t bytes;
    const char *op;      /* "all_reduce" */
    const char *message; /* valid until the next call on the comm */
};

struct tn_collective {
    uint32_t struct_size;

    /* `next` and `next_self`: the backend below a layer; NULL for a backend. [main] */
    tn_status (*create)(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self);
    void (*destroy)(void *self); /* accepts NULL; leaves no file, segment or process */
    tn_status (*caps)(void *self, struct tn_collective_caps *caps); /* caller sets struct_size */
    /* Collective over the world; blocks until done or timeout. [main] */
    tn_status (*init)(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns);

    /* Memory that is fastest to communicate from. Collective over the world (with one_host over
     * the ranks of each host), in the same order on all ranks; sizes may differ. 64-byte aligned,
     * zeroed. [main] */
    tn_status (*mem_alloc)(void *self, uint64_t bytes, void **memory);
    void (*mem_free)(void *self, void *memory);

    /* A group of world ranks; collective over its members. A group of one is legal. `name` is
     * for messages ("tp"). [main] */
    tn_status (*comm_create)(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm);
    void (*comm_destroy)(struct tn_comm *comm);
    void (*comm_abort)(struct tn_comm *comm); /* [any] all its requests end with TN_ABORTED */

    /* [comm] Operations. Where the group has failed already, the call fails the same way. */
    tn_status (*all_reduce)(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            uint32_t red, struct tn_queue *q, struct tn_request **r);
    tn_status (*all_gather)(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r);
    tn_status (*reduce_scatter)(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                                uint32_t red, struct tn_queue *q, struct tn_request **r);
    tn_status (*all_to_all)(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r);
    tn_status (*broadcast)(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                           int32_t root, struct tn_queue *q, struct tn_request **r);
    tn_status (*send)(struct tn_comm *c, const void *data, uint64_t count, uint32_t dtype, int32_t to,
                      struct tn_queue *q, struct tn_request **r);
    tn_status (*recv)(struct tn_comm *c, void *data, uint64_t count, uint32_t dtype, int32_t from, struct tn_queue *q,
                      struct tn_request **r);
    tn_status (*barrier)(struct tn_comm *c, struct tn_queue *q, struct tn_request **r);
    /* Operations between the two may be started together; NULL: no gain. */
    tn_status (*group_start)(void *self);
    tn_status (*group_end)(void *self);

    /* [comm] test never blocks: TN_OK, TN_PENDING or a failure. wait blocks until the
     * request is done, fails, or the timeout passed (TN_TIMEOUT; the request lives on).
     * progress advances everything a little and returns at once. */
    tn_status (*test)(struct tn_request *r);
    tn_status (*wait)(struct tn_request *r, uint64_t timeout_ns);
    void (*progress)(void *self);

    /* What the comm's last failure or time-out was about. Caller sets struct_size. [comm]
     * After a death: a member that has ended, rather than one that is late or ended because of it, as far as
     * the backend can tell them apart. */
    tn_status (*last_error)(struct tn_comm *c, struct tn_comm_error *error);
};

/* "tn.backends/1" of the host table (get_api): for a backend made of others. */
struct tn_backends_api {
    uint32_t struct_size;
    /* [main] In create only. The job's instance of another backend: an id, or a path as in [comm] backend, with the
     * options of its own section. Everyone who names it gets the same one. The core owns it: it is connected (init)
     * before the one that opened it, and destroyed after it. A failure has set the caller's message. */
    tn_status (*open)(const struct tn_host *host, const char *name, const struct tn_collective **table, void **self);
    /* [any] The id of the backend that a layer stands over, however many layers are between; of a backend, its own. */
    const char *(*below)(const struct tn_host *host);
};

#ifdef __cplusplus
}
#endif
#endif
