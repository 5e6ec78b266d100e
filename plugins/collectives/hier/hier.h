/* hier: what its files share.
 *
 *   hier.c    the table, life, waiting, errors
 *   group.c   groups: who is on which host, the groups of the two backends below
 *   pieces.c  operations as pieces that go down, across and up
 *   stages.c  what each operation does in each stage
 *   pack.c    moving blocks between the members' order and that of hosts; bf16 to fp32 and back */
#ifndef TENON_HIER_H
#define TENON_HIER_H

#include <stdatomic.h>

#include <tenon/call.h>
#include <tenon/plugin.h>

enum { DOWN, ACROSS, UP, STAGES };
enum { NAME_BYTES = 32, WINDOW = 4 /* pieces of a group under way */ };

struct side { /* a backend below */
    const struct tn_collective *table;
    void *self;
};

/* A part of an operation: elements [at, at + length) of each member's block. */
struct piece {
    struct tn_request *op;
    uint64_t at, length;
    int is_small;             /* all_reduce: by one rank of each host, whole */
    int issued;               /* stages begun */
    int is_busy;              /* the last of them has not ended */
    const struct side *side;  /* where it is under way */
    struct tn_request *below; /* NULL: ended, or nothing to do */
    char *scratch;
    uint64_t scratch_bytes;
};

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *next; /* in the queue, or unused */
    struct tn_request *next_made;
    struct tn_call call;
    uint32_t esize; /* bytes of an element */
    uint64_t number;
    uint64_t planned;        /* elements that are in pieces */
    int is_planned;          /* all are */
    uint32_t pieces;         /* not ended */
    const struct side *side; /* it went to one backend as it is: there */
    struct tn_request *below;
    tn_status status; /* TN_PENDING until it has ended */
};

struct tn_comm {
    struct hier *hier;
    struct tn_comm *next;
    char name[NAME_BYTES];
    uint64_t key; /* of this one group, the same on all members */
    int32_t n, me;
    int32_t *ranks;
    int32_t *host, *local; /* of each member: number of its host, place among the members there */
    int32_t *member;       /* [host][local], with `most` places a host; -1: none */
    int32_t n_hosts, most, my_locals;
    int is_even; /* as many members on each host */

    const struct side *only;   /* the one backend that serves it all; else NULL */
    struct tn_comm *down, *up; /* inner: the members of this host. A group for each stage, so that the order in it is
                                  that of operations however far each has come */
    struct tn_comm *rail;      /* outer: those in my place on each host; with uneven hosts only the first has one */
    struct tn_comm *all;       /* outer: all members; messages, and what has no better way */

    struct tn_request *first, **last; /* operations that have pieces to be made, or under way */
    struct piece pieces[WINDOW];
    uint64_t head, tail; /* of the pieces under way, by number */
    uint64_t number;     /* of the next collective */
    struct tn_request *made, *unused;

    atomic_int aborted;
    tn_status failed;
    int is_late;                  /* the error is a time-out, whose cause may be further on: */
    const struct side *late_side; /* where the wait was, which may take a while to say more */
    struct tn_comm *late_below;
    int is_passed, is_message; /* the operation went there as it is */
    struct tn_comm_error error;
    char error_text[512];
};

struct hier {
    const struct tn_host *host;
    struct side inner, outer;
    struct tn_bootstrap bootstrap;
    uint64_t dtypes, small_bytes, chunk_bytes;
    uint64_t next_look_ns;
    int32_t passed[2]; /* operations under way that went to inner, outer as they are */
    struct tn_comm *comms;
    struct times *times; /* groups made so far, by members */
};

uint64_t hier_now(void);

/* group.c */
tn_status hier_say_host(struct hier *h);
tn_status hier_comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                           struct tn_comm **comm);
void hier_comm_destroy(struct tn_comm *c);
void hier_comm_abort(struct tn_comm *c);
void hier_forget(struct hier *h);

/* hier.c: ends all that is under way in a group. `r` may be NULL. */
void hier_fail(struct tn_comm *c, const struct tn_request *r, const struct side *side, struct tn_comm *below,
               tn_status status);

/* pieces.c */
struct tn_request *hier_request_new(struct tn_comm *c, const struct tn_call *a);
void hier_recycle(struct tn_request *r);
void hier_enqueue(struct tn_request *r);
void hier_advance(struct hier *h);
/* The oldest piece of a group that waits for a backend; NULL: none does. */
struct piece *hier_waiting(struct tn_comm *c);
int hier_all_waiting(const struct hier *h);
/* The group of the backend in which a piece is under way. */
struct tn_comm *hier_comm_of(const struct piece *p);

/* stages.c */
/* Cuts the next piece off an operation; 0: there is none. */
int hier_cut(struct tn_request *r, struct piece *p);
/* Begins a stage: sets side and below, if there is anything to do here. */
tn_status hier_issue(struct piece *p, int stage);
/* After a stage: repacks for the next. */
void hier_ended(struct piece *p, int stage);

/* pack.c */
void hier_widen(float *to, const void *from, uint64_t count);
void hier_narrow(void *to, const float *from, uint64_t count);

#endif
