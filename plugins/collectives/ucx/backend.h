/* ucx: what its files share.
 *
 *   ucx.c      the table, options, the life of an instance, memory
 *   connect.c  the UCX context and worker, the ranks' cards and addresses, endpoints, what may be used between them
 *   group.c    groups: making, finding, ending them
 *   wire.c     messages out and in, and what becomes of them
 *   ops.c      the collectives' algorithms, as reactions to messages
 *   p2p.c      send and recv
 *   trouble.c  errors, who is missing, members that disagree
 *   wait.c     progress, test, wait, sleeping
 *   reduce.c   the summing kernels, built once for each CPU level; pick.c chooses
 *
 * An instance is used by one thread at a time, but for comm_abort; it has no thread of its own. */
#ifndef TENON_UCX_BACKEND_H
#define TENON_UCX_BACKEND_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

#include <tenon/call.h>
#include <tenon/plugin.h>

enum { NAME_BYTES = 32, BUCKETS = 64 /* of requests by number, of groups by key */, TINY_BYTES = 128, MEMORIES = 256 };

/* ---- reduce.c ---- */

/* out := in[0] + in[1] + ..., in that order, fp32 for bf16; out may equal any of them. */
struct ucx_kernels {
    const char *name;
    void (*reduce)(uint32_t dtype, uint32_t red, const void *const *in, int n, void *out, uint64_t count);
};
const struct ucx_kernels *ucx_kernels_pick(void);
int ucx_can_reduce(uint32_t dtype);

/* ---- messages ---- */

enum {
    KIND_DATA,     /* of a collective */
    KIND_MESSAGE,  /* send to recv */
    KIND_JOIN,     /* `from` is in comm_create; piece 1: and connected to this rank */
    KIND_ASK,      /* have you come to collective `number`? */
    KIND_ANSWER,   /* piece: 1 yes, 0 no */
    KIND_CONFLICT, /* my collective `number` is this one */
    KIND_FAILED
}; /* the group has failed: member `piece` is gone */

/* Goes before the data of every message. The ranks of a job are of one byte order. */
struct ucx_head {
    uint64_t key; /* the group's: of its members, and which one in turn of those that the same members made */
    uint32_t turn;
    uint16_t kind;
    uint16_t phase; /* of the algorithm */
    int32_t from;   /* member */
    uint32_t piece; /* segment, round or member */
    uint64_t number, count;
    uint32_t what; /* op, dtype, reduction */
    int32_t root;
};

/* A message on its way out. */
struct ucx_out {
    struct ucx_out *next;
    struct ucx_head head;
    struct backend *backend;
    struct tn_request *owner; /* NULL: nobody waits for it */
    int32_t peer;             /* world rank */
};

/* A message that came, until its data is where it belongs. */
struct ucx_in {
    struct ucx_in *next;
    struct ucx_head head;
    struct backend *backend;
    struct tn_request *owner; /* of a fetch under way */
    void *data;               /* UCX's: the bytes, or a promise of them (rendezvous); NULL: in tiny */
    uint64_t bytes;
    uint8_t is_promise, is_landed;
    char tiny[TINY_BYTES];
};

/* ---- requests ---- */

enum { WAY_DIRECT, WAY_DOUBLING, WAY_RING, WAY_TREE, WAY_SCATTER, WAY_PARTS };

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next, *prev; /* among the comm's collectives, or its messages; free list */
    struct tn_request *chain;       /* of its bucket */
    struct tn_request *made;        /* all of the instance */
    tn_status status;
    uint32_t op, dtype, red, esize;
    int32_t peer; /* root, or the other side of a message */
    uint64_t number, count;
    const char *in;
    char *out;
    uint32_t under_way; /* sends and fetches that UCX has */
    uint8_t is_ended;   /* the caller has its outcome */
    uint8_t is_started;
    uint64_t waited_ns; /* for since then; 0: not yet */
    /* collectives (ops.c) */
    uint8_t way;
    uint32_t expected, got; /* messages */
    uint32_t round;         /* of doubling, barrier */
    uint64_t rounds_got;    /* a bit each */
    char *scratch;
    int scratch_class;
    uint64_t segment; /* elements of each piece in a segment */
    uint32_t segments, sent, reduced;
    uint32_t parts_got[2]; /* of the segments being collected */
    struct ucx_in *held;   /* came early */
};

/* ---- groups ---- */

struct ucx_flow {               /* messages with one member */
    uint64_t sent, received;    /* numbers of the next */
    struct tn_request *waiting; /* receives */
    struct ucx_in *came;
};

struct ucx_call { /* what a member calls, as far as known */
    uint8_t is_known;
    uint32_t what;
    int32_t root;
    uint64_t count;
};

struct tn_comm {
    struct backend *backend;
    char name[NAME_BYTES];
    uint64_t key;
    uint32_t turn;
    int32_t n, me;
    int32_t *ranks;
    uint8_t spans_hosts;
    uint8_t *greeted; /* in comm_create: members that know of this rank */
    struct ucx_flow *flows;
    const void **sources; /* scratch of a reduction */

    uint64_t number;                    /* of the next collective */
    struct tn_request *first, *last;    /* collectives under way, in order */
    struct tn_request *bucket[BUCKETS]; /* the same, by number */
    struct ucx_call past[BUCKETS];      /* the last ones, by number */
    struct tn_request *messages;        /* sends and receives under way */
    struct ucx_in *early;               /* for collectives that have not been called */
    struct tn_request *owner;           /* of the large scratch */
    char *large;
    uint64_t large_bytes;
    struct ucx_block *blocks[2]; /* small scratch that is free */

    atomic_int is_aborted;
    tn_status failed;
    struct tn_comm_error error;
    char error_text[512];
    /* trouble */
    uint64_t asked, asked_ns; /* collective, when last */
    uint32_t round;           /* of asking, from 1; 0: nobody was asked */
    struct ucx_answer {
        uint32_t round;
        uint8_t is_there;
    } * answers;
    uint8_t is_split; /* members disagree on collective split_at */
    uint64_t split_at, split_ns;
    struct ucx_call *calls;
    uint8_t has_told; /* the others what this rank calls */

    struct tn_comm *next;  /* of the instance */
    struct tn_comm *chain; /* of its bucket */
};

struct ucx_block {
    struct ucx_block *next;
};

/* ---- the instance ---- */

/* What a rank says of itself before it has a worker. */
struct ucx_card {
    uint64_t host, machine; /* equal hosts share memory; equal machines run the same kernel */
    uint64_t probe;         /* the address of a word, for a try at reading it */
    int32_t pid;
    int32_t reserved;
    uint64_t cpus[16];
};

struct ucx_peer {
    ucp_ep_h ep;
    struct backend *backend;
    uint64_t host;
    int32_t pid;
    uint8_t is_dead, is_near; /* near: on this host */
    uint8_t is_connected;
    void *flush;      /* the request that ends once it is */
    ucs_status_t why; /* it is dead */
};

struct backend {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    const struct ucx_kernels *kernels;
    int32_t rank, n;
    /* options */
    uint64_t eager_bytes, small_bytes, segment_bytes, ring_bytes;
    int32_t direct_ranks;
    int64_t spin_option_us;
    int progress_mode;
    /* UCX */
    ucp_context_h context;
    ucp_worker_h worker;
    int event_fd, signal_fd;
    struct ucx_peer *peers;
    int is_crowded, has_dead, is_broken, has_no_shared_memory, has_blamed;
    uint64_t spin_ns, next_poll_ns, dead_ns;
    /* messages */
    struct ucx_in *inbox, **inbox_last, *free_in;
    struct ucx_out *free_out;
    struct ucx_slab *slabs;
    struct tn_request *free_requests, *made;
    struct ucx_in *orphans; /* of groups that are not made here yet */
    int is_dirty;           /* a request may be done */
    uint32_t tests;
    /* groups */
    struct tn_comm *comms;
    struct tn_comm *bucket[BUCKETS];
    struct ucx_made {
        uint64_t key;
        uint32_t times;
        struct ucx_made *next;
    } * made_groups;
    struct ucx_joining {
        uint64_t key;
        uint32_t turn;
        struct ucx_joining *next;
        uint8_t joined[];
    } * joining;
    struct ucx_memory {
        char *base;
        uint64_t bytes;
        ucp_mem_h handle;
    } memories[MEMORIES];
    uint32_t n_memories;
    uint64_t probe_word;
};

uint64_t ucx_now(void);
uint64_t ucx_request_bytes(const struct tn_request *r);
/* TN_OK, or what the bootstrap says; looks every 50 ms at most. */
tn_status ucx_poll(struct backend *b, uint64_t now);

/* connect.c */
tn_status ucx_connect(struct backend *b, uint64_t deadline_ns);
void ucx_disconnect(struct backend *b);
tn_status ucx_reach(struct backend *b, int32_t rank, uint64_t deadline_ns); /* makes sure of an endpoint */
ucp_mem_h ucx_memory_of(const struct backend *b, const void *p, uint64_t bytes);

/* group.c */
tn_status ucx_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm);
void ucx_comm_destroy(struct tn_comm *c);
void ucx_comm_abort(struct tn_comm *c);
struct tn_comm *ucx_comm_find(struct backend *b, uint64_t key, uint32_t turn);
int ucx_is_over(const struct backend *b, uint64_t key, uint32_t turn); /* made once and gone */
void ucx_join(struct backend *b, const struct ucx_head *h);
/* Looks whether another member has aborted it. */
void ucx_comm_look(struct tn_comm *c);
void ucx_comm_free(struct tn_comm *c);
void *ucx_scratch_take(struct tn_comm *c, int class, uint64_t bytes);
void ucx_scratch_give(struct tn_comm *c, int class, void *block);

/* wire.c */
ucs_status_t ucx_arrived(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                         const ucp_am_recv_param_t *param);
/* A message of `owner` (NULL: of nobody) to a member. The data stays until owner->under_way falls again. */
void ucx_say(struct tn_comm *c, struct tn_request *owner, int32_t member, struct ucx_head head, const void *data,
             uint64_t bytes);
struct ucx_head ucx_head_of(const struct tn_request *r, int kind, uint32_t phase, uint32_t piece);
/* Puts a message's data at `to`; tells ops.c or p2p.c once it is there. */
void ucx_take(struct tn_request *r, struct ucx_in *in, char *to);
void ucx_drop(struct ucx_in *in); /* and its data */
/* Handles what is in the inbox. Returns how much it was. */
int ucx_read_inbox(struct backend *b);
void ucx_adopt_orphans(struct tn_comm *c);
void ucx_wire_drop(struct backend *b);   /* what nobody will read */
void ucx_wire_finish(struct backend *b); /* once UCX can call back no more */

/* ops.c */
tn_status ucx_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r);
/* A message for this collective came; it takes it, or holds it until there is room. */
void ucx_op_message(struct tn_request *r, struct ucx_in *in);
void ucx_op_landed(struct tn_request *r, const struct ucx_head *h);
void ucx_op_settle(struct tn_request *r); /* ends it if nothing is left to do */
struct tn_request *ucx_op_find(struct tn_comm *c, uint64_t number);
uint32_t ucx_what(const struct tn_request *r);

/* p2p.c */
/* Of `make`: what is called, and with whom. */
tn_status ucx_send(struct tn_comm *c, struct tn_request make, struct tn_request **r);
tn_status ucx_recv(struct tn_comm *c, struct tn_request make, struct tn_request **r);
void ucx_p2p_message(struct tn_comm *c, struct ucx_in *in);
void ucx_p2p_settle(struct tn_request *r);

/* wait.c */
struct tn_request *ucx_request_new(struct tn_comm *c);
void ucx_request_recycle(struct tn_request *r); /* once UCX has nothing of it */
int ucx_advance(struct backend *b);             /* returns whether anything happened */
/* Sleeps until something comes, but not beyond `until_ns`. */
void ucx_sleep(struct backend *b, uint64_t until_ns);
tn_status ucx_test(struct tn_request *r);
tn_status ucx_wait(struct tn_request *r, uint64_t timeout_ns);
void ucx_progress(void *self);

/* trouble.c */
tn_status ucx_error(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
    TN_PRINTF(5, 6);
/* Ends all requests of the group, with a text for those who ask. */
void ucx_comm_fail(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
    TN_PRINTF(5, 6);
tn_status ucx_failure(struct tn_comm *c); /* TN_OK, or why it cannot be used; told to the host */
tn_status ucx_last_error(struct tn_comm *c, struct tn_comm_error *error);
/* Asks the members whether they have come, now and then while a wait goes on. */
void ucx_ask(struct tn_request *r, uint64_t now);
/* The world rank that the request waits for; -1: not known. Asks the members once more, for a moment. */
int32_t ucx_missing(struct tn_request *r, uint64_t patience_ns);
void ucx_peer_failed(struct backend *b, int32_t rank, ucs_status_t status);
void ucx_look_at_dead(struct backend *b, uint64_t now);
void ucx_gone(struct tn_request *r); /* a rank of the job died: fails the group if the request cannot end */
/* Members call different things: from here until all is told. */
void ucx_split(struct tn_comm *c, uint64_t number);
void ucx_split_look(struct tn_comm *c, uint64_t now);
void ucx_split_told(struct tn_comm *c, const struct ucx_head *h);
void ucx_answer(struct tn_comm *c, const struct ucx_head *h);
void ucx_failed_there(struct tn_comm *c, const struct ucx_head *h);

#endif
