/* verify: what its two files share.
 *
 *   verify.c   the table, groups, the calls and what is wrong with their arguments
 *   request.c  announcements, their comparison, test and wait, errors */
#ifndef TENON_VERIFY_H
#define TENON_VERIFY_H

#include <tenon/call.h>
#include <tenon/plugin.h>

enum { NAME_BYTES = 32, WORDS = 8 /* of 4 bytes in an announcement */ };

/* What a member says of its next collective. */
struct announcement {
    uint64_t number, count;
    uint32_t op, dtype, red;
    int32_t root;
};

enum stage { ANNOUNCED, MOVING, COMPARING /* sums of the results */, ENDED };

struct tn_request {
    struct tn_comm *comm;
    enum stage stage;
    tn_status status;         /* once ENDED */
    struct tn_request *below; /* the announcement's gathering, then the operation itself, then the sums' gathering */
    struct tn_request *next;  /* announced, or to be compared, after this one; or in the free list */
    int is_compared;          /* its result must be the same on all members, and is looked at */
    uint64_t sum;             /* of the result */
    struct tn_request *next_made;
    struct tn_call call;
    struct announcement mine, all[];
};

struct tn_comm {
    struct verify *verify;
    struct tn_comm *data, *talk;              /* two groups below of the same members: operations, announcements */
    struct tn_comm *sums;                     /* with option checksum a third, for sums of results */
    struct tn_request *moving, **last_moving; /* to be compared, in order; not COMPARING yet */
    char name[NAME_BYTES];
    int32_t n;
    int32_t *ranks;
    uint64_t number;                  /* of the next collective */
    struct tn_request *first, **last; /* announced and not moving yet, in order */
    struct tn_request *made, *unused; /* all; those to be used again */
    tn_status failed;                 /* stays: members no longer agree, or cannot talk */
    int has_error;                    /* the last error is of this layer, in the two below */
    int is_late;                      /* it is a time-out, and the backend has not been asked who is missing */
    struct tn_comm_error error;
    char error_text[512];
    struct tn_comm *next_comm;
};

struct verify {
    const struct tn_host *host;
    const struct tn_collective *next;
    void *next_self;
    uint64_t dtypes; /* that can be reduced */
    int checksum;    /* the option */
    struct tn_comm *comms;
};

/* Announces a collective. */
tn_status verify_announce(struct tn_comm *c, const struct tn_call *what, struct tn_request **r);
/* A request for a message, which `below` moves already. */
struct tn_request *verify_request_new(struct tn_comm *c);
void verify_recycle(struct tn_request *r);
/* Looks at all announcements, and starts the operations that all members agree on. */
void verify_advance(struct verify *v);
tn_status verify_test(struct tn_request *r);
tn_status verify_wait(struct tn_request *r, uint64_t timeout_ns);
tn_status verify_last_error(struct tn_comm *c, struct tn_comm_error *error);

#endif
