/* Runs a test of a collective backend as n ranks and says where it failed.
 *
 * Ranks are forked processes, or threads of one process with an instance each (so that the
 * thread sanitizer sees them). A test is a function that every rank runs; `check` ends the rank
 * with a line. The backend is used through its table alone. */
#ifndef TENON_CONFORMANCE_HARNESS_H
#define TENON_CONFORMANCE_HARNESS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "loopback.h"
#include "plainhost.h"

#define SECONDS(s) ((uint64_t)((s)*1e9))

enum { MAX_RANKS = 8, MAX_LAYERS = 4, ANY_RANK = -2 };

struct rank {
    const struct tn_plugin *plugin;
    const struct tn_collective *t;
    struct tn_collective_caps caps;
    struct plainhost host;              /* of the outermost plugin */
    struct plainhost below[MAX_LAYERS]; /* of those below it, the backend last */
    void *below_self[MAX_LAYERS];
    int32_t n_below;
    struct plainhost with[MAX_LAYERS]; /* of those that the backend may open */
    void *with_self[MAX_LAYERS];       /* NULL: it did not */
    int32_t n_with;
    struct tn_bootstrap bootstrap;
    struct loopback *lb;
    const char *test;
    void *self;
    struct tn_comm *world;
    int32_t rank, n;
    int groups; /* as in the world */
};

typedef void test_fn(struct rank *r);

struct world {
    const struct tn_plugin *plugin;            /* what is tested */
    const struct tn_plugin *below[MAX_LAYERS]; /* below it, if it is a layer; the backend last */
    int32_t n_below;
    const struct tn_plugin *with[MAX_LAYERS]; /* backends that it may open by id */
    int32_t n_with;
    const char *hosts;     /* simulated (loopback.h); NULL: one */
    const char *overrides; /* options, of all of them */
    int use_threads;
    int expect_killed; /* this rank is meant to be killed; -1: none; ANY_RANK: any may be */
    double limit_s;
    int groups;        /* that groups_without_leak makes and destroys */
    uint64_t words[2]; /* the first of shared_word, as the last run left them */
};

/* Creates, inits and makes r->world, runs fn, destroys, on n ranks. Returns the failed ranks. */
int world_run(struct world *w, const char *test, int32_t n, test_fn *fn);

/* The same as one rank of n that a launcher started; they meet in `file`. Returns whether it failed. */
int world_join(const struct world *w, const char *test, const char *file, int32_t rank, int32_t n, test_fn *fn);

/* Ends this rank unless `ok`. */
void check_that(struct rank *r, int ok, const char *file, int line, const char *fmt, ...) TN_PRINTF(5, 6);
#define CHECK(r, cond) check_that(r, cond, __FILE__, __LINE__, "%s", #cond)
#define CHECK_STATUS(r, st, want)                                                                                 \
    do {                                                                                                          \
        tn_status got_status = (st);                                                                              \
        check_that(r, got_status == (want), __FILE__, __LINE__, "%s gives %d, not %d: %s", #st, got_status, want, \
                   (r)->host.message);                                                                            \
    } while (0)

/* Waits a while, for OK. */
void finish(struct rank *r, struct tn_request *q);
void barrier(struct rank *r);
/* Meeting through the loopback's words instead of the backend. */
void meet(struct rank *r);
_Atomic uint64_t *shared_word(struct rank *r, uint32_t index);

#endif
