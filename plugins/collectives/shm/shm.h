/* The shm backend inside: one host, memory that all ranks map, no thread of its own.
 *
 * shm.c      plugin table, instance, init
 * segment.c  the control file and mem_alloc's segments: making, passing and mapping them
 * comm.c     groups
 * wait.c     progress, waiting, failure (and the protocol, explained at its top)
 * ops.c      collectives: publish, agree, claim slices, stage private buffers
 * p2p.c      send and recv
 * reduce.c   the summing and copying kernels, built once for each CPU level
 *
 * All words that two ranks touch are C11 atomics with the default (sequential) order. */
#ifndef TENON_SHM_H
#define TENON_SHM_H

#include <stdatomic.h>
#include <stddef.h>

#include <tenon/call.h>

enum {
    RING = 64,                /* collectives of a comm that may be under way */
    INLINE_BYTES = 232,       /* payload carried inside a slot */
    MESSAGES = 16,            /* messages of a (sender, receiver) pair that may be under way */
    MESSAGE_BYTES = 104,      /* payload carried inside a message */
    PARTS = 16,               /* claim counters of an operation */
    SEGMENTS = 256,           /* mem_alloc'd memory alive at a time */
    COMMS = 4096,             /* groups of more than one rank alive at a time, in the whole job */
    BOUNCE_BYTES = 256 << 10, /* staged per member and direction */
    PIPE_CHUNK = 32 << 10,    /* of a private message; two per pair */
    POLL_NS = 50000000,       /* between two looks at the bootstrap while waiting */
    NAME_BYTES = 32,
    LINE = 128 /* two cache lines: what one core's prefetcher pulls together */
};

#define LOC_PRIVATE UINT64_MAX /* a buffer that peers cannot read */
#define LOC_SEGMENT_SHIFT 48

/* ---- reduce.c ---- */

/* in: n sources; out: m destinations, which may equal sources. Sums are in the order of `in`.
 * stream: the destinations are not read again soon and differ from the sources. */
struct shm_kernels {
    const char *name;
    void (*reduce)(uint32_t dtype, uint32_t red, const void *const *in, int n, void *const *out, int m, uint64_t count,
                   int stream);
    void (*copy)(const void *in, void *const *out, int m, uint64_t bytes, int stream);
};
const struct shm_kernels *shm_kernels_pick(void);
int shm_can_reduce(uint32_t dtype);

/* ---- shared layout: the control file ---- */

/* A rank sleeps on its own bell, whatever it waits for. */
struct shm_bell {
    _Alignas(LINE) _Atomic uint32_t word;
    _Atomic uint32_t sleeping;
};

/* What a rank tells all others in init and mem_alloc. */
struct shm_cell {
    struct shm_bell bell;
    _Alignas(LINE) uint64_t bytes;
    int32_t status;
    uint64_t used[SEGMENTS / 64]; /* its segments */
    uint64_t cpus[16];            /* its affinity mask */
};

/* A group being made, or alive. word: state, members that joined, generation. */
struct shm_entry {
    _Atomic uint32_t word;
    _Atomic int32_t left;
    uint64_t key;
};

struct shm_control {
    _Alignas(LINE) _Atomic uint32_t arrived; /* of all gatherings so far */
    _Alignas(LINE) _Atomic uint32_t high;    /* entries that were ever used */
    _Alignas(LINE) struct shm_entry entries[COMMS];
    struct shm_cell cells[]; /* by world rank */
};

/* ---- shared layout: a comm's block ---- */

struct shm_member {
    _Alignas(LINE) _Atomic uint64_t completed; /* collectives it is through with, in order */
    _Atomic uint32_t joined;
};

/* One member's part of one collective. */
struct shm_slot {
    _Alignas(64) _Atomic uint64_t seq; /* number + 1 once the rest is valid */
    uint32_t what;                     /* op, dtype, reduction: must be equal on all members */
    int32_t root;
    uint64_t count;
    union {
        struct {
            uint64_t send, recv;     /* where: segment and offset, or LOC_PRIVATE */
            _Atomic uint32_t rounds; /* staged: rounds whose input it has laid out */
        } large;
        unsigned char data[INLINE_BYTES];
    };
};

/* The work of one collective. */
struct shm_state {
    struct {
        _Alignas(64) _Atomic uint32_t claimed; /* slices, counted on from round to round */
    } parts[PARTS];
    _Alignas(LINE) _Atomic uint32_t done; /* slices, of all parts and rounds */
    _Atomic uint32_t ready;               /* times a staging member was ready */
};

struct shm_message {
    _Alignas(64) _Atomic uint64_t seq; /* number + 1 once the rest is valid */
    uint32_t dtype;
    uint32_t mode;
    uint64_t count;
    union {
        uint64_t loc;
        unsigned char data[MESSAGE_BYTES];
    };
};

/* From one member to another. */
struct shm_channel {
    _Alignas(LINE) _Atomic uint64_t taken; /* messages the receiver is through with */
    _Atomic uint64_t drained;              /* chunks of the pipe, likewise */
    _Alignas(LINE) _Atomic uint64_t filled;
    struct shm_message ring[MESSAGES];
};

struct shm_block {
    _Alignas(LINE) _Atomic uint32_t failed; /* 0, 1 while the text is written, then -status */
    int32_t failed_peer, failed_op;
    uint64_t failed_number, failed_bytes;
    char failed_text[512];
    struct shm_state states[RING];
    struct shm_member members[]; /* then slots, channels, bounce areas, pipes (comm.c, layout) */
};

/* ---- one rank's own ---- */

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next; /* free list, or the queue of a flow */
    tn_status status;        /* TN_PENDING, then the outcome */
    uint64_t told_ns;        /* when a wait for it first heard of a death */
    uint32_t op, dtype, red, esize;
    int32_t root; /* of broadcast; the other side of send and recv */
    uint64_t number, count;
    const char *in;
    char *out;
    /* collectives, from agreement on (ops.c) */
    uint8_t is_small, is_agreed, is_planned, is_staged, is_stager, is_laid_out, stream;
    int32_t stagers;
    uint32_t rounds, round;
    uint64_t round_elements, slice_elements;
    uint32_t slices_per_piece, slices; /* of one round */
    uint64_t send_loc, recv_loc;
    /* send and recv (p2p.c) */
    uint32_t mode;
    uint8_t is_posted;
    uint64_t moved; /* bytes */
};

/* Requests to or from one member, oldest first. */
struct shm_flow {
    struct tn_request *head, *tail;
    uint64_t next;   /* number of the next request */
    uint64_t chunks; /* that went through the pipe */
};

struct tn_comm {
    struct shm *shm;
    char name[NAME_BYTES];
    int32_t n, me;
    int32_t *ranks;             /* of the world, for messages */
    int32_t *seats;             /* the same among those of this host */
    uint32_t entry, generation; /* its place in the control file */
    struct shm_block *block;
    uint64_t block_bytes;
    struct shm_slot *slots;       /* [member][RING] */
    struct shm_channel *channels; /* [sender][receiver] */
    char *bounce;                 /* [member][in, out] */
    char *pipes;                  /* [sender][receiver][2] */

    struct tn_request *ring[RING]; /* collectives under way, by number */
    uint64_t next;                 /* number of the next collective */
    uint64_t head;                 /* the oldest that is not done here */
    uint64_t agreed;               /* all members have published those below */
    uint64_t room;                 /* slots are free below this number */
    int32_t missing;               /* the member seen missing last */
    struct shm_flow *sends, *recvs;
    uint32_t n_flows; /* p2p requests under way */
    struct tn_comm *next_active;
    int is_active;

    const void **in_ptrs; /* scratch of a slice */
    void **out_ptrs;

    struct tn_comm_error error;
    char error_text[512];
};

struct shm_segment {
    char *base; /* NULL: free */
    uint64_t bytes;
    uint64_t mine, mine_bytes; /* this rank's part: offset, usable bytes */
};

struct shm {
    const struct tn_host *host;
    struct tn_bootstrap bootstrap;
    const struct shm_kernels *kernels;
    int32_t rank, n; /* among the ranks of this host, which alone take part */
    int32_t *world;  /* their ranks in the world */
    int32_t *seats;  /* of each rank of the world: its place here, -1: it is on another host */
    int32_t *pids;   /* 0: in another namespace of processes */
    int any_host;    /* the option */
    int64_t spin_option_us;
    uint64_t spin_ns, timeout_ns, next_poll_ns;
    uint32_t pauses;        /* looks at the peers before giving way: none without a core for each rank */
    uint32_t tests;         /* that found an operation unfinished */
    int32_t cores, workers; /* of all ranks' affinity masks; of them, how many ranks can use */
    uint64_t cache_bytes;

    int control_fd;
    struct shm_control *control;
    uint64_t control_bytes;
    uint32_t gatherings;
    int *sockets; /* rank 0: one for each rank; else only [0] is open */
    int is_broken;
    struct shm_segment segments[SEGMENTS];
    uint32_t n_segments; /* highest in use + 1 */

    struct tn_comm *active; /* comms with requests under way */
    struct tn_request *free_requests;
    struct shm_pool *pools;
};

uint64_t shm_now(void);
int shm_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void shm_futex_wake(_Atomic uint32_t *word);
/* Looks at the bootstrap if it is time to. */
tn_status shm_poll(struct shm *s, uint64_t now);

/* segment.c */
tn_status shm_connect(struct shm *s, uint64_t deadline);
void shm_disconnect(struct shm *s);
/* Whether the process of a rank of this host has ended. */
int shm_is_gone(const struct shm *s, int32_t seat);
/* Returns once all ranks called it. */
tn_status shm_gather(struct shm *s, uint64_t deadline, const char *what);
tn_status shm_mem_alloc(void *self, uint64_t bytes, void **memory);
void shm_mem_free(void *self, void *memory);
uint64_t shm_locate(const struct shm *s, const void *p, uint64_t bytes);
char *shm_at(const struct shm *s, uint64_t loc);

/* comm.c */
uint64_t shm_block_stride(const struct shm *s);
tn_status shm_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                          struct tn_comm **comm);
void shm_comm_destroy(struct tn_comm *c);

/* wait.c */
void shm_comm_abort(struct tn_comm *c);
tn_status shm_test(struct tn_request *r);
tn_status shm_wait(struct tn_request *r, uint64_t timeout_ns);
void shm_progress(void *self);
tn_status shm_last_error(struct tn_comm *c, struct tn_comm_error *error);

/* An error of the calls on a comm: kept for last_error and told to the host. */
tn_status shm_error(struct tn_comm *c, tn_status status, int32_t peer, const struct tn_request *r, const char *fmt, ...)
    TN_PRINTF(5, 6);
/* An error of the whole comm: all members' requests end with it. */
void shm_comm_fail(struct tn_comm *c, tn_status status, int32_t peer, const struct tn_request *r, const char *fmt, ...)
    TN_PRINTF(5, 6);
/* TN_OK, or the comm's failure, told to the host. */
tn_status shm_failure(struct tn_comm *c);
struct tn_request *shm_request_new(struct tn_comm *c);
void shm_activate(struct tn_comm *c);
void shm_ring(struct tn_comm *c, int32_t member);
/* Rings at most `limit` sleeping members. */
void shm_ring_all(struct tn_comm *c, int32_t limit);
uint64_t shm_request_bytes(const struct tn_request *r);
/* Advances all requests of all comms; a budget of slices to work on, -1: all there is. */
void shm_advance(struct shm *s, int budget);

/* ops.c */
tn_status shm_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r);
void shm_ops_advance(struct tn_comm *c, int budget);
/* The first member that the collective still waits for, -1 if none can be told. */
int32_t shm_ops_missing(struct tn_comm *c, const struct tn_request *r);

/* p2p.c */
/* A message as `make` says. */
tn_status shm_p2p_start(struct tn_comm *c, struct tn_request make, struct tn_request **out);
void shm_p2p_advance(struct tn_comm *c);

#endif
